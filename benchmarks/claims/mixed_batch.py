"""The value of the second warm-up of a mixed-batch run.

    python benchmarks/claims/mixed_batch.py

The demo's BERT is trained in two phases: short sequences in a large batch, then long ones in half
of it. The rate of the second phase rises from 0 again, or begins at its top, or is the tail of one
schedule over both; LAMB's moments are kept or begin at 0. The first two are tried at higher rates
too, where a warm-up may be needed.

Needs matplotlib.
"""

import hashlib
import json
import pathlib
import sys
from statistics import mean

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # for the modules of all studies

import bert
import claim
import stats

from official_bert.stages import Optimizer, Stage

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
    """For each seed the two first phases, then the second phases; at last the higher rates."""
    found = []
    for seed in range(1, settings["seeds"] + 1):
        found += [new_trial("first", which, None, seed) for which in ("falls to 0", "one schedule")]
        for schedule in LABELS:
            found += [new_trial("second", schedule, moments, seed) for moments in MOMENTS]
    return found + [
        new_trial("second", schedule, moments, seed, rate)
        for rate in settings["higher_rates"]
        for seed in range(1, settings["seeds"] + 1)
        for schedule in ("warm-up", "restart")
        for moments in MOMENTS
    ]


def new_trial(phase, schedule, moments, seed, rate=None):
    """A trial; a rate of None is the rate of the settings."""
    values = {"phase": phase, "schedule": schedule, "moments": moments, "seed": seed}
    return values | {"rate": rate}


def stage_of(settings, trial):
    """The stage of a phase.

    One schedule over both phases is linear: the first phase ends at the rate at which the second
    begins.
    """
    about, tail = settings[trial["phase"]], continued_rate(settings)
    top, warmup, end = settings["rate"], settings["first_warmup"], 0.0
    if trial["phase"] == "first":
        end = tail if trial["schedule"] == "one schedule" else 0.0
    elif trial["schedule"] == "continued":
        top, warmup = tail, 0
    else:
        top = trial["rate"] or top
        warmup = settings["second_warmup"] if trial["schedule"] == "warm-up" else 0
    return Stage(
        steps=about["updates"],
        batch_size=about["batch_size"],
        max_seq_length=about["max_seq_length"],
        max_predictions_per_seq=about["predictions"],
        learning_rate=top,
        warmup_steps=warmup,
        end_learning_rate=end,
    )


def run(options, settings, trial, records):
    """Trains one phase; see `claim.Claim`. The first leaves its run in `data_dir`."""
    phases = settings["first"], settings["second"]
    lengths = {p["max_seq_length"]: p["predictions"] for p in phases}
    bert.make_data(options.data_dir, bert.MODEL | settings, lengths)
    if trial["phase"] == "first":
        return train(options.data_dir, settings, trial)
    before = "one schedule" if trial["schedule"] == "continued" else "falls to 0"
    folder = first_run(options.data_dir, settings, before, trial["seed"])
    if not folder.exists():  # of trials that were done elsewhere
        train(options.data_dir, settings, new_trial("first", before, None, trial["seed"]))
    start = {"init_checkpoint": str(folder), "init_moments": trial["moments"] == "kept"}
    return train(options.data_dir, settings, trial, **start)


def train(folder, settings, trial, **start):
    is_first = trial["phase"] == "first"
    keep = first_run(folder, settings, trial["schedule"], trial["seed"]) if is_first else None
    names = ("beta_2", "weight_decay", "global_clipnorm")
    stage = stage_of(settings, trial)
    found = bert.train(
        folder,
        bert.MODEL | settings,
        stage,
        Optimizer(**{name: settings[name] for name in names}),
        trial["seed"],
        3 if is_first else settings["evaluations"],
        positions=max(settings[name]["max_seq_length"] for name in ("first", "second")),
        keep=None if keep and keep.exists() else keep,
        **start,
    )
    return found | {"peak": stage.learning_rate}


def first_run(folder, settings, schedule, seed):
    """The folder of a first phase; other settings, as of the quick form, have their own."""
    decisive = {name: value for name, value in settings.items() if name not in CLAIM.extent}
    form = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:12]
    return folder / f"first_{form}_{schedule.replace(' ', '_')}_{seed}"


def needs(trial, other):
    """Whether a second phase waits for its first."""
    follows = trial["phase"] == "second" and other["phase"] == "first"
    return follows and trial["seed"] == other["seed"]


# The results


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

    def difference(schedule, moments, rate, runs):
        gaps = stats.paired(runs, found.get((*REFERENCE, rate), []))
        return "–" if (schedule, moments) == REFERENCE else stats.signed(gaps)

    losses = stats.loss_columns("loss at the end, nats")
    columns = {
        "peak rate": lambda *arm: f"{arm[2] or settings['rate']:g}",
        "schedule": lambda *arm: LABELS[arm[0]],
        "moments": lambda *arm: arm[1],
        "runs": losses.pop("runs"),
        "loss before": lambda *arm: stats.spread([r["start"] for r in arm[-1]], "{:.3f}"),
        **losses,
        "difference": difference,
        "diverged": stats.diverged,
    }
    return {"losses": stats.columns(columns, ((*arm, runs) for arm, runs in found.items()))}


def continued_rate(settings):
    """The rate at which one schedule over both phases begins the second."""
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


CLAIM = claim.of(
    globals(),
    "mixed_batch",
    "The mixed batch: value of the second warm-up",
    lost=bert.LOST,
    model=bert.MODEL,
    extent=("seeds", "higher_rates"),
)


if __name__ == "__main__":
    sys.exit(claim.script(CLAIM, __doc__))
