"""Settings that are declared once: a dataclass' field is the flag, its check and its documentation.

    @settings.documented
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Report:
        \"\"\"What is reported.\"\"\"

        log_steps: int = setting("Steps between lines of the log.", 100, minimum=1)

        def __post_init__(self):
            settings.check(self)

`flag_definitions` makes `--log_steps` of it. The words are those of --help: they name other flags
with their dashes, which the docstring leaves out.
"""

import dataclasses
import inspect
import math
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds:
    """The numbers that a setting can be: two closed and two open ends, each optional.

    Args:
        minimum, maximum: The smallest and the largest number allowed.
        above, below: Numbers that all allowed ones are above or below.
        hint: A sentence for the error: what to do.
    """

    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    below: float | None = None
    hint: str = ""

    def __str__(self):
        ends = {
            "at least": self.minimum,
            "above": self.above,
            "at most": self.maximum,
            "below": self.below,
        }
        stated = (f"{word} {_short(end)}" for word, end in ends.items() if end is not None)
        return " and ".join(stated)

    def fault(self, value: float) -> str | None:
        """The predicate of an error, such as `must be at least 1; got 0.`; None within the bounds.

        NaN is within all bounds: `check` and `flag_definitions.require_finite` refuse it.
        """
        is_outside = (
            (self.minimum is not None and value < self.minimum)
            or (self.above is not None and value <= self.above)
            or (self.maximum is not None and value > self.maximum)
            or (self.below is not None and value >= self.below)
        )
        return f"must be {self}; got {_short(value)}. {self.hint}".rstrip() if is_outside else None


def _short(number):
    if isinstance(number, int):
        return f"{number:,}"
    return f"{number:g}" if float(f"{number:g}") == number else repr(number)


def setting(
    words: str,
    default: Any = dataclasses.MISSING,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
    hint: str = "",
    **options: Any,
) -> Any:
    """A field of a dataclass with its description and the numbers that it can be.

    Args:
        words: Sentences for --help and for the docstring, with the unit.
        default: The value of a field that is not given; without one, it must be.
        minimum, above, maximum, below, hint: As of `Bounds`.
        options: Further arguments of `dataclasses.field`.

    Returns:
        A `dataclasses.Field`, whose annotation is that of the value.
    """
    bounds = Bounds(minimum=minimum, above=above, maximum=maximum, below=below, hint=hint)
    metadata = {"words": words, "bounds": bounds}
    return dataclasses.field(default=default, metadata=metadata, **options)


def documented(cls: type) -> type:
    """Lists the fields of a dataclass in its docstring, as its arguments."""
    lines = (
        f"    {field.name}: {field.metadata['words'].replace('--', '')}"
        for field in dataclasses.fields(cls)
    )
    purpose, raises, errors = inspect.cleandoc(cls.__doc__ or "").partition("\n\nRaises:")
    cls.__doc__ = "\n".join([purpose, "", "Args:", *lines]) + raises + errors
    return cls


def check(settings: Any) -> None:
    """Refuses numbers out of their bounds, and infinities and NaN, which pass comparisons.

    Raises:
        ValueError: naming the field, the value and what was expected.
    """
    for field in dataclasses.fields(settings):
        value, bounds = getattr(settings, field.name), field.metadata.get("bounds")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{field.name} must be a finite number; got {value}.")
        fault = bounds.fault(value) if bounds and isinstance(value, int | float) else None
        if fault:
            raise ValueError(f"{field.name} {fault}")
