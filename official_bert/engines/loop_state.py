"""The state of the training loop beside weights and moments, as JSON values, for any engine."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from lamb_tf import loss_scale

if TYPE_CHECKING:
    import keras

    from official_bert.stages import Run

State: TypeAlias = dict[str, Any]  # JSON values

# Dynamic loss scaling, for float16.
FIRST_LOSS_SCALE, (MIN_LOSS_SCALE, MAX_LOSS_SCALE) = loss_scale.INITIAL_SCALE, loss_scale.BOUNDS


def first_state(run: "Run") -> State:
    """The loop's own state before the first step, as JSON values.

    `sums` and `input_wait`, the seconds for which a step waited for its batch, are those since the
    last line of the log, `sums_since_saved` those since the last checkpoint. `stop_requests` is 1
    if this process was asked to stop; the loop gives back the sum over all replicas, so that all
    workers stop after the same update. The others drive the loss scale and the decision to give up.
    """
    first_scale = FIRST_LOSS_SCALE if scales_loss(run) else 1.0
    return {
        **new_window(run),
        **new_interval(run),
        "stop_requests": 0.0,
        "loss_scale": run.fixed_loss_scale or first_scale,
        "good_updates": 0,
        "skipped_in_a_row": 0,
    }


def new_window(run: "Run") -> State:
    """The part of the state that begins anew after every line of the log."""
    return {"sums": [0.0] * len(run.task.sums), "input_wait": 0.0}


def new_interval(run: "Run") -> State:
    """The part of the state that begins anew with every checkpoint."""
    return {"sums_since_saved": [0.0] * len(run.task.sums)}


def scales_loss(run: "Run") -> bool:
    """Whether the loss is scaled: the range of float16 needs it."""
    return run.dtype == "fp16"


def adapts_loss_scale(run: "Run") -> bool:
    """Whether the scale follows the overflows."""
    return scales_loss(run) and run.fixed_loss_scale is None


def loss_scale_before_skip(run: "Run", scale: float) -> float:
    """The loss scale at a step whose update was skipped, from that after it."""
    adapted = adapts_loss_scale(run) and scale > MIN_LOSS_SCALE
    return min(2 * scale, MAX_LOSS_SCALE) if adapted else scale


def micro_batches(run: "Run", rows: int, replicas: int) -> Iterator[np.ndarray]:
    """Numbers of the rows of each micro-batch of a global batch.

    Args:
        run: A `stages.Run`.
        rows: Number of rows in the global batch.
        replicas: Number of replicas that share it: each takes a run of neighbouring rows.
    """
    count = run.gradient_accumulation_steps
    for of_replica in np.split(np.arange(rows), replicas):
        yield from (of_replica[index::count] for index in range(count))


def names_of_non_finite(
    run: "Run", model: "keras.Model", sums: np.ndarray, gradients: Sequence[np.ndarray]
) -> tuple[list[str], list[str]]:
    """Names of a micro-batch's losses that are not finite, and of variables by their gradient.

    Args:
        run: A `stages.Run`.
        model: The task's model.
        sums: The task's sums of the rows.
        gradients: One for each of the model's trainable variables.
    """
    pairs = zip(run.task.sums, sums, strict=True)
    losses = [name for name, value in pairs if not np.isfinite(value)]
    of_variables = zip(model.trainable_variables, gradients, strict=True)
    return losses, [v.path for v, gradient in of_variables if not np.isfinite(gradient).all()]
