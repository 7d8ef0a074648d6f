"""lamb_tf.LARS against its formulas in float64, on the Keras backend that is set."""

import keras
import numpy as np
import pytest
import steps

import lamb_tf

FORMS = ["before_momentum", "decayed_before_momentum", "after_momentum"]


def moved_in_one_step(x, g, **arguments):
    """‖Δx‖ of a step without momentum, and so rate · ratio · ‖g + λ x‖."""
    variable = keras.Variable(np.array(x, "float32"), name="kernel")
    optimizer = lamb_tf.LARS(1.0, momentum=0.0, **arguments)
    optimizer.apply([keras.ops.convert_to_tensor(np.array(g, "float32"))], [variable])
    return np.linalg.norm(keras.ops.convert_to_numpy(variable) - np.array(x))


@pytest.mark.parametrize("ratio", FORMS)
@pytest.mark.parametrize(
    ("x", "arguments", "expected"),
    [
        # ‖x‖ = 5 and ‖g‖ = 10, and what moves is the ratio times 10.
        ([3.0, 4.0], {"trust_coefficient": 0.1}, 0.1 * 5 / 10),
        ([3.0, 4.0], {"trust_coefficient": 0.1, "epsilon": 10.0}, 0.1 * 5 / 20),
        ([3.0, 4.0], {"trust_coefficient": 0.1, "weight_norm_bounds": (0.0, 2.0)}, 0.1 * 2 / 10),
        ([3.0, 4.0], {"trust_coefficient": 0.1, "trust_ratio_bounds": (0.0, 0.02)}, 0.02),
        ([3.0, 4.0], {"trust_coefficient": 0.1, "trust_ratio_bounds": (0.07, 1.0)}, 0.07),
        # No weights: 1, without the coefficient, and then the bounds.
        ([0.0, 0.0], {"trust_coefficient": 0.1}, 1.0),
        ([0.0, 0.0], {"trust_coefficient": 0.1, "trust_ratio_bounds": (0.0, 0.5)}, 0.5),
        ([0.0, 0.0], {"trust_coefficient": 0.1, "weight_norm_bounds": (2.0, 9.0)}, 0.1 * 2 / 10),
        # Excluded: 1, whatever the bounds.
        (
            [3.0, 4.0],
            {"exclude_from_layer_adaptation": ["kernel"], "trust_ratio_bounds": (0.0, 0.5)},
            1.0,
        ),
    ],
    ids=str,
)
def test_the_ratio_is_what_the_docstring_says(ratio, x, arguments, expected):
    moved = moved_in_one_step(x, [-6.0, -8.0], ratio=ratio, **arguments)
    assert moved == pytest.approx(10 * expected, rel=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"exclude_from_weight_decay": ["bias$"]},
        {"momentum": 0.0, "global_clipnorm": 0.5, "trust_ratio_bounds": (0.0, 0.01)},
        {"learning_rate_multipliers": {"bias$": 0.0, "kernel": 0.5}, "clipvalue": 0.1},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.skipif(keras.backend.backend() != "torch", reason="only torch has a kernel for it")
def test_a_step_by_the_kernel_is_that_of_the_equations(options, dtype):
    class WithoutKernels(lamb_tf.LARS):
        has_kernels = False

    weights, gradients = steps.weights_and_gradients(steps=5)
    one, other = (m(0.1, weight_decay=0.1, **options) for m in (lamb_tf.LARS, WithoutKernels))
    trained = [steps.train(optimizer, weights, gradients, dtype) for optimizer in (one, other)]
    assert one._kernel
    assert not other._kernel
    digits = {"float32": 1e-6, "float64": 1e-15, "bfloat16": 2.0**-7}[dtype]
    steps.assert_close(*trained, rtol=digits, atol=digits / 10)


def test_a_subclass_with_other_equations_is_heard():
    class Still(lamb_tf.LARS):
        def move(self, x, u, slots, step_size, decay):
            return x, {}

    weights, gradients = steps.weights_and_gradients()
    steps.assert_close(steps.train(Still(0.1), weights, gradients), weights, rtol=0, atol=0)


def test_a_gradient_may_be_the_tensor_of_another_variable():
    x, y = (keras.Variable(np.full(3, value, "float32"), name="x") for value in (1.0, 2.0))
    optimizer = lamb_tf.LARS(0.1, momentum=0.0, exclude_from_layer_adaptation=["x"])
    optimizer.apply([*map(keras.ops.convert_to_tensor, (y, x))], [x, y])  # of the sum of x y
    np.testing.assert_allclose(keras.ops.convert_to_numpy(y), 2.0 - 0.1 * 1.0, rtol=1e-6)
