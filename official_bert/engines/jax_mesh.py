"""A mesh over all devices of all processes as an engine, on Keras' JAX backend.

One process per host. Each reads its rows of every batch; weights are whole on every device. What a
program does on the devices is in `jax_update`, what lies where in `jax_placement`, and how the
processes find each other in `jax_processes`. TensorFlow is not imported.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import jax
import keras
import numpy as np
from jax.experimental import multihost_utils

from official_bert.engines import jax_update, loop_state
from official_bert.engines.device_peaks import peak_flops
from official_bert.engines.jax_input import Feed
from official_bert.engines.jax_placement import Placement, to_host
from official_bert.engines.jax_update import TrainingLoop

if TYPE_CHECKING:
    from official_bert.protocols import Batches, Task, UpdateSettings


class JaxMesh:
    """All devices of all processes; see `protocols.Engine` for what each method is for.

    Args:
        shards_optimizer: Whether each device holds, and computes, only a part of the optimizer's
            state and update (arXiv 2004.13336); weights are the same to round-off.
        devices: Which devices; by default, all. One process alone may take fewer.

    Attributes:
        num_replicas: How many devices share a global batch.
        shard: Which part of each batch this process reads, and of how many.
        is_chief: Whether this process writes checkpoints and logs.
        measures_input_wait: Whether the training loop measures how long steps wait for batches.
    """

    measures_input_wait = True

    def __init__(self, shards_optimizer: bool = False, devices: Sequence[jax.Device] | None = None):
        if keras.backend.backend() != "jax":
            raise ValueError(
                f"Keras' backend must be jax for this engine; got {keras.backend.backend()}. Set "
                "KERAS_BACKEND=jax before Keras is imported."
            )
        _make_on_host()
        self._placement = Placement(devices or _in_order(jax.devices()), shards_optimizer)
        self.num_replicas = self._placement.mesh.size
        self.shard = jax.process_index(), jax.process_count()
        self.is_chief = self.shard[0] == 0
        self._input_errors: list[Exception] = []

    def clone(self) -> "JaxMesh":
        """An engine in the same place that knows nothing of this one's errors."""
        placement = self._placement
        return JaxMesh(placement.shards_optimizer, [*placement.mesh.devices.flat])

    def scope(self) -> AbstractContextManager:
        """No context is needed: what is made anywhere is brought to the mesh when it is used."""
        return contextlib.nullcontext()

    def training_loop(
        self, run: "UpdateSettings", model: keras.Model, optimizer: keras.optimizers.Optimizer
    ) -> TrainingLoop:
        """Several updates of a run in one call."""
        return TrainingLoop(run, model, optimizer, self._placement)

    def evaluation_step(self, task: "Task", model: keras.Model) -> Callable[[Feed], np.ndarray]:
        """A function that returns the task's sums over the next batch of what `feed` returned."""
        return jax_update.make_evaluation_step(task, model, self._placement)

    def feed(
        self,
        open_batches: "Callable[[int, int], Batches]",
        steps: range,
        on_read: Callable[[dict[str, np.ndarray]], None] | None = None,
    ) -> Feed:
        """This process's rows of the batches of `steps`, read ahead in a thread."""
        return Feed(open_batches(*self.shard), steps, on_read, self._input_errors)

    def validate(self, batches: "Batches") -> None:
        """Any batches will do: this process reads them itself."""

    def input_error(self, error: Exception) -> Exception | None:
        """The error itself, if reading a batch raised it; otherwise `None`."""
        return error if any(error is raised for raised in self._input_errors) else None

    def micro_batches(self, run: "UpdateSettings", rows: int) -> Iterator[np.ndarray]:
        """Numbers of the rows of each micro-batch of a global batch; see `non_finite`."""
        return loop_state.micro_batches(run, rows, self.num_replicas)

    def non_finite(
        self,
        run: "UpdateSettings",
        model: keras.Model,
        batch: Mapping[str, np.ndarray],
        rows: np.ndarray,
        step: int,
        loss_scale: float,
    ) -> tuple[list[str], list[str]]:
        """What is not finite in a micro-batch: names of losses, and of variables by gradient."""
        recompute = jax_update.make_recomputation(run, model)
        sums, gradients = recompute(batch, rows, step, loss_scale)
        return loop_state.names_of_non_finite(run, model, sums, gradients)

    def all_gather(self, numbers: Sequence[float]) -> np.ndarray:
        """What each process says: the numbers of all of them, one row each. Waits for all."""
        mine = np.array([numbers], np.float64)
        if self.shard[1] == 1:
            return mine
        halves = multihost_utils.process_allgather(mine.view(np.uint32))  # JAX has no 64 bits
        return np.asarray(halves).reshape(self.shard[1], -1).view(np.float64)

    def to_host(self, variables: Sequence[keras.Variable]) -> list[np.ndarray]:
        """The whole values of variables, wherever their parts are. All processes call it."""
        return [to_host(variable.value) for variable in variables]

    def start_profile(self, folder: str) -> None:
        """Begins a profile for TensorBoard's profile page."""
        jax.profiler.start_trace(folder)

    def stop_profile(self) -> None:
        """Ends and writes the profile."""
        jax.profiler.stop_trace()

    def runs_on_accelerator(self) -> bool:
        """Whether the devices are GPUs or TPUs."""
        return jax.default_backend() != "cpu"

    def peak_flops(self, dtype: str) -> float | None:
        """FLOP/s of all devices at their best in dense 16-bit products, or `None` if not known."""
        peak = peak_flops(self._placement.mesh.devices.flat[0].device_kind)
        return None if dtype == "fp32" or peak is None else self.num_replicas * peak


def _make_on_host():
    """Allocates new arrays in host memory: all of a sharded state may fit on no device."""
    with contextlib.suppress(RuntimeError):  # where JAX_PLATFORMS leaves out the CPU
        jax.config.update("jax_default_device", jax.local_devices(backend="cpu")[0])


def _in_order(devices):
    """By process, so that the rows that a process reads are those of its own devices."""
    return sorted(devices, key=lambda device: (device.process_index, device.id))
