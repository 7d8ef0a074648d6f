"""lamb_tf.OrScale against its formula in float64, on the Keras backend that is set."""

import inspect

import keras
import numpy as np
import pytest
import reference
import steps

import lamb_tf
from lamb_tf import telemetry
from lamb_tf.orscale import NewtonSchulz, orthogonal_factor

KELLER_JORDAN = NewtonSchulz(((3.4445, -4.7750, 2.0315),) * 5, margin=1.0, epsilon=1e-7)


class Muon(lamb_tf.OrScale):
    """With the coefficients of Keras' Muon."""

    iteration = KELLER_JORDAN


@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
@pytest.mark.parametrize("calibrated", [False, True])
def test_a_norm_of_0_does_no_harm(calibrated, epsilon):
    weights, gradients = steps.weights_and_gradients(steps=3)
    kernel = weights[1]
    cases = {"weights": (0 * kernel, 1), "gradient": (kernel, 0), "both": (0 * kernel, 0)}
    for case, (x, factor) in cases.items():
        given = [np.float32(factor) * grads[1] for grads in gradients]
        options = {"calibrated": calibrated, "epsilon": epsilon}
        variable = keras.Variable(x, name="kernel")
        steps.take_steps(lamb_tf.OrScale(0.01, **options), [variable], [[g] for g in given])
        expected = reference.orscale(x, given, 0.01, **options)
        (trained,) = steps.values([variable])
        np.testing.assert_allclose(trained, expected, rtol=1e-4, atol=2e-5, err_msg=case)
        assert (np.linalg.norm(trained) > 0) == (case != "both")


def test_the_rest_and_what_adam_paths_name_follow_adamw():
    weights, gradients = steps.weights_and_gradients()
    optimizer = lamb_tf.OrScale(0.01, weight_decay=0.1, trust_ratio_bounds=(2.0, 3.0))
    trained = steps.train(optimizer, weights, gradients)
    for i in (0, 2, 3):  # the embedding, the bias and the scale
        options = {"epsilon": 1e-8, "weight_decay": 0.1, "adapt": False}
        expected = reference.lamb(weights[i], [g[i] for g in gradients], 0.01, **options)
        np.testing.assert_allclose(trained[i], expected, rtol=2e-5, atol=2e-6)


def test_without_trust_ratios_and_with_its_coefficients_it_is_the_muon_of_keras():
    muon = getattr(keras.optimizers, "Muon", None)
    if muon is None or "rms_rate" not in inspect.signature(muon).parameters:
        pytest.skip(f"Keras {keras.__version__} has no Muon, or another one")
    weights, gradients = steps.weights_and_gradients()
    ours = Muon(
        0.02,
        weight_decay=0.1,
        exclude_from_layer_adaptation=[""],
        adam_paths=None,
        adam_epsilon=1e-15,
        exclude_from_weight_decay=["bias", "scale"],
    )
    theirs = keras.optimizers.Muon(
        0.02, weight_decay=0.1, adam_weight_decay=None, exclude_embeddings=False, epsilon=1e-15
    )
    trained = [steps.train(optimizer, weights, gradients) for optimizer in (ours, theirs)]
    steps.assert_close(*trained, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("shape", [(40, 40), (30, 50), (50, 30), (1, 7), (7, 1)])
def test_the_orthogonal_factor_has_the_same_singular_vectors_and_singular_values_near_1(shape):
    matrix = np.random.default_rng(0).normal(size=shape).astype("float32")
    found = keras.ops.convert_to_numpy(orthogonal_factor(keras.ops.convert_to_tensor(matrix)))
    u, sigma, vh = np.linalg.svd(matrix, full_matrices=False)
    values = u.T @ found @ vh.T
    np.testing.assert_allclose(values - np.diag(np.diag(values)), 0, atol=1e-4)
    well = sigma > 0.02 * np.linalg.norm(matrix)
    np.testing.assert_allclose(np.diag(values)[well], 1, atol=0.16)
    np.testing.assert_allclose(found, reference.polar_express(matrix), atol=1e-4)


def test_the_orthogonal_factor_of_zeros_is_zeros():
    zeros = keras.ops.zeros((5, 3))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(orthogonal_factor(zeros)), 0)


def test_with_calibration_all_ratios_are_1_in_the_first_step_and_move_from_there():
    weights, gradients = steps.weights_and_gradients(steps=5)
    optimizer = lamb_tf.OrScale(0.01, weight_decay=0.1)
    telemetry.record(optimizer)
    variables = steps.make_variables(weights)
    steps.take_steps(optimizer, variables, gradients[:1])
    first = [row["trust_ratio"] for row in telemetry.read(optimizer).values()]
    np.testing.assert_allclose(first, 1, rtol=1e-4)
    steps.take_steps(optimizer, variables, gradients[1:])
    ratios = {path: row["trust_ratio"] for path, row in telemetry.read(optimizer).items()}
    assert ratios["model/embedding"] == ratios["dense/bias"] == 1
    assert abs(ratios["dense/kernel"] - 1) > 1e-3


@pytest.mark.parametrize(
    ("shape", "as_matrix"),
    [
        ((3, 2, 4, 6), (24, 6)),  # Conv2D
        ((3, 8, 8), (24, 8)),  # Conv1D
        ((12, 3, 4), (12, 12)),  # from a width to heads
        ((3, 4, 12), (12, 12)),  # from heads to a width
    ],
)
def test_what_has_more_axes_is_the_matrix_that_the_docstring_says(shape, as_matrix):
    rng = np.random.default_rng(1)
    x, *gradients = (rng.normal(size=shape).astype("float32") for _ in range(4))
    found = []
    for form in (shape, as_matrix):
        variable = keras.Variable(x.reshape(form))
        optimizer = lamb_tf.OrScale(0.01, weight_decay=0.1)
        optimizer.build([variable])
        for g in gradients:
            optimizer.apply([keras.ops.convert_to_tensor(g.reshape(form))], [variable])
        found.append(steps.values([variable])[0])
    np.testing.assert_allclose(found[0].reshape(as_matrix), found[1], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("xla", [False, True])
def test_c_waits_for_each_matrix_until_q_is_there(xla):
    if xla and steps.BACKEND != "tensorflow":
        pytest.skip("JAX compiles in any case, torch in none")
    rng = np.random.default_rng(0)
    weights = [rng.normal(0, 0.1, (32, 32)).astype("float32")] * 4
    gradients = [[rng.normal(size=(32, 32)).astype("float32")] * 4 for _ in range(6)]
    one_row = gradients[1][0] * (np.arange(32) == 3)[:, None]
    gradients[0] = [gradients[0][0], 0 * one_row, np.float32(1e-20) * gradients[0][0], one_row]
    gradients[1] = [gradients[1][0], 0 * one_row, np.float32(1e-12) * gradients[1][0], one_row]
    optimizer = lamb_tf.OrScale(0.01, weight_decay=0.01, adam_paths=None)
    telemetry.record(optimizer)
    variables = [keras.Variable(x, name=f"kernel_{i}") for i, x in enumerate(weights)]
    steps.take_steps(optimizer, variables, gradients[:1], xla)
    ratios = [row["trust_ratio"] for row in telemetry.read(optimizer).values()]
    np.testing.assert_allclose(ratios, 1, rtol=1e-4)
    steps.take_steps(optimizer, variables, gradients[1:], xla)
    ratios = [row["trust_ratio"] for row in telemetry.read(optimizer).values()]
    np.testing.assert_allclose(ratios, 1, atol=0.3)
    for i, found in enumerate(steps.values(variables)):
        expected = reference.orscale(weights[i], [g[i] for g in gradients], 0.01, weight_decay=0.01)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=5e-5)


def test_a_keras_file_keeps_arguments_and_state(tmp_path):
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(5), keras.layers.Dense(3, name="last")]
    )
    optimizer = lamb_tf.OrScale(0.01, weight_decay=0.1, adam_paths=["last/"], momentum=0.8)
    model.compile(optimizer=optimizer, loss="mse")
    x, y = np.random.default_rng(0).normal(size=(2, 12, 6)).astype("float32")
    again = steps.train_on_from_a_file(model, tmp_path, x, y[:, :3], epochs=2)
    assert again.optimizer.get_config() == optimizer.get_config()


def test_paths_that_name_no_variable_are_refused_or_warned_of():
    variables = [keras.Variable(np.ones((2, 2)), name=name) for name in ("hidden", "logits")]
    with pytest.raises(ValueError, match="`adam_paths` must match a variable; got .*lm_head"):
        lamb_tf.OrScale(0.01, adam_paths=["^lm_head"]).build(variables)
    with pytest.warns(UserWarning, match="'head' in `adam_paths` matches no variable"):
        lamb_tf.OrScale(0.01, adam_paths=["head", "logits"]).build(variables)
    for fits in lamb_tf.orscale.ADAM_PATHS, ["embedding", "logits"], None:
        lamb_tf.OrScale(0.01, adam_paths=fits).build(variables)


def test_a_model_learns_with_it():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(512, 16)).astype("float32")
    y = np.argmax(x @ rng.normal(size=(16, 4)), axis=1)
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((16,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(4, name="logits")]
    )
    model.compile(
        lamb_tf.OrScale(0.01, adam_paths=["logits"]),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(x, y, batch_size=64, epochs=30, verbose=0).history
    assert history["accuracy"][-1] > 0.95  # of four classes
