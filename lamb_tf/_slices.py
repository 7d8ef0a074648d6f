"""Slices of variables with a trust ratio each: `trust_ratio_axes` of the optimizers.

A rule pairs a regular expression with the axes that number the slices of the variables it matches.
A variable of shape (12, 64, 64) whose slices axis 0 numbers is then stepped as twelve of (64, 64).
"""

import math
import operator
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np

from lamb_tf._selection import is_overwritten, path_of, pattern
from lamb_tf._types import Variables

ARGUMENT = "trust_ratio_axes"
Rules: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]


def rules(value: Any, argument: str) -> Rules | None:
    """The check of the argument: a mapping, or the pairs that a config has; None for no slices."""
    try:
        pairs = [(item, axes) for item, axes in dict({} if value is None else value).items()]
    except (TypeError, ValueError):
        pairs = [(None, None)]
    if not all(isinstance(item, str) for item, _ in pairs):
        raise ValueError(
            f"`{argument}` must be a mapping of regular expressions to axes; got {value!r}. Write "
            "for example {'stack/kernel': 0}."
        )
    for item, _ in pairs:
        pattern(item, argument)
    return tuple((item, _integers(axes, item, argument)) for item, axes in pairs) or None


def _integers(axes, item, argument):
    try:
        given = axes if isinstance(axes, Sequence) else [axes]
        found = tuple(operator.index(axis) for axis in given)
        if found and not any(isinstance(axis, bool) for axis in given):
            return found
    except TypeError:
        pass
    raise ValueError(
        f"`{argument}` must have an axis or several for each expression; got {axes!r} for "
        f"{item!r}. Write for example {{{item!r}: 0}}."
    )


def axes_of(variable: keras.Variable, rules: Rules | None) -> tuple[int, ...]:
    """The axes that number the slices of a variable, ascending; () if it has one trust ratio.

    Raises:
        ValueError: a rule does not fit the variable, or two differ.
    """
    if not rules or is_overwritten(variable):
        return ()
    path, found = path_of(variable), {}
    for item, axes in rules:
        if re.search(item, path):
            found[item] = _positions(axes, tuple(variable.shape), item, path)
    if len(set(found.values())) > 1:
        raise ValueError(
            f"`{ARGUMENT}` must have the same axes for all expressions that match a variable; got "
            f"{found} for {path!r}. Narrow the expressions."
        )
    return next(iter(found.values()), ())


def _positions(axes, shape, item, path):
    rank = len(shape)
    positions = {axis % rank for axis in axes if -rank <= axis < rank}
    problems = {
        "be axes of all variables that it matches": any(not -rank <= a < rank for a in axes),
        "have each axis once": len(positions) < len(axes),
        "leave an axis for the norms": len(positions) == rank,
        "number at least one slice": any(shape[axis] == 0 for axis in positions),
    }
    for wanted, is_missing in problems.items():
        if is_missing:
            raise ValueError(
                f"`{ARGUMENT}` of {item!r} must {wanted}; got {[*axes]} for {path!r} of shape "
                f"{shape}. Correct the axes, or narrow the expression."
            )
    return tuple(sorted(positions))


def require_effect(
    rules: Rules | None, variables: Variables, matters: Sequence[bool], is_restored: bool
) -> None:
    """Raises ValueError for a rule without effect; of a restored config it only warns.

    Args:
        matters: For each variable whether slices make a difference to its step.
    """
    paths = [path_of(variable) for variable, has_effect in zip(variables, matters) if has_effect]
    for item, _ in rules or ():
        if variables and not any(re.search(item, path) for path in paths):
            message = (
                f"`{ARGUMENT}` must match variables that have a trust ratio; got {item!r}, which "
                "matches none. Correct it by the paths of the model's variables, or remove it."
            )
            if not is_restored:
                raise ValueError(message)
            warnings.warn(message, stacklevel=5)


def count(shape: Sequence[int], axes: Sequence[int]) -> int:
    """The number of slices, 1 without axes."""
    return math.prod(shape[axis] for axis in axes)


def suffixes(shape: Sequence[int], axes: Sequence[int]) -> Iterator[str]:
    """What telemetry appends to the path for each slice: "[0]", …, "[0,0]", …; "" without axes."""
    for position in np.ndindex(*(shape[axis] for axis in axes)):
        yield f"[{','.join(map(str, position))}]" if axes else ""
