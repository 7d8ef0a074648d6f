"""Scales of float8 training, which take their gradient's value: written as by Keras' optimizers.

Runs on the Keras backend that is set.
"""

import keras
import numpy as np
import pytest
import steps

import lamb_tf
import lamb_tf.migrate

X = np.random.default_rng(0).normal(size=(16, 8)).astype("float32")


def fitted(optimizer):
    """The weights of a dense layer in float8 after a few steps."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    model.layers[0].quantize("float8")
    model.compile(optimizer, loss="mse")
    model.fit(X, X[:, :4], batch_size=4, epochs=2, verbose=0, shuffle=False)
    return {variable.name: value for variable, value in zip(model.weights, model.get_weights())}


@pytest.mark.parametrize("accumulation", [None, 2])
def test_scales_of_a_float8_layer_are_those_of_keras_optimizers(accumulation):
    arguments = {"gradient_accumulation_steps": accumulation}
    ours = fitted(lamb_tf.LAMB(0.0, weight_decay=0.1, use_ema=True, **arguments))
    theirs = fitted(keras.optimizers.SGD(0.0, **arguments))
    assert any("amax_history" in name for name in ours)
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-6, err_msg=name)
    assert max(np.max(np.abs(v)) for name, v in ours.items() if "outputs_grad_amax" in name) > 0


def test_a_float8_layer_trains():
    before = fitted(lamb_tf.LAMB(0.0))
    after = fitted(lamb_tf.LossScaleOptimizer(lamb_tf.LAMB(0.05), initial_scale=4.0))
    moved = [name for name in before if not np.array_equal(before[name], after[name])]
    assert "kernel" in moved
    # A gradient that is scaled for float16 shows in its own history alone.
    assert not any("inputs_amax" in name for name in moved)


def overwritten_and_trained():
    scale = keras.Variable(2.0, name="scale")
    scale.overwrite_with_gradient = True
    return scale, keras.Variable(np.ones(3, "float32"), name="kernel")


def test_a_step_writes_the_gradient_as_it_is_and_keeps_no_state_of_it():
    scale, kernel = overwritten_and_trained()
    optimizer = lamb_tf.LAMB(
        0.1, weight_decay=0.1, global_clipnorm=0.5, loss_scale_factor=8.0, use_ema=True
    )
    optimizer.build([scale, kernel])
    assert optimizer.slots(scale) == {"m": None, "v": None}
    steps.take_steps(optimizer, [scale, kernel], [[np.float32(3.0), np.ones(3, "float32")]])
    assert steps.values([scale])[0] == 3.0
    assert steps.summary(optimizer)["scale"] == ("-", "-")
    optimizer.finalize_variable_values([scale, kernel])
    assert steps.values([scale])[0] == 3.0


@pytest.mark.parametrize("bad", ["scale", "kernel"])
def test_a_skipped_update_leaves_the_scale_alone(bad):
    variables = overwritten_and_trained()
    gradients = {"scale": np.float32(3.0), "kernel": np.ones(3, "float32")}
    gradients[bad] = gradients[bad] * np.float32(np.nan)
    optimizer = lamb_tf.LAMB(0.1)
    steps.take_steps(optimizer, list(variables), [[gradients["scale"], gradients["kernel"]]])
    np.testing.assert_array_equal(steps.values(variables)[0], 2.0)
    np.testing.assert_array_equal(steps.values(variables)[1], np.ones(3))
    assert steps.values([optimizer.skipped_updates])[0] == 1


def test_the_moments_of_keras_lamb_are_taken_over_beside_scales():
    variables = list(overwritten_and_trained())
    gradients = [[np.float32(3.0), np.ones(3, "float32")]]
    theirs, ours = keras.optimizers.Lamb(0.1), lamb_tf.LAMB(0.1)
    steps.take_steps(theirs, variables, gradients)
    lamb_tf.migrate.from_keras(theirs, ours)
    m = steps.values([ours.slots(variables[1])["m"]])[0]
    np.testing.assert_allclose(m, 0.1, rtol=1e-6)


def test_scales_alone_are_written_too():
    scale, _ = overwritten_and_trained()
    optimizer = lamb_tf.LAMB(0.1)
    steps.take_steps(optimizer, [scale], [[np.float32(3.0)]])
    assert steps.values([scale])[0] == 3.0
    assert steps.values([optimizer.iterations])[0] == 1
