"""lamb_tf.LossScaleOptimizer: the update of LAMB, and a scale that follows what was skipped."""

import copy
import warnings

import keras
import numpy as np
import pytest
import steps

import lamb_tf
from lamb_tf import loss_scale


def scaled_by(scale, gradients):
    return [[np.float32(scale) * g for g in grads] for grads in gradients]


def number(variable):
    return float(steps.values([variable])[0])


@pytest.mark.parametrize("accumulation", [None, 2])
def test_the_update_is_that_of_the_inner_optimizer(accumulation):
    weights, gradients = steps.weights_and_gradients(steps=4)
    arguments = {"global_clipnorm": 0.5, "gradient_accumulation_steps": accumulation}
    plain = steps.train(lamb_tf.LAMB(0.1, **arguments), weights, gradients)
    outer = lamb_tf.LossScaleOptimizer(lamb_tf.LAMB(0.1, **arguments), initial_scale=64.0)
    scaled = steps.train(outer, weights, scaled_by(64.0, gradients))
    steps.assert_close(scaled, plain, rtol=1e-6, atol=1e-7)
    assert number(outer.dynamic_scale) == 64.0
    assert number(outer.step_counter) == 4 / (accumulation or 1)


def test_scale_and_count_follow_each_other_over_many_updates_as_computed_by_hand():
    skipped = np.random.default_rng(1).uniform(size=300) < 0.2
    scale, good = keras.ops.ones(()) * 4.0, keras.ops.zeros((), "int32")
    expected, count = 4.0, 0
    for skips in skipped:
        count = 0 if skips else count + 1
        doubles = count == 3
        expected = min(max(expected / 2 if skips else expected * 2**doubles, 1.0), 64.0)
        count = 0 if doubles else count
        scale, good = loss_scale.next_scale(scale, good + 1, bool(skips), 3, (1.0, 64.0))
        assert (float(scale), int(good)) == (expected, count)


def test_the_scale_is_halved_after_a_skipped_update_and_doubled_after_enough_good_ones():
    weights, gradients = steps.weights_and_gradients(steps=6)
    gradients[1][0] = gradients[1][0] * np.float32(np.inf)
    optimizer = lamb_tf.LossScaleOptimizer(
        lamb_tf.LAMB(0.1), initial_scale=8.0, dynamic_growth_steps=2
    )
    variables = steps.make_variables(weights)
    scales = []
    for grads in gradients:
        steps.take_steps(optimizer, variables, [grads])
        scales.append(number(optimizer.dynamic_scale))
    assert scales == [8.0, 4.0, 4.0, 8.0, 8.0, 16.0]
    assert number(optimizer.inner_optimizer.skipped_updates) == 1
    assert number(optimizer.iterations) == 5


def test_the_scale_stays_within_its_bounds_and_grows_whenever_it_is_late():
    weights, gradients = steps.weights_and_gradients(steps=1)
    bad = [gradient * np.float32(np.nan) for gradient in gradients[0]]
    optimizer = lamb_tf.LossScaleOptimizer(
        lamb_tf.LAMB(0.1), initial_scale=4.0, dynamic_growth_steps=3
    )
    variables = steps.make_variables(weights)
    steps.take_steps(optimizer, variables, [bad] * 4)
    assert number(optimizer.dynamic_scale) == 1.0
    optimizer.step_counter.assign(5)  # as restored from a run with more growth steps
    steps.take_steps(optimizer, variables, gradients)
    assert number(optimizer.dynamic_scale) == 2.0
    optimizer.dynamic_scale.assign(2.0**24)
    steps.take_steps(optimizer, variables, gradients * 3)
    assert number(optimizer.dynamic_scale) == 2.0**24


def test_a_model_in_float16_trains_and_is_restored_with_its_scale(tmp_path):
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 4)).astype("float32"), rng.normal(size=(64, 1)).astype("float32")
    layers = [keras.layers.Dense(8, dtype="mixed_float16"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(lamb_tf.LossScaleOptimizer(lamb_tf.LAMB(0.01), 2.0**20), loss="mse")
    lamb_tf.telemetry.record(model.optimizer)  # which no file holds
    model.fit(x, y, batch_size=4, verbose=0)
    optimizer = model.optimizer
    skipped = number(optimizer.inner_optimizer.skipped_updates)
    assert skipped > 0  # 2^20 times a gradient of order 1 is beyond float16
    assert skipped + number(optimizer.iterations) == 16
    assert number(optimizer.dynamic_scale) == 2.0 ** (20 - skipped)
    assert all(np.isfinite(w).all() for w in model.get_weights())

    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert type(again.optimizer) is lamb_tf.LossScaleOptimizer
    assert again.optimizer.get_config() == optimizer.get_config()
    steps.assert_equal(states(again), states(model))


# Keras 3.15 asks NumPy for the arrays it saves in a way that NumPy 2 deprecates.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_model_saved_before_its_first_step_is_loaded_with_the_scale_of_the_arguments(tmp_path):
    layers = [keras.layers.Dense(8, dtype="mixed_float16"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(lamb_tf.LossScaleOptimizer(lamb_tf.LAMB(0.01), 64.0, 7), loss="mse")
    model.save(tmp_path / "model.keras")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The state of optimizer")
        again = keras.models.load_model(tmp_path / "model.keras")
    assert again.optimizer.get_config() == model.optimizer.get_config()
    x = np.ones((4, 4), "float32")
    again.fit(x, x[:, :1], verbose=0)
    assert number(again.optimizer.dynamic_scale) == 64.0
    assert number(again.optimizer.step_counter) == 1


def states(model):
    outer, inner = model.optimizer, model.optimizer.inner_optimizer
    slots = [slot for v in model.trainable_variables for slot in inner.slots(v).values()]
    counts = [outer.dynamic_scale, outer.step_counter, inner.iterations, inner.skipped_updates]
    return steps.values(counts + slots + model.weights)


def test_another_optimizer_a_second_scale_and_missing_arguments_are_refused():
    with pytest.raises(TypeError, match="got Adam"):
        lamb_tf.LossScaleOptimizer(keras.optimizers.Adam())
    with pytest.raises(ValueError, match=r"`loss_scale_factor` of .* got 8.0"):
        lamb_tf.LossScaleOptimizer(lamb_tf.LAMB(loss_scale_factor=8.0))
    with pytest.raises(ValueError, match="must be given in the first call"):
        lamb_tf.LossScaleOptimizer(lamb_tf.LAMB()).apply([np.ones(3)])
    variables = steps.make_variables(steps.weights_and_gradients()[0])
    for number in (4, 6):
        with pytest.raises(ValueError, match="for 5 variables"):
            lamb_tf.LossScaleOptimizer(lamb_tf.LAMB()).apply([np.ones(3)] * number, variables)


def test_the_methods_of_tf_keras_are_missing_with_the_names_of_their_successors():
    optimizer = lamb_tf.LossScaleOptimizer(lamb_tf.LAMB())
    for name, message in (
        ("get_scaled_loss", r"`get_scaled_loss` is .*Use `scale_loss\(loss\)`"),
        ("get_unscaled_gradients", "`get_unscaled_gradients` is .*`apply`"),
        ("loss_scale", "`loss_scale` is .*`dynamic_scale`"),
        ("los", "'LossScaleOptimizer' object has no attribute 'los'"),
    ):
        with pytest.raises(AttributeError, match=message):
            getattr(optimizer, name)
    assert not hasattr(copy.deepcopy(optimizer), "loss_scale")


@pytest.mark.parametrize("name", ["initial_scale", "dynamic_growth_steps"])
def test_an_argument_out_of_range_or_assigned_too_late_is_refused(name):
    for value in (0, 0.5, np.inf):
        with pytest.raises(ValueError, match=f"`{name}` must be"):
            lamb_tf.LossScaleOptimizer(lamb_tf.LAMB(), **{name: value})
    optimizer = lamb_tf.LossScaleOptimizer(lamb_tf.LAMB())
    setattr(optimizer, name, 4)
    optimizer.build(steps.make_variables(steps.weights_and_gradients()[0]))
    with pytest.raises(AttributeError, match=f"`{name}` must stay as it is .*; got 8"):
        setattr(optimizer, name, 8)
    assert getattr(optimizer, name) == 4
    assert type(optimizer.dynamic_growth_steps) is int
