"""The engine of `tf.distribute`: places a model, runs N steps and feeds them."""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from official_bert.engines import tf_update
from official_bert.engines.tf_update import TrainingLoop
from official_bert.model import fused
from official_bert.protocols import Engine, GraphBatches

if TYPE_CHECKING:
    from official_bert.protocols import Batches, Task, UpdateSettings

# Messages of the assertions of `data.graph_batches`, and of TensorFlow about a file.
_REFUSED = re.compile(r"In the records that a host read, (.*?\.)\]")
_PLACE_OF_DAMAGE = re.compile(r"(?:corrupted|truncated) record at (\d+)")


class TfDistribute(Engine):
    """Any `tf.distribute` strategy, on one host or several.

    Args:
        strategy: A `tf.distribute.Strategy`; `strategies.make_strategy` makes one from flags.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self._strategy = strategy
        self.num_replicas = strategy.num_replicas_in_sync
        self.shard = _shard(strategy)
        self.is_chief = self.shard[0] == 0
        self.measures_input_wait = tf_update.measures_input_wait(strategy)
        self.compiles_each_shape = isinstance(strategy, tf.distribute.TPUStrategy)
        self._hosts_run_no_python = _hosts_run_no_python(strategy)
        self._read_by_hosts = []  # the last batches of which hosts got a graph
        self._input_errors = []  # of reading batches, so far

    def clone(self) -> "TfDistribute":
        return TfDistribute(self._strategy)

    def scope(self) -> AbstractContextManager:
        return self._strategy.scope()

    def training_loop(
        self, run: "UpdateSettings", model: keras.Model, optimizer: keras.optimizers.Optimizer
    ) -> TrainingLoop:
        return tf_update.make_training_loop(run, model, optimizer, self._strategy)

    def evaluation_step(self, task: "Task", model: keras.Model) -> Callable[[Iterator], tf.Tensor]:
        return tf_update.make_evaluation_step(task, model, self._strategy)

    def outputs(self, model: keras.Model) -> Callable[[Mapping[str, np.ndarray]], Any]:
        """As `Engine.outputs`; one graph for all shapes, except on a TPU."""

        def on_replica(batch):
            context = tf.distribute.get_replica_context()
            each = keras.ops.shape(next(iter(batch.values())))[0] // self.num_replicas
            first = context.replica_id_in_sync_group * each
            found = model({n: rows[first : first + each] for n, rows in batch.items()})
            if self.num_replicas == 1:
                return found
            return tf.nest.map_structure(lambda rows: context.all_gather(rows, axis=0), found)

        def of_all(batch):
            with fused.as_plain_operations():  # XLA's kernels are compiled for each shape
                found = self._strategy.run(on_replica, args=(batch,))
            first = self._strategy.experimental_local_results
            return tf.nest.map_structure(lambda value: first(value)[0], found)

        @functools.cache
        def graph(signature):
            specs = {name: tf.TensorSpec([None] * rank, dtype) for name, rank, dtype in signature}
            settings = {} if self.compiles_each_shape else {"input_signature": [specs]}
            return tf.function(of_all, autograph=False, **settings)

        def outputs(batch):
            signature = tuple((name, rows.ndim, rows.dtype) for name, rows in batch.items())
            tensors = {name: tf.constant(rows) for name, rows in batch.items()}
            found = graph(signature)(tensors)
            return tf.nest.map_structure(lambda tensor: tensor.numpy(), found)

        return outputs

    def sums_and_gradients(self, *arguments: Any) -> tuple[np.ndarray, list[np.ndarray]]:
        sums, gradients = tf_update.sums_and_gradients(*arguments)
        return sums, [gradient.numpy() for gradient in gradients]

    def feed(
        self,
        open_batches: "Callable[[int, int], Batches]",
        steps: range,
        on_read: Callable[[dict[str, np.ndarray]], None] | None = None,
    ) -> Iterator:
        """An iterator over the global batches of `steps`; each host reads only its shard.

        Hosts that run no Python, as on a TPU slice, read by a graph (`GraphBatches.dataset`), and
        this process reads only for `on_read`.
        """
        make_input = self._graph_input if self._hosts_run_no_python else self._python_input
        for_host = make_input(open_batches, steps, on_read)
        if self.num_replicas == 1 and not (self._hosts_run_no_python or self.runs_on_accelerator()):
            # Nothing is copied to a device, and no tuner is waited for; see `_untuned`.
            return iter(for_host(tf.distribute.InputContext()))
        return iter(self._strategy.distribute_datasets_from_function(for_host))

    def validate(self, batches: "Batches") -> None:
        if not self._hosts_run_no_python:
            return
        if not isinstance(batches, GraphBatches):
            raise ValueError(
                "The task must be pre-training on a TPU slice, whose hosts read batches by a "
                "graph; got one that has none. Use --engine=jax."
            )
        batches.dataset(range(1), 0, 1)

    def _graph_input(self, open_batches, steps, on_read):
        batches = open_batches(0, 1)
        if batches not in self._read_by_hosts:  # held-out ones come again and again
            self._read_by_hosts = [*self._read_by_hosts[-3:], batches]
        for step in steps if on_read else ():
            on_read(batches[step])

        def for_host(context):
            hosts = context.num_input_pipelines
            replicas = context.num_replicas_in_sync // hosts

            def divided(batch):
                return {
                    name: tf.reshape(rows, (replicas, rows.shape[0] // replicas, *rows.shape[1:]))
                    for name, rows in batch.items()
                }

            dataset = batches.dataset(steps, context.input_pipeline_id, hosts)
            return dataset.map(divided).unbatch().prefetch(2 * replicas)

        return for_host

    def _python_input(self, open_batches, steps, on_read):
        def for_host(context):
            batches = open_batches(context.input_pipeline_id, context.num_input_pipelines)
            replicas = context.num_replicas_in_sync // context.num_input_pipelines

            def replica_batches():
                for step in steps:
                    batch = self._read(batches, step)
                    if on_read:
                        on_read(batch)
                    for replica in range(replicas):
                        yield {
                            name: np.split(rows, replicas)[replica] for name, rows in batch.items()
                        }

            signature = {
                name: tf.TensorSpec((spec.shape[0] // replicas, *spec.shape[1:]), spec.dtype)
                for name, spec in batches.element_spec.items()
            }
            dataset = tf.data.Dataset.from_generator(replica_batches, output_signature=signature)
            return _untuned(dataset.prefetch(2 * replicas))

        return for_host

    def _read(self, batches, step):
        try:
            return batches[step]
        except Exception as error:
            self._input_errors.append(error)
            raise

    def input_error(self, error: Exception) -> Exception | None:
        """The error of reading a batch that caused an error of a loop; `None`: another cause.

        TensorFlow, which calls for the batches, passes on only the text of an error.
        """
        if not isinstance(error, tf.errors.OpError):
            return None
        if self._hosts_run_no_python and _is_of_reading(error):
            return ValueError(f"A host could not read its records: {self._reason(error)}")
        return self._input_errors[0] if self._input_errors else None

    def _reason(self, error):
        """The reason and, if this process finds it too, the place of the damage."""
        refused = _REFUSED.search(str(error))
        if refused:
            return refused[1]
        place = _PLACE_OF_DAMAGE.search(str(error))
        for batches in self._read_by_hosts if place else ():
            if damage := batches.damage_at(int(place[1])):
                return damage
        return str(error.message).strip().partition("\n")[0].rstrip(".") + "."

    def all_gather(self, numbers: Sequence[float]) -> np.ndarray:
        workers = self.shard[1]
        if workers == 1:
            return np.array([numbers], np.float64)
        rows = self._gather(tf.constant([numbers], tf.float64)).numpy()
        return rows[:: len(rows) // workers]  # one replica of each

    @functools.cached_property
    def _gather(self):
        def on_replica(mine):
            mine = tf.identity(mine)  # on the replica's device
            return tf.distribute.get_replica_context().all_gather(mine, axis=0)

        @tf.function(autograph=False)
        def gather(mine):
            gathered = self._strategy.run(on_replica, args=(mine,))
            return self._strategy.experimental_local_results(gathered)[0]

        return gather

    def to_host(self, variables: Sequence[keras.Variable]) -> list[np.ndarray]:
        return [variable.numpy() for variable in variables]

    def start_profile(self, folder: str) -> None:
        tf.profiler.experimental.start(folder)

    def stop_profile(self) -> None:
        tf.profiler.experimental.stop()

    def runs_on_accelerator(self) -> bool:
        try:
            device = self._strategy.extended.worker_devices[0]
        except RuntimeError:  # the default strategy has no list: it takes a GPU where there is one
            return bool(tf.config.list_logical_devices("GPU"))
        return tf.DeviceSpec.from_string(device).device_type != "CPU"

    def device_name(self) -> str:
        gpus = tf.config.list_physical_devices("GPU")
        if not gpus or not self.runs_on_accelerator():
            return ""
        return tf.config.experimental.get_device_details(gpus[0]).get("device_name", "")


def _hosts_run_no_python(strategy):
    """Whether the replicas are on other machines, whose only client is this process."""
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return False
    try:
        device = strategy.extended.worker_devices[0]
    except RuntimeError:  # the default strategy has no list
        return False
    return tf.DeviceSpec.from_string(device).job not in (None, "localhost")


def _is_of_reading(error):
    """Whether a loop's error comes from its input: it reads no other files."""
    of_files = (tf.errors.DataLossError, tf.errors.NotFoundError, tf.errors.PermissionDeniedError)
    return isinstance(error, of_files) or bool(_REFUSED.search(str(error)))


def _untuned(dataset):
    """The dataset without TensorFlow's tuner, which has nothing to tune in a Python generator.

    Freeing an iterator waits until its tuner wakes up: up to a minute at the end of each stage and
    run. The iterators that `tf.distribute` makes for devices keep their own tuners.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def _shard(strategy):
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 0, 1
    resolver = strategy.cluster_resolver
    return resolver.task_id, resolver.cluster_spec().num_tasks("worker")
