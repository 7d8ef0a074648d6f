"""The differences between the optimizers called LAMB, and which of them matter.

    python benchmarks/claims/variants.py

Each trains the model of the demo with the same batches, schedule, decay and clipping: with the same
few rates first, then at the best of them with more seeds.

Needs matplotlib.
"""

import pathlib
import sys
from statistics import mean

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # for the modules of all studies

import bert
import claim
import stats
import trials as trials_of

from official_bert.stages import Optimizer

LABELS = {
    "paper": "the paper's v5, as its BERT code excludes",
    "uncorrected": "without bias correction",
    "nvlamb": "NVLAMB: every tensor adapted",
    "lambc": "LAMBC: ratio at most 1",
    "keras": "Keras': decay outside the ratio, every tensor adapted",
    "all": "no exclusions: every tensor decayed and adapted",
    "n": "N-LAMB",
    "nn": "NN-LAMB",
}
SHORT = LABELS | {
    "paper": "paper, v5",
    "uncorrected": "no bias correction",
    "nvlamb": "NVLAMB",
    "lambc": "LAMBC",
    "keras": "Keras",
    "all": "no exclusions",
}
SETTINGS = {
    "variants": [*LABELS],
    "max_seq_length": 16,
    "max_predictions_per_seq": 4,
    "batch_size": 64,
    "updates": 2400,
    "warmup_steps": 240,
    "rates": [6e-3, 3e-3, 1.2e-2, 2.4e-2],  # the first is run first
    "beta_2": 0.98,
    "epsilon": 1e-6,
    "weight_decay": 0.01,
    "global_clipnorm": 1.0,
    "seeds": 3,
    "evaluations": 5,
}
QUICK = {"updates": 1400, "warmup_steps": 140, "rates": [6e-3], "seeds": 1}


def trials(settings, records):
    """All forms at each rate, then at their best, seed by seed."""
    tuning = [
        trial("tuning", v, 1, rate) for rate in settings["rates"] for v in settings["variants"]
    ]
    seeds = range(2, settings["seeds"] + 1)
    return tuning + [trial("best", v, seed) for seed in seeds for v in settings["variants"]]


def trial(part, variant, seed, rate=None):
    return {"part": part, "variant": variant, "seed": seed, "rate": rate}


def optimizer(variant, settings):
    """The optimizer of a variant."""
    changes = {
        "paper": {},
        "uncorrected": {"settings": {"bias_correction": False}},
        "nvlamb": {"exclude_from_layer_adaptation": ()},
        "lambc": {"settings": {"trust_ratio_bounds": [0.0, 1.0]}},
        "keras": {"type": "keras.optimizers:Lamb"},
        "all": {"exclude_from_weight_decay": ()},
        "n": {"settings": {"nesterov": "first"}},
        "nn": {"settings": {"nesterov": "both"}},
    }[variant]
    names = ("beta_2", "epsilon", "weight_decay", "global_clipnorm")
    return Optimizer(**{name: settings[name] for name in names}, **changes)


def run(options, settings, trial, records):
    """Trains once; see `claim.Claim`."""
    lengths = {settings["max_seq_length"]: settings["max_predictions_per_seq"]}
    model, data = bert.MODEL | settings, options.data_dir
    bert.make_data(data, model, lengths)
    rate = trial["rate"] or best(records, trial["variant"])["used_rate"]
    stage = trials_of.stage_of(
        settings,
        steps=settings["updates"],
        batch_size=settings["batch_size"],
        learning_rate=rate,
        warmup_steps=settings["warmup_steps"],
    )
    made = optimizer(trial["variant"], settings)
    found = bert.train(data, model, stage, made, trial["seed"], settings["evaluations"])
    return found | {"used_rate": rate}


def needs(trial, other):
    """Whether a run at the chosen rate waits for one of those it is chosen from."""
    chooses = trial["rate"] is None and other["rate"] is not None
    return chooses and trial["variant"] == other["variant"]


def stands(settings, record, records):
    """Whether a run has the rate that would be chosen for it now."""
    variant = record["trial"]["variant"]
    if record["trial"]["part"] == "tuning":
        return True
    found = groups(records).get(variant)
    return bool(found) and record["used_rate"] == found[0]["used_rate"]


def problem(settings):
    """The error in the settings, or None."""
    unknown = [name for name in settings["variants"] if name not in LABELS]
    if unknown:
        return f"variants must be among {', '.join(LABELS)}; got {', '.join(unknown)}."
    return None if settings["rates"] else "rates must contain a number; got []."


# The results


def best(records, variant):
    """The run of its first seed that has the lowest loss on the set to choose by."""
    return stats.chosen(_tuning(records, variant), "select", lowest=True)


def _tuning(records, variant):
    wanted = {"part": "tuning", "variant": variant}
    return [r for r in records if wanted.items() <= r["trial"].items()]


def groups(records):
    """{variant: its runs at its best rate, by seed}."""
    found = {v: [best(records, v)] for v in LABELS if _tuning(records, v)}
    for record in sorted(records, key=lambda r: r["trial"]["seed"]):
        if record["trial"]["part"] == "best" and record["trial"]["variant"] in found:
            found[record["trial"]["variant"]].append(record)
    return found


def paired(runs, found):
    """Differences from the paper's form, seed by seed."""
    return stats.paired(runs, found.get("paper", []))


def tables(records, settings):
    """The losses at the best rate, and with the first seed at every rate."""
    found = groups(records)
    label = {"variant": lambda variant, _: LABELS[variant]}
    losses = {
        **label,
        "rate": lambda _, runs: f"{runs[0]['used_rate']:g}",
        **stats.loss_columns("held-out loss, nats"),
        "difference": lambda v, runs: "–" if v == "paper" else stats.signed(paired(runs, found)),
        "diverged": stats.diverged,
    }
    rates = label | {
        f"rate {rate:g}": lambda variant, _, rate=rate: _loss(_tuning(records, variant), rate)
        for rate in sorted(settings["rates"])
    }
    return {
        name: stats.columns(of, found.items())
        for name, of in (("losses", losses), ("rates", rates))
    }


def _loss(runs, rate):
    losses = [run["select"] for run in runs if run["used_rate"] == rate]
    return "–" if not losses else "diverged" if losses[0] is None else f"{losses[0]:.3f}"


def draw(records, settings):
    """The losses and their differences from the paper's form, a dot a seed."""
    found = groups(records)
    figure, (axes,) = stats.figure(1, 2, (11, 4.2))
    names = list(reversed(found))
    for place, variant in enumerate(names):
        runs, color = found[variant], "#cc3311" if variant == "paper" else "#4477aa"
        losses = [run["report"] for run in runs if run["report"] is not None]
        gaps = paired(runs, found)
        for axis, values in zip(axes, (losses, gaps)):
            axis.plot(values, [place] * len(values), "o", color=color, alpha=0.7)
            if values:
                axis.plot([mean(values)], [place], "|", color=color, ms=22, mew=2.5)
        if gaps and variant != "paper":
            style = {"color": color, "capsize": 4, "lw": 1}
            axes[1].errorbar([mean(gaps)], [place], xerr=stats.half_width(gaps), **style)
    axes[0].set_yticks(range(len(names)), [SHORT[variant] for variant in names])
    axes[1].set_yticks(range(len(names)), [""] * len(names))
    axes[0].set_xlabel("held-out masked-LM loss, nats; a dot a seed, the bar their mean")
    axes[1].axvline(0, color="#777777", lw=0.8, ls="--")
    axes[1].set_xlabel("difference from the paper's form with the same seed; 95 % interval")
    for axis in axes:
        axis.grid(axis="x", alpha=0.3)
    return figure


CLAIM = claim.of(
    globals(),
    "variants",
    "Variants of LAMB compared",
    lost=bert.LOST,
    model=bert.MODEL,
    extent=("variants", "rates", "seeds"),
)


if __name__ == "__main__":
    sys.exit(claim.script(CLAIM, __doc__))
