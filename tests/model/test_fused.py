"""The fused kernels of the encoder: against plain operations, and dropout as a random variable."""

import numpy as np
import pytest
import tensorflow as tf

from lamb_tf import compile_target
from official_bert.model import config, fused

RATE, SEED = 0.1, np.array([7, 11], "int32")


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def normalized(x, gamma, beta):
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-12)


def dropped(x):
    return tf.where(fused.kept(x.shape, SEED, RATE), x / (1 - RATE), 0.0)


X, RESIDUAL, GAMMA, BETA = normal(6, 48), normal(6, 48, seed=1), normal(48, seed=2), normal(48)
BIAS = normal(48, seed=4)
SCORES = normal(2, 3, 6, 48)
MASK_BIAS = np.where(normal(2, 1, 1, 48, seed=5) > 1, -10000.0, 0.0).astype("float32")
ACTIVATIONS = {
    "gelu": lambda x: tf.nn.gelu(x, approximate=True),
    "gelu_new": lambda x: 0.5 * x * (1 + tf.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: x * 0.5 * (1 + tf.math.erf(x / 2**0.5)),
    "relu": tf.nn.relu,
    "tanh": tf.tanh,
    "linear": tf.identity,
}
CASES = {  # the kernel, its tensors, its values, and what it is to compute
    **{
        name: (
            fused.activated,
            [X, BIAS],
            {"activation": name},
            lambda x, bias, plain=plain: plain(x + bias),
        )
        for name, plain in ACTIVATIONS.items()
    },
    "dropout": (fused.dropout, [X, SEED], {"rate": RATE}, lambda x, _: dropped(x)),
    "layer_norm": (fused.layer_norm, [X, GAMMA, BETA], {"epsilon": 1e-12}, normalized),
    "add_and_norm": (
        fused.add_and_norm,
        [X, BIAS, RESIDUAL, GAMMA, BETA, SEED],
        {"rate": RATE, "epsilon": 1e-12},
        lambda x, b, residual, gamma, beta, _: normalized(residual + dropped(x + b), gamma, beta),
    ),
    "attention_weights": (
        lambda x, **values: fused.attention_weights(x, MASK_BIAS, SEED, **values),
        [SCORES],
        {"rate": RATE, "scale": 0.3},
        lambda x: dropped(tf.nn.softmax(0.3 * x + MASK_BIAS)),
    ),
}


def test_every_activation_of_a_configuration_is_tested_here():
    assert set(ACTIVATIONS) == set(config.ACTIVATIONS)


@pytest.mark.parametrize("way", ["eager", "graph", "XLA"])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_plain_operations(case, way):
    kernel, tensors, values, plain = CASES[case]
    upstream = normal(*tensors[0].shape, seed=3)

    def both(function, **values):
        def run(*tensors):
            sources = [x for x in tensors if x.dtype.is_floating]
            with tf.GradientTape() as tape:
                tape.watch(sources)
                y = function(*tensors, **values)
            return [y, *tape.gradient(y, sources, upstream)]

        return run

    tensors = [tf.convert_to_tensor(x) for x in tensors]
    run = both(kernel, **values)
    if way != "eager":
        run = tf.function(run, jit_compile=way == "XLA")
    for ours, wanted in zip(run(*tensors), both(plain)(*tensors), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=2e-5, atol=2e-5)


# The softmax of attention is TensorFlow's, in the type that comes in.
@pytest.mark.parametrize("case", [case for case in CASES if case != "attention_weights"])
def test_the_type_that_comes_in_goes_out_and_is_rounded_once(case):
    kernel, tensors, values, _ = CASES[case]
    low = [tf.cast(x, tf.bfloat16 if x is X or x is RESIDUAL else x.dtype) for x in tensors]
    y = kernel(*low, **values)
    assert y.dtype == tf.bfloat16
    wide = [tf.cast(x, tf.float32) if x.dtype == tf.bfloat16 else x for x in low]
    np.testing.assert_array_equal(y, tf.cast(kernel(*wide, **values), tf.bfloat16))


@pytest.mark.parametrize("value", [0.0, 1.0, 5.5, 100.0])
def test_rows_of_one_value_normalize_to_beta(value):
    rows = tf.fill((4, 768), value)
    normalized = fused.layer_norm(rows, tf.ones(768), tf.fill(768, 0.25), epsilon=1e-12)
    np.testing.assert_array_equal(normalized, tf.fill((4, 768), 0.25))


def test_a_kernel_that_ran_on_this_machine_is_traced_anew_for_another_device():
    """Sums become products on CPUs alone: a TPU would round their factors."""

    def operations(function):
        graph = tf.function(function).get_concrete_function().graph.as_graph_def()
        nodes = [node.op for f in graph.library.function for node in f.node_def]
        return {op for op in nodes if op in ("MatMul", "BatchMatMulV2", "Mean", "Sum")}

    def norm():
        return fused.layer_norm(*map(tf.constant, (X, GAMMA, BETA)), epsilon=1e-12)

    assert "MatMul" in operations(norm)
    with compile_target.compiling_for("TPU"):
        assert operations(norm) == {"Sum"}
    assert "MatMul" in operations(norm)


@pytest.mark.parametrize("dtype", ["int16", "int32", "int64"])
def test_rows_are_looked_up_and_their_gradients_added_to_that_of_the_table(dtype):
    table, ids = tf.constant(normal(5, 3)), tf.constant([[4, 0, 4], [1, 4, 0]], dtype)
    d_rows, d_all = tf.constant(normal(2, 3, 3, seed=1)), tf.constant(normal(5, 3, seed=2))
    with tf.GradientTape() as tape:
        tape.watch(table)
        rows, whole = fused.look_up(table, ids, "float32")
        loss = tf.reduce_sum(rows * d_rows) + tf.reduce_sum(whole * d_all)
    np.testing.assert_array_equal(rows, table.numpy()[ids])
    wanted = d_all.numpy()
    np.add.at(wanted, ids.numpy(), d_rows)
    np.testing.assert_allclose(tape.gradient(loss, table), wanted, rtol=1e-6)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_dropout_has_its_rate_and_keeps_the_mean(rate):
    n = 2**22
    dropped = fused.dropout(tf.ones((n // 128, 128)), SEED, rate=rate).numpy()
    deviation = np.sqrt(rate * (1 - rate) / n)
    assert abs((dropped == 0).mean() - rate) < 4 * deviation
    assert abs(dropped.mean(dtype=np.float64) - 1) < 4 * deviation / (1 - rate)


def test_what_is_dropped_is_independent_of_neighbours_calls_and_seeds():
    """Correlations of ±1 indicators; under independence each is about 1/√n = 7e-4."""
    shape = (8, 4, 128, 512)
    masks = {
        seed: np.where(fused.kept(shape, np.array(seed, "int32"), 0.5), 1.0, -1.0)
        for seed in [(7, 1), (7, 2), (8, 1), (-7, 1), (1, 7)]
    }
    first = masks[7, 1]
    correlations = [(first * other).mean() for other in list(masks.values())[1:]]
    for axis in range(4):
        for distance in (1, 2, shape[axis] // 2):
            correlations.append((first * np.roll(first, distance, axis)).mean())
    for axis in (1, 2, 3):  # no row or column is dropped as a whole
        means = first.mean(axis) * np.sqrt(shape[axis])
        assert abs(means.var() - 1) < 4 * np.sqrt(2 / means.size)
    assert np.abs(correlations).max() < 4 / np.sqrt(first.size)


def test_all_bits_of_a_draw_take_part():
    """Rates that differ by little drop sets of which one holds the other, and of the right size."""
    sets = [fused.kept((2**12, 2**10), SEED, rate).numpy() for rate in (0.1, 0.1001, 0.2)]
    assert (sets[0] >= sets[1]).all()
    assert (sets[1] >= sets[2]).all()
    assert (sets[0] != sets[1]).mean() == pytest.approx(1e-4, rel=0.2)


@pytest.mark.parametrize("way", ["eager", "graph", "XLA"])
def test_the_cross_entropy_and_its_gradient_are_those_in_float64(way):
    logits = normal(2, 5, 300) * 8
    logits[0, 0] = 0  # ties: the first class is the best
    logits[0, 1, 7], logits[0, 2, 9] = 1e4, -1e4
    labels = np.random.default_rng(6).integers(0, 300, (2, 5))
    labels[0, :3] = 5, 7, 9
    upstream = normal(2, 5, seed=8)

    def run(logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            loss, best = fused.cross_entropy(logits, labels)
        return loss, best, tape.gradient(loss, logits, upstream)

    if way != "eager":
        run = tf.function(run, jit_compile=way == "XLA")
    loss, best, gradient = (np.asarray(found) for found in run(tf.constant(logits)))
    shifted = logits.astype("float64") - logits.max(-1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    is_label = np.arange(300) == labels[..., None]
    expected = -log_probabilities[is_label].reshape(labels.shape)
    np.testing.assert_allclose(loss, expected, rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(best, logits.argmax(-1))
    expected = upstream[..., None] * (np.exp(log_probabilities) - is_label)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


def test_a_logit_that_is_not_finite_makes_the_loss_of_its_row_alone_not_finite():
    logits = normal(3, 300)
    logits[0, 4], logits[2, 5] = np.nan, np.inf
    loss, _ = fused.cross_entropy(tf.constant(logits), np.array([1, 2, 3]))
    assert np.isfinite(loss).tolist() == [False, True, False]
