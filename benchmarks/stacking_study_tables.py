"""Tables and the picture of `stacking_study.py`, from its records."""

import math
from statistics import mean, median

import numpy as np
import stats

LABELS = {
    "scratch": "from scratch",
    "mslt": "MSLT",
    "mslt_long": "MSLT, longer first and last stage",
    "doubling": "doubling",
}
COLORS = {"scratch": "#4477aa", "mslt": "#cc3311", "mslt_long": "#ee9944", "doubling": "#228833"}
SHARE_OF_TIME = 0.9  # of a run from scratch, whose loss then is the stricter level


# Comparison


def whole_runs(records):
    return [record for record in records if record["trial"]["kind"] == "whole"]


def chosen_rates(records):
    """The rate of each method with the lowest loss at the end, by seed 1."""
    best = {}
    for record in whole_runs(records):
        trial, loss = record["trial"], record["curve"][-1]["masked_lm_loss"]
        if trial["seed"] == 1 and loss < best.get(trial["method"], (math.inf,))[0]:
            best[trial["method"]] = loss, trial["rate"]
    return {method: rate for method, (_, rate) in best.items()}


def compared(records):
    """{method: records of its runs at the chosen rate}, in the order of `LABELS`."""
    chosen = chosen_rates(records)
    groups = {method: [] for method in LABELS if method in chosen}
    for record in sorted(whole_runs(records), key=lambda r: r["trial"]["seed"]):
        if record["trial"]["rate"] == chosen.get(record["trial"]["method"]):
            groups[record["trial"]["method"]].append(record)
    return groups


def full_depth(record):
    """The part of a curve in which the model has all its layers."""
    depths = [stage["depth"] for stage in record["stages"]]
    return [line for line in record["curve"] if depths[line["stage"]] == depths[-1]]


def levels(groups):
    """{name of its table: loss in nats}, by rules that do not depend on which method is ahead.

    The highest loss at the end of any run; the median from scratch after 90 % of its time.
    """
    ends = [r["curve"][-1]["masked_lm_loss"] for records in groups.values() for r in records]
    found = {"first level": max(ends)}
    if "scratch" in groups:
        at = [loss_at(r["curve"], SHARE_OF_TIME) for r in groups["scratch"]]
        found["second level"] = median(at)
    return found


def loss_at(curve, share):
    """The loss at a share of the whole time, interpolated linearly."""
    seconds, losses = zip(*((line["seconds"], line["masked_lm_loss"]) for line in curve))
    return float(np.interp(share * seconds[-1], seconds, losses))


def flops_until(stages, step):
    """Model FLOPs of the first `step` updates."""
    work = 0
    for stage in stages:
        count = min(step, stage["steps"])
        work += count * stage["flops"]
        step -= count
    return work


def tracing_until(stages, pace, step):
    """Seconds of the first calls of the stages that have begun by then."""
    seconds, begin = 0.0, 0
    for stage, each in zip(stages, pace, strict=True):
        seconds += each["first_call"] if step > begin else 0.0
        begin += stage["steps"]
    return seconds


def paces(records):
    """{method: for each stage the seconds of an update, and of its first call beyond that}."""
    return {r["trial"]["method"]: r["pace"] for r in records if r["trial"]["kind"] == "pace"}


def times(records, level, unit="seconds"):
    return [stats.first_at(full_depth(record), level, unit) for record in records]


def losses_at_end(records):
    return [record["curve"][-1]["masked_lm_loss"] for record in records]


# Tables and picture


def tables(records, settings):
    """The losses at the end, the way to each level, the stages, the rates."""
    groups = compared(records)
    if not groups:
        return {}
    scratch = groups.get("scratch")

    def less(method, runs):
        if not scratch or method == "scratch":
            return "–"
        gap, error = stats.difference(losses_at_end(scratch), losses_at_end(runs))
        return f"{gap:.3f}" + ("" if math.isnan(error) else f" ± {error:.3f}")

    def accuracies(runs):
        return [100 * r["curve"][-1]["masked_lm_accuracy"] for r in runs]

    def work(run):
        return sum(s["steps"] * s["flops"] for s in run["stages"]) / 1e12

    method = {"method": lambda method, *_: LABELS[method]}
    losses = method | {
        "rate": lambda _, runs: f"{runs[0]['trial']['rate']:g}",
        "runs": lambda _, runs: len(runs),
        "steps": lambda _, runs: f"{runs[0]['curve'][-1]['step']:,}",
        "loss at the end": lambda _, runs: stats.spread(losses_at_end(runs), "{:.3f}"),
        "less than from scratch": less,
        "accuracy": lambda _, runs: stats.spread(accuracies(runs), "{:.1f}", " %"),
        "model TFLOP": lambda _, runs: f"{mean(map(work, runs)):.3g}",
    }
    found = {"losses": stats.columns(losses, groups.items())}
    head = ("reached it", "seconds", "of these, tracing", "steps", "model TFLOP")
    for name, level in levels(groups).items():
        arrived = {m: arrivals(runs, level, paces(records)[m]) for m, runs in groups.items()}
        rows = [
            level_row(method, len(groups[method]), runs, arrived.get("scratch"))
            for method, runs in arrived.items()
        ]
        names = (f"to {level:.3f} nats", *head, "from scratch ÷ this", "without tracing")
        found[name] = [names, *rows]
    stages = method | {
        "layers": lambda _, s, p: s["depth"],
        "trained": lambda _, s, p: (
            "all" if s["trained"] == s["depth"] else f"{s['trained']} and heads"
        ),
        "steps": lambda _, s, p: f"{s['steps']:,}",
        "ms per step": lambda _, s, p: f"{1000 * p['seconds']:.1f}",
        "model GFLOP per step": lambda _, s, p: f"{s['flops'] / 1e9:.2f}",
        "GFLOP/s": lambda _, s, p: f"{s['flops'] / p['seconds'] / 1e9:.0f}",
        "first call, s": lambda _, s, p: f"{p['first_call']:.1f}",
    }
    found["stages"] = stats.columns(
        stages,
        (
            (method, stage, pace)
            for method, runs in groups.items()
            for stage, pace in zip(runs[0]["stages"], paces(records)[method], strict=True)
        ),
    )
    ends = {
        (r["trial"]["method"], r["trial"]["rate"]): r["curve"][-1]["masked_lm_loss"]
        for r in whole_runs(records)
        if r["trial"]["seed"] == 1
    }
    rates = {
        f"{rate:g}": lambda m, _, rate=rate: f"{ends[m, rate]:.3f}" if (m, rate) in ends else "–"
        for rate in settings["rates"]
    }
    return found | {"rates": stats.columns(method | rates, groups.items())}


def arrivals(records, level, pace):
    """Seconds, tracing seconds, steps and model TFLOP to a level, for each run that reaches it."""
    found = []
    for record, seconds, step in zip(
        records, times(records, level), times(records, level, "step"), strict=True
    ):
        if step is not None:
            tracing = tracing_until(record["stages"], pace, step)
            found.append((seconds, tracing, step, flops_until(record["stages"], step) / 1e12))
    return found


def level_row(method, runs, arrived, scratch):
    cells = [LABELS[method], f"{len(arrived)} of {runs}", *["–"] * 6]
    if arrived:
        forms = ("{:.0f}", "{:.0f}", "{:,.0f}", "{:.1f}")
        cells[2:6] = map(stats.spread, zip(*arrived, strict=True), forms)
    if arrived and scratch:
        other, mine = ([mean(values) for values in zip(*each)] for each in (scratch, arrived))
        cells[6] = f"{other[0] / mine[0]:.2f}"
        cells[7] = f"{(other[0] - other[1]) / (mine[0] - mine[1]):.2f}"
    return cells


def draw(records, settings):
    """Medians and bands over seconds and over steps, with the levels."""
    figure, (axes,) = stats.figure(1, 2, (11, 4.2), sharey=True)
    groups = compared(records)
    for method, runs in groups.items():
        curves = [record["curve"] for record in runs]
        for axis, unit in zip(axes, ("seconds", "step"), strict=True):
            stats.draw_band(axis, curves, unit, COLORS[method], LABELS[method])
    axes[0].set(xlabel="seconds of training (median)", ylabel="held-out masked-LM loss, nats")
    axes[1].set(xlabel="steps")
    for axis in axes:
        for level in levels(groups).values() if groups else ():
            axis.axhline(level, color="#777777", lw=0.8, ls="--")
    axes[0].legend()
    return figure
