"""Schemas of the JSON files in a model directory, which anyone may have edited.

A form is a predicate, a dict {key: form} (the key `...` stands for all others), or a list of one
form, that of its entries. Keys may be missing.
"""

import math
from collections.abc import Iterator
from typing import Any

from official_bert.training import checkpoint_names

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
