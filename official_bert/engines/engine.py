"""The Engine protocol: where the model lives and how N updates run.

`tf_distribute.TfDistribute` and `jax_mesh.JaxMesh` are the two there are. The same run gives the
same weights on either, to round-off, and each resumes the other's checkpoints.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    import keras

    from official_bert.engines.loop_state import State
    from official_bert.stages import Run
    from official_bert.tasks import Batches, Task


class Reductions(NamedTuple):
    """What one update sums over all workers: the number of reductions, and the bytes in them."""

    count: int  # type: ignore[assignment]  # tuple.count is never called
    bytes: int


class TrainingLoop(Protocol):
    """Does updates; nothing in it depends on how they are cut into calls."""

    def __call__(self, batches: Any, first_step: int, steps: int, state: "State") -> "State":
        """Does `steps` updates on the next of what `Engine.feed` returned.

        Takes and returns the state that `loop_state.first_state` describes.
        """

    def reductions(self, batches: Any, state: "State") -> Any:
        """The `Reductions` of one update."""


class Engine(Protocol):
    """A place for models, optimizers and their updates.

    Attributes:
        num_replicas: How many devices share a global batch.
        shard: Which part of each batch this process reads, and of how many: (0, 1) for one process.
        is_chief: Whether this process writes checkpoints and logs.
        measures_input_wait: Whether the training loop measures how long steps wait for batches.
    """

    num_replicas: int
    shard: tuple[int, int]
    is_chief: bool
    measures_input_wait: bool

    def another(self) -> "Engine":
        """An engine in the same place that knows nothing of this one's errors."""

    def scope(self) -> AbstractContextManager:
        """The context in which models and optimizers of this engine are made."""

    def training_loop(
        self, run: "Run", model: "keras.Model", optimizer: "keras.optimizers.Optimizer"
    ) -> Any:
        """A `TrainingLoop` of several updates per call."""

    def evaluation_step(self, task: "Task", model: "keras.Model") -> Callable[[Any], Any]:
        """A function that returns the task's sums over the next batch of what `feed` returned."""

    def feed(
        self,
        open_batches: "Callable[[int, int], Batches]",
        steps: range,
        on_read: Callable[[dict[str, np.ndarray]], None] | None = None,
    ) -> Any:
        """The batches of `steps`, for the training loop or the evaluation step."""

    def accept(self, batches: "Batches") -> None:
        """Raises a ValueError for batches that `feed` would refuse."""

    def input_error(self, error: Exception) -> Exception | None:
        """What reading a batch raised, if that is behind an error of a loop; otherwise `None`."""

    def micro_batches(self, run: "Run", rows: int) -> Iterator[np.ndarray]:
        """Numbers of the rows of each micro-batch of a global batch; see `non_finite`."""

    def non_finite(
        self,
        run: "Run",
        model: "keras.Model",
        batch: Mapping[str, np.ndarray],
        rows: np.ndarray,
        step: int,
        loss_scale: float,
    ) -> tuple[list[str], list[str]]:
        """What is not finite in a micro-batch: names of losses, and of variables by gradient."""

    def from_all_workers(self, numbers: Sequence[float]) -> np.ndarray:
        """What each worker says: the numbers of all of them, one row per worker. Waits for all."""

    def values(self, variables: "Sequence[keras.Variable]") -> list[np.ndarray]:
        """The whole values of variables, wherever their parts are. All workers call it."""

    def runs_on_accelerator(self) -> bool:
        """Whether the replicas are on GPUs or TPUs."""

    def peak_flops(self, dtype: str) -> float | None:
        """FLOP/s of all replicas at their best in dense 16-bit products, or `None` if not known."""

    def start_profile(self, folder: str) -> None:
        """Begins a profile for TensorBoard's profile page."""

    def stop_profile(self) -> None:
        """Ends and writes the profile."""
