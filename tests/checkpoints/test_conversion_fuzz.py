"""Damaged and hostile checkpoints of every format: a one-line error, or a whole conversion."""

import json
import random
import shutil
import zipfile

import h5py
import numpy as np
import pytest
import tensorflow as tf
from bert_checkpoints import (
    CONFIG,
    assert_same_bytes,
    keras_weights,
    make_hugging_face,
    make_source,
    random_tensors,
    weights_of,
    write_archive,
    write_objects,
)
from fuzz_checkpoints import damaged

from official_bert.checkpoints import names, safetensors_files
from official_bert.convert_checkpoint import convert

FOLDERS = {"hugging_face": 400, "tf1": 200, "tf_models": 200, "keras": 200}
ROWS = {row.official: row for row in names.rows(CONFIG)}
HOSTILE = ["../x", "/etc/passwd", ".", "bert/../../x", "a" * 9000, "\x00", "é\n\n"]
TEXTS = [b"", b"[]", b"null", b'{"a":' * 5000, b"\xff\xfe", b'{"vocab_size": 1e9}']


@pytest.mark.slow
@pytest.mark.parametrize("kind", FOLDERS)
def test_a_thousand_damaged_folders_end_in_one_line_and_write_nothing(tmp_path, kind):
    MAKERS[kind](tmp_path / "good/in")
    good = weights_of(tmp_path / "good/in")
    said, written = [], []
    for seed in range(FOLDERS[kind]):
        folder, rng = tmp_path / f"{seed}", random.Random(seed)
        shutil.copytree(tmp_path / "good", folder)
        change = rng.choice(CHANGES[kind])
        change(folder / "in", rng)
        try:
            convert(folder / "in", folder / "out", "huggingface")
        except (ValueError, OSError) as error:
            said.append(str(error))
            written += [p for p in folder.iterdir() if p.name != "in"]
        else:  # of safetensors, a flipped bit among the weights cannot be seen
            assert len(safetensors_files.read(folder / "out/model.safetensors")) == len(ROWS)
            if kind != "hugging_face":
                assert_same_bytes(weights_of(folder / "out"), good)
        shutil.rmtree(folder)
    assert not written
    assert len(said) > FOLDERS[kind] / 2
    assert not [text for text in said if "\n" in text or len(text) > 2000]


# Whole folders


def make_hugging_face_folder(folder):
    make_hugging_face(folder)
    config = {"model_type": "bert", **json.loads(CONFIG.to_json()), "hidden_act": "gelu_new"}
    (folder / "bert_config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config))


def make_tf_models(folder):
    make_source(folder)
    for file in folder.glob("bert_model.ckpt*"):
        file.unlink()
    write_objects(folder / "bert_model.ckpt", random_tensors(CONFIG))


def make_keras(folder):
    make_source(folder.with_name("tf1"))
    convert(folder.with_name("tf1"), folder, "keras")
    shutil.rmtree(folder.with_name("tf1"))


MAKERS = {
    "hugging_face": make_hugging_face_folder,
    "tf1": make_source,
    "tf_models": make_tf_models,
    "keras": make_keras,
}


# Damages


def damage_a_file(folder, rng):
    file = rng.choice(sorted(folder.iterdir()))
    content = file.read_bytes()
    kind = rng.choice(["damage", "damage", "damage", "swap", "replace", "remove", "grow", "repeat"])
    if kind == "damage":
        head = 8 + int.from_bytes(content[:8], "little")  # what follows could not be seen
        end = head if file.suffix == ".safetensors" else len(content)
        content = damaged(content[:end], rng) + content[end:]
    elif kind == "swap":
        old, new = rng.choice([(b"bert", b"../x"), (b"F32", b"F16"), (b"[", b"{"), (b"1", b"9")])
        content = content.replace(old, new)
    elif kind == "replace":
        content = rng.choice(TEXTS)
    elif kind == "grow":
        content += bytes(rng.randrange(1, 99))
    elif kind == "repeat":
        content *= 2
    file.unlink()
    if kind != "remove":
        file.write_bytes(content)


def name_hostile_shards(folder, rng):
    name = rng.choice(["../x.safetensors", "/etc/passwd", "", ".", "in", "\x00", 3, None, ["a"]])
    index = {"weight_map": {"bert.embeddings.word_embeddings.weight": name}}
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def change_configuration(folder, rng):
    """Another shape than the weights have; heads and activations cannot be seen in those."""
    file = next(f for name in ("bert_config", "config") if (f := folder / f"{name}.json").exists())
    sizes = "vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size"
    name = rng.choice([*sizes, "max_position_embeddings", "type_vocab_size"])
    value = rng.choice([0, -1, 1, 3, 4, 44, 10**9, 10**400, 1.5, "16", None, [16], True])
    file.write_text(json.dumps(json.loads(CONFIG.to_json()) | {name: value}))


def change_variables(arrays, rng):
    name, other = rng.sample(sorted(ROWS), 2)
    kind = rng.choice(["missing", "shape", "type", "text", "hostile", "renamed"])
    array = arrays[name]
    if kind == "missing":
        del arrays[name]
    elif kind == "shape":
        shapes = [(), (0,), (1, *array.shape), (*array.shape[:-1], array.shape[-1] + 1)]
        arrays[name] = np.zeros(rng.choice(shapes), np.float32)
    elif kind == "type":
        arrays[name] = array.astype(rng.choice(["i4", "?", "c8"]))
    elif kind == "text":
        arrays[name] = np.full(array.shape, b"../x", object)
    elif kind == "hostile":
        arrays[rng.choice(HOSTILE)] = array
    else:
        arrays[rng.choice([f"{other}_", f"{other}/adam_m", *HOSTILE])] = arrays.pop(name)


def change_bundle(folder, rng):
    arrays = random_tensors(CONFIG)
    change_variables(arrays, rng)
    tf.raw_ops.SaveV2(  # TensorFlow writes types that this project does not
        prefix=str(folder / "bert_model.ckpt"),
        tensor_names=list(arrays),
        shape_and_slices=[""] * len(arrays),
        tensors=[tf.convert_to_tensor(array) for array in arrays.values()],
    )


def change_objects(folder, rng):
    arrays = random_tensors(CONFIG)
    change_variables(arrays, rng)
    write_objects(folder / "bert_model.ckpt", arrays)


def change_hdf5(folder, rng):
    """Links out of the file, values in other files, missing and misshapen variables."""
    path = rng.choice(
        [
            "encoder/embeddings/vars/0",
            "encoder/layers/dense/vars/1",
            "encoder/encoder_layers/encoder_layer_1",
        ]
    )
    with keras_weights(folder / "model.keras") as file:
        held = file.pop(path)
        kind = rng.choice(["missing", "soft", "external", "outside", "shape", "text", "loop"])
        if kind == "soft":
            file[path] = h5py.SoftLink("/encoder/layers/dense/vars/0")
        elif kind == "external":
            file[path] = h5py.ExternalLink("../x.h5", "/a")
        elif kind == "outside" and isinstance(held, h5py.Dataset):
            outside = [("/etc/passwd", 0, h5py.h5f.UNLIMITED)]
            file.create_dataset(path, held.shape, held.dtype, external=outside)
        elif kind == "shape":
            file[path] = np.zeros((3, 5), np.float32)
        elif kind == "text":
            file[path] = "../x"
        elif kind == "loop":
            file[path] = file["/"]


def change_archive(folder, rng):
    with zipfile.ZipFile(folder / "model.keras") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice([*parts])
    content = parts.pop(name)
    kind = rng.choice(["without", "hostile", "compressed", "text", "class", "bomb"])
    if kind == "hostile":
        parts["../x"] = content
    elif kind == "compressed":
        parts[name] = content
    elif kind == "text":
        parts[name] = rng.choice(TEXTS)
    elif kind == "class":
        parts["config.json"] = b'{"module": "os", "class_name": "system", "config": {"config": {}}}'
    elif kind == "bomb":
        parts["config.json"] = b" " * 50_000_000
    packed = kind in ("compressed", "bomb")
    compression = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    write_archive(folder / "model.keras", parts, compression)


CHANGES = {
    "hugging_face": [damage_a_file] * 6 + [name_hostile_shards, change_configuration],
    "tf1": [damage_a_file, change_bundle, change_configuration],
    "tf_models": [damage_a_file, change_objects, change_configuration],
    "keras": [damage_a_file, change_hdf5, change_archive, change_configuration],
}
