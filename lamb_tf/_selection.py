"""Which variables an exclusion or a multiplier names, and the table of what is chosen.

An exclusion is a regular expression, a variable or a predicate of a variable. In a config an
expression is itself, and the others are records: of the variables that they named, if the optimizer
was built, and of how to find the predicate again. `to_be_saved` writes them, `restored` reads them.
A multiplier is a pair of what an exclusion may be and a factor on the learning rate: layer-wise
rates, as fine-tuning has them. A variable has the factor of the first pair that names it, else 1.
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
    """A variable or predicate as it was saved, of which only the variables it named are known.

    `named` has their `paths`; if the optimizer was built, their `positions` too and the number of
    `variables` there were. A position means the same in a model that is loaded, as it does for the
    slots; a path need not. Where other layers are trained now, a path does.
    """

    def __init__(self, named: dict):
        self.named = named

    def __repr__(self):
        return repr(self.named["paths"])

    def mask(self, variables: Variables) -> list[bool]:
        """One bool per variable: is it one of those?"""
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
    """Raises TypeError for a variable that no step can move: one of integers, or complex."""
    for variable in variables:
        # "float32", tf.float32 or torch.float32
        dtype = getattr(variable.dtype, "name", str(variable.dtype)).split(".")[-1]
        if "float" not in dtype:
            raise TypeError(
                "A variable that is trained must be of real floating point; got "
                f"{path_of(variable)!r} of {dtype}. Leave it out of the variables (`trainable = "
                "False`)"
                + (", or train its real and imaginary part." if "complex" in dtype else ".")
            )


def is_same(path: str, other: str) -> bool:
    """Whether these are paths of one variable: Keras may drop the model's name when it loads."""
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

    Most recipes decay neither. A list of names such as `["bias", "LayerNorm"]` misses the
    normalization layers of models that name them `layer_norm`, `ln_1` or `bn`, and "variables with
    one axis" misses the biases of attention, which have two. Pass this function as
    `exclude_from_weight_decay` or `exclude_from_layer_adaptation`, alone or in a list. It is saved
    by name, and excludes nothing where a model has no such variables.

    It goes by the path and the number of axes: names with the word `bias`; `beta`; `gamma` and
    `scale`, unless they are single numbers; and whatever has one axis in a layer that is named as a
    normalization (`…norm…`, `ln_…`, `bn_…`) or as a LayerScale. It cannot recognize a table of
    biases that is called `embeddings`, such as T5's in KerasHub.

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
    paths = [
        path_of(variable)
        for variable, is_decayed in zip(variables, decayed)
        if is_decayed and _role(variable) == "norm"
    ]
    if paths:
        more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
        warnings.warn(
            f"`exclude_from_weight_decay`={items!r} leaves the scales of normalization layers "
            f"decayed: {', '.join(paths[:3])}{more}. To exclude them, pass "
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
    one = isinstance(exclusions, (str, Mapping)) or callable(exclusions) or is_variable(exclusions)
    return list(exclusions) if isinstance(exclusions, Iterable) and not one else [exclusions]


def check(exclusions: Exclusions, argument: str) -> None:
    """Raises TypeError on an item that is no exclusion, ValueError on a malformed expression."""
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
    """The regular expression, or a ValueError that says which argument holds a malformed one."""
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(
            f"`{argument}` must hold valid regular expressions; got {text!r}: {error}. "
            "Use re.escape(text) to search for literal text."
        ) from None


def to_be_saved(exclusions: Exclusions, variables: Variables | None) -> list | None:
    """The exclusions in terms of JSON, given the variables, or None as long as they are unknown."""
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
    # No key is used twice, as an id would be once its object is gone.
    known = [key for key, other in _predicates.items() if other is predicate]
    reference = {"predicate": name, "key": known[0] if known else uuid.uuid4().hex}
    with contextlib.suppress(TypeError):  # of what Python cannot refer to weakly, Keras not save
        _predicates[reference["key"]] = predicate
        if name != "<lambda>":
            reference["function"] = keras.saving.serialize_keras_object(predicate)
    return reference


def restored(exclusions: object, argument: str, custom_objects: dict | None = None) -> object:
    """The exclusions that `to_be_saved` wrote.

    A predicate is itself again in the process that saved it, and in another one if keras.saving
    finds it; if not, the variables that it named take its place. Raises ValueError where those were
    not known yet.
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
        with contextlib.suppress(TypeError, ValueError):  # of a name that is not registered
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

    Those are no weights: they have no slots, decay or trust ratio, and do not count in a norm.
    """
    return getattr(variable, "overwrite_with_gradient", False)


def is_variable(item: object) -> bool:
    """Whether this is a variable of Keras or of TensorFlow."""
    return isinstance(item, keras.Variable) or hasattr(item, "assign_add")


def excluded(
    variables: Variables, exclusions: Exclusions, argument: str, is_restored: bool = False
) -> list[bool]:
    """One bool per variable: does any of `exclusions` name it?

    Raises ValueError if none of the exclusions names a variable, and warns of one that is idle
    beside others: a pattern written for other names would decay every bias, and say nothing. Those
    restored from a config named variables once; some of these may be frozen now, so they only warn.
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
    """For each item one bool per variable: does it name it? Refuses and warns as `excluded`.

    `otherwise` says what to give for an argument that names no variable on purpose.
    """
    rows = [_named(item, variables) for item in items]
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


def _named(item, variables):
    if isinstance(item, SavedExclusion):
        return item.mask(variables)
    if isinstance(item, int):
        return [i == item for i in range(len(variables))]
    return [matches(item, variable) for variable in variables]


def matches(item: Exclusion, variable: keras.Variable) -> bool:
    """Whether one exclusion, a pattern, variable or predicate, names `variable`."""
    if isinstance(item, str):
        return re.search(item, path_of(variable)) is not None
    if is_variable(item):
        return item is variable or getattr(variable, "value", None) is item
    return bool(item(variable))


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
                f"`{MULTIPLIERS}` must be a mapping of regular expressions to factors, or a "
                f"sequence of pairs of an expression, variable or predicate and a factor; got "
                f"{given!r}."
            )
        self.items = [item for item, _ in pairs]
        self.values = [_factor(*pair) for pair in pairs]
        check(self.items, MULTIPLIERS)

    def factors(self, variables: Variables, is_restored: bool = False) -> np.ndarray | None:
        """One factor per variable, an array of float64; None where there are no rules.

        Raises ValueError, or warns, as `excluded` does of what names no variable.
        """
        if not self.items or not variables:
            return None
        otherwise = "None for one rate"
        hits = match_matrix(self.items, variables, MULTIPLIERS, otherwise, is_restored)
        return np.select(hits, self.values, default=1.0)

    def to_be_saved(self, variables: Variables | None) -> list | None:
        """The rules in terms of JSON, [item, factor] each; see `to_be_saved`."""
        if not self.items:
            return None
        items = to_be_saved(self.items, variables) or []
        return [[item, factor] for item, factor in zip(items, self.values)]


def restored_multipliers(saved: object, custom_objects: dict | None = None) -> object:
    """The rules that `Multipliers.to_be_saved` wrote; anything else as it is."""
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
    factors: Sequence[float] | None = None,
) -> str:
    """The choice as text, one line per variable; with the factors on the rate if there are any."""
    rows: list[tuple[str, ...]] = [("variable", "shape", "weight decay", "layer adaptation")]
    for variable, decays, adapts in zip(variables, decayed, adapted):
        shape = "x".join(str(n) for n in variable.shape) or "scalar"
        rows.append((path_of(variable), shape, "yes" if decays else "-", "yes" if adapts else "-"))
    if factors is not None:
        column = ["learning rate", *(f"x {factor:.4g}" for factor in factors)]
        rows = [(*row, cell) for row, cell in zip(rows, column)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(c.ljust(n) for c, n in zip(row, widths)).rstrip() for row in rows)
