"""The engine of Keras' JAX backend: a mesh over all devices of all processes.

One process per host reads its rows of every batch; weights are replicated on every device. The
programs are in `jax_update`, the placement of arrays in `jax_placement`, the discovery of processes
in `jax_processes`. TensorFlow is not imported.
"""

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import jax
import keras
import numpy as np
from jax.experimental import multihost_utils

from official_bert.engines import jax_update
from official_bert.engines.jax_placement import REPLICATED, SHARDED, Feed, Placement, to_host
from official_bert.engines.jax_update import TrainingLoop
from official_bert.protocols import Engine

if TYPE_CHECKING:
    from official_bert.protocols import Batches, Task, UpdateSettings


class JaxMesh(Engine):
    """All devices of all processes; see `protocols.Engine` for the methods.

    Args:
        shards_optimizer: Whether each device holds, and computes, only a part of the optimizer's
            state and update (arXiv 2004.13336); weights are the same to round-off.
        devices: Which devices of this process, by itself; by default, all of all processes.
    """

    measures_input_wait = True
    compiles_each_shape = True

    def __init__(self, shards_optimizer: bool = False, devices: Sequence[jax.Device] | None = None):
        if keras.backend.backend() != "jax":
            raise ValueError(
                f"Keras' backend must be jax for this engine; got {keras.backend.backend()}. Set "
                "KERAS_BACKEND=jax before Keras is imported."
            )
        if devices is None:
            _make_on_host()
        self._placement = Placement(devices or _in_order(jax.devices()), shards_optimizer)
        self.num_replicas = self._placement.mesh.size
        self.shard = (0, 1) if devices else (jax.process_index(), jax.process_count())
        self.is_chief = self.shard[0] == 0
        self._input_errors: list[Exception] = []

    def clone(self) -> "JaxMesh":
        made = copy.copy(self)
        made._input_errors = []
        return made

    def scope(self) -> AbstractContextManager:
        """An empty context: arrays are brought to the mesh when they are used."""
        return contextlib.nullcontext()

    def training_loop(
        self, run: "UpdateSettings", model: keras.Model, optimizer: keras.optimizers.Optimizer
    ) -> TrainingLoop:
        return TrainingLoop(run, model, optimizer, self._placement)

    def evaluation_step(self, task: "Task", model: keras.Model) -> Callable[[Feed], np.ndarray]:
        return jax_update.make_evaluation_step(task, model, self._placement)

    def outputs(self, model: keras.Model) -> Callable[[Mapping[str, np.ndarray]], Any]:
        placement = self._placement

        def on_device(trained, frozen, rows):
            return model.stateless_call(trained, frozen, rows, training=False)[0]

        divided = placement.on_every_device(on_device, (REPLICATED, REPLICATED, SHARDED), SHARDED)
        program = jax.jit(divided, out_shardings=placement.whole)

        def outputs(batch):
            index, processes = self.shard
            mine = {name: np.split(rows, processes)[index] for name, rows in batch.items()}
            values = jax_update.values_of(model, placement)
            return jax.tree.map(to_host, program(*values, placement.global_batch(mine)))

        return outputs

    def feed(
        self,
        open_batches: "Callable[[int, int], Batches]",
        steps: range,
        on_read: Callable[[dict[str, np.ndarray]], None] | None = None,
    ) -> Feed:
        """This process's rows of the batches of `steps`, read ahead in a thread."""
        return Feed(open_batches(*self.shard), steps, on_read, self._input_errors)

    def validate(self, batches: "Batches") -> None:
        """Accepts any batches: this process reads them itself."""

    def input_error(self, error: Exception) -> Exception | None:
        """The error itself, if reading a batch raised it; otherwise `None`."""
        return error if any(error is raised for raised in self._input_errors) else None

    def sums_and_gradients(self, *arguments: Any) -> tuple[np.ndarray, list[np.ndarray]]:
        return jax_update.sums_and_gradients(*arguments)

    def all_gather(self, numbers: Sequence[float]) -> np.ndarray:
        mine = np.array([numbers], np.float64)
        if self.shard[1] == 1:
            return mine
        halves = multihost_utils.process_allgather(mine.view(np.uint32))  # JAX has no 64 bits
        return np.asarray(halves).reshape(self.shard[1], -1).view(np.float64)

    def to_host(self, variables: Sequence[keras.Variable]) -> list[np.ndarray]:
        return [to_host(variable.value) for variable in variables]

    def start_profile(self, folder: str) -> None:
        jax.profiler.start_trace(folder)

    def stop_profile(self) -> None:
        jax.profiler.stop_trace()

    def runs_on_accelerator(self) -> bool:
        return jax.default_backend() != "cpu"

    def device_name(self) -> str:
        return self._placement.mesh.devices.flat[0].device_kind


def _make_on_host():
    """Allocates new arrays in host memory: all of a sharded state may fit on no device."""
    with contextlib.suppress(RuntimeError):  # where JAX_PLATFORMS leaves out the CPU
        jax.config.update("jax_default_device", jax.local_devices(backend="cpu")[0])


def _in_order(devices):
    """By process, so that a process reads the rows of its own devices."""
    return sorted(devices, key=lambda device: (device.process_index, device.id))
