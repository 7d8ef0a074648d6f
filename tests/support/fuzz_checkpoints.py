"""Damage to bytes and to JSON for `fuzzing`, and checkpoints of four forms; see `fuzz_inputs`."""

import contextlib
import json
import shutil
import struct
import zipfile
from pathlib import Path

import bundle_tables
import h5py
import numpy as np
import tensorflow as tf
from bert_checkpoints import (
    CONFIG,
    assert_same_bytes,
    keras_weights,
    make_hugging_face,
    make_source,
    random_tensors,
    read_archive,
    weights_of,
    write_archive,
    write_objects,
    write_shards,
)
from tensorflow.core.protobuf import tensor_bundle_pb2 as messages

from lamb_tf import bundle_index
from official_bert.convert_checkpoint import convert
from official_bert.system.wire_format import masked_crc
from official_bert.training import checkpoints

ERRORS = (ValueError, OSError)
NUMBERS = [0, -1, 1, 2, 255, 2**15, 2**31 - 1, 2**31, 2**32 + 5, 2**53, 2**63 - 1, 2**64, 10**30]
VALUES = [*NUMBERS, 1.5, -0.0, 1e308, float("inf"), float("nan"), "", "16", "../x", "/etc/passwd"]
VALUES += [None, True, False, [], {}, [[]], {"": None}, "a" * 5000, "\x00", "\x1b[2J\n", "é\ud800"]
HOSTILE = ["../x", "/etc/passwd", ".", "bert/../../x", "a" * 9000, "\x00", "é\n\n"]
TEXTS = [b"", b"[]", b"null", b'{"a":' * 5000, b"\xff\xfe", b'{"vocab_size": 1e9}']


def damaged(content: bytes, rng) -> bytes:
    """Bytes with one to three changes."""
    content = bytearray(content)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(content) + 1)
        kind = rng.choice(["flip", "cut", "number", "zeros", "insert", "repeat", "drop", "ones"])
        if kind == "flip" and at < len(content):
            content[at] ^= 1 << rng.randrange(8)
        elif kind == "cut":
            del content[at:]
        elif kind == "number":
            size = rng.choice([1, 2, 4, 8])
            number = rng.choice(NUMBERS) % 256**size
            content[at : at + size] = number.to_bytes(size, rng.choice(["little", "big"]))
        elif kind in ("zeros", "ones"):
            content[at : at + rng.randrange(1, 64)] = bytes([255 * (kind == "ones")]) * 8
        elif kind == "insert":
            content[at:at] = rng.randbytes(rng.randrange(1, 40))
        elif kind == "repeat":
            content[at:at] = content[at : at + rng.randrange(1, 200)]
        elif kind == "drop":
            del content[at : at + rng.randrange(1, 40)]
    return bytes(content)


def changed(value, rng):
    """A JSON value with one to three entries changed, removed, added or doubled."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.randrange(1, 4)):
        places = [*_places(value)]
        if not places:
            return rng.choice(VALUES)
        container, key = rng.choice(places)
        kind = rng.choice(["value", "value", "value", "remove", "other"])
        if kind == "remove":
            del container[key]
        else:
            same = container[rng.choice([*_keys(container)])]
            container[key] = same if kind == "other" else rng.choice(VALUES)
    return value


def _keys(container):
    return container if isinstance(container, dict) else range(len(container))


def _places(value):
    for key in _keys(value) if isinstance(value, dict | list) else ():
        yield value, key
        yield from _places(value[key])


def as_text(value, rng) -> bytes:
    """JSON, sometimes damaged as text, sometimes very deep."""
    text = json.dumps(value).encode()
    turn = rng.random()
    if turn < 0.15:
        return damaged(text, rng)
    if turn < 0.17:
        return b'{"a":' * 100_000
    if turn < 0.19:
        return b"[" * 100_000
    return text


# Checkpoints: each is converted whole, or refused in one line with nothing written


def _kind(make, changes, unseen=()):
    """A kind of folders with checkpoints, of which each gets one of `changes`.

    Args:
        unseen: Those of which damage to a weight cannot be noticed.
    """

    def kind(folder: Path):
        make(folder / "good")
        good = weights_of(folder / "good")
        some = folder / "case/in"

        def case(rng, damage=True):
            shutil.copytree(folder / "good", some)
            try:
                change = rng.choice(changes) if damage else None
                if change:
                    change(some, rng)
                _convert(some, good, change not in unseen)
            finally:
                shutil.rmtree(folder / "case")

        return case, ERRORS

    return kind


def _convert(folder, good, exact):
    if (folder / "bert_model.ckpt.index").exists():  # which has another reader, too
        with contextlib.suppress(*ERRORS):
            checkpoints.read_tensors(folder / "bert_model.ckpt")
    try:
        convert(folder, folder.with_name("out"), "huggingface")
    except ERRORS as error:
        said = str(error)
        assert "\n" not in said
        assert len(said) <= 2000
        assert [*folder.parent.iterdir()] == [folder]
        raise
    found = weights_of(folder.with_name("out"))
    assert found.keys() == good.keys()
    if exact:
        assert_same_bytes(found, good)


def _make_hugging_face(folder):
    make_hugging_face(folder)
    config = {"model_type": "bert", **json.loads(CONFIG.to_json()), "hidden_act": "gelu_new"}
    (folder / "bert_config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config))


def _make_tf_models(folder):
    arrays = make_source(folder)
    for file in folder.glob("bert_model.ckpt*"):
        file.unlink()
    write_objects(folder / "bert_model.ckpt", arrays)


def _make_keras(folder):
    make_source(folder.with_name("tf1"))
    convert(folder.with_name("tf1"), folder, "keras")


def _damage_a_file(folder, rng):
    file = rng.choice(sorted(folder.iterdir()))
    content = file.read_bytes()
    kind = rng.choice(["damage", "damage", "damage", "swap", "replace", "remove", "grow", "repeat"])
    if kind == "damage":
        content = damaged(content, rng)
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


def _change_shape(folder, rng):
    """Another shape than the weights have; heads and activations cannot be seen in those."""
    sizes = "vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size"
    name = rng.choice([*sizes, "max_position_embeddings", "type_vocab_size"])
    value = rng.choice([0, -1, 1, 3, 4, 44, 10**9, 10**400, 1.5, "16", None, [16], True])
    file = next(f for name in ("bert_config", "config") if (f := folder / f"{name}.json").exists())
    file.write_text(json.dumps(json.loads(CONFIG.to_json()) | {name: value}))


def _change_configuration(folder, rng):
    file = folder / "config.json"
    file.write_bytes(as_text(changed(json.loads(file.read_text()), rng), rng))


def _damage_header(folder, rng):
    file = folder / "model.safetensors"
    model = file.read_bytes()
    size = int.from_bytes(model[:8], "little")
    text = as_text(changed(json.loads(model[8 : 8 + size]), rng), rng)
    length = len(text) if rng.random() < 0.9 else rng.choice(NUMBERS) % 2**64
    file.write_bytes(struct.pack("<Q", length) + text + model[8 + size :])


def _damage_shards(folder, rng):
    """The index of weights in several files damaged, or with hostile names of files."""
    index = write_shards(folder, 1)
    held = json.loads(index.read_text())["weight_map"]
    if rng.random() < 0.5:
        names = ["../x.safetensors", "/etc/passwd", "", ".", "in", "\x00", 3, None, ["a"]]
        held |= {rng.choice([*held]): rng.choice(names)}
    else:
        held = changed(held, rng)
    index.write_bytes(as_text({"weight_map": held}, rng))


def _changed_variables(rng):
    arrays = random_tensors(CONFIG)
    name, other = rng.sample(sorted(arrays), 2)
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
    return arrays


def _change_bundle(folder, rng):
    arrays = _changed_variables(rng)
    tf.raw_ops.SaveV2(  # TensorFlow writes types that this project does not
        prefix=str(folder / "bert_model.ckpt"),
        tensor_names=list(arrays),
        shape_and_slices=[""] * len(arrays),
        tensors=[tf.convert_to_tensor(array) for array in arrays.values()],
    )


def _change_objects(folder, rng):
    write_objects(folder / "bert_model.ckpt", _changed_variables(rng))


def _change_hdf5(folder, rng):
    """Links out of the file, values in other files, missing and misshapen variables."""
    paths = ["embeddings/vars/0", "layers/dense/vars/1", "encoder_layers/encoder_layer_1"]
    path = f"encoder/{rng.choice(paths)}"
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


def _damage_in_archive(folder, rng):
    parts = read_archive(folder / "model.keras")
    if rng.random() < 0.4:
        parts["config.json"] = as_text(changed(json.loads(parts["config.json"]), rng), rng)
    else:
        parts["model.weights.h5"] = damaged(parts["model.weights.h5"], rng)
    write_archive(folder / "model.keras", parts)


def _change_archive(folder, rng):
    parts = read_archive(folder / "model.keras")
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


def _forge_index(folder, rng):
    """An index that only one can write who knows the checksums: damaged, or with other entries."""
    file = folder / "bert_model.ckpt.index"
    forge = rng.choice([_damaged_block, _forged_table, _forged_table])
    file.write_bytes(forge(file.read_bytes(), rng))


def _damaged_block(content, rng):
    """The bytes of the first block damaged, with the checksum of what they then are."""
    footer = content[-48:]
    meta, _ = bundle_index._handle(footer, 0)
    end = meta[0] - 5  # the data's only block lies before that of names of further blocks
    block = damaged(content[:end], rng)[:end].ljust(end, b"\0")
    crc = masked_crc(block + b"\0").to_bytes(4, "little")
    return block + b"\0" + crc + content[end + 5 :]


def _forged_table(content, rng):
    """An index with right checksums, of which some entries are changed: their bytes or fields."""
    entries = dict(bundle_index.table(content))
    for key in rng.sample([*entries], rng.randrange(1, 4)):
        value = entries.pop(key)
        turn = rng.random()
        if turn < 0.3:
            value = damaged(value, rng)
        elif turn < 0.9 and key:
            value = _forged_entry(value, rng)
        elif turn < 0.95:
            key = damaged(key, rng)
        entries[key] = value
    return bundle_tables.table(dict(sorted(entries.items()) if rng.random() < 0.9 else entries))


def _forged_entry(value, rng):
    """An entry of a tensor with one to three other fields."""
    entry = messages.BundleEntryProto.FromString(value)
    for _ in range(rng.randrange(1, 4)):
        field = rng.choice(["dtype", "shard_id", "offset", "size", "crc32c", "axis", "slice"])
        number = rng.choice([*NUMBERS, *range(30), 101, entry.size, 4 * entry.size, 2**40])
        if field == "axis":
            if entry.shape.dim and rng.random() < 0.7:
                rng.choice(entry.shape.dim).size = _signed(number, 64)
            else:
                entry.shape.dim.add(size=_signed(number, 64))
        elif field == "slice":
            entry.slices.add().extent.add(start=_signed(number, 64), length=1)
        elif field == "crc32c":
            entry.crc32c = number % 2**32
        else:
            bits = 64 if field in ("offset", "size") else 32
            setattr(entry, field, _signed(number, bits))
    return entry.SerializeToString()


def _signed(number, bits):
    return (number + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


KINDS = {
    "safetensors": _kind(
        _make_hugging_face,
        [
            *(_damage_a_file, _damage_a_file, _damage_header, _damage_shards),
            *(_change_shape, _change_configuration),
        ],
        unseen=[_damage_a_file, _damage_header],  # a safetensors file has no checksum
    ),
    "TensorFlow checkpoints": _kind(
        make_source, [_damage_a_file, _forge_index, _change_bundle, _change_shape]
    ),
    "tf-models checkpoints": _kind(
        _make_tf_models, [_damage_a_file, _change_objects, _change_shape]
    ),
    ".keras files": _kind(
        _make_keras,
        [_damage_a_file, _damage_in_archive, _change_hdf5, _change_archive, _change_shape],
        unseen=[_damage_in_archive],  # the archive's checksum is that of the damage
    ),
}
