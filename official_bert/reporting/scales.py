"""Axis scales, ticks and number formatting."""

import math
from collections.abc import Iterable
from typing import NamedTuple


class Scale(NamedTuple):
    """A range of numbers along an axis.

    Attributes:
        low, high: The values at the two ends.
        ticks: The values that are written at the axis.
        logarithmic: Whether equal factors have equal lengths.
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Position of `value`: 0 at `low`, 1 at `high`; values beyond them are at the end."""
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        return min(1.0, max(0.0, (value - low) / (high - low)))


def linear(values: Iterable[float], from_zero: bool = False, count: int = 5) -> Scale:
    """A linear scale around the values, with about `count` round ticks."""
    low, high = min(values), max(values)
    low = 0.0 if from_zero else low
    if high <= low:  # a single value
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    step = round_step((high - low) / count)
    first, last = 0 if from_zero else math.floor(low / step), math.ceil(high / step)
    ticks = tuple(number * step for number in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], ticks)


def steps(last: float, count: int = 6) -> Scale:
    """The scale of the steps of a run, from 0 to exactly the last."""
    step = max(1, round_step(last / count))
    return Scale(0, max(last, 1), tuple(range(0, int(last) + 1, int(step))))


def logarithmic(values: Iterable[float]) -> Scale:
    """A logarithmic scale around positive values, with 1, 2 and 5 times powers of ten as ticks."""
    low, high = min(values), max(values)
    low, high = (low / 2, high * 2) if high < 1.5 * low else (low * 0.95, high * 1.05)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) < 4 else (1,)
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    ticks = [tick for tick in ticks if low <= tick <= high]
    if len(ticks) < 3:  # within less than a power of ten
        ticks = [tick for tick in linear((low, high)).ticks if low <= tick <= high]
    return Scale(low, high, tuple(ticks), True)


def round_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least)) if least > 0 else 1.0
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999)


def number(value: float | None) -> str:
    """A number in four digits, for tables and ticks: 0.0005, 12,340, 1.5e-07."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    if value == round(value) and abs(value) < 1e15:
        return f"{round(value):,}"
    if abs(value) >= 1e4:
        return f"{value:,.0f}"
    text = f"{value:.4g}"
    return text if "e" not in text or abs(value) < 1e-4 else f"{float(text):g}"


def percent(value: float | None) -> str:
    """A share as a percentage: 46.0 %."""
    return "–" if value is None else f"{100 * value:.1f} %"


def with_prefix(value: float | None) -> str:
    """A large number with a prefix of three powers of ten: 1.2 M, 34 k."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value is not None and abs(value) >= size:
            return f"{value / size:.3g} {prefix}"
    return number(value)


def duration(seconds: float | None) -> str:
    """A time: 35 s, 4 min 51 s, 3 h 20 min, 2 d 4 h."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    rest, parts = round(seconds), []
    for unit, size in units:
        count, rest = divmod(rest, size)
        if count or parts or size == 1:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
