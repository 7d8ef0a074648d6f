"""What sentence classification predicts: one of several classes, or a number.

Labels are text in the tables, integers or floats in the model. The classes are found once, in the
training data; their order is that of the model's outputs and is saved beside the model.
"""

import dataclasses
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from official_bert.system.whole_files import write_text
from official_bert.tasks.sentence_examples import Examples

_MAX_NAMED = 10  # in a message
_LARGEST = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True)
class Classes:
    """Classes by name; the place in `names` is the class's number."""

    names: tuple[str, ...]

    def __post_init__(self):
        if len(self.names) < 2 or len(set(self.names)) < len(self.names):
            raise ValueError(f"classes: got {self.names!r}, expected two different ones or more.")

    def encode(self, examples: Examples) -> np.ndarray:
        """Class numbers, int32 of shape (number of examples,).

        Raises:
            ValueError: there are no labels, or some name none of these classes.
        """
        numbers = {name: number for number, name in enumerate(self.names)}
        names = [label.strip() for label in _require_labels(examples)]
        unknown = Counter(name for name in names if name not in numbers)
        if unknown:
            line = next(n for n, name in zip(examples.lines, names) if name in unknown)
            raise ValueError(
                f"{examples.path}, line {line}: unknown labels in this file: "
                f"{_named(unknown)}; expected {_named(self.names)}, the classes of training."
            )
        return np.fromiter(map(numbers.__getitem__, names), np.int32, len(names))

    def decode(self, predictions: np.ndarray) -> list[str]:
        """The names of class numbers."""
        return [self.names[number] for number in np.asarray(predictions).tolist()]


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Numbers, such as scores.

    Attributes:
        low: The lowest, where the scale has bounds; predictions are clipped to them.
        high: The highest.
    """

    low: float = -math.inf
    high: float = math.inf

    def encode(self, examples: Examples) -> np.ndarray:
        """The numbers, float32 of shape (number of examples,).

        Raises:
            ValueError: there are no labels, or one is no number or out of bounds.
        """
        labels = _require_labels(examples)
        values = [_to_number(label) for label in labels]
        for line, label, value in zip(examples.lines, labels, values):
            if not (self.low <= value <= self.high and abs(value) <= _LARGEST):
                bounds = f" from {self.low:g} to {self.high:g}" if self != Numbers() else ""
                raise ValueError(
                    f"{examples.path}, line {line}: the label is {label[:40]!r}, expected a "
                    f"number{bounds}."
                )
        return np.asarray(values, np.float32)

    def decode(self, predictions: np.ndarray) -> list[str]:
        """Numbers as text, clipped to the bounds, with as many digits as tell float32 apart.

        Raises:
            ValueError: a prediction is not finite.
        """
        predictions = np.asarray(predictions, np.float32)
        if not np.isfinite(predictions).all():
            bad = predictions[~np.isfinite(predictions)]
            raise ValueError(
                f"predictions: {bad.size} of {predictions.size} are not finite, such as {bad[0]}; "
                f"expected numbers. Has the model diverged?"
            )
        clipped = np.clip(predictions, np.float32(self.low), np.float32(self.high))
        return [np.format_float_positional(value, trim="0") for value in clipped]


def find_classes(examples: Examples) -> Classes:
    """The classes of a training set: integers by value, other names by their code points.

    Raises:
        ValueError: there are no labels, or fewer than two different ones.
    """
    found = {label.strip() for label in _require_labels(examples)}
    if len(found) < 2:
        raise ValueError(
            f"{examples.path}: all rows have the label {_named(found)}; expected two different "
            f"ones or more. Is the column of labels the right one?"
        )
    are_integers = all(re.fullmatch(r"[+-]?[0-9]{1,18}", name) for name in found)
    return Classes(tuple(sorted(found, key=lambda name: (int(name) if are_integers else 0, name))))


def save(labels: Classes | Numbers, path: str) -> None:
    """Writes a JSON file that `load` reads."""
    if isinstance(labels, Classes):
        contents: dict[str, list] = {"classes": list(labels.names)}
    else:
        contents = {"number": [v if math.isfinite(v) else None for v in (labels.low, labels.high)]}
    write_text(path, json.dumps(contents, ensure_ascii=False, indent=1) + "\n")


def load(path: str) -> Classes | Numbers:
    """Reads what `save` wrote.

    Raises:
        ValueError: the file is missing, or something else.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return from_json(json.load(file))
    except FileNotFoundError:
        raise ValueError(
            f"{path}: there is no such file; training on classes writes it beside its model. "
            f"Give that model's folder, or copy its {os.path.basename(path)} here."
        ) from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path}: not a file of labels ({error}); expected the one that training wrote beside "
            f"its model."
        ) from None


def from_json(contents: dict) -> Classes | Numbers:
    """The same from the contents of the file.

    Raises:
        ValueError, KeyError, TypeError: they are something else.
    """
    if "classes" in contents:
        names = contents["classes"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"classes {names!r:.99}, expected a list of names")
        return Classes(tuple(names))
    low, high = contents["number"]
    if not {type(low), type(high)} <= {int, float, type(None)}:
        raise TypeError(f"bounds {contents['number']!r:.99}, expected two numbers or null")
    return Numbers(-math.inf if low is None else low, math.inf if high is None else high)


def _require_labels(examples: Examples) -> Sequence[str]:
    if examples.labels is None:
        raise ValueError(f"{examples.path}: read without labels; expected labelled examples.")
    for line, label in zip(examples.lines, examples.labels):
        if not label.strip():
            raise ValueError(f"{examples.path}, line {line}: the label is empty.")
    return examples.labels


def _to_number(label: str) -> float:
    try:
        return float(label)
    except ValueError:
        return math.nan


def _named(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(repr(name[:40]) for name in names[:_MAX_NAMED]) + more
