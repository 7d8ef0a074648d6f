"""What is the second warm-up of a mixed-batch run worth?

    python benchmarks/claims/mixed_batch.py

The demo's BERT is trained in two phases: short sequences in a large batch, then long ones in half
of it. The rate of the second phase rises from 0 again, or begins at its top, or is the tail of one
schedule over both; LAMB's moments are kept or begin at 0. The first two are tried at higher rates
too, where a warm-up may be needed.

Needs matplotlib.
"""

import functools
import hashlib
import json
import os
import pathlib
import sys
from statistics import mean

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # for what all studies share

import claim
import numpy as np
import stats
from model_settings import LOST, MODEL

LABELS = {
    "warm-up": "rises from 0 again (re-warm-up)",
    "restart": "begins at its top",
    "continued": "one schedule over both phases",
}
SHORT = {"warm-up": "rises again", "restart": "begins at its top", "continued": "one schedule"}
MOMENTS = ("kept", "from 0")
COLORS = {"warm-up": "#cc3311", "restart": "#4477aa", "continued": "#228833"}
STYLES = {"kept": "-", "from 0": "--"}
REFERENCE = "warm-up", "kept"  # what the paper's mixed batch does

SETTINGS = {
    "first": {"updates": 2400, "batch_size": 64, "max_seq_length": 16, "predictions": 4},
    "second": {"updates": 600, "batch_size": 32, "max_seq_length": 64, "predictions": 16},
    "rate": 8e-3,  # of either phase
    "higher_rates": [1.6e-2, 3.2e-2],  # of the second phase, in more trials
    "first_warmup": 100,
    "second_warmup": 100,
    "beta_2": 0.98,
    "weight_decay": 0.01,
    "global_clipnorm": 1.0,
    "seeds": 3,
    "evaluations": 5,  # of the second phase
}
QUICK = {
    "first": {"updates": 1600, "batch_size": 64, "max_seq_length": 16, "predictions": 4},
    "second": {"updates": 400, "batch_size": 32, "max_seq_length": 64, "predictions": 16},
    "higher_rates": [],
    "seeds": 1,
}


def trials(settings, records):
    """For each seed the two first phases and what follows on them; then the higher rates."""
    found = []
    for seed in range(1, settings["seeds"] + 1):
        found += [trial("first", which, None, seed) for which in ("falls to 0", "one schedule")]
        for schedule in LABELS:
            found += [trial("second", schedule, moments, seed) for moments in MOMENTS]
    return found + [
        trial("second", schedule, moments, seed, rate)
        for rate in settings["higher_rates"]
        for seed in range(1, settings["seeds"] + 1)
        for schedule in ("warm-up", "restart")
        for moments in MOMENTS
    ]


def trial(phase, schedule, moments, seed, rate=None):
    """A trial; a rate of None is that of the settings."""
    values = {"phase": phase, "schedule": schedule, "moments": moments, "seed": seed}
    return values | {"rate": rate}


def rates(settings, phase, schedule, second_rate=None):
    """The learning rate of each update of a phase; float32.

    Args:
        settings: Those of the study.
        phase: "first" or "second".
        schedule: Of a trial of that phase.
        second_rate: The top of a second phase; None: that of the first.
    """
    import bert

    first, second = (settings[name]["updates"] for name in ("first", "second"))
    peak, warmup = settings["rate"], settings["first_warmup"]
    whole = bert.joined_rates(peak, warmup, first + second)
    if phase == "first":
        return (
            whole[:first] if schedule == "one schedule" else bert.joined_rates(peak, warmup, first)
        )
    top = second_rate or peak
    return {
        "warm-up": lambda: bert.joined_rates(top, settings["second_warmup"], second),
        "restart": lambda: bert.joined_rates(top, 0, second),
        "continued": lambda: whole[first:],
    }[schedule]()


def run(options, settings, trial, records):
    """Trains one phase; see `claim.Claim`. The first leaves its state in `data_dir`."""
    import bert

    phases = settings["first"], settings["second"]
    lengths = {p["max_seq_length"]: p["predictions"] for p in phases}
    bert.make_data(options.data_dir, MODEL | settings, lengths)
    about = settings[trial["phase"]]
    given = rates(settings, trial["phase"], trial["schedule"], trial["rate"])
    training = training_of(options.data_dir, json.dumps(settings))
    is_second = trial["phase"] == "second"
    if is_second:
        before = "one schedule" if trial["schedule"] == "continued" else "falls to 0"
        state = first_state(options.data_dir, settings, before, trial["seed"], training)
    training.restart(trial["seed"])  # here: with it, the moments are at 0
    if is_second:
        training.restore(state, with_moments=trial["moments"] == "kept")
    start = training.evaluate(stage_of(settings["second"]))["report"] if is_second else None
    evaluations = settings["evaluations"] if is_second else 3
    curve = training.run(stage_of(about), given, evaluations)
    if not is_second and not training.diverged:
        path = state_file(options.data_dir, settings, trial["schedule"], trial["seed"])
        save(path, training.state())
    return bert.result(training, curve) | {"start": start, "peak": float(given.max())}


def stage_of(about):
    from official_bert.stages import Stage

    return Stage(
        steps=about["updates"],
        batch_size=about["batch_size"],
        max_seq_length=about["max_seq_length"],
        max_predictions_per_seq=about["predictions"],
        learning_rate=0.0,
    )


def first_state(folder, settings, schedule, seed, training):
    """The state after a first phase; made anew where its file is gone."""
    path = state_file(folder, settings, schedule, seed)
    if not path.exists():
        stage = stage_of(settings["first"])
        training.restart(seed)
        training.run(stage, rates(settings, "first", schedule), 1)
        save(path, training.state())
    with np.load(path) as arrays:
        return [arrays[name] for name in arrays.files]


def state_file(folder, settings, schedule, seed):
    """Of these settings alone: the quick form and others share the folder."""
    decisive = {name: value for name, value in settings.items() if name not in CLAIM.extent}
    form = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:12]
    return folder / f"first_{form}_{schedule.replace(' ', '_')}_{seed}.npz"


def save(path, state):
    """Whole or not at all."""
    part = path.with_suffix(f".{os.getpid()}.npz")
    np.savez(part, *state)
    part.replace(path)


@functools.cache
def training_of(folder: pathlib.Path, settings: str):
    """A `bert.Training` with LAMB, compiled once for all trials."""
    import bert

    import lamb_tf

    values = json.loads(settings)
    names = ("beta_2", "weight_decay", "global_clipnorm")
    optimizer = lamb_tf.LAMB(
        0.0, exclude_from_weight_decay=bert.EXCLUDED, **{name: values[name] for name in names}
    )
    positions = max(values[name]["max_seq_length"] for name in ("first", "second"))
    return bert.Training(folder, MODEL | values, positions, optimizer, 0)


def needs(trial, other):
    """Whether a second phase waits for its first."""
    follows = trial["phase"] == "second" and other["phase"] == "first"
    return follows and trial["seed"] == other["seed"]


# What comes out


def groups(records):
    """{(schedule, moments, rate): second phases, by seed}; a rate of None is the first phase's."""
    rates = {r["trial"].get("rate") for r in records} - {None}
    found = {
        (schedule, moments, rate): []
        for rate in (None, *sorted(rates))
        for schedule in LABELS
        for moments in MOMENTS
    }
    for record in sorted(records, key=lambda r: r["trial"]["seed"]):
        trial = record["trial"]
        if trial["phase"] == "second":
            found[trial["schedule"], trial["moments"], trial.get("rate")].append(record)
    return {arm: runs for arm, runs in found.items() if runs}


def tables(records, settings):
    """Losses of the second phases, and their differences from the paper's way at that rate."""
    found = groups(records)
    head = ("peak rate", "schedule", "moments", "runs", "loss before", "loss at the end, nats")
    rows = [_row(arm, runs, found, settings) for arm, runs in found.items()]
    return {"losses": [(*head, "accuracy", "difference", "diverged"), *rows]}


def _row(arm, runs, found, settings):
    schedule, moments, rate = arm
    gaps = stats.paired(runs, found.get((*REFERENCE, rate), []))
    return (
        f"{rate or settings['rate']:g}",
        LABELS[schedule],
        moments,
        len(runs),
        stats.spread([r["start"] for r in runs], "{:.3f}"),
        stats.spread([r["report"] for r in runs], "{:.3f}"),
        stats.spread([r["report_accuracy"] for r in runs], "{:.1f}", " %"),
        "–" if arm[:2] == REFERENCE else stats.signed(gaps),
        sum(r["diverged"] for r in runs),
    )


def continued_rate(settings):
    """With which one schedule over both phases begins the second."""
    first, second = (settings[phase]["updates"] for phase in ("first", "second"))
    return settings["rate"] * second / (first + second - settings["first_warmup"])


def draw(records, settings):
    """Losses over the second phase, and at its end over its highest rate."""
    found = groups(records)
    figure, (axes,) = stats.figure(1, 2, (11, 4.6))
    for (schedule, moments, rate), runs in found.items():
        known = [run for run in runs if not run["diverged"]]
        if rate is None and known:
            curves = [run["curve"] for run in known]
            steps = [0, *(line["step"] for line in curves[0])]
            losses = [mean(line["report"] for line in lines) for lines in zip(*curves)]
            start = mean(run["start"] for run in known)
            axes[0].plot(steps, [start, *losses], **_style(schedule, moments))
    axes[0].set(
        xlabel="steps of the second phase",
        ylabel="held-out loss, nats",
        title=f"rate {settings['rate']:g}, means",
    )
    for schedule in LABELS:
        for moments in MOMENTS:
            top = continued_rate(settings) if schedule == "continued" else settings["rate"]
            arms = {
                rate or top: [r["report"] for r in runs if not r["diverged"]]
                for (*arm, rate), runs in found.items()
                if arm == [schedule, moments]
            }
            stats.draw_means(axes[1], dict(sorted(arms.items())), **_style(schedule, moments))
    rates = sorted({rate or settings["rate"] for *_, rate in found} | {continued_rate(settings)})
    axes[1].set(xscale="log", xlabel="highest rate of the second phase", title="at the end")
    axes[1].set_xticks(rates, [f"{rate:.2g}" for rate in rates])
    axes[1].minorticks_off()
    axes[1].sharey(axes[0])
    if axes[0].lines:
        axes[0].set_ylim(bottom=axes[0].get_ylim()[0] - 0.6)  # room for the legend
        axes[0].legend(fontsize=7, loc="lower left", ncols=2)
    return figure


def _style(schedule, moments):
    label = f"{SHORT[schedule]}, moments {moments}"
    return {"color": COLORS[schedule], "ls": STYLES[moments], "label": label}


CLAIM = claim.Claim(
    name="mixed_batch",
    results="claims_mixed_batch",
    title="The mixed batch: value of the second warm-up",
    settings=SETTINGS,
    quick=QUICK,
    trials=trials,
    run=run,
    needs=needs,
    tables=tables,
    pictures={"": draw},
    alike=(("phase",),),
    lost=LOST,
    packages=("tensorflow", "matplotlib"),
    model=MODEL,
    extent=("seeds", "higher_rates"),
)
kept = functools.partial(claim.kept, CLAIM)


if __name__ == "__main__":
    sys.exit(claim.main(CLAIM, claim.parser(CLAIM, __doc__).parse_args()))
