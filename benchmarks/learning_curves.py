"""Held-out curves of `run_pretraining` and of Hugging Face's BERT in PyTorch, seed by seed.

    python benchmarks/learning_curves.py

Both sides train the same model on the same batches of the English text that comes with Python:
masked words only, AdamW, one schedule, initial values of one standard deviation. A trial is one
run of one side with one dropout rate and one seed, in a process of its own. Each finished trial is
a line of `--results`; the command, given again, goes on with the next one, and draws the page anew
after each.

Needs torch, transformers and matplotlib, and a machine that does nothing else meanwhile.
"""

import datetime
import fcntl
import json
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from statistics import mean

import learning_curves_page as page
import numpy as np
from absl import app, flags

from official_bert import child_commands, stdlib_text, tokenization
from official_bert.config import BertConfig
from official_bert.create_pretraining_data import create_pretraining_data
from official_bert.initial_values import STDDEV_RATIO
from official_bert.instances import Settings
from official_bert.stages import Optimizer, Stage

FLAGS = flags.FLAGS
flags.DEFINE_integer("seeds", 5, "Seeds: 1, 2, …, of each side and each dropout rate.")
flags.DEFINE_list("dropout", ["0.0", "0.1"], "Dropout rates.")
flags.DEFINE_list("sides", ["ours", "peer"], "Of ours, peer and peer_compiled (torch.compile).")
flags.DEFINE_string("settings", "{}", "JSON object of settings that differ from the script's.")
flags.DEFINE_string("data_dir", "build/learning_curves", "Where text, records and runs lie.")
flags.DEFINE_string("results", "benchmarks/results/learning_curves.jsonl", "A line a trial.")
flags.DEFINE_string("page", "docs/evidence/learning_curves.md", "The page; its picture, beside it.")
flags.DEFINE_bool("page_only", False, "Write the page from the results that there are.")
flags.DEFINE_string("peer_trial", None, "For the script itself: one trial of the peer, as JSON.")

SETTINGS = {
    "vocab_size": 2048,
    "documents": None,  # of the text; None: all
    "max_seq_length": 64,
    "max_predictions_per_seq": 10,
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "num_attention_heads": 2,
    "intermediate_size": 512,
    "initial_stddev": 0.06,
    "batch_size": 32,
    "updates": 3000,
    "warmup_steps": 200,
    "learning_rate": 3e-3,
    "beta_2": 0.98,
    "eval_steps": 100,
    "eval_batch_size": 128,
}
HELD_OUT_SHARE = 12  # one document of so many is held out


def main(_):
    child_commands.raise_on_signals()
    try:
        if FLAGS.peer_trial:
            train_peer(**json.loads(FLAGS.peer_trial))
            return 0
        return study(SETTINGS | json.loads(FLAGS.settings))
    except child_commands.Interrupted:
        print("\nStopped. The same command goes on with the next trial.", flush=True)
        return 130


def study(settings):
    """Runs the trials that are missing; returns the exit code."""
    trials = [
        {"side": side, "dropout": float(dropout), "seed": seed}
        for seed in range(1, FLAGS.seeds + 1)
        for dropout in FLAGS.dropout
        for side in FLAGS.sides
    ]
    results, folder = pathlib.Path(FLAGS.results), pathlib.Path(FLAGS.data_dir)
    results.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second study would spoil the first one's times
        done = read(results, settings)
        missing = [] if FLAGS.page_only else [t for t in trials if key(t) not in done]
        failed = []
        if missing:
            make_data(folder, settings)
        for number, trial in enumerate(missing):
            print(
                f"trial {len(trials) - len(missing) + number + 1} of {len(trials)}: {key(trial)}; "
                f"{time_left(done.values(), missing[number:])}",
                flush=True,
            )
            record = run_trial(folder, settings, trial)
            if record is None:
                failed.append(key(trial))
                continue
            append(results, record)
            done[key(trial)] = record
            page.write(FLAGS.page, list(done.values()), settings, sys.argv, len(trials))
        if FLAGS.page_only:
            page.write(FLAGS.page, list(done.values()), settings, sys.argv, len(trials))
    for name in failed:
        print(f"failed: {name}; the same command tries it again", file=sys.stderr)
    return 1 if failed else 0


def key(trial):
    return f"{trial['side']}, dropout {trial['dropout']:g}, seed {trial['seed']}"


def read(results, settings):
    """The finished trials with these settings, by `key`."""
    text = results.read_text() if results.exists() else ""
    records = map(json.loads, text[: text.rfind("\n") + 1].splitlines())  # whole lines
    return {key(r["trial"]): r for r in records if r["settings"] == settings}


def append(results, record):
    """Adds a line; whatever an earlier, killed study left of one goes."""
    text = results.read_text() if results.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    aside = results.with_name(f".{results.name}")
    with open(aside, "w") as file:
        file.write(whole + json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, results)


def time_left(done, missing):
    """What is known of it from the trials done, those of the same side and rate first."""

    def expected(trial):
        for names in (("side", "dropout"), ("side",), ()):
            like = [r for r in done if all(r["trial"][n] == trial[n] for n in names)]
            if like:
                return mean(r["wall_seconds"] for r in like)
        return float("nan")

    done = list(done)
    if not done:
        return "time left not known yet"
    seconds = sum(expected(trial) for trial in missing)
    return f"about {seconds / 60:.0f} min left in all"


# Data


def make_data(folder, settings):
    """Text, vocabulary and records for dynamic masks; whole documents are held out."""
    names = ("vocab_size", "documents", "max_seq_length", "max_predictions_per_seq")
    wanted = {name: settings[name] for name in names}
    marker = folder / "data.json"
    if marker.exists() and json.loads(marker.read_text()) == wanted:
        return
    marker.unlink(missing_ok=True)
    documents = ["\n".join(lines) for _, lines in stdlib_text.documents()][: settings["documents"]]
    held_out = documents[1::HELD_OUT_SHARE]
    train = [text for i, text in enumerate(documents) if i % HELD_OUT_SHARE != 1]
    tokenization.learn(train, str(folder / "vocab.txt"), settings["vocab_size"])
    for split, texts in (("train", train), ("held_out", held_out)):
        (folder / f"{split}.txt").write_text("\n\n".join(texts) + "\n")
        create_pretraining_data(
            str(folder / f"{split}.txt"),
            str(folder / f"{split}.tfrecord"),
            str(folder / "vocab.txt"),
            Settings(
                max_seq_length=settings["max_seq_length"],
                max_predictions_per_seq=settings["max_predictions_per_seq"],
            ),
            dynamic_masking=True,
            input_format="paragraphs",
            report=print,
        )
    marker.write_text(json.dumps(wanted))


def config_of(folder, settings, dropout, initializer_range):
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    return BertConfig(
        vocab_size=len(tokenization.read_vocabulary(str(folder / "vocab.txt"))),
        **{name: settings[name] for name in names},
        max_position_embeddings=settings["max_seq_length"],
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        initializer_range=initializer_range,
    )


# Trials


def run_trial(folder, settings, trial):
    """One trial in a process of its own: its record, or None if it failed."""
    model_dir = folder / f"{trial['side']}_{trial['dropout']:g}_{trial['seed']}"
    shutil.rmtree(model_dir, ignore_errors=True)  # of a trial that was killed
    model_dir.mkdir()
    of_side = our_command if trial["side"] == "ours" else peer_command
    command = of_side(folder, settings, trial, model_dir)
    started = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, *command],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        start_new_session=True,
        preexec_fn=child_commands.end_with_parent,
    )
    try:
        code = child.wait()
    except child_commands.Interrupted:
        child.kill()
        child.wait()
        raise
    if code:
        print(f"{key(trial)} ended with exit code {code}", file=sys.stderr, flush=True)
        return None
    record = {
        "trial": trial,
        "settings": settings,
        "command": shlex.join(["python", *map(str, command)]),
        "curve": read_curve(model_dir / "train_log.jsonl"),
        "wall_seconds": time.perf_counter() - started,
        "machine": machine(),
        "date": datetime.date.today().isoformat(),
    }
    shutil.rmtree(model_dir)
    return record


def our_command(folder, settings, trial, model_dir):
    # A normal that is cut at two standard deviations has a smaller one left.
    config = config_of(
        folder, settings, trial["dropout"], settings["initial_stddev"] / STDDEV_RATIO
    )
    (model_dir / "config.json").write_text(config.to_json())
    values = {
        "bert_config_file": model_dir / "config.json",
        "input_files": folder / "train.tfrecord",
        "eval_files": folder / "held_out.tfrecord",
        "model_dir": model_dir,
        "max_seq_length": settings["max_seq_length"],
        "max_predictions_per_seq": settings["max_predictions_per_seq"],
        "train_batch_size": settings["batch_size"],
        "eval_batch_size": settings["eval_batch_size"],
        "num_steps_per_epoch": settings["updates"],
        "num_train_epochs": 1,
        "warmup_steps": settings["warmup_steps"],
        "learning_rate": settings["learning_rate"],
        "optimizer_type": "adamw",
        "beta_2": settings["beta_2"],
        "seed": trial["seed"],
        "log_steps": settings["eval_steps"],
        "eval_steps": settings["eval_steps"],
        "steps_per_loop": settings["eval_steps"],
        "save_checkpoints_steps": settings["updates"],
        "train_summary_interval": -1,
        "distribution_strategy": "off",
    }
    given = [f"--{name}={value}" for name, value in values.items()]
    return ["-m", "official_bert.run_pretraining", *given, "--nouse_next_sentence_label"]


def peer_command(folder, settings, trial, model_dir):
    arguments = {"folder": str(folder), "model_dir": str(model_dir), "settings": settings}
    return [sys.argv[0], f"--peer_trial={json.dumps(arguments | {'trial': trial})}"]


def read_curve(path):
    """Step, seconds of training, loss and accuracy of every held-out evaluation."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    seconds = {line["step"]: line["timing"]["seconds"] for line in lines if line["kind"] == "train"}
    names = ("masked_lm_loss", "masked_lm_accuracy")
    return [
        {"step": line["step"], "seconds": seconds[line["step"]]} | {n: line[n] for n in names}
        for line in lines
        if line["kind"] == "eval"
    ]


def train_peer(folder, model_dir, settings, trial):
    """The peer's trial, with a log like ours: time of training, without evaluations."""
    import hugging_face
    import torch

    folder = pathlib.Path(folder)
    torch.manual_seed(trial["seed"])
    torch.set_num_threads(os.cpu_count())
    config = config_of(folder, settings, trial["dropout"], settings["initial_stddev"])
    theirs = hugging_face.bert_for_pretraining(config)
    called = torch.compile(theirs) if trial["side"] == "peer_compiled" else theirs
    optimizer = Optimizer(type="adamw", beta_2=settings["beta_2"])
    adamw, clipnorm = hugging_face.adamw(theirs, optimizer), optimizer.global_clipnorm
    stage = Stage(
        steps=settings["updates"],
        batch_size=settings["batch_size"],
        max_seq_length=settings["max_seq_length"],
        max_predictions_per_seq=settings["max_predictions_per_seq"],
        learning_rate=settings["learning_rate"],
        warmup_steps=settings["warmup_steps"],
    )
    rates = np.array(stage.schedule()(np.arange(stage.steps)))
    batches = open_batches(folder, settings, trial["seed"], "train", stage.batch_size)
    held_out = open_batches(
        folder, settings, trial["seed"], "held_out", settings["eval_batch_size"], shuffle=False
    )
    seconds = 0.0
    with ThreadPoolExecutor(1) as loader, open(f"{model_dir}/train_log.jsonl", "w") as log:

        def write(**values):
            log.write(json.dumps(values) + "\n")
            log.flush()

        waiting = [loader.submit(batches.__getitem__, step) for step in range(2)]
        for first in range(0, stage.steps, settings["eval_steps"]):
            step = min(first + settings["eval_steps"], stage.steps)
            started = time.perf_counter()
            theirs.train()
            for number in range(first, step):
                waiting.append(loader.submit(batches.__getitem__, number + 2))
                loss, _ = hugging_face.losses(called, waiting.pop(0).result())
                hugging_face.update(theirs, adamw, loss, float(rates[number]), clipnorm)
            seconds += time.perf_counter() - started
            write(kind="train", step=step, timing={"seconds": seconds})
            held_out_loss, accuracy = hugging_face.evaluate(theirs, held_out)
            write(kind="eval", step=step, masked_lm_loss=held_out_loss, masked_lm_accuracy=accuracy)
            print(
                f"step {step}/{stage.steps}  {step / seconds:.1f} updates/s  held out: "
                f"masked LM loss {held_out_loss:.3f}, accuracy {accuracy:.1%}  "
                f"{seconds * (stage.steps / step - 1):.0f} s left",
                flush=True,
            )


def open_batches(folder, settings, seed, split, batch_size, **options):
    from official_bert import input_pipeline

    return input_pipeline.Batches(
        [str(folder / f"{split}.tfrecord")],
        batch_size,
        settings["max_seq_length"],
        settings["max_predictions_per_seq"],
        seed=seed,
        use_next_sentence=False,
        **options,
    )


def machine():
    versions = {}
    for package in ("tensorflow", "tensorflow-cpu", "torch", "transformers", "numpy"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    cpus = pathlib.Path("/proc/cpuinfo")
    lines = cpus.read_text().splitlines() if cpus.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        **versions,
    }


if __name__ == "__main__":
    app.run(main)
