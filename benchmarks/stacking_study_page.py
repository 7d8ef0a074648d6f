"""The page and the picture of `stacking_study.py`, from its records alone."""

import math
import pathlib
import shlex
from statistics import mean, median, stdev

from curves import PLATEAU, draw_band, first_at, made_on, settings_table, with_deviation

from official_bert.system.whole_files import write_text

LABELS = {
    "scratch": "from scratch",
    "mslt": "MSLT",
    "mslt_long": "MSLT, longer first and last stage",
    "doubling": "doubling",
}
COLORS = {"scratch": "#4477aa", "mslt": "#cc3311", "mslt_long": "#ee9944", "doubling": "#228833"}
SHARE_OF_TIME = 0.9  # of a run from scratch, at which its loss is the stricter level


def write(path, records, settings, arguments, trials):
    """Writes `path` and the picture beside it, as soon as a whole run of any method is done.

    Args:
        path: The page, ending in `.md`.
        records: Finished trials, as in the JSON lines.
        settings: Those of the study.
        arguments: Those of the command.
        trials: Number of trials of the whole study.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    groups = compared(records)
    if groups:
        draw(groups, levels(groups), path.with_suffix(".png"))
        write_text(path, text(groups, records, settings, arguments, trials, path.stem))


# What is compared


def whole_runs(records):
    return [record for record in records if record["trial"]["kind"] == "whole"]


def chosen_rates(records):
    """The rate of each method whose run with seed 1 ended lowest."""
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
    """The part of a curve at which the model has all its layers."""
    depths = [stage["depth"] for stage in record["stages"]]
    return [line for line in record["curve"] if depths[line["stage"]] == depths[-1]]


def levels(groups):
    """{what it is: loss in nats}, by rules that know nothing of which method is ahead."""
    ends = [r["curve"][-1]["masked_lm_loss"] for records in groups.values() for r in records]
    found = {"the highest loss at the end of any run": max(ends)}
    if "scratch" in groups:
        at = [loss_at(r["curve"], SHARE_OF_TIME) for r in groups["scratch"]]
        found[f"the median from scratch after {SHARE_OF_TIME:.0%} of its time"] = median(at)
    return found


def loss_at(curve, share):
    """The loss at a share of the whole time, between two evaluations by a line."""
    at = share * curve[-1]["seconds"]
    after = next(i for i, line in enumerate(curve) if line["seconds"] >= at)
    if not after:
        return curve[0]["masked_lm_loss"]
    low, high = curve[after - 1 : after + 1]
    part = (at - low["seconds"]) / (high["seconds"] - low["seconds"])
    return low["masked_lm_loss"] + part * (high["masked_lm_loss"] - low["masked_lm_loss"])


def flops_until(stages, step):
    """Model FLOPs of the first `step` updates."""
    work = 0
    for stage in stages:
        count = min(step, stage["steps"])
        work += count * stage["flops"]
        step -= count
    return work


def tracing_until(stages, pace, step):
    """Seconds that the first calls of the stages begun by then have taken."""
    seconds, begin = 0.0, 0
    for stage, each in zip(stages, pace, strict=True):
        seconds += each["first_call"] if step > begin else 0.0
        begin += stage["steps"]
    return seconds


# The picture


def draw(groups, lines, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.2), sharey=True)
    for method, records in groups.items():
        curves = [record["curve"] for record in records]
        for axis, unit in zip(axes, ("seconds", "step"), strict=True):
            draw_band(axis, curves, unit, COLORS[method], LABELS[method])
    axes[0].set(xlabel="seconds of training (median)", ylabel="held-out masked-LM loss, nats")
    axes[1].set(xlabel="steps")
    for axis in axes:
        for level in lines.values():
            axis.axhline(level, color="#777777", lw=0.8, ls="--")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


# The page


def text(groups, records, settings, arguments, trials, name):
    rates = ", ".join(f"{rate:g}" for rate in settings["rates"])
    paces = {r["trial"]["method"]: r["pace"] for r in records if r["trial"]["kind"] == "pace"}
    sections = [level_section(groups, what, level, paces) for what, level in levels(groups).items()]
    return f"""# Growing an encoder: time to equal loss

A BERT of {settings["num_hidden_layers"]} layers of {settings["hidden_size"]} in \
{settings["seconds"]} s of training, from scratch and by [MSLT and doubling](../stacking.md):

{chr(10).join(findings(groups))}

![Held-out loss over seconds and over steps]({name}.png)

Lines are medians over seeds, bands range from the minimum to the maximum; dashed lines are the \
levels below. While a growing model has fewer layers, the curve is that of the smaller model.

| method | rate | runs | steps | loss at the end | accuracy | model TFLOP |
|---|---|---|---|---|---|---|
{chr(10).join(end_row(method, found) for method, found in groups.items())}

Mean ± standard deviation over seeds, on held-out documents, here and below.

{chr(10).join(sections)}
The time to a level is interpolated linearly between evaluations of the model with all its layers; \
means are over the runs that reach it. Tracing is the first call of each stage begun by then. It \
takes seconds, however long a run is.

## What is compared

The text is the English text that comes with Python. MSLT runs in equal stages, and with a longer \
first and last stage. Text, batch, masks, seeds, optimizer (LAMB), evaluation and share of warm-up \
are the same for all methods.

- **Time.** The {settings["seconds"]} s include tracing, but not evaluations and start-up. The \
number of steps in this time is measured for each method beforehand; a method with cheaper steps \
makes more of them.
- **Rate.** In each stage the rate falls linearly to zero. Each method starts at the better one of \
{rates}, by the loss at the end of whole runs with seed 1. These runs count among those compared.

## The stages

| method | layers | trained | steps | ms per step | model GFLOP per step | GFLOP/s | first \
call, s |
|---|---|---|---|---|---|---|---|
{chr(10).join(stage_rows(groups, paces))}

Times come from a short trial before the others; the first call of a stage traces its graph.

## The rates

| method | {" | ".join(f"{rate:g}" for rate in settings["rates"])} |
|---|{"---|" * len(settings["rates"])}
{chr(10).join(rate_row(method, records, settings["rates"]) for method in groups)}

Loss at the end with seed 1.

## How it was measured

{made_on(records, ("tensorflow", "tensorflow-cpu"))}. {len(records)} of {trials} trials are done.

Made by `{shlex.join(["python", *arguments])}`, which writes this page. Its `--results` has one \
line per trial with command, settings and curve.

{settings_table(settings)}
"""


def findings(groups):
    """What comes out, as sentences."""
    found = levels(groups)
    scratch = groups.get("scratch", [])
    lines = []
    for method, records in groups.items():
        if method == "scratch" or not scratch:
            continue
        said = [
            ratio_text(level, times(scratch, level), times(records, level))
            for level in found.values()
        ]
        lines.append(f"- **{LABELS[method]}** {'; '.join(said)}; {gap_text(records, scratch)}.")
    highest = max(found.values())
    if highest >= PLATEAU:
        lines.append(
            f"- {highest:.2f} nats are on the plateau of word frequencies (above {PLATEAU}): the "
            "comparison at this level does not apply to models that have learned more."
        )
    return lines or ["No runs to compare with training from scratch yet."]


def times(records, level, unit="seconds"):
    return [first_at(full_depth(record), level, unit) for record in records]


def ratio_text(level, scratch, method):
    if None in scratch + method:
        reached = sum(time is not None for time in method)
        return f"reaches {level:.3f} nats in {reached} of {len(method)} runs"
    mine, other = mean(method), mean(scratch)
    return (
        f"reaches {level:.3f} nats after {mine:.0f} s, training from scratch after {other:.0f} s: "
        f"{other / mine:.2f} times as long"
    )


def gap_text(records, scratch):
    """The difference of the losses at the end, with its standard error (Welch's)."""
    ends = [losses_at_end(each) for each in (records, scratch)]
    gap = mean(ends[0]) - mean(ends[1])
    said = f"at the end its loss is {'lower' if gap < 0 else 'higher'} by {abs(gap):.3f}"
    if min(map(len, ends)) < 2:
        return f"{said} nats, of too few seeds for an error"
    error = math.sqrt(sum(stdev(values) ** 2 / len(values) for values in ends))
    return f"{said} ± {error:.3f} nats (standard error)"


def losses_at_end(records):
    return [record["curve"][-1]["masked_lm_loss"] for record in records]


def end_row(method, records):
    work = [sum(s["steps"] * s["flops"] for s in record["stages"]) / 1e12 for record in records]
    cells = (
        LABELS[method],
        f"{records[0]['trial']['rate']:g}",
        len(records),
        f"{records[0]['curve'][-1]['step']:,}",
        with_deviation(losses_at_end(records), "{:.3f}"),
        with_deviation([100 * r["curve"][-1]["masked_lm_accuracy"] for r in records], "{:.1f}")
        + " %",
        f"{mean(work):.3g}",
    )
    return _row(cells)


def level_section(groups, what, level, paces):
    arrived = {method: arrivals(found, level, paces[method]) for method, found in groups.items()}
    scratch = arrived.get("scratch")
    rows = [
        level_row(method, len(groups[method]), found, scratch) for method, found in arrived.items()
    ]
    return f"""## To {level:.3f} nats: {what}

| method | reached it | seconds | of these, tracing | steps | model TFLOP \
| from scratch ÷ this | without tracing |
|---|---|---|---|---|---|---|---|
{chr(10).join(rows)}
"""


def arrivals(records, level, pace):
    """Seconds, those of tracing, updates and model TFLOP to a level, for each run that is there."""
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
        cells[2:6] = map(with_deviation, zip(*arrived, strict=True), forms)
    if arrived and scratch:
        other, mine = ([mean(values) for values in zip(*each)] for each in (scratch, arrived))
        cells[6] = f"{other[0] / mine[0]:.2f}"
        cells[7] = f"{(other[0] - other[1]) / (mine[0] - mine[1]):.2f}"
    return _row(cells)


def stage_rows(groups, paces):
    return [
        _row(stage_cells(method, stage, **pace))
        for method, found in groups.items()
        for stage, pace in zip(found[0]["stages"], paces[method], strict=True)
    ]


def stage_cells(method, stage, seconds, first_call):
    return (
        LABELS[method],
        stage["depth"],
        "all" if stage["trained"] == stage["depth"] else f"{stage['trained']} and heads",
        f"{stage['steps']:,}",
        f"{1000 * seconds:.1f}",
        f"{stage['flops'] / 1e9:.2f}",
        f"{stage['flops'] / seconds / 1e9:.0f}",
        f"{first_call:.1f}",
    )


def rate_row(method, records, rates):
    ends = {
        r["trial"]["rate"]: r["curve"][-1]["masked_lm_loss"]
        for r in whole_runs(records)
        if r["trial"]["method"] == method and r["trial"]["seed"] == 1
    }
    return _row([LABELS[method], *(f"{ends[r]:.3f}" if r in ends else "–" for r in rates)])


def _row(cells):
    return f"| {' | '.join(map(str, cells))} |"
