"""lamb_tf.LAMB against the paper's formula in float64, on the Keras backend that is set."""

import keras
import numpy as np
import pytest
import reference
import steps

import lamb_tf


def test_agrees_with_the_formula_after_many_steps():
    weights, gradients = steps.weights_and_gradients(steps=300)
    trained = steps.train(lamb_tf.LAMB(0.001, weight_decay=0.01), weights, gradients)
    steps.assert_follows(reference.lamb, trained, weights, gradients, 0.001, weight_decay=0.01)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "options",
    [
        {"weight_decay": 0.1},
        {"beta_1": 0.3, "beta_2": 0.0, "epsilon": 1e-3},
        {"bias_correction": False, "global_clipnorm": 0.5},
        {"learning_rate_multipliers": {"bias$": 0.5}, "clipvalue": 0.1},
    ],
    ids=str,
)
@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX has no kernels for it")
def test_a_step_by_kernels_is_that_of_the_equations(options, dtype):
    class WithoutKernels(lamb_tf.LAMB):
        has_kernels = False

    weights, gradients = steps.weights_and_gradients(steps=5)
    options = {"master_weights": dtype != "bfloat16"} | options
    one, other = (make(0.1, **options) for make in (lamb_tf.LAMB, WithoutKernels))
    trained = [steps.train(optimizer, weights, gradients, dtype) for optimizer in (one, other)]
    # Next to nothing of a difference may decide how a number of 16 bits is rounded.
    digits = {"float32": 1e-5, "bfloat16": 2.0**-6}[dtype]
    steps.assert_close(*trained, rtol=digits, atol=digits / 10)


@pytest.mark.usefixtures("float64")
def test_float64_gradients_are_clipped_and_averaged_in_float64():
    weights, gradients = steps.weights_and_gradients(steps=6, dtype="float64")
    optimizer = lamb_tf.LAMB(
        lambda: 0.1,
        global_clipnorm=0.3,
        gradient_accumulation_steps=2,
        loss_scale_factor=3.0,
    )
    scaled = [[np.asarray(3.0 * g) for g in grads] for grads in gradients]
    trained = steps.train(optimizer, weights, scaled, "float64")
    means = [[(a + b) / 2 for a, b in zip(*gradients[k : k + 2])] for k in (0, 2, 4)]
    means = [reference.clip_by_global_norm(grads, 0.3) for grads in means]
    steps.assert_follows(reference.lamb, trained, weights, means, 0.1, rtol=1e-12, atol=1e-13)


@pytest.mark.usefixtures("float64")
def test_a_float64_variable_among_others_keeps_its_digits():
    weights, gradients = steps.weights_and_gradients(steps=3)
    doubles, double_gradients = steps.weights_and_gradients(steps=3, dtype="float64")
    weights[1] = doubles[1]
    for grads, double_grads in zip(gradients, double_gradients):
        grads[1] = double_grads[1]
    variables = steps.make_variables(weights)
    variables[1] = keras.Variable(weights[1], dtype="float64", name="kernel")
    steps.take_steps(lamb_tf.LAMB(lambda: 0.1), variables, gradients)
    trained = steps.values(variables)
    for i, tolerance in enumerate([1e-6, 1e-12, 1e-6, 1e-6]):
        expected = reference.lamb(weights[i], [g[i] for g in gradients], 0.1)
        np.testing.assert_allclose(trained[i], expected, rtol=tolerance, atol=tolerance / 10)


def test_rates_and_decays_that_are_schedules_count_updates():
    weights, gradients = steps.weights_and_gradients(steps=6)
    schedules = keras.optimizers.schedules
    rate = schedules.PolynomialDecay(0.1, 6, 0.01)
    decay = schedules.PolynomialDecay(0.2, 6, 0.0)
    trained = steps.train(lamb_tf.LAMB(rate, weight_decay=decay), weights, gradients)
    steps.assert_follows(
        reference.lamb,
        trained,
        weights,
        gradients,
        learning_rate=lambda step: 0.1 + (0.01 - 0.1) * step / 6,
        weight_decay=lambda step: 0.2 - 0.2 * step / 6,
    )


@pytest.mark.parametrize("epsilon", [0.0, 1e-38, 1e-31])
def test_an_element_without_gradient_stays_though_epsilon_is_next_to_nothing(epsilon):
    weights, gradients = steps.weights_and_gradients(steps=2)
    for grads in gradients:
        grads[1][:2] = 0.0
    trained = steps.train(lamb_tf.LAMB(0.1, epsilon=epsilon), weights, gradients)
    np.testing.assert_array_equal(trained[1][:2], weights[1][:2].astype("float64"))
    expected = reference.lamb(weights[1], [g[1] for g in gradients], 0.1, epsilon=1e-30)
    np.testing.assert_allclose(trained[1], expected, rtol=3e-6, atol=3e-7)


@pytest.mark.parametrize("kind", ["callable", "variable", "integer"])
def test_the_rate_may_be_a(kind):
    weights, gradients = steps.weights_and_gradients(steps=2)
    rate = {"callable": lambda: 1.0, "variable": keras.Variable(1.0), "integer": 1}[kind]
    optimizer, variables = lamb_tf.LAMB(rate), steps.make_variables(weights)
    steps.take_steps(optimizer, variables, gradients)
    trained = steps.values(variables)
    expected = reference.lamb(weights[0], [g[0] for g in gradients], 1.0)
    np.testing.assert_allclose(trained[0], expected, rtol=1e-5, atol=1e-6)
    if kind == "variable":
        assert optimizer.get_config()["learning_rate"] == 1.0
        rate.assign(0.0)
        steps.take_steps(optimizer, variables, gradients)
        steps.assert_equal(trained, steps.values(variables))


@pytest.mark.skipif(steps.BACKEND != "tensorflow", reason="a variable of TensorFlow")
def test_a_rate_that_keras_would_not_save_is_refused():
    import tensorflow as tf

    with pytest.raises(TypeError, match=r"keras\.Variable; got a ResourceVariable\. Write"):
        lamb_tf.LAMB(tf.Variable(0.1))


def test_a_rate_that_is_a_function_is_not_replaced_by_a_number():
    optimizer = lamb_tf.LAMB(lambda: 0.1)
    with pytest.raises(AttributeError, match="`learning_rate` must stay a callable"):
        optimizer.learning_rate = 0.2
    optimizer.learning_rate = lambda: 0.3
    assert float(optimizer.learning_rate) == pytest.approx(0.3)


def test_micro_steps_may_be_counted_by_numpy():
    steps_of_keras = lamb_tf.LAMB(gradient_accumulation_steps=np.int64(4))
    assert steps_of_keras.get_config()["gradient_accumulation_steps"] == 4
    assert type(steps_of_keras.gradient_accumulation_steps) is int


@pytest.mark.parametrize("value", [-1.0, np.nan, np.float32(np.inf), None, "0.1"], ids=str)
def test_a_rate_assigned_later_is_checked_like_that_of_the_constructor(value):
    optimizer = lamb_tf.LAMB(0.1)
    for assigned in (optimizer, lamb_tf.LossScaleOptimizer(optimizer)):
        with pytest.raises(ValueError, match="`learning_rate` must be a finite number"):
            assigned.learning_rate = value
    assert steps.values([optimizer.learning_rate])[0] == pytest.approx(0.1)
    with pytest.raises(ValueError, match="`learning_rate` must be a finite number"):
        lamb_tf.LAMB(keras.Variable(-1.0))


@pytest.mark.skipif(steps.BACKEND != "tensorflow", reason="a graph of TensorFlow")
def test_a_rate_can_be_assigned_in_a_graph():
    import tensorflow as tf

    optimizer = lamb_tf.LAMB(0.1)

    @tf.function
    def assign(rate):
        optimizer.learning_rate = rate

    assign(tf.constant(0.5))
    assert steps.values([optimizer.learning_rate])[0] == 0.5


def test_no_weight_decay_is_one_of_0_and_the_config_of_keras_own_lamb_will_do():
    assert lamb_tf.LAMB(weight_decay=None).weight_decay == 0.0
    assert lamb_tf.LARS(weight_decay=None).weight_decay == 0.0
    theirs = keras.optimizers.Lamb(0.02, beta_1=0.8, global_clipnorm=1.0, use_ema=True)
    ours = lamb_tf.LAMB.from_config(theirs.get_config()).get_config()
    expected = {**theirs.get_config(), "weight_decay": 0.0}
    assert {name: ours[name] for name in expected} == expected


def test_optimizers_are_numbered_as_keras_numbers_names():
    keras.backend.clear_session()
    assert [lamb_tf.LAMB().name, lamb_tf.LAMB().name] == ["lamb", "lamb_1"]
    assert [lamb_tf.LARS().name, lamb_tf.LARS().name] == ["lars", "lars_1"]
    assert lamb_tf.LAMB(name="mine").name == "mine"
