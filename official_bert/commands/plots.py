"""Plots of a pre-training run, from the JSON-lines log that the training loop writes.

    lamb-bert plot --log_file=model/train_log.jsonl --output_dir=plots

Needs matplotlib (`pip install "lamb_tf[plot]"`).
"""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from official_bert.commands import commands
from official_bert.commands.arguments import Arguments
from official_bert.reporting import charts
from official_bert.reporting.charts import Backdrop, Chart, Curve
from official_bert.reporting.contents import Contents
from official_bert.reporting.drawing import RAMP
from official_bert.system import local_paths
from official_bert.system.settings import documented, setting
from official_bert.training.run_files import Log, read_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES: dict[str, dict] = {  # of curves
    "training": {"color": "#4477aa"},
    "held-out": {"color": "#cc3311"},
    "guess": {"color": "#777777", "linestyle": "--", "linewidth": 1},
    "neighbours": {"color": "#777777", "linestyle": ":", "linewidth": 1},
}
_PICTURES = {
    "loss": ("masked_lm_loss", "next_sentence_loss"),
    "accuracy": ("masked_lm_accuracy", "next_sentence_accuracy"),
    "learning_rate": ("learning_rate",),
}

PLATEAU_MARGIN = 0.3  # nats below word frequencies, never reached on the plateau


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Plot(Arguments):
    """The settings of the command."""

    log_file: str = setting("Log of a pre-training run: train_log.jsonl in its model directory.")
    output_dir: str = setting("Folder to write the plots to.", "plots")


def plot_log(
    log_file: str | os.PathLike,
    output_dir: str | os.PathLike,
    baselines: Sequence[dict] | None = None,
) -> list[pathlib.Path]:
    """Draws loss.png, accuracy.png, learning_rate.png and trust_ratios.png.

    Args:
        log_file: The `train_log.jsonl` of a model directory.
        output_dir: Folder for the pictures; made if need be.
        baselines: Scores to draw next to the curves: `neighbour_baseline.evaluate` of each stage.

    Returns:
        The paths of the pictures.

    Raises:
        ValueError: if the log does not exist or contains no pre-training.
    """
    local_paths.require_local(log_file=log_file, output_dir=output_dir)
    contents = Contents(pathlib.Path(log_file).parent, _read(log_file))
    backdrop = charts.backdrop(contents)
    found = {chart.metric: chart for chart in charts.charts(contents)}
    for metric in ("loss", "accuracy") if baselines else ():
        name = f"masked_lm_{metric}"
        found[name] = _with_baselines(found[name], backdrop, baselines or (), metric)
    output_dir = pathlib.Path(output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    figures = {
        name: figure([found[metric] for metric in metrics if metric in found], backdrop, _STYLES)
        for name, metrics in _PICTURES.items()
    }
    if (end := plateau_end(contents.log.train, baselines or ())) is not None:
        _mark_plateau(figures["loss"].axes[0], end)
    figures["trust_ratios"] = _map(contents.log, backdrop)
    for name, picture in figures.items():
        picture.savefig(output_dir / f"{name}.png", dpi=120)
    return [output_dir / f"{name}.png" for name in figures]


def _read(log_file) -> Log:
    try:
        pathlib.Path(log_file).open().close()
    except OSError as error:
        raise ValueError(f"{log_file} cannot be read: {error.strerror}.") from None
    log = read_log(pathlib.Path(log_file))
    if not log.train:
        raise ValueError(
            f"{log_file} must contain training lines; got none yet. Plot it once the run has "
            "logged some."
        )
    if not any("masked_lm_loss" in line for line in log.train):
        raise ValueError(
            f"{log_file} must be a log of pre-training; got lines without masked_lm_loss. "
            "`lamb-bert report MODEL_DIR` shows the log of any run."
        )
    return log


def plateau_end(train: Sequence[dict], baselines: Sequence[dict]) -> int | None:
    """The step after which a run has left the plateau of word frequencies, or `None`.

    This is the step of the first line whose loss is `PLATEAU_MARGIN` below the baseline's.

    Args:
        train: The training lines of a log.
        baselines: As for `plot_log`.
    """
    for line in train if baselines else ():
        frequencies = baselines[line["stage"]]["word frequencies"]["loss"]
        loss = line.get("masked_lm_loss")
        if loss is not None and loss < frequencies - PLATEAU_MARGIN:
            return line["step"]
    return None


def _mark_plateau(axes, end):
    axes.axvline(end, color="#777777", linewidth=1)
    axes.annotate(
        f"the plateau ends\n(step {end})",
        (end, 0.97),
        xycoords=axes.get_xaxis_transform(),
        xytext=(5, 0),
        textcoords="offset points",
        va="top",
        fontsize=7,
        color="#777777",
    )


def _with_baselines(chart: Chart, backdrop: Backdrop, baselines: Sequence[dict], metric) -> Chart:
    """The chart with two baselines per stage in place of the most frequent token's."""
    curves = [curve for curve in chart.curves if curve.style != "guess"]
    for name, style in ("word frequencies", "guess"), ("neighbours", "neighbours"):
        spans = zip(backdrop.stages, baselines)
        points = [(step, scores[name][metric]) for span, scores in spans for step in span]
        curves.append(Curve(f"{name} (counted)", points, style))
    return chart._replace(curves=curves)


def figure(
    panels: Sequence[Chart], backdrop: Backdrop, styles: Mapping[str, Mapping[str, Any]]
) -> "Figure":
    """A picture with one panel per chart.

    Args:
        styles: {style of a curve: matplotlib's properties of its line}.
    """
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    drawn = Figure(figsize=(1 + 4.4 * len(panels), 3.5), layout="constrained")
    for axes, chart in zip(drawn.subplots(1, len(panels), squeeze=False)[0], panels):
        _prepare(axes, chart.title, backdrop)
        named: set[str] = set()
        for curve in chart.curves:
            steps, values = zip(*curve.points)
            dots: dict = {"marker": "o", "markersize": 4} if curve.has_dots else {}
            label = f"_{curve.name}" if curve.name in named else curve.name  # once in the legend
            axes.plot(steps, values, **styles[curve.style], **dots, label=label)
            named.add(curve.name)
        if len(named) > 1 or chart.metric != "learning_rate":
            axes.legend(loc="best")
        if chart.form == "percent":
            axes.yaxis.set_major_formatter("{x:.0%}")
        if chart.from_zero:
            axes.set_ylim(bottom=0)
    return drawn


def _map(log: Log, backdrop: Backdrop) -> "Figure":
    """Trust ratios as colours, one row per adapted variable; dark means small."""
    from matplotlib.colors import LinearSegmentedColormap, LogNorm
    from matplotlib.figure import Figure

    ratios = charts.ratio_map(log.train, backdrop.last_step)
    count = len(ratios.rows) if ratios else 0
    figure = Figure(figsize=(9, 1.5 + 0.16 * count), layout="constrained")
    axes = figure.subplots()
    _prepare(axes, "Trust ratios" if ratios else "no layer is adapted", backdrop)
    axes.set_yticks([])
    if ratios:
        colours = [tuple(part / 255 for part in colour) for colour in RAMP]
        image = axes.imshow(
            [[value or float("nan") for value in row] for row in ratios.rows],
            LinearSegmentedColormap.from_list("ratios", colours),
            LogNorm(ratios.low, ratios.high),
            aspect="auto",
            interpolation="nearest",
            extent=(0, backdrop.last_step, count - 0.5, -0.5),
        )
        figure.colorbar(image, ax=axes, label="trust ratio")
        labels = [f"{layer}  {name}" for layer, name in ratios.labels(count)]
        axes.set_yticks(range(count), labels, fontsize=6)
    return figure


def _prepare(axes: "Axes", title: str, backdrop: Backdrop) -> None:
    """Adds title, steps, and shaded stages if there are several."""
    axes.set_title(title, pad=14)
    axes.set_xlabel("step")
    axes.set_xlim(0, backdrop.last_step)
    axes.spines[["top", "right"]].set_visible(False)
    for number, (first, last) in enumerate(backdrop.stages if len(backdrop.stages) > 1 else ()):
        axes.axvspan(first, last, color=("#f4f4f4", "#ffffff")[number % 2], zorder=0, linewidth=0)
        axes.annotate(
            f"stage {number + 1}",
            ((first + last) / 2, 1),
            xycoords=axes.get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize=7,
            color="#777777",
        )


def main(args: Plot) -> None:
    for path in plot_log(args.log_file, args.output_dir):
        print(path)


if __name__ == "__main__":
    commands.run(main, Plot)
