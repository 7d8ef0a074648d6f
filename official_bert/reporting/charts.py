"""Describes the charts of a run, for its HTML (`drawing`) and its pictures (`plots`)."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from official_bert.reporting.contents import Contents
from official_bert.training import run_files

MAX_COLUMNS = 400  # of the map of trust ratios
_TASKS = {"masked_lm": "Masked LM", "next_sentence": "Next sentence", "": "Task"}
_GUESSES = {
    "most_frequent_token_accuracy": "always the most frequent token",
    "majority_class_accuracy": "always the most frequent class",
}
_IF_IT_CHANGES = ("skipped_updates", "loss_scale")
_KERNELS = (  # kernels within a layer
    (r"attention/self/(query|key|value)/kernel$", r"\1"),
    (r"attention/output/dense/kernel$", "attention output"),
    (r"intermediate/dense/kernel$", "intermediate"),
    (r"layer_\d+/output/dense/kernel$", "output"),
)


class Curve(NamedTuple):
    """One curve.

    Attributes:
        name: For the legend.
        points: (step, value), by step; all finite.
        style: `training`, `held-out`, `abandoned`, `guess` or `neighbours`.
        has_dots: Whether to draw a dot at each point.
    """

    name: str
    points: Sequence[tuple[int, float]]
    style: str = "training"
    has_dots: bool = False


class Chart(NamedTuple):
    """Curves over the steps.

    Attributes:
        metric: The quantity's name in the log.
        title: The quantity, with its unit.
        words: How to read it, one sentence.
        curves: The curves; the first is drawn below the others.
        form: Format of values: `number`, `percent` or `prefix`.
        from_zero: Whether the vertical axis begins at 0.
        is_logarithmic: Whether that axis is logarithmic.
    """

    metric: str
    title: str
    words: str
    curves: Sequence[Curve]
    form: str = "number"
    from_zero: bool = True
    is_logarithmic: bool = False


_SINGLE = (
    Chart("learning_rate", "Learning rate", "At the last step of each log line.", ()),
    Chart(
        "gradient_norm",
        "Gradient norm",
        "Global norm over all replicas, before clipping. Peaks often precede a rising loss.",
        (),
        is_logarithmic=True,
    ),
    Chart(
        "noise_scale",
        "Gradient noise scale (examples)",
        "Well below it, twice the batch halves the steps; well above, it saves hardly any.",
        (),
        "prefix",
        is_logarithmic=True,
    ),
    Chart(
        "tokens_per_second",
        "Throughput (tokens per second)",
        "Without padding. It falls with longer sequences and while waiting for batches.",
        (),
        "prefix",
    ),
    Chart("skipped_updates", "Skipped updates", "Counted from the start.", ()),
    Chart("loss_scale", "Loss scale", "Halved when a gradient overflows.", ()),
)


class Backdrop(NamedTuple):
    """The background of all charts of a run.

    Attributes:
        last_step: The right end of the horizontal axis.
        stages: (first step, last step) of each stage.
        returns: Steps at which the run returned to an earlier checkpoint.
    """

    last_step: int
    stages: Sequence[tuple[int, int]]
    returns: Sequence[int] = ()


class RatioMap(NamedTuple):
    """Trust ratios of every adapted variable over the steps.

    Attributes:
        paths: The variables, a row each.
        rows: Their ratios in equal spans of steps; `None` if unknown.
        low, high: The 1st and 99th percentile of the ratios: the ends of the colours.
    """

    paths: Sequence[str]
    rows: Sequence[Sequence[float | None]]
    low: float
    high: float

    def labels(self, most: int) -> list[tuple[str, str]]:
        """(layer, name) to write at each row: the layer at its first, no names over `most` rows."""
        layers = [_layer(path) for path in self.paths]
        return [
            (
                layer if layer != before else "",
                _short_name(path) if not layer or len(layers) <= most else "",
            )
            for before, layer, path in zip(["", *layers], layers, self.paths)
        ]

    def names(self) -> list[str]:
        """The full name of each row."""
        layers = (f"layer {layer}, " if (layer := _layer(path)) else "" for path in self.paths)
        return [layer + _short_name(path) for layer, path in zip(layers, self.paths)]


def charts(contents: Contents) -> list[Chart]:
    """All charts for which the logs contain numbers."""
    tasks = [task for task in _TASKS if task and _has(contents, f"{task}_loss")] or [""]
    found = [
        *(_loss(contents, task) for task in tasks),
        *(_accuracy(contents, task) for task in tasks),
        *(_single(contents, chart) for chart in _SINGLE),
    ]
    return [chart for chart in found if chart.curves]


def compared(runs: Mapping[str, Contents]) -> tuple[list[Chart], Backdrop]:
    """The losses and accuracies of several runs, {name: files}, and their background.

    The curves of a run bear its name, and the styles `training NAME` and `held-out NAME`.
    """
    found: dict[str, Chart] = {}
    for name, contents in runs.items():
        for chart in charts(contents):
            if not chart.metric.endswith(("loss", "accuracy")):
                continue
            curves = [
                curve._replace(name=name, style=f"{curve.style} {name}")
                for curve in chart.curves
                if curve.style in ("training", "held-out")
            ]
            before = found.setdefault(chart.metric, chart._replace(curves=[]))
            # Held-out curves first: the legend shows the style of a name's first curve.
            curves.sort(key=lambda curve: curve.style)
            found[chart.metric] = before._replace(curves=[*before.curves, *curves])
    last = max((backdrop(contents).last_step for contents in runs.values()), default=1)
    return [chart for chart in found.values() if chart.curves], Backdrop(last, [(0, last)])


def _has(contents, name):
    return any(name in line for log in contents.logs for line in log.train)


def _loss(contents, task):
    words = "Lower is better. Held-out loss rising while training loss falls means memorizing."
    name = f"{task}_loss".lstrip("_")
    return Chart(name, f"{_TASKS[task]} loss (nats)", words, _both(contents, name), from_zero=False)


def _accuracy(contents, task):
    name = f"{task}_accuracy".lstrip("_")
    curves = _both(contents, name)
    for guess, words in _GUESSES.items() if curves and task != "next_sentence" else ():
        points = [point for log in contents.logs for point in _points(log.held_out, guess)]
        if points:
            ends = [(0, points[0][1]), (backdrop(contents).last_step, points[-1][1])]
            curves.insert(0, Curve(words, ends, "guess"))
    words = "Share of correct predictions: higher is better."
    return Chart(name, f"{_TASKS[task]} accuracy", words, curves, "percent")


def _both(contents, name):
    """Curves of a metric: before returns to checkpoints, in training, and on held-out text."""
    curves = []
    for newest, log in contents.abandoned.items():
        returns = [c for c in contents.run.get("changes", ()) if c.get("instead_of") == newest]
        start = _step_of_return(returns[-1]) if returns else 0
        left = [line for line in log.train if line["step"] > start]
        curves.append(Curve("before the return", _points(left, name), "abandoned"))
    lengths = [stage.get("max_seq_length") for stage in contents.run.get("stages", ())]
    for log in contents.logs:
        curves.append(Curve("training", _points(log.train, name)))
        # Evaluations at different sequence lengths do not compare, so they are not joined.
        by_length = itertools.groupby(
            log.held_out, lambda line: dict(enumerate(lengths)).get(line.get("stage", 0))
        )
        curves += [
            Curve("held out", _points(lines, name), "held-out", True) for _, lines in by_length
        ]
    return [curve for curve in curves if curve.points]


def _single(contents, chart):
    """A chart of one training metric; its title names the only curve."""
    lines = [line for log in contents.logs for line in log.train]
    if chart.metric in _IF_IT_CHANGES and len({line.get(chart.metric) for line in lines}) < 2:
        return chart
    name = "value" if len(contents.logs) == 1 else "each seed"
    points = [_points(log.train, chart.metric, chart.is_logarithmic) for log in contents.logs]
    curves = [Curve(name, found) for found in points if found]
    if chart.metric == "noise_scale" and curves:
        curves = [*_batches(contents), *(curve._replace(name="noise scale") for curve in curves)]
    return chart._replace(curves=curves)


def _batches(contents):
    """The batch size of each stage, as far as the run has come."""
    sizes = [stage.get("batch_size") for stage in contents.run.get("stages", ())]
    spans = zip(sizes, backdrop(contents).stages)
    points = [(step, size) for size, span in spans if size and 0 < size < math.inf for step in span]
    return [Curve("batch in use", points, "guess")] if points else []


def _points(lines, name, positive=False):
    """(step, value) of the lines with a finite value."""
    found = [(line["step"], {**line.get("timing", {}), **line}.get(name)) for line in lines]
    return [
        (step, value)
        for step, value in found
        if value is not None and math.isfinite(value) and (value > 0 or not positive)
    ]


def backdrop(contents: Contents) -> Backdrop:
    """Stages and returns of a run, up to its last step so far."""
    logs = [contents.log, *contents.seeds, *contents.abandoned.values()]
    last = max((line["step"] for log in logs for line in log.train), default=1)
    if "stages" in contents.run:
        ends = list(itertools.accumulate(stage.get("steps", 0) for stage in contents.run["stages"]))
    else:  # from the log, whose last stage may continue
        pairs = itertools.pairwise(contents.log.train)
        ends = [a["step"] for a, b in pairs if a.get("stage") != b.get("stage")]
    borders = [0, *(end for end in ends if end < last), last]
    returns = [_step_of_return(change) for change in contents.run.get("changes", ())]
    return Backdrop(last, list(itertools.pairwise(borders)), returns)


def _step_of_return(change):
    name = change.get("resumed_from")
    return run_files.step_and_count(name)[0] if name else 0


def adapted(train: Sequence[Mapping]) -> list[str]:
    """Paths of variables whose trust ratio is ever not 1, in the order of the last line.

    Args:
        train: Lines of a training log, each with `trust_ratios`.
    """
    ratios = [line.get("trust_ratios", {}) for line in train]
    paths = dict.fromkeys(path for line in [*ratios[-1:], *ratios] for path in line)
    return [p for p in paths if any(_is_shown(r := line.get(p)) and r != 1.0 for line in ratios)]


def ratio_map(train: Sequence[Mapping], last_step: int) -> RatioMap | None:
    """The map of trust ratios of a log; `None` if no variable is adapted."""
    paths, columns = adapted(train), _columns(train, last_step)
    rows = [
        [value if _is_shown(value := column.get(path)) else None for column in columns]
        for path in paths
    ]
    logs = sorted(math.log10(value) for row in rows for value in row if value)
    if not logs:
        return None
    low, high = logs[len(logs) // 100], logs[-1 - len(logs) // 100]
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
    return RatioMap(paths, rows, 10**low, 10**high)


def _columns(train, last_step):
    """The ratios of equal spans of steps, from the first line at or after each span's end."""
    train = [line for line in train if line.get("trust_ratios")]
    count, position = min(MAX_COLUMNS, len(train)), 0
    columns = []
    for column in range(1, count + 1):
        while position < len(train) - 1 and train[position]["step"] < column / count * last_step:
            position += 1
        columns.append(train[position]["trust_ratios"])
    return columns


def _is_shown(value):
    return value is not None and 0 < value < math.inf


def _layer(path):
    match = re.search(r"layer_(\d+)/", path)
    return match[1] if match else ""


def _short_name(path):
    for pattern, name in _KERNELS:
        if match := re.search(pattern, path):
            return match.expand(name)
    ends = r"_embeddings$|(/dense)?/kernel$|/output_weights$"
    short = re.sub(rf"^bert/(embeddings/)?|^cls/|{ends}", "", path)
    return short.replace("_", " ")
