"""The kinds of inputs that `fuzzing` damages, and what reads each.

A kind is a function of a folder. It returns a function of a random generator, which writes a
damaged input and reads it, and the errors that may refuse it.
"""

import io
import json
import shutil
import struct
import warnings
import zipfile
import zlib
from pathlib import Path

ERRORS = (ValueError, OSError)
NUMBERS = [0, -1, 1, 2, 255, 2**15, 2**31 - 1, 2**31, 2**32 + 5, 2**53, 2**63 - 1, 2**64, 10**30]
VALUES = [*NUMBERS, 1.5, -0.0, 1e308, float("inf"), float("nan"), "", "16", "../x", "/etc/passwd"]
VALUES += [None, True, False, [], {}, [[]], {"": None}, "a" * 5000, "\x00", "\x1b[2J\n", "é\ud800"]
LENGTH, PREDICTIONS, TOKENS = 16, 3, 40


# Damage


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


# Records


def records(folder: Path):
    """Files of static records: their bytes, and records with right checksums around damage."""
    from official_bert.data.instances import Instance
    from official_bert.data.records import StaticRecord, frame

    good = [
        StaticRecord(LENGTH, PREDICTIONS, TOKENS)(
            Instance([2, *range(5, 5 + n), 3], n, [1, 2], [7, 8], bool(n % 2))
        )
        for n in range(3, 9)
    ]
    path = folder / "a.tfrecord"

    def case(rng, damage=True):
        parts = list(good)
        if damage and rng.random() < 0.6:  # as one writes who knows the checksums
            number = rng.randrange(len(parts))
            parts[number] = frame(damaged(parts[number][12:-4], rng))
            damage = rng.random() < 0.1
        content = b"".join(parts)
        content = damaged(content, rng) if damage else content
        path.write_bytes(_packed(content, rng) if rng.random() < 0.1 else content)
        _read_records(path)

    return case, ERRORS


def _packed(content, rng):
    import gzip

    packed = gzip.compress(content, mtime=0)
    return damaged(packed, rng) if rng.random() < 0.5 else packed


def _read_records(path):
    from official_bert.data.input_pipeline import Batches

    batches = Batches([str(path)], 4, LENGTH, PREDICTIONS, vocab_size=TOKENS, shuffle=False)
    for step in range(min(batches.num_batches, 3)):
        batches[step]


def built_records(folder: Path):
    """Records with a manifest, for dynamic masking, plain and compressed: both files damaged."""
    from official_bert.create_pretraining_data import create_pretraining_data
    from official_bert.data.instances import Settings
    from official_bert.data.records import DynamicRecord

    _write_vocabulary(folder / "vocab.txt")
    (folder / "text").write_text("the cat sat .\na mat sat on the cat .\n\nun cat .\non a mat .\n")
    made = {}
    for gzip in False, True:
        name = "p.tfrecord.gz" if gzip else "p.tfrecord"
        create_pretraining_data(
            str(folder / "text"), str(folder / name), str(folder / "vocab.txt"),
            Settings(max_seq_length=LENGTH, max_predictions_per_seq=PREDICTIONS),
            dynamic_masking=True,
            gzip_compress=gzip, num_workers=1,
        )  # fmt: skip
        manifest = next(folder.glob("p*.manifest.json"))
        made[name] = json.loads(manifest.read_bytes()), (folder / name).read_bytes()
        for file in (manifest, folder / name):
            file.unlink()
    plain = made["p.tfrecord"]

    def forged(rng):
        """One record of chosen numbers, with a manifest that fits."""
        ids = [rng.choice([0, 5, 6, 39, 40, 10**6]) for _ in range(rng.randrange(0, 20))]
        lengths = [rng.choice([0, 1, 3, 5, 1000, 2**40]) for _ in range(rng.randrange(0, 4))]
        content = DynamicRecord(10**6 + 1)(ids, lengths, rng.choice([0, 1, 2**62]))
        contents = json.loads(json.dumps(plain[0]))
        entry = contents["shards"][0]
        entry |= {"records": 1, "bytes": len(content), "block_offsets": [0]}
        return contents, content

    def case(rng, damage=True):
        name = rng.choice([*made])
        contents, content = made[name]
        turn = rng.random() if damage else 1.0
        if turn < 0.2:
            name = "p.tfrecord"
            contents, content = forged(rng)
        elif turn < 0.5:
            content = damaged(content, rng)
            if rng.random() < 0.9:
                contents = json.loads(json.dumps(contents))
                contents["shards"][0]["bytes"] = len(content)
        elif turn < 1.0:
            contents = changed(contents, rng)
        (folder / name).write_bytes(content)
        (folder / "p.manifest.json").write_bytes(
            as_text(contents, rng) if damage else json.dumps(contents).encode()
        )
        try:
            _read_records(folder / name)
        finally:
            (folder / name).unlink()

    return case, ERRORS


def _write_vocabulary(path):
    from bert_checkpoints import write_vocabulary

    write_vocabulary(path.parent)
    words = path.read_text().split("\n")[:-1]
    words += [f"[unused{n}]" for n in range(TOKENS - len(words))]
    path.write_text("\n".join(words) + "\n")


# Checkpoints


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


# Small files


def configurations(folder: Path):
    """`bert_config.json` and Hugging Face's `config.json` and `tokenizer_config.json`."""
    from bert_checkpoints import CONFIG

    from official_bert.conversion import sources, tokenizer_files
    from official_bert.model.config import BertConfig

    values = json.loads(CONFIG.to_json())
    theirs = values | {"model_type": "bert", "architectures": ["BertForPreTraining"]}
    settings = {"do_lower_case": True, "tokenizer_class": "BertTokenizer", "strip_accents": None}
    readers = [
        ("bert_config.json", values, BertConfig.from_json_file),
        ("config.json", theirs, sources.read_config),
        ("tokenizer_config.json", settings, lambda path: tokenizer_files.do_lower_case(folder)),
    ]

    def case(rng, damage=True):
        name, value, read = rng.choice(readers)
        content = json.dumps(value).encode()
        (folder / name).write_bytes(as_text(changed(value, rng), rng) if damage else content)
        read(folder / name)

    return case, ERRORS


def vocabularies(folder: Path):
    """`vocab.txt`, and what is tokenized with it."""
    from official_bert.data import tokenization

    path = folder / "vocab.txt"
    _write_vocabulary(path)
    good = path.read_bytes()

    def case(rng, damage=True):
        path.write_bytes(damaged(good, rng) if damage else good)
        tokenization.read_vocabulary(str(path))
        tokenizer = tokenization.load(str(path), rng.random() < 0.5)
        tokenization.SentenceEncoder(tokenizer)(["The cat sat on a mat, unaffable.", "é 中", ""])

    return case, ERRORS


def runs(folder: Path):
    """`run.json`, `labels.json` and the manifest of a run's checkpoint."""
    import numpy as np
    from bert_checkpoints import CONFIG

    from official_bert.tasks import labels
    from official_bert.training import checkpoints, model_directory

    stage = {"steps": 10, "warmup_steps": 1, "learning_rate": 0.1}
    change = {"resumed_from": "ctl_step_4.ckpt-1", "instead_of": "ctl_step_8.ckpt-2"}
    run = {"stages": [stage, stage], "seed": 1, "optimizer": {"type": "lamb"}}
    run |= {"changes": [change | {"differences": ["a"]}]}
    prefix = str(folder / "ctl_step_4.ckpt-1")
    checkpoints.write_bundle(prefix, {"a": np.ones(3, "float32")})
    state = {"loop": {}, "seconds": 1.0}
    digests = {part: checkpoints._digest(prefix + part) for part in checkpoints._PARTS}
    manifest = {"state": state, "sha256": digests | {"state": checkpoints._state_digest(state)}}
    names = {"classes": ["a", "b"]}, {"number": [0.0, 5.0]}

    def case(rng, damage=True):
        which = rng.choice(["run", "manifest", "labels"])
        some = {"run": run, "manifest": manifest, "labels": rng.choice(names)}
        text = {name: json.dumps(value).encode() for name, value in some.items()}
        if damage:
            text[which] = as_text(changed(some[which], rng), rng)
        (folder / "run.json").write_bytes(text["run"])
        Path(f"{prefix}.json").write_bytes(text["manifest"])
        (folder / "labels.json").write_bytes(text["labels"])
        labels.load(str(folder / "labels.json"))
        held = model_directory.describes(folder)
        model_directory.check(folder, CONFIG, run)
        claim = model_directory.Claim({}, tuple(held.get("changes", ())))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            checkpoints.CheckpointStore(folder, abandoned=claim.abandoned()).latest()

    return case, ERRORS


# Flags


def flag_values(folder: Path):
    """Command lines of the commands that train: all that is checked before the first file."""
    from absl import flags

    from official_bert import classifier_flags, pretraining_flags, squad_flags
    from official_bert.run_pretraining import run_from_flags

    (folder / "config.json").write_text(json.dumps({"vocab_size": 40}))
    texts = ["", "x", "-1", "0", "1", "1.5", "1e400", "nan", "inf", "2147483648", "9" * 400, "a,b"]
    texts += [
        "lamb",
        "true",
        "tpu",
        "budget(5)",
        "demo",
        "/dev/null:f",
        "\x00",
        "é",
        "--",
        "=",
        ",",
    ]
    kinds = {
        pretraining_flags: ["--bert_config_file=config.json", "--input_files=a", "--model_dir=b"],
        squad_flags: ["--do_train", "--train_file=a", "--output_dir=b", "--vocab_file=c"],
        classifier_flags: ["--do_train", "--train_file=a", "--output_dir=b", "--vocab_file=c"],
    }

    def case(rng, damage=True):
        module = rng.choice([*kinds])
        values = flags.FlagValues()
        module.define_flags(values)
        given = [text.replace("config.json", f"{folder}/config.json") for text in kinds[module]]
        for _ in range(rng.randrange(1, 6) if damage else 0):
            name = rng.choice([*values])
            given.append(f"--{name}={rng.choice(texts)}" if rng.random() < 0.9 else f"--{name}")
        rng.shuffle(given)
        values(["command", *given])
        module.check(values)
        if module is pretraining_flags:
            run_from_flags(values)

    return case, (*ERRORS, flags.Error)


KINDS = {
    "records": records,
    "records and manifests": built_records,
    "safetensors": safetensors,
    "TensorFlow checkpoints": bundles,
    ".keras files": keras_files,
    "configurations": configurations,
    "vocabularies": vocabularies,
    "run.json and labels": runs,
    "flags": flag_values,
}


def bomb(size: int) -> bytes:
    """A raw DEFLATE stream of so many zeros."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(bytes(size)) + packer.flush()
