"""Trust ratios of every adapted kernel over the steps, as a map: dark is a small ratio."""

import base64
import html
import math
import re
import struct
import zlib
from collections.abc import Mapping, Sequence

from official_bert.reporting import charts, scales

MAX_COLUMNS = 400
_MAX_LABELLED = 44  # rows; of more, only the layers are named
# From small to large ratios, between which colours are mixed; legible on light and on dark.
RAMP = ((38, 28, 92), (44, 92, 168), (38, 150, 160), (126, 190, 108), (246, 224, 120))
_NAMES = (  # of kernels within a layer
    (r"attention/self/(query|key|value)/kernel$", r"\1"),
    (r"attention/output/dense/kernel$", "attention output"),
    (r"intermediate/dense/kernel$", "intermediate"),
    (r"layer_\d+/output/dense/kernel$", "output"),
)


def adapted(train: Sequence[Mapping]) -> list[str]:
    """The variables whose ratio is not 1 throughout, in the order of the last line.

    Args:
        train: Lines of a training log, each with `trust_ratios`.
    """
    ratios = [_ratios(line) for line in train]
    paths = list(dict.fromkeys(path for line in [*ratios[-1:], *ratios] for path in line))
    return [
        p for p in paths if any(_is_shown(value := line.get(p)) and value != 1.0 for line in ratios)
    ]


def heat_map(train: Sequence[Mapping], backdrop: charts.Backdrop) -> str:
    """The map as HTML; empty if no variable is adapted."""
    paths = adapted(train)
    if not paths:
        return ""
    columns = _columns(train, backdrop.last_step)
    rows = [[column.get(path) for column in columns] for path in paths]
    if not any(_is_shown(value) for row in rows for value in row):
        return ""
    low, high = _limits(rows)
    picture = _picture([[_colour(value, low, high) for value in row] for row in rows])
    x = scales.steps(backdrop.last_step)
    plot = (
        f'<img alt="map of trust ratios" src="{picture}">{charts.axis_labels(x, None, str)}'
        f"{charts.stage_labels(x, backdrop)}{_row_labels(paths)}"
    )
    height = max(10, 15 if len(paths) <= _MAX_LABELLED else 900 // len(paths)) * len(paths)
    data = {"last": x.high, "rows": [_said(path) for path in paths], "values": _short(rows)}
    return (
        '<figure class="chart wide map"><figcaption><h3>Trust ratios by layer</h3>'
        f"{_legend(low, high)}</figcaption>"
        f'<div class="plot" style="height:{height}px" role="img" aria-label="trust ratios of '
        f'{len(paths)} variables over the steps">{plot}<div class="tip" hidden></div></div>'
        "<p>The factor on each variable’s learning rate. Rows that stay apart are layers that "
        "one rate for all would have moved too fast or too slowly.</p>"
        f'<script type="application/json">{charts.script_json(data)}</script></figure>'
    )


def _ratios(line):
    found = line.get("trust_ratios")
    return found if isinstance(found, dict) else {}


def _columns(train, last_step):
    """The ratios in each of equal spans of steps: those of the first line at or after its end."""
    train = [line for line in train if _ratios(line)]
    count = min(MAX_COLUMNS, len(train))
    columns, position = [], 0
    for column in range(count):
        while (
            position < len(train) - 1 and train[position]["step"] < (column + 1) / count * last_step
        ):
            position += 1
        columns.append(_ratios(train[position]))
    return columns


def _limits(rows):
    """The ratios at the ends of the ramp: nearly the smallest and largest, in logarithms."""
    logs = sorted(math.log10(value) for row in rows for value in row if _is_shown(value))
    low, high = logs[len(logs) // 100], logs[-1 - len(logs) // 100]
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _is_shown(value):
    return isinstance(value, int | float) and 0 < value < 1e300


def _colour(value, low, high):
    """Red, green, blue and opacity of a ratio; a variable that is not there yet is clear."""
    if not _is_shown(value):
        return (0, 0, 0, 0)
    share = min(1.0, max(0.0, (math.log10(value) - low) / (high - low))) * (len(RAMP) - 1)
    index = min(int(share), len(RAMP) - 2)
    mixed = (a + (share - index) * (b - a) for a, b in zip(RAMP[index], RAMP[index + 1]))
    return (*map(round, mixed), 255)


def _picture(pixels):
    """Rows of (red, green, blue, opacity) as a PNG in a data address."""

    def chunk(kind, content):
        sum_of_it = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + sum_of_it

    header = struct.pack(">IIBBBBB", len(pixels[0]), len(pixels), 8, 6, 0, 0, 0)
    rows = b"".join(b"\0" + bytes(number for pixel in row for number in pixel) for row in pixels)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _row_labels(paths):
    """The name of each row, or where there are many, of each layer at its first row."""
    labels, before = [], None
    for index, path in enumerate(paths):
        layer = _layer(path)
        group = "" if layer is None else f"layer {layer}"
        first = group != before
        before = group
        text = _short_name(path) if len(paths) <= _MAX_LABELLED or layer is None else ""
        prefix = f"<b>{layer}</b> " if first and layer is not None else ""
        if text or prefix:
            top = 100 * (index + 0.5) / len(paths)
            labels.append(
                f'<span class="y" style="top:{top:.2f}%">{prefix}{html.escape(text)}</span>'
            )
    return "".join(labels)


def _layer(path):
    match = re.search(r"layer_(\d+)/", path)
    return int(match[1]) if match else None


def _short_name(path):
    for pattern, name in _NAMES:
        if match := re.search(pattern, path):
            return match.expand(name)
    ends = r"_embeddings$|(/dense)?/kernel$|/output_weights$"
    short = re.sub(rf"^bert/(embeddings/)?|^cls/|{ends}", "", path)
    return short.replace("_", " ")


def _said(path):
    layer = _layer(path)
    return _short_name(path) if layer is None else f"layer {layer}, {_short_name(path)}"


def _short(rows):
    return [[float(f"{v:.3g}") if _is_shown(v) else None for v in row] for row in rows]


def _legend(low, high):
    colours = ",".join(f"rgb{colour}" for colour in RAMP)
    return (
        f'<div class="legend">{10**low:.2g}<span class="ramp" '
        f'style="background:linear-gradient(90deg,{colours})"></span>{10**high:.2g}</div>'
    )
