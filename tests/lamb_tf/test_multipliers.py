"""Factors on the learning rate by variable, on the Keras backend that is set."""

import keras
import numpy as np
import pytest
import steps

import lamb_tf

# Keras 3.15 asks NumPy for the arrays it saves in a way that NumPy 2 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
ON_TENSORFLOW = pytest.mark.skipif(steps.BACKEND != "tensorflow", reason="TensorFlow's alone")
RULES = {"embedding": 0.25, "bias$": 0.0, "dense": 1.7}
X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")


def path_is(name):
    return lambda variable: variable.path.endswith(name)


# What a factor does.


NARROW = {"dtype": "bfloat16", "master_weights": False}


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lamb_tf.LAMB, {}),
        (lamb_tf.LAMB, {"dtype": "bfloat16"}),
        (lamb_tf.LAMB, NARROW),
        (lamb_tf.LAMB, {"use_ema": True, "ema_overwrite_frequency": 2}),
        (lamb_tf.LAMB, {"gradient_accumulation_steps": 2, "global_clipnorm": 0.5}),
        (lamb_tf.LARS, {}),
        (lamb_tf.LARS, NARROW),
    ],
    ids=str,
)
def test_with_factor_0_a_variable_never_moves(make, options):
    options = {"weight_decay": 0.1, **options}
    dtype = options.pop("dtype", "float32")
    weights, gradients = steps.weights_and_gradients(steps=4)
    variables = steps.make_variables(weights, dtype)
    before = steps.values(variables)
    optimizer = make(0.5, learning_rate_multipliers={"embedding": 0}, **options)
    steps.take_steps(optimizer, variables, gradients)
    after = steps.values(variables)
    np.testing.assert_array_equal(before[0], after[0])
    assert not np.array_equal(before[1], after[1])


def test_with_factor_0_a_variable_stays_where_its_ratio_is_infinite():
    variable = keras.Variable(np.full(4, 9e18, "float32"), name="kernel")
    optimizer = lamb_tf.LARS(
        1.0,
        ratio="after_momentum",
        trust_coefficient=1e9,
        learning_rate_multipliers={"kernel": 0.0},
    )
    steps.take_steps(optimizer, [variable], [[np.full(4, 1e-15, "float32")]])
    np.testing.assert_array_equal(steps.values([variable])[0], np.full(4, np.float32(9e18)))


def test_telemetry_reports_the_ratio_without_the_factor():
    weights, gradients = steps.weights_and_gradients(steps=1)
    ratios = []
    for rules in (None, RULES):
        optimizer = lamb_tf.LAMB(0.1, weight_decay=0.1, learning_rate_multipliers=rules)
        lamb_tf.telemetry.record(optimizer)
        steps.train(optimizer, weights, gradients)
        ratios.append([row["trust_ratio"] for row in lamb_tf.telemetry.read(optimizer).values()])
    assert ratios[0] == ratios[1]


# What it costs, on TensorFlow.


def operations_of_a_step(count, **arguments):
    """The names of the operations in the graph of a step of `count` variables."""
    import tensorflow as tf

    variables = [keras.Variable(np.ones(3), name=f"kernel_{i}") for i in range(count)]
    optimizer = lamb_tf.LAMB(0.1, **arguments)
    optimizer.build(variables)
    step = tf.function(lambda grads: optimizer.apply(grads, variables), autograph=False)
    graph = step.get_concrete_function([tf.TensorSpec((3,))] * count).graph
    return [operation.type for operation in graph.get_operations()]


@ON_TENSORFLOW
def test_factors_add_operations_per_step_and_not_per_variable():
    rules = {"learning_rate_multipliers": {"kernel": 0.5}}
    plain, scaled = operations_of_a_step(4), operations_of_a_step(4, **rules)
    assert operations_of_a_step(4, learning_rate_multipliers={}) == plain
    assert 0 < len(scaled) - len(plain) < 20
    more = len(operations_of_a_step(9, **rules)) - len(operations_of_a_step(9))
    assert more == len(scaled) - len(plain)


# Which variables.


def test_the_first_rule_holds_that_names_a_variable_by_pattern_or_predicate_or_is_it():
    variables = steps.make_variables(steps.weights_and_gradients()[0])
    rules = [(variables[0], 0.25), (path_is("bias"), 0), ("dense", 1.7)]
    for choice in (RULES, rules):
        optimizer = lamb_tf.LAMB(learning_rate_multipliers=choice)
        optimizer.build(variables)
        factors = [words[-1] for words in steps.summary(optimizer).values()]
        assert factors == ["0.25", "1.7", "0", "1", "1"]


def test_rules_of_which_none_names_a_variable_are_refused_and_an_idle_one_is_told():
    variables = steps.make_variables(steps.weights_and_gradients()[0])
    with pytest.raises(ValueError, match="(?s)`learning_rate_multipliers` must match.*embedding"):
        lamb_tf.LAMB(learning_rate_multipliers={"layer_3": 0.5}).build(variables)
    with pytest.warns(UserWarning, match="'layer_3' in `learning_rate_multipliers` matches no"):
        lamb_tf.LAMB(learning_rate_multipliers={"layer_3": 0.5, "bias": 0.5}).build(variables)


@pytest.mark.parametrize("factor", [-0.5, np.nan, np.inf, True, "0.5", None])
def test_a_factor_that_is_no_finite_number_of_at_least_0_is_refused(factor):
    with pytest.raises(ValueError, match="A factor in `learning_rate_multipliers` must .* 'bias'"):
        lamb_tf.LAMB(learning_rate_multipliers={"bias": factor})


@pytest.mark.parametrize(
    ("given", "error"),
    [
        *((given, TypeError) for given in ("bias", ["bias"], [("bias", 1.0, 2.0)], {3.5: 1.0})),
        *((given, TypeError) for given in (0.5, True, b"bias", np.array(0.5), np.array([0.5, 1]))),
        ([(True, 1)], TypeError),
        ({keras.layers.Dense: 0.5}, TypeError),
        ({"(bias": 0.5}, ValueError),
    ],
)
def test_what_names_no_variables_is_refused_and_the_argument_cannot_be_assigned(given, error):
    with pytest.raises(error, match="`learning_rate_multipliers` must (be|hold)"):
        lamb_tf.LARS(learning_rate_multipliers=given)
    with pytest.raises(AttributeError, match="to the constructor of LARS"):
        lamb_tf.LARS().learning_rate_multipliers = given


# Saving.


def test_a_config_without_the_argument_is_one_of_an_earlier_version():
    config = lamb_tf.LAMB().get_config()
    assert config.pop("learning_rate_multipliers") is None
    assert lamb_tf.LAMB.from_config(config).get_config()["learning_rate_multipliers"] is None


def test_a_subclass_without_the_argument_is_made_of_its_own_config():
    class Plain(lamb_tf.LAMB):
        def __init__(self, learning_rate):
            super().__init__(learning_rate)

        def get_config(self):
            return {"learning_rate": float(self.learning_rate)}

    assert Plain.from_config(Plain(0.5).get_config()).get_config() == {"learning_rate": 0.5}


@pytest.mark.parametrize("item", ["kernel", path_is("kernel")], ids=["pattern", "lambda"])
def test_a_model_is_trained_on_from_a_file(tmp_path, item):
    layers = [keras.layers.Dense(4), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    rules = {"learning_rate_multipliers": [(item, 0.5)], "exclude_from_weight_decay": item}
    optimizer = lamb_tf.LAMB(0.1, weight_decay=0.1, **rules)
    if steps.BACKEND == "tensorflow":
        optimizer = lamb_tf.LossScaleOptimizer(optimizer)
    model.compile(optimizer, loss="mse")
    steps.train_on_from_a_file(model, tmp_path, X, X[:, :2])


def test_a_restored_optimizer_only_warns_where_what_its_rules_named_is_frozen():
    config = lamb_tf.LAMB(learning_rate_multipliers={"embedding": 0.5}).get_config()
    variables = steps.make_variables(steps.weights_and_gradients()[0])[1:]
    with pytest.warns(UserWarning, match="matches no variable"):
        lamb_tf.LAMB.from_config(config).build(variables)
