"""The encoder and its heads, against Hugging Face and against what BERT's code states."""

import dataclasses
import json
import os
import statistics
import subprocess
import sys

import keras
import numpy as np
import peers
import pytest
import tensorflow as tf
from bert_shapes import tiny

import lamb_tf
from lamb_tf import _selection
from official_bert.model import fused, layers
from official_bert.model.pretrainer import BertPretrainer, pretraining_sums
from official_bert.stages import Optimizer

CONFIG = tiny(vocab_size=97, initializer_range=0.2)  # large, so that errors show


def make_batch(seed=0, batch=3, length=16, predictions=4):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(predictions + 2, length, batch)
    return {
        "input_ids": rng.integers(0, CONFIG.vocab_size, (batch, length)).astype("int32"),
        "input_mask": (np.arange(length) < lengths[:, None]).astype("int32"),
        "segment_ids": (np.arange(length) >= lengths[:, None] // 2).astype("int32"),
        "masked_lm_positions": rng.integers(1, predictions, (batch, predictions)).astype("int32"),
        "masked_lm_ids": rng.integers(0, CONFIG.vocab_size, (batch, predictions)).astype("int32"),
        "masked_lm_weights": rng.integers(0, 2, (batch, predictions)).astype("float32"),
        "next_sentence_labels": rng.integers(0, 2, batch).astype("int32"),
        "example_weights": np.ones(batch, "float32"),
    }


def make_model(config=CONFIG, **arguments):
    model = BertPretrainer(config, **arguments)
    rng = np.random.default_rng(5)
    for variable in model.weights:  # biases and LayerNorm too, so that each of them matters
        variable.assign(variable + 0.1 * rng.standard_normal(variable.shape).astype("float32"))
    return model


def test_variable_paths_are_the_official_checkpoint_names():
    attention = "attention/self/query", "attention/self/key", "attention/self/value"
    layer = (*attention, "attention/output/dense", "intermediate/dense", "output/dense")
    dense = [f"bert/encoder/layer_{i}/{name}" for i in (0, 1) for name in layer]
    dense += ["bert/pooler/dense", "cls/predictions/transform/dense"]
    norms = [f"bert/encoder/layer_{i}/{name}output" for i in (0, 1) for name in ("attention/", "")]
    norms += ["bert/embeddings", "cls/predictions/transform"]
    tables = [f"bert/embeddings/{name}_embeddings" for name in ("word", "position", "token_type")]
    heads = ["predictions/output_bias"]
    heads += ["seq_relationship/output_weights", "seq_relationship/output_bias"]
    expected = [f"{path}/{name}" for path in dense for name in ("kernel", "bias")]
    expected += [f"{path}/LayerNorm/{name}" for path in norms for name in ("gamma", "beta")]
    expected += tables + [f"cls/{head}" for head in heads]
    assert sorted(v.path for v in BertPretrainer(CONFIG).weights) == sorted(expected)


def test_the_official_exclusions_are_the_biases_and_norms():
    variables = BertPretrainer(CONFIG).trainable_variables
    exclusions = Optimizer().exclude_from_weight_decay
    expected = _selection.excluded(variables, exclusions, "exclude_from_weight_decay")
    assert [lamb_tf.biases_and_norms(variable) for variable in variables] == expected
    assert 0 < sum(expected) < len(expected)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_erf"])
def test_logits_equal_those_of_hugging_face(activation):
    torch = peers.load("torch")
    peers.load("transformers")
    from benchmarks import hugging_face

    config = dataclasses.replace(CONFIG, hidden_act=activation)
    model = make_model(config)
    theirs = hugging_face.bert_for_pretraining(config).eval()
    hugging_face.set_weights(theirs, {v.path: v.numpy() for v in model.weights})

    batch = make_batch()
    with torch.no_grad():
        wanted = theirs(
            input_ids=torch.from_numpy(batch["input_ids"]).long(),
            attention_mask=torch.from_numpy(batch["input_mask"]),
            token_type_ids=torch.from_numpy(batch["segment_ids"]).long(),
        )
    ours = model(batch)
    rows = np.arange(3)[:, None], batch["masked_lm_positions"]
    wanted_masked = wanted.prediction_logits.numpy()[rows]
    np.testing.assert_allclose(ours["masked_lm_logits"], wanted_masked, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(
        ours["next_sentence_logits"], wanted.seq_relationship_logits, rtol=2e-4, atol=2e-4
    )


def test_rows_that_are_asked_for_are_those_of_the_whole_sequence_and_so_are_the_gradients():
    model, batch = make_model(), make_batch()
    positions = np.array([[0, 3, 3], [15, 0, 2], [1, 4, 9]], "int32")
    no_dropout = model.encoder.dropout(training=False)
    upstream = (
        np.random.default_rng(6).standard_normal((3, 3, CONFIG.hidden_size)).astype("float32")
    )
    variables = [v.value for v in model.trainable_variables if v.path.startswith("bert/e")]
    rows, gradients = [], []
    for asked in (positions, None):
        with tf.GradientTape() as tape:
            encoded, _ = model.encoder.encode(batch, no_dropout, asked)
            if asked is None:
                encoded = tf.gather(encoded, positions, batch_dims=1)
        rows.append(encoded)
        gradients.append(tape.gradient(encoded, variables, upstream))
    np.testing.assert_allclose(*rows, rtol=1e-4, atol=1e-5)
    for some, all_rows in zip(*gradients, strict=True):
        np.testing.assert_allclose(*map(tf.convert_to_tensor, (some, all_rows)), 1e-4, 1e-4)


def test_what_lies_under_padding_does_not_matter():
    model, batch = make_model(), make_batch()
    other = dict(batch)
    other["input_ids"] = np.where(batch["input_mask"] == 1, batch["input_ids"], 7).astype("int32")
    for name, logits in model(batch).items():
        np.testing.assert_allclose(logits, model(other)[name], rtol=1e-5, atol=1e-5)


def test_initial_values_are_a_truncated_normal_that_follows_from_seed_and_path():
    first, again, other = (BertPretrainer(CONFIG, seed=seed) for seed in (1, 1, 2))
    deeper = BertPretrainer(dataclasses.replace(CONFIG, num_hidden_layers=3), seed=1)
    deeper = {v.path: v.numpy() for v in deeper.weights}
    for a, b, c in zip(first.weights, again.weights, other.weights, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
        np.testing.assert_array_equal(a.numpy(), deeper[a.path])
        if a.path.endswith(("kernel", "_embeddings", "output_weights")):
            assert not np.array_equal(a.numpy(), c.numpy())
        else:
            assert (a.numpy() == (1.0 if a.path.endswith("gamma") else 0.0)).all()


def test_initial_values_are_distributed_as_the_formula_of_the_truncated_normal_says():
    initializer = layers.truncated_normal(0.02, seed=1, path="a/kernel")
    values = np.asarray(initializer((1000, 1000), "float32"), np.float64) / 0.02
    assert np.abs(values).max() <= 2
    normal = statistics.NormalDist()
    for z in np.linspace(-1.75, 1.75, 15):
        share = (normal.cdf(z) - normal.cdf(-2)) / (normal.cdf(2) - normal.cdf(-2))
        assert abs((values <= z).mean() - share) < 4 * np.sqrt(share * (1 - share)) / 1000
    assert values.std() == pytest.approx(layers.STDDEV_RATIO, rel=4 / 1000)
    assert round(layers.STDDEV_RATIO, 4) == 0.8796


def test_dropout_is_a_function_of_its_seed_and_differs_each_time_without_one():
    model, batch = make_model(), make_batch()

    def logits(seed):
        out = model(batch, training=True, dropout_seed=np.array([7, seed], "int32"))
        return out["masked_lm_logits"].numpy()

    np.testing.assert_array_equal(logits(1), logits(1))
    assert not np.array_equal(logits(1), logits(2))
    unseeded = [model(batch, training=True)["masked_lm_logits"].numpy() for _ in range(2)]
    assert not np.array_equal(*unseeded)


def test_an_example_s_dropout_is_a_function_of_its_own_seed():
    """Whatever the other examples are, in each tensor that is dropped."""
    model, batch = make_model(), make_batch()
    seeds = np.array([[7, row] for row in range(len(batch["input_ids"]))], "int32")

    def logits(rows):
        chosen = {name: values[rows] for name, values in batch.items()}
        out = model(chosen, training=True, dropout_seed=seeds[rows])
        return np.concatenate([x.numpy().reshape(len(rows), -1) for x in out.values()], 1)

    whole = logits(np.arange(len(seeds)))
    for rows in ([1], [2, 0], [*range(len(seeds))][::-1]):
        np.testing.assert_allclose(logits(np.array(rows)), whole[rows], rtol=1e-5, atol=1e-5)
    assert np.abs(np.diff(logits(np.array([0, 0])), axis=0)).max() < 1e-5


def test_sums_equal_their_formula_in_numpy():
    model, batch = make_model(), make_batch()
    outputs = {name: logits.numpy().astype(np.float64) for name, logits in model(batch).items()}
    sums = pretraining_sums(model(batch), batch)
    for task, labels, weights in (
        ("masked_lm", batch["masked_lm_ids"], batch["masked_lm_weights"]),
        ("next_sentence", batch["next_sentence_labels"], batch["example_weights"]),
    ):
        logits = outputs[f"{task}_logits"]
        chosen = np.take_along_axis(logits, labels[..., None], -1)[..., 0]
        cross_entropy = np.log(np.exp(logits).sum(-1)) - chosen
        hits = logits.argmax(-1) == labels
        np.testing.assert_allclose(sums[f"{task}_loss"], (weights * cross_entropy).sum(), rtol=1e-5)
        assert sums[f"{task}_correct"] == (weights * hits).sum()
        assert sums[f"{task}_weight"] == weights.sum()


def test_mixed_precision_keeps_float32_weights_and_logits():
    model, batch = make_model(dtype="mixed_bfloat16"), make_batch()
    assert {variable.dtype for variable in model.weights} == {"float32"}
    low, full = model(batch), make_model()(batch)
    for name, logits in low.items():
        assert keras.backend.standardize_dtype(logits.dtype) == "float32"
        np.testing.assert_allclose(logits, full[name], atol=0.15)


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_backends_start_from_the_same_weights_compute_and_drop_the_same(backend, tmp_path):
    script = f"""
import json
import keras
import numpy as np
from official_bert.model.config import BertConfig
from official_bert.model import fused, layers
from official_bert.model.pretrainer import BertPretrainer, pretraining_sums
assert keras.backend.backend() == {backend!r}
batch = dict(np.load({str(tmp_path / "batch.npz")!r}))
model = BertPretrainer({CONFIG!r})
initial, values = (np.load({str(tmp_path)!r} + name) for name in ("/initial.npz", "/weights.npz"))
for variable in model.weights:
    found = keras.ops.convert_to_numpy(variable.value)
    np.testing.assert_array_equal(found, initial[variable.path], variable.path)
    variable.assign(values[variable.path])
sums = pretraining_sums(model(batch), batch)
dropped = fused.dropout(keras.ops.ones((5, 40)), keras.ops.convert_to_tensor([7, 11]), rate=0.1)
dropped = keras.ops.convert_to_numpy(dropped).tolist()
print(json.dumps([dropped, {{name: float(value) for name, value in sums.items()}}]))
"""
    model, batch = make_model(), make_batch()
    for name, weights in (("initial", BertPretrainer(CONFIG).weights), ("weights", model.weights)):
        np.savez(tmp_path / f"{name}.npz", **{v.path: v.numpy() for v in weights})
    np.savez(tmp_path / "batch.npz", **batch)
    environment = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    dropped, theirs = json.loads(done.stdout.splitlines()[-1])
    for name, value in pretraining_sums(model(batch), batch).items():
        assert theirs[name] == pytest.approx(float(value), rel=1e-4)
    ours = fused.dropout(tf.ones((5, 40)), tf.constant([7, 11]), rate=0.1)
    np.testing.assert_allclose(dropped, ours, rtol=1e-6)
    assert 0 < (ours.numpy() == 0).sum() < 60


def test_model_task_and_recipes_are_imported_without_tensorflow_on_another_backend():
    script = (
        "import sys\n"
        "from official_bert import recipes\n"
        "from official_bert.data import row_batches\n"
        "from official_bert.tasks import pretraining\n"
        "assert 'tensorflow' not in sys.modules"
    )
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)


def test_the_gradient_of_a_frequent_word_is_summed_up_in_float32_in_bfloat16_too():
    """Of 8,192 small terms; in bfloat16 the sum would stop growing on the way."""
    ids = tf.ones((64, 128), tf.int32)
    config = dataclasses.replace(CONFIG, max_position_embeddings=128)
    upstream = np.random.default_rng(0).uniform(0, 1, (64 * 128, CONFIG.hidden_size))
    gradients = []
    for dtype in ("float32", "mixed_bfloat16"):
        model = BertPretrainer(config, dtype=dtype)
        no_dropout = model.encoder.dropout(training=False)
        with tf.GradientTape() as tape:
            x, _ = model.encoder.embeddings(ids, tf.zeros_like(ids), dropout=no_dropout)
            loss = tf.reduce_sum(tf.cast(x, tf.float32) * upstream)
        gradients.append(tape.gradient(loss, model.encoder.embeddings.word_embeddings.value)[1])
    wanted, found = map(np.asarray, gradients)
    assert np.linalg.norm(found - wanted) < 0.02 * np.linalg.norm(wanted)


def test_bias_gradients_in_bfloat16_are_summed_up_in_float32():
    dense = make_model(dtype="mixed_bfloat16").encoder.encoder_layers[0].query
    rng = np.random.default_rng(0)
    x = tf.constant(rng.standard_normal((16_384, CONFIG.hidden_size)), tf.bfloat16)
    upstream = tf.constant(rng.uniform(0, 1, (16_384, CONFIG.hidden_size)), tf.bfloat16)

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            y = dense(x)
        return tape.gradient(y, dense.bias.value, upstream)

    expected = tf.reduce_sum(tf.cast(upstream, tf.float64), 0)
    np.testing.assert_allclose(gradient(), expected, rtol=0.01)
