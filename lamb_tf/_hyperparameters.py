"""What an optimizer's hyperparameters may be: each function checks a value and returns it.

All take the value and the name of the argument, for the message of the ValueError.
"""

import math

import keras
import numpy as np


def number(value, argument):
    """A real number."""
    if isinstance(value, (bool, str)) or np.ndim(value) or not hasattr(value, "__float__"):
        raise ValueError(f"`{argument}` must be a number. Received {value!r}.")
    return float(value)


def not_negative(value, argument):
    """A finite number of at least 0."""
    if not 0 <= number(value, argument) < math.inf:
        raise ValueError(f"`{argument}` must be at least 0, and finite. Received {value!r}.")
    return float(value)


def positive(value, argument):
    """A finite number above 0."""
    if not 0 < number(value, argument) < math.inf:
        raise ValueError(f"`{argument}` must be above 0, and finite. Received {value!r}.")
    return float(value)


def positive_or_none(value, argument):
    """A finite number above 0, or None."""
    return None if value is None else positive(value, argument)


def count(value, argument):
    """A whole number of at least 1."""
    if not 1 <= number(value, argument) < math.inf or int(value) != value:
        raise ValueError(f"`{argument}` must be a whole number of at least 1. Received {value!r}.")
    return int(value)


def several_or_none(value, argument):
    """A whole number of at least 2, or None."""
    if value is None or (not isinstance(value, bool) and isinstance(value, int) and value >= 2):
        return value
    raise ValueError(
        f"`{argument}` must be an integer >= 2, or None. Received: {argument}={value!r}"
    )


def fraction(value, argument):
    """A number in [0, 1)."""
    if not 0 <= number(value, argument) < 1:
        raise ValueError(f"`{argument}` must be in [0, 1). Received {value!r}.")
    return float(value)


def truth(value, argument):
    """True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"`{argument}` must be True or False. Received {value!r}.")
    return bool(value)


def one_of(*choices):
    """A check that takes one of `choices` only."""

    def check(value, argument):
        if value not in choices:
            raise ValueError(f"`{argument}` must be one of {choices}. Received {value!r}.")
        return value

    return check


def bounds(value, argument):
    """A pair of numbers, 0 ≤ low ≤ high, or None."""
    if value is None:
        return None
    pair = tuple(value) if np.iterable(value) else ()
    if len(pair) == 2:
        low, high = (number(bound, argument) for bound in pair)
        if 0 <= low <= high:
            return (low, high)
    raise ValueError(f"`{argument}` must be (low, high) with 0 <= low <= high. Received {value!r}.")


def decay(value, argument):
    """A weight decay: a finite number, a schedule, or None, which Keras' optimizers have for 0."""
    if value is None:
        return 0.0
    if isinstance(value, keras.optimizers.schedules.LearningRateSchedule):
        return value
    if not _is_finite_and_not_negative(value):
        raise ValueError(
            f"`{argument}` must be a finite number of at least 0 (0 or None for none), or a "
            f"keras.optimizers.schedules.LearningRateSchedule. Received {value!r}."
        )
    return float(value)


def rate(value, argument):
    """A learning rate as Keras wants it, which wraps the number in a variable."""
    if callable(value):
        return value
    if not _is_finite_and_not_negative(value):
        raise ValueError(
            f"`{argument}` must be a finite number of at least 0, a schedule, a callable without "
            f"arguments or a variable. Received {value!r}."
        )
    return float(value)


def _is_finite_and_not_negative(value):
    try:
        not_negative(value, "")
    except ValueError:
        return False
    return True
