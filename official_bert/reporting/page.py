"""Lays out the page of a report: heading, key numbers, charts, tables."""

import datetime
import html
import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from official_bert.reporting import charts, drawing
from official_bert.reporting.contents import Contents

_STYLE, _SCRIPT = (Path(__file__).with_name(f"page.{kind}").read_text() for kind in ("css", "js"))
_KINDS = {"classification": "Sentence classification", "squad": "Question answering"}
_OWN_TABLE = ("config", "stages", "optimizer", "records", "changes")  # of run.json


def render(contents: Contents, now: datetime.datetime) -> str:
    """The whole page as HTML that needs no other file."""
    name = html.escape(contents.folder.resolve().name)
    parts = (
        _heading(contents, name),
        _tiles(contents),
        _section(f"Scores: {contents.scores.get('task', 'held out')}", *_scores(contents)),
        _notes(contents),
        _charts(contents),
        _section("Stages", _stages(contents)),
        _section("Returns and changes", _changes(contents)),
        _section("Starts", _starts(contents)),
        _section("Settings", *_settings(contents)),
        _section("Checkpoints", _checkpoints(contents)),
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{name} – report of a run</title><style>\n{_STYLE}</style></head><body>"
        f"<main>{''.join(parts)}</main><footer>Made {now:%Y-%m-%d %H:%M} by "
        f"<code>official_bert.report</code>.</footer><script>\n{_SCRIPT}</script></body></html>\n"
    )


def _heading(contents, name):
    kind = _KINDS.get(contents.run.get("task"), "Pre-training" if contents.run else "Training")
    config, optimizer = contents.run.get("config", {}), contents.run.get("optimizer", {})
    parts = []
    if {"num_hidden_layers", "hidden_size"} <= config.keys():
        parts.append(f"{config['num_hidden_layers']} layers of width {config['hidden_size']}")
    if "type" in optimizer:
        parts.append(f"trained with {str(optimizer['type']).upper()}")
    if contents.seeds:
        parts.append(f"{len(contents.seeds)} seeds")
    sentence = html.escape(", ".join(parts) + "." * bool(parts))
    switch = '<button id="theme" type="button" title="dark or light">◐</button>'
    return (
        f'<header><p class="kind">{kind}</p><h1>{name}</h1>{switch}<p>{sentence}</p>'
        f"{_progress(contents)}</header>"
    )


def _progress(contents):
    planned = sum(stage.get("steps", 0) for stage in contents.run.get("stages", ()))
    if contents.seeds or not planned:
        return ""
    train, summary = contents.log.train, contents.summary
    done = max((line["step"] for line in train), default=0)
    # A run that has returned to a checkpoint since its end has another last loss in its log.
    same_loss = not train or train[-1].get("loss") == summary.get("train_loss")
    if summary.get("total_training_steps", 0) >= planned and same_loss:
        return f'<p class="state">Finished after {planned:,} steps.</p>'
    if summary.get("stopped_early") is True and summary.get("total_training_steps") == done:
        return (
            f'<p class="state">Finished: stopped early after {done:,} of {planned:,} steps, as the '
            "held-out loss did not become lower.</p>"
        )
    if done >= planned:
        return (
            f'<p class="state">Not finished: all {planned:,} steps are in the log, but the run has '
            "not ended and its last weights may not be saved. Run the same command again.</p>"
        )
    share = f"{done / planned:.0%}".replace("%", " %")
    return (
        f'<p class="state">Not finished: step {done:,} of {planned:,} ({share}).</p>'
        f'<progress max="{planned}" value="{done}"></progress>'
    )


def _tiles(contents):
    last, seen = (
        lines[-1] if lines else {} for lines in (contents.log.train, contents.log.held_out)
    )
    timing = last.get("timing", {})
    loss, accuracy = ("masked_lm_loss", "loss"), ("masked_lm_accuracy", "accuracy")
    found = [
        ("training loss", drawing.number(_first(last, loss)), ""),
        ("held-out loss", drawing.number(_first(seen, loss)), _best(contents)),
        ("held-out accuracy", drawing.percent(_first(seen, accuracy)), ""),
        ("steps", drawing.number(last.get("step")), ""),
        ("training time", drawing.duration(timing.get("seconds")), ""),
        ("model FLOP/s", drawing.with_prefix(timing.get("model_flops_per_second")), ""),
    ]
    tiles = "".join(
        f'<div class="tile"><span>{name}</span><b>{html.escape(value)}</b>'
        f"<small>{more}</small></div>"
        for name, value, more in found
        if value != "–"
    )
    return f'<div class="tiles">{tiles}</div>' if tiles else ""


def _first(line, names):
    return next((line[name] for name in names if name in line), None)


def _best(contents):
    """The step of the best weights, with its length where the last evaluation has another."""
    step, length = contents.best.get("step"), contents.best.get("max_seq_length")
    if step is None:
        return ""
    last = contents.log.held_out[-1].get("stage", 0) if contents.log.held_out else None
    lengths = [stage.get("max_seq_length") for stage in contents.run.get("stages", ())]
    known = length is not None and last is not None and last < len(lengths)
    other = f", of length {length:,}" if known and lengths[last] != length else ""
    return f"best at step {step:,}{other}"


def _notes(contents):
    notes = list(contents.notes)
    if contents.log.train and not charts.adapted(contents.log.train):
        notes.append("The optimizer adapts no layer, so there is no map of trust ratios.")
    items = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    return f'<ul class="notes">{items}</ul>' if items else ""


def _charts(contents):
    backdrop = charts.backdrop(contents)
    drawn = [drawing.line_chart(chart, backdrop) for chart in charts.charts(contents)]
    if ratios := charts.ratio_map(contents.log.train, backdrop.last_step):
        drawn.append(drawing.heat_map(ratios, backdrop))
    return f'<section class="charts" aria-label="charts">{"".join(drawn)}</section>' * bool(drawn)


# Tables


def _section(title: str, *parts: str) -> str:
    """A titled part of the page; empty if nothing is in it."""
    content = "".join(parts)
    return f"<section><h2>{html.escape(title)}</h2>{content}</section>" if content else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]], kind: str = "words") -> str:
    """A table, or nothing without rows; its first column heads the rows.

    The style sheet aligns `words` to the left and `numbers` to the right.
    """
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in heads)
    body = "".join(
        f'<tr><th scope="row">{html.escape(str(first))}</th>'
        + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells)
        + "</tr>"
        for first, *cells in rows
    )
    head = f"<thead><tr>{head}</tr></thead>" if heads else ""
    table = f'<div class="scroll"><table class="{kind}">{head}<tbody>{body}</tbody></table></div>'
    return table if body else ""


def _scores(contents: Contents) -> Iterator[str]:
    """The scores of a fine-tuned model: over all seeds, then per seed."""
    summary, runs = contents.scores.get("summary", {}), contents.scores.get("runs", [])
    if len(runs) > 1:
        keys = ("mean", "standard_deviation", "median", "best")
        rows = [(name, *(_score(of.get(key)) for key in keys)) for name, of in summary.items()]
        yield _table(("metric", "mean", "deviation", "median", "best"), rows, "numbers")
    metrics = [run.get("metrics", {}) for run in runs]
    names = dict.fromkeys(name for found in metrics for name in found)
    heads = ("metric", *(f"seed {run.get('seed', '–')}" for run in runs))
    rows = [(name, *(_score(found.get(name)) for found in metrics)) for name in names]
    yield _table(heads, rows, "numbers")


def _score(value):
    if isinstance(value, float):
        return f"{value:.4f}"
    return "–" if value is None else str(value)


def _stages(contents):
    """The settings of each stage, its last loss and its median rates."""
    names = ("steps", "batch", "length", "learning rate", "warm-up", "ends at")
    keys = ("batch_size", "max_seq_length", "learning_rate", "warmup_steps", "end_learning_rate")
    rows = []
    for index, stage in enumerate(contents.run.get("stages", ())):
        lines = [line for line in contents.logs[0].train if line.get("stage") == index]
        rates = [
            drawing.with_prefix(_median(line.get("timing", {}).get(key) for line in lines))
            for key in ("tokens_per_second", "examples_per_second")
        ]
        loss = drawing.number(lines[-1].get("loss") if lines else None)
        set_to = [drawing.number(stage.get(key)) for key in ("steps", *keys)]
        rows.append((index + 1, *set_to, loss, *rates))
    return _table(("stage", *names, "loss", "tokens/s", "examples/s"), rows, "numbers")


def _median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def _changes(contents):
    """Returns to checkpoints, and longer last stages."""
    rows = [
        (
            change.get("resumed_from") or "the start",
            change.get("instead_of") or "–",
            "; ".join(map(str, change.get("differences", ()))) or "nothing",
        )
        for change in contents.run.get("changes", ())
    ]
    return _table(("resumed from", "instead of", "changed"), rows)


def _starts(contents):
    rows = [
        (
            start.get("time", "–"),
            drawing.number(start.get("step")),
            " ".join(f"{name} {text}" for name, text in start.get("versions", {}).items()),
            f"{start.get('machine', '–')}, {start.get('replicas', '–')} replica(s)",
            " ".join(map(str, start.get("command") or ())),
        )
        for start in contents.starts
    ]
    return _table(("started", "at step", "versions", "machine", "command"), rows)


def _settings(contents: Contents) -> Iterator[str]:
    """Model, optimizer and other settings, each folded."""
    run = contents.run
    parts = {
        "Model": run.get("config", {}),
        "Optimizer": run.get("optimizer", {}),
        "Run": {name: value for name, value in run.items() if name not in _OWN_TABLE},
        "Digests of the records": {
            f"stage {number}": digests for number, digests in enumerate(run.get("records", ()), 1)
        },
    }
    for title, values in parts.items():
        if rows := [(name, _setting(value)) for name, value in values.items()]:
            yield f"<details><summary>{title}</summary>{_table((), rows)}</details>"


def _setting(value):
    if value is None:
        return "–"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _checkpoints(contents):
    good = contents.known_good.get("checkpoint")
    rows = [
        (
            one.name,
            drawing.number(one.step),
            f"{one.size / 1e6:,.1f} MB",
            "known to be good" if one.name == good else "",
        )
        for one in contents.checkpoints
    ]
    return _table(("name", "step", "size", ""), rows)
