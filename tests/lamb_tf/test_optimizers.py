"""Optimizers × properties: each form against its formula, on the Keras backend that is set.

What only one optimizer has is in the file that bears its name; what the step has, in
test_layerwise.py.
"""

import functools
import json

import keras
import numpy as np
import pytest
import reference
import steps

import lamb_tf

RULES = {"embedding": 0.25, "bias$": 0.0, "dense": 1.7}
FACTORS = [0.25, 1.7, 0.0, 1.0, 1.0]  # of the variables of `steps`, in their order
LARS_FORMS = {
    "before_momentum": reference.lars_before_momentum,
    "decayed_before_momentum": functools.partial(reference.lars_before_momentum, norm_of_sum=True),
    "after_momentum": reference.lars_after_momentum,
}


def orscale_or_adamw(x, gradients, *rate, **arguments):
    """OrScale's formula for matrices, AdamW's for the rest."""
    if np.ndim(x) >= 2:
        return reference.orscale(x, gradients, *rate, **arguments)
    shared = {n: arguments[n] for n in ("weight_decay", "multiplier") if n in arguments}
    return reference.lamb(x, gradients, *rate, epsilon=1e-8, adapt=False, **shared)


def lars(ratio="before_momentum", **arguments):
    make = functools.partial(lamb_tf.LARS, ratio=ratio)
    return make, LARS_FORMS[ratio], 0.1, arguments


def orscale(**arguments):
    make = functools.partial(lamb_tf.OrScale, adam_paths=None)
    return make, orscale_or_adamw, 0.01, arguments


def lamb(**arguments):
    return lamb_tf.LAMB, reference.lamb, 0.01, arguments


OF_LARS = [
    {},
    {"weight_decay": 0.1},
    {"nesterov": True, "weight_decay": 0.01},
    {"momentum": 0.0},
    {"trust_coefficient": 0.02, "weight_decay": 0.01},
    {"epsilon": 0.5, "weight_decay": 0.1},
    {"weight_norm_bounds": (0.2, 0.5), "weight_decay": 0.1},
    {"trust_coefficient": 0.02, "trust_ratio_bounds": (0.001, 0.0015), "epsilon": 0.5},
]
ROWS = [
    lamb(),
    lamb(weight_decay=0.1),
    lamb(bias_correction=False),
    lamb(nesterov="first"),
    lamb(nesterov="both", weight_decay=0.01),
    lamb(nesterov="first", bias_correction=False),
    lamb(beta_1=0.0, beta_2=0.0),
    lamb(epsilon=0.0),
    lamb(weight_norm_bounds=(0.2, 0.5)),
    lamb(trust_ratio_bounds=(0.01, 0.05)),
    *(lars(ratio, **arguments) for ratio in LARS_FORMS for arguments in OF_LARS),
    orscale(),
    orscale(weight_decay=0.1),
    orscale(momentum=0.0, weight_decay=0.01),
    orscale(calibrated=False, weight_decay=0.1),
    orscale(calibrated=False, trust_ratio_bounds=(0.0, 100.0), epsilon=0.5),
    orscale(trust_ratio_bounds=(1.0, 1.01), epsilon=1e-3),
]
IN_FLOAT64 = [
    lamb(weight_decay=0.1),  # on TensorFlow by the kernel for Adam
    lamb(weight_decay=0.1, bias_correction=False),
    lamb(weight_decay=0.1, nesterov="both"),
    lamb(weight_norm_bounds=(0.2, 0.5), trust_ratio_bounds=(0.01, 0.05)),
    *(
        lars(ratio, weight_decay=0.1, nesterov=nesterov, trust_coefficient=0.02)
        for ratio in LARS_FORMS
        for nesterov in (False, True)
    ),
    orscale(weight_decay=0.1),
    orscale(weight_decay=0.1, calibrated=False),
]
WITH_FACTORS = [
    lamb(weight_decay=0.1),
    lamb(weight_decay=0.1, nesterov="first"),
    lamb(weight_decay=0.1, trust_ratio_bounds=(0.01, 0.05)),
    lars(weight_decay=0.1),
    lars(weight_decay=0.1, nesterov=True),
    lars("after_momentum", weight_decay=0.1),
    orscale(weight_decay=0.1),
]
OPTIMIZERS = [lamb_tf.LAMB, lamb_tf.LARS, lamb_tf.OrScale]


def name_of(row):
    make, _, _, arguments = row
    ratio = getattr(make, "keywords", {}).get("ratio", "")
    return f"{getattr(make, 'func', make).__name__} {ratio} {arguments}"


def rows(table):
    return pytest.mark.parametrize("row", table, ids=map(name_of, table))


def tolerance(formula, wide=False):
    """Five steps of an iteration magnify the round-off of OrScale."""
    if formula is orscale_or_adamw:
        return (1e-9, 1e-11) if wide else (1e-4, 2e-5)
    return (1e-12, 1e-13) if wide else (3e-6, 3e-7)


@rows(ROWS)
def test_every_form_agrees_with_its_formula(row):
    make, formula, rate, arguments = row
    weights, gradients = steps.weights_and_gradients()
    trained = steps.train(make(rate, **arguments), weights, gradients)
    rtol, atol = tolerance(formula)
    steps.assert_follows(
        formula, trained, weights, gradients, rate, rtol=rtol, atol=atol, **arguments
    )


@pytest.mark.usefixtures("float64")
@rows(IN_FLOAT64)
def test_float64_variables_follow_the_formula_to_float64_round_off(row):
    make, formula, _, arguments = row
    weights, gradients = steps.weights_and_gradients(dtype="float64")
    optimizer = make(lambda: 0.0625, **arguments)  # a number would be a float32 variable
    trained = steps.train(optimizer, weights, gradients, "float64")
    rtol, atol = tolerance(formula, wide=True)
    steps.assert_follows(
        formula, trained, weights, gradients, 0.0625, rtol=rtol, atol=atol, **arguments
    )


@rows(WITH_FACTORS)
def test_each_variable_follows_the_formula_with_its_factor(row):
    make, formula, rate, arguments = row
    weights, gradients = steps.weights_and_gradients()
    optimizer = make(rate, learning_rate_multipliers=RULES, **arguments)
    trained = steps.train(optimizer, weights, gradients)
    expected = [
        formula(x, [g[i] for g in gradients], rate, multiplier=FACTORS[i], **arguments)
        for i, x in enumerate(weights)
    ]
    steps.assert_close(trained, expected, *tolerance(formula))


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize(
    "options",
    [
        {"use_ema": True, "ema_overwrite_frequency": 2, "loss_scale_factor": 2.0},
        {"another form": True},
        {"global_clipnorm": 0.5, "weight_decay": 0.1},
        {"clipnorm": 0.5},
        {"clipvalue": 0.1},
        {},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_a_non_finite_gradient_changes_nothing_and_is_counted(make, options):
    if "another form" in options:
        forms = [{"nesterov": "both"}, {"nesterov": True}, {"calibrated": False}]
        options = dict(zip(OPTIMIZERS, forms))[make]
    weights, gradients = steps.weights_and_gradients(steps=5)
    clean = [gradients[0], gradients[4]]
    for bad, value in zip(gradients[1:4], (np.inf, -np.inf, np.nan)):
        bad[1][2, 3] = value
    variables, expected = steps.make_variables(weights), steps.make_variables(weights)
    optimizer, other = make(0.1, **options), make(0.1, **options)
    steps.take_steps(optimizer, variables, gradients)
    steps.take_steps(other, expected, clean)
    for one, two in zip(variables + optimizer.variables, expected + other.variables):
        if one is not optimizer.skipped_updates:
            np.testing.assert_array_equal(*steps.values([one, two]))
    assert steps.values([optimizer.skipped_updates, optimizer.iterations]) == [3, 2]


@pytest.mark.parametrize("dtype", ["complex64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("make", OPTIMIZERS)
def test_a_variable_that_is_not_of_real_floating_point_is_refused(make, dtype):
    variables = [keras.Variable(np.ones((2, 2)), name="kernel")]
    variables += [keras.Variable(np.ones((2, 2), dtype), dtype=dtype, name="odd", trainable=False)]
    message = f"must be of real floating point; got 'odd' of {dtype}"
    for optimizer in (make(), lamb_tf.LossScaleOptimizer(make())):
        with pytest.raises(TypeError, match=message):
            optimizer.build(variables)
        optimizer.build(variables[:1])


@pytest.mark.parametrize("is_built", [False, True])
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: lamb_tf.LAMB(
            lamb_tf.schedules.WarmupPolynomialDecay(0.1, 100, warmup_steps=10),
            weight_decay=keras.optimizers.schedules.CosineDecay(0.1, 100),
            exclude_from_weight_decay=["bias$"],
            exclude_from_layer_adaptation=[],
            nesterov="both",
            weight_norm_bounds=(0, 10),
            global_clipnorm=1.0,
            gradient_accumulation_steps=2,
        ),
        lambda: lamb_tf.LARS(1.0, ratio="after_momentum", nesterov=True, weight_decay=0.1),
        lambda: lamb_tf.OrScale(0.01, adam_paths=["kernel"], momentum=0.8),
        *(lambda make=make: make(0.1, learning_rate_multipliers=RULES) for make in OPTIMIZERS),
    ],
    ids=["LAMB", "LARS", "OrScale", "LAMB with rules", "LARS with rules", "OrScale with rules"],
)
def test_the_config_in_terms_of_json_makes_the_same_optimizer(optimizer, is_built):
    weights, gradients = steps.weights_and_gradients(steps=2)
    optimizer = optimizer()
    config = keras.saving.serialize_keras_object(optimizer)
    if is_built:
        optimizer.build(steps.make_variables(weights))
        config = keras.saving.serialize_keras_object(optimizer)
    again = keras.saving.deserialize_keras_object(json.loads(json.dumps(config)))
    assert type(again) is type(optimizer)
    assert keras.saving.serialize_keras_object(again) == config
    if not is_built:
        ours = steps.train(optimizer, weights, gradients)
        steps.assert_equal(steps.train(again, weights, gradients), ours)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (lamb_tf.LAMB, {"beta_1": 1.0}, r"beta_1.*\[0, 1\).*1.0"),
        (lamb_tf.LAMB, {"beta_2": -0.1}, r"beta_2.*\[0, 1\)"),
        (lamb_tf.LAMB, {"epsilon": -1e-6}, "epsilon"),
        (lamb_tf.LAMB, {"epsilon": "1e-6"}, "epsilon.*a number.*'1e-6'"),
        (lamb_tf.LAMB, {"epsilon": np.inf}, "epsilon.*finite"),
        (lamb_tf.LAMB, {"beta_1": None}, "beta_1.*a number.*None"),
        (lamb_tf.LAMB, {"bias_correction": "False"}, "bias_correction.*True or False"),
        (lamb_tf.LAMB, {"nesterov": True}, "nesterov.*'first'"),
        (lamb_tf.LAMB, {"weight_decay": [0.1, 0.2]}, "weight_decay"),
        (lamb_tf.LAMB, {"weight_decay": -0.1}, "weight_decay"),
        (lamb_tf.LAMB, {"weight_decay": np.inf}, "weight_decay.*finite.*None for none"),
        (lamb_tf.LAMB, {"weight_decay": True}, "weight_decay.*True"),
        (lamb_tf.LAMB, {"learning_rate": -1.0}, "learning_rate"),
        (lamb_tf.LAMB, {"learning_rate": np.inf}, "`learning_rate` must be a finite number"),
        (lamb_tf.LAMB, {"learning_rate": np.nan}, "`learning_rate` must be a finite number"),
        (lamb_tf.LAMB, {"learning_rate": 1e39}, "`learning_rate` must be a finite.*1e.39"),
        (lamb_tf.LAMB, {"learning_rate": None}, "`learning_rate` must be a finite.*None"),
        (lamb_tf.LAMB, {"learning_rate": "0.1"}, "learning_rate"),
        (lamb_tf.LAMB, {"weight_norm_bounds": (2.0, 1.0)}, "weight_norm_bounds.*low <= high"),
        (lamb_tf.LAMB, {"trust_ratio_bounds": (-1.0, 1.0)}, "trust_ratio_bounds"),
        (lamb_tf.LAMB, {"trust_ratio_bounds": ("a", 1.0)}, "`trust_ratio_bounds` .*number.*'a'"),
        (lamb_tf.LAMB, {"trust_ratio_bounds": 10.0}, r"trust_ratio_bounds.*\(low, high\).*10.0"),
        (lamb_tf.LAMB, {"gradient_accumulation_steps": 2.5}, "gradient_acc.*least 2.*got 2.5"),
        (lamb_tf.LAMB, {"use_ema": "no"}, "`use_ema` must be True or False.*'no'"),
        (lamb_tf.LAMB, {"clipnorm": 1.0, "global_clipnorm": 1.0}, "clipnorm"),
        (lamb_tf.LAMB, {"clipnorm": 0.0}, "`clipnorm` must be above 0"),
        (lamb_tf.LAMB, {"clipvalue": -1.0}, "`clipvalue` must be above 0"),
        (lamb_tf.LAMB, {"global_clipnorm": 0.0}, "`global_clipnorm` must be above 0"),
        (lamb_tf.LAMB, {"loss_scale_factor": 0.0}, "`loss_scale_factor` must be above 0"),
        (lamb_tf.LAMB, {"loss_scale_factor": np.inf}, "`loss_scale_factor` .*above 0, and finite"),
        (lamb_tf.LARS, {"momentum": 1.0}, "momentum"),
        (lamb_tf.LARS, {"ratio": "during"}, "ratio.*'before_momentum'"),
        (lamb_tf.LARS, {"trust_coefficient": 0.0}, "trust_coefficient"),
        (lamb_tf.LARS, {"epsilon": -1.0}, "epsilon"),
        (lamb_tf.OrScale, {"momentum": 1.0}, "momentum"),
        (lamb_tf.OrScale, {"adam_paths": [3]}, "adam_paths.*regular expressions"),
        (lamb_tf.OrScale, {"adam_paths": ["a["]}, "adam_paths.*must hold valid regular express"),
        (lamb_tf.OrScale, {"epsilon": -1.0}, "epsilon"),
        (lamb_tf.OrScale, {"calibrated": "yes"}, "calibrated"),
        (lamb_tf.OrScale, {"trust_ratio_bounds": (2.0, 1.0)}, "trust_ratio_bounds"),
        (lamb_tf.OrScale, {"weight_norm_bounds": (0.0, 1.0)}, "not recognized.*weight_norm_bounds"),
        *((make, {"beta1": 0.9}, "not recognized: {'beta1': 0.9}") for make in OPTIMIZERS),
    ],
    ids=str,
)
def test_a_value_out_of_range_is_refused(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        make(**arguments)


@pytest.mark.parametrize(
    ("other", "own"),
    [
        ("weight_decay_rate", "weight_decay"),
        ("lr", "learning_rate"),
        ("eps", "epsilon"),
        ("max_grad_norm", "global_clipnorm"),
    ],
)
@pytest.mark.parametrize("make", OPTIMIZERS)
def test_another_library_s_name_of_an_argument_is_refused_with_ours(make, other, own):
    with pytest.raises(TypeError, match=rf"`{other}` must be spelled .*Write `{own}=0.01`"):
        make(**{other: 0.01})
    make(**{own: 0.01})
