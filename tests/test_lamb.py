"""lamb_tf.LAMB against the paper's formula in float64, TensorFlow Addons and optax."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import lamb_tf
import reference

SHAPES = [(13, 7), (7,), (3, 4, 5), ()]
STEPS = 20


def weights_and_gradients(seed=0, steps=STEPS, shapes=SHAPES):
    rng = np.random.default_rng(seed)
    weights = [rng.normal(0, 0.1, shape).astype("float32") for shape in shapes]
    gradients = [[rng.normal(0, 1, s).astype("float32") for s in shapes] for _ in range(steps)]
    return weights, gradients


def train(optimizer, weights, gradients, dtype="float32"):
    variables = [keras.Variable(w, dtype=dtype, name=f"w{i}") for i, w in enumerate(weights)]
    optimizer.build(variables)

    @tf.function
    def step(grads):
        optimizer.apply(grads, variables)

    for grads in gradients:
        step([tf.constant(g) for g in grads])
    return [v.numpy() for v in variables]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"weight_decay": 0.1},
        {"bias_correction": False},
        {"nesterov": "first"},
        {"nesterov": "both", "weight_decay": 0.01},
        {"nesterov": "first", "bias_correction": False},
        {"beta_1": 0.0, "beta_2": 0.0},
        {"epsilon": 0.0},
        {"weight_norm_bounds": (0.2, 0.5)},
        {"trust_ratio_bounds": (0.01, 0.05)},
    ],
    ids=str,
)
def test_agrees_with_the_formula(arguments):
    weights, gradients = weights_and_gradients()
    trained = train(lamb_tf.LAMB(0.01, **arguments), weights, gradients)
    for i, (x, result) in enumerate(zip(weights, trained)):
        expected = reference.lamb(x, [g[i] for g in gradients], 0.01, **arguments)
        np.testing.assert_allclose(result, expected, rtol=2e-6, atol=2e-7)
