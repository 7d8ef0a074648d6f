"""A trust ratio for each slice of a variable, on the Keras backend that is set."""

import functools
import json

import keras
import numpy as np
import pytest
import reference
import steps

import lamb_tf
from lamb_tf import telemetry

# Keras 3.15 asks NumPy for the arrays it saves in a way that NumPy 2 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
ON_TENSORFLOW = pytest.mark.skipif(steps.BACKEND != "tensorflow", reason="TensorFlow's alone")
SHAPES = {
    "stack/kernel": (3, 6, 5),
    "experts/kernel": (2, 6, 3, 5),
    "heads/bias": (4, 5),
    "dense/kernel": (6, 5),
}
AXES = {"stack/": 0, "experts/": (0, -2), "heads/bias$": [-2]}
IN_ORDER = [0, (0, 2), 0, ()]


FORMS = {  # the optimizer, its formula, and a rate that moves weights by about a hundredth
    "LAMB": (lamb_tf.LAMB, reference.lamb, 0.01),
    "LARS": (
        functools.partial(lamb_tf.LARS, nesterov=True),
        functools.partial(reference.lars_before_momentum, nesterov=True),
        10.0,
    ),
    "LARS of the LAMB paper": (
        functools.partial(lamb_tf.LARS, ratio="after_momentum"),
        reference.lars_after_momentum,
        0.01,
    ),
    "OrScale": (
        functools.partial(lamb_tf.OrScale, adam_paths=None),
        reference.orscale_or_adamw,
        0.01,
    ),
}
MODES = ["graph", "xla", "eager"] if steps.BACKEND == "tensorflow" else ["graph"]


def weights_and_gradients(count, seed=0):
    rng = np.random.default_rng(seed)
    weights = [rng.normal(0, 0.1, shape).astype("float32") for shape in SHAPES.values()]
    weights[0][1] = 0  # a slice without norm among others
    gradients = [
        [rng.normal(0, 1, shape).astype("float32") for shape in SHAPES.values()]
        for _ in range(count)
    ]
    return weights, gradients


def make_variables(weights, dtype="float32"):
    return steps.make_variables(weights, dtype, SHAPES)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FORMS)
def test_each_slice_follows_the_formula_of_a_variable(name, mode):
    make, formula, rate = FORMS[name]
    weights, gradients = weights_and_gradients(3)
    rules = {"trust_ratio_axes": AXES, "learning_rate_multipliers": {"heads": 0.5}}
    optimizer = make(rate, weight_decay=0.1, **rules)
    variables = make_variables(weights)
    if mode == "eager":
        optimizer.build(variables)
        for grads in gradients:
            steps.apply(optimizer, variables, grads)
    else:
        steps.take_steps(optimizer, variables, gradients, xla=mode == "xla")
    expected = []
    for i, (x, axes) in enumerate(zip(weights, IN_ORDER)):
        own = [grads[i] for grads in gradients]
        options = {"weight_decay": 0.1, "multiplier": 0.5 if i == 2 else 1.0}
        expected.append(reference.per_slice(formula, x, own, axes, rate, **options))
    rtol, atol = (1e-4, 2e-5) if name == "OrScale" else (3e-6, 3e-7)
    steps.assert_close(steps.values(variables), expected, rtol, atol)


@pytest.mark.parametrize("name", ["LAMB", "LARS", "OrScale"])
def test_a_stack_takes_the_steps_of_its_layers_apart(name):
    make, _, rate = FORMS[name]
    rng = np.random.default_rng(1)
    kernels = rng.normal(0, 0.1, (4, 6, 5)).astype("float32")
    biases = rng.normal(0, 0.1, (4, 5)).astype("float32")
    gradients = [(rng.normal(size=(4, 6, 5)), rng.normal(size=(4, 5))) for _ in range(5)]
    options = {"weight_decay": 0.1, "global_clipnorm": 0.5}
    stacked = [keras.Variable(kernels, name="kernel"), keras.Variable(biases, name="bias")]
    steps.take_steps(
        make(rate, trust_ratio_axes={"kernel|bias": 0}, **options),
        stacked,
        [[g.astype("float32") for g in grads] for grads in gradients],
    )
    apart = [keras.Variable(x, name="kernel") for x in kernels]
    apart += [keras.Variable(x, name="bias") for x in biases]
    steps.take_steps(
        make(rate, **options),
        apart,
        [[g.astype("float32") for both in grads for g in both] for grads in gradients],
    )
    found = [row for variable in steps.values(stacked) for row in variable]
    steps.assert_close(found, steps.values(apart), rtol=1e-6, atol=1e-7)
    assert np.linalg.norm(found[0] - kernels[0]) > 0.02 * np.linalg.norm(kernels[0])


@ON_TENSORFLOW
@pytest.mark.parametrize(
    ("axes", "options"),
    [
        (0, {"trust_ratio_axes": {"embedding": 0}}),
        (1, {"trust_ratio_axes": {"embedding": 1}}),
        ((), {"learning_rate_multipliers": {"embedding": 0.3}}),
    ],
)
def test_a_sparse_gradient_gives_the_dense_result(axes, options):
    import tensorflow as tf

    rng = np.random.default_rng(0)
    table, rows = rng.normal(size=(6, 3, 2)).astype("float32"), [1, 4, 1]
    values = rng.normal(size=(3, 3, 2)).astype("float32")
    dense = np.zeros_like(table)
    np.add.at(dense, rows, values)
    variable = keras.Variable(table, name="embedding")
    optimizer = lamb_tf.LAMB(0.1, weight_decay=0.1, **options)
    optimizer.build([variable])

    @tf.function(autograph=False)
    def step():
        optimizer.apply([tf.IndexedSlices(tf.constant(values), rows, table.shape)], [variable])

    for _ in range(3):
        step()
    settings = {"weight_decay": 0.1, "multiplier": 1.0 if axes != () else 0.3}
    expected = reference.per_slice(reference.lamb, table, [dense] * 3, axes, 0.1, **settings)
    np.testing.assert_allclose(steps.values([variable])[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("master_weights", [True, False])
def test_variables_of_16_bits_have_slices_too(master_weights):
    weights, gradients = weights_and_gradients(2)
    found = []
    for dtype in ("float32", "bfloat16"):
        options = {"weight_decay": 0.1, "master_weights": master_weights}
        optimizer = lamb_tf.OrScale(0.01, trust_ratio_axes=AXES, adam_paths=None, **options)
        variables = make_variables(weights, dtype)
        steps.take_steps(optimizer, variables, gradients)
        found.append(steps.values(variables))
    steps.assert_close(*found, rtol=2.0**-6, atol=2e-3)


# What telemetry and the summary show.


def test_telemetry_has_an_entry_for_each_slice():
    weights, gradients = weights_and_gradients(1)
    variables = make_variables(weights)
    axes = {"stack|experts": (0, -2), "heads": 0}
    optimizer = lamb_tf.LAMB(0.1, trust_ratio_axes=axes, exclude_from_layer_adaptation=["experts"])
    telemetry.record(optimizer)
    steps.take_steps(
        optimizer, variables[1:] + variables[:1], [gradients[0][1:] + gradients[0][:1]]
    )
    figures = telemetry.read(optimizer)
    experts = [f"experts/kernel[{i},{j}]" for i in range(2) for j in range(3)]
    heads = [f"heads/bias[{i}]" for i in range(4)]
    stack = [f"stack/kernel[{i},{j}]" for i in range(3) for j in range(6)]
    assert list(figures) == [*experts, *heads, "dense/kernel", *stack]
    for path, row in zip(stack, weights[0].reshape(18, 5)):
        norm = np.linalg.norm(row)
        assert figures[path]["weight_norm"] == pytest.approx(norm, rel=1e-5)
        ratio = norm / figures[path]["update_norm"] if norm else 1.0
        assert figures[path]["trust_ratio"] == pytest.approx(ratio, rel=1e-5)
    assert figures[experts[4]]["weight_norm"] == pytest.approx(np.linalg.norm(weights[1][1, :, 1]))
    assert all(figures[path]["trust_ratio"] == 1 for path in experts)


def test_the_summary_shows_the_number_of_slices():
    optimizer = lamb_tf.OrScale(trust_ratio_axes=AXES, adam_paths=None)
    optimizer.build(make_variables(weights_and_gradients(1)[0]))
    shown = [" ".join(words[1:]) for words in steps.summary(optimizer).values()]
    assert shown == ["3 slices", "6 slices", "-", "yes"]  # slices of the bias are no matrices


# By the heads of attention, through a file.


def test_attention_by_heads_is_trained_on_from_a_file(tmp_path):
    keras.utils.set_random_seed(0)
    x = keras.Input((5, 6))
    attended = keras.layers.MultiHeadAttention(num_heads=3, key_dim=4, name="attention")(x, x)
    model = keras.Model(x, attended)
    axes = {"/(query|key|value)/": -2, "attention_output/kernel": 0}
    optimizer = lamb_tf.LAMB(0.01, trust_ratio_axes=axes)
    model.compile(optimizer, loss="mse")
    data = np.random.default_rng(0).normal(size=(8, 5, 6)).astype("float32")
    again = steps.train_on_from_a_file(model, tmp_path, data, data)
    assert optimizer._slice_counts() == [3] * 7 + [1]  # all but the bias of the output
    assert again.optimizer.get_config() == optimizer.get_config()


def test_the_config_is_json_and_makes_the_same_optimizer():
    for given in (AXES, [["stack/", [0]], ["experts/", [0, -2]], ["heads/bias$", [-2]]]):
        optimizer = lamb_tf.LARS(trust_ratio_axes=given)
        config = optimizer.get_config()
        again = lamb_tf.LARS.from_config(json.loads(json.dumps(config)))
        assert again.get_config() == config
        assert dict(again.trust_ratio_axes) == {
            "stack/": (0,),
            "experts/": (0, -2),
            "heads/bias$": (-2,),
        }
    assert lamb_tf.LARS(trust_ratio_axes={}).trust_ratio_axes is None
    with pytest.warns(UserWarning, match="got 'heads/bias\\$', which matches none"):
        again.build(make_variables(weights_and_gradients(1)[0])[:2])


# What is refused.


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("kernel", "must be a mapping of regular expressions to axes; got 'kernel'"),
        (0, "must be a mapping"),
        ({1: 0}, "must be a mapping"),
        ({"(": 0}, "must hold valid regular expressions; got '\\('"),
        ({"kernel": None}, "must have an axis or several for each expression; got None for 'ker"),
        ({"kernel": ()}, r"must have an axis or several .*; got \(\)"),
        ({"kernel": True}, "must have an axis or several .*; got True"),
        ({"kernel": 0.5}, "must have an axis or several .*; got 0.5"),
        ({"kernel": "0"}, "must have an axis or several .*; got '0'"),
    ],
    ids=str,
)
def test_what_are_no_axes_is_refused(given, message):
    with pytest.raises(ValueError, match=f"^`trust_ratio_axes` {message}"):
        lamb_tf.LAMB(trust_ratio_axes=given)


@pytest.mark.parametrize("make", [lamb_tf.LAMB, lamb_tf.OrScale])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dense": 2}, r"of 'dense' must be axes of .*; got \[2\] for 'dense/kernel' of shape \(6"),
        ({"dense": -3}, "of 'dense' must be axes of all variables that it matches"),
        ({"stack": (0, -3)}, r"of 'stack' must have each axis once; got \[0, -3\]"),
        ({"dense": (0, 1)}, r"of 'dense' must leave an axis for the norms; got \[0, 1\]"),
        ({"stack": 0, "kernel$": 1}, "must have the same axes for all .* for 'stack/kernel'"),
        ({"stack": 0, "stakc": 0}, "must match variables that have a trust ratio; got 'stakc'"),
    ],
    ids=str,
)
def test_axes_that_the_variables_lack_are_refused_in_one_line(make, given, message):
    optimizer = make(trust_ratio_axes=given, adam_paths=None) if make is lamb_tf.OrScale else None
    optimizer = optimizer or make(trust_ratio_axes=given)
    with pytest.raises(ValueError, match=f"^`trust_ratio_axes` {message}.*$") as raised:
        optimizer.build(make_variables(weights_and_gradients(1)[0]))
    assert "\n" not in str(raised.value)


def test_axes_of_a_variable_without_slices_and_of_what_is_not_adapted_are_refused():
    optimizer = lamb_tf.LAMB(trust_ratio_axes={"stack": 0})
    with pytest.raises(ValueError, match="of 'stack' must number at least one slice; got"):
        optimizer.build([keras.Variable(np.ones((0, 3, 4), "float32"), name="stack")])
    optimizer = lamb_tf.LAMB(trust_ratio_axes={"heads": 0}, exclude_from_layer_adaptation=["bias"])
    with pytest.raises(ValueError, match="that have a trust ratio; got 'heads', which matches"):
        optimizer.build(make_variables(weights_and_gradients(1)[0]))
