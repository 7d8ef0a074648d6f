"""Exclusions where a model is saved, loaded, cloned or copied, built or not, frozen or not.

Runs on the Keras backend that is set.
"""

import copy
import gc
import json
import operator
import re
import types
import warnings

import keras
import peers
import pytest
import steps

import lamb_tf
from lamb_tf import _selection

# Keras 3.15 asks NumPy for the arrays it saves in a way that NumPy 2 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
NOT_LOADED = pytest.mark.filterwarnings("ignore:The state of optimizer:UserWarning")


@keras.saving.register_keras_serializable(package="test_selection")
def is_bias(variable):
    return variable.path.endswith("bias")


def small_model(exclusions, **arguments):
    """Two layers, of which the first alone has a bias; the optimizer is not built."""
    layers = [keras.layers.Dense(4), keras.layers.Dense(2, use_bias=False)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    optimizer = lamb_tf.LAMB(0.1, exclude_from_weight_decay=exclusions, **arguments)
    model.compile(optimizer, loss="mse")
    return model


def build(model):
    model.optimizer.build(model.trainable_variables)


def not_decayed(model):
    """The names of the variables that the optimizer does not decay."""
    build(model)
    rows = steps.summary(model.optimizer).items()
    return [path.split("/")[-1] for path, (decayed, _) in rows if decayed == "-"]


def through_a_file(model, path):
    model.save(path / "model.keras")
    return keras.models.load_model(path / "model.keras")


def forget(monkeypatch):
    """From now on nothing is known of the predicates of this process: it is as good as another."""
    monkeypatch.setattr(_selection, "_predicates", {})


EXCLUSIONS = {
    "pattern": "bias$",
    "function": is_bias,
    "lambda": lambda v: is_bias(v),
    "biases_and_norms": lamb_tf.biases_and_norms,
}


# Restoring, whatever is frozen by then.


@pytest.mark.filterwarnings("ignore:.* matches no variable:UserWarning")
@pytest.mark.parametrize("frozen", ["the model", "the layer with the bias"])
@pytest.mark.parametrize("kind", EXCLUSIONS)
def test_a_model_is_loaded_though_what_was_excluded_is_frozen(tmp_path, kind, frozen):
    model = small_model([EXCLUSIONS[kind]])
    build(model)
    (model if frozen == "the model" else model.layers[0]).trainable = False
    with pytest.warns(UserWarning, match="was not loaded"):
        again = through_a_file(model, tmp_path)
    assert not_decayed(again) == []
    steps.assert_equal(again.get_weights(), model.get_weights())


def test_of_fewer_variables_those_that_were_excluded_by_predicate_still_are(tmp_path, monkeypatch):
    model = small_model([lambda v: "kernel" in v.path])
    build(model)
    assert not_decayed(model) == ["kernel", "kernel"]
    model.layers[0].trainable = False
    model.save(tmp_path / "model.keras")
    forget(monkeypatch)
    with pytest.warns(UserWarning, match="was not loaded"):
        again = keras.models.load_model(tmp_path / "model.keras")
    assert not_decayed(again) == ["kernel"]


def test_a_record_goes_by_the_paths_where_as_many_other_variables_are_trained():
    record = _selection.SavedExclusion({"paths": ["b/kernel"], "positions": [1], "variables": 2})

    def named(*paths):
        return record.mask([types.SimpleNamespace(path=path) for path in paths])

    assert named("a/kernel", "b/kernel") == [False, True]
    assert named("b/kernel", "c/kernel") == [True, False]
    assert named("dense_4/kernel", "dense_5/kernel") == [False, True]  # called otherwise
    assert named("a/kernel", "b/kernel", "c/kernel") == [False, True, False]


def test_without_variables_there_is_nothing_to_exclude():
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
def test_a_predicate_is_found_in_another_process_by_its_registered_name_or_as_a_custom_object(
    tmp_path, monkeypatch
):
    def ends_in_bias(variable):
        return is_bias(variable)

    path = tmp_path / "model.keras"
    small_model([is_bias]).save(path)
    forget(monkeypatch)
    assert not_decayed(keras.models.load_model(path)) == ["bias"]
    small_model([ends_in_bias]).save(path)
    forget(monkeypatch)
    with pytest.raises(ValueError, match="ends_in_bias.*register_keras_serializable"):
        keras.models.load_model(path)
    again = keras.models.load_model(path, custom_objects={"ends_in_bias": ends_in_bias})
    assert not_decayed(again) == ["bias"]


def test_a_lambda_that_another_process_saved_unbuilt_is_refused_by_name(tmp_path, monkeypatch):
    small_model([lambda v: True]).save(tmp_path / "model.keras")
    forget(monkeypatch)
    with pytest.raises(ValueError, match="`exclude_from_weight_decay`, saved before.*<lambda>"):
        keras.models.load_model(tmp_path / "model.keras")
    keras.models.load_model(tmp_path / "model.keras", compile=False)


@pytest.mark.parametrize("built", ["saved before it is built", "saved once it is built"])
def test_a_variable_and_what_python_cannot_refer_to_weakly_are_saved_by_paths(built):
    variables = steps.make_variables(steps.weights_and_gradients()[0])
    item = variables[2] if built == "saved before it is built" else operator.attrgetter("trainable")
    optimizer = lamb_tf.LAMB(exclude_from_weight_decay=[item])
    if built == "saved once it is built":
        optimizer.build(variables)
    config = optimizer.get_config()
    again = lamb_tf.LAMB.from_config(config)
    again.build(steps.make_variables(steps.weights_and_gradients()[0]))
    optimizer.build(variables)
    assert steps.summary(again) == steps.summary(optimizer)
    assert not {id(v) for v in variables} & {id(v) for v in optimizer.variables}  # no state of it


# Afterwards.


@pytest.mark.parametrize("kind", EXCLUSIONS)
def test_a_built_optimizer_is_saved_in_terms_of_json_and_needs_no_predicate(kind, monkeypatch):
    model = small_model([EXCLUSIONS[kind]])
    build(model)
    config = json.loads(json.dumps(model.optimizer.get_config()))
    forget(monkeypatch)
    again = small_model(None)
    again.compile(lamb_tf.LAMB.from_config(config), loss="mse")
    assert not_decayed(again) == ["bias"]
    assert again.optimizer.get_config()["exclude_from_weight_decay"]


def test_a_clone_for_another_model_asks_the_predicate_again():
    model = small_model([lambda v: is_bias(v)])
    build(model)
    config = model.optimizer.get_config()
    assert config == model.optimizer.get_config()
    optimizer = lamb_tf.LAMB.from_config(config)
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


# Biases and norms, as the classes of their layers have them, and not their paths.

TEXT = {"vocabulary_size": 11, "num_layers": 1, "hidden_dim": 8, "intermediate_dim": 8}
HEADS = {**TEXT, "num_heads": 2}
GROUPED = {**TEXT, "num_query_heads": 2, "num_key_value_heads": 2}
IMAGE = {"image_shape": (28, 28, 3), "patch_size": 14}
PATCHES = {**IMAGE, "num_layers": 1, "num_heads": 2, "hidden_dim": 8}
ELECTRA = {name: value for name, value in HEADS.items() if name != "vocabulary_size"}
SWIN = {"image_shape": (32, 32, 3), "embed_dim": 8}
BACKBONES = {
    "Albert": {**HEADS, "embedding_dim": 8},
    "Bart": HEADS,
    "Bert": HEADS,
    "Bloom": HEADS,
    "DebertaV3": {**HEADS, "bucket_size": 4},
    "DeiT": {**PATCHES, "intermediate_dim": 8},
    "DINOV2": {**PATCHES, "intermediate_dim": 8, "position_embedding_shape": (28, 28, 3)},
    "DenseNet": {"stackwise_num_repeats": [1, 1], "growth_rate": 4},
    "Electra": {**ELECTRA, "vocab_size": 11, "embedding_dim": 8},
    "FNet": TEXT,
    "Gemma3": {**GROUPED, "head_dim": 4, "image_size": 16},
    "GPT2": HEADS,
    "GptOss": {**GROUPED, "head_dim": 4, "num_experts": 2},
    "Llama": GROUPED,
    "Qwen": GROUPED,
    "RoformerV2": {**HEADS, "head_size": 4, "use_bias": True},
    "RWKV7": {**TEXT, "head_size": 4, "hidden_size": 8},
    "SwinTransformer": {**SWIN, "depths": [1], "num_heads": [2], "window_size": 4},
    "T5": HEADS,
    "ViT": {**PATCHES, "mlp_dim": 8},
    "Whisper": HEADS,
    "XLNet": HEADS,
}
BACKBONES["RWKV7"].pop("hidden_dim")
APPLICATIONS = {"InceptionV3": 75, "Xception": 71} | dict.fromkeys(
    (
        "ConvNeXtTiny",
        "EfficientNetB0",
        "EfficientNetV2B0",
        "MobileNet",
        "MobileNetV3Small",
        "ResNet50V2",
        "VGG16",
    ),
    32,
)
NORMS = (
    keras.layers.BatchNormalization,
    keras.layers.GroupNormalization,
    keras.layers.LayerNormalization,
)


def owned(model):
    """{id: (variable, its layer, the attribute of the layer that holds it)} of what is trained."""
    found = {}
    for layer in model._flatten_layers():
        attributes = {id(value): name for name, value in vars(layer).items()}
        for variable in filter(lambda v: v.trainable, layer._trainable_variables):
            found[id(variable)] = variable, layer, attributes.get(id(variable), "")
    return found


def is_bias_or_norm(variable, layer, attribute):
    """By the layer's class and attribute. T5's table of biases alone is an embedding to Keras."""
    if isinstance(layer, NORMS) or re.search("Norm|LayerScale", type(layer).__name__):
        return True
    return "bias" in attribute and variable.name != "embeddings"


def assert_that_biases_and_norms_are_found(model):
    variables = owned(model)
    assert set(map(id, model.trainable_variables)) == set(variables)
    expected = {v.path for v, *owner in variables.values() if is_bias_or_norm(v, *owner)}
    assert expected
    assert {v.path for v in model.trainable_variables if lamb_tf.biases_and_norms(v)} == expected


ONCE = pytest.mark.skipif(steps.BACKEND != "tensorflow", reason="paths are those of any backend")


@ONCE
@pytest.mark.parametrize("name", [*BACKBONES, *APPLICATIONS])
def test_biases_and_norms_are_found_in(name):
    if name in BACKBONES:
        make = getattr(peers.load("keras_hub").models, f"{name}Backbone")
        arguments = BACKBONES[name]
    else:
        make = getattr(keras.applications, name)
        arguments = {"weights": None, "classes": 3, "input_shape": (APPLICATIONS[name],) * 2 + (3,)}
    with keras.StatelessScope(), warnings.catch_warnings():  # no values; a mask that is ignored
        warnings.simplefilter("ignore")
        assert_that_biases_and_norms_are_found(make(**arguments))


def test_biases_and_norms_of_keras_layers_are_found_whatever_their_names():
    inputs = keras.Input((4, 6))
    layers = [
        keras.layers.Bidirectional(keras.layers.LSTM(3)),
        keras.layers.GRU(3),
        keras.layers.SeparableConv1D(3, 2),
        keras.layers.EinsumDense("abc,cd->abd", (None, 3), bias_axes="d"),
        keras.layers.SpectralNormalization(keras.layers.Dense(3)),
        keras.layers.PReLU(),
        keras.layers.BatchNormalization(name="first"),
        keras.layers.GroupNormalization(2, name="second"),
        keras.layers.LayerNormalization(axis=[1, 2], name="third"),
    ]
    if hasattr(keras.layers, "RMSNormalization"):  # not in the oldest Keras
        layers.append(keras.layers.RMSNormalization(axis=[1, 2], name="fourth"))
    outputs = [layer(inputs) for layer in layers]
    outputs.append(keras.layers.MultiHeadAttention(2, 3)(inputs, inputs))
    assert_that_biases_and_norms_are_found(keras.Model(inputs, outputs))


BY_PATH = {  # path: (shape, whether it is excluded)
    "bert/encoder/layer_0/attention/output/LayerNorm/gamma": ((4,), True),
    "cls/predictions/output_bias": ((4,), True),
    "attention/query/bias": ((2, 4), True),
    "gamma": ((4,), True),
    "of_any_name/scale": ((2, 4), True),
    "ln_f/weight": ((4,), True),
    "bn2a_branch2a/offset": ((4,), True),
    "vision/logit_scale": ((), False),
    "scale": ((), False),
    "gan_attention/gamma": ((), False),
    "discriminator/bias": ((), True),
    "normal_conv/strength": ((4,), False),
    "norm_mlp/dense/kernel": ((4, 4), False),
    "layer_norm_lstm/kernel": ((4, 4), False),
    "alibi/as_bn/kernel": ((4, 4), False),
    "embeddings/class_token": ((1, 1, 4), False),
    "learnable/k_k": ((4,), False),
    "unbiased/kernel": ((4, 4), False),
    "debiasing/kernel_unbiased": ((4,), False),
}


@pytest.mark.parametrize("path", BY_PATH)
def test_biases_and_norms_go_by_path_and_shape(path):
    shape, expected = BY_PATH[path]
    variable = types.SimpleNamespace(path=path, shape=shape)
    assert lamb_tf.biases_and_norms(variable) == expected


def with_norms():
    """Layers whose names no list expects."""
    return keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(4, name="first"),
            keras.layers.LayerNormalization(name="ln_1"),
            keras.layers.Dense(2, use_bias=False, name="last"),
        ]
    )


NORMS_DECAYED = r"leaves the scales of normalization layers decayed: .*ln_1/gamma.*biases_and_norms"


@pytest.mark.parametrize("make", [lamb_tf.LAMB, lamb_tf.LARS, lamb_tf.OrScale])
def test_one_line_warns_of_norms_that_a_list_leaves_decayed_unless_it_is_restored(make):
    optimizer = make(weight_decay=0.1, exclude_from_weight_decay=["bias"])
    with pytest.warns(UserWarning, match=NORMS_DECAYED) as caught:
        optimizer.build(with_norms().trainable_variables)
    (text,) = [str(w.message) for w in caught]
    assert "\n" not in text
    make.from_config(optimizer.get_config()).build(with_norms().trainable_variables)


def test_the_warning_of_norms_names_three_and_counts_the_rest():
    layers = [keras.layers.BatchNormalization(name=f"bn_{i}") for i in range(5)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    optimizer = lamb_tf.LAMB(weight_decay=0.1, exclude_from_weight_decay=["beta"])
    with pytest.warns(UserWarning, match="bn_0/gamma, .*bn_1/gamma, .*bn_2/gamma and 2 more. To"):
        optimizer.build(model.trainable_variables)


@pytest.mark.parametrize(
    ("weight_decay", "exclusions"),
    [
        (0.1, None),
        (0.1, []),
        (0.0, ["bias"]),
        (0.1, ["bias", "ln_"]),
        (0.1, lambda v: len(v.shape) == 1),
        (0.1, lamb_tf.biases_and_norms),
        (0.1, ["kernel", lamb_tf.biases_and_norms]),
    ],
)
def test_nothing_warns_of_norms_where_no_list_leaves_them_decayed(weight_decay, exclusions):
    optimizer = lamb_tf.LAMB(weight_decay=weight_decay, exclude_from_weight_decay=exclusions)
    optimizer.build(with_norms().trainable_variables)  # warnings are errors here


def test_biases_and_norms_may_be_absent():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, use_bias=False)])
    rules = [(lamb_tf.biases_and_norms, 2.0)]
    arguments = dict.fromkeys(
        ("exclude_from_weight_decay", "exclude_from_layer_adaptation"), lamb_tf.biases_and_norms
    )
    lamb_tf.LAMB(**arguments, learning_rate_multipliers=rules).build(model.trainable_variables)


def test_biases_and_norms_are_not_adapted_either():
    optimizer = lamb_tf.LAMB(
        exclude_from_weight_decay=[], exclude_from_layer_adaptation=lamb_tf.biases_and_norms
    )
    optimizer.build(with_norms().trainable_variables)
    rows = steps.summary(optimizer).items()
    assert all((adapted == "yes") == path.endswith("kernel") for path, (_, adapted) in rows)
