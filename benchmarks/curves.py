"""Figures and words for the pages of studies: held-out curves, seed by seed.

A curve is a list of evaluations in order, dictionaries with `step`, `seconds`, `masked_lm_loss`.
"""

from statistics import mean, median, stdev

import machine

PLATEAU = 5.5  # below it a model knows more than the frequencies of words


def first_at(curve, level, unit, loss="masked_lm_loss"):
    """Where a curve first comes to a loss, between two evaluations by a line; None: nowhere.

    Args:
        curve: Evaluations, in order.
        level: Loss, in nats.
        unit: `"seconds"` or `"step"`.
        loss: The key of the loss.
    """
    before = None
    for here in curve:
        if here[loss] <= level:
            if before is None:
                return here[unit]
            share = (before[loss] - level) / (before[loss] - here[loss])
            return before[unit] + share * (here[unit] - before[unit])
        before = here
    return None


def bands(curves):
    """{step: (least, median, most)} of the loss over seeds, at the evaluations that all have."""
    losses = [{line["step"]: line["masked_lm_loss"] for line in curve} for curve in curves]
    common = sorted(set.intersection(*(set(each) for each in losses)))
    found = {step: [each[step] for each in losses] for step in common}
    return {step: (min(v), median(v), max(v)) for step, v in found.items()}


def draw_band(axis, curves, unit, color, label):
    """The median over seeds as a line, at median times, in a band from the least to the most."""
    places = [{line["step"]: line[unit] for line in curve} for curve in curves]
    band = bands(curves)
    x = [median(each[step] for each in places) for step in band]
    least, middle, most = zip(*band.values())
    axis.plot(x, middle, color=color, label=label)
    axis.fill_between(x, least, most, color=color, alpha=0.25, lw=0)


def with_deviation(values, form):
    """Mean ± standard deviation."""
    spread = f" ± {form.format(stdev(values))}" if len(values) > 1 else ""
    return form.format(mean(values)) + spread


def with_range(values):
    """Median (least … most) of the values that are not `None`, and how many are."""
    reached = [value for value in values if value is not None]
    if not reached:
        return "not reached"
    text = f"{median(reached):,.0f} ({min(reached):,.0f} … {max(reached):,.0f})"
    missing = len(values) - len(reached)
    return f"{text}; not reached by {missing}" if missing else text


def made_on(records, packages, jobs=1):
    """The machines, the versions and the dates of the records, as the beginning of a sentence.

    Args:
        records: Of trials.
        packages: Names of those whose versions are said.
        jobs: Number of trials at a time, each on the cores that its record has.
    """
    about = records[-1]["machine"]
    processors = " and ".join(dict.fromkeys(record["machine"]["cpu"] for record in records))
    versions = ", ".join(f"{name} {about[name]}" for name in packages if name in about)
    dates = sorted(record["date"] for record in records)
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    cores = machine.named_cores(jobs * about["cores"])
    return f"{processors}, {cores}; Python {about['python']}, {versions}; {when}"


def settings_table(settings):
    rows = [f"| `{name}` | {value} |" for name, value in settings.items() if value is not None]
    return "\n".join(["| setting | |", "|---|---|", *rows])
