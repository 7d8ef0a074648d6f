"""MSLT, Gong's doubling and training from scratch, by the time to one held-out loss.

    python benchmarks/stacking_study.py

All train one deep, narrow BERT on the English text that comes with Python, for the same seconds of
training: how many updates these are is measured for each method by a short trial of its own. The
rate of each method is the better one of `rates` with seed 1; the other seeds train with that. Each
trial is a process; each finished one is a line of `--results`; the command, given again, goes on
with the next one, and writes the page anew after each.

Needs matplotlib, and a machine that does nothing else meanwhile.
"""

import argparse
import dataclasses
import functools
import json
import os
import pathlib
import shlex
import shutil
import sys

import claim
import stacking_study_tables as results
import stats
import trials

from official_bert import stacking
from official_bert.stages import LoopOptions, Optimizer, Run, Stage
from official_bert.system import quiet_tensorflow
from official_bert.tasks.pretraining import Pretraining
from official_bert.training import flops

SETTINGS = {
    "vocab_size": 2048,
    "documents": None,  # of the text; None: all
    "max_seq_length": 16,
    "max_predictions_per_seq": 4,
    "masked_lm_prob": 0.25,
    "num_hidden_layers": 6,
    "hidden_size": 128,
    "num_attention_heads": 2,
    "intermediate_size": 512,
    "initial_stddev": 0.053,
    "batch_size": 64,
    "seconds": 100,  # of training, tracing included, evaluations and start-up not
    "warmup_share": 0.08,  # of the updates; stages have the same share
    "rates": [3e-3, 6e-3],
    "beta_2": 0.98,
    "mslt_depths": [2, 4, 6],
    "mslt_long_first_share": 0.4,
    "mslt_long_last_share": 0.45,
    "doubling_depths": [3, 6],
    "doubling_shares": [0.3],
    "eval_steps": 150,
    "eval_batch_size": 256,
    "pace_steps": 60,  # updates of each stage in the trial that measures their seconds; n · 3
    "seeds": 3,
    "methods": [*results.LABELS],
}


def all_trials(settings, records):
    """For each method the pace, whole runs at each rate, then more seeds at the better rate.

    Until the rates have been tried, the first one stands for the better.
    """
    rates, methods = settings["rates"], settings["methods"]
    pace = [trial("pace", method, rates[0], 1) for method in methods]
    search = [trial("whole", method, rate, 1) for rate in rates for method in methods]
    chosen = dict.fromkeys(methods, rates[0]) | results.chosen_rates(records)
    seeds = range(2, settings["seeds"] + 1)
    return pace + search + [trial("whole", m, chosen[m], seed) for seed in seeds for m in methods]


def trial(kind, method, rate, seed):
    return {"kind": kind, "method": method, "rate": rate, "seed": seed}


def needs(trial, other):
    """Whole runs need the paces; further seeds, the runs that their rates are chosen from."""
    if trial["kind"] == "pace":
        return False
    return other["kind"] == "pace" or (trial["seed"] > 1 and other["seed"] == 1)


# What is trained


def stages_of(settings, method, rate, updates):
    """The stages of a run of so many updates by a method."""
    stage = Stage(
        steps=updates,
        batch_size=settings["batch_size"],
        max_seq_length=settings["max_seq_length"],
        max_predictions_per_seq=settings["max_predictions_per_seq"],
        learning_rate=rate,
        warmup_steps=round(settings["warmup_share"] * updates),
    )
    if method == "mslt":
        return stacking.mslt((stage,), settings["mslt_depths"])
    if method == "mslt_long":
        shares = {name: settings[f"mslt_long_{name}"] for name in ("first_share", "last_share")}
        return stacking.mslt((stage,), settings["mslt_depths"], **shares)
    if method == "doubling":
        depths, shares = settings["doubling_depths"], settings["doubling_shares"]
        return stacking.doubling((stage,), depths, shares)
    return (stage,)


def stages_of_trial(settings, trial, updates):
    """Those of a whole run, or a few updates of each to measure their seconds."""
    stages = stages_of(settings, trial["method"], trial["rate"], updates)
    if trial["kind"] == "whole":
        return stages
    steps = settings["pace_steps"]
    return tuple(dataclasses.replace(stage, steps=steps, warmup_steps=0) for stage in stages)


def updates_within(settings, method, pace):
    """How many updates of a method fit into the seconds of a trial.

    Args:
        settings: Those of the study.
        method: Its name.
        pace: What `seconds_of_updates` found.
    """
    many = 100_000
    stages = stages_of(settings, method, settings["rates"][0], many)
    seconds = sum(s.steps * p["seconds"] for s, p in zip(stages, pace, strict=True)) / many
    return int((settings["seconds"] - sum(p["first_call"] for p in pace)) / seconds)


def seconds_of_updates(log, pace_steps):
    """For each stage the seconds of an update, and what its first call takes beyond that.

    Args:
        log: Log with three lines a stage.
        pace_steps: Updates of each stage. Those up to its first line are not counted.
    """
    times = [line["timing"]["seconds"] for line in trials.read_log(log, "train")]
    found, before = [], 0.0
    for first, last in zip(times[::3], times[2::3], strict=True):
        an_update = (last - first) / (pace_steps // 3 * 2)
        found.append({"seconds": an_update, "first_call": last - before - pace_steps * an_update})
        before = last
    return found


# Trials


def run(options, settings, trial, records):
    """One trial in a process of its own; see `claim.Claim`."""
    folder = options.data_dir
    lengths = {settings["max_seq_length"]: settings["max_predictions_per_seq"]}
    trials.make_data(folder, settings, lengths, {1: "held_out"})
    model_dir = folder / "_".join(str(value) for value in trial.values())
    shutil.rmtree(model_dir, ignore_errors=True)  # of a trial that was killed
    updates, every = 1000, settings["pace_steps"] // 3
    if trial["kind"] == "whole":
        pace = results.paces(records)[trial["method"]]
        updates, every = updates_within(settings, trial["method"], pace), settings["eval_steps"]
    stages = stages_of_trial(settings, trial, updates)
    paths = {"folder": str(folder), "model_dir": str(model_dir)}
    arguments = paths | {"settings": settings, "trial": trial, "updates": updates, "every": every}
    command = [os.path.relpath(__file__), f"--trial={json.dumps(arguments)}"]
    if code := trials.run_child(command):
        print(f"{stats.trial_name(trial)} ended with exit code {code}", file=sys.stderr, flush=True)
        return None
    log = model_dir / "train_log.jsonl"
    config = model_config(folder, settings)
    record = {
        "command": shlex.join(["python", *command]),
        "stages": [describe(config, stage) for stage in stages],
        "curve": trials.read_curve(log),
    }
    if trial["kind"] == "pace":
        record["pace"] = seconds_of_updates(log, settings["pace_steps"])
    shutil.rmtree(model_dir)
    return record


def describe(config, stage):
    depth = stage.depth_in(config)
    return {
        "steps": stage.steps,
        "depth": depth,
        "trained": depth if stage.trained_layers is None else len(stage.trained_layers),
        "flops": flops.step_flops(config, stage),
    }


def model_config(folder, settings):
    from official_bert.model.layers import STDDEV_RATIO  # it imports TensorFlow

    # A normal that is cut at two standard deviations has a smaller one left.
    initializer_range = settings["initial_stddev"] / STDDEV_RATIO
    return trials.config_of(folder, settings, settings["max_seq_length"], initializer_range)


def train(folder, model_dir, settings, trial, updates, every):
    """The child: one run, which leaves its log."""
    folder = pathlib.Path(folder)
    quiet_tensorflow.import_tensorflow()
    from official_bert.engines.strategies import make_strategy
    from official_bert.engines.tf_distribute import TfDistribute
    from official_bert.training.trainer import Trainer

    evaluates = trial["kind"] == "whole"
    run = Run(
        config=model_config(folder, settings),
        stages=stages_of_trial(settings, trial, updates),
        optimizer=Optimizer(beta_2=settings["beta_2"]),
        input_files=(str(folder / f"train_{settings['max_seq_length']}.tfrecord"),),
        seed=trial["seed"],
        task=Pretraining(use_next_sentence_label=False, masked_lm_prob=settings["masked_lm_prob"]),
    )
    options = LoopOptions(
        log_steps=every,
        save_checkpoints_steps=0,
        eval_steps=every if evaluates else 0,
        eval_files=(str(folder / f"held_out_{settings['max_seq_length']}.tfrecord"),)
        if evaluates
        else (),
        eval_batch_size=settings["eval_batch_size"],
        steps_per_loop=every,
        tensorboard=False,
    )
    Trainer(run, options, TfDistribute(make_strategy("off")), model_dir).train()


CLAIM = claim.Claim(
    name="stacking",
    results="stacking_study",
    title="Growing an encoder: time to equal loss",
    settings=SETTINGS,
    trials=all_trials,
    run=run,
    needs=needs,
    tables=results.tables,
    pictures={"": results.draw},
    packages=("tensorflow", "matplotlib"),
    alike=(("kind", "method", "rate"), ("kind",)),
    flags={
        "seeds": (int, "seeds: 1, 2, …, of each method (3)"),
        "methods": (claim.comma_separated, f"of {', '.join(results.LABELS)} (all)"),
    },
    alone=True,
    extent=("seeds", "methods"),
)
kept = functools.partial(claim.kept, CLAIM)


def main():
    parser = claim.parser(CLAIM, __doc__)
    parser.add_argument("--trial", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trial:
        train(**options.trial)
        return 0
    return claim.main(CLAIM, options)


if __name__ == "__main__":
    sys.exit(main())
