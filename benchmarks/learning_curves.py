"""Held-out curves of `run_pretraining` and of Hugging Face's BERT in PyTorch, seed by seed.

    python benchmarks/learning_curves.py

Both sides train the same model on the same batches of the English text that comes with Python:
masked words only, AdamW, one schedule, initial values of one standard deviation. A trial is one
run of one side with one dropout rate and one seed, in a process of its own. Each finished trial is
a line of `--results`; the command, given again, goes on with the next one, and draws the page anew
after each.

Needs torch, transformers and matplotlib, and a machine that does nothing else meanwhile.
"""

import json
import pathlib
import shlex
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import learning_curves_page as page
import machine
import numpy as np
import trials as studies
from absl import app, flags

from official_bert.model.initial_values import STDDEV_RATIO
from official_bert.stages import Optimizer, Stage
from official_bert.system import child_commands

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
    "max_seq_length": 16,
    "max_predictions_per_seq": 4,
    "masked_lm_prob": 0.25,  # in training; of the held-out text, 15 %
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "num_attention_heads": 2,
    "intermediate_size": 512,
    "initial_stddev": 0.06,
    "batch_size": 64,
    "updates": 3000,
    "warmup_steps": 200,
    "learning_rate": 1e-3,
    "beta_2": 0.98,
    "eval_steps": 100,
    "eval_batch_size": 512,
}


def main(_):
    child_commands.raise_on_signals()
    try:
        if FLAGS.peer_trial:
            train_peer(**json.loads(FLAGS.peer_trial))
            return 0
        return study(SETTINGS | json.loads(FLAGS.settings))
    except child_commands.Interrupted:
        print("\nStopped. Run the same command again to continue with the next trial.", flush=True)
        return 130


def study(settings):
    """Runs the trials that are missing; returns the exit code."""
    trials = [
        {"side": side, "dropout": float(dropout), "seed": seed}
        for seed in range(1, FLAGS.seeds + 1)
        for dropout in FLAGS.dropout
        for side in FLAGS.sides
    ]
    folder = pathlib.Path(FLAGS.data_dir)
    alike = (("side", "dropout"), ("side",), ())
    work = studies.Study(pathlib.Path(FLAGS.results), settings, key, len(trials), alike)

    def write_page():
        made_by = [word for word in sys.argv if word != "--page_only"]
        page.write(FLAGS.page, list(work.done().values()), settings, made_by, len(trials))

    with studies.exclusive(folder):
        if FLAGS.page_only:
            write_page()
            return 0
        if any(key(trial) not in work.done() for trial in trials):
            studies.make_data(folder, settings)
        return 1 if work.run(trials, lambda t: run_trial(folder, settings, t), write_page) else 0


def key(trial):
    return f"{trial['side']}, dropout {trial['dropout']:g}, seed {trial['seed']}"


# Trials


def run_trial(folder, settings, trial):
    """One trial in a process of its own: its record, or None if it failed."""
    model_dir = folder / f"{trial['side']}_{trial['dropout']:g}_{trial['seed']}"
    shutil.rmtree(model_dir, ignore_errors=True)  # of a trial that was killed
    model_dir.mkdir()
    of_side = our_command if trial["side"] == "ours" else peer_command
    command = of_side(folder, settings, trial, model_dir)
    if code := studies.run_child(command):
        print(f"{key(trial)} ended with exit code {code}", file=sys.stderr, flush=True)
        return None
    record = {
        "command": shlex.join(["python", *map(str, command)]),
        "curve": studies.read_curve(model_dir / "train_log.jsonl"),
    }
    shutil.rmtree(model_dir)
    return record


def our_command(folder, settings, trial, model_dir):
    # A normal that is cut at two standard deviations has a smaller one left.
    config = studies.config_of(
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
        "masked_lm_prob": settings["masked_lm_prob"],
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


def train_peer(folder, model_dir, settings, trial):
    """The peer's trial, with a log like ours: time of training, without evaluations."""
    import hugging_face
    import torch

    folder = pathlib.Path(folder)
    torch.manual_seed(trial["seed"])
    torch.set_num_threads(machine.cores())
    config = studies.config_of(folder, settings, trial["dropout"], settings["initial_stddev"])
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
    masked = settings["masked_lm_prob"]
    batches = open_batches(
        folder, settings, trial["seed"], "train", stage.batch_size, masked_lm_prob=masked
    )
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
    from official_bert.data import input_pipeline

    return input_pipeline.Batches(
        [str(folder / f"{split}.tfrecord")],
        batch_size,
        settings["max_seq_length"],
        settings["max_predictions_per_seq"],
        seed=seed,
        use_next_sentence=False,
        **options,
    )


if __name__ == "__main__":
    app.run(main)
