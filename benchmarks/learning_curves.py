"""Held-out curves of `run_pretraining` and of Hugging Face's BERT in PyTorch, seed by seed.

    python benchmarks/learning_curves.py

Both sides train the same model on the same batches of the English text that comes with Python:
masked words only, AdamW, one schedule, initial values of one standard deviation. A trial is one
run of one side with one dropout rate and one seed, in a process of its own. Each finished trial is
a line of `--results`; the command, given again, resumes with the next one.

Needs torch, transformers and matplotlib, and a machine that does nothing else meanwhile.
"""

import json
import math
import pathlib
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import claim
import machine
import numpy as np
import stats
import trials

from official_bert.stages import Optimizer

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
LEVEL = 4.5  # nats of held-out loss; the time to reach it is the figure of merit
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
    name = f"{trial['side']}_{trial['dropout']:g}_{trial['seed']}"

    def read(model_dir):
        return {"curve": trials.read_curve(model_dir)}

    return trials.train_in_child(__file__, name, options, settings, trial, read)


def train(folder, model_dir, settings, trial):
    """Runs a trial in this process, which leaves its log."""
    folder, length = pathlib.Path(folder), settings["max_seq_length"]
    stage = trials.stage_of(
        settings,
        steps=settings["updates"],
        batch_size=settings["batch_size"],
        learning_rate=settings["learning_rate"],
        warmup_steps=settings["warmup_steps"],
    )
    optimizer = Optimizer(type="adamw", beta_2=settings["beta_2"])
    deviation, ours = settings["initial_stddev"], trial["side"] == "ours"
    if ours:
        deviation = trials.before_the_cut(deviation)
    config = trials.config_of(folder, settings, length, deviation, trial["dropout"])
    fields = {"optimizer": optimizer, "seed": trial["seed"]}
    run = trials.make_run(folder, settings, config, (stage,), **fields)
    held_out, every = trials.file_of(folder, "held_out"), settings["eval_steps"]
    if ours:
        trials.trainer(
            run,
            model_dir,
            eval_files=(held_out,),
            eval_batch_size=settings["eval_batch_size"],
            **dict.fromkeys(("log_steps", "eval_steps", "steps_per_loop"), every),
        ).train()
        return
    given = {"seed": run.seed, "shard": (0, 1)}
    train_peer(
        run,
        run.task.batches(
            stage.resolve(run.input_files), stage.lengths, stage.batch_size, config, **given
        ),
        run.task.batches(
            stage.resolve([held_out]),
            stage.lengths,
            settings["eval_batch_size"],
            config,
            held_out=True,
            **given,
        ),
        model_dir,
        every,
        trial["side"] == "peer_compiled",
    )


def train_peer(run, batches, held_out, model_dir, every, compiled):
    """Trains the peer, with a log like ours: time of training, without evaluations."""
    import hugging_face
    import torch

    torch.manual_seed(run.seed)
    torch.set_num_threads(machine.cores())
    theirs = hugging_face.bert_for_pretraining(run.config)
    called = torch.compile(theirs) if compiled else theirs
    adamw, clipnorm = hugging_face.adamw(theirs, run.optimizer), run.optimizer.global_clipnorm
    (stage,) = run.stages
    rates = np.array(stage.schedule()(np.arange(stage.steps)))
    seconds = 0.0
    with ThreadPoolExecutor(1) as loader, open(f"{model_dir}/train_log.jsonl", "w") as log:

        def write(**values):
            log.write(json.dumps(values) + "\n")
            log.flush()

        waiting = [loader.submit(batches.__getitem__, step) for step in range(2)]
        for first in range(0, stage.steps, every):
            step = min(first + every, stage.steps)
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


# The results


def groups(records):
    """{dropout: {side: curves}}, a curve per seed."""
    found = {}
    for record in sorted(records, key=lambda r: (r["trial"]["dropout"], r["trial"]["side"])):
        sides = found.setdefault(record["trial"]["dropout"], {})
        sides.setdefault(record["trial"]["side"], []).append(record["curve"])
    return found


def tables(records, settings):
    """The losses and times of each side, and the peers' compared with ours."""
    rows = [
        (dropout, side, curves, sides.get("ours"))
        for dropout, sides in groups(records).items()
        for side, curves in sides.items()
    ]
    peers = (
        (f"{dropout:g}", LABELS[side], *comparison(ours, curves))
        for dropout, side, curves, ours in rows
        if side != "ours" and ours
    )
    head = ("dropout", "peer", f"s to {LEVEL} nats, theirs ÷ ours", "bands overlap at")
    head += ("loss at the end, ours − theirs",)

    def ends(curves, of, form, unit=""):
        return stats.spread([of(curve[-1]) for curve in curves], form, unit)

    def first(curves, level, unit):
        return stats.median_and_range([stats.first_at(c, level, unit) for c in curves])

    def pace(curve):
        return 1000 * curve[-1]["seconds"] / curve[-1]["step"]

    columns = {
        "dropout": lambda dropout, *_: f"{dropout:g}",
        "side": lambda _, side, *__: LABELS[side],
        "trials": lambda *row: len(row[2]),
        "loss at the end": lambda *row: ends(row[2], lambda e: e["masked_lm_loss"], "{:.3f}"),
        "accuracy": lambda *row: ends(
            row[2], lambda e: 100 * e["masked_lm_accuracy"], "{:.1f}", " %"
        ),
        "plateau left at step": lambda *row: first(row[2], stats.PLATEAU, "step"),
        f"s to {LEVEL} nats": lambda *row: first(row[2], LEVEL, "seconds"),
        "ms per step": lambda *row: f"{median(map(pace, row[2])):.1f}",
    }
    return {"compared": [head, *peers], "curves": stats.columns(columns, rows)}


def comparison(ours, theirs):
    """Ratio of median times, evaluations at which the bands overlap, difference of the losses."""
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


def draw(records, settings):
    """Medians and bands over steps and over seconds, a column per dropout rate."""
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


CLAIM = claim.of(
    globals(),
    "learning_curves",
    "Learning curves compared with Hugging Face",
    results="learning_curves",
    trials=all_trials,
    flags={
        "seeds": (int, "seeds: 1, 2, …, of each side and each dropout rate (5)"),
        "dropout": (lambda text: [float(rate) for rate in text.split(",")], "rates (0.0,0.1)"),
        "sides": (claim.comma_separated, "of ours, peer and peer_compiled (ours,peer)"),
    },
    alone=True,
    extent=("seeds", "dropout", "sides"),
)


if __name__ == "__main__":
    sys.exit(claim.script(CLAIM, __doc__, train))
