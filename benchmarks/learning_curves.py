"""Held-out curves of `run_pretraining` and of Hugging Face's BERT in PyTorch, seed by seed.

    python benchmarks/learning_curves.py

Both sides train the same model on the same batches of the English text that comes with Python:
masked words only, AdamW, one schedule, initial values of one standard deviation. A trial is one
run of one side with one dropout rate and one seed, in a process of its own. Each finished trial is
a line of `--results`; the command, given again, goes on with the next one, and draws the page anew
after each.

Needs torch, transformers and matplotlib, and a machine that does nothing else meanwhile.
"""

import argparse
import functools
import json
import math
import os
import pathlib
import shlex
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import claim
import machine
import numpy as np
import stats
import trials

from official_bert.stages import Optimizer, Stage

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
    "seeds": 5,
    "dropout": [0.0, 0.1],
    "sides": ["ours", "peer"],
}
LEVEL = 4.5  # nats of held-out loss, the time to which is the figure of merit
LABELS = {
    "ours": "ours",
    "peer": "Hugging Face in PyTorch",
    "peer_compiled": "Hugging Face, `torch.compile`",
}
COLORS = {"ours": "#4477aa", "peer": "#cc3311", "peer_compiled": "#ee9944"}


def all_trials(settings, records):
    return [
        {"side": side, "dropout": dropout, "seed": seed}
        for seed in range(1, settings["seeds"] + 1)
        for dropout in settings["dropout"]
        for side in settings["sides"]
    ]


# Trials


def run(options, settings, trial, records):
    """One trial in a process of its own; see `claim.Claim`."""
    folder = options.data_dir
    lengths = {settings["max_seq_length"]: settings["max_predictions_per_seq"]}
    trials.make_data(folder, settings, lengths, {1: "held_out"})
    model_dir = folder / f"{trial['side']}_{trial['dropout']:g}_{trial['seed']}"
    shutil.rmtree(model_dir, ignore_errors=True)  # of a trial that was killed
    model_dir.mkdir()
    of_side = our_command if trial["side"] == "ours" else peer_command
    command = of_side(folder, settings, trial, model_dir)
    if code := trials.run_child(command):
        print(f"{stats.trial_name(trial)} ended with exit code {code}", file=sys.stderr, flush=True)
        return None
    curve = trials.read_curve(model_dir / "train_log.jsonl")
    shutil.rmtree(model_dir)
    return {"command": shlex.join(["python", *map(str, command)]), "curve": curve}


def our_command(folder, settings, trial, model_dir):
    from official_bert.model.layers import STDDEV_RATIO  # it imports TensorFlow

    # A normal that is cut at two standard deviations has a smaller one left.
    deviation = settings["initial_stddev"] / STDDEV_RATIO
    length, dropout = settings["max_seq_length"], trial["dropout"]
    config = trials.config_of(folder, settings, length, deviation, dropout)
    (model_dir / "config.json").write_text(config.to_json())
    values = {
        "bert_config_file": model_dir / "config.json",
        "input_files": folder / f"train_{settings['max_seq_length']}.tfrecord",
        "eval_files": folder / f"held_out_{settings['max_seq_length']}.tfrecord",
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
    return [os.path.relpath(__file__), f"--peer_trial={json.dumps(arguments | {'trial': trial})}"]


def train_peer(folder, model_dir, settings, trial):
    """The peer's trial, with a log like ours: time of training, without evaluations."""
    import hugging_face
    import torch

    folder = pathlib.Path(folder)
    torch.manual_seed(trial["seed"])
    torch.set_num_threads(machine.cores())
    length, deviation = settings["max_seq_length"], settings["initial_stddev"]
    config = trials.config_of(folder, settings, length, deviation, trial["dropout"])
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
        [str(folder / f"{split}_{settings['max_seq_length']}.tfrecord")],
        batch_size,
        settings["max_seq_length"],
        settings["max_predictions_per_seq"],
        seed=seed,
        use_next_sentence=False,
        **options,
    )


# What comes out


def groups(records):
    """{dropout: {side: curves}}, a curve a seed."""
    found = {}
    for record in sorted(records, key=lambda r: (r["trial"]["dropout"], r["trial"]["side"])):
        sides = found.setdefault(record["trial"]["dropout"], {})
        sides.setdefault(record["trial"]["side"], []).append(record["curve"])
    return found


def tables(records, settings):
    """What each side reaches, and what the peers need or reach beside ours."""
    head = ("dropout", "side", "trials", "loss at the end", "accuracy")
    head += ("plateau left at step", f"s to {LEVEL} nats", "ms per step")
    compared = ("dropout", "peer", f"s to {LEVEL} nats, theirs ÷ ours", "bands overlap at")
    compared += ("loss at the end, ours − theirs",)
    every = [(dropout, side, sides) for dropout, sides in groups(records).items() for side in sides]
    return {
        "compared": [compared]
        + [
            (f"{dropout:g}", LABELS[side], *comparison(sides["ours"], sides[side]))
            for dropout, side, sides in every
            if side != "ours" and "ours" in sides
        ],
        "curves": [head]
        + [(f"{dropout:g}", LABELS[side], *_row(sides[side])) for dropout, side, sides in every],
    }


def comparison(ours, theirs):
    """Times as long (medians), evaluations at which the bands overlap, difference of the losses."""
    times = [[stats.first_at(c, LEVEL, "seconds") for c in side] for side in (ours, theirs)]
    ratio = f"not reached by {sum(time is None for side in times for time in side)}"
    if None not in times[0] + times[1]:
        ratio = f"{median(times[1]) / median(times[0]):.2f}"
    bands = stats.bands(ours), stats.bands(theirs)
    common = bands[0].keys() & bands[1].keys()
    pairs = [(bands[0][step], bands[1][step]) for step in common]
    meets = sum(mine[0] <= other[2] and other[0] <= mine[2] for mine, other in pairs)
    ends = [[curve[-1]["masked_lm_loss"] for curve in side] for side in (ours, theirs)]
    gap, error = stats.difference(*ends)
    interval = "" if math.isnan(error) else f" ± {error:.3f}"
    return ratio, f"{meets} of {len(common)}", f"{gap:+.3f}{interval}"


def _row(curves):
    ends = [curve[-1] for curve in curves]
    return (
        len(curves),
        stats.spread([end["masked_lm_loss"] for end in ends], "{:.3f}"),
        stats.spread([100 * end["masked_lm_accuracy"] for end in ends], "{:.1f}", " %"),
        stats.median_and_range([stats.first_at(c, stats.PLATEAU, "step") for c in curves]),
        stats.median_and_range([stats.first_at(c, LEVEL, "seconds") for c in curves]),
        f"{median(1000 * end['seconds'] / end['step'] for end in ends):.1f}",
    )


def draw(records, settings):
    """Medians and bands over steps and over seconds, a column a dropout rate."""
    found = groups(records)
    figure, axes = stats.figure(2, len(found), (5 * len(found), 7), sharey=True)
    for column, (dropout, sides) in enumerate(found.items()):
        for side, curves in sides.items():
            for row, unit in enumerate(("step", "seconds")):
                label = LABELS[side].replace("`", "")
                stats.draw_band(axes[row][column], curves, unit, COLORS[side], label)
        axes[0][column].set(title=f"dropout {dropout:g}", xlabel="steps")
        axes[1][column].set(xlabel="seconds of training (median)")
        for axis in axes[:, column]:
            axis.axhline(LEVEL, color="#777777", lw=0.8, ls="--")
    for axis in axes[:, 0]:
        axis.set_ylabel("held-out masked-LM loss, nats")
    axes[0][0].legend()
    return figure


CLAIM = claim.Claim(
    name="learning_curves",
    results="learning_curves",
    title="Learning curves compared with Hugging Face",
    settings=SETTINGS,
    trials=all_trials,
    run=run,
    tables=tables,
    pictures={"": draw},
    packages=("tensorflow", "matplotlib"),
    alike=(("side", "dropout"), ("side",)),
    flags={
        "seeds": (int, "seeds: 1, 2, …, of each side and each dropout rate (5)"),
        "dropout": (lambda text: [float(rate) for rate in text.split(",")], "rates (0.0,0.1)"),
        "sides": (claim.comma_separated, "of ours, peer and peer_compiled (ours,peer)"),
    },
    alone=True,
    extent=("seeds", "dropout", "sides"),
)
kept = functools.partial(claim.kept, CLAIM)


def main():
    parser = claim.parser(CLAIM, __doc__)
    parser.add_argument("--peer_trial", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer_trial:
        train_peer(**options.peer_trial)
        return 0
    return claim.main(CLAIM, options)


if __name__ == "__main__":
    sys.exit(main())
