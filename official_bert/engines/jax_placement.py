"""Placement of arrays on a JAX mesh, and the batches that are read ahead for it.

Weights are replicated on every device, batches are sharded by rows. Optimizer state is replicated,
too; or, with sharded state, each device holds a part (arXiv 2004.13336).
"""

import collections
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import jax
import keras
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

if TYPE_CHECKING:
    from official_bert.protocols import Batches

DATA = "data"  # the name of the mesh's one axis
REPLICATED, SHARDED, STACKED = PartitionSpec(), PartitionSpec(DATA), PartitionSpec(None, DATA)


class Placement:
    """The mesh, and the placement of arrays on it.

    Args:
        devices: All devices of all processes, in the order of the processes.
        shards_optimizer: Whether each device holds only a part of the optimizer's state.
    """

    def __init__(self, devices: Sequence[jax.Device], shards_optimizer: bool = False):
        self.mesh = Mesh(np.array(devices), (DATA,))
        self.shards_optimizer = shards_optimizer
        self.whole = NamedSharding(self.mesh, REPLICATED)

    def part(self, shape: Sequence[int]) -> PartitionSpec:
        """The division of state of this shape: along the first axis that the devices divide.

        State without such an axis is replicated; such variables are small.
        """
        devices = self.mesh.size
        if not self.shards_optimizer or devices == 1:
            return REPLICATED
        axes = [axis for axis, size in enumerate(shape) if size and size % devices == 0]
        return PartitionSpec(*[None] * axes[0], DATA) if axes else REPLICATED

    def sharding(self, spec: PartitionSpec) -> NamedSharding:
        """A division of this mesh."""
        return NamedSharding(self.mesh, spec)

    def of_optimizer(self, optimizer: keras.optimizers.Optimizer) -> list[NamedSharding]:
        """The shardings of `optimizer.variables`: slots are divided, others replicated."""
        slots = {
            id(slot)
            for variable in optimizer.trainable_variables
            for slot in optimizer.slots(variable).values()
        }
        return [
            self.sharding(self.part(v.shape)) if id(v) in slots else self.whole
            for v in optimizer.variables
        ]

    def put(
        self, variables: Iterable[keras.Variable], shardings: Iterable[NamedSharding]
    ) -> list[jax.Array]:
        """The values of variables, moved to their shardings if they are elsewhere."""
        return [self._put(variable, sharding) for variable, sharding in zip(variables, shardings)]

    def _put(self, variable, sharding):
        value = variable.value
        if value.sharding != sharding:
            host = to_host(value)  # each process has it, so nothing needs to be sent
            value = jax.make_array_from_callback(value.shape, sharding, lambda index: host[index])
            variable.assign(value)
        return value

    def global_batch(
        self, rows: Mapping[str, np.ndarray], spec: PartitionSpec = SHARDED
    ) -> dict[str, jax.Array]:
        """Arrays divided over all devices, from this process's rows of them."""
        sharding = self.sharding(spec)
        put = jax.make_array_from_process_local_data
        return {name: put(sharding, values) for name, values in rows.items()}

    def on_every_device(self, function: Callable, in_specs: object, out_specs: object) -> Callable:
        """The function as each device runs it, on its part of the arguments."""
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )


def to_host(value: jax.Array) -> np.ndarray:
    """The whole of an array on this host; all processes call it if it has parts on others."""
    if value.is_fully_addressable or value.is_fully_replicated:
        return np.asarray(value)
    return np.asarray(multihost_utils.process_allgather(value, tiled=True))


class Feed:
    """This process's rows of the batches of some steps, in order.

    Args:
        batches: A task's batches of this process's shard.
        steps: Range of steps.
        on_read: Called with each batch, once.
        errors: A list to which errors of reading are added.
    """

    def __init__(
        self,
        batches: "Batches",
        steps: range,
        on_read: Callable[[dict[str, np.ndarray]], None] | None,
        errors: list[Exception],
    ):
        self._batches, self._on_read, self._errors = batches, on_read, errors
        self._left = iter(steps)
        self._ahead: collections.deque[Future] = collections.deque()
        self._reader = ThreadPoolExecutor(1, "batches")

    def take(self, count: int) -> list[dict[str, np.ndarray]]:
        """The next batches; then the same number is read ahead.

        Raises:
            Exception: any error of reading one of them.
        """
        self._read_ahead(count)
        taken = [self._ahead.popleft().result() for _ in range(count)]
        self._read_ahead(count)
        return taken

    def _read_ahead(self, count):
        for step in itertools.islice(self._left, max(0, count - len(self._ahead))):
            self._ahead.append(self._reader.submit(self._read, step))

    def _read(self, step):
        try:
            batch = self._batches[step]
            if self._on_read:
                self._on_read(batch)
        except Exception as error:
            self._errors.append(error)
            raise
        return batch
