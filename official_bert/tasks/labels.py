"""Labels of sentence classification: classes, numbers and sets of labels.

Labels are text in the tables, integers or floats in the model. Their names are found once, in the
training data, in the order of the model's outputs, and saved next to the model. A set of labels is
written `anger|joy`, or as a JSON list.
"""

import dataclasses
import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from official_bert.system import messages
from official_bert.system.whole_files import write_text
from official_bert.tasks.tables import Examples

_MAX_NAMED = 10  # in a message
_MANY = 20  # different numbers are hardly classes, unless they are 0, 1, 2, …
_DECIMAL = re.compile(r"([+-]?)(0|[1-9][0-9]*)(?:\.([0-9]*))?")
_LARGEST = float(np.finfo(np.float32).max)
_SEPARATOR = "|"  # of the labels in a cell


@dataclasses.dataclass(frozen=True)
class Classes:
    """Classes by name; the index in `names` is the class's number."""

    names: tuple[str, ...]

    def __post_init__(self):
        if len(self.names) < 2 or len(set(self.names)) < len(self.names):
            raise ValueError(f"classes must be at least two different names; got {self.names!r}.")

    def encode(self, examples: Examples) -> np.ndarray:
        """Class numbers, int32 of shape (number of examples,).

        Raises:
            ValueError: there are no labels, or some are not among these classes.
        """
        names = [label.strip() for label in _require_labels(examples)]
        numbers = _class_numbers(self.names, examples, [[name] for name in names])
        return np.fromiter(map(numbers.__getitem__, names), np.int32, len(names))

    def decode(self, predictions: np.ndarray) -> list[str]:
        """The names of class numbers."""
        return [self.names[number] for number in np.asarray(predictions).tolist()]


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Numbers, such as scores, with the bounds of their scale, to which predictions are clipped."""

    low: float = -math.inf
    high: float = math.inf

    def encode(self, examples: Examples) -> np.ndarray:
        """The numbers, float32 of shape (number of examples,).

        Raises:
            ValueError: there are no labels, or one is not a number or out of bounds.
        """
        labels = _require_labels(examples)
        values = [_to_number(label) for label in labels]
        for line, label, value in zip(examples.lines, labels, values):
            if not (self.low <= value <= self.high and abs(value) <= _LARGEST):
                bounds = f" from {self.low:g} to {self.high:g}" if self != Numbers() else ""
                raise ValueError(
                    f"{examples.path}, line {line}: the label must be a number{bounds}; got "
                    f"{label[:40]!r}."
                )
        return np.asarray(values, np.float32)

    def decode(self, predictions: np.ndarray) -> list[str]:
        """Finite numbers as text, clipped to the bounds, with digits that identify a float32."""
        predictions = np.asarray(predictions, np.float32)
        clipped = np.clip(predictions, np.float32(self.low), np.float32(self.high))
        return [np.format_float_positional(value, trim="0") for value in clipped]


@dataclasses.dataclass(frozen=True)
class LabelSets:
    """Any number of labels at once; the index in `names` is the number of a label's output."""

    names: tuple[str, ...]

    def __post_init__(self):
        if not self.names or len(set(self.names)) < len(self.names):
            raise ValueError(f"labels must be one or more different names; got {self.names!r}.")

    def encode(self, examples: Examples) -> np.ndarray:
        """1 for each label of an example, else 0: float32 of shape (examples, labels).

        Raises:
            ValueError: there are no labels, or some are not among these.
        """
        sets = _label_sets(examples)
        numbers = _class_numbers(self.names, examples, sets)
        found = np.zeros((len(sets), len(self.names)), np.float32)
        for row, names in zip(found, sets):
            row[[numbers[name] for name in names]] = 1
        return found

    def decode(self, predictions: np.ndarray) -> list[str]:
        """The labels with positive logits, whose probability exceeds one half, as `split` reads."""
        return [_joined([self.names[n] for n in np.flatnonzero(row > 0)]) for row in predictions]


Labels = Classes | Numbers | LabelSets


def _class_numbers(
    ours: Sequence[str], examples: Examples, used: Sequence[Sequence[str]]
) -> dict[str, int]:
    """The number of each name that the rows use, by its exact or else its comparable form."""
    keys = Counter(map(comparable, ours))  # only unambiguous ones name a class
    numbers = {comparable(n): i for i, n in enumerate(ours) if keys[comparable(n)] == 1}
    numbers |= {name: number for number, name in enumerate(ours)}
    for name in {*chain.from_iterable(used)} - {*numbers}:
        if comparable(name) in numbers:
            numbers[name] = numbers[comparable(name)]
    unknown = Counter(name for name in chain.from_iterable(used) if name not in numbers)
    if unknown:
        rows = zip(examples.lines, used)
        line = next(n for n, names in rows if not unknown.keys().isdisjoint(names))
        hint = "Correct the labels, or train on them."
        if all(re.fullmatch(r"LABEL_[0-9]+", name) for name in ours):
            hint = "Write the names into id2label in the checkpoint's config.json."
        raise ValueError(
            f"{examples.path}, line {line}: labels must be among the classes of training, "
            f"{named(ours)}; got {named(unknown)}. {hint}"
        )
    return numbers


def split(cell: str) -> list[str]:
    """The labels in a cell, without empty ones.

    Raises:
        ValueError: it is in brackets, but no JSON list of texts and numbers.

    Examples:
        >>> split("anger | joy"), split('["anger|joy", 3]'), split("")
        (['anger', 'joy'], ['anger|joy', '3'], [])
    """
    cell = cell.strip()
    found: list = cell.split(_SEPARATOR)
    if cell[:1] + cell[-1:] == "[]":
        found = json.loads(cell)
        if not all(isinstance(label, str | int | float) for label in found):
            raise ValueError("one is no text or number")
    texts = (one if isinstance(one, str) else json.dumps(one) for one in found)
    return [text.strip() for text in texts if text.strip()]


def _joined(names: list[str]) -> str:
    """The text that `split` splits into these names."""
    text = _SEPARATOR.join(names)
    plain = text[:1] + text[-1:] != "[]" and not any(_SEPARATOR in name for name in names)
    return text if plain else json.dumps(names, ensure_ascii=False)


def _label_sets(examples: Examples) -> list[list[str]]:
    if examples.labels is None:
        raise ValueError(f"{examples.path} must be read with labels; got examples without.")
    found = []
    for line, cell in zip(examples.lines, examples.labels):
        try:
            found.append(split(cell))
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f'{examples.path}, line {line}: labels must be separated by "{_SEPARATOR}", or be '
                f'a list of JSON, such as ["a", "b"]; got {cell[:40]!r} ({error}).'
            ) from None
    return found


def comparable(name: str) -> str:
    """The form in which names of classes are compared: numbers by their value, texts normalized.

    Case, spaces, hyphens and underscores are removed; `LABEL_3` is Hugging Face's name for an
    unnamed class 3.

    Examples:
        >>> comparable("1.0"), comparable("LABEL_1"), comparable("Not-Entailment")
        ('1', '1', 'notentailment')
    """
    number = _decimal(name)
    if number is not None:
        return number
    letters = re.sub(r"[\s_\u2010-\u2015-]+", "", name.casefold())
    return re.sub(r"^label(?=[0-9]+$)", "", letters) or name


def order_by_name(
    ours: Sequence[str], theirs: Sequence[str], synonyms: Sequence[Sequence[str]] = ()
) -> list[int] | None:
    """The index in `theirs` of each of our classes; `None` if the names do not determine it.

    Examples:
        >>> order_by_name(["no", "yes"], ["Yes", "NO"])
        [1, 0]
    """
    places = {comparable(name): place for place, name in enumerate(theirs)}
    also = [*synonyms, *[()] * (len(ours) - len(synonyms))]
    found = [
        {places[key] for key in map(comparable, (name, *others)) if key in places}
        for name, others in zip(ours, also, strict=True)
    ]
    order = [place for of_one in found for place in of_one]
    each_once = all(len(of_one) == 1 for of_one in found) and len({*order}) == len(theirs)
    return order if each_once else None


def find_classes(examples: Examples, numbers_are_classes: bool = False) -> Classes:
    """The classes of a training set: integers by value, other names by their code points.

    Numbers of one value are one class, however they are written. Warns of merged labels, of names
    that differ only in case or hyphens, of labels that hardly repeat, and of several labels that
    are one class.

    Args:
        numbers_are_classes: Whether numbers that look like measurements are classes anyway.

    Raises:
        ValueError: there are no labels, fewer than two different ones, or numbers that look like
            measurements: decimals, or many that are not 0, 1, 2, …
    """
    spellings: dict[str, list[str]] = {}  # of a number's value or a name, in the order of the rows
    for name in dict.fromkeys(label.strip() for label in _require_labels(examples)):
        spellings.setdefault(_decimal(name) or name, []).append(name)
    found = {names[0] if len(names) == 1 else value for value, names in spellings.items()}
    if len(found) < 2:
        raise ValueError(
            f"{examples.path} must have at least two different labels; got only {named(found)}. "
            "Is label_column the right column?"
        )
    if not numbers_are_classes:
        _require_no_measurements(examples.path, found)
    for warning in _suspicious(examples, spellings):
        messages.warn(f"{examples.path}: {warning}")
    split_up = {name: {part.strip() for part in name.split(_SEPARATOR)} for name in spellings}
    several = sorted(
        n for n, parts in split_up.items() if len(parts) > 1 and parts <= split_up.keys()
    )
    if several:
        messages.warn(
            f"{examples.path}: read as one class each: {named(several)}; if they are several "
            "labels, give --multi_label."
        )
    return Classes(_in_order(found))


def find_label_sets(examples: Examples) -> LabelSets:
    """The labels of a training set, in the order of `find_classes`.

    Prints how many rows have none. Warns of names that differ only in case or hyphens, of labels
    that hardly repeat, and of several labels that seem to be one.

    Raises:
        ValueError: there are no labels, or a cell is no set of labels.
    """
    sets = _label_sets(examples)
    found = {*chain.from_iterable(sets)}
    if not found:
        raise ValueError(
            f"{examples.path} must have at least one label; got none. Is label_column the right "
            "column?"
        )
    for warning in _suspicious(examples, {name: [name] for name in sorted(found)}):
        messages.warn(f"{examples.path}: {warning}")
    for name in sorted(found):
        parts = [part.strip() for part in re.split("[,;]", name)]
        if len(parts) > 1 and {*parts} <= found:
            messages.warn(
                f"{examples.path}: {name!r} is one label; if it is several, separate them by "
                f'"{_SEPARATOR}".'
            )
    without = sum(not names for names in sets)
    if without:
        print(f"{examples.path}: {without:,} of {len(sets):,} rows have no label")
    return LabelSets(_in_order(found))


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Integers by value, other names by their code points."""
    values = {name: _decimal(name) or name for name in names}
    are_integers = all(re.fullmatch(r"[+-]?[0-9]{1,18}", value) for value in values.values())
    return tuple(sorted(values, key=lambda n: (int(values[n]) if are_integers else 0, n)))


def _require_no_measurements(path, names):
    values = [_to_number(name) for name in names]
    if not all(map(math.isfinite, values)):
        return
    are_counted = {*values} in ({*range(len(values))}, {*range(1, len(values) + 1)})
    if all(map(float.is_integer, values)) and (are_counted or len(values) <= _MANY):
        return
    raise ValueError(
        f"label_type must be given for {path}; got {len(values)} different numbers as labels, from "
        f"{min(values):g} to {max(values):g}. Give --label_type=number to predict numbers "
        "(regression), or --label_type=class if each of them is a class."
    )


def _suspicious(examples, spellings):
    """Warnings about merged and about suspicious labels."""
    for value, names in spellings.items():
        if len(names) > 1:
            yield f"the labels {named(names)} are one number, and one class: {value!r}."
    alike = defaultdict(list)
    for value in spellings:
        alike[comparable(value)].append(value)
    for names in alike.values():
        if len(names) > 1:
            yield (
                f"the labels {named(names)} are different classes; if they are one, write them "
                "alike."
            )
    if len(spellings) > max(_MANY, len(examples) / 2):
        yield (
            f"{len(spellings):,} of {len(examples):,} rows have a label of their own; is it the "
            "right column (--label_column)?"
        )


def _decimal(name: str) -> str | None:
    """A decimal number in its shortest form; `None` for other text, such as codes like 007.

    Examples:
        >>> _decimal("+1.50"), _decimal("-0.0"), _decimal("007")
        ('1.5', '0', None)
    """
    found = _DECIMAL.fullmatch(name.strip())
    if found is None:
        return None
    fraction = (found[3] or "").rstrip("0")
    value = f"{found[2]}.{fraction}" if fraction else found[2]
    return f"-{value}" if found[1] == "-" and value != "0" else value


def save(labels: Labels, path: str) -> None:
    """Writes a JSON file that `load` reads."""
    if isinstance(labels, Classes):
        contents: dict[str, list] = {"classes": list(labels.names)}
    elif isinstance(labels, LabelSets):
        contents = {"labels": list(labels.names)}
    else:
        contents = {"number": [v if math.isfinite(v) else None for v in (labels.low, labels.high)]}
    write_text(path, json.dumps(contents, ensure_ascii=False, indent=1) + "\n")


def load(path: str) -> Labels:
    """Reads the file of `save`.

    Raises:
        ValueError: the file is missing or damaged.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return from_json(json.load(file))
    except FileNotFoundError:
        raise ValueError(
            f"{path} must be an existing file; got none. Training on classes writes it next to the "
            f"model: give the folder of that model, or copy its {os.path.basename(path)} here."
        ) from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} must be the file of labels that training wrote next to the model; got other "
            f"contents ({error}). Copy it from there again."
        ) from None


def from_json(contents: dict) -> Labels:
    """Labels from the contents of their file.

    Raises:
        ValueError, KeyError, TypeError: the contents are damaged.
    """
    for kind, make in ("classes", Classes), ("labels", LabelSets):
        if kind in contents:
            names = contents[kind]
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise TypeError(f"{kind} must be a list of names; got {names!r:.99}")
            return make(tuple(names))
    low, high = contents["number"]
    if not {type(low), type(high)} <= {int, float, type(None)}:
        raise TypeError(f"bounds must be two numbers or null; got {contents['number']!r:.99}")
    return Numbers(-math.inf if low is None else low, math.inf if high is None else high)


def _require_labels(examples: Examples) -> Sequence[str]:
    if examples.labels is None:
        raise ValueError(f"{examples.path} must be read with labels; got examples without.")
    for line, label in zip(examples.lines, examples.labels):
        if not label.strip():
            raise ValueError(
                f"{examples.path}, line {line}: the label must not be blank; got {label!r}. Fill "
                "it in, or remove the row."
            )
    return examples.labels


def _to_number(label: str) -> float:
    try:
        return float(label)
    except ValueError:
        return math.nan


def named(names: Iterable[str]) -> str:
    """Some names, for a message."""
    names = list(names)
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(repr(name[:40]) for name in names[:_MAX_NAMED]) + more
