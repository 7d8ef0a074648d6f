"""Confirms checkpoints: after divergence, a run returns to the last one known to be good.

Weights can be finite and yet ruined: AdamW at a learning rate of 1e6 leaves weights of 1e13, from
which some more updates with finite gradients are made. So a checkpoint is known to be good only

- if, when it was saved, weights and moments were finite and the weights of a sane size; and
- if the mean loss of the updates that followed it, up to the next checkpoint, was finite and had
  not exploded.

In a healthy run that is the last checkpoint but one.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from official_bert.training import checkpoints, model_state
from official_bert.training.run_files import step_and_count

if TYPE_CHECKING:
    from official_bert.stages import Run

LARGEST_WEIGHT = 1e3  # trained BERTs hold weights up to some 10
# A mean loss has exploded if it is this much above the lowest of the stage so far, which starts as
# the loss of guessing. A cross-entropy may rise by half of the loss of guessing, at most by 1 nat.
# Another loss, whose unit is the labels', may rise by half of the stage's first.
TOLERATED_SHARE = 0.5
TOLERATED_NATS = 1.0


class KnownGood:
    """Confirms the checkpoints of a run, each by the updates that follow it."""

    def __init__(self, run: "Run", store: checkpoints.CheckpointStore):
        self._store = store
        self._task = run.task
        self._guessing = run.task.baseline_loss(run.config)
        self._lowest = self._guessing  # mean loss from one checkpoint of this stage to the next
        self._first: float | None = None  # such a loss, the first of this stage
        self._candidate: str | None = None  # the checkpoint that the updates since then followed

    def begin_stage(self) -> None:
        """Other depths and lengths have other losses: the next ones are not held against these."""
        self._lowest, self._first = self._guessing, None

    def resume(self, checkpoint: checkpoints.Checkpoint) -> None:
        """Continues as when this checkpoint was saved."""
        self._lowest = checkpoint.state["lowest_loss"]
        self._first = checkpoint.state["first_loss"]
        self.saved(checkpoint.name, checkpoint.state["suspect"])

    def judge(self, sums: Sequence[float]) -> float | None:
        """Confirms the last checkpoint by the updates that followed it, if they went well.

        Args:
            sums: The task's sums of these updates.

        Returns:
            The mean loss, if it has exploded, else `None`.
        """
        loss = self._task.metrics(sums)["loss"]
        if not any(sums):
            return None  # every update was skipped, so nothing was learned
        if not loss <= self._lowest + self._tolerated():
            return loss
        self._first = loss if self._first is None else self._first
        self._lowest = min(loss, self._lowest)
        if self._candidate:
            self._store.confirm(self._candidate, loss_after=loss)
        return None

    def _tolerated(self) -> float:
        """How far above the lowest a mean loss may be."""
        if self._task.loss_in_nats:
            return min(TOLERATED_NATS, TOLERATED_SHARE * self._guessing)
        begun = self._guessing if self._first is None else min(self._first, self._guessing)
        return TOLERATED_SHARE * begun

    def state(self, tensors: Mapping[str, np.ndarray]) -> dict:
        """The entries of a checkpoint's state that `resume` needs."""
        losses = {"lowest_loss": self._lowest, "first_loss": self._first}
        return losses | {"suspect": _suspect(tensors)}

    def saved(self, name: str, suspect: str | None) -> None:
        """The updates from here on follow this checkpoint."""
        self._candidate = None if suspect else name

    def advice(self) -> str:
        """The remedy for a run that has diverged."""
        good = self._store.known_good()
        remedy = "a lower learning rate or a longer warm-up"
        if good is None:
            return (
                f"No checkpoint is known to be good: start again in another folder, with {remedy}."
            )
        step, _ = step_and_count(good)
        return (
            f"The last checkpoint known to be good is {good}: resume there (--resume_from={step}) "
            f"with {remedy}."
        )


def _suspect(tensors):
    """The fault of the weights or moments in a checkpoint, or `None`."""
    for name, value in tensors.items():
        if value.dtype.kind != "f":
            continue  # a counter
        limit = math.inf if model_state.is_slot(name) else LARGEST_WEIGHT
        largest = float(max(value.max(), -value.min()))
        if not largest < limit:
            return f"{name} holds values up to {largest:.2g}"
    return None
