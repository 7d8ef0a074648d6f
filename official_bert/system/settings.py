"""Settings declared once: a dataclass field is the flag, its check and its documentation.

    @settings.documented
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Report:
        \"\"\"What is reported.\"\"\"

        log_steps: int = setting("Steps between lines of the log.", 100, minimum=1)

        def __post_init__(self):
            settings.check(self)

`commands.commands` makes `--log_steps` of it. Its words appear in --help, where they name other
flags with dashes, and without dashes in the docstring. The dataclass of a command repeats neither
words nor bounds: its field is `log_steps: int = like(Report, "log_steps")`, and
`values_of(Report, args)` are the arguments of a `Report`.
"""

import dataclasses
import inspect
import json
import math
import operator
from collections.abc import Collection, Iterable
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds:
    """The range of a number: two closed and two open ends, each optional.

    Args:
        minimum, maximum: The smallest and the largest allowed number.
        above, below: Exclusive bounds.
        hint: A sentence for the error: what to do.
        finite: Whether infinity is refused.
    """

    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    below: float | None = None
    hint: str = ""
    finite: bool = True

    def _ends(self):
        """(word, end, whether a number is on its right side) of each end that is given."""
        ends = (
            ("at least", self.minimum, operator.ge),
            ("above", self.above, operator.gt),
            ("at most", self.maximum, operator.le),
            ("below", self.below, operator.lt),
        )
        return [each for each in ends if each[1] is not None]

    def __str__(self):
        return " and ".join(f"{word} {_short(end)}" for word, end, _ in self._ends())

    def fault(self, value: float) -> str | None:
        """The predicate of an error, such as `must be at least 1; got 0.`; None if within."""
        if isinstance(value, float) and not math.isfinite(value) and self.finite:
            return f"must be a finite number; got {value}."
        is_outside = not all(holds(value, end) for _, end, holds in self._ends())  # NaN too
        return f"must be {self}; got {_short(value)}. {self.hint}".rstrip() if is_outside else None


def _short(number):
    if isinstance(number, int):
        return f"{number:,}"
    return f"{number:g}" if float(f"{number:g}") == number else repr(number)


def setting(
    words: str,
    default: Any = dataclasses.MISSING,
    *,
    choices: Iterable[str] = (),
    **others: Any,
) -> Any:
    """A field of a dataclass with its description and allowed values.

    Args:
        words: Sentences for --help and for the docstring, with the unit.
        default: The default; without one, the field is required.
        choices: The allowed texts; of a tuple, those of its entries.
        others: Arguments of `Bounds`, such as `minimum`, and of `dataclasses.field`.
    """
    of_bounds = Bounds.__dataclass_fields__.keys() & others.keys()
    bounds = Bounds(**{name: others.pop(name) for name in of_bounds})
    metadata = {"words": words, "bounds": bounds, "choices": tuple(choices)}
    return dataclasses.field(default=default, metadata=metadata, **others)


_SAME = object()


def like(owner: Any, name: str, default: Any = _SAME, *, more: str = "") -> Any:
    """A field with the words, bounds and default of a field of another dataclass.

    Args:
        owner: The other dataclass.
        name: Its field, which `values_of` sets from this one.
        default: The default; by default the field's.
        more: Sentences to append to the field's.
    """
    field = owner.__dataclass_fields__[name]
    words = f"{field.metadata['words']} {more}".rstrip()
    metadata = {**field.metadata, "words": words, "like": (owner, name)}
    default = field.default if default is _SAME else default
    return dataclasses.field(default=default, metadata=metadata)


def names_like(owner: Any, settings: Any) -> tuple[str, ...]:
    """Names of the settings declared as `like` a dataclass's fields."""
    fields = dataclasses.fields(settings)
    return tuple(f.name for f in fields if f.metadata.get("like", (None,))[0] is owner)


def values_of(owner: Any, args: Any, names: Collection[str] | None = None) -> dict[str, Any]:
    """Arguments for a dataclass from the settings declared as `like` its fields.

    Args:
        args: Settings, some of them like the owner's.
        names: The settings to take; default: all.
    """
    fields = args.__dataclass_fields__
    taken = [n for n in names_like(owner, args) if names is None or n in names]
    return {fields[name].metadata["like"][1]: getattr(args, name) for name in taken}


def documented(cls: type) -> type:
    """Appends a dataclass's fields to its docstring, as arguments."""
    lines = (
        f"    {field.name}: {field.metadata['words'].replace('--', '')}"
        for field in dataclasses.fields(cls)
        if "words" in field.metadata
    )
    purpose, raises, errors = inspect.cleandoc(cls.__doc__ or "").partition("\n\nRaises:")
    cls.__doc__ = "\n".join([purpose, "", "Args:", *lines]) + raises + errors
    return cls


def check(settings: Any) -> None:
    """Refuses numbers out of bounds, infinities, NaN, and texts that are not a choice.

    Raises:
        ValueError: names the field, the value and the expected range.
    """
    for field in dataclasses.fields(settings):
        value, bounds = getattr(settings, field.name), field.metadata.get("bounds")
        fault = bounds.fault(value) if bounds and isinstance(value, int | float) else None
        choices = field.metadata.get("choices")
        for each in value if isinstance(value, tuple) else (value,):
            if choices and each not in choices:
                fault = f"must be {', '.join(choices[:-1])} or {choices[-1]}; got {each!r}."
        if fault:
            raise ValueError(f"{field.name} {fault}")


def strict_json(text: str | bytes) -> Any:
    """The value of a JSON text; raises ValueError on repeated names, infinities and NaN, too."""
    return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_with_unique_names)


def _refuse_constant(name):
    raise ValueError(f"{name} is no number of JSON")


def _with_unique_names(pairs):
    found = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {name[:99]!r} is given twice")
        found[name] = value
    return found
