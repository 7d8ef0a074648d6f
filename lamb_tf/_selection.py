"""Variables that an exclusion or a multiplier matches, and the table of the result.

An exclusion is a regular expression, a variable or a predicate of a variable. In a config an
expression is itself; the others are records of the variables that they matched, if the optimizer
was built, and of how to find the predicate again (`to_be_saved`, `restored`). A multiplier pairs an
exclusion's kind of key with a factor on the learning rate; the first pair that matches wins.
"""

from __future__ import annotations

import contextlib
import math
import re
import uuid
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

if TYPE_CHECKING:
    from lamb_tf._types import Exclusion, Exclusions, Rules, Variables

MULTIPLIERS = "learning_rate_multipliers"


class SavedExclusion:
    """A saved variable or predicate, of which only the variables that it matched are known.

    `named` has their `paths` and, if the optimizer was built, their `positions` among a number of
    `variables`. Positions are the same in a model that is loaded, though its paths may differ;
    where other layers are trained now, the paths decide.
    """

    def __init__(self, named: dict):
        self.named = named

    def __repr__(self):
        return repr(self.named["paths"])

    def mask(self, variables: Variables) -> list[bool]:
        """One bool per variable: is it one of the saved ones?"""
        paths, here = self.named["paths"], [path_of(variable) for variable in variables]
        by_path = [any(is_same(path, other) for other in paths) for path in here]
        if self.named.get("variables") != len(variables):
            return by_path
        positions = self.named["positions"]
        in_place = all(is_same(here[i], path) for i, path in zip(positions, paths))
        if any(by_path) and not in_place:
            return by_path
        return [i in positions for i in range(len(variables))]


def check_types(variables: Variables) -> None:
    """Raises TypeError for a variable of integers or complex numbers, which no step can move."""
    for variable in variables:
        # "float32", tf.float32 or torch.float32
        dtype = getattr(variable.dtype, "name", str(variable.dtype)).split(".")[-1]
        if "float" not in dtype:
            raise TypeError(
                "A variable that is trained must be of real floating point; got "
                f"{path_of(variable)!r} of {dtype}. Set `trainable = False`, or train the real and "
                "the imaginary part of a complex one."
            )


def is_same(path: str, other: str) -> bool:
    """Whether these are paths of one variable: loading may drop the model's name."""
    short, long = sorted((path, other), key=len)
    return short == long or ("/" in short and long.endswith(f"/{short}"))


_predicates = weakref.WeakValueDictionary()  # of this process, by the key in their records
_BIAS = re.compile("(^|_)(bias(_|$)|beta$)")
_SCALE = re.compile("(^|_)gamma$|^scale$")
_NORM = re.compile("norm(?!al(?!i[sz]))|(^|_)(ln|bn)(_|[0-9]|$)")  # not of normal_conv
_LAYER_SCALE = re.compile("layer_?scale")


@keras.saving.register_keras_serializable(package="lamb_tf")
def biases_and_norms(variable: keras.Variable) -> bool:
    """Whether a variable is a bias, or a scale or offset of a normalization.

    Most recipes decay neither. A list of names such as `["bias", "LayerNorm"]` misses layers named
    `layer_norm`, `ln_1` or `bn`, and "variables with one axis" misses the biases of attention,
    which have two. Pass this function as `exclude_from_weight_decay` or
    `exclude_from_layer_adaptation`, or in their lists. It is saved by name, and may match nothing.

    It uses the path and the number of axes. It matches names with the word `bias`; `beta`; `gamma`
    and `scale`, unless they are single numbers; and variables with one axis in a layer named as a
    normalization (`…norm…`, `ln_…`, `bn_…`) or as a LayerScale. It does not recognize a table of
    biases that is named `embeddings`, such as T5's in KerasHub.

    >>> optimizer = lamb_tf.LAMB(
    ...     weight_decay=0.01, exclude_from_weight_decay=lamb_tf.biases_and_norms
    ... )
    """
    return _role(variable) is not None


def _role(variable):
    """Returns "bias", "norm", "layer scale" or None; see `biases_and_norms`."""
    *layers, name = path_of(variable).lower().split("/")
    layer = layers[-1] if layers else ""
    if _BIAS.search(name):
        return "bias"
    axes, is_layer_scale = len(variable.shape), bool(_LAYER_SCALE.search(layer))
    is_named = axes > 0 and _SCALE.search(name)
    if is_named or (axes == 1 and (is_layer_scale or _NORM.search(layer))):
        return "layer scale" if is_layer_scale else "norm"
    return None


def warn_of_norms(variables: Variables, decayed: Sequence[bool], exclusions: Exclusions) -> None:
    """Warns where `exclude_from_weight_decay` leaves the scales of normalization layers decayed."""
    items = as_list(exclusions)
    if not items or any(item is biases_and_norms for item in items):
        return
    norms = [v for v, is_decayed in zip(variables, decayed) if is_decayed and _role(v) == "norm"]
    if norms:
        more = f" and {len(norms) - 3} more" if len(norms) > 3 else ""
        warnings.warn(
            f"`exclude_from_weight_decay`={items!r} leaves the scales of normalization layers "
            f"decayed: {', '.join(map(path_of, norms[:3]))}{more}. To exclude them, pass "
            "lamb_tf.biases_and_norms.",
            stacklevel=6,
        )


def path_of(variable: keras.Variable) -> str:
    """`keras.Variable.path`; the name of a bare `tf.Variable`, the same on every replica."""
    path = getattr(variable, "path", None)
    return path or re.sub(r"(/replica_\d+)?(:\d+)?$", "", variable.name)


def as_list(exclusions: Exclusions) -> list[Exclusion]:
    """None, one exclusion or several, as a list."""
    if exclusions is None:
        return []
    one = isinstance(exclusions, (str, bytes, Mapping)) or callable(exclusions)
    one = one or is_variable(exclusions) or not np.iterable(exclusions)  # an array without axes
    return list(exclusions) if isinstance(exclusions, Iterable) and not one else [exclusions]


def check(exclusions: Exclusions, argument: str) -> None:
    """Raises TypeError for an item of another type, ValueError for a malformed expression."""
    for item in as_list(exclusions):
        if isinstance(item, str):
            pattern(item, argument)
        elif isinstance(item, (bool, keras.layers.Layer, type)) or not (
            callable(item) or is_variable(item) or isinstance(item, (int, SavedExclusion))
        ):
            raise TypeError(
                f"`{argument}` must hold regular expressions, variables or predicates of a "
                f"variable; got {item!r} of type {type(item).__name__}."
            )


def pattern(text: str, argument: str) -> re.Pattern[str]:
    """Compiles a regular expression; a malformed one is a ValueError that names the argument."""
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(
            f"`{argument}` must hold valid regular expressions; got {text!r}: {error}. "
            "Use re.escape(text) to search for literal text."
        ) from None


def to_be_saved(exclusions: Exclusions, variables: Variables | None) -> list | None:
    """The exclusions as JSON; `variables` is None before the optimizer is built."""
    if exclusions is None:
        return None
    return [
        item if isinstance(item, (str, int)) else _record(item, variables)
        for item in as_list(exclusions)
    ]


def _record(item, variables):
    if isinstance(item, SavedExclusion):
        return item.named
    record = {"paths": [path_of(item)]} if is_variable(item) else _reference(item)
    if variables is not None:
        positions = [i for i, variable in enumerate(variables) if matches(item, variable)]
        paths = [path_of(variables[i]) for i in positions]
        record |= {"paths": paths, "positions": positions, "variables": len(variables)}
    return record


def _reference(predicate):
    """References to the predicate: a key within this process, and its name if it has one."""
    name = getattr(predicate, "__name__", repr(predicate))
    # A key is never used again, as an id might be.
    known = [key for key, other in _predicates.items() if other is predicate]
    reference = {"predicate": name, "key": known[0] if known else uuid.uuid4().hex}
    with contextlib.suppress(TypeError):  # no weak reference, or not serializable by Keras
        _predicates[reference["key"]] = predicate
        if name != "<lambda>":
            reference["function"] = keras.saving.serialize_keras_object(predicate)
    return reference


def restored(exclusions: object, argument: str, custom_objects: dict | None = None) -> object:
    """The exclusions that `to_be_saved` wrote.

    A predicate is restored in the process that saved it, and in another one if keras.saving finds
    it; else the variables that it matched replace it. Raises ValueError if they are unknown.
    """
    if not isinstance(exclusions, (list, tuple)):
        return exclusions
    return [
        _restored(item, argument, custom_objects) if isinstance(item, dict) else item
        for item in exclusions
    ]


def _restored(record, argument, custom_objects):
    predicate = _predicates.get(record.get("key"))
    if predicate is None and "function" in record:
        with contextlib.suppress(TypeError, ValueError):  # a name that is not registered
            predicate = keras.saving.deserialize_keras_object(
                record["function"], custom_objects=custom_objects
            )
    if predicate is not None:
        return predicate
    if "paths" not in record:
        raise ValueError(
            f"`{argument}`, saved before the optimizer was built, must hold predicates known "
            f"here; got {record['predicate']}. Register a named function with "
            "keras.saving.register_keras_serializable or pass it in `custom_objects`; or load "
            "with compile=False and compile again."
        )
    return SavedExclusion(record)


def is_overwritten(variable: keras.Variable) -> bool:
    """Whether a step writes the gradient into the variable, as into the scales of float8 layers.

    They have no slots, decay or trust ratio, and do not count in a norm.
    """
    return getattr(variable, "overwrite_with_gradient", False)


def is_variable(item: object) -> bool:
    """Whether this is a variable of Keras or of TensorFlow."""
    return isinstance(item, keras.Variable) or hasattr(item, "assign_add")


def excluded(
    variables: Variables, exclusions: Exclusions, argument: str, is_restored: bool = False
) -> list[bool]:
    """One bool per variable: does any of `exclusions` match it?

    Raises ValueError if none of the exclusions matches a variable, and warns of each one that does
    not. Exclusions restored from a config only warn: their variables may be frozen now.
    """
    exclusions, variables = as_list(exclusions), list(variables)
    if not exclusions or not variables:
        return [False] * len(variables)
    rows = match_matrix(exclusions, variables, argument, "[] to exclude nothing", is_restored)
    return [any(column) for column in zip(*rows)]


def match_matrix(
    items: Sequence[Exclusion],
    variables: Variables,
    argument: str,
    otherwise: str,
    is_restored: bool = False,
) -> list[list[bool]]:
    """For each item, one bool per variable: does it match? Raises and warns as `excluded`.

    `otherwise` names the value of the argument that matches no variable on purpose.
    """
    rows = [_matches_of(item, variables) for item in items]
    idle = [item for item, row in zip(items, rows) if not any(row) and item is not biases_and_norms]
    if len(idle) == len(items) and not is_restored:
        paths = "\n  ".join(path_of(v) for v in variables)
        raise ValueError(
            f"`{argument}` must match a variable; got {items!r}. Give regular expressions that are "
            f"found in these paths, or {otherwise}:\n  {paths}"
        )
    for item in idle:
        warnings.warn(
            f"{item!r} in `{argument}` matches no variable, so it has no effect. Correct it or "
            "remove it.",
            stacklevel=5,
        )
    return rows


def _matches_of(item, variables):
    if isinstance(item, SavedExclusion):
        return item.mask(variables)
    if isinstance(item, int):
        return [i == item for i in range(len(variables))]
    return [matches(item, variable) for variable in variables]


def matches(item: Exclusion, variable: keras.Variable) -> bool:
    """Whether one exclusion, a pattern, variable or predicate, matches `variable`."""
    if isinstance(item, str):
        return re.search(item, path_of(variable)) is not None
    if is_variable(item):
        return item is variable or getattr(variable, "value", None) is item
    return bool(item(variable))


class Multipliers:
    """Factors on the learning rate by variable.

    Args:
        given: A mapping or a sequence of pairs; None: no factors.

    Raises:
        TypeError: `given` is neither, or a key is not an exclusion.
        ValueError: a factor is not a finite number of at least 0, or an expression is malformed.
    """

    def __init__(self, given: Rules):
        pairs: list[Any] = [*given.items()] if isinstance(given, Mapping) else as_list(given)
        if isinstance(given, str) or not all(map(_is_pair, pairs)):
            raise TypeError(
                f"`{MULTIPLIERS}` must be a mapping of regular expressions to factors, or pairs of "
                f"an expression, variable or predicate and a factor; got {given!r}."
            )
        self.items = [item for item, _ in pairs]
        self.values = [_factor(*pair) for pair in pairs]
        check(self.items, MULTIPLIERS)

    def factors(self, variables: Variables, is_restored: bool = False) -> np.ndarray | None:
        """One factor per variable, an array of float64, or None. Raises and warns as `excluded`."""
        if not self.items or not variables:
            return None
        otherwise = "None for one rate"
        hits = match_matrix(self.items, variables, MULTIPLIERS, otherwise, is_restored)
        return np.select(hits, self.values, default=1.0)

    def to_be_saved(self, variables: Variables | None) -> list | None:
        """The rules as JSON, [item, factor] each; see `to_be_saved`."""
        if not self.items:
            return None
        items = to_be_saved(self.items, variables) or []
        return [[item, factor] for item, factor in zip(items, self.values)]


def restored_multipliers(saved: object, custom_objects: dict | None = None) -> object:
    """The rules that `Multipliers.to_be_saved` wrote; any other value unchanged."""
    if not isinstance(saved, (list, tuple)) or not all(map(_is_pair, saved)):
        return saved
    items: Any = restored([item for item, _ in saved], MULTIPLIERS, custom_objects)
    return [(item, factor) for item, (_, factor) in zip(items, saved)]


def _is_pair(pair):
    return isinstance(pair, (tuple, list)) and len(pair) == 2


def _factor(item, factor):
    is_number = isinstance(factor, (int, float, np.number)) and not isinstance(factor, bool)
    if is_number and 0 <= factor < math.inf:
        return float(factor)
    raise ValueError(
        f"A factor in `{MULTIPLIERS}` must be a finite number of at least 0; got {factor!r} for "
        f"{item!r}. A factor of 0 leaves a variable unchanged."
    )


def table(
    variables: Variables,
    decayed: Sequence[bool],
    adapted: Sequence[bool],
    factors: Sequence[float] | None,
    slice_counts: Sequence[int],
) -> str:
    """The masks as text, one line per variable; with the factors on the rate if there are any."""
    rows: list[tuple[str, ...]] = [("variable", "shape", "weight decay", "layer adaptation")]
    for variable, decays, adapts, count in zip(variables, decayed, adapted, slice_counts):
        shape = "x".join(str(n) for n in variable.shape) or "scalar"
        ratios = f"{count} slices" if count > 1 else "yes"
        rows.append((path_of(variable), shape, "yes" if decays else "-", ratios if adapts else "-"))
    if factors is not None:
        column = ["learning rate", *(f"x {factor:.4g}" for factor in factors)]
        rows = [(*row, cell) for row, cell in zip(rows, column)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(c.ljust(n) for c, n in zip(row, widths)).rstrip() for row in rows)
