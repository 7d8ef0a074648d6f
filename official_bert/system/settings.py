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


def setting(
    words: str,
    default: Any = dataclasses.MISSING,
    *,
    minimum: float | None = None,
    **options: Any,
) -> Any:
    """A field of a dataclass with its description and the smallest number that it can be.

    Args:
        words: Sentences for --help and for the docstring, with the unit.
        default: The value of a field that is not given; without one, it must be.
        minimum: The smallest number allowed.
        options: Further arguments of `dataclasses.field`.

    Returns:
        A `dataclasses.Field`, whose annotation is that of the value.
    """
    metadata = {"words": words, "minimum": minimum}
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
    """Refuses numbers below their minimum, and infinities and NaN, which pass comparisons.

    Raises:
        ValueError: naming the field, the value and what was expected.
    """
    for field in dataclasses.fields(settings):
        value, minimum = getattr(settings, field.name), field.metadata.get("minimum")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{field.name} must be a finite number; got {value}.")
        if minimum is not None and value is not None and value < minimum:
            raise ValueError(f"{field.name} must be at least {minimum}; got {value}.")
