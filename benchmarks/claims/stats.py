"""What the pages of the studies are made of: tables, statistics over seeds, the best, a picture."""

import math
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence
from statistics import mean, stdev

ROOT = pathlib.Path(__file__).parents[2]
# For what all studies there share, and for the packages of this repository where none is installed.
sys.path += [str(ROOT / "benchmarks"), str(ROOT)]

import curves  # noqa: E402  # after the path

# Student's t for 95 %, by the number of values; for more, that of the last is nearly right.
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}


def trial_name(trial: dict) -> str:
    """A trial in words: its values that are not None."""
    return ", ".join(f"{key} {value}" for key, value in trial.items() if value is not None)


def table(head: Sequence[str], rows: Iterable[Sequence]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def spread(values: Sequence[float], form: str = "{:.2f}") -> str:
    """Mean ± standard deviation, of those that are finite."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return curves.with_deviation(known, form) if known else "–"


def paired(runs: Sequence[dict], others: Sequence[dict]) -> list[float]:
    """Differences of the losses to report, seed by seed; those that diverged have none."""
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
    """Of the 95 % interval of their mean, by Student's t; 0 where there is one value."""
    if len(values) < 2:
        return 0.0
    return STUDENT[min(len(values), max(STUDENT))] * stdev(values) / math.sqrt(len(values))


def within(values: Sequence[float], margin: float) -> bool | None:
    """Whether the mean of differences is at most `margin`; None where their interval has both."""
    low, high = (mean(values) + sign * half_width(values) for sign in (-1, 1))
    return None if low <= margin < high else high <= margin


def chosen(records: Iterable[dict], key: str, lowest: bool = False) -> dict:
    """The record whose value of `key` is the best, of equal ones by their names.

    Diverged ones are the last resort.
    """

    def merit(record):
        value = record[key]
        if value is None or not math.isfinite(value):
            return -math.inf
        return -value if lowest else value

    return max(records, key=lambda record: (merit(record), trial_name(record["trial"])))


def picture(draw: Callable, path: os.PathLike, columns: int, size: tuple[float, float]) -> None:
    """Saves what `draw(axes)` puts on `columns` axes.

    Args:
        draw: Function of a list of axes.
        path: The PNG file.
        columns: Number of axes beside each other.
        size: Width and height in inches.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, columns, figsize=size, squeeze=False)
    draw(list(axes[0]))
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def means_and_ranges(axis, points: dict[float, Sequence[float]], **style) -> None:
    """A line through the means at each x, with bars from the least to the most.

    Args:
        axis: Of matplotlib.
        points: {x: values}; where there are no values, there is no point.
        style: Arguments of `errorbar`.
    """
    points = {x: values for x, values in points.items() if values}
    if not points:
        return
    means = [mean(values) for values in points.values()]
    low = [m - min(values) for m, values in zip(means, points.values())]
    high = [max(values) - m for m, values in zip(means, points.values())]
    axis.errorbar(list(points), means, [low, high], marker="o", capsize=3, **style)
