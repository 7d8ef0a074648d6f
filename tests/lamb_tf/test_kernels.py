"""The kernel that TensorFlow's default step runs gives what `LAMB.direction` says."""

import resource

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import lamb_tf
from lamb_tf import _kernels, _replicas

if keras.backend.backend() != "tensorflow":
    pytest.skip("the kernel is one of TensorFlow's", allow_module_level=True)

CASES = {
    "beta_1": st.floats(0.5, 0.9999),
    "beta_2": st.floats(0.5, 0.99999),
    "exponent": st.floats(-29, 0),  # of ε
    "bias_correction": st.booleans(),
    "step": st.integers(1, 10**6),
    "shape": st.lists(st.integers(1, 9), max_size=3).map(tuple),
    "dtype": st.sampled_from(["float32", "float64"]),
    "decay": st.floats(0, 1),
    "scale": st.floats(-4, 4),  # of the gradient, as an exponent
    "finite": st.sampled_from([None, True, False]),
    "seed": st.integers(0, 2**32 - 1),
}


def tensors(shape, dtype, scale, seed):
    """Weights, a gradient and moments of like size; a quarter have had no gradient yet."""
    rng = np.random.default_rng(seed)
    x, g, m, root = (rng.normal(size=shape) for _ in range(4))
    had_some = rng.uniform(size=shape) > 0.25
    g, m, v = g * had_some * scale, m * had_some * scale, (root * had_some * scale) ** 2
    return [np.asarray(values, dtype) for values in (x, g, m, v)]


@settings(max_examples=500, database=None)
@given(**CASES)
def test_the_kernel_gives_the_moments_and_the_direction_of_the_equations(
    beta_1, beta_2, exponent, bias_correction, step, shape, dtype, decay, scale, finite, seed
):
    x, g, m, v = tensors(shape, dtype, 10**scale, seed)
    optimizer = lamb_tf.LAMB(
        lambda: 0.1, beta_1, beta_2, 10**exponent, bias_correction=bias_correction
    )
    variable = keras.Variable(x, dtype=dtype)
    optimizer.build([variable])
    slots = optimizer.slots(variable)
    slots["m"].assign(m)
    slots["v"].assign(v)
    finite = finite if finite is None else tf.constant(finite)
    corrections = optimizer.coefficients(tf.constant(step, dtype), finite)
    decay = tf.constant(decay, dtype)

    state = {name: _replicas.native(part) for name, part in optimizer._state(variable).items()}
    u = optimizer._kernel(tf.constant(x), tf.constant(g), state, decay, corrections.kernel)

    expected = {"m": m, "v": v}
    if finite is None or finite:
        expected = optimizer.moments(x, g, expected, decay)
    expected_u = optimizer.direction(x, g, expected, decay, corrections)
    # Digits are lost where m and g, or r and λ x, cancel: an error is one of what is added up.
    round_off = np.finfo(dtype).eps
    added = np.abs(m) + np.abs(g)
    root = np.sqrt(expected["v"] / corrections.v) + optimizer.epsilon
    added_u = added / corrections.m / root + np.abs(decay * x)
    for found, wanted, size in (
        (state["m"], expected["m"], added),
        (state["v"], expected["v"], expected["v"]),
        (u, expected_u, added_u),
    ):
        assert np.all(np.abs(np.asarray(found) - wanted) <= 16 * round_off * np.asarray(size))


@pytest.mark.parametrize(
    "arguments",
    [{"beta_1": 0.4}, {"epsilon": 0.0}, {"epsilon": 1e-31}, {"nesterov": "first"}],
    ids=str,
)
def test_what_the_kernel_does_not_compute_is_left_to_the_equations(arguments):
    variable = keras.Variable(np.ones(3))
    for optimizer, has_kernel in ((lamb_tf.LAMB(), True), (lamb_tf.LAMB(**arguments), False)):
        optimizer.build([variable])
        assert isinstance(optimizer._kernel, _kernels.AdamDirection) == has_kernel


@pytest.mark.parametrize(
    ("make", "records"),
    [
        (lambda: lamb_tf.LAMB(0.1, weight_decay=0.1), False),
        (lambda: lamb_tf.LAMB(0.1, weight_decay=0.1), True),
        (lambda: lamb_tf.LossScaleOptimizer(lamb_tf.LAMB(gradient_accumulation_steps=2)), True),
        (lambda: lamb_tf.LARS(0.1, use_ema=True), False),
        (lambda: lamb_tf.OrScale(0.1, weight_decay=0.1), True),
    ],
    ids=["LAMB", "LAMB, telemetry", "LossScaleOptimizer, telemetry", "LARS", "OrScale, telemetry"],
)
def test_a_step_in_a_saved_model_goes_on_where_it_was_saved(tmp_path, make, records):
    rng = np.random.default_rng(0)
    variables = [keras.Variable(rng.normal(size=s)) for s in ((4, 3), (4, 3), (3,))]
    gradients = [tf.constant(rng.normal(size=v.shape), "float32") for v in variables]
    optimizer = make()
    if records:
        lamb_tf.telemetry.record(optimizer)
    optimizer.build(variables)
    module = tf.Module()
    module.optimizer, module.variables_ = optimizer, [v.value for v in variables]

    @tf.function(input_signature=[[tf.TensorSpec(g.shape) for g in gradients]])
    def step(grads):
        optimizer.apply(grads, variables)

    module.step = step
    step(gradients)
    tf.saved_model.save(module, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    saved = [v.numpy() for v in loaded.variables_]
    for _ in range(3):
        step(gradients)
        loaded.step(gradients)
    for here, there, before in zip(variables, loaded.variables_, saved):
        np.testing.assert_allclose(there.numpy(), here.numpy(), rtol=1e-6)
        assert (here.numpy() != before).any()


@pytest.mark.parametrize("make", [lamb_tf.LAMB, lamb_tf.LARS, lamb_tf.OrScale])
def test_eager_steps_compile_nothing(monkeypatch, make):
    def compiled(*args):
        raise AssertionError("a kernel was compiled")

    monkeypatch.setattr(tf, "function", lambda *args, **options: compiled)
    variables = [keras.Variable(np.ones((rows, 3), "float32")) for rows in (2, 4)]
    make(0.1, use_ema=True).apply([tf.ones(v.shape) for v in variables], variables)
    assert np.all(variables[0].numpy() < 1)


def test_eager_steps_keep_no_memory():
    variable = keras.Variable(np.ones(4, "float32"))
    optimizer = lamb_tf.LAMB(1e-3)

    def grown(steps):
        before = memory_in_use()
        for _ in range(steps):
            optimizer.apply([tf.ones(4)], [variable])
        return memory_in_use() - before

    grown(20)
    assert grown(150) < 2e6  # 5e6 with a kernel for each step


def memory_in_use():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_groups_are_of_24_mb_or_of_one_larger_tensor():
    sizes = [10, 10, 10, 30, 1, 1]  # MB
    shapes = [(size * 250_000,) for size in sizes]
    assert _kernels.groups(shapes) == [range(0, 2), range(2, 3), range(3, 4), range(4, 6)]
