r"""Compares runs: settings that differ, scores, held-out values, steps, time; curves in a picture.

    lamb-bert compare sweep/* --plot=curves.png

The folders are those of pre-training or fine-tuning, finished or not; of several seeds, the folder
above them. The picture needs matplotlib (`pip install "lamb_tf[plot]"`).
"""

import dataclasses
import hashlib
import importlib.util
import json
import math
import os
import pathlib
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from official_bert.commands import commands, plots
from official_bert.commands.arguments import Arguments
from official_bert.reporting import charts, drawing
from official_bert.reporting import contents as folders
from official_bert.reporting.contents import Contents
from official_bert.system import local_paths, messages
from official_bert.system.settings import documented, setting
from official_bert.training import run_files

PICTURES = (".png", ".svg", ".pdf")
# Of run.json: `changes` is no setting; files are compared by the digests of their content.
_NO_SETTINGS = ("changes", "records", "input_files", "init_weights", "init_checkpoint")
_WIDEST = 40  # characters of a setting
_HELD_OUT = ("loss", "masked_lm_accuracy", "accuracy")  # of the best evaluation


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Compare(Arguments):
    """The settings of the command; `arguments` are the folders."""

    arguments: tuple[str, ...] = ()
    plot: str | None = setting(
        f"Picture of the curves to write ({', '.join(PICTURES)}). Default: none.", None
    )


class _Setting(NamedTuple):
    """A setting: what is compared, and what is shown."""

    content: str
    text: str


_NONE = _Setting("null", "–")


def main(args: Compare) -> None:
    if not args.arguments:
        raise ValueError(
            "the arguments must be folders of runs; got none. Usage: lamb-bert compare DIR…"
        )
    if args.plot is not None:
        _check_plot(args.plot)
    runs = read(args.arguments)
    print(table(runs))
    if args.plot is not None:
        plot(runs, args.plot)
        print(args.plot)


def _check_plot(path):
    local_paths.require_local(plot=path)
    local_paths.require_file_name(plot=path)
    if pathlib.Path(path).suffix.lower() not in PICTURES:
        raise ValueError(f"--plot must end in {', '.join(PICTURES)}; got {path!r}.")
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError('--plot needs matplotlib: `pip install "lamb_tf[plot]"`.')


def read(paths: Sequence[str | os.PathLike]) -> dict[str, Contents]:
    """The runs by name, which is that of the folder, or its path if names repeat.

    Warns of folders without a run, which are left out, and of runs without a line in the log.

    Raises:
        ValueError: no folder holds a run.
    """
    local_paths.require_local(**{f"DIR {n}": path for n, path in enumerate(paths, 1)})
    found = {}
    for path in dict.fromkeys(map(pathlib.Path, paths)):
        try:
            found[path] = folders.read(path)
        except (ValueError, OSError) as error:
            messages.warn(f"left out: {error}")
            continue
        if not any(log.train for log in found[path].logs):
            messages.warn(f"{path} has no line in its log yet.")
    if not found:
        raise ValueError(
            "the arguments must be folders of runs; got none. Give model_dirs or output_dirs."
        )
    names = [path.resolve().name for path in found]
    unique = len({*names}) == len(names)
    return {
        _printable(name if unique else str(path)): run
        for name, (path, run) in zip(names, found.items())
    }


def table(runs: Mapping[str, Contents]) -> str:
    """One line per run, aligned: the settings that differ, then what came out."""
    settings = [_settings(run.run) for run in runs.values()]
    results = [_results(run) for run in runs.values()]
    names = dict.fromkeys(name for of_run in settings for name in of_run)
    differing = [n for n in names if len({of_run.get(n, _NONE).content for of_run in settings}) > 1]
    columns = dict.fromkeys(name for of_run in results for name in of_run)
    heads = [f"{name} done" if name in differing else name for name in columns]  # of `steps`
    rows = [["run", *differing, *heads]]
    for name, of_run, result in zip(runs, settings, results):
        told = [_told(setting, of_run, settings) for setting in differing]
        rows.append([name, *told, *(result.get(column, "–") for column in columns)])
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip() for row in rows
    )


def _settings(run):
    """What decides the weights, {short name: `_Setting`}; files count by their content.

    Steps that were measured for a number of minutes are no setting: each run has others.
    """
    named = {name: value for name, value in run.items() if name not in _NO_SETTINGS}
    left_out = ("input_files", *(("steps", "warmup_steps") if run.get("minutes") else ()))
    stages = [{n: v for n, v in s.items() if n not in left_out} for s in run.get("stages", ())]
    named["stages"] = stages[0] if len(stages) == 1 else stages
    found = {
        re.sub(r"^(stages|optimizer)\.(?!\d)", "", name): _Setting(json.dumps(value), _text(value))
        for name, value in run_files.flat(named).items()
    }
    files = {"input_files": run.get("records"), "init_checkpoint": [run.get("init_weights")]}
    for name, digests in files.items():
        if content := ", ".join(str(one).rpartition("-")[2][:6] for one in digests or () if one):
            found[name] = _Setting(content, f"{_text(run.get(name))} ({content})")
    return found


def _told(name, of_run, settings):
    """A setting as text; with a digest if another one has the same text."""
    own = of_run.get(name, _NONE)
    alike = {o.content for s in settings if (o := s.get(name, _NONE)).text == own.text}
    if len(alike) == 1:
        return own.text
    return f"{own.text} ({hashlib.sha256(own.content.encode()).hexdigest()[:6]})"


def _text(value):
    """A setting as text, its end if it is long."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return drawing.number(value)
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        value = ", ".join(value)
    text = "–" if value is None else value if isinstance(value, str) else json.dumps(value)
    return _printable(text if len(text) <= _WIDEST else f"…{text[1 - _WIDEST :]}")


def _printable(text):
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _results(run):
    """What came out, {name: text}: means over the seeds if there are several."""
    found = {}
    if len(run.logs) > 1:
        found["seeds"] = str(len(run.logs))
    for metric, values in run.scores.get("summary", {}).items():
        if "/" not in metric:  # of one class
            found[metric] = _mean_and_deviation(values)
    best = [line for log in run.logs if (line := _best(log.held_out))]
    for metric in [name for name in _HELD_OUT if best and name in best[0]]:
        shown = [line[metric] for line in best if line.get(metric) is not None]
        found[f"held-out {metric}"] = drawing.number(statistics.fmean(shown)) if shown else "–"
    if len(best) == 1:
        found["at step"] = drawing.number(best[0]["step"])
    last = [log.train[-1] for log in run.logs if log.train]
    losses = [line["loss"] for line in last if line.get("loss") is not None]
    found["training loss"] = drawing.number(statistics.fmean(losses)) if losses else "–"
    planned = sum(stage.get("steps", 0) for stage in run.run.get("stages", ()))
    done = min((line["step"] for line in last), default=0)
    found["steps"] = drawing.number(done) + (f" of {planned:,}" if done < planned else "")
    seconds = [line.get("timing", {}).get("seconds") for line in last]
    found["time"] = drawing.duration(sum(seconds) if seconds and None not in seconds else None)
    return found


def _mean_and_deviation(values):
    mean, deviation = values.get("mean"), values.get("standard_deviation")
    if not isinstance(mean, int | float):
        return "–"
    is_spread = isinstance(deviation, int | float)
    return f"{mean:.4f}" + (f" ± {deviation:.4f}" if is_spread else "")


def _best(held_out):
    """The evaluation with the lowest loss, of those in the stage of the last one."""
    stage = held_out[-1].get("stage") if held_out else None
    known = [line for line in held_out if line.get("stage") == stage]
    known = [line for line in known if _is_finite(line.get("loss"))]
    return min(known, key=lambda line: line["loss"], default=None)


def _is_finite(value):
    return value is not None and math.isfinite(value)


def plot(runs: Mapping[str, Contents], path: str | os.PathLike) -> None:
    """Draws the losses and accuracies of all runs, a colour each, in one picture.

    Thin lines are the training's, dots the held-out evaluations.

    Raises:
        ValueError: no run has a line in its log.
    """
    panels, backdrop = charts.compared(runs)
    if not panels:
        raise ValueError("--plot needs a run with a line in its log; got none.")
    colours = {name: f"C{number % 10}" for number, name in enumerate(runs)}
    styles = {
        f"{kind} {name}": {"color": colour, "alpha": alpha, "linewidth": width}
        for name, colour in colours.items()
        for kind, alpha, width in (("training", 0.4, 0.8), ("held-out", 1.0, 1.5))
    }
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    plots.figure(panels, backdrop, styles).savefig(path, dpi=120)


if __name__ == "__main__":
    commands.run(main, Compare)
