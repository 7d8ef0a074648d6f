"""Variables that a step overwrites with their gradient, as Keras' float8 layers have their scales.

They are no weights: they have no slots, no decay and no trust ratio, and do not count in a norm.
"""

from collections.abc import Sequence

import keras
from keras import ops

from lamb_tf import _replicas
from lamb_tf._kernels import where_finite
from lamb_tf._types import Tensor, Variables


def is_overwritten(variable: keras.Variable) -> bool:
    """Whether a step writes the gradient into the variable."""
    return getattr(variable, "overwrite_with_gradient", False)


def in_own_rows(grads: Sequence[Tensor], variables: Variables) -> list[Tensor]:
    """The gradients, with those that overwrite in rows: their sum has each replica's."""
    return [_replicas.in_own_row(g) if is_overwritten(v) else g for g, v in zip(grads, variables)]


def apart(grads: Sequence[Tensor], variables: Variables) -> tuple[list[tuple], list[tuple]]:
    """(gradient, variable) of each that is trained; (rows, variable) of each overwritten one."""
    trained, overwriting = [], []
    for pair in zip(grads, variables):
        (overwriting if is_overwritten(pair[1]) else trained).append(pair)
    return trained, overwriting


def are_finite(overwriting: Sequence[tuple]) -> Tensor | bool:
    """Whether all rows of what `apart` returned second are finite."""
    finite = True
    for rows, _ in overwriting:
        finite &= ops.all(ops.isfinite(_replicas.first_replica(rows)))
    return finite


def overwrite(
    variables: Variables, rows: Sequence[Tensor], finite: Tensor | None
) -> Sequence[Tensor]:
    """Writes into each variable the largest of its rows, one from each replica."""
    for variable, values in zip(variables, rows):
        new = ops.cast(ops.max(values, axis=0), variable.dtype)
        variable.assign(where_finite(finite, new, _replicas.read(variable)))
    return rows
