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


def lars(ratio="before_momentum", **arguments):
    make = functools.partial(lamb_tf.LARS, ratio=ratio)
    return make, LARS_FORMS[ratio], 0.1, arguments


def orscale(**arguments):
    make = functools.partial(lamb_tf.OrScale, adam_paths=None)
    return make, reference.orscale_or_adamw, 0.01, arguments


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
    (functools.partial(lamb_tf.LAMB, use_ema=True), *lamb(weight_decay=0.1)[1:]),
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
    if formula is reference.orscale_or_adamw:
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


@rows([lamb(), lamb(adapt=True), *map(lars, LARS_FORMS), orscale()])
def test_excluded_variables_have_no_decay_and_a_ratio_only_by_an_empty_second_list(row):
    make, formula, _, excluded = row
    weights, gradients = steps.weights_and_gradients()
    weights[2] += 1.0
    exclusions = {"exclude_from_weight_decay": ["dense/"]}
    if excluded:
        exclusions["exclude_from_layer_adaptation"] = []
    trained = steps.train(make(0.01, weight_decay=0.1, **exclusions), weights, gradients)
    expected = []
    for i, x in enumerate(weights):
        arguments = {"adapt": False} | excluded if i in (1, 2) else {"weight_decay": 0.1}
        expected.append(formula(x, [g[i] for g in gradients], 0.01, **arguments))
    steps.assert_close(trained, expected, *tolerance(formula))


@pytest.mark.parametrize(
    ("make", "options"),
    [
        *((make, {"global_clipnorm": 0.5, "weight_decay": 0.1}) for make in OPTIMIZERS),
        (lamb_tf.LAMB, {}),
        (lamb_tf.LAMB, {"nesterov": "both", "clipvalue": 0.1}),
        (lamb_tf.LARS, {"nesterov": True, "clipnorm": 0.5}),
        (lamb_tf.OrScale, {"calibrated": False}),
        (lamb_tf.LAMB, {"use_ema": True, "ema_overwrite_frequency": 2, "loss_scale_factor": 2.0}),
        (lamb_tf.LAMB, {"dtype": "bfloat16"}),
        (lamb_tf.LAMB, {"dtype": "bfloat16", "master_weights": False}),
    ],
    ids=str,
)
def test_a_non_finite_gradient_changes_nothing_and_is_counted(make, options):
    options = dict(options)
    dtype = options.pop("dtype", "float32")
    weights, gradients = steps.weights_and_gradients(steps=5)
    clean = [gradients[1], gradients[4]]
    for k, value in zip((0, 2, 3), (np.inf, -np.inf, np.nan)):
        gradients[k][1][2, 3] = value
    variables, expected = (steps.make_variables(weights, dtype) for _ in range(2))
    optimizer, other = make(0.1, **options), make(0.1, **options)
    steps.take_steps(optimizer, variables, gradients)
    steps.take_steps(other, expected, clean)
    for one, two in zip(variables + optimizer.variables, expected + other.variables):
        if one is not optimizer.skipped_updates:
            np.testing.assert_array_equal(*steps.values([one, two]))
    assert steps.values([optimizer.skipped_updates, optimizer.iterations]) == [3, 2]


@pytest.mark.parametrize("dtype", ["complex64", "int32", "bool"])
def test_a_variable_that_is_not_of_real_floating_point_is_refused(dtype):
    variables = [keras.Variable(np.ones((2, 2)), name="kernel")]
    variables += [keras.Variable(np.ones((2, 2), dtype), dtype=dtype, name="odd", trainable=False)]
    message = f"must be of real floating point; got 'odd' of {dtype}"
    for optimizer in (lamb_tf.LAMB(), lamb_tf.LossScaleOptimizer(lamb_tf.LAMB())):
        with pytest.raises(TypeError, match=message):
            optimizer.build(variables)
        optimizer.build(variables[:1])


@pytest.mark.parametrize(
    "make",
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
def test_the_config_in_terms_of_json_makes_the_same_optimizer(make):
    def made_again(optimizer):
        config = keras.saving.serialize_keras_object(optimizer)
        again = keras.saving.deserialize_keras_object(json.loads(json.dumps(config)))
        assert type(again) is type(optimizer)
        assert keras.saving.serialize_keras_object(again) == config
        return again

    optimizer = make()
    again = made_again(optimizer)
    trained = [steps.train(o, *steps.weights_and_gradients(steps=2)) for o in (optimizer, again)]
    steps.assert_equal(*trained)
    made_again(optimizer)  # built by now


REFUSED = {
    lamb_tf.LAMB: [
        ("beta_1", 1.0, r"\[0, 1\).*1.0"),
        ("beta_1", None, "a number.*None"),
        ("beta_2", -0.1, r"\[0, 1\)"),
        ("epsilon", -1e-6, ""),
        ("epsilon", "1e-6", "a number.*'1e-6'"),
        ("epsilon", np.inf, "finite"),
        ("epsilon", [[1], [2, 3]], "a number"),
        ("epsilon", np.bool_(True), "a number"),
        ("epsilon", np.complex64(1), "a number"),
        ("bias_correction", "False", "True or False"),
        ("nesterov", True, "'first'"),
        ("weight_decay", [0.1, 0.2], ""),
        ("weight_decay", -0.1, ""),
        ("weight_decay", np.inf, "finite.*None for none"),
        ("weight_decay", True, "True"),
        *(("learning_rate", value, "a finite number") for value in (-1.0, np.inf, np.nan, None)),
        ("learning_rate", 1e39, "a finite.*1e.39"),
        ("learning_rate", "0.1", ""),
        ("weight_norm_bounds", (2.0, 1.0), "low <= high"),
        ("trust_ratio_bounds", (-1.0, 1.0), ""),
        ("trust_ratio_bounds", ("a", 1.0), "number.*'a'"),
        ("trust_ratio_bounds", 10.0, r"\(low, high\).*10.0"),
        ("gradient_accumulation_steps", 2.5, "least 2.*got 2.5"),
        ("use_ema", "no", "True or False.*'no'"),
        ("clipnorm", 0.0, "above 0"),
        ("clipvalue", -1.0, "above 0"),
        ("global_clipnorm", 0.0, "above 0"),
        ("loss_scale_factor", 0.0, "above 0"),
        ("loss_scale_factor", np.inf, "above 0, and finite"),
    ],
    lamb_tf.LARS: [
        ("momentum", 1.0, ""),
        ("ratio", "during", "'before_momentum'"),
        ("trust_coefficient", 0.0, ""),
        ("epsilon", -1.0, ""),
    ],
    lamb_tf.OrScale: [
        ("momentum", 1.0, ""),
        ("adam_paths", [3], "regular expressions"),
        ("adam_paths", ["a["], "hold valid regular express"),
        ("epsilon", -1.0, ""),
        ("calibrated", "yes", ""),
        ("trust_ratio_bounds", (2.0, 1.0), ""),
    ],
}


@pytest.mark.parametrize(
    ("make", "argument", "value", "message"),
    [(make, *row) for make, rows_ in REFUSED.items() for row in rows_],
    ids=str,
)
def test_a_value_out_of_range_is_refused(make, argument, value, message):
    with pytest.raises(ValueError, match=f"`{argument}` must .*{message}"):
        make(**{argument: value})


@pytest.mark.parametrize("value", [None, "0.9", [0.9], np.array([0.9, 0.99]), True])
@pytest.mark.parametrize("make", OPTIMIZERS)
def test_a_momentum_of_the_averages_that_is_no_number_is_refused(make, value):
    with pytest.raises(ValueError, match="`ema_momentum` must be a number; got"):
        make(use_ema=True, ema_momentum=value)


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_a_momentum_of_the_averages_is_a_plain_number_in_the_config(make):
    config = make(use_ema=True, ema_momentum=np.float32(0.5)).get_config()
    assert json.loads(json.dumps(config["ema_momentum"])) == 0.5


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_arguments_that_are_unknown_or_contradict_are_refused(make):
    with pytest.raises(ValueError, match="not recognized: {'beta1': 0.9}"):
        make(beta1=0.9)
    with pytest.raises(ValueError, match="clipnorm"):
        make(clipnorm=1.0, global_clipnorm=1.0)


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


OF_EACH = [lamb_tf.LAMB, lamb_tf.LARS, functools.partial(lamb_tf.OrScale, adam_paths=None)]


@pytest.mark.parametrize("make", OF_EACH)
def test_a_variable_without_elements_stops_no_step(make):
    x = [keras.Variable(np.ones(shape, "float32")) for shape in ((0, 5), (3,), (3,))]
    make(0.1).apply([np.ones(v.shape, "float32") for v in x], x)
    assert all((np.abs(keras.ops.convert_to_numpy(v)) < 1).all() for v in x)


@pytest.mark.parametrize("make", OF_EACH[:2])
def test_a_large_weight_stored_by_columns_takes_the_same_step(make):
    random = np.random.default_rng(0)
    values, g = random.normal(size=(2, 600, 600)).astype("float32")
    results = []
    for order in (lambda x: keras.ops.transpose(keras.ops.transpose(x) * 1), lambda x: x):
        x = keras.Variable(order(keras.ops.convert_to_tensor(values)))
        make(0.1).apply([order(keras.ops.convert_to_tensor(g))], [x])
        results.append(keras.ops.convert_to_numpy(x))
    np.testing.assert_allclose(*results, rtol=1e-6)


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="Keras' has variables there")
@pytest.mark.parametrize("make", OF_EACH)
def test_a_stateless_step_leaves_its_arguments_as_they_are(make):
    x = [keras.Variable(np.ones((3, 4), "float32")) for _ in range(2)]
    optimizer = make(0.1)
    optimizer.build(x)
    given = [v.value for v in optimizer.variables], [v.value for v in x]
    before = [[np.array(keras.ops.convert_to_numpy(v)) for v in values] for values in given]
    gradients = [keras.ops.ones((3, 4)) for _ in x]
    new_x, _ = optimizer.stateless_apply(given[0], gradients, given[1])
    for values, old in zip(given, before, strict=True):
        for value, was in zip(values, old, strict=True):
            np.testing.assert_array_equal(keras.ops.convert_to_numpy(value), was)
    assert not np.array_equal(keras.ops.convert_to_numpy(new_x[0]), before[1][0])


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="Keras' has variables there")
def test_a_stateless_step_takes_state_that_lies_by_columns():
    rng = np.random.default_rng(0)
    x = keras.Variable(rng.normal(size=(3, 4)).astype("float32"))
    optimizer = lamb_tf.LAMB(0.1)
    optimizer.build([x])
    moments = {id(slot) for slot in optimizer.slots(x).values()}
    moved, gradients = keras.ops.square(x.value), [x.value + 1.0]
    by_columns = keras.ops.transpose(keras.ops.transpose(moved) * 1)
    results = []
    for values in (moved, by_columns):
        state = [values if id(v) in moments else v.value for v in optimizer.variables]
        (new_x,), _ = optimizer.stateless_apply(state, gradients, [x.value])
        results.append(keras.ops.convert_to_numpy(new_x))
    np.testing.assert_allclose(*results, rtol=1e-6)
