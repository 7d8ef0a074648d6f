"""`.keras` files equal those of Keras, read and written without a model."""

import dataclasses
import json
import os
import subprocess
import sys
import zipfile

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from bert_checkpoints import (
    CONFIG,
    SHAPES,
    assert_same_bytes,
    keras_weights,
    make_hugging_face,
    make_source,
    random_batch,
    random_tensors,
    weights_of,
    write_hugging_face,
)

from official_bert.checkpoints import keras_files, sources
from official_bert.convert_checkpoint import convert
from official_bert.model.encoder import BertEncoder
from official_bert.model.fine_tuning import BertClassifier, BertQuestionAnswering
from official_bert.model.pretrainer import BertPretrainer
from official_bert.training import checkpoints


def model_of(arrays, config, dtype="float32"):
    model = BertPretrainer(config, seed=None, dtype=dtype)
    for variable in model.weights:
        variable.assign(arrays[variable.path])
    return model


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_written_is_what_keras_writes(tmp_path, shape):
    config = SHAPES[shape]
    arrays = make_source(tmp_path / "in", config)
    convert(tmp_path / "in", tmp_path / "out", "keras")
    model_of(arrays, config).save(tmp_path / "theirs.keras")
    ours, theirs = (contents(tmp_path / f) for f in ("out/model.keras", "theirs.keras"))
    assert ours == theirs
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "bert_config.json",
        "model.keras",
        "tokenizer_config.json",
        "vocab.txt",
    }


def make_fine_tuned(folder, model):
    """A checkpoint with random weights of a model, which gets them too."""
    make_source(folder)
    rng = np.random.default_rng(3)
    arrays = {v.path: rng.normal(0, 0.4, v.shape).astype("f4") for v in model.weights}
    for variable in model.weights:
        variable.assign(arrays[variable.path])
    checkpoints.write_bundle(folder / "bert_model.ckpt", arrays)
    return arrays


MODELS = {
    "classifier": lambda: BertClassifier(CONFIG, 3, seed=None),
    "number": lambda: BertClassifier(CONFIG, 1, seed=None),
    "answers": lambda: BertQuestionAnswering(CONFIG, seed=None),
    "encoder": lambda: BertEncoder(CONFIG, seed=None),
}


@pytest.mark.parametrize("kind", MODELS)
def test_every_model_of_ours_goes_there_and_back_and_is_what_keras_writes(tmp_path, kind):
    model = MODELS[kind]()
    arrays = make_fine_tuned(tmp_path / "in", model)
    if kind == "classifier":
        (tmp_path / "in/labels.json").write_text('{"classes": ["no", "maybe", "yes"]}')
    there = {"allow_missing_heads": kind == "encoder"}
    convert(tmp_path / "in", tmp_path / "out", "keras", **there)
    config = {"seed": None, "dtype": "float32"}
    model.from_config(model.get_config() | config).save(tmp_path / "theirs.keras")
    ours, theirs = (contents(tmp_path / f) for f in ("out/model.keras", "theirs.keras"))
    assert ours[0] == theirs[0]
    loaded = keras.models.load_model(tmp_path / "out/model.keras")
    assert type(loaded) is type(model)
    assert_same_bytes({v.path: v.numpy() for v in loaded.weights}, arrays)
    assert (tmp_path / "out/labels.json").exists() == (kind == "classifier")
    convert(tmp_path / "out", tmp_path / "back", "tf1", **there)
    assert_same_bytes(checkpoints.read_tensors(tmp_path / "back/bert_model.ckpt"), arrays)


def test_a_model_for_answers_without_a_pooler_has_one_that_is_0(tmp_path):
    arrays = make_fine_tuned(tmp_path / "in", MODELS["answers"]())
    convert(tmp_path / "in", tmp_path / "hf", "huggingface")
    convert(tmp_path / "hf", tmp_path / "keras", "keras")
    loaded = keras.models.load_model(tmp_path / "keras/model.keras")
    zeros = {n: np.zeros_like(a) for n, a in arrays.items() if "pooler" in n}
    assert_same_bytes({v.path: v.numpy() for v in loaded.weights}, arrays | zeros)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["official_bert", "keras", "lamb_tf, official_bert"])
def test_keras_loads_our_files_after_an_import_of_the_package_alone(tmp_path, first):
    MODELS["classifier"]().save(tmp_path / "model.keras")
    code = f"import {first}, official_bert, importlib.util; importlib.util.find_spec('keras');"
    code += f"import keras; print(keras.models.load_model({str(tmp_path / 'model.keras')!r}).name)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    assert done.stdout == b"bert_classifier\n", done.stderr


@pytest.mark.parametrize("kind", [*MODELS, "pretrained"])
def test_keras_exports_a_model_that_was_never_called(tmp_path, kind):
    model = MODELS[kind]() if kind in MODELS else BertPretrainer(CONFIG, seed=None)
    make_fine_tuned(tmp_path / "in", model)
    model.export(tmp_path / "out", verbose=False)
    served = tf.saved_model.load(tmp_path / "out")
    batch = {name: random_batch(CONFIG)[name] for name in model.input_names}
    for length in 20, 7:  # any
        batch |= {n: a[:, :length] for n, a in batch.items() if a.shape[1] == 20}
        found, wanted = served.serve(batch), model(batch)
        assert tf.nest.map_structure(np.shape, found) == tf.nest.map_structure(np.shape, wanted)
        for ours, theirs in zip(tf.nest.flatten(found), tf.nest.flatten(wanted), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("part", ["pooler", "seq_relationship"])
def test_a_model_for_keras_is_whole(tmp_path, part):
    arrays = {n: a for n, a in make_source(tmp_path / "in").items() if part not in n}
    checkpoints.write_bundle(tmp_path / "in/bert_model.ckpt", arrays)
    with pytest.raises(ValueError, match="must have .* for .*=keras; .* Use huggingface or tf1"):
        convert(tmp_path / "in", tmp_path / "out", "keras", allow_missing_heads=True)


def contents(file):
    """Configuration, and each group and variable of a `.keras` file by path."""
    with zipfile.ZipFile(file) as archive:
        config = json.loads(archive.read("config.json"))
        with h5py.File(archive.open("model.weights.h5")) as hdf5:
            held = {}
            hdf5.visititems(lambda path, item: held.update({path: described(item)}))
    return config, held


def described(item):
    values = item[()] if isinstance(item, h5py.Dataset) else np.zeros(())
    return dict(item.attrs), values.shape, values.dtype, values.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "bfloat16", "float16"])
def test_what_keras_wrote_is_read_in_any_type(tmp_path, dtype):
    make_source(tmp_path / "in")
    model = model_of(random_tensors(CONFIG), CONFIG, dtype)
    (tmp_path / "in/bert_model.ckpt.index").unlink()
    model.save(tmp_path / "in/model.keras")
    expected = {v.path: keras.ops.convert_to_numpy(v) for v in model.weights}
    assert_same_bytes(weights_of(tmp_path / "in"), expected)
    convert(tmp_path / "in", tmp_path / "hf", "huggingface")
    assert_same_bytes(weights_of(tmp_path / "hf"), expected)


@pytest.mark.parametrize("output_format", ["keras", "savedmodel"])
@pytest.mark.parametrize("dtype", ["<f2", "<f8"])
def test_other_types_of_weights_become_float32(tmp_path, dtype, output_format):
    make_hugging_face(tmp_path / "in")
    arrays = random_tensors(CONFIG, dtype=dtype)
    write_hugging_face(tmp_path / "in", arrays, CONFIG)
    (tmp_path / "in/vocab.txt").unlink()  # without it a SavedModel is made in a moment
    convert(tmp_path / "in", tmp_path / "out", output_format, allow_missing_vocabulary=True)
    expected = {name: array.astype(np.float32) for name, array in arrays.items()}
    if output_format == "keras":
        found = weights_of(tmp_path / "out")
    else:
        names = [v.path for v in BertPretrainer(CONFIG, seed=None).weights]
        served = tf.saved_model.load(tmp_path / "out").variables_of_model
        found = {name: variable.numpy() for name, variable in zip(names, served)}
    assert_same_bytes(found, expected)


def test_a_keras_file_alone_says_what_model_it_holds(tmp_path):
    config = dataclasses.replace(CONFIG, hidden_act="gelu_erf")
    model_of(random_tensors(config), config).save(tmp_path / "model.keras")
    assert sources.open_checkpoint(tmp_path / "model.keras").config == config
    (tmp_path / "bert_config.json").write_text(CONFIG.to_json())
    with pytest.raises(ValueError, match="hidden_act must be 'gelu_erf', with which the weights"):
        sources.open_checkpoint(tmp_path / "model.keras")


def test_another_model_of_keras_is_refused(tmp_path):
    inputs = keras.Input((3,))
    keras.Model(inputs, keras.layers.Dense(2)(inputs)).save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="must hold one of BertPretrainer, .*; got 'Functional'"):
        sources.open_checkpoint(tmp_path / "model.keras")


@pytest.mark.parametrize("kind", ["external", "virtual", "link"])
def test_values_in_other_files_are_never_read(tmp_path, kind):
    make_source(tmp_path / "in")
    convert(tmp_path / "in", tmp_path / "keras", "keras")
    (tmp_path / "secret").write_bytes(b"s" * 16 * 40 * 4)
    path, shape = "encoder/embeddings/vars/0", (40, 16)
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["a"] = np.ones(shape, np.float32)
    with keras_weights(tmp_path / "keras/model.keras") as hdf5:
        del hdf5[path]
        if kind == "external":
            outside = [(str(tmp_path / "secret"), 0, h5py.h5f.UNLIMITED)]
            hdf5.create_dataset(path, shape, "<f4", external=outside)
        elif kind == "virtual":
            layout = h5py.VirtualLayout(shape, "<f4")
            layout[:] = h5py.VirtualSource(str(tmp_path / "secret.h5"), "a", shape)
            hdf5.create_virtual_dataset(path, layout)
        else:
            hdf5[path] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "a")
    with pytest.raises(
        ValueError, match="values of .* are in another file|at least .* variables; got 45"
    ):
        convert(tmp_path / "keras", tmp_path / "out", "huggingface")


def test_a_file_of_many_layers_is_refused_before_they_are_made(tmp_path):
    model_of(random_tensors(CONFIG), CONFIG).save(tmp_path / "model.keras")
    many = dataclasses.replace(CONFIG, num_hidden_layers=10_000)
    with pytest.raises(ValueError, match="must hold at least 160,0"):
        keras_files.read(tmp_path / "model.keras", many)
