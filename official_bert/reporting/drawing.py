"""Draws charts as HTML: an SVG that stretches with the page, and labels that do not.

The SVG has the corners (0, 0) and (1000, 1000) and takes any shape; its lines keep their width.
Labels are text of the page, as legible on a phone as on a wide screen. Matplotlib is not used: its
labels would stretch too, and neither hover nor dark mode would work.
"""

import base64
import html
import json
import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from official_bert.reporting.charts import Backdrop, Chart, Curve, RatioMap

MAX_POINTS = 600  # of a curve; beyond, neighbours are averaged
_MAX_LABELS = 44  # rows of a map with room for names
# From small to large ratios, interpolated; legible on light and on dark.
RAMP = ((38, 28, 92), (44, 92, 168), (38, 150, 160), (126, 190, 108), (246, 224, 120))


# Numbers as text


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


_FORMATS = {"number": number, "percent": percent, "prefix": with_prefix}


# Scales


class Scale(NamedTuple):
    """A range of numbers along an axis.

    Attributes:
        low, high: The values at the two ends.
        ticks: The labelled values.
        logarithmic: Whether equal factors have equal lengths.
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Position of `value`, clipped: 0 at `low`, 1 at `high`."""
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        return min(1.0, max(0.0, (value - low) / (high - low)))


def linear(values: Iterable[float], from_zero: bool = False) -> Scale:
    """A linear scale around the values, with about five round ticks."""
    low, high = min(values), max(values)
    low = 0.0 if from_zero else low
    if high <= low:  # a single value
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    step = _round_step((high - low) / 5)
    first, last = 0 if from_zero else math.floor(low / step), math.ceil(high / step)
    ticks = tuple(k * step for k in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], ticks)


def steps(last: float) -> Scale:
    """The scale of the steps of a run, from 0 to exactly the last."""
    step = max(1, _round_step(last / 6))
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


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least)) if least > 0 else 1.0
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999)


# HTML


def line_chart(chart: Chart, backdrop: Backdrop) -> str:
    """A chart as HTML."""
    curves = [curve._replace(points=thinned(curve.points)) for curve in chart.curves]
    values = [value for curve in curves for _, value in curve.points]
    y = logarithmic(values) if chart.is_logarithmic else linear(values, chart.from_zero)
    x = steps(backdrop.last_step)
    written = _FORMATS[chart.form]
    ticks = [
        _label("y", "top", 1 - y.place(tick), written(tick).replace(".0 %", " %"))
        for tick in y.ticks
    ]
    grid = "".join(f"M0 {_down(y, tick):.1f}H1000" for tick in y.ticks)
    drawn = "".join(_path(curve, x, y) for curve in curves)
    plot = (
        '<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true">'
        f'{_bands(x, backdrop)}<path class="grid" d="{grid}"/>{drawn}</svg>'
        f'{_labels(x, backdrop)}{"".join(ticks)}<div class="pointer" hidden></div>'
    )
    shown = [
        {
            "name": curve.name,
            "points": [
                [step, float(f"{y.place(value):.4g}"), written(value)]
                for step, value in curve.points
            ],
        }
        for curve in curves
    ]
    data = {"last": x.high, "curves": shown}
    return _figure("chart", chart.title, _legend(curves), plot, chart.words, data)


def heat_map(ratios: RatioMap, backdrop: Backdrop) -> str:
    """A map of trust ratios as HTML; dark is a small ratio."""
    x, count = steps(backdrop.last_step), len(ratios.rows)
    rows = [
        _label(
            "y", "top", (row + 0.5) / count, f"<b>{layer}</b> " * bool(layer) + html.escape(name)
        )
        for row, (layer, name) in enumerate(ratios.labels(_MAX_LABELS))
        if layer or name
    ]
    plot = (
        f'<img alt="map of trust ratios" src="{_picture(ratios)}">'
        f"{_labels(x, backdrop)}{''.join(rows)}"
    )
    colours = ",".join(f"rgb{colour}" for colour in RAMP)
    legend = (
        f'<div class="legend">{ratios.low:.2g}<span class="ramp" '
        f'style="background:linear-gradient(90deg,{colours})"></span>{ratios.high:.2g}</div>'
    )
    words = (
        "The factor on each variable’s learning rate. Rows that stay apart are layers that one "
        "rate for all would have moved too fast or too slowly."
    )
    values = [[value and float(f"{value:.3g}") for value in row] for row in ratios.rows]
    data = {"last": x.high, "rows": ratios.names(), "values": values}
    height = max(10, 15 if count <= _MAX_LABELS else 900 // count) * count
    style = f' style="height:{height}px"'
    return _figure("chart wide map", "Trust ratios by layer", legend, plot, words, data, style)


def _figure(kind, title, legend, plot, words, data, style=""):
    """A chart with its title, and the data that the page's script shows under the pointer."""
    title = html.escape(title)
    # Escaped, so that no text in it can end the script element.
    script = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<figure class="{kind}"><figcaption><h3>{title}</h3>{legend}</figcaption>'
        f'<div class="plot" role="img" aria-label="{title} over the steps"{style}>{plot}'
        f'<div class="tip" hidden></div></div><p>{html.escape(words)}</p>'
        f'<script type="application/json">{script}</script></figure>'
    )


def thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most `MAX_POINTS` points: the first, means over neighbours, and the last."""
    if len(points) <= MAX_POINTS:
        return list(points)
    size = math.ceil((len(points) - 2) / (MAX_POINTS - 2))
    inner = [points[i : i + size] for i in range(1, len(points) - 1, size)]
    inner[-1] = [point for point in inner[-1] if point != points[-1]] or inner[-1]
    means = [(group[-1][0], sum(value for _, value in group) / len(group)) for group in inner]
    return [points[0], *(mean for mean in means if mean[0] < points[-1][0]), points[-1]]


def _label(kind, side, share, text, title=""):
    """Text at a share of the plot's width or height."""
    return f'<span class="{kind}" style="{side}:{100 * share:.2f}%"{title}>{text}</span>'


def _labels(x, backdrop):
    """Steps below the plot; above it returns, and stages if there are several."""
    labels = [_label("x", "left", x.place(tick), number(tick)) for tick in x.ticks]
    several = backdrop.stages if len(backdrop.stages) > 1 else ()
    for index, (first, last) in enumerate(several, 1):
        start, end = x.place(first), x.place(last)
        if end - start > 0.12:  # room for the word
            labels.append(_label("stage", "left", (start + end) / 2, f"stage {index}"))
    for step in backdrop.returns:
        title = f' title="returned to step {step:,}"'
        labels.append(_label("return", "left", x.place(step), "↶", title))
    return "".join(labels)


def _bands(x, backdrop):
    """Every second stage is shaded; a dashed line marks a return."""
    bands = "".join(
        f'<rect class="band" x="{1000 * x.place(first):.1f}" y="0" height="1000" '
        f'width="{1000 * (x.place(last) - x.place(first)):.1f}"/>'
        for first, last in backdrop.stages[1::2]
    )
    return bands + "".join(
        f'<path class="mark" d="M{1000 * x.place(step):.1f} 0V1000"/>' for step in backdrop.returns
    )


def _path(curve, x, y):
    places = [(1000 * x.place(step), _down(y, value)) for step, value in curve.points]
    line = "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
    drawn = f'<path class="curve {curve.style}" d="M{line}"/>'
    if curve.has_dots or len(places) == 1:  # a zero-length line with round ends is a dot
        dots = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in places)
        drawn += f'<path class="dots {curve.style}" d="{dots}"/>'
    return drawn


def _down(y, value):
    return 1000 - 1000 * y.place(value)


def _legend(curves: Sequence[Curve]) -> str:
    names = {curve.name: curve.style for curve in curves}
    if len(names) < 2 and not any(curve.has_dots for curve in curves):
        return ""
    keys = (
        f'<span class="key {style}">{html.escape(name)}</span>' for name, style in names.items()
    )
    return f'<div class="legend">{"".join(keys)}</div>'


def _picture(ratios: RatioMap) -> str:
    """The map as a PNG in a data address. Twelve lines here, and no library to install."""
    lines = b"".join(
        b"\0" + b"".join(_colour(value, ratios) for value in row) for row in ratios.rows
    )
    header = struct.pack(">IIBBBBB", len(ratios.rows[0]), len(ratios.rows), 8, 6, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n"
    for part in b"IHDR" + header, b"IDAT" + zlib.compress(lines, 9), b"IEND":
        png += struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part))
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _colour(value, ratios):
    """RGBA bytes of a ratio; an unknown one is transparent."""
    if value is None:
        return bytes(4)
    scale = Scale(ratios.low, ratios.high, (), logarithmic=True)
    share = scale.place(value) * (len(RAMP) - 1)
    index = min(int(share), len(RAMP) - 2)
    mixed = (a + (share - index) * (b - a) for a, b in zip(RAMP[index], RAMP[index + 1]))
    return bytes((*map(round, mixed), 255))
