"""Telemetry: what it records equals the formula's, everywhere, and nothing is recorded unasked."""

import json

import events
import keras
import numpy as np
import peers
import pytest
import steps

import lamb_tf
from lamb_tf import telemetry


def recorded(steps_taken=1, **arguments):
    weights, gradients = steps.weights_and_gradients(steps=steps_taken)
    variables = steps.make_variables(weights)
    optimizer = lamb_tf.LAMB(0.1, **arguments)
    telemetry.record(optimizer)
    steps.take_steps(optimizer, variables, gradients)
    return optimizer, weights, gradients


def fitted(*logs, examples=32, units=(1,), batch_size=8, epochs=1, **compiling):
    """A model after a `fit` with each of the logs; None stands for none."""
    model = keras.Sequential([keras.layers.Dense(n) for n in units])
    model.compile(lamb_tf.LAMB(0.01), loss="mse", **compiling)
    x, y = np.random.default_rng(0).normal(size=(2, examples, 3))
    for log in logs:
        model.fit(x, y[:, :1], batch_size, epochs, verbose=0, callbacks=[log] if log else [])
    return model


def lines(folder):
    return [json.loads(line) for line in (folder / "telemetry.jsonl").read_text().splitlines()]


def test_the_figures_are_those_of_the_update():
    optimizer, weights, gradients = recorded(exclude_from_layer_adaptation=["embedding"])
    figures = telemetry.read(optimizer)
    first = ["model/embedding", "dense/kernel", "dense/bias", "model/scale"]
    assert list(figures) == [*first, "other/kernel"]
    for path, x, g in zip(figures, weights, gradients[0]):
        u = g / (np.abs(g) + 1e-6)  # after one step m̂ = g and v̂ = g²
        row = figures[path]
        assert row["weight_norm"] == pytest.approx(np.linalg.norm(x), rel=1e-5)
        assert row["update_norm"] == pytest.approx(np.linalg.norm(u), rel=1e-4)
        adapted = path != "model/embedding" and np.linalg.norm(x) > 0
        ratio = row["weight_norm"] / row["update_norm"] if adapted else 1.0
        assert row["trust_ratio"] == pytest.approx(ratio, rel=1e-5)
    norm = np.sqrt(sum(np.sum(np.square(g)) for g in gradients[0]))
    assert telemetry.gradient_norm(optimizer) == pytest.approx(norm, rel=1e-5)


def test_the_gradient_norm_is_unscaled_and_before_clipping():
    plain, _, _ = recorded(global_clipnorm=0.1)
    weights, gradients = steps.weights_and_gradients(steps=1)
    scaled = lamb_tf.LAMB(0.1, loss_scale_factor=64.0, global_clipnorm=0.1)
    telemetry.record(scaled)
    steps.train(scaled, weights, [[64 * g for g in gradients[0]]])
    assert telemetry.gradient_norm(scaled) == pytest.approx(telemetry.gradient_norm(plain), 1e-5)


def test_a_skipped_update_leaves_the_figures_and_shows_in_the_norm():
    weights, gradients = steps.weights_and_gradients(steps=2)
    gradients[1][0] = gradients[1][0] * np.float32(np.inf)
    optimizer = lamb_tf.LAMB(0.1)
    telemetry.record(optimizer)
    variables = steps.make_variables(weights)
    steps.take_steps(optimizer, variables, gradients[:1])
    before = telemetry.read(optimizer)
    steps.take_steps(optimizer, variables, gradients[1:])
    assert telemetry.read(optimizer) == before
    assert not np.isfinite(telemetry.gradient_norm(optimizer))


@pytest.mark.parametrize("noise_scale", [False, True])
def test_recording_changes_no_weights_and_is_not_saved(noise_scale):
    weights, gradients = steps.weights_and_gradients(steps=4)
    recording, plain = (lamb_tf.LAMB(0.1, gradient_accumulation_steps=2) for _ in range(2))
    telemetry.record(recording, noise_scale=noise_scale)
    trained = [steps.train(optimizer, weights, gradients) for optimizer in (recording, plain)]
    steps.assert_close(*trained, rtol=1e-6, atol=1e-7)
    saved = [{}, {}]
    recording.save_own_variables(saved[0])
    plain.save_own_variables(saved[1])
    assert saved[0].keys() == saved[1].keys()
    tracked = [variable.name for variable in recording.variables]
    assert ("layers" in tracked) == (steps.BACKEND == "jax")  # which threads its state


def test_without_record_nothing_is_kept():
    optimizer = lamb_tf.LAMB()
    steps.train(optimizer, *steps.weights_and_gradients(steps=1))
    with pytest.raises(ValueError, match="before the first step"):
        telemetry.read(optimizer)
    with pytest.raises(ValueError, match="turned on before the first step"):
        telemetry.record(optimizer)


def test_it_reads_through_a_loss_scale_optimizer_and_refuses_others():
    with pytest.raises(TypeError, match="Adam"):
        telemetry.record(keras.optimizers.Adam())
    inner = lamb_tf.LAMB(0.1)
    outer = keras.optimizers.LossScaleOptimizer(inner)
    telemetry.record(outer)
    inner.build(steps.make_variables(steps.weights_and_gradients()[0]))
    assert telemetry.read(outer) == telemetry.read(inner)


def test_the_callback_writes_lines_and_events_that_can_be_plotted(tmp_path):
    model = fitted(telemetry.Log(tmp_path, every=2), units=(4, 1), batch_size=4)
    rows = lines(tmp_path)
    assert [row["step"] for row in rows] == [2, 4, 6, 8]
    assert len(rows[0]["layers"]) == 4
    assert rows[-1]["layers"] == telemetry.read(model.optimizer)
    assert rows[-1]["gradient_norm"] > 0
    assert rows[-1]["learning_rate"] == pytest.approx(0.01)

    peers.load("tensorboard")
    curves, histograms = events.read(tmp_path)
    for name in ("gradient_norm", "learning_rate", "skipped_updates"):
        expected = {row["step"]: pytest.approx(row[name]) for row in rows}
        assert curves[name] == expected
    for path, layer in rows[0]["layers"].items():
        adapted = layer["trust_ratio"] not in (0, 1)
        assert (f"trust_ratio/{path}" in curves) == adapted
        if adapted:
            ratios = {row["step"]: row["layers"][path]["trust_ratio"] for row in rows}
            assert curves[f"trust_ratio/{path}"] == pytest.approx(ratios)
    assert {name: {*counts.values()} for name, counts in histograms.items()} == {
        metric: {len(rows[0]["layers"])} for metric in telemetry.METRICS
    }

    peers.load("matplotlib")
    for figure in telemetry.METRICS:
        output = tmp_path / f"{figure}.png"
        telemetry.plot(tmp_path / "telemetry.jsonl", figure, output)
        assert output.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="must be one of"):
        telemetry.plot(tmp_path / "telemetry.jsonl", "loss")


@pytest.mark.parametrize("logs_from_the_start", [True, False])
def test_the_callback_works_in_a_second_fit(tmp_path, logs_from_the_start):
    log = telemetry.Log(tmp_path, every=2)
    model = fitted(log if logs_from_the_start else None, log)
    rows = lines(tmp_path)
    assert [row["step"] for row in rows] == ([2, 4, 6, 8] if logs_from_the_start else [6, 8])
    assert all(row["gradient_norm"] > 0 for row in rows)
    assert rows[-1]["layers"] == telemetry.read(model.optimizer)


@pytest.mark.skipif(steps.BACKEND == "torch", reason="Keras runs one batch a call on torch")
@pytest.mark.parametrize(
    ("examples", "every", "epochs", "expected"),
    [
        (40, 10, 4, [10, 20, 30, 40]),  # the last call of an epoch has only two batches
        (48, 6, 2, [8, 12, 20, 24]),  # the calls that passed 6, 12, 18 and 24
    ],
)
def test_the_callback_counts_batches_where_a_call_runs_four(
    tmp_path, examples, every, epochs, expected
):
    log = telemetry.Log(tmp_path, every=every)
    fitted(log, examples=examples, batch_size=4, epochs=epochs, steps_per_execution=4)
    assert [row["step"] for row in lines(tmp_path)] == expected


@pytest.mark.skipif(steps.BACKEND != "tensorflow", reason="variables of TensorFlow")
def test_variables_of_tensorflow_itself_have_lines_by_their_names():
    import tensorflow as tf

    variables = [tf.Variable([1.0, 2.0], name="a"), tf.Variable([3.0, 4.0], name="b")]
    optimizer = lamb_tf.LAMB(0.1)
    telemetry.record(optimizer)
    optimizer.apply([tf.ones(2)] * 2, variables)
    assert list(telemetry.read(optimizer)) == ["a", "b"]


def test_the_callback_refuses_an_interval_of_no_batches(tmp_path):
    for every in (0, 1.5, float("nan"), "3", None):
        with pytest.raises(ValueError, match="`every` must be a"):
            telemetry.Log(tmp_path, every=every)


def test_of_steps_that_a_run_did_twice_the_later_lines_count(tmp_path):
    def line(step, norm):
        metrics = dict.fromkeys(telemetry.METRICS, norm)
        return json.dumps({"step": step, "gradient_norm": norm, "layers": {"a": metrics}}) + "\n"

    path = tmp_path / "telemetry.jsonl"
    killed = "".join(line(step, 1.0) for step in (100, 200, 300, 400)) + '{"step": 500, "gr\n'
    path.write_text(killed + "".join(line(step, 2.0) for step in (300, 400, 500)))
    rows = telemetry._rows(path)
    assert [(row["step"], row["gradient_norm"]) for row in rows] == [
        *((100, 1.0), (200, 1.0)),
        *((300, 2.0), (400, 2.0), (500, 2.0)),
    ]


def test_a_log_goes_on_in_a_model_that_is_loaded_and_after_a_kill(tmp_path):
    peers.load("matplotlib")
    layers = [keras.layers.Dense(2, name="a"), keras.layers.Dense(1, name="b")]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(lamb_tf.LAMB(0.01), loss="mse")
    x, y = np.random.default_rng(0).normal(size=(2, 16, 3))
    log = tmp_path / "telemetry.jsonl"

    def fit(model):
        log = telemetry.Log(tmp_path, every=1)
        model.fit(x, y[:, :1], batch_size=8, verbose=0, callbacks=[log])

    fit(model)
    model.save(tmp_path / "model.keras")
    with log.open("a") as file:
        file.write('{"step": 3, "gradi')  # what a killed run may leave
    fit(keras.models.load_model(tmp_path / "model.keras"))
    whole = [json.loads(line) for line in log.read_text().splitlines() if "layers" in line]
    assert [row["step"] for row in whole] == [1, 2, 3, 4]
    _, maps, *_ = telemetry.plot(log).axes
    (image,) = maps.collections
    drawn = np.ma.getdata(image.get_array()).reshape(4, 4)
    ratios = [[layer["trust_ratio"] for layer in row["layers"].values()] for row in whole]
    np.testing.assert_allclose(drawn, np.log10(np.maximum(np.transpose(ratios), 1.2e-38)), 1e-6)

    log.write_text("x\n")
    with pytest.raises(ValueError, match="must hold lines of"):
        telemetry.plot(log)


def test_variables_of_one_path_have_a_line_each():
    optimizer = lamb_tf.LAMB(0.01)
    telemetry.record(optimizer)
    optimizer.build([keras.Variable(np.ones(n), name="w") for n in (2, 3)])
    assert telemetry.read(optimizer).keys() == {"w", "w (2)"}
