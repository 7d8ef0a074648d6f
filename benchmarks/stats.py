"""Statistics over seeds, tables, curves and pictures of the studies.

A run is a record of a trial. A curve is a list of evaluations in order, dictionaries with `step`,
`seconds` and losses in nats.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, median, stdev

PLATEAU = 5.5  # nats: a lower loss needs more than the frequencies of words

# Student's t for 95 %, by the number of values; beyond the last, the last is nearly right.
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}


def trial_name(trial: dict) -> str:
    """A trial in words: its values that are not None."""
    return ", ".join(f"{key} {value}" for key, value in trial.items() if value is not None)


def columns(cells: Mapping[str, Callable], rows: Iterable[tuple]) -> list[tuple]:
    """A table, the head first, from {head of a column: function of a row's values}."""
    return [(*cells,), *(tuple(cell(*row) for cell in cells.values()) for row in rows)]


def loss_columns(name: str) -> dict[str, Callable]:
    """Columns with the number of runs, their losses and accuracies; a row ends with the runs."""
    return {
        "runs": lambda *row: len(row[-1]),
        name: lambda *row: spread([r["report"] for r in row[-1]], "{:.3f}"),
        "accuracy": lambda *row: spread([r["report_accuracy"] for r in row[-1]], "{:.1f}", " %"),
    }


def diverged(*row) -> int:
    """Number of the diverged among the runs at the end of a row."""
    return sum(r["diverged"] for r in row[-1])


def spread(values: Iterable[float | None], form: str = "{:.2f}", unit: str = "") -> str:
    """Mean ± standard deviation of the finite values; "–" without any."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return f"–{unit}"
    deviation = f" ± {form.format(stdev(known))}" if len(known) > 1 else ""
    return form.format(mean(known)) + deviation + unit


def median_and_range(values: Sequence[float | None]) -> str:
    """Median (minimum … maximum) of the values, and the number of those that are None."""
    reached = [value for value in values if value is not None]
    if not reached:
        return "not reached"
    text = f"{median(reached):,.0f} ({min(reached):,.0f} … {max(reached):,.0f})"
    missing = len(values) - len(reached)
    return f"{text}; not reached by {missing}" if missing else text


def paired(runs: Sequence[dict], others: Sequence[dict]) -> list[float]:
    """Differences of the reported losses, seed by seed, without diverged runs."""
    other = {r["trial"]["seed"]: r["report"] for r in others}
    pairs = [(r["report"], other.get(r["trial"]["seed"])) for r in runs]
    return [mine - theirs for mine, theirs in pairs if None not in (mine, theirs)]


def signed(values: Sequence[float], digits: int = 3) -> str:
    """Mean of differences ± half the width of its 95 % interval; of one value, the value."""
    if not values:
        return "–"
    interval = f" ± {half_width(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):+.{digits}f}{interval}"


def half_width(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of the mean (Student's t); 0 for one value."""
    if len(values) < 2:
        return 0.0
    return STUDENT[min(len(values), max(STUDENT))] * stdev(values) / math.sqrt(len(values))


def within(values: Sequence[float], margin: float) -> bool | None:
    """Whether the mean of differences is at most `margin`; None if its interval contains it."""
    low, high = (mean(values) + sign * half_width(values) for sign in (-1, 1))
    return None if low <= margin < high else high <= margin


def difference(values: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """The difference of two means and its standard error (Welch's); NaN for one value a side."""
    gap = mean(values) - mean(others)
    if min(len(values), len(others)) < 2:
        return gap, math.nan
    return gap, math.sqrt(sum(stdev(side) ** 2 / len(side) for side in (values, others)))


def chosen(records: Iterable[dict], key: str, lowest: bool = False) -> dict:
    """The record with the best value of `key`; ties by name, diverged ones last."""

    def merit(record):
        value = record[key]
        if value is None or not math.isfinite(value):
            return -math.inf
        return -value if lowest else value

    return max(records, key=lambda record: (merit(record), trial_name(record["trial"])))


# Curves


def first_at(curve, level, unit, loss="masked_lm_loss"):
    """The `"seconds"` or `"step"` where a loss is first reached, interpolated linearly, or None."""
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
    """{step: (minimum, median, maximum)} of the loss over seeds, at common evaluations."""
    losses = [{line["step"]: line["masked_lm_loss"] for line in curve} for curve in curves]
    common = sorted(set.intersection(*(set(each) for each in losses)))
    found = {step: [each[step] for each in losses] for step in common}
    return {step: (min(v), median(v), max(v)) for step, v in found.items()}


# Pictures


def figure(rows: int, columns: int, size: tuple[float, float], **options):
    """A figure of matplotlib, `size` in inches, and its axes as an array (rows, columns)."""
    from matplotlib.figure import Figure

    found = Figure(figsize=size)
    return found, found.subplots(rows, columns, squeeze=False, **options)


def draw_band(axis, curves, unit, color, label):
    """The median over seeds as a line, at median times, in a band from minimum to maximum."""
    places = [{line["step"]: line[unit] for line in curve} for curve in curves]
    band = bands(curves)
    x = [median(each[step] for each in places) for step in band]
    least, middle, most = zip(*band.values())
    axis.plot(x, middle, color=color, label=label)
    axis.fill_between(x, least, most, color=color, alpha=0.25, lw=0)


def draw_means(axis, points: dict[float, Sequence[float]], **style) -> None:
    """A line through the means of {x: values}, with bars from minimum to maximum."""
    points = {x: values for x, values in points.items() if values}
    if not points:
        return
    means = [mean(values) for values in points.values()]
    low = [m - min(values) for m, values in zip(means, points.values())]
    high = [max(values) - m for m, values in zip(means, points.values())]
    axis.errorbar(list(points), means, [low, high], marker="o", capsize=3, **style)
