"""One update under tf.distribute as a graph, for any task.

Every replica runs forward and backward over its micro-batches and adds the gradients up; they are
summed over the replicas, and the optimizer checks, clips and applies them. The loss is divided
by weights summed over the whole global batch, so the result depends neither on the number of
replicas nor of micro-batches.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

from lamb_tf import gradient_noise
from lamb_tf.loss_scale import next_scale
from official_bert.engines import loop_state
from official_bert.model.layers import seeds_of_rows
from official_bert.optimizers.in_loop import once_for_all_replicas
from official_bert.protocols import LoopState, Reductions

if TYPE_CHECKING:
    from official_bert.protocols import Task, UpdateSettings

_DTYPES = {"fp32": tf.float32, "bf16": tf.bfloat16, "fp16": tf.float16}


def make_training_loop(
    run: "UpdateSettings",
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    strategy: tf.distribute.Strategy,
) -> "TrainingLoop":
    """Several updates inside one graph call, of a model made in the strategy's scope.

    Args:
        optimizer: Built on the model's trainable variables.
    """
    replica_update = make_replica_update(run, model, optimizer)
    learning_rate = run.learning_rate()
    clock = tf.timestamp if measures_input_wait(strategy) else lambda: tf.zeros((), tf.float64)
    totals = _shared_totals(strategy, len(run.task.sums) + 1)
    squares = _shared_totals(strategy, 2 * len(model.trainable_variables))

    def on_replica(measures_noise):
        put_squares = functools.partial(_put_total, squares) if measures_noise else None

        @tf.autograph.experimental.do_not_convert
        def work(*arguments):
            _, step, *_ = arguments
            once_for_all_replicas(lambda: optimizer.learning_rate.assign(learning_rate(step)))
            _put_total(totals, replica_update(*arguments, put_squares))

        return work

    @tf.autograph.experimental.do_not_convert
    def update(batch, step, state, asked_to_stop):
        skipped_before = tf.identity(optimizer.skipped_updates.value)
        measures_noise = state["noise"].shape[1] > 0
        arguments = batch, step, state["loss_scale"], asked_to_stop
        strategy.run(on_replica(measures_noise), args=arguments)
        *sums, stop_requests = tf.unstack(tf.identity(totals))
        state |= {"stop_requests": stop_requests}
        sums = tf.cast(tf.stack(sums), tf.float64)
        skipped = tf.identity(optimizer.skipped_updates.value) > skipped_before
        if measures_noise:
            count = run.gradient_accumulation_steps * strategy.num_replicas_in_sync
            small, whole = tf.split(tf.identity(squares), 2)
            noise = gradient_noise.next_averages(state["noise"], small, whole, count, ~skipped)
            state |= {"noise": noise}
        return _next_state(state, sums, skipped, loop_state.adapts_loss_scale(run))

    @tf.function
    def loop(iterator, first_step, steps, state):
        asked_to_stop = state["stop_requests"]
        for offset in tf.range(steps):
            with tf.control_dependencies([state["sums"]]):  # when the step before is done
                asked = clock()
            with tf.control_dependencies([asked]):
                batch = next(iterator)
            with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
                received = clock()
            with tf.control_dependencies([received]):  # dropout needs the step: no work before
                step = tf.identity(first_step + offset)
            state["input_wait"] += received - asked
            state = update(batch, step, state, asked_to_stop)
        return state

    return TrainingLoop(loop)


class TrainingLoop:
    """Does updates; nothing in it depends on how they are cut into calls.

    Args:
        loop: A `tf.function` of (iterator, first step, steps, state), all tensors but the first.
    """

    def __init__(self, loop: tf.types.experimental.PolymorphicFunction):
        self._loop = loop

    def __call__(
        self, iterator: Iterator, first_step: int, steps: int, state: LoopState
    ) -> LoopState:
        """Runs `steps` updates on batches of an iterator of `TfDistribute.feed`."""
        tensors = self._loop(iterator, tf.constant(first_step), tf.constant(steps), _tensors(state))
        found = {name: value.numpy().tolist() for name, value in tensors.items()}
        return dataclasses.replace(state, **found)

    def reductions(self, iterator: Iterator, state: LoopState) -> Reductions:
        """The `Reductions` of one update, read off its graph."""
        arguments = (iterator, tf.constant(0), tf.constant(0), _tensors(state))
        return reductions(self._loop.get_concrete_function(*arguments))


def _tensors(state):
    return {
        "sums": tf.constant(state.sums, tf.float64),
        "sums_since_saved": tf.constant(state.sums_since_saved, tf.float64),
        "loss_scale": tf.constant(state.loss_scale, tf.float32),
        "good_updates": tf.constant(state.good_updates),
        "skipped_in_a_row": tf.constant(state.skipped_in_a_row),
        "input_wait": tf.constant(state.input_wait, tf.float64),
        "stop_requests": tf.constant(state.stop_requests, tf.float32),
        "noise": tf.constant(state.noise, tf.float32),
    }


def make_replica_update(
    run: "UpdateSettings", model: keras.Model, optimizer: keras.optimizers.Optimizer
) -> Callable[..., tf.Tensor]:
    """The work of a replica for one step, to be called in `strategy.run`.

    Returns:
        A function `replica_update(batch, step, loss_scale, asked_to_stop, put_squares=None)` of
        this replica's rows of the batch that makes the update and returns the task's sums of these
        rows, followed by `asked_to_stop`, a number. It calls `put_squares` with this replica's
        share of what `gradient_noise.next_averages` takes: `small`, followed by `whole`.
    """
    forward_backward = _make_forward_backward(run, model)
    if run.enable_xla:
        forward_backward = tf.function(forward_backward, jit_compile=True)

    @tf.autograph.experimental.do_not_convert
    def replica_update(batch, step, loss_scale, asked_to_stop, put_squares=None):
        local = tf.stack([tf.reduce_sum(batch[name]) for name in run.task.weights])
        weights = tf.distribute.get_replica_context().all_reduce("SUM", local)
        work = forward_backward if put_squares is None else _with_squares(forward_backward)
        gradients, sums = _accumulate(work, batch, weights, step, loss_scale, run)
        if put_squares:
            sums, small = tf.split(sums, [len(run.task.sums), len(gradients)])
        gradients = sum_over_replicas(gradients, _DTYPES[run.reduce_dtype])
        if loop_state.scales_loss(run):
            gradients = [gradient / loss_scale for gradient in gradients]
        if put_squares:
            replicas = tf.distribute.get_replica_context().num_replicas_in_sync
            whole = gradient_noise.squared_norms(gradients) / replicas  # all of them have it
            put_squares(tf.concat([small / tf.square(loss_scale), whole], 0))
        optimizer.apply(gradients, model.trainable_variables, skip_gradients_aggregation=True)
        return tf.concat([sums, [asked_to_stop]], 0)

    return replica_update


def make_evaluation_step(
    task: "Task", model: keras.Model, strategy: tf.distribute.Strategy
) -> Callable[[Iterator], tf.Tensor]:
    """A function that returns the task's sums of the next batch of an iterator."""

    totals = _shared_totals(strategy, len(task.sums))

    @tf.autograph.experimental.do_not_convert
    def on_replica(batch):
        sums = _stacked(task, task.batch_sums(model(batch, training=False), batch))
        _put_total(totals, sums)

    @tf.function
    def evaluation_step(iterator):
        strategy.run(on_replica, args=(next(iterator),))
        return tf.identity(totals)

    return evaluation_step


def sums_and_gradients(
    run: "UpdateSettings",
    model: keras.Model,
    batch: Mapping[str, np.ndarray],
    rows: np.ndarray,
    step: int,
    loss_scale: float,
) -> tuple[np.ndarray, list[tf.Tensor]]:
    """A micro-batch's sums and the gradients of its share of the loss, computed once more.

    Args:
        batch: The step's global batch.
        rows: Numbers of the micro-batch's rows, or of some of them; see `loop_state.micro_batches`.
        loss_scale: The loss scale at that step.
    """
    weights = np.array([batch[name].sum() for name in run.task.weights])
    weights[~np.isfinite(weights)] = 1.0  # or every row would seem to be to blame
    chosen = {name: tf.constant(values[rows]) for name, values in batch.items()}
    seeds = seeds_of_rows(run.seed, step, np.asarray(rows))
    gradients, sums = _make_forward_backward(run, model)(chosen, weights, seeds, loss_scale)
    return sums.numpy(), gradients


def _make_forward_backward(run, model):
    task, variables = run.task, model.trainable_variables

    def forward_backward(batch, weights, dropout_seeds, loss_scale):
        """Gradients of this micro-batch's share of the loss, times its scale; and its sums."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([variable.value for variable in variables])  # not the frozen ones
            outputs = model(batch, training=True, dropout_seed=dropout_seeds)
            sums = task.batch_sums(outputs, batch)
            loss = task.loss(sums, weights)
            if loop_state.scales_loss(run):
                loss *= loss_scale
        gradients = tape.gradient(loss, variables)
        dense = [  # of known shape, without which they cannot be put into buckets
            tf.ensure_shape(tf.convert_to_tensor(gradient), variable.shape)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        return dense, _stacked(task, sums)

    return forward_backward


def _with_squares(forward_backward):
    """The same, with the squared norms of its gradients behind the sums."""

    def with_squares(*arguments):
        gradients, sums = forward_backward(*arguments)
        return gradients, tf.concat([sums, gradient_noise.squared_norms(gradients)], 0)

    return with_squares


def _stacked(task, sums):
    return tf.stack([sums[name] for name in task.sums])


def _accumulate(forward_backward, batch, weights, step, loss_scale, run):
    """Gradients and sums added up over this replica's micro-batches."""
    count = run.gradient_accumulation_steps
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    of_replica = keras.ops.shape(next(iter(batch.values())))[0]  # between workers not known before
    first = replica * of_replica  # number in the global batch of this replica's first row

    def micro_batch(index):
        rows = {  # as in `loop_state.micro_batches`: a sample of the replica's
            name: tf.reshape(value, (-1, count, *value.shape[1:]))[:, index]
            for name, value in batch.items()
        }
        numbers = first + count * tf.range(of_replica // count) + index
        seeds = seeds_of_rows(run.seed, step, numbers)
        return forward_backward(rows, weights, seeds, loss_scale)

    gradients, sums = micro_batch(0)
    if count == 1:
        return gradients, sums

    def add(index, gradients, sums):
        more_gradients, more_sums = micro_batch(index)
        added = [a + b for a, b in zip(gradients, more_gradients, strict=True)]
        return index + 1, added, sums + more_sums

    _, gradients, sums = tf.while_loop(
        lambda index, *_: index < count, add, (tf.constant(1), gradients, sums)
    )
    return gradients, sums


def _next_state(state, sums, skipped, adapts_loss_scale):
    scale, good = state["loss_scale"], tf.where(skipped, 0, state["good_updates"] + 1)
    if adapts_loss_scale:
        bounds = (loop_state.MIN_LOSS_SCALE, loop_state.MAX_LOSS_SCALE)
        scale, good = next_scale(scale, good, skipped, bounds=bounds)
    sums = tf.where(skipped, tf.zeros_like(sums), sums)
    return state | {
        "sums": state["sums"] + sums,
        "sums_since_saved": state["sums_since_saved"] + sums,
        "loss_scale": scale,
        "good_updates": good,
        "skipped_in_a_row": tf.where(skipped, state["skipped_in_a_row"] + 1, 0),
    }


def measures_input_wait(strategy: tf.distribute.Strategy) -> bool:
    """Whether the loop can measure how long a step waits for its batch: not for a TPU."""
    return not isinstance(strategy, tf.distribute.TPUStrategy)


def _shared_totals(strategy, count):
    """A variable for sums over the replicas.

    What `strategy.run` returned would be one value of each, to be added up by the host.
    """
    with strategy.scope():
        return tf.Variable(
            tf.zeros(count), trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )


def _put_total(totals, sums):
    """Puts the sum of all replicas' sums there; call it in `strategy.run`."""
    sums = tf.distribute.get_replica_context().all_reduce("SUM", sums)
    once_for_all_replicas(totals.assign, sums)


def sum_over_replicas(gradients: Sequence[tf.Tensor], dtype: tf.DType) -> Sequence[tf.Tensor]:
    """The gradients summed over all replicas, in float32; call it in `strategy.run`.

    Args:
        gradients: This replica's, dense, in float32.
        dtype: What they are rounded to on the way: `tf.float32`, or a type of 16 bits, which halves
            the bytes that travel and in which the sum is formed, too.
    """
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return gradients
    sums = context.all_reduce("SUM", [tf.cast(gradient, dtype) for gradient in gradients])
    return [tf.cast(total, tf.float32) for total in sums]


def reductions(concrete_function: tf.types.experimental.ConcreteFunction) -> Reductions:
    """The reductions between workers in a traced function, those in a loop's body counted once."""
    definition = concrete_function.graph.as_graph_def(add_shapes=True)
    nodes = [node for function in definition.library.function for node in function.node_def]
    found = [n for n in [*definition.node, *nodes] if n.op.startswith("CollectiveReduce")]
    sizes = [
        math.prod(dim.size for dim in node.attr["_output_shapes"].list.shape[0].dim)
        * tf.as_dtype(node.attr["T"].type).size
        for node in found
    ]
    return Reductions(len(sizes), sum(sizes))
