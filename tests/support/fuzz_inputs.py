"""The kinds of inputs that `fuzzing` damages, and what reads each.

A kind is a function of a folder. It returns a function of a random generator, which writes a
damaged input and reads it, and the errors that may refuse it.
"""

import datetime
import gzip
import json
import sys
import warnings
from pathlib import Path

import fuzz_checkpoints
import numpy as np
from bert_checkpoints import CONFIG, write_vocabulary
from fuzz_checkpoints import ERRORS, as_text, changed, damaged

from official_bert import run_classifier, run_squad, run_tagger
from official_bert.commands import commands, pretraining_settings, refused
from official_bert.create_pretraining_data import create_pretraining_data
from official_bert.data import tokenization
from official_bert.data.input_pipeline import Batches
from official_bert.data.instances import Instance, Settings
from official_bert.data.records import DynamicRecord, StaticRecord, frame
from official_bert.data.tokenizer_settings import read as read_settings
from official_bert.model.config import BertConfig
from official_bert.reporting import contents, page
from official_bert.run_pretraining import run_from_flags
from official_bert.tasks import labels
from official_bert.training import checkpoints, model_directory

LENGTH, PREDICTIONS, TOKENS = 16, 3, 40


# Records


def records(folder: Path):
    """Files of static records: their bytes, and records with right checksums around damage."""
    instances = [
        Instance([2, *range(5, 5 + n), 3], n, [1, 2], [7, 8], bool(n % 2)) for n in range(3, 9)
    ]
    good = list(StaticRecord(LENGTH, PREDICTIONS)(instances))
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
    packed = gzip.compress(content, mtime=0)
    return damaged(packed, rng) if rng.random() < 0.5 else packed


def _read_records(path):
    batches = Batches([str(path)], 4, LENGTH, PREDICTIONS, vocab_size=TOKENS, shuffle=False)
    for step in range(min(batches.num_batches, 3)):
        batches[step]


def built_records(folder: Path):
    """Records with a manifest, for dynamic masking, plain and compressed: both files damaged."""
    _write_vocabulary(folder / "vocab.txt")
    (folder / "text").write_text("the cat sat .\na mat sat on the cat .\n\nun cat .\non a mat .\n")
    made = {}
    for name in "p.tfrecord", "p.tfrecord.gz":
        create_pretraining_data(
            str(folder / "text"), str(folder / name), str(folder / "vocab.txt"),
            Settings(max_seq_length=LENGTH, max_predictions_per_seq=PREDICTIONS),
            dynamic_masking=True,
            gzip_compress=name.endswith(".gz"), num_workers=1,
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
        (content,) = DynamicRecord(LENGTH)([(ids, lengths, rng.choice([0, 1, 2**62]))])
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
    write_vocabulary(path.parent)
    words = path.read_text().split("\n")[:-1]
    words += [f"[unused{n}]" for n in range(TOKENS - len(words))]
    path.write_text("\n".join(words) + "\n")


# Small files


def configurations(folder: Path):
    """`bert_config.json` and Hugging Face's `config.json` and `tokenizer_config.json`."""
    values = json.loads(CONFIG.to_json())
    theirs = values | {"model_type": "bert", "architectures": ["BertForPreTraining"]}
    settings = {"do_lower_case": True, "tokenizer_class": "BertTokenizer", "strip_accents": None}
    special = [f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")]
    tokenizer = {
        "added_tokens": [{"id": 0, "content": "[PAD]"}],
        "normalizer": {"type": "BertNormalizer", "lowercase": True, "strip_accents": None},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "BertPreTokenizer"}]},
        "model": {"type": "WordPiece", "vocab": {token: n for n, token in enumerate(special)}},
    }
    readers = [
        ("bert_config.json", values, BertConfig.from_json_file),
        ("config.json", theirs, BertConfig.from_json_file),
        ("tokenizer.json", tokenizer, lambda path: tokenization.casing(path, None)),
        ("tokenizer.json", tokenizer, lambda path: tokenization.read_vocabulary(str(path))),
        ("tokenizer_config.json", settings, lambda path: read_settings(folder / "vocab.txt")),
    ]

    def case(rng, damage=True):
        name, value, read = rng.choice(readers)
        content = json.dumps(value).encode()
        (folder / name).write_bytes(as_text(changed(value, rng), rng) if damage else content)
        read(folder / name)

    return case, ERRORS


def vocabularies(folder: Path):
    """`vocab.txt`, and what is tokenized with it."""
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
    stage = {"steps": 10, "warmup_steps": 1, "learning_rate": 0.1}
    change = {"resumed_from": "ctl_step_4.ckpt-1", "instead_of": "ctl_step_8.ckpt-2"}
    optimizer = {"type": "lamb", "layer_decay": 1.0, "freeze": []}
    own = {"stages": [stage, stage], "seed": 1, "optimizer": optimizer}
    run = own | {"changes": [change | {"differences": ["a"]}]}
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
        held = model_directory.read_run_json(folder)
        model_directory.check(folder, CONFIG, own)
        claim = model_directory.Claim({}, tuple(held.get("changes", ())))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            checkpoints.CheckpointStore(folder, abandoned=claim.abandoned()).latest()

    return case, ERRORS


def logs(folder: Path):
    """All files of a model directory that a report shows: values of other kinds, damaged text."""
    ratios = {"bert/encoder/layer_0/output/dense/kernel": 0.1, "cls/a": 1.0}
    line = {"kind": "train", "step": 10, "stage": 0, "loss": 8.0, "accuracy": 0.5}
    line |= {"learning_rate": 0.1, "gradient_norm": 1.0, "skipped_updates": 0, "loss_scale": 1.0}
    line |= {"trust_ratios": ratios, "timing": {"seconds": 1.0, "tokens_per_second": 5e3}}
    stage = {"steps": 20, "batch_size": 8, "warmup_steps": 1, "learning_rate": 0.1}
    change = {"resumed_from": "ctl_step_4.ckpt-1", "instead_of": "ctl_step_8.ckpt-2"}
    run = {"config": {"num_hidden_layers": 2, "hidden_size": 64}, "optimizer": {"type": "lamb"}}
    run |= {"stages": [stage, stage], "changes": [change | {"differences": ["a"]}]}
    summary = {"accuracy": {"mean": 0.5, "standard_deviation": 0.1, "median": 0.5, "best": 0.6}}
    runs = [{"seed": seed, "metrics": {"accuracy": 0.5}} for seed in (1, 2)]
    start = {"time": "2026", "step": 0, "versions": {"a": "1"}, "command": ["a"], "replicas": 1}
    held_out = {"kind": "eval", "step": 15, "stage": 0, "loss": 8.0, "accuracy": 0.5}
    later = line | {"step": 30, "stage": 1, "skipped_updates": 1, "loss_scale": 0.5}
    files = {
        "run.json": [run],
        "train_log.jsonl": [line, held_out, later],
        "train_log.ctl_step_8.ckpt-2.jsonl": [line, later],
        "best/best.json": [{"step": 15, "loss": 8.0, "max_seq_length": 128}],
        "summaries/training_summary.txt": [{"total_training_steps": 40, "train_loss": 8.0}],
        "known_good.json": [{"checkpoint": "ctl_step_4.ckpt-1"}],
        "results.json": [{"task": "CoLA", "summary": summary, "runs": runs}],
        "starts.jsonl": [start],
    }
    for name in "best", "summaries":
        (folder / name).mkdir()

    def case(rng, damage=True):
        name = rng.choice(["train_log.jsonl", *files])
        for file, lines in files.items():
            texts = [json.dumps(line).encode() for line in lines]
            if damage and file == name:
                number = rng.randrange(len(lines))
                texts[number] = as_text(changed(lines[number], rng), rng)
            (folder / file).write_bytes(b"\n".join(texts))
        page.render(contents.read(folder), datetime.datetime(2026, 1, 2)).encode()

    return case, ERRORS


# Flags


def flag_values(folder: Path):
    """Command lines of the commands that train: all that is checked before the first file."""
    (folder / "config.json").write_text(json.dumps({"vocab_size": 40}))
    texts = ["", "x", "-1", "0", "1", "1.5", "1e400", "nan", "inf", "2147483648", "9" * 400, ","]
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
    config = "--bert_config_file=config.json"
    tuned = [config, "--do_train", "--train_file=a", "--output_dir=b", "--vocab_file=c"]
    kinds = {
        pretraining_settings.Pretrain: [config, "--input_files=a", "--model_dir=b"],
        run_squad.Squad: tuned,
        run_classifier.Classify: tuned,
        run_tagger.Tag: tuned,
    }

    def case(rng, damage=True):
        kind = rng.choice([*kinds])
        names = [*commands.flags_of(kind), *refused.flags(kind)]
        given = [text.replace("config.json", f"{folder}/config.json") for text in kinds[kind]]
        for _ in range(rng.randrange(1, 6) if damage else 0):
            name = rng.choice(names)
            given.append(f"--{name}={rng.choice(texts)}" if rng.random() < 0.9 else f"--{name}")
        rng.shuffle(given)
        args = commands.parse(kind, given)
        if isinstance(args, pretraining_settings.Pretrain):
            run_from_flags(pretraining_settings.check(args))
        else:
            sys.modules[kind.__module__].check(args)

    return case, ERRORS


KINDS = {
    "records": records,
    "records and manifests": built_records,
    **fuzz_checkpoints.KINDS,
    "configurations": configurations,
    "vocabularies": vocabularies,
    "run.json and labels": runs,
    "logs and reports": logs,
    "flags": flag_values,
}
