"""FLOPs and reduced bytes: exact arithmetic, and TensorFlow's own count of the real graph."""

import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf
from bert_shapes import BASE, LARGE, SMALL

from official_bert import recipes, stacking
from official_bert.model.pretrainer import BertPretrainer, pretraining_sums
from official_bert.stages import Stage
from official_bert.training import flops
from official_bert.training.reports import updates_left

# Wide beside the things that are not counted.
WIDE = dataclasses.replace(SMALL, vocab_size=1000, max_position_embeddings=64)


def stage_of(batch_size=1, max_seq_length=128, max_predictions_per_seq=20, **fields):
    return Stage(
        steps=1,
        batch_size=batch_size,
        max_seq_length=max_seq_length,
        max_predictions_per_seq=max_predictions_per_seq,
        learning_rate=1.0,
        **fields,
    )


def test_mslt_phases_of_12_layers_cost_9_12_15_18_36_twice_less_than_36_throughout():
    layer = flops.layer_flops(BASE, 128)
    plan = [stage_of(**fields) for fields in stacking.mslt_plan((3, 6, 9, 12))]
    costs = [flops.encoder_flops(BASE, stage) / layer for stage in plan]
    assert costs == [9, 12, 15, 18, 36]
    assert 5 * flops.encoder_flops(BASE, stage_of()) / layer / sum(costs) == 2.0


def test_mslt_phases_of_24_layers_cost_twice_those_of_12():
    layer = flops.layer_flops(LARGE, 128)
    plan = [stage_of(**fields) for fields in stacking.mslt_plan((6, 12, 18, 24))]
    assert [flops.encoder_flops(LARGE, stage) / layer for stage in plan] == [18, 24, 30, 36, 72]


def test_a_frozen_layer_above_a_trained_one_still_passes_gradients_on():
    layer, attention = flops.layer_flops(BASE, 128), 4 * 128**2 * 768  # which has no weights
    middle = stage_of(trained_layers=(4,), train_embeddings=False)
    expected = (4 * 1 + 3 + 7 * 2) * layer + 7 * attention
    assert flops.encoder_flops(BASE, middle) == expected
    embeddings_only = stage_of(trained_layers=())
    assert flops.encoder_flops(BASE, embeddings_only) == 12 * (2 * layer + attention)


@pytest.mark.parametrize(
    ("freeze", "like"),
    [
        (("embeddings/",), {"train_embeddings": False}),
        (
            ("embeddings/", r"layer_[0-5]/"),
            {"train_embeddings": False, "trained_layers": range(6, 12)},
        ),
        (("encoder/",), {"trained_layers": ()}),
    ],
)
def test_what_the_optimizer_freezes_costs_as_little_as_what_a_stage_freezes(freeze, like):
    like = {name: tuple(v) if isinstance(v, range) else v for name, v in like.items()}
    for count in (flops.step_flops, flops.reduced_bytes):
        assert (
            count(BASE, stage_of(), freeze)
            == count(BASE, stage_of(**like))
            < count(BASE, stage_of())
        )
    described, expected = (
        flops.describe(BASE, stage_of(), freeze),
        flops.describe(BASE, stage_of(**like)),
    )
    assert described == expected


def test_bert_bases_forward_pass_is_that_of_its_published_shape():
    # By hand for S = 128: 2 · 128 · (4 · 768² + 2 · 768 · 3072) + 4 · 128² · 768 a layer.
    assert flops.layer_flops(BASE, 128) == 1_811_939_328 + 50_331_648
    # Head, trained: 3 · (2 · 20 · 768 · (768 + 30522) + 2 · 768 · 770).
    assert flops.head_flops(BASE, stage_of()) == 3 * (961_228_800 + 1_182_720)
    assert flops.step_flops(BASE, stage_of(batch_size=256)) == 256 * (
        flops.encoder_flops(BASE, stage_of()) + flops.head_flops(BASE, stage_of())
    )


@pytest.mark.parametrize(
    "fields",
    [{}, *stacking.mslt_plan((1, 3, 4)), {"trained_layers": (1,)}, {"train_embeddings": False}],
)
def test_reduced_bytes_are_those_of_the_models_trained_variables(fields):
    stage = stage_of(**fields)
    config = dataclasses.replace(WIDE, num_hidden_layers=stage.depth_in(WIDE))
    model = BertPretrainer(config)
    trained = [v for v in model.weights if stacking.trained(v.path, stage)]
    assert flops.reduced_bytes(WIDE, stage) == 4 * sum(int(np.prod(v.shape)) for v in trained)


def test_bert_base_and_large_have_the_published_numbers_of_parameters():
    # 110 M and 336 M with heads; 1.34 GB a reduction for BERT-Large.
    assert flops.reduced_bytes(BASE, stage_of()) == 4 * 110_106_428
    assert flops.reduced_bytes(LARGE, stage_of()) == pytest.approx(1.34e9, rel=5e-3)


def test_a_stage_is_described_by_what_it_trains_and_costs():
    fields = {"depth": 6, "trained_layers": (3, 4, 5), "train_embeddings": False}
    text = flops.describe(BASE, stage_of(batch_size=32, **fields))
    assert "6 layers, 3 of them trained, embeddings frozen" in text
    assert "0.777 TFLOP, 89.9 MB of gradients" in text


@pytest.mark.parametrize("name", ["bert_base_mslt", "bert_base_progressive_stacking", "bert_base"])
def test_what_is_left_of_a_run_is_counted_by_work(name):
    stages = recipes.RECIPES[name]().stages
    costs = [flops.step_flops(BASE, stage) for stage in stages]
    work = [stage.steps * cost for stage, cost in zip(stages, costs)]
    assert updates_left(stages, costs, 0, 0) * costs[0] == pytest.approx(sum(work))
    half = stages[0].steps + stages[1].steps // 2
    left = (stages[1].steps - stages[1].steps // 2) * costs[1] + sum(work[2:])
    assert updates_left(stages, costs, 1, half) * costs[1] == pytest.approx(left)


# The graph that trains


def training_graph(stage, config, freeze=()):
    """The graph of a stage's forward and backward pass."""
    config = dataclasses.replace(config, num_hidden_layers=stage.depth_in(config))
    model = BertPretrainer(config)
    paths = {v.path for v in model.weights if stacking.trained(v.path, stage)}
    paths -= {path for path in paths if any(re.search(pattern, path) for pattern in freeze)}
    variables = [v.value for v in model.weights if v.path in paths]

    def forward_backward(batch):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            sums = pretraining_sums(model(batch, training=True, dropout_seed=[1, 2]), batch)
            loss = sums["masked_lm_loss"] + sums["next_sentence_loss"]
        return tape.gradient(loss, variables)

    rows = (stage.batch_size,)
    tokens, masked = (*rows, stage.max_seq_length), (*rows, stage.max_predictions_per_seq)
    shapes = {
        "input_ids": (tokens, "int32"),
        "input_mask": (tokens, "int32"),
        "segment_ids": (tokens, "int32"),
        "masked_lm_positions": (masked, "int32"),
        "masked_lm_ids": (masked, "int32"),
        "masked_lm_weights": (masked, "float32"),
        "next_sentence_labels": (rows, "int32"),
        "example_weights": (rows, "float32"),
    }
    batch = {name: tf.TensorSpec(*shape) for name, shape in shapes.items()}
    return tf.function(forward_backward).get_concrete_function(batch).graph


def products(graph):
    """Multiplications and additions of every matrix product in a graph, from its shapes."""
    total = 0
    for operation in graph.get_operations():
        if operation.type == "MatMul":
            transposed = operation.get_attr("transpose_a")
        elif operation.type == "BatchMatMulV2":
            transposed = operation.get_attr("adj_x")
        else:
            continue
        contracted = operation.inputs[0].shape[-2 if transposed else -1]
        total += 2 * operation.outputs[0].shape.num_elements() * contracted
    return total


def segment_products(stage, config):
    """Our model looks segments up by a product; the forward pass and its table's gradient."""
    rows = stage.batch_size * stage.max_seq_length
    product = 2 * rows * config.type_vocab_size * config.hidden_size
    return (2 if stage.train_embeddings else 1) * product


def unread(stage, config, last_kernels_train=True):
    """What the convention counts of the last layer, and no head reads.

    Q and output of attention, feed-forward layer, scores and mixtures, for S − 1 − P tokens.
    """
    hidden, inner, length = config.hidden_size, config.intermediate_size, stage.max_seq_length
    rows = stage.batch_size * (length - 1 - stage.max_predictions_per_seq)
    dense = (2 + last_kernels_train) * (2 * hidden**2 + 2 * hidden * inner)
    return rows * 2 * (dense + 3 * 2 * length * hidden)


@pytest.mark.parametrize("length", [16, 64])
def test_all_layers_cost_the_products_of_the_real_graph(length):
    stage = stage_of(batch_size=3, max_seq_length=length, max_predictions_per_seq=5)
    counted = products(training_graph(stage, WIDE)) - segment_products(stage, WIDE)
    assert counted == flops.step_flops(WIDE, stage) - unread(stage, WIDE)


@pytest.mark.parametrize("fields", stacking.mslt_plan((1, 2, 4)))
def test_partial_stages_cost_the_products_of_the_real_graph(fields):
    stage = stage_of(batch_size=3, max_seq_length=16, max_predictions_per_seq=5, **fields)
    counted = products(training_graph(stage, WIDE)) - segment_products(stage, WIDE)
    # The convention counts query, key and value of the lowest trained layer above frozen ones with
    # a gradient of their inputs.
    queries = 16 if stage.trained_layers != (stage.depth - 1,) else 1 + 5  # those that are read
    never_done = 2 * 3 * (queries + 2 * 16) * WIDE.hidden_size**2
    never_done = 0 if stage.train_embeddings else never_done
    assert counted == flops.step_flops(WIDE, stage) - unread(stage, WIDE) - never_done


@pytest.mark.parametrize(
    ("freeze", "last_kernels_train"),
    [
        ((r"layer_[23]/",), False),
        (("/kernel",), False),
        (("word_embeddings", "layer_0/", "pooler", "transform"), True),
    ],
)
def test_frozen_variables_save_the_products_that_the_real_graph_lacks(freeze, last_kernels_train):
    stage = stage_of(batch_size=3, max_seq_length=16, max_predictions_per_seq=5)
    counted = products(training_graph(stage, WIDE, freeze)) - segment_products(stage, WIDE)
    spared = unread(stage, WIDE, last_kernels_train)
    assert counted == flops.step_flops(WIDE, stage, freeze) - spared


def test_tensorflows_profiler_counts_the_same_within_a_percent_element_wise_work_included():
    # Its formula for batched products ignores that an operand is transposed, which makes no
    # difference where S is the size of a head, 64.
    config = dataclasses.replace(BASE, num_hidden_layers=2, vocab_size=5000)
    stage = stage_of(batch_size=2, max_seq_length=64, max_predictions_per_seq=10)
    profiler = tf.compat.v1.profiler
    options = profiler.ProfileOptionBuilder(profiler.ProfileOptionBuilder.float_operation())
    counted = profiler.profile(
        training_graph(stage, config), options=options.with_empty_output().build()
    ).total_float_ops
    assert 1.0 < counted / (flops.step_flops(config, stage) - unread(stage, config)) < 1.01


# Devices


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("A100-PCIE-40GB", 312e12),  # earlier drivers leave out the maker
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("Tesla T4", 65e12),
        ("Tesla V100-SXM2-16GB", 125e12),
        ("Tesla V100-PCIE-32GB", 112e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5p", 459e12),
        *dict.fromkeys(
            ("NVIDIA RTX A1000", "NVIDIA T400", "NVIDIA T400 4GB", "Tesla T40 24GB")
        ).items(),
        *dict.fromkeys(
            ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "GRID A100X-8C", "TPU v4 lite")
        ).items(),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", None),
        ("", None),
    ],
)
def test_the_peak_is_that_of_the_device_of_exactly_this_name(name, peak):
    assert flops.peak_flops(name) == peak
