"""The Task protocol: everything task-specific, kept out of the training loop.

A task is a frozen dataclass with all that `Task` lists. `pretraining.Pretraining`,
`classification.Classification` and `squad.QuestionAnswering` are the three of this package.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import keras
    import numpy as np
    import tensorflow as tf

    from official_bert.data.input_pipeline import ArraySpec
    from official_bert.model.config import BertConfig
    from official_bert.model.tensor_types import Tensor, Tensors
    from official_bert.stages import Stage


class Batches(Protocol):
    """The batches of a stage by their step, the same on any number of hosts."""

    @property
    def num_batches(self) -> int:
        """Batches of one pass over the examples."""

    @property
    def element_spec(self) -> "dict[str, ArraySpec]":
        """What a batch holds, without reading one."""

    def __getitem__(self, step: int) -> "dict[str, np.ndarray]":
        """This host's rows of the batch of a step: a dictionary of arrays."""

    def dataset(self, steps: range, shard_index: int, num_shards: int) -> "tf.data.Dataset":
        """The batches of some steps as a graph; only for tasks that train on a TPU slice."""

    def damage_at(self, offset: int) -> str | None:
        """What is wrong near a byte of the files that such a graph reads; `None`: nothing."""

    def fingerprint(self) -> str:
        """A digest of the examples, by which others are noticed."""


class Task(Protocol):
    """What a task offers."""

    @property
    def sums(self) -> tuple[str, ...]:
        """Names of what is summed over the batches; `tokens` is one of them."""

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of a batch's arrays whose global totals the loss is divided by."""

    @property
    def progress(self) -> dict[str, str]:
        """{metric: format} of the progress line, beside the loss."""

    @property
    def loss_in_nats(self) -> bool:
        """Whether the loss is a cross-entropy; of any other the unit is not known."""

    def describe(self) -> dict:
        """The task as JSON values, for `run.json`."""

    def check(self, stage: "Stage") -> None:
        """Raises a ValueError for a stage that the task cannot train."""

    def make_model(self, config: "BertConfig", seed: int | None, dtype: str) -> "keras.Model":
        """A built model with its `config`, called as model(batch, training=…, dropout_seed=…)."""

    def trains(self, path: str) -> bool:
        """Whether the variable of this path is of use to the task."""

    def batches(
        self,
        files: Sequence[str],
        stage: "Stage",
        batch_size: int,
        config: "BertConfig",
        *,
        seed: int,
        shard: tuple[int, int],
        held_out: bool = False,
    ) -> Batches:
        """The batches of a stage's shapes: training's, or those held out, in order.

        Args:
            files: Paths or globs.
            stage: The shapes.
            batch_size: Examples of a batch, on all hosts together.
            config: The model.
            seed: Of the order.
            shard: Which part of each batch this process reads, and of how many.
            held_out: Whether they are for an evaluation.
        """

    def batch_sums(self, outputs: "Tensor | Tensors", batch: "Tensors") -> "dict[str, Tensor]":
        """The `sums` of rows of a batch by name; float32 scalars."""

    def loss(self, sums: "Tensors", weights: "Tensor") -> "Tensor":
        """The rows' share of the global batch's loss, from their sums and all rows' weights."""

    def metrics(self, sums: "Sequence[float] | np.ndarray") -> dict[str, float]:
        """Means from a vector of `sums`; `loss` is among them."""

    def label_counts(self, batch: "Mapping[str, np.ndarray]", config: "BertConfig") -> "np.ndarray":
        """A vector that is added up over held-out batches."""

    def held_out_metrics(self, sums: "np.ndarray", counts: "np.ndarray") -> dict[str, float]:
        """`metrics` beside what guessing would get; the best weights are of the lowest `loss`."""

    def guessing_loss(self, config: "BertConfig") -> float:
        """The loss of guessing all labels with equal probability."""

    def held_out_line(self, metrics: Mapping[str, float]) -> str:
        """Held-out metrics as one line of text."""
