"""MSLT, Gong's doubling and training from scratch, by the time to one held-out loss.

    python benchmarks/stacking_study.py

All train one deep, narrow BERT on the English text that comes with Python, for the same seconds of
training; a short trial of each method measures the number of steps in them. The rate of each method
is the better one of `rates` with seed 1, also for the other seeds. Each trial is a process, and
each finished one a line of `--results`; the command, given again, resumes with the next one.

Needs matplotlib, and a machine that does nothing else meanwhile.
"""

import dataclasses
import pathlib
import sys

import claim
import stacking_study_tables as results
import trials

from official_bert import stacking
from official_bert.stages import Optimizer
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
    "seconds": 100,  # of training with tracing, without evaluations and start-up
    "warmup_share": 0.08,  # of the steps; stages have the same share
    "rates": [3e-3, 6e-3],
    "beta_2": 0.98,
    "mslt_depths": [2, 4, 6],
    "mslt_long_first_share": 0.4,
    "mslt_long_last_share": 0.45,
    "doubling_depths": [3, 6],
    "doubling_shares": [0.3],
    "eval_steps": 150,
    "eval_batch_size": 256,
    "pace_steps": 60,  # steps of each stage in the trial that measures their seconds; n · 3
    "seeds": 3,
    "methods": [*results.LABELS],
}


def all_trials(settings, records):
    """For each method the pace, whole runs at each rate, then more seeds at the better rate.

    Until the rates have been tried, the first one counts as the better.
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
    """Whole runs need the paces; further seeds, the runs that decide their rates."""
    if trial["kind"] == "pace":
        return False
    return other["kind"] == "pace" or (trial["seed"] > 1 and other["seed"] == 1)


# Stages


def stages_of(settings, method, rate, updates):
    """The stages of a run by a method."""
    stage = trials.stage_of(
        settings,
        steps=updates,
        batch_size=settings["batch_size"],
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
    """The stages of a whole run, or a few steps of each to measure their seconds."""
    stages = stages_of(settings, trial["method"], trial["rate"], updates)
    if trial["kind"] == "whole":
        return stages
    steps = settings["pace_steps"]
    return tuple(dataclasses.replace(stage, steps=steps, warmup_steps=0) for stage in stages)


def updates_within(settings, method, pace):
    """Number of a method's steps in the seconds of a trial; `pace` is of `seconds_of_updates`."""
    many = 100_000
    stages = stages_of(settings, method, settings["rates"][0], many)
    seconds = sum(s.steps * p["seconds"] for s, p in zip(stages, pace, strict=True)) / many
    return int((settings["seconds"] - sum(p["first_call"] for p in pace)) / seconds)


def seconds_of_updates(log, pace_steps):
    """For each stage the seconds of a step, and the further seconds of its first call.

    The log has three lines per stage of `pace_steps` steps; steps up to the first are not counted.
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
    updates, every = 1000, settings["pace_steps"] // 3
    if trial["kind"] == "whole":
        pace = results.paces(records)[trial["method"]]
        updates, every = updates_within(settings, trial["method"], pace), settings["eval_steps"]

    def read(model_dir):
        config = model_config(options.data_dir, settings)
        stages = stages_of_trial(settings, trial, updates)
        found = {"stages": [describe(config, stage) for stage in stages]}
        found["curve"] = trials.read_curve(model_dir)
        if trial["kind"] == "pace":
            pace = seconds_of_updates(model_dir / "train_log.jsonl", settings["pace_steps"])
            found["pace"] = pace
        return found

    name, more = "_".join(map(str, trial.values())), {"updates": updates, "every": every}
    return trials.train_in_child(__file__, name, options, settings, trial, read, **more)


def describe(config, stage):
    depth = stage.depth_in(config)
    return {
        "steps": stage.steps,
        "depth": depth,
        "trained": depth if stage.trained_layers is None else len(stage.trained_layers),
        "flops": flops.step_flops(config, stage),
    }


def model_config(folder, settings):
    deviation = trials.before_the_cut(settings["initial_stddev"])
    return trials.config_of(folder, settings, settings["max_seq_length"], deviation)


def train(folder, model_dir, settings, trial, updates, every):
    """Runs one training in this process, which leaves its log."""
    folder, evaluates = pathlib.Path(folder), trial["kind"] == "whole"
    given = model_config(folder, settings), stages_of_trial(settings, trial, updates)
    fields = {"optimizer": Optimizer(beta_2=settings["beta_2"]), "seed": trial["seed"]}
    run = trials.make_run(folder, settings, *given, **fields)
    trials.trainer(
        run,
        model_dir,
        log_steps=every,
        eval_steps=every if evaluates else 0,
        eval_files=(trials.file_of(folder, "held_out"),) if evaluates else (),
        eval_batch_size=settings["eval_batch_size"],
        steps_per_loop=every,
    ).train()


CLAIM = claim.of(
    globals(),
    "stacking",
    "Growing an encoder: time to equal loss",
    results="stacking_study",
    trials=all_trials,
    tables=results.tables,
    pictures={"": results.draw},
    flags={
        "seeds": (int, "seeds: 1, 2, …, of each method (3)"),
        "methods": (claim.comma_separated, f"of {', '.join(results.LABELS)} (all)"),
    },
    alone=True,
    extent=("seeds", "methods"),
)


if __name__ == "__main__":
    sys.exit(claim.script(CLAIM, __doc__, train))
