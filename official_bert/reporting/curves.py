"""The charts of a run: which numbers of its log stand together, and what to read from them."""

import itertools
from collections.abc import Mapping, Sequence

from official_bert.reporting import charts, heat_map
from official_bert.reporting.charts import Backdrop, Curve
from official_bert.reporting.contents import Contents
from official_bert.training import checkpoint_names
from official_bert.training.log_lines import Log

_TASKS = {"masked_lm": "Masked LM", "next_sentence": "Next sentence", "": "Task"}
_GUESSES = {
    "most_frequent_token_accuracy": "always the most frequent token",
    "majority_class_accuracy": "always the most frequent class",
}


def backdrop(contents: Contents) -> Backdrop:
    """Stages, their ends and the returns of a run, as far as it has come."""
    logs = [contents.log, *contents.seeds.values(), *contents.abandoned.values()]
    last = max((line["step"] for log in logs for line in log.train), default=1)
    ends = list(itertools.accumulate(stage["steps"] for stage in contents.run.get("stages", ())))
    borders = [0, *(end for end in ends if end < last), last]
    changes = contents.run.get("changes", ())
    return Backdrop(last, list(itertools.pairwise(borders)), [*map(_step_of_return, changes)])


def _step_of_return(change):
    name = change.get("resumed_from")
    return checkpoint_names.step_and_count(name)[0] if name else 0


def all_charts(contents: Contents) -> list[str]:
    """The HTML of every chart that the logs have numbers for."""
    behind = backdrop(contents)
    drawn = [
        *(_loss(contents, behind, task) for task in _tasks(contents)),
        *(_accuracy(contents, behind, task) for task in _tasks(contents)),
        _one(
            contents, behind, "learning_rate", "Learning rate", "At the last step of each log line."
        ),
        _one(
            contents,
            behind,
            "gradient_norm",
            "Gradient norm",
            "Global norm over all replicas, before clipping. Peaks often precede a rising loss.",
            logarithmic=True,
        ),
        _throughput(contents, behind),
        _troubles(
            contents, behind, "skipped_updates", "Skipped updates", "Counted from the start."
        ),
        _troubles(
            contents, behind, "loss_scale", "Loss scale", "Halved when a gradient overflows."
        ),
        heat_map.heat_map(contents.log.train, behind),
    ]
    return [chart for chart in drawn if chart]


def logs_of(contents: Contents) -> dict[str, Log]:
    """The logs to draw, by name: that of the run, or one of each seed."""
    return contents.seeds if contents.seeds and not contents.log.train else {"": contents.log}


def _tasks(contents):
    """The tasks whose losses the log tells apart; "" if there is only the one `loss`."""
    lines = [line for log in logs_of(contents).values() for line in log.train]
    named = [task for task in _TASKS if task and any(f"{task}_loss" in line for line in lines)]
    return named or [""]


def _loss(contents, behind, task):
    words = "Lower is better. Held-out loss rising while training loss falls means memorizing."
    title = f"{_TASKS[task]} loss (nats)"
    return charts.line_chart(title, words, _both(contents, _name(task, "loss")), behind)


def _accuracy(contents, behind, task):
    curves = _both(contents, _name(task, "accuracy"))
    for name, words in _GUESSES.items() if curves and task != "next_sentence" else ():
        points = [
            point for log in logs_of(contents).values() for point in _points(log.held_out, name)
        ]
        if points:
            first, last = points[0][1], points[-1][1]
            curves.insert(0, Curve(words, [(0, first), (behind.last_step, last)], "guess"))
    title, words = f"{_TASKS[task]} accuracy", "Share of correct predictions: higher is better."
    return charts.line_chart(title, words, curves, behind, form="percent", from_zero=True)


def _both(contents, name):
    """Curves of a metric in training and on held-out text, and what a return has left behind."""
    curves = []
    for word, log in contents.abandoned.items():
        left = [line for line in log.train if line["step"] > _left_at(contents, word)]
        curves.append(Curve("before the return", _points(left, name), "abandoned"))
    for log in logs_of(contents).values():
        curves.append(Curve("training", _points(log.train, name)))
        curves += [
            Curve("held out", _points(lines, name), "held-out", True)
            for lines in _by_length(contents, log.held_out)
        ]
    return [curve for curve in curves if curve.points]


def _by_length(contents: Contents, held_out: Sequence[Mapping]) -> list[list[Mapping]]:
    """The evaluations of each sequence length in a row: those of others do not compare."""
    lengths = [stage.get("max_seq_length") for stage in contents.run.get("stages", ())]

    def length(line):
        stage = line.get("stage", 0)
        return lengths[stage] if stage < len(lengths) else None

    return [list(lines) for _, lines in itertools.groupby(held_out, length)]


def _left_at(contents: Contents, newest: str) -> int:
    """The step that the run returned to when a checkpoint was the newest."""
    changes = contents.run.get("changes", ())
    returns = [_step_of_return(c) for c in changes if c.get("instead_of") == newest]
    return returns[-1] if returns else 0


def _name(task, metric):
    return f"{task}_{metric}" if task else metric


def _points(lines: Sequence[Mapping], name: str) -> list[tuple[int, float | None]]:
    return [(line["step"], line[name]) for line in lines if name in line]


def _one(contents, behind, name, title, words, **options):
    curves = [Curve("each seed", _points(log.train, name)) for log in logs_of(contents).values()]
    options = {"from_zero": True} | options
    return charts.line_chart(title, words, _unnamed(curves), behind, **options)


def _unnamed(curves):
    """A single curve needs no legend; the title names it."""
    return [curve._replace(name="value") for curve in curves] if len(curves) == 1 else curves


def _throughput(contents, behind):
    curves = [
        Curve("each seed", _points([_timing(line) for line in log.train], "tokens_per_second"))
        for log in logs_of(contents).values()
    ]
    words = "Without padding. It falls with longer sequences and while waiting for batches."
    title = "Throughput (tokens per second)"
    options = {"form": "prefix", "from_zero": True}
    return charts.line_chart(title, words, _unnamed(curves), behind, **options)


def _timing(line):
    timing = line.get("timing")
    return {"step": line["step"], **(timing if isinstance(timing, dict) else {})}


def _troubles(contents, behind, name, title, words):
    """A chart of what should stay as it is, if it does not."""
    lines = [line for log in logs_of(contents).values() for line in log.train]
    if len({line.get(name) for line in lines} - {None}) < 2:
        return ""
    return _one(contents, behind, name, title, words)
