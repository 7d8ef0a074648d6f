"""Checkpoints of three forms for `fuzzing`, damaged; see `fuzz_inputs`."""

import io
import json
import shutil
import struct
import zipfile
from pathlib import Path

from fuzz_damage import NUMBERS, as_text, changed, damaged

ERRORS = (ValueError, OSError)


def _opened(folder):
    from official_bert.conversion import names, sources

    source = sources.open_checkpoint(folder)
    sources.check(source, names.PARTS)
    for tensor in source.weights.values():
        tensor.read()


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
            forge = file == index and rng.random() < 0.6
            content = _forged_table(files[file], rng) if forge else damaged(files[file], rng)
        file.write_bytes(content)
        try:
            _opened(folder / "in")
        finally:
            file.write_bytes(files[file])

    return case, ERRORS


def _forged_table(content, rng):
    """An index whose first block is damaged, with the checksum of what it then holds.

    The file is a table of blocks: each is followed by a byte, 0 for uncompressed, and the masked
    CRC of both.
    """
    from official_bert.data.records import masked_crc

    footer = content[-48:]
    at, numbers = 0, []
    while len(numbers) < 4:  # offset and size of two blocks, as varints
        number, shift = 0, 0
        while True:
            byte = footer[at]
            at += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        numbers.append(number)
    end = numbers[0] - 5  # the data's only block lies before that of names of further blocks
    block = bytearray(content[:end])
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(block))
        block[at] = rng.choice([block[at] ^ (1 << rng.randrange(8)), 0, 1, 127, 128, 255])
    trailer = content[end : end + 1]
    crc = masked_crc(bytes(block) + trailer).to_bytes(4, "little")
    return bytes(block) + trailer + crc + content[end + 5 :]


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
