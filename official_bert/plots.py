"""Plots of a run, from the JSON-lines log that the training loop writes.

    lamb-bert plot --log_file=model/train_log.jsonl --output_dir=plots

Needs matplotlib (`pip install "lamb_tf[plot]"`).
"""

import itertools
import os
import pathlib
import re
from collections.abc import Sequence

from absl import flags

from official_bert.commands import commands
from official_bert.system import local_paths
from official_bert.training.log_lines import read_log

FLAGS = flags.FLAGS

_TRAINING, _HELD_OUT, _GUESSING = "#4477aa", "#cc3311", "#777777"
_DRAWN = {"stage", "masked_lm_loss", "masked_lm_accuracy", "learning_rate", "trust_ratios"}
_STAGE_SHADES = ("#f4f4f4", "#ffffff")

PLATEAU_MARGIN = 0.3  # nats below word frequencies: what a run on the plateau never shows

# Where a variable stands in the network, and the panel of the trust-ratio plot that shows it.
PANELS = {
    "query": r"attention/self/query/kernel$",
    "key": r"attention/self/key/kernel$",
    "value": r"attention/self/value/kernel$",
    "attention output": r"attention/output/dense/kernel$",
    "intermediate": r"intermediate/dense/kernel$",
    "output": r"layer_\d+/output/dense/kernel$",
    "embeddings": r"embeddings/\w+_embeddings$",
    "heads": r"(^cls/.*/(kernel|output_weights)|pooler/dense/kernel)$",
}


def plot_log(
    log_file: str | os.PathLike,
    output_dir: str | os.PathLike,
    baselines: Sequence[dict] | None = None,
) -> list[pathlib.Path]:
    """Draws loss.png, accuracy.png, learning_rate.png and trust_ratios.png.

    Args:
        log_file: The `train_log.jsonl` of a model directory.
        output_dir: Folder for the pictures; made if need be.
        baselines: What guessing gets at the held-out positions, to draw beside the curves: for each
            stage what `neighbour_baseline.evaluate` returns.

    Returns:
        The paths of the pictures.

    Raises:
        ValueError: if the log does not exist or holds no line of training.
    """
    local_paths.require_local(log_file=log_file, output_dir=output_dir)
    train, held_out = _read(log_file)
    output_dir = pathlib.Path(output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    pictures = {
        "loss": _plot_loss,
        "accuracy": _plot_accuracy,
        "learning_rate": _plot_learning_rate,
        "trust_ratios": _plot_trust_ratios,
    }
    return [
        _save(draw(train, held_out, baselines or []), output_dir / f"{name}.png")
        for name, draw in pictures.items()
    ]


def _read(log_file):
    try:
        pathlib.Path(log_file).open().close()
    except OSError as error:
        raise ValueError(f"{log_file} cannot be read: {error.strerror}.") from None
    log = read_log(pathlib.Path(log_file))
    train = [line for line in log.train if line.keys() >= _DRAWN]
    if log.train and not train:
        raise ValueError(
            f"{log_file} must be a log of pre-training; got lines without some of "
            f"{sorted(_DRAWN)}. `lamb-bert report MODEL_DIR` shows the log of any run."
        )
    if not train:
        raise ValueError(
            f"{log_file} must contain training lines; got none yet. Plot it once the run has "
            "logged some."
        )
    return train, log.held_out


def plateau_end(train: Sequence[dict], baselines: Sequence[dict]) -> int | None:
    """The update after which a run has left the plateau of word frequencies, or `None`.

    Args:
        train: The training lines of a log.
        baselines: As for `plot_log`.

    Returns:
        The step of the first line whose loss is `PLATEAU_MARGIN` below that of guessing by word
        frequencies.
    """
    for line in train:
        frequencies = baselines[line["stage"]]["word frequencies"]["loss"]
        loss = line["masked_lm_loss"]
        if loss is not None and loss < frequencies - PLATEAU_MARGIN:
            return line["step"]
    return None


def _plot_loss(train, held_out, baselines):
    figure, axes = _panels(train, _tasks(train), "loss (nats)")
    for task, axis in axes.items():
        _curve(axis, train, held_out, f"{task}_loss")
    _guesses(axes["masked_lm"], train, baselines, "loss")
    end = plateau_end(train, baselines) if baselines else None
    if end is not None:
        axes["masked_lm"].axvline(end, color=_GUESSING, linewidth=1)
        axes["masked_lm"].annotate(
            f"the plateau ends\n(update {end})",
            (end, 0.97),
            xycoords=axes["masked_lm"].get_xaxis_transform(),
            xytext=(5, 0),
            textcoords="offset points",
            va="top",
            fontsize=7,
            color=_GUESSING,
        )
    return figure


def _guesses(axis, train, baselines, figure):
    """A line for each baseline, over the stages it was measured for."""
    spans = list(_stage_spans(train).items()) if baselines else []
    for name, style in zip(("word frequencies", "neighbours"), ("--", ":")):
        for number, (stage, (start, end)) in enumerate(spans):
            value = baselines[stage][name][figure]
            label = None if number else f"{name} (counted)"
            axis.plot([start, end], [value] * 2, style, color=_GUESSING, linewidth=1, label=label)
    axis.legend(loc="best")


def _plot_accuracy(train, held_out, baselines):
    figure, axes = _panels(train, _tasks(train), "accuracy")
    for task, axis in axes.items():
        _curve(axis, train, held_out, f"{task}_accuracy")
        axis.yaxis.set_major_formatter("{x:.0%}")
        axis.set_ylim(bottom=0)
    _guesses(axes["masked_lm"], train, baselines, "accuracy")
    guessed = [line for line in held_out if "most_frequent_token_accuracy" in line]
    if guessed and not baselines:  # which are the better guesses
        axes["masked_lm"].step(
            [line["step"] for line in guessed],
            [line["most_frequent_token_accuracy"] for line in guessed],
            color=_GUESSING,
            linestyle="--",
            linewidth=1,
            label="most frequent token",
        )
        axes["masked_lm"].legend(loc="best")
    return figure


def _plot_learning_rate(train, held_out, baselines):
    figure, axes = _panels(train, [""], "learning rate")
    _line(axes[""], train, "learning_rate", color=_TRAINING)
    axes[""].set_ylim(bottom=0)
    return figure


def _plot_trust_ratios(train, held_out, baselines):
    """One panel for each kind of kernel, one line for each layer, from light (first) to dark."""
    from matplotlib import colormaps

    paths = train[-1]["trust_ratios"]
    panels = {
        title: [path for path in paths if re.search(pattern, path)]
        for title, pattern in PANELS.items()
    }
    panels = {title: members for title, members in panels.items() if members}
    panels = panels or {"no layer is adapted": []}
    figure, axes = _panels(train, panels, "trust ratio", columns=4, share_y=True)
    layers = 1 + max((_layer(path) or 0 for path in paths), default=0)
    for title, members in panels.items():
        for index, path in enumerate(members):
            layer = _layer(path)
            number, last = (index, len(members) - 1) if layer is None else (layer, layers - 1)
            lines = [line for line in train if path in line["trust_ratios"]]
            axes[title].plot(
                [line["step"] for line in lines],
                [line["trust_ratios"][path] for line in lines],
                color=colormaps["viridis_r"](0.15 + 0.85 * number / max(1, last)),
                linewidth=1.4,
                label=_short_name(path) if layer is None else f"layer {layer}",
            )
        axes[title].set_yscale("log")
        if 0 < len(members) <= 6:
            axes[title].legend(fontsize=7)
    return figure


def _panels(train, names, y_label, columns=2, share_y=False):
    """A figure with a titled panel for each name, the stages of the run as shades behind each."""
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    names = list(names)
    columns = min(columns, len(names))
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(1 + 4.4 * columns, 0.6 + 2.9 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=share_y).flatten()
    for axis in grid[len(names) :]:
        axis.remove()
    for index, (name, axis) in enumerate(zip(names, grid)):
        _shade_stages(axis, train)
        axis.set_title(
            {"masked_lm": "masked LM", "next_sentence": "next sentence"}.get(name, name), pad=14
        )
        axis.set_xlabel("step")
        axis.set_xlim(0, train[-1]["step"])
        axis.spines[["top", "right"]].set_visible(False)
        if index % columns == 0 or not share_y:
            axis.set_ylabel(y_label)
    return figure, dict(zip(names, grid))


def _stage_spans(train):
    """Stage → first and last step, as far as the log's lines tell."""
    starts = {0: 0}
    for before, line in itertools.pairwise(train):
        if line["stage"] != before["stage"]:
            starts[line["stage"]] = before["step"]
    ends = [*list(starts.values())[1:], train[-1]["step"]]
    return dict(zip(starts, zip(starts.values(), ends)))


def _shade_stages(axis, train):
    spans = _stage_spans(train)
    if len(spans) > 1:
        for stage, (start, end) in spans.items():
            axis.axvspan(start, end, color=_STAGE_SHADES[stage % 2], zorder=0, linewidth=0)
            axis.text(
                (start + end) / 2,
                0.99,
                f"stage {stage + 1}",
                transform=axis.get_xaxis_transform(),
                ha="center",
                va="bottom",
                fontsize=7,
                color=_GUESSING,
            )


def _curve(axis, train, held_out, name):
    _line(axis, train, name, color=_TRAINING, label="training")
    if held_out:
        _line(axis, held_out, name, color=_HELD_OUT, marker="o", markersize=4, label="held out")
    axis.legend(loc="best")


def _line(axis, lines, name, **style):
    lines = [line for line in lines if name in line]
    axis.plot([line["step"] for line in lines], [line[name] for line in lines], **style)


def _tasks(train):
    return ["masked_lm", *(["next_sentence"] if "next_sentence_loss" in train[0] else [])]


def _layer(path):
    match = re.search(r"layer_(\d+)/", path)
    return int(match[1]) if match else None


def _short_name(path):
    return re.sub(r"^bert/embeddings/|^bert/|^cls/|_embeddings$|(/dense)?/kernel$", "", path)


def _save(figure, path):
    figure.savefig(path, dpi=120)
    return path


def main() -> None:
    for path in plot_log(FLAGS.log_file, FLAGS.output_dir):
        print(path)


def _define_flags():
    flags.DEFINE_string(
        "log_file",
        None,
        "Log of a pre-training run: train_log.jsonl in its model directory. Required.",
        required=True,
    )
    flags.DEFINE_string("output_dir", "plots", "Folder to write the plots to.")


if __name__ == "__main__":
    _define_flags()
    commands.run(main)
