"""The page of a report: a heading, the numbers to know first, charts, tables."""

import datetime
import html

from official_bert.reporting import curves, scales, tables
from official_bert.reporting.appearance import SCRIPT, STYLE
from official_bert.reporting.contents import Contents

_KINDS = {"classification": "Sentence classification", "squad": "Question answering"}


def render(contents: Contents, now: datetime.datetime) -> str:
    """The whole page as HTML that needs no other file.

    Args:
        contents: What was found in the folder.
        now: When the report was made.
    """
    name = html.escape(contents.folder.resolve().name)
    body = "".join(
        (
            _heading(contents, name),
            _tiles(contents),
            tables.scores(contents),
            _notes(contents),
            _charts(contents),
            tables.stages(contents),
            tables.changes(contents),
            tables.starts(contents),
            tables.settings(contents),
            tables.files(contents),
        )
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{name} – report of a run</title><style>{STYLE}</style></head><body>"
        f"<main>{body}</main><footer>Made {now:%Y-%m-%d %H:%M} by "
        f"<code>official_bert.report</code>.</footer><script>{SCRIPT}</script></body></html>\n"
    )


def _heading(contents, name):
    kind = _KINDS.get(contents.run.get("task"), "Pre-training" if contents.run else "Training")
    switch = '<button id="theme" type="button" title="dark or light">◐</button>'
    return (
        f'<header><p class="kind">{kind}</p><h1>{name}</h1>{switch}'
        f"<p>{html.escape(_sentence(contents))}</p>{_progress(contents)}</header>"
    )


def _sentence(contents):
    """Model and optimizer in a line."""
    config, optimizer = contents.run.get("config", {}), contents.run.get("optimizer", {})
    parts = []
    if {"num_hidden_layers", "hidden_size"} <= config.keys():
        parts.append(f"{config['num_hidden_layers']} layers of width {config['hidden_size']}")
    if "type" in optimizer:
        parts.append(f"trained with {str(optimizer['type']).upper()}")
    if contents.seeds:
        parts.append(f"{len(contents.seeds)} seeds")
    return ", ".join(parts) + "." if parts else ""


def _steps(contents):
    """Steps done, and in all; `None` if that is not known."""
    done = max((line["step"] for line in contents.log.train), default=0)
    planned = sum(stage["steps"] for stage in contents.run.get("stages", ())) or None
    return done, planned


def _has_ended(contents, planned):
    """Whether the run came to its end, where it writes its summary.

    A run that has returned to a checkpoint since has another last loss in its log.
    """
    ended = contents.summary.get("total_training_steps", 0) >= planned
    train = contents.log.train
    return ended and (not train or train[-1].get("loss") == contents.summary.get("train_loss"))


def _progress(contents):
    if contents.seeds:
        return ""
    done, planned = _steps(contents)
    if planned is None:
        return ""
    if _has_ended(contents, planned):
        return f'<p class="state">Finished after {planned:,} steps.</p>'
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
    """The numbers to know first."""
    train, held_out = contents.log.train, contents.log.held_out
    last, seen = (lines[-1] if lines else {} for lines in (train, held_out))
    found = [
        ("training loss", _number(last, "masked_lm_loss", "loss"), ""),
        ("held-out loss", _number(seen, "masked_lm_loss", "loss"), _best(contents)),
        ("held-out accuracy", _share(seen, "masked_lm_accuracy", "accuracy"), ""),
        ("steps", f"{last['step']:,}" if last else "–", ""),
        ("training time", scales.duration(_timing(last).get("seconds")), ""),
        ("model FLOP/s", scales.with_prefix(_timing(last).get("model_flops_per_second")), ""),
    ]
    tiles = "".join(
        f'<div class="tile"><span>{name}</span><b>{html.escape(value)}</b>'
        f"<small>{more}</small></div>"
        for name, value, more in found
        if value != "–"
    )
    return f'<div class="tiles">{tiles}</div>' if tiles else ""


def _best(contents):
    """Where the best weights are from; losses at another length do not compare with the last."""
    best, step = contents.best, contents.best.get("step")
    if not isinstance(step, int):
        return ""
    length = best.get("max_seq_length")
    last = contents.log.held_out[-1].get("stage", 0) if contents.log.held_out else None
    stages = contents.run.get("stages", ())
    if length is None or last is None or last >= len(stages):
        return f"best at step {step:,}"
    same = stages[last].get("max_seq_length") == length
    return f"best at step {step:,}" + ("" if same else f", of length {length:,}")


def _number(line, *names):
    return scales.number(next((line[name] for name in names if name in line), None))


def _share(line, *names):
    return scales.percent(next((line[name] for name in names if name in line), None))


def _timing(line):
    timing = line.get("timing")
    return timing if isinstance(timing, dict) else {}


def _notes(contents):
    notes = list(contents.notes)
    adapts_nothing = contents.log.train and not curves.heat_map.adapted(contents.log.train)
    if adapts_nothing:
        notes.append("The optimizer adapts no layer, so there is no map of trust ratios.")
    items = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    return f'<ul class="notes">{items}</ul>' if items else ""


def _charts(contents):
    drawn = "".join(curves.all_charts(contents))
    return f'<section class="charts" aria-label="charts">{drawn}</section>' if drawn else ""
