"""Growing the encoder and choosing what trains: the rules, on models of both depths."""

import dataclasses
import itertools
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from bert_shapes import tiny

from official_bert import stacking
from official_bert.data import input_pipeline
from official_bert.engines import loop_state, tf_update
from official_bert.engines.tf_distribute import TfDistribute
from official_bert.model.pretrainer import BertPretrainer
from official_bert.stages import LoopOptions, Optimizer, Run, Stage
from official_bert.training import checkpoints, flops
from official_bert.training.trainer import Trainer

CONFIG = tiny(vocab_size=61, num_hidden_layers=6, initializer_range=0.2)


def make_model(depth, seed=0):
    return BertPretrainer(dataclasses.replace(CONFIG, num_hidden_layers=depth), seed=seed)


def weights_of(model):
    return {variable.path: variable.numpy() for variable in model.weights}


def make_batch(batch=3, length=10):
    rng = np.random.default_rng(1)
    return {
        "input_ids": rng.integers(0, CONFIG.vocab_size, (batch, length)).astype("int32"),
        "input_mask": (np.arange(length) < [[10], [7], [4]]).astype("int32"),
        "segment_ids": (np.arange(length) >= 4).astype("int32") * np.ones((batch, 1), "int32"),
        "masked_lm_positions": np.array([[1, 2], [3, 0], [0, 1]], "int32"),
    }


def logits_through(model, batch, layers):
    """The outputs of `model`'s embeddings and heads around the given layers, one by one."""
    whole = list(model.encoder.encoder_layers)
    try:
        model.encoder.encoder_layers = [whole[i] for i in layers]
        return model(batch)
    finally:
        model.encoder.encoder_layers = whole


def stage_of(**fields):
    return Stage(
        steps=1,
        batch_size=1,
        max_seq_length=8,
        max_predictions_per_seq=1,
        learning_rate=1.0,
        **fields,
    )


@pytest.mark.parametrize(
    ("old", "new", "how", "order"),
    [
        (2, 4, "copy_top", [0, 1, 0, 1]),
        (4, 6, "copy_top", [0, 1, 2, 3, 2, 3]),
        (3, 4, "copy_top", [0, 1, 2, 2]),
        (2, 5, "copy_top", [0, 1, 0, 1, 0]),  # fewer layers than are added
        (2, 4, "copy_stack", [0, 1, 0, 1]),
        (4, 6, "copy_stack", [0, 1, 2, 3, 0, 1]),
        (2, 6, "copy_stack", [0, 1, 0, 1, 0, 1]),
        (3, 3, "copy_top", [0, 1, 2]),
    ],
)
def test_a_grown_model_computes_the_old_ones_layers_in_the_order_of_the_rule(old, new, how, order):
    shallow, deep, batch = make_model(old), make_model(new, seed=9), make_batch()
    grown = stacking.grow(weights_of(shallow), old, new, how)
    for variable in deep.weights:
        variable.assign(grown.pop(variable.path))
    assert not grown  # a weight for each variable of the deeper model, and no more
    expected = logits_through(shallow, batch, order)
    for name, logits in deep(batch).items():
        np.testing.assert_array_equal(logits, expected[name])


def test_fresh_layers_keep_what_the_initialiser_gave_them():
    old = weights_of(make_model(2))
    assert stacking.grow(old, 2, 4, "fresh") == old
    # and the model's initial values of the layers that both have do not depend on the depth
    deep = weights_of(make_model(4))
    assert all(np.array_equal(value, deep[path]) for path, value in old.items())
    assert not np.array_equal(
        deep["bert/encoder/layer_1/output/dense/kernel"],
        deep["bert/encoder/layer_3/output/dense/kernel"],
    )


def test_layer_1_is_not_taken_for_layer_10():
    weights = {f"bert/encoder/layer_{i}/output/dense/bias": i for i in range(11)}
    grown = stacking.grow(weights, 11, 13, "copy_stack")
    assert [grown[f"bert/encoder/layer_{i}/output/dense/bias"] for i in (11, 12)] == [0, 1]
    assert len(grown) == 13
    stage = stage_of(trained_layers=(1,))
    assert stacking.trained("bert/encoder/layer_1/output/dense/bias", stage)
    assert not stacking.trained("bert/encoder/layer_10/output/dense/bias", stage)


def test_moments_under_their_checkpoint_names_grow_like_weights():
    grown = stacking.grow({"bert/encoder/layer_0/output/dense/bias/adam_m": 5}, 1, 2, "copy_top")
    assert grown["bert/encoder/layer_1/output/dense/bias/adam_m"] == 5


@pytest.mark.parametrize(
    ("fields", "frozen"),
    [
        ({}, ()),
        (
            {"trained_layers": (4, 5), "train_embeddings": False},
            ("embeddings", "layer_0", "layer_1", "layer_2", "layer_3"),
        ),
        ({"trained_layers": (0, 1, 2)}, ("layer_3", "layer_4", "layer_5")),
        ({"train_embeddings": False}, ("embeddings",)),
    ],
)
def test_exactly_the_stated_variables_are_frozen(fields, frozen):
    paths = [variable.path for variable in make_model(6).weights]
    stage = stage_of(**fields)
    expected = [path for path in paths if not {*frozen} & {*path.split("/")}]
    assert [path for path in paths if stacking.trained(path, stage)] == expected
    assert "cls/predictions/output_bias" in expected
    assert "bert/pooler/dense/kernel" in expected


def test_the_plan_trains_new_layers_first_the_embeddings_once_and_everything_last():
    assert stacking.mslt_plan((3, 6, 9, 12)) == (
        {"depth": 3, "trained_layers": (0, 1, 2), "train_embeddings": True},
        {"depth": 6, "trained_layers": (3, 4, 5), "train_embeddings": False},
        {"depth": 9, "trained_layers": (6, 7, 8), "train_embeddings": False},
        {"depth": 12, "trained_layers": (9, 10, 11), "train_embeddings": False},
        {"depth": 12, "trained_layers": None, "train_embeddings": True},
    )


def test_every_variable_trains_in_a_partial_stage_and_in_the_last():
    paths = [variable.path for variable in make_model(6).weights]
    *partial, last = [stage_of(**fields) for fields in stacking.mslt_plan((1, 4, 6))]
    assert all(any(stacking.trained(path, stage) for stage in partial) for path in paths)
    assert all(stacking.trained(path, last) for path in paths)


@pytest.mark.parametrize("depths", [(), (0, 3), (3, 3), (6, 3), (-1,)])
def test_depths_that_do_not_grow_are_refused(depths):
    with pytest.raises(ValueError, match="depths must be positive and increasing"):
        stacking.mslt_plan(depths)


def test_what_cannot_be_grown_is_refused():
    with pytest.raises(
        ValueError, match="depth must be at least that of the stage before, 4; got 3"
    ):
        stacking.grow({}, 4, 3, "copy_top")
    with pytest.raises(ValueError, match=r"growth must be one of copy_top, .*'copy'"):
        stacking.grow({}, 3, 4, "copy")


# In the loop

SHAPE = {"batch_size": 8, "max_seq_length": 32, "max_predictions_per_seq": 5}


def make_run(corpus, stages):
    """Stages as dictionaries of the fields that matter."""
    common = {"steps": 2, "learning_rate": 1e-2, "carry_moments": False, **SHAPE}
    stages = tuple(Stage(**{**common, **fields}) for fields in stages)
    return Run(
        config=dataclasses.replace(corpus.config, num_hidden_layers=stages[-1].depth),
        stages=stages,
        optimizer=Optimizer(),
        input_files=(corpus.train,),
    )


def train(run, model_dir, strategy=None):
    """Trains; returns the tensors at the end of each stage."""
    options = LoopOptions(keep_checkpoint_max=0, save_checkpoints_steps=0, steps_per_loop=25)
    engine = TfDistribute(strategy or tf.distribute.get_strategy())
    Trainer(run, options, engine, model_dir).train()
    ends = itertools.accumulate(stage.steps for stage in run.stages)
    return [
        checkpoints.read_tensors(model_dir / f"ctl_step_{end}.ckpt-{count}")
        for count, end in enumerate(ends, 1)
    ]


def is_weight(path):
    return path.startswith(("bert/", "cls/")) and "/adam_" not in path


def layer_and_rest(path):
    """`bert/encoder/layer_2/output/dense/bias` → (2, "output/dense/bias")."""
    number, _, rest = path.removeprefix("bert/encoder/layer_").partition("/")
    return (int(number), rest) if number.isdigit() else (None, path)


@pytest.fixture(scope="module")
def mslt(small_corpus, tmp_path_factory):
    """A run 1 + 1 + 1 layers and then all: (run, its directory, tensors at each stage's end)."""
    fields = {"steps": 20, "learning_rate": 2e-2, "warmup_steps": 2}
    run = make_run(small_corpus, [{**plan, **fields} for plan in stacking.mslt_plan((1, 2, 3))])
    folder = tmp_path_factory.mktemp("mslt")
    return run, folder, train(run, folder)


@pytest.mark.slow
def test_what_does_not_train_in_a_stage_is_bit_identical_at_its_end(mslt):
    run, _, ends = mslt
    for stage, before, after in zip(run.stages[1:], ends, ends[1:]):
        for path in filter(is_weight, before):
            same = np.array_equal(before[path], after[path])
            if not stacking.trained(path, stage):
                assert same, f"{path} changed"
            elif path.endswith(("kernel", "gamma", "embeddings", "output_weights")):
                assert not same, f"{path} did not train"


@pytest.mark.slow
def test_what_does_not_train_has_no_optimizer_slots(mslt):
    run, _, ends = mslt
    for stage, tensors in zip(run.stages, ends, strict=True):
        for path in filter(is_weight, tensors):
            assert (f"{path}/adam_m" in tensors) == stacking.trained(path, stage)


@pytest.mark.slow
def test_an_mslt_run_lowers_the_loss_from_stage_to_stage(mslt):
    _, folder, _ = mslt
    lines = map(json.loads, (folder / "train_log.jsonl").read_text().splitlines())
    losses = [line["masked_lm_loss"] for line in lines if line["kind"] == "train"]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)


@pytest.mark.slow
def test_an_mslt_run_gone_on_with_equals_one_that_was_never_interrupted(mslt, tmp_path):
    run, folder, whole = mslt
    shutil.copytree(folder, tmp_path / "again")
    for path in (tmp_path / "again").glob("*.ckpt-[34]*"):  # as if killed in the third stage
        path.unlink()
    again = train(run, tmp_path / "again")
    assert again[-1].keys() == whole[-1].keys()
    for name, tensor in whole[-1].items():
        np.testing.assert_array_equal(again[-1][name], tensor, err_msg=name)


def test_new_positions_are_the_known_ones_added_cyclically():
    table = np.arange(20.0).reshape(10, 2)
    expected = [table[j] + (table[j % 3] if 3 <= j < 8 else 0) for j in range(10)]
    np.testing.assert_array_equal(stacking.repeat_positions(table, 3, 8), expected)
    np.testing.assert_array_equal(table, np.arange(20.0).reshape(10, 2))  # as it was


def test_positions_are_known_from_stages_that_train_them():
    short, frozen = stage_of(), stage_of(trained_layers=(0,), train_embeddings=False)
    longer = dataclasses.replace(frozen, max_seq_length=16)
    assert stacking.known_positions([short, longer]) == 8
    assert stacking.known_positions([frozen]) == stacking.known_positions([]) == 0


@pytest.mark.slow
def test_the_loop_starts_a_grown_model_from_the_rules_weights(small_corpus, tmp_path, capsys):
    still = {"steps": 1, "learning_rate": 0.0}  # nothing moves: the start can be seen
    stages = [
        {"depth": 2, "steps": 3},
        {"depth": 3, "growth": "copy_top", "carry_moments": True, **still},
        {"depth": 5, "growth": "copy_stack", **still},
        {"depth": 6, "growth": "fresh", **still},
    ]
    run = make_run(small_corpus, stages)
    ends = train(run, tmp_path)
    fresh = {v.path: v.numpy() for v in BertPretrainer(run.config, seed=run.seed).weights}
    for before, after, order in (
        (*ends[0:2], [0, 1, 1]),
        (*ends[1:3], [0, 1, 2, 0, 1]),
        (*ends[2:4], [*range(6)]),
    ):
        for path in filter(is_weight, after):
            layer, rest = layer_and_rest(path)
            source = path if layer is None else f"bert/encoder/layer_{order[layer]}/{rest}"
            expected = before.get(source, fresh.get(path))
            np.testing.assert_array_equal(after[path], expected, err_msg=path)
    # Moments and the count of updates that the bias correction goes by carry over if asked to.
    assert [end["optimizer/iterations"] for end in ends] == [3, 4, 1, 1]
    said = capsys.readouterr().out
    assert all(f"stage {n}: {d} layers; weights: carried" in said for n, d in ((2, 3), (3, 5)))


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1, 3])  # all, one layer alone, all of the grown model
def test_replicas_reduce_the_bytes_of_what_trains_once_an_update(small_corpus, index):
    run = make_run(small_corpus, stacking.mslt_plan((1, 2, 3)))
    run = dataclasses.replace(run, gradient_accumulation_steps=2)
    stage = run.stages[index]
    # Without collective operations, whose keys clash between strategies of one process.
    cross_device = tf.distribute.ReductionToOneDevice()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device)
    config = dataclasses.replace(run.config, num_hidden_layers=stage.depth)
    with strategy.scope():
        model = BertPretrainer(config)
        for variable in model.weights:
            variable.trainable = stacking.trained(variable.path, stage)
        optimizer = run.optimizer.make()
        optimizer.build(model.trainable_variables)
    reduced = []

    def count(reduce_op, pairs, *args, **kwargs):
        reduced.extend(4 * value.values[0].shape.num_elements() for value, _ in pairs)
        return type(cross_device).batch_reduce(cross_device, reduce_op, pairs, *args, **kwargs)

    cross_device.batch_reduce = count
    loop = tf_update.make_training_loop(run, model, optimizer, strategy)
    batches = input_pipeline.Batches(stage.resolve(run.input_files), 8, 32, 5, seed=1)
    iterator = TfDistribute(strategy).feed(lambda *shard: batches, range(2))
    loop(iterator, 0, 1, loop_state.first_state(run))
    two_weights = 8  # bytes: the sums that the losses are divided by
    sums = 4 * (len(run.task.sums) + 1)  # bytes: of the task, and the requests to stop
    assert sum(reduced) == flops.reduced_bytes(run.config, stage) + two_weights + sums
