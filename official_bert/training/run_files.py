"""Schemas of the JSON files of a run, which may have been edited; names of its checkpoints.

A form is a predicate, a dict {key: form} (the key `...` means all others), or a list of one
form, that of its entries. Keys may be missing.
"""

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

_NAME = re.compile(r"ctl_step_(\d+)\.ckpt-(\d+)")
STARTS = "starts.jsonl"  # a line for each launch
INITIAL = "initial/bert_model.ckpt-0"  # the weights before the first step

_LARGEST = 2**53  # beyond it, neighbouring whole numbers are one float

_LARGEST_DRAWN = 1e300  # of which an axis can still have twice as much


def is_name(name: str) -> bool:
    """Whether a checkpoint can have this name."""
    return _NAME.fullmatch(name) is not None


def step_and_count(name: str) -> tuple[int, int]:
    """The step and the running number in a checkpoint's name.

    Raises:
        ValueError: if it is another name.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"A checkpoint's name must be like ctl_step_8.ckpt-2; got {name!r}.")
    return int(match[1]), int(match[2])


class Abandoned(NamedTuple):
    """The checkpoints abandoned by a return to an earlier one: later steps, smaller numbers."""

    after_step: int
    up_to_count: int

    @classmethod
    def between(cls, resumed_from: str, instead_of: str) -> Self:
        """Of a run that returned to one checkpoint when another was the newest, by name."""
        return cls(step_and_count(resumed_from)[0], step_and_count(instead_of)[1])

    def includes(self, name: str) -> bool:
        step, count = step_and_count(name)
        return step > self.after_step and count <= self.up_to_count


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
    """The name of a checkpoint; null means the start."""
    return value is None or (isinstance(value, str) and is_name(value))


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


def flat(value: object, name: str = "") -> dict[str, object]:
    """Nested JSON values as {path: value}, such as `stages.0.steps`; short lists stay whole."""
    entries: Iterator[tuple[object, object]]
    if isinstance(value, dict):
        entries = iter(value.items())
    elif isinstance(value, list) and any(isinstance(entry, dict | list) for entry in value):
        entries = iter(enumerate(value))
    else:
        return {name: value}
    found: dict[str, object] = {}
    for key, entry in entries:
        found |= flat(entry, f"{name}.{key}" if name else str(key))
    return found


_NUMBERS = {...: is_number}
LINE = {
    "step": is_count,
    "stage": is_count,
    "kind": is_text,
    "timing": _NUMBERS,
    "trust_ratios": _NUMBERS,
    "noise_scales": _NUMBERS,
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
