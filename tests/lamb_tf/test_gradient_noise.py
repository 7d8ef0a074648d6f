"""The gradient noise scale: the formula's on every backend, and theory's where that is known."""

import json

import events
import keras
import numpy as np
import peers
import pytest
import reference
import steps

import lamb_tf
from lamb_tf import gradient_noise, telemetry

COUNT = 4  # micro-batches of a step


def micro_batches(steps_taken=5, seed=0):
    """Weights, and gradients of the micro-batches of some steps: of few signs, with much noise."""
    rng = np.random.default_rng(seed)
    weights, (mean,) = steps.weights_and_gradients(steps=1)
    shape_of = [np.shape(g) for g in mean]
    noisy = [
        [np.float32(g + rng.normal(0, 2, shape)) for g, shape in zip(mean, shape_of)]
        for _ in range(COUNT * steps_taken)
    ]
    return weights, noisy


def of_steps(gradients, tensors=slice(None)):
    """For each step, the gradients of its micro-batches as rows."""
    rows = np.array([np.concatenate([np.ravel(g) for g in grads[tensors]]) for grads in gradients])
    return rows.reshape(-1, COUNT, rows.shape[1])


def measured(gradients, weights, mode="graph", **settings):
    optimizer = lamb_tf.LAMB(0.01, gradient_accumulation_steps=COUNT, **settings)
    telemetry.record(optimizer, noise_scale=True)
    variables = steps.make_variables(weights)
    if mode == "eager":
        for grads in gradients:
            steps.apply(optimizer, variables, grads)
    else:
        steps.take_steps(optimizer, variables, gradients, xla=mode == "XLA")
    return optimizer


def expected(gradients, tensors=slice(None)):
    squared_gradient, noise = reference.noise_averages(of_steps(gradients, tensors))
    return noise / squared_gradient


@pytest.mark.parametrize(
    "settings",
    [{}, {"global_clipnorm": 0.1}, {"clipvalue": 0.01}, {"trust_ratio_axes": {"dense/kernel": 0}}],
)
def test_it_is_the_formulas_of_the_run_and_of_groups_of_variables(settings):
    weights, gradients = micro_batches()
    optimizer = measured(gradients, weights, **settings)
    scale = telemetry.noise_scale(optimizer)
    assert scale == pytest.approx(expected(gradients), rel=1e-4)
    assert telemetry.noise_scale(optimizer, batch_size=64) == pytest.approx(16 * scale)
    of_dense = telemetry.noise_scale(optimizer, variables="dense/")
    assert of_dense == pytest.approx(expected(gradients, slice(1, 3)), rel=1e-4)


@pytest.mark.skipif(steps.BACKEND != "tensorflow", reason="others compile in one way")
@pytest.mark.parametrize("mode", ["XLA", "eager"])
def test_it_is_the_same_in(mode):
    weights, gradients = micro_batches()
    found = telemetry.noise_scale(measured(gradients, weights, mode))
    assert found == pytest.approx(expected(gradients), rel=1e-4)


def test_the_loss_scale_does_not_show():
    weights, gradients = micro_batches()
    scaled = [[64 * g for g in grads] for grads in gradients]
    runs = measured(gradients, weights), measured(scaled, weights, loss_scale_factor=64.0)
    np.testing.assert_allclose(*map(telemetry._noise_averages, runs), rtol=1e-4)


def test_a_skipped_update_adds_nothing():
    weights, gradients = micro_batches(3)
    gradients[COUNT + 1][0] = gradients[COUNT + 1][0] * np.float32(np.nan)  # of the second step
    optimizer = measured(gradients, weights)
    kept = gradients[:COUNT] + gradients[2 * COUNT :]
    assert telemetry.noise_scale(optimizer) == pytest.approx(expected(kept), rel=1e-4)


def test_without_a_finished_step_there_is_none():
    weights, gradients = micro_batches(1)
    optimizer = measured(gradients[:-1], weights)
    assert np.isnan(telemetry.noise_scale(optimizer))
    assert np.isnan(telemetry.noise_scale(optimizer, 64))
    with pytest.raises(ValueError, match=r"`variables` must match .*, or None to take all:"):
        telemetry.noise_scale(optimizer, variables="nowhere")
    unbuilt = lamb_tf.LAMB(0.01, gradient_accumulation_steps=COUNT)
    telemetry.record(unbuilt, noise_scale=True)
    assert np.isnan(telemetry.noise_scale(unbuilt, 64))


def test_it_is_measured_only_where_asked_for_before_the_first_step():
    without = lamb_tf.LAMB(0.01, gradient_accumulation_steps=COUNT)
    telemetry.record(without)
    weights, gradients = micro_batches(1)
    steps.train(without, weights, gradients)
    with pytest.raises(ValueError, match="noise_scale=True"):
        telemetry.noise_scale(without)
    with pytest.raises(ValueError, match="before the first step"):
        telemetry.record(without, noise_scale=True)


def test_one_micro_batch_on_one_replica_is_refused_in_one_line():
    optimizer = lamb_tf.LAMB()
    telemetry.record(optimizer, noise_scale=True)
    variables = steps.make_variables(steps.weights_and_gradients()[0])
    for _ in range(2):
        with pytest.raises(ValueError, match="noise_scale must be off where .* got True") as error:
            optimizer.build(variables)
        assert "\n" not in str(error.value)
    built = lamb_tf.LAMB()
    built.build(variables)
    with pytest.raises(ValueError, match="gradient_accumulation_steps"):
        telemetry.record(built, noise_scale=True)
    telemetry.record(built)  # without what was refused
    assert telemetry.read(built)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.skipif(steps.BACKEND == "jax", reason="a step has one set of gradients there")
def test_a_variable_without_a_gradient_in_the_last_micro_batch_adds_nothing():
    optimizer = lamb_tf.LAMB(0.0, gradient_accumulation_steps=2)
    telemetry.record(optimizer, noise_scale=True)
    variables = [keras.Variable(np.ones(3, "float32"), name=name) for name in "ab"]
    ones, twos = (keras.ops.convert_to_tensor(np.full(3, n, "float32")) for n in (1, 2))
    for gradients in ([ones, ones], [twos, None]):
        optimizer.apply(gradients, variables)
    averages = keras.ops.convert_to_numpy(optimizer._telemetry.noise)
    assert (averages[:, 0] != 0).all()
    assert (averages[:, 1] == 0).all()


@pytest.mark.skipif(steps.BACKEND != "tensorflow", reason="needs a loop inside a graph")
def test_on_a_quadratic_it_is_within_5_percent_of_theory_after_2000_steps():
    import tensorflow as tf

    # A batch's gradient of ½ |x − a|² is x − ā, where the a are normal around 0 with known Σ.
    deviations, center = np.float32(np.geomspace(0.1, 3, 200)), 0.5
    x = keras.Variable(np.full(200, center, "float32"))
    optimizer = lamb_tf.LAMB(0.0, gradient_accumulation_steps=COUNT)
    telemetry.record(optimizer, noise_scale=True)
    optimizer.build([x])

    @tf.function
    def train(micro_steps):
        for i in tf.range(micro_steps):
            noise = tf.random.stateless_normal(deviations.shape, [0, i], stddev=deviations)
            optimizer.apply([x - noise / 8.0**0.5], [x])  # the mean of 8 examples

    train(tf.constant(2000 * COUNT))
    true = np.sum(deviations**2) / (200 * center**2)  # tr(Σ) / |G|²
    assert telemetry.noise_scale(optimizer, 8 * COUNT) == pytest.approx(true, rel=0.05)


@pytest.mark.parametrize("batch_size", [None, 8])
def test_the_callback_logs_and_draws_it_beside_the_batch_in_use(tmp_path, batch_size):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile(lamb_tf.LAMB(0.01, gradient_accumulation_steps=2), loss="mse")
    x = np.random.default_rng(0).normal(size=(32, 3))
    y = x.sum(axis=1, keepdims=True) + 3  # far from the initial weights: the gradient shows
    model.fit(x, y, batch_size=4, verbose=0)  # what it traced does not measure
    log = telemetry.Log(tmp_path, every=2, noise_scale=True, batch_size=batch_size)
    model.fit(x, y, batch_size=4, verbose=0, callbacks=[log])
    lines = (tmp_path / "telemetry.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["step"] for row in rows] == [5, 6, 7, 8]
    assert [row["batch_size"] for row in rows] == [batch_size or 2] * 4
    last, optimizer = rows[-1], model.optimizer
    assert last["noise_scale"] == telemetry.noise_scale(optimizer, batch_size) > 0
    assert last["noise_scales"].keys() == last["layers"].keys()
    for path, scale in last["noise_scales"].items():
        found = telemetry.noise_scale(optimizer, batch_size, variables=f"^{path}$")
        assert (np.inf if scale is None else scale) == pytest.approx(found)

    peers.load("tensorboard")
    curves, _ = events.read(tmp_path)
    assert curves["noise_scale"][8] == pytest.approx(last["noise_scale"])
    assert {*curves["batch_size"].values()} == {batch_size or 2}
    peers.load("matplotlib")
    noise, norms, *_ = telemetry.plot(tmp_path / "telemetry.jsonl").axes
    assert [line.get_label() for line in noise.lines] == ["noise scale", "batch size"]
    assert norms.get_ylabel() == "gradient norm"


def test_the_callback_is_refused_where_there_is_one_micro_batch(tmp_path):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(lamb_tf.LAMB(0.01), loss="mse")
    log = telemetry.Log(tmp_path, noise_scale=True)
    with pytest.raises(ValueError, match="noise_scale must be off"):
        model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0, callbacks=[log])
    with pytest.raises(ValueError, match="batch_size"):
        telemetry.Log(tmp_path, batch_size=0)


def test_noise_that_hides_the_gradient_is_infinite():
    assert gradient_noise.scale([[-1.0], [2.0]]) == np.inf
    assert np.isnan(gradient_noise.scale(np.zeros((2, 3))))
    assert gradient_noise.scale([[0.5, 0.5], [2.0, 0.0]]) == 2.0
