"""Reads the files of a run, which anyone may have edited: their schemas, and lines of JSON.

A form is a predicate, a dict {key: form} (the key `...` stands for all others), or a list of one
form, that of its entries. Keys may be missing.
"""

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from official_bert.training import checkpoint_names

STARTS = "starts.jsonl"  # a line for each launch

_LARGEST = 2**53  # beyond it, neighbouring whole numbers are one float

_LARGEST_DRAWN = 1e300  # of which an axis can still have twice as much


def is_anything(value: object) -> bool:
    return True


def is_number(value: object) -> bool:
    """A number that can be drawn or written, infinite ones too, or null."""
    if isinstance(value, float):
        return abs(value) < _LARGEST_DRAWN or not math.isfinite(value)
    return value is None or _is_between(value, -_LARGEST, _LARGEST)


def is_count(value: object) -> bool:
    return _is_between(value, 0, _LARGEST)


def is_text(value: object) -> bool:
    return value is None or isinstance(value, str)


def is_scalar(value: object) -> bool:
    return is_number(value) or isinstance(value, str | bool)


def is_checkpoint(value: object) -> bool:
    """The name of a checkpoint; null stands for the start."""
    return value is None or (isinstance(value, str) and checkpoint_names.is_name(value))


def _is_between(value, low, high):
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def misfits(value: object, form: Any, name: str = "it") -> Iterator[str]:
    """The names of the values that are not of their form, such as `timing.seconds`."""
    if callable(form):
        if not form(value):
            yield name
    elif isinstance(form, list):
        entries = value if isinstance(value, list) else ()
        yield from [name] if not isinstance(value, list) else []
        for number, entry in enumerate(entries):
            yield from misfits(entry, form[0], f"{name}[{number}]")
    elif not isinstance(value, dict):
        yield name
    else:
        for key, entry in value.items():
            of_key = form.get(key, form.get(..., is_anything))
            yield from misfits(entry, of_key, key if name == "it" else f"{name}.{key}")


_NUMBERS = {...: is_number}
LINE = {
    "step": is_count,
    "stage": is_count,
    "kind": is_text,
    "timing": _NUMBERS,
    "trust_ratios": _NUMBERS,
    "instead_of": is_text,
    "resumed_from": is_text,
    "differences": is_anything,
    ...: is_number,
}
RUN = {
    "task": is_text,
    "config": {...: is_anything},
    "optimizer": {...: is_anything},
    "stages": [
        {
            "steps": is_count,
            **dict.fromkeys(("batch_size", "max_seq_length", "warmup_steps"), is_number),
            **dict.fromkeys(("learning_rate", "end_learning_rate"), is_number),
        }
    ],
    "records": [is_anything],
    "changes": [
        {"resumed_from": is_checkpoint, "instead_of": is_checkpoint, "differences": [is_scalar]}
    ],
}
BEST = {"step": is_count, "max_seq_length": is_number, "loss": is_number}
SUMMARY = {"total_training_steps": is_count, "train_loss": is_number}
KNOWN_GOOD = {"checkpoint": is_text}
_SUMMARY = ("mean", "standard_deviation", "median", "best")
SCORES = {
    "task": is_text,
    "summary": {...: dict.fromkeys(_SUMMARY, is_scalar)},
    "runs": [{"seed": is_scalar, "metrics": {...: is_scalar}}],
}
START = {
    "time": is_text,
    "step": is_number,
    "versions": {...: is_scalar},
    "machine": is_scalar,
    "replicas": is_scalar,
    "command": [is_scalar],
}


@dataclasses.dataclass(frozen=True)
class Log:
    """The lines of a training log by kind, in the order of their steps.

    Attributes:
        train: Lines about updates.
        held_out: Lines of evaluations.
        damaged: Number of lines that could not be read. A run in progress may be writing one.
    """

    train: list[dict]
    held_out: list[dict]
    damaged: int = 0


def read_log(path: Path) -> Log:
    """The `Log` of a file; empty if there is none."""
    lines, damaged = read_lines(path, LINE)
    lines = [line for line in lines if "step" in line]
    lines.sort(key=lambda line: line["step"])
    train, held_out = (
        [line for line in lines if line.get("kind") == kind] for kind in ("train", "eval")
    )
    return Log(train, held_out, damaged)


def read_lines(path: Path, form: object) -> tuple[list[dict], int]:
    """The objects in a file of JSON lines, and how many lines are none or not of the form."""
    if not path.exists():
        return [], 0
    found = [decoded(line) for line in path.read_text(errors="replace").splitlines()]
    found = [{} if any(misfits(line, form)) else line for line in found]
    return [line for line in found if line], found.count({})


def decoded(text: str) -> dict:
    """The object that a text is in JSON; empty if it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
