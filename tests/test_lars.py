"""lamb_tf.LARS against the formulas of both papers in float64, on the Keras backend that is set."""

import numpy as np
import pytest
import reference
import steps

import lamb_tf

FORMS = {
    "before_momentum": reference.lars_before_momentum,
    "after_momentum": reference.lars_after_momentum,
}


@pytest.mark.parametrize("ratio", FORMS)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"weight_decay": 0.1},
        {"nesterov": True, "weight_decay": 0.01},
        {"momentum": 0.0},
        {"trust_coefficient": 0.02, "weight_decay": 0.01},
    ],
    ids=str,
)
def test_both_forms_agree_with_their_formulas(ratio, arguments):
    weights, gradients = steps.weights_and_gradients()
    trained = steps.train(lamb_tf.LARS(0.1, ratio=ratio, **arguments), weights, gradients)
    for i, x in enumerate(weights):
        expected = FORMS[ratio](x, [g[i] for g in gradients], 0.1, **arguments)
        np.testing.assert_allclose(trained[i], expected, rtol=3e-6, atol=3e-7)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("ratio", FORMS)
def test_float64_variables_follow_both_formulas_to_float64_round_off(ratio, nesterov):
    weights, gradients = steps.weights_and_gradients(dtype="float64")
    arguments = {"weight_decay": 0.1, "nesterov": nesterov, "trust_coefficient": 0.02}
    optimizer = lamb_tf.LARS(lambda: 0.1, ratio=ratio, **arguments)
    trained = steps.train(optimizer, weights, gradients, "float64")
    for i, x in enumerate(weights):
        expected = FORMS[ratio](x, [g[i] for g in gradients], 0.1, **arguments)
        np.testing.assert_allclose(trained[i], expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("ratio", FORMS)
def test_excluded_variables_get_momentum_alone(ratio):
    weights, gradients = steps.weights_and_gradients()
    weights[2] += 1.0
    optimizer = lamb_tf.LARS(
        0.01, weight_decay=0.1, exclude_from_weight_decay=["bias$"], ratio=ratio
    )
    trained = steps.train(optimizer, weights, gradients)
    expected = FORMS[ratio](weights[2], [g[2] for g in gradients], 0.01, adapt=False)
    np.testing.assert_allclose(trained[2], expected, rtol=3e-6, atol=3e-7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"momentum": 1.0}, "momentum"),
        ({"ratio": "during"}, "ratio.*'before_momentum'"),
        ({"trust_coefficient": 0.0}, "trust_coefficient"),
        ({"epsilon": -1.0}, "epsilon"),
    ],
    ids=str,
)
def test_a_value_out_of_range_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        lamb_tf.LARS(**arguments)


def test_the_config_makes_the_same_optimizer():
    optimizer = lamb_tf.LARS(1.0, ratio="after_momentum", nesterov=True, weight_decay=0.1)
    assert lamb_tf.LARS.from_config(optimizer.get_config()).get_config() == optimizer.get_config()
