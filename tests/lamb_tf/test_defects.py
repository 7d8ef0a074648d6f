"""Fourteen defects of other LAMBs: each shown on the peer, and absent here.

All are of `keras.optimizers.Lamb`, but for number 13, of `tfa.optimizers.LAMB`. Should a peer
mend one, its half of the test fails, and goes. `docs/defects.md` tells the story of each.
"""

import keras
import numpy as np
import peers
import pytest
import reference
import steps
import tensorflow as tf
from two_replicas import shares, train_on_replicas

import lamb_tf

Peer = keras.optimizers.Lamb


def one_variable(value, dtype="float32"):
    return keras.Variable(value, dtype=dtype, name="kernel")


def moved(optimizer, weights, gradient):
    """‖Δ‖/‖w‖ of one step."""
    variable = one_variable(weights)
    optimizer.apply([tf.constant(gradient)], [variable])
    return np.linalg.norm(variable.numpy() - weights) / np.linalg.norm(weights)


def normal(shape, std=1.0, seed=0):
    return np.random.default_rng(seed).normal(0, std, shape).astype("float32")


def test_1_the_decay_is_inside_the_trust_ratio():
    w, g = normal((64, 64), 0.02), normal((64, 64), seed=1)
    assert moved(lamb_tf.LAMB(0.1, weight_decay=0.1), w, g) == pytest.approx(0.1, rel=1e-5)
    assert moved(Peer(0.1, weight_decay=0.1), w, g) != pytest.approx(0.1, rel=0.005)


def test_2_variables_can_be_excluded_from_adaptation():
    w, g = normal(64), normal(64, seed=1)
    excluded = moved(lamb_tf.LAMB(0.1, exclude_from_layer_adaptation=["kernel"]), w, g)
    assert excluded != pytest.approx(0.1, rel=0.01)
    with pytest.raises(ValueError, match="exclude_from_layer_adaptation"):
        Peer(0.1, exclude_from_layer_adaptation=["kernel"])


# Keras 3.15 asks NumPy for the arrays it saves in a way that NumPy 2 deprecates.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_3_exclusions_survive_saving_and_loading(tmp_path):
    def bias_after_reload(optimizer):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="dense")])
        model.compile(optimizer, loss="mse")
        model.layers[0].bias.assign(np.ones(2))
        model.optimizer.build(model.trainable_variables)
        model.save(tmp_path / "model.keras")
        model = keras.models.load_model(tmp_path / "model.keras")
        variables = model.trainable_variables
        model.optimizer.apply([tf.zeros(v.shape) for v in variables], variables)
        return variables[1].numpy()

    ours = lamb_tf.LAMB(0.1, weight_decay=0.1, exclude_from_weight_decay=["bias$"])
    np.testing.assert_array_equal(bias_after_reload(ours), np.ones(2))
    peer = Peer(0.1, weight_decay=0.1)
    peer.exclude_from_weight_decay(var_names=["bias"])
    assert bias_after_reload(peer)[0] < 1


def test_4_excluding_after_the_first_step_is_an_error():
    def step_and_exclude(optimizer):
        variable = one_variable(np.ones(3))
        step = tf.function(lambda: optimizer.apply([tf.zeros(3)], [variable]))
        optimizer.build([variable])
        step()
        before = variable.numpy()
        optimizer.exclude_from_weight_decay(var_list=[variable])
        step()
        return before, variable.numpy()

    with pytest.raises(ValueError, match="must be called before the optimizer is built"):
        step_and_exclude(lamb_tf.LAMB(0.1, weight_decay=0.1))
    peer = Peer(0.1, weight_decay=0.1)
    before, after = step_and_exclude(peer)
    assert after[0] < before[0]


def test_5_repeated_indices_of_sparse_gradients_are_summed_before_they_are_squared():
    slices = tf.IndexedSlices(tf.constant([[1.0], [3.0]]), tf.constant([0, 0]), tf.constant([2, 1]))
    ours = lamb_tf.LAMB()
    table = one_variable(np.ones((2, 1)))
    ours.apply([slices], [table])
    assert ours.slots(table)["v"].numpy()[0, 0] == pytest.approx(0.001 * 16, rel=1e-4)
    peer = Peer()
    peer.apply([slices], [table])
    assert peer._velocities[0].numpy()[0, 0] == pytest.approx(0.001 * 10, rel=1e-4)


def test_6_bfloat16_variables_train():
    def after_steps(number_of_steps, optimizer):
        variable = one_variable(np.ones(8), "bfloat16")
        for _ in range(number_of_steps):
            optimizer.apply([tf.ones(8, tf.bfloat16)], [variable])
        return np.array(variable.value.numpy(), np.float32)

    for number_of_steps, rate in ((3, 0.1), (100, 1e-3)):
        expected = tf.cast((1 - rate) ** number_of_steps, tf.bfloat16).numpy()
        trained = after_steps(number_of_steps, lamb_tf.LAMB(rate))
        np.testing.assert_array_equal(trained, np.full(8, expected, np.float32))
        frozen = after_steps(number_of_steps, Peer(rate))
        assert np.isnan(frozen).any() or (frozen == 1).all()


def test_7_large_float16_variables_train():
    def after_one_step(optimizer):
        variable = one_variable(np.ones((400, 400)), "float16")
        optimizer.apply([tf.ones((400, 400), tf.float16)], [variable])
        return np.array(variable.numpy(), np.float32)

    np.testing.assert_allclose(after_one_step(lamb_tf.LAMB(0.1)), 0.9, rtol=1e-3)
    peer = after_one_step(Peer(0.1))
    assert np.isnan(peer).any() or not np.allclose(peer, 0.9, rtol=0.01)


@pytest.mark.parametrize("clip", ["global_clipnorm", "clipnorm"])
def test_8_clipping_comes_after_the_sum_over_replicas(clip):
    weights, gradients = steps.weights_and_gradients(steps=3)

    def difference(of):
        one = steps.train(of(), weights, gradients)
        variables, _ = train_on_replicas(of, weights, shares(gradients))
        return max(np.abs(a - b).max() for a, b in zip(one, steps.values(variables)))

    assert difference(lambda: lamb_tf.LAMB(0.1, **{clip: 0.5})) < 1e-6
    assert difference(lambda: Peer(0.1, **{clip: 0.5})) > 1e-3


def test_9_accumulation_works_on_replicas():
    weights, gradients = steps.weights_and_gradients(steps=4)
    ours = lambda: lamb_tf.LAMB(0.1, gradient_accumulation_steps=2)  # noqa: E731
    one = steps.train(ours(), weights, gradients)
    variables, _ = train_on_replicas(ours, weights, shares(gradients))
    steps.assert_close(one, steps.values(variables), rtol=2e-6, atol=2e-7)
    with pytest.raises(RuntimeError, match="merge_call"):
        train_on_replicas(
            lambda: Peer(0.1, gradient_accumulation_steps=2), weights, shares(gradients)
        )


def test_10_an_infinite_gradient_on_the_second_replica_spares_the_weights_under_a_loss_scale():
    weights, gradients = steps.weights_and_gradients(steps=1)
    both = shares(gradients)
    both[0][1][0][0, 0] = np.inf

    def after(inner):
        variables, _ = train_on_replicas(
            lambda: keras.optimizers.LossScaleOptimizer(inner(), initial_scale=1.0), weights, both
        )
        return steps.values(variables)

    for value, old in zip(after(lambda: lamb_tf.LAMB(0.1)), weights):
        np.testing.assert_array_equal(value, old.astype("float64"))
    assert any(np.isnan(value).any() for value in after(lambda: Peer(0.1)))


def test_11_schedules_count_updates_under_accumulation():
    class Recorded(keras.optimizers.schedules.LearningRateSchedule):
        def __init__(self):
            self.steps = []

        def __call__(self, step):
            self.steps.append(int(step.value.numpy()))
            return 0.1

        def get_config(self):
            return {}

    def steps_asked_for(optimizer_class):
        schedule = Recorded()
        optimizer = optimizer_class(schedule, gradient_accumulation_steps=2)
        variable = one_variable(np.ones(3))
        optimizer.build([variable])
        for _ in range(6):
            optimizer.apply([tf.ones(3)], [variable])
        return sorted(set(schedule.steps))

    assert steps_asked_for(lamb_tf.LAMB) == [0, 1, 2]
    assert steps_asked_for(Peer) == [1, 3, 5]


def test_12_patterns_see_the_path_of_a_variable():
    with keras.name_scope("LayerNorm"):
        gamma = keras.Variable(np.ones(3), name="gamma")

    def decays(optimizer):
        optimizer.build([gamma])
        before = gamma.numpy()
        optimizer.apply([tf.zeros(3)], [gamma])
        return bool((gamma.numpy() != before).any())

    for pattern in ("LayerNorm", "gamma$"):
        assert not decays(lamb_tf.LAMB(0.1, weight_decay=0.1, exclude_from_weight_decay=[pattern]))
    peer = Peer(0.1, weight_decay=0.1)
    peer.exclude_from_weight_decay(var_names=["gamma$"])
    assert decays(peer)


def test_13_sixteen_bits_no_epsilon_and_an_empty_list_work():
    theirs = peers.addons().optimizers.LAMB

    def after_one_step(optimizer, variable):
        gradient = tf.ones(variable.shape, variable.dtype)
        optimizer.apply_gradients([(gradient, variable)])
        return np.array(variable.numpy(), np.float32)

    for dtype, shape in (("bfloat16", (8,)), ("float16", (400, 400))):
        ours = after_one_step(lamb_tf.LAMB(0.1), one_variable(np.ones(shape), dtype))
        np.testing.assert_allclose(ours, 0.9, rtol=0.01)
        peer = after_one_step(theirs(0.1), tf.Variable(tf.ones(shape, dtype)))
        assert not np.allclose(peer, 0.9, rtol=0.01)

    w, g = normal(64), normal(64, seed=1)
    without_epsilon = reference.lamb(w, [g], 0.1, epsilon=0.0)
    variable = one_variable(w)
    lamb_tf.LAMB(0.1, epsilon=0.0).apply([tf.constant(g)], [variable])
    np.testing.assert_allclose(variable.numpy(), without_epsilon, rtol=1e-5)
    with pytest.raises(AttributeError):
        theirs(0.1, epsilon=0.0)

    names = {"exclude_from_weight_decay": [".*"], "exclude_from_layer_adaptation": []}
    assert moved(lamb_tf.LAMB(0.1, **names), w, g) == pytest.approx(0.1, rel=1e-5)
    assert theirs(0.1, **names).exclude_from_layer_adaptation == [".*"]


def test_14_compile_takes_the_name():
    def compiled(name):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(optimizer=name, loss="mse")
        return model.optimizer

    assert type(compiled("lamb_tf>LAMB")) is lamb_tf.LAMB
    assert type(compiled("lamb_tf>LARS")) is lamb_tf.LARS
    for name in ("lamb", "Lamb", "LAMB"):
        with pytest.raises(ValueError, match=name):
            compiled(name)
