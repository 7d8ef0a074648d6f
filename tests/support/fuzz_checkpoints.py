"""Damage to bytes and to JSON for `fuzzing`, and checkpoints of three forms; see `fuzz_inputs`."""

import io
import json
import shutil
import struct
import zipfile
from pathlib import Path

import bundle_tables

ERRORS = (ValueError, OSError)
NUMBERS = [0, -1, 1, 2, 255, 2**15, 2**31 - 1, 2**31, 2**32 + 5, 2**53, 2**63 - 1, 2**64, 10**30]
VALUES = [*NUMBERS, 1.5, -0.0, 1e308, float("inf"), float("nan"), "", "16", "../x", "/etc/passwd"]
VALUES += [None, True, False, [], {}, [[]], {"": None}, "a" * 5000, "\x00", "\x1b[2J\n", "é\ud800"]


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


# Checkpoints


def _opened(folder):
    from official_bert.checkpoints import names, sources

    source = sources.open_checkpoint(folder)
    source.check(names.PARTS)
    for tensor in source.weights.values():
        tensor.read()


def _read_without_tensorflow(folder):
    from official_bert.training import checkpoints

    checkpoints.read_tensors(folder / "bert_model.ckpt")


def safetensors(folder: Path):
    """Hugging Face's folders: the weights, their header, an index, the configuration."""
    from bert_checkpoints import CONFIG, make_hugging_face

    make_hugging_face(folder / "good")
    model = (folder / "good/model.safetensors").read_bytes()
    size = int.from_bytes(model[:8], "little")
    header, values = json.loads(model[8 : 8 + size]), json.loads(CONFIG.to_json())
    values |= {"model_type": "bert", "hidden_act": "gelu_new"}
    some = folder / "some"
    some.mkdir()
    shutil.copy(folder / "good/vocab.txt", some)

    def case(rng, damage=True):
        turn = rng.random() if damage else 1.0
        index = some / "model.safetensors.index.json"
        content, config = model, json.dumps(values).encode()
        if turn < 0.4:
            text = as_text(changed(header, rng), rng)
            length = len(text) if rng.random() < 0.9 else rng.choice(NUMBERS) % 2**64
            content = struct.pack("<Q", length) + text + model[8 + size :]
        elif turn < 0.7:
            content = damaged(model, rng)
        elif turn < 0.9:
            config = as_text(changed(values, rng), rng)
        elif turn < 1.0:
            held = {name: "a.safetensors" for name in header if name != "__metadata__"}
            index.write_bytes(as_text({"weight_map": changed(held, rng)}, rng))
        (some / "config.json").write_bytes(config)
        name = "a.safetensors" if index.exists() else "model.safetensors"
        (some / name).write_bytes(content)
        try:
            _opened(some)
        finally:
            index.unlink(missing_ok=True)
            (some / name).unlink()

    return case, ERRORS


def bundles(folder: Path):
    """TensorFlow's checkpoints: both files' bytes, and indices with right checksums."""
    from bert_checkpoints import make_source

    make_source(folder / "in")
    files = {
        file: file.read_bytes()
        for file in (folder / "in").glob("bert_model.ckpt*")
        if file.suffix == ".index" or ".data-" in file.name
    }
    index = next(file for file in files if file.suffix == ".index")

    def case(rng, damage=True):
        file = rng.choice([*files])
        content = files[file]
        if damage:
            file = index if rng.random() < 0.7 else file
            content = _damaged_bundle(files[file], file == index, rng)
        file.write_bytes(content)
        read = rng.choice([_opened, _read_without_tensorflow])
        try:
            read(folder / "in")
        finally:
            file.write_bytes(files[file])

    return case, ERRORS


def _damaged_bundle(content, is_index, rng):
    """Bytes that anyone may damage, and entries that only one who knows the checksums can."""
    turn = rng.random() if is_index else 1.0
    if turn < 0.2:
        return _damaged_block(content, rng)
    return _forged_table(content, rng) if turn < 0.7 else damaged(content, rng)


def _damaged_block(content, rng):
    """The bytes of the first block damaged, with the checksum of what they then are."""
    from lamb_tf import bundle_index
    from official_bert.data.records import masked_crc

    footer = content[-48:]
    meta, _ = bundle_index._handle(footer, 0)
    end = meta[0] - 5  # the data's only block lies before that of names of further blocks
    block = damaged(content[:end], rng)[:end].ljust(end, b"\0")
    crc = masked_crc(block + b"\0").to_bytes(4, "little")
    return block + b"\0" + crc + content[end + 5 :]


def _forged_table(content, rng):
    """An index with right checksums, of which some entries are changed: their bytes or fields."""
    from lamb_tf import bundle_index

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
    from tensorflow.core.protobuf import tensor_bundle_pb2 as messages

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


def keras_files(folder: Path):
    """`.keras` files: the archive, its configuration, its HDF5 file with the right checksum."""
    from bert_checkpoints import make_source

    from official_bert import convert_checkpoint

    make_source(folder / "in")
    convert_checkpoint.convert(folder / "in", folder / "some", "keras")
    path = folder / "some/model.keras"
    good = path.read_bytes()
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}

    def case(rng, damage=True):
        content = good
        if damage and rng.random() < 0.3:
            content = damaged(good, rng)
        elif damage:
            some = dict(parts)
            if rng.random() < 0.4:
                some["config.json"] = as_text(changed(json.loads(some["config.json"]), rng), rng)
            else:
                some["model.weights.h5"] = damaged(some["model.weights.h5"], rng)
            content = _archive(some)
        path.write_bytes(content)
        _opened(folder / "some")

    return case, ERRORS


def _archive(parts):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return file.getvalue()
