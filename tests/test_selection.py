"""Exclusions where a model is saved, loaded, cloned or copied, built or not, frozen or not.

Runs on the Keras backend that is set.
"""

import copy
import gc
import json
import operator
import types

import keras
import numpy as np
import pytest
import steps

import lamb_tf
from lamb_tf import _selection

# Keras 3.15 asks NumPy for the arrays it saves in a way that NumPy 2 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
NOT_LOADED = pytest.mark.filterwarnings("ignore:The state of optimizer:UserWarning")
X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")


@keras.saving.register_keras_serializable(package="test_selection")
def is_bias(variable):
    return variable.path.endswith("bias")


def small_model(exclusions, **arguments):
    """Two layers, of which the first alone has a bias."""
    layers = [keras.layers.Dense(4), keras.layers.Dense(2, use_bias=False)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    optimizer = lamb_tf.LAMB(0.1, exclude_from_weight_decay=exclusions, **arguments)
    model.compile(optimizer, loss="mse")
    return model


def fit(model):
    model.fit(X, X[:, :2], verbose=0)


def not_decayed(model):
    """The names of the variables that the optimizer does not decay, after a step."""
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    lines = []
    model.optimizer.summary(print_fn=lines.append)
    rows = [line.split() for line in lines[0].splitlines()[1:]]
    return [row[0].split("/")[-1] for row in rows if row[2] == "-"]


def through_a_file(model, path):
    model.save(path / "model.keras")
    return keras.models.load_model(path / "model.keras")


def forget(monkeypatch):
    """From now on nothing is known of the predicates of this process: it is as good as another."""
    monkeypatch.setattr(_selection, "_predicates", {})


EXCLUSIONS = {"pattern": "bias$", "function": is_bias, "lambda": lambda v: is_bias(v)}


# Restoring, whatever is frozen by then.


@pytest.mark.filterwarnings("ignore:.* matches no variable:UserWarning")
@pytest.mark.parametrize("frozen", ["the model", "the layer with the bias"])
@pytest.mark.parametrize("kind", EXCLUSIONS)
def test_a_model_is_loaded_though_what_was_excluded_is_frozen(tmp_path, kind, frozen):
    model = small_model([EXCLUSIONS[kind]])
    fit(model)
    (model if frozen == "the model" else model.layers[0]).trainable = False
    with pytest.warns(UserWarning, match="was not loaded"):
        again = through_a_file(model, tmp_path)
    assert not_decayed(again) == []
    for one, other in zip(again.get_weights(), model.get_weights()):
        np.testing.assert_array_equal(one, other)


def test_of_fewer_variables_those_that_were_excluded_by_predicate_still_are(tmp_path, monkeypatch):
    model = small_model([lambda v: "kernel" in v.path])
    fit(model)
    assert not_decayed(model) == ["kernel", "kernel"]
    model.layers[0].trainable = False
    model.save(tmp_path / "model.keras")
    forget(monkeypatch)
    with pytest.warns(UserWarning, match="was not loaded"):
        again = keras.models.load_model(tmp_path / "model.keras")
    assert not_decayed(again) == ["kernel"]


@NOT_LOADED
def test_a_model_is_loaded_though_as_many_other_variables_are_trained(tmp_path, monkeypatch):
    layers = [keras.layers.Dense(n, use_bias=False, name=name) for n, name in zip((4, 4, 2), "abc")]
    model = keras.Sequential([keras.Input((3,)), *layers])
    layers[2].trainable = False
    exclusions = [lambda v: v.path.endswith("b/kernel")]
    model.compile(lamb_tf.LAMB(exclude_from_weight_decay=exclusions), loss="mse")
    fit(model)
    layers[0].trainable, layers[2].trainable = False, True
    model.save(tmp_path / "model.keras")
    forget(monkeypatch)
    again = keras.models.load_model(tmp_path / "model.keras")
    fit(again)
    lines = []
    again.optimizer.summary(print_fn=lines.append)
    rows = [line.split() for line in lines[0].splitlines()[1:]]
    assert [(row[0].split("/")[-2], row[2]) for row in rows] == [("b", "-"), ("c", "yes")]


def test_a_record_goes_by_the_paths_where_as_many_other_variables_are_trained():
    record = _selection.Record({"paths": ["b/kernel"], "positions": [1], "variables": 2})

    def named(*paths):
        return record.among([types.SimpleNamespace(path=path) for path in paths])

    assert named("a/kernel", "b/kernel") == [False, True]
    assert named("b/kernel", "c/kernel") == [True, False]
    assert named("dense_4/kernel", "dense_5/kernel") == [False, True]  # called otherwise
    assert named("a/kernel", "b/kernel", "c/kernel") == [False, True, False]


def test_a_fresh_optimizer_with_a_pattern_that_names_no_variable_is_an_error_still():
    model = small_model(["biass"])
    with pytest.raises(ValueError, match="No variable matches `exclude_from_weight_decay`"):
        fit(model)


def test_an_optimizer_of_no_variables_has_nothing_to_exclude():
    optimizer = lamb_tf.LAMB(exclude_from_weight_decay=["bias"])
    optimizer.build([])
    optimizer.apply([], [])


# Before the optimizer is built.


@NOT_LOADED
@pytest.mark.parametrize("way", ["clone", "file", "serialize", "config", "deepcopy"])
@pytest.mark.parametrize("kind", EXCLUSIONS)
def test_what_is_excluded_survives_before_the_optimizer_is_built(tmp_path, kind, way):
    model = small_model([EXCLUSIONS[kind]])
    optimizer = model.optimizer
    if way == "clone":
        again = keras.models.clone_model(model)
    elif way == "file":
        again = through_a_file(model, tmp_path)
    elif way == "deepcopy":
        again = copy.deepcopy(model)
    else:
        again = keras.models.clone_model(model)
        if way == "serialize":
            optimizer = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
        else:
            optimizer = lamb_tf.LAMB.from_config(optimizer.get_config())
        again.compile(optimizer, loss="mse")
    assert not_decayed(again) == ["bias"]


@NOT_LOADED
def test_a_registered_predicate_is_found_by_name_in_another_process(tmp_path, monkeypatch):
    model = small_model([is_bias])
    model.save(tmp_path / "model.keras")
    forget(monkeypatch)
    assert not_decayed(keras.models.load_model(tmp_path / "model.keras")) == ["bias"]


@NOT_LOADED
def test_a_predicate_that_is_not_registered_is_found_among_the_custom_objects(
    tmp_path, monkeypatch
):
    def ends_in_bias(variable):
        return is_bias(variable)

    small_model([ends_in_bias]).save(tmp_path / "model.keras")
    forget(monkeypatch)
    with pytest.raises(ValueError, match="ends_in_bias.*register_keras_serializable"):
        keras.models.load_model(tmp_path / "model.keras")
    custom_objects = {"ends_in_bias": ends_in_bias}
    again = keras.models.load_model(tmp_path / "model.keras", custom_objects=custom_objects)
    assert not_decayed(again) == ["bias"]


def test_a_lambda_that_another_process_saved_unbuilt_is_refused_by_name(tmp_path, monkeypatch):
    small_model([lambda v: True]).save(tmp_path / "model.keras")
    forget(monkeypatch)
    with pytest.raises(ValueError, match="`exclude_from_weight_decay` was saved before.*<lambda>"):
        keras.models.load_model(tmp_path / "model.keras")
    keras.models.load_model(tmp_path / "model.keras", compile=False)


def test_a_variable_is_saved_by_its_path_until_the_optimizer_is_built():
    variables = steps.make_variables(steps.weights_and_gradients()[0])
    optimizer = lamb_tf.LAMB(exclude_from_weight_decay=[variables[2]])
    config = json.loads(json.dumps(optimizer.get_config()))
    again = lamb_tf.LAMB.from_config(config)
    again.build(steps.make_variables(steps.weights_and_gradients()[0]))
    optimizer.build(variables)
    tables = []
    again.summary(tables.append)
    optimizer.summary(tables.append)
    assert tables[0] == tables[1]


# Afterwards.


@pytest.mark.parametrize("kind", EXCLUSIONS)
def test_a_built_optimizer_is_saved_in_terms_of_json_and_needs_no_predicate(kind, monkeypatch):
    model = small_model([EXCLUSIONS[kind]])
    fit(model)
    config = json.loads(json.dumps(model.optimizer.get_config()))
    forget(monkeypatch)
    again = small_model(None)
    again.compile(lamb_tf.LAMB.from_config(config), loss="mse")
    assert not_decayed(again) == ["bias"]
    assert again.optimizer.get_config()["exclude_from_weight_decay"]


def test_a_clone_for_another_model_asks_the_predicate_again():
    model = small_model([lambda v: is_bias(v)])
    fit(model)
    optimizer = lamb_tf.LAMB.from_config(model.optimizer.get_config())
    layers = [keras.layers.Dense(4, use_bias=False), keras.layers.Dense(2)]
    other = keras.Sequential([keras.Input((3,)), *layers])
    other.compile(optimizer, loss="mse")
    assert not_decayed(other) == ["bias"]
    assert not_decayed(model) == ["bias"]


def test_a_config_is_not_given_the_predicate_that_took_the_place_of_its_own_in_memory():
    names_bias = lambda v: is_bias(v)  # noqa: E731
    config = lamb_tf.LAMB(exclude_from_weight_decay=[names_bias]).get_config()
    place = id(names_bias)
    del names_bias
    gc.collect()
    others = [lambda v: not is_bias(v) for _ in range(10_000)]
    there = [other for other in others if id(other) == place] or others[:1]
    lamb_tf.LAMB(exclude_from_weight_decay=there).get_config()
    with pytest.raises(ValueError, match="saved before the optimizer was built"):
        lamb_tf.LAMB.from_config(config)


def test_the_configs_of_one_optimizer_are_equal():
    optimizer = lamb_tf.LAMB(exclude_from_weight_decay=[lambda v: is_bias(v)])
    assert optimizer.get_config() == optimizer.get_config()


def test_what_python_cannot_refer_to_weakly_is_saved_by_the_variables_it_named():
    optimizer = lamb_tf.LAMB(exclude_from_weight_decay=[operator.attrgetter("trainable")])
    variables = steps.make_variables(steps.weights_and_gradients()[0])
    optimizer.build(variables)
    again = lamb_tf.LAMB.from_config(optimizer.get_config())
    again.build(variables)
    tables = []
    again.summary(tables.append)
    optimizer.summary(tables.append)
    assert tables[0] == tables[1]


def test_an_excluded_variable_is_no_state_of_the_optimizer():
    variables = steps.make_variables(steps.weights_and_gradients()[0])
    optimizer = lamb_tf.LAMB(exclude_from_weight_decay=[variables[2]])
    optimizer.build(variables)
    assert not {id(v) for v in variables} & {id(v) for v in optimizer.variables}


# Refusals.


@pytest.mark.parametrize("argument", ["exclude_from_weight_decay", "exclude_from_layer_adaptation"])
def test_a_malformed_expression_and_a_truth_value_are_refused_with_the_argument_s_name(argument):
    with pytest.raises(ValueError, match=rf"`{argument}` holds '\(bias', .*missing \)"):
        lamb_tf.LAMB(**{argument: ["(bias"]})
    with pytest.raises(TypeError, match=f"`{argument}` takes .*bool: True"):
        lamb_tf.LARS(**{argument: [True]})
