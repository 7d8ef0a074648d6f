"""Factors on the learning rate by variable: layer-wise rates, as fine-tuning has them.

A rule is a pair of what an exclusion may be (see `_selection`) and a factor. A variable has the
factor of the first rule that names it, and 1 where none does.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from lamb_tf import _selection
from lamb_tf._types import Rules, Tensor, Variables

ARGUMENT = "learning_rate_multipliers"


class Multipliers:
    """The rules that an optimizer was given.

    Args:
        given: A mapping or a sequence of pairs; None stands for no rules.

    Raises:
        TypeError: it is neither, or what should name variables cannot.
        ValueError: a factor is not a finite number of at least 0, or an expression is malformed.
    """

    def __init__(self, given: Rules):
        pairs = list(given.items() if isinstance(given, Mapping) else given or ())
        if isinstance(given, str) or not all(map(_is_pair, pairs)):
            raise TypeError(
                f"`{ARGUMENT}` must be a mapping of regular expressions to factors, or a sequence "
                f"of pairs of an expression, variable or predicate and a factor; got {given!r}."
            )
        self.items = [item for item, _ in pairs]
        self.values = [_factor(*pair) for pair in pairs]
        _selection.check(self.items, ARGUMENT)

    def factors(self, variables: Variables, is_restored: bool = False) -> np.ndarray | None:
        """One factor per variable, an array of float64; None where there are no rules.

        Raises ValueError, or warns, as `_selection.excluded` does of what names no variable.
        """
        if not self.items or not variables:
            return None
        otherwise = "None for one rate"
        hits = _selection.match_matrix(self.items, variables, ARGUMENT, otherwise, is_restored)
        return np.select(hits, self.values, default=1.0)

    def to_be_saved(self, variables: Variables | None) -> list | None:
        """The rules in terms of JSON, [item, factor] each; see `_selection.to_be_saved`."""
        if not self.items:
            return None
        items = _selection.to_be_saved(self.items, variables) or []
        return [[item, factor] for item, factor in zip(items, self.values)]


def restored(saved: object, custom_objects: dict | None = None) -> object:
    """The argument that `to_be_saved` wrote; anything else as it is."""
    if not isinstance(saved, (list, tuple)) or not all(map(_is_pair, saved)):
        return saved
    items: Any = _selection.restored([item for item, _ in saved], ARGUMENT, custom_objects)
    return [(item, factor) for item, (_, factor) in zip(items, saved)]


def _is_pair(pair):
    return isinstance(pair, (tuple, list)) and len(pair) == 2


def _factor(item, factor):
    is_number = isinstance(factor, (int, float, np.number)) and not isinstance(factor, bool)
    if is_number and 0 <= factor < math.inf:
        return float(factor)
    raise ValueError(
        f"A factor in `{ARGUMENT}` must be a finite number of at least 0; got {factor!r} for "
        f"{item!r}. A factor of 0 leaves a variable unchanged."
    )


def step_sizes(learning_rate: Tensor, factors: Tensor | None, ratios: Tensor) -> Tensor:
    """η factor ratio of each variable; without factors, η ratio. A factor of 0 makes it 0."""
    if factors is None:
        return learning_rate * ratios
    return ops.where(factors > 0, learning_rate * factors * ratios, 0.0)
