"""The tables of a report: what was run, how each stage went, what is in the folder, the scores."""

import html
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence

from official_bert.reporting import scales
from official_bert.reporting.contents import Contents
from official_bert.reporting.curves import logs_of
from official_bert.training.log_lines import Log

_OWN_TABLE = ("config", "stages", "optimizer", "records", "changes")


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], kind: str = "numbers") -> str:
    """A table as HTML; the first column is its rows' heads. It scrolls if it is too wide.

    `kind`, `numbers` or `words`, says to which side the cells are aligned.
    """
    head = "".join(f'<th scope="col">{html.escape(str(text))}</th>' for text in heads)
    body = "".join(
        f'<tr><th scope="row">{html.escape(str(first))}</th>'
        + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells)
        + "</tr>"
        for first, *cells in rows
    )
    head = f"<thead><tr>{head}</tr></thead>" if heads else ""
    return (
        f'<div class="scroll"><table class="{kind}">{head}<tbody>{body}</tbody></table></div>'
        if body
        else ""
    )


def section(title: str, *parts: str) -> str:
    """A titled part of the page; empty if nothing is in it."""
    content = "".join(parts)
    return f"<section><h2>{html.escape(title)}</h2>{content}</section>" if content else ""


def scores(contents: Contents) -> str:
    """The scores of a fine-tuned model: over the seeds, and of each seed."""
    summary, runs = contents.scores.get("summary", {}), contents.scores.get("runs", [])
    names = list(dict.fromkeys(name for run in runs for name in run.get("metrics", {})))
    over_seeds = table(
        ("metric", "mean", "deviation", "median", "best"),
        [
            (
                name,
                *(_score(of.get(key)) for key in ("mean", "standard_deviation", "median", "best")),
            )
            for name, of in (summary.items() if len(runs) > 1 else ())
        ],
    )
    of_each = table(
        ("metric", *(f"seed {run.get('seed', '–')}" for run in runs)),
        [(name, *(_score(run.get("metrics", {}).get(name)) for run in runs)) for name in names],
    )
    return section(f"Scores: {contents.scores.get('task', 'held out')}", over_seeds, of_each)


def stages(contents: Contents) -> str:
    """What each stage does, and how it went: the settings of the run beside its results."""
    heads: tuple[str, ...] = (
        "stage",
        "steps",
        "batch",
        "length",
        "learning rate",
        "warm-up",
        "ends at",
    )
    heads = (*heads, "loss", "tokens/s", "examples/s")
    log = next(iter(logs_of(contents).values()))
    rows = [
        (
            f"{number}",
            *(scales.number(stage.get(key)) for key in ("steps", "batch_size", "max_seq_length")),
            scales.number(stage.get("learning_rate")),
            scales.number(stage.get("warmup_steps")),
            scales.number(stage.get("end_learning_rate")),
            *_went(log, number - 1),
        )
        for number, stage in enumerate(contents.run.get("stages", ()), 1)
    ]
    return section("Stages", table(heads, rows))


def _went(log: Log, index: int) -> tuple[str, ...]:
    """The last loss and the median rates of a stage."""
    lines = [line for line in log.train if line.get("stage") == index]
    rates = [_median(line.get("timing", {}).get(key) for line in lines) for key in _RATES]
    loss = lines[-1].get("loss") if lines else None
    return (scales.number(loss), *map(scales.with_prefix, rates))


_RATES = ("tokens_per_second", "examples_per_second")


def _median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def changes(contents: Contents) -> str:
    """What was changed on purpose: returns to checkpoints, longer last stages."""
    rows = [
        (
            change.get("resumed_from") or "the start",
            change.get("instead_of") or "–",
            "; ".join(map(str, change.get("differences", ()))) or "nothing",
        )
        for change in contents.run.get("changes", ())
    ]
    heads = ("resumed from", "instead of", "changed")
    return section("Returns and changes", table(heads, rows, "words"))


def settings(contents: Contents) -> str:
    """Model, optimizer and the other settings, each in a part that opens."""
    run = contents.run
    rest = {name: value for name, value in run.items() if name not in _OWN_TABLE}
    digests = {f"stage {number}": d for number, d in enumerate(run.get("records", ()), 1)}
    parts = {
        "Model": run.get("config", {}),
        "Optimizer": run.get("optimizer", {}),
        "Run": rest,
        "Digests of the records": digests,
    }
    return section("Settings", *(_opens(title, values) for title, values in parts.items()))


def _opens(title: str, values: Mapping) -> str:
    rows = table((), [(name, _setting(value)) for name, value in values.items()], "words")
    return f"<details><summary>{title}</summary>{rows}</details>" if rows else ""


def starts(contents: Contents) -> str:
    """When the run was started, by which command, with which versions."""
    rows = [
        (
            str(start.get("time", "–")),
            scales.number(start.get("step")),
            " ".join(f"{name} {text}" for name, text in _object(start.get("versions")).items()),
            f"{start.get('machine', '–')}, {start.get('replicas', '–')} replica(s)",
            " ".join(map(str, start.get("command") or ())),
        )
        for start in contents.starts
    ]
    heads = ("started", "at step", "versions", "machine", "command")
    return section("Starts", table(heads, rows, "words"))


def files(contents: Contents) -> str:
    """The checkpoints in the folder, and which of them are the best and the last good one."""
    good = contents.known_good.get("checkpoint")
    rows = [
        (
            one.name,
            scales.number(one.step),
            f"{one.size / 1e6:,.1f} MB",
            "known to be good" if one.name == good else "",
        )
        for one in contents.checkpoints
    ]
    return section("Checkpoints", table(("name", "step", "size", ""), rows, "words"))


def _object(value):
    return value if isinstance(value, dict) else {}


def _score(value):
    if isinstance(value, float):
        return f"{value:.4f}"
    return "–" if value is None else str(value)


def _setting(value):
    if value is None:
        return "–"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
