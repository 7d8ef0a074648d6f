"""Checks of arguments: each takes a value and the argument's name, and returns the value.

A value that does not fit raises a ValueError: `NAME` must be X; got Y.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # it needs Keras 3
    from lamb_tf._types import Bounds

LARGEST = float(np.finfo(np.float32).max)  # optimizers compute in float32: 1e39 is infinite there


def number(value: Any, argument: str, error: type[Exception] = ValueError) -> float:
    """A real number; anything else raises `error`."""
    is_other = isinstance(value, (bool, np.bool_, np.complexfloating))
    if is_other or not hasattr(value, "__float__") or np.ndim(value):
        raise error(f"`{argument}` must be a number; got {value!r}.")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def number_that(
    holds: Callable[[float], bool], wanted: str, error: type[Exception] = ValueError
) -> Callable[[Any, str], float]:
    """A check that a number fulfills `holds`; any other value raises `error`."""

    def check(value, argument):
        if not holds(number(value, argument, error)):
            raise ValueError(f"`{argument}` must be {wanted}; got {value!r}.")
        return float(value)

    return check


def optional(check: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """The check, of a value that may also be None."""
    return lambda value, argument: None if value is None else check(value, argument)


not_negative = number_that(lambda x: 0 <= x < math.inf, "at least 0, and finite")
positive = number_that(lambda x: 0 < x < math.inf, "above 0, and finite")
positive_or_none = optional(positive)
fraction = number_that(lambda x: 0 <= x < 1, "in [0, 1)")


def count(value: Any, argument: str, least: int = 1) -> int:
    """A whole number of at least `least`."""
    if not least <= number(value, argument) < math.inf or int(value) != value:
        raise ValueError(f"`{argument}` must be a whole number of at least {least}; got {value!r}.")
    return int(value)


int_at_least_2 = optional(functools.partial(count, least=2))


def boolean(value: object, argument: str) -> bool:
    """True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"`{argument}` must be True or False; got {value!r}.")
    return bool(value)


def name_or_none(value: object, argument: str) -> str | None:
    """A name, or None."""
    if value is None or (isinstance(value, str) and value):
        return value
    raise ValueError(f"`{argument}` must be a name, or None; got {value!r}.")


def one_of(*choices: object) -> Callable[[Any, str], Any]:
    """A check that the value is one of `choices`."""

    def check(value, argument):
        if value not in choices:
            raise ValueError(f"`{argument}` must be one of {choices}; got {value!r}.")
        return value

    return check


def bounds(value: object, argument: str) -> Bounds:
    """A pair of numbers, 0 ≤ low ≤ high, or None."""
    if value is None:
        return None
    pair = tuple(value) if np.iterable(value) else ()
    if len(pair) == 2:
        low, high = (number(bound, argument) for bound in pair)
        if 0 <= low <= high:
            return (low, high)
    raise ValueError(f"`{argument}` must be (low, high) with 0 <= low <= high; got {value!r}.")


class Dependent:
    """An argument whose default, None, is computed by `value` from the optimizer's others."""

    def __init__(self, value: Callable[[Any], Any]):
        self.value = value

    def __set_name__(self, owner: type, name: str):
        self.name = name

    def __get__(self, optimizer: object, owner: type | None = None) -> Any:
        if optimizer is None:
            return self
        given = vars(optimizer).get(self.name)
        return self.value(optimizer) if given is None else given

    def __set__(self, optimizer: object, value: object):
        vars(optimizer)[self.name] = value
