"""Loss scale and micro-batches: the parts of an update that are the same on every engine."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lamb_tf import loss_scale
from official_bert.protocols import LoopState

if TYPE_CHECKING:
    import keras

    from official_bert.protocols import UpdateSettings

# Dynamic loss scaling, for float16.
FIRST_LOSS_SCALE, (MIN_LOSS_SCALE, MAX_LOSS_SCALE) = loss_scale.INITIAL_SCALE, loss_scale.BOUNDS


def first_state(run: "UpdateSettings") -> LoopState:
    """The loop's own state before the first step."""
    zeros = [0.0] * len(run.task.sums)
    first_scale = FIRST_LOSS_SCALE if scales_loss(run) else 1.0
    return LoopState(zeros, zeros, run.fixed_loss_scale or first_scale)


def scales_loss(run: "UpdateSettings") -> bool:
    """Whether the loss is scaled: the range of float16 needs it."""
    return run.dtype == "fp16"


def adapts_loss_scale(run: "UpdateSettings") -> bool:
    """Whether the scale follows the overflows."""
    return scales_loss(run) and run.fixed_loss_scale is None


def loss_scale_before_skip(run: "UpdateSettings", scale: float) -> float:
    """The loss scale at a step whose update was skipped, from that after it."""
    adapted = adapts_loss_scale(run) and scale > MIN_LOSS_SCALE
    return min(2 * scale, MAX_LOSS_SCALE) if adapted else scale


def micro_batches(run: "UpdateSettings", rows: int, replicas: int) -> Iterator[np.ndarray]:
    """Numbers of the rows of each micro-batch of a global batch.

    Args:
        rows: Number of rows in the global batch.
        replicas: Number of replicas that share it: each takes a run of neighbouring rows.
    """
    count = run.gradient_accumulation_steps
    for of_replica in np.split(np.arange(rows), replicas):
        yield from (of_replica[index::count] for index in range(count))


def names_of_non_finite(
    run: "UpdateSettings", model: "keras.Model", sums: np.ndarray, gradients: Sequence[np.ndarray]
) -> tuple[list[str], list[str]]:
    """Names of a micro-batch's losses that are not finite, and of variables by their gradient."""
    pairs = zip(run.task.sums, sums, strict=True)
    losses = [name for name, value in pairs if not np.isfinite(value)]
    of_variables = zip(model.trainable_variables, gradients, strict=True)
    return losses, [v.path for v, gradient in of_variables if not np.isfinite(gradient).all()]
