"""Charts as HTML: an SVG that stretches with the page, and labels that do not.

The drawing has the corners (0, 0) and (1000, 1000) and takes any shape; its lines keep their
width. Labels are text of the page, so they are as legible on a phone as on a wide screen.
"""

import html
import json
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from official_bert.reporting import scales
from official_bert.reporting.scales import Scale

MAX_POINTS = 600  # of a curve; of more, neighbours are averaged
_FORMATS = {"number": scales.number, "percent": scales.percent, "prefix": scales.with_prefix}


class Curve(NamedTuple):
    """One curve.

    Attributes:
        name: For the legend.
        points: (step, value), by step; of values that are `None` or not finite nothing is shown.
        style: A class of the style sheet: `training`, `held-out`, `abandoned` or `guess`.
        has_dots: Whether each point gets a dot: right for few.
    """

    name: str
    points: Sequence[tuple[int, float | None]]
    style: str = "training"
    has_dots: bool = False


class Backdrop(NamedTuple):
    """What stands behind all charts of a run.

    Attributes:
        last_step: The right end.
        stages: (first step, last step) of each stage.
        returns: Steps at which the run returned to an earlier checkpoint.
    """

    last_step: int
    stages: Sequence[tuple[int, int]]
    returns: Sequence[int] = ()


def line_chart(
    title: str,
    words: str,
    curves: Sequence[Curve],
    backdrop: Backdrop,
    form: str = "number",
    logarithmic: bool = False,
    from_zero: bool = False,
) -> str:
    """A chart of curves over the steps, as HTML; empty if no curve has a point.

    Args:
        title: What is shown, with its unit.
        words: How to read it, one sentence.
        curves: The curves; the first is drawn below the others.
        backdrop: Stages and returns.
        form: How values are written: `number`, `percent` or `prefix`.
        logarithmic: Whether the values' axis is.
        from_zero: Whether the axis begins at 0.
    """
    finite = [(curve, _finite(curve.points, logarithmic)) for curve in curves]
    curves = [curve._replace(points=thinned(points)) for curve, points in finite if points]
    if not curves:
        return ""
    values = [value for curve in curves for _, value in curve.points if value is not None]
    y = scales.logarithmic(values) if logarithmic else scales.linear(values, from_zero)
    x = scales.steps(backdrop.last_step)
    drawing = [_bands(x, backdrop), _grid(y), *(_path(curve, x, y) for curve in curves)]
    plot = _svg(drawing) + axis_labels(x, y, _FORMATS[form]) + stage_labels(x, backdrop)
    return _figure(title, words, _legend(curves), plot, _data(curves, x, y, form))


def thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most `MAX_POINTS` points: means over neighbours; the first and the last remain."""
    if len(points) <= MAX_POINTS:
        return list(points)
    size = math.ceil((len(points) - 2) / (MAX_POINTS - 2))
    inner = [points[i : i + size] for i in range(1, len(points) - 1, size)]
    inner[-1] = [point for point in inner[-1] if point != points[-1]] or inner[-1]
    means = [(group[-1][0], sum(value for _, value in group) / len(group)) for group in inner]
    return [points[0], *(mean for mean in means if mean[0] < points[-1][0]), points[-1]]


def axis_labels(x: Scale, y: Scale | None, text: Callable[[float], str]) -> str:
    """The numbers at the axes, each at its share of the plot's width or height."""
    below = "".join(
        f'<span class="x" style="left:{100 * x.place(tick):.2f}%">{scales.number(tick)}</span>'
        for tick in x.ticks
    )
    ticks = [(tick, text(tick).replace(".0 %", " %")) for tick in (y.ticks if y else ())]
    beside = "".join(
        f'<span class="y" style="top:{100 - 100 * y.place(tick):.2f}%">{words}</span>'
        for tick, words in ticks
        if y
    )
    return below + beside


def stage_labels(x: Scale, backdrop: Backdrop) -> str:
    """The number of each stage above its part of the plot, and a mark at each return."""
    several = backdrop.stages if len(backdrop.stages) > 1 else ()
    stages = "".join(
        f'<span class="stage" style="left:{50 * (x.place(first) + x.place(last)):.2f}%">'
        f"stage {number}</span>"
        for number, (first, last) in enumerate(several, 1)
        if x.place(last) - x.place(first) > 0.12  # room for the word
    )
    returns = "".join(
        f'<span class="return" style="left:{100 * x.place(step):.2f}%" '
        f'title="returned to step {step:,}">↶</span>'
        for step in backdrop.returns
    )
    return stages + returns


def _finite(points, positive):
    return [
        (step, value)
        for step, value in points
        if isinstance(value, int | float) and math.isfinite(value) and (value > 0 or not positive)
    ]


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


def _grid(y):
    lines = "".join(f"M0 {_down(y, tick):.1f}H1000" for tick in y.ticks)
    return f'<path class="grid" d="{lines}"/>'


def _path(curve, x, y):
    places = [(1000 * x.place(step), _down(y, value)) for step, value in curve.points]
    line = "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
    drawn = f'<path class="curve {curve.style}" d="M{line}"/>'
    if curve.has_dots or len(places) == 1:  # a line without length and with round ends is a dot
        dots = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in places)
        drawn += f'<path class="dots {curve.style}" d="{dots}"/>'
    return drawn


def _down(y, value):
    return 1000 - 1000 * y.place(value)


def _svg(parts):
    shape = 'viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true"'
    return f"<svg {shape}>{''.join(parts)}</svg>"


def _legend(curves):
    names = {curve.name: curve.style for curve in curves if curve.name}
    if len(names) < 2 and not any(curve.has_dots for curve in curves):
        return ""
    keys = (
        f'<span class="key {style}">{html.escape(name)}</span>' for name, style in names.items()
    )
    return f'<div class="legend">{"".join(keys)}</div>'


def _data(curves, x, y, form):
    """What the script shows under the pointer: for each curve its places, steps and values."""
    of_curves = [
        {
            "name": curve.name,
            "style": curve.style,
            "points": [
                [step, float(f"{y.place(value):.4g}"), _FORMATS[form](value)]
                for step, value in curve.points
            ],
        }
        for curve in curves
        if curve.name
    ]
    return {"last": x.high, "curves": of_curves}


def _figure(title, words, legend, plot, data):
    return (
        f'<figure class="chart"><figcaption><h3>{html.escape(title)}</h3>{legend}</figcaption>'
        f'<div class="plot" role="img" aria-label="{html.escape(title)} over the steps">{plot}'
        f'<div class="pointer" hidden></div><div class="tip" hidden></div></div>'
        f"<p>{html.escape(words)}</p>"
        f'<script type="application/json">{script_json(data)}</script></figure>'
    )


def script_json(data: object) -> str:
    """JSON that can stand in a script element: no text in it can end the element."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
