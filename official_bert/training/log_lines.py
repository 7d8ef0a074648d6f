"""Reads the files of JSON lines that a run leaves: those that are whole, and how many are not."""

import dataclasses
import json
from pathlib import Path

from official_bert.training import forms


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
    lines, damaged = read_lines(path, forms.LINE)
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
    found = [{} if any(forms.misfits(line, form)) else line for line in found]
    return [line for line in found if line], found.count({})


def decoded(text: str) -> dict:
    """The object that a text is in JSON; empty if it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
