"""N updates as one compiled program on all devices of a mesh, for any task.

Every device runs forward and backward over its micro-batches and adds the gradients up; they are
summed over the devices once, and the optimizer checks, clips and applies them. The loss is divided
by weights summed over the whole global batch, and dropout follows from the place of a row in it, so
the result depends neither on the number of devices and processes nor of micro-batches.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from lamb_tf import gradient_noise
from lamb_tf.compile_target import compiling_for
from lamb_tf.loss_scale import next_scale
from official_bert.engines import loop_state
from official_bert.engines.jax_placement import DATA, REPLICATED, SHARDED, STACKED, Feed, Placement
from official_bert.model.layers import seeds_of_rows
from official_bert.protocols import LoopState, Reductions

if TYPE_CHECKING:
    from official_bert.protocols import ArraySpec, Task, UpdateSettings

_DTYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16, "fp16": jnp.float16}


class TrainingLoop:
    """Does updates; nothing in it depends on how they are cut into calls.

    Args:
        optimizer: Built on the model's trainable variables.
    """

    def __init__(
        self,
        run: "UpdateSettings",
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        placement: Placement,
    ):
        self._run, self._placement = run, placement
        self._trained, self._frozen = model.trainable_variables, model.non_trainable_variables
        self._state = optimizer.variables
        self._updates = make_updates(run, model, optimizer, placement)
        self._shardings = placement.of_optimizer(optimizer)
        self._capacity = 0  # steps of the longest call so far: shorter ones need no other program

    def __call__(self, batches: Feed, first_step: int, steps: int, state: LoopState) -> LoopState:
        """Runs `steps` updates on the next batches."""
        started = time.perf_counter()
        arguments = self._arguments(batches.take(steps), first_step, state)
        waited = time.perf_counter() - started
        trained, optimizer, results = self._updates(*arguments)
        for variable, value in zip(
            [*self._trained, *self._state], [*trained, *optimizer], strict=True
        ):
            variable.assign(value)
        results = jax.device_get(results)
        return _next_state(state, steps, results, state.input_wait + waited)

    def reductions(self, batches: Feed, state: LoopState) -> Reductions:
        """The `Reductions` of one update, before the compiler merges some of them.

        Each gradient is summed once, and so are the divisors of the loss and the sums.
        """
        bytes_each = jnp.dtype(_DTYPES[self._run.reduce_dtype]).itemsize
        numbers = len(self._run.task.weights) + len(self._run.task.sums)
        size = bytes_each * sum(math.prod(variable.shape) for variable in self._trained)
        return Reductions(len(self._trained) + 2, size + 4 * numbers)

    def _arguments(self, batches, first_step, state):
        placement, whole = self._placement, self._placement.whole
        self._capacity = max(self._capacity, len(batches))
        padded = [*batches, *[batches[-1]] * (self._capacity - len(batches))]  # which are not read
        stacked = {name: np.stack([batch[name] for batch in padded]) for name in batches[0]}
        asked = np.full(jax.local_device_count(), state.stop_requests, np.float32)
        return (
            placement.put(self._trained, [whole] * len(self._trained)),
            placement.put(self._state, self._shardings),
            placement.put(self._frozen, [whole] * len(self._frozen)),
            placement.global_batch(stacked, STACKED),
            placement.global_batch({"asked": asked})["asked"],
            np.int32(first_step),
            np.int32(len(batches)),
            np.float32(state.loss_scale),
            np.int32(state.good_updates),
            np.array(state.noise, np.float32),
        )


def make_updates(
    run: "UpdateSettings",
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    placement: Placement,
) -> Any:
    """The program of several updates.

    Returns:
        A `jax.jit` function of (trained values, optimizer's values, other values, stacked batches,
        stop requests by device, first step, number of steps, loss scale, good updates, noise). The
        first two are donated. It returns their new values, and a dictionary of the rest of the
        state, in which `sums` and `skipped` have a row per step.
    """
    number_of_sums = len(run.task.sums)
    micro_batches = run.gradient_accumulation_steps * placement.mesh.size

    def updates(trained, state, frozen, batches, asked, first_step, steps, loss_scale, good, noise):
        capacity, measures_noise = next(iter(batches.values())).shape[0], noise.shape[1] > 0
        update = _make_update(run, model, optimizer, placement, measures_noise)

        def one(index, carry):
            trained, state, scale, good, noise, sums, skipped = carry
            batch = {name: values[index] for name, values in batches.items()}
            trained, state, of_batch, skips, squares = update(
                trained, state, frozen, batch, first_step + index, scale
            )
            if measures_noise:
                noise = gradient_noise.next_averages(noise, *squares, micro_batches, ~skips)
            good = jnp.where(skips, 0, good + 1)
            if loop_state.adapts_loss_scale(run):
                bounds = (loop_state.MIN_LOSS_SCALE, loop_state.MAX_LOSS_SCALE)
                scale, good = next_scale(scale, good, skips, bounds=bounds)
            sums, skipped = sums.at[index].set(of_batch), skipped.at[index].set(skips)
            return trained, state, scale, good, noise, sums, skipped

        sums = jnp.zeros((capacity, number_of_sums), jnp.float32)
        carry = trained, state, loss_scale, good, noise, sums, jnp.zeros(capacity, bool)
        carry = one(0, carry) if capacity == 1 else jax.lax.fori_loop(0, steps, one, carry)
        trained, state, scale, good, noise, sums, skipped = carry
        results = {"loss_scale": scale, "good_updates": good, "sums": sums, "skipped": skipped}
        results["noise"] = noise
        return trained, state, results | {"stop_requests": jnp.sum(asked)}

    of_optimizer = placement.of_optimizer(optimizer)
    return jax.jit(
        updates,
        donate_argnums=(0, 1),
        out_shardings=(placement.whole, of_optimizer, placement.whole),
    )


def lower(
    run: "UpdateSettings",
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    placement: Placement,
    batch: "Mapping[str, ArraySpec]",
    steps: int = 1,
) -> jax.stages.Lowered:
    """The program of some updates before it is compiled, on devices that need not be here.

    Args:
        model: The task's model; of its variables only shapes matter.
        placement: The devices, which may be those of a described topology.
        batch: Shape and type of each array of a global batch.
        steps: Number of updates.
    """
    whole = placement.whole

    def like(variables, shardings):
        return [
            jax.ShapeDtypeStruct(variable.shape, variable.dtype, sharding=sharding)
            for variable, sharding in zip(variables, shardings, strict=True)
        ]

    trained, frozen = model.trainable_variables, model.non_trainable_variables
    stacked = placement.sharding(STACKED)
    batches = {
        name: jax.ShapeDtypeStruct((steps, *shape), dtype, sharding=stacked)
        for name, (shape, dtype) in batch.items()
    }
    by_device = placement.sharding(SHARDED)
    integer, number = (
        jax.ShapeDtypeStruct((), dtype, sharding=whole) for dtype in (jnp.int32, jnp.float32)
    )
    with compiling_for(placement.mesh.devices.flat[0].platform):
        return make_updates(run, model, optimizer, placement).lower(
            like(trained, [whole] * len(trained)),
            like(optimizer.variables, placement.of_optimizer(optimizer)),
            like(frozen, [whole] * len(frozen)),
            batches,
            jax.ShapeDtypeStruct((placement.mesh.size,), jnp.float32, sharding=by_device),
            integer,
            integer,
            number,
            integer,
            jax.ShapeDtypeStruct((2, 0), jnp.float32, sharding=whole),
        )


def _make_update(run, model, optimizer, placement, measures_noise):
    """One update of the values of variables; and the batch's sums, and whether it was skipped.

    Last, `small` and `whole` of `gradient_noise.next_averages`, where they are measured.
    """
    gradients_of = _make_gradients(run, model, placement, measures_noise)
    learning_rate = run.learning_rate()
    rate_at, skipped_at = (
        next(i for i, v in enumerate(optimizer.variables) if v is found)
        for found in (optimizer.learning_rate, optimizer.skipped_updates)
    )
    parts = [placement.sharding(placement.part(v.shape)) for v in model.trainable_variables]
    place = functools.partial(jax.tree.map, jax.lax.with_sharding_constraint)

    def update(trained, state, frozen, batch, step, loss_scale):
        gradients, sums = gradients_of(trained, frozen, batch, step, loss_scale)
        if loop_state.scales_loss(run):
            gradients = [gradient / loss_scale for gradient in gradients]
        sums, small = jnp.split(sums, [len(run.task.sums)])
        squares = ()
        if measures_noise:
            squares = small / jnp.square(loss_scale), gradient_noise.squared_norms(gradients)
        before = state[skipped_at]
        state = [*state]
        state[rate_at] = jnp.asarray(learning_rate(step), jnp.float32)
        # Each device updates its part of the weights; then all parts are gathered.
        trained, state = optimizer.stateless_apply(state, gradients, place(trained, parts))
        # First the part: else the old weights, which an update may keep, would be gathered as well.
        trained = place(place(trained, parts), [placement.whole] * len(trained))
        return trained, state, sums, state[skipped_at] > before, squares

    return update


def _make_gradients(run, model, placement, measures_noise):
    """Gradients of the global batch's loss, times its scale, and the task's sums over it.

    With noise measurement, followed by sums of the squared norms of the micro-batches' gradients.
    """
    forward_backward = _make_forward_backward(run, model)
    dtype, count = _DTYPES[run.reduce_dtype], run.gradient_accumulation_steps
    specs = [placement.part(variable.shape) for variable in model.trainable_variables]

    def summed(gradient, spec):
        if placement.mesh.size == 1:
            return gradient
        gradient = gradient.astype(dtype)
        if spec == REPLICATED:
            total = jax.lax.psum(gradient, DATA)
        else:  # each device gets the part that it needs
            axis = spec.index(DATA)
            total = jax.lax.psum_scatter(gradient, DATA, scatter_dimension=axis, tiled=True)
        return total.astype(jnp.float32)

    def on_device(trained, frozen, batch, step, loss_scale):
        local = jnp.stack([jnp.sum(batch[name]) for name in run.task.weights])
        weights = jax.lax.psum(local, DATA)
        of_device = next(iter(batch.values())).shape[0]
        first = jax.lax.axis_index(DATA) * of_device  # number in the global batch of its first row

        def micro_batch(index):
            rows = {  # as in `loop_state.micro_batches`: a sample of the device's
                name: values.reshape(-1, count, *values.shape[1:])[:, index]
                for name, values in batch.items()
            }
            numbers = first + count * jnp.arange(of_device // count) + index
            seeds = seeds_of_rows(run.seed, step, numbers)
            gradients, sums = forward_backward(trained, frozen, rows, weights, seeds, loss_scale)
            if measures_noise:
                sums = jnp.concatenate([sums, gradient_noise.squared_norms(gradients)])
            return gradients, sums

        def add(index, totals):
            return jax.tree.map(jnp.add, totals, micro_batch(index))

        if count == 1:
            gradients, sums = micro_batch(0)
        else:
            shapes = jax.eval_shape(micro_batch, 0)
            zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
            gradients, sums = jax.lax.fori_loop(0, count, add, zeros)
        gradients = [summed(*pair) for pair in zip(gradients, specs, strict=True)]
        return gradients, jax.lax.psum(sums, DATA)

    return placement.on_every_device(
        on_device,
        in_specs=(REPLICATED, REPLICATED, SHARDED, REPLICATED, REPLICATED),
        out_specs=(specs, REPLICATED),
    )


def _make_forward_backward(run, model):
    task = run.task

    def loss_and_sums(trained, frozen, batch, weights, dropout_seeds, loss_scale):
        outputs, _ = model.stateless_call(
            trained, frozen, batch, training=True, dropout_seed=dropout_seeds
        )
        sums = task.batch_sums(outputs, batch)
        loss = task.loss(sums, weights)
        if loop_state.scales_loss(run):
            loss *= loss_scale
        return loss, _stacked(task, sums)

    def forward_backward(*arguments):
        """Gradients of this micro-batch's share of the loss, times its scale; and its sums."""
        (_, sums), gradients = jax.value_and_grad(loss_and_sums, has_aux=True)(*arguments)
        return gradients, sums

    return forward_backward


def make_evaluation_step(
    task: "Task", model: keras.Model, placement: Placement
) -> Callable[[Feed], np.ndarray]:
    """A function that returns the task's sums of the next batch."""

    def on_device(trained, frozen, batch):
        outputs, _ = model.stateless_call(trained, frozen, batch, training=False)
        return jax.lax.psum(_stacked(task, task.batch_sums(outputs, batch)), DATA)

    step = jax.jit(
        placement.on_every_device(on_device, (REPLICATED, REPLICATED, SHARDED), REPLICATED)
    )

    def evaluation_step(batches):
        (batch,) = batches.take(1)
        return np.asarray(step(*values_of(model, placement), placement.global_batch(batch)))

    return evaluation_step


def values_of(model: keras.Model, placement: Placement) -> list[list[jax.Array]]:
    """The values of a model's trainable and other variables, on every device."""
    groups = model.trainable_variables, model.non_trainable_variables
    return [placement.put(group, [placement.whole] * len(group)) for group in groups]


def sums_and_gradients(
    run: "UpdateSettings",
    model: keras.Model,
    batch: Mapping[str, np.ndarray],
    rows: np.ndarray,
    step: int,
    loss_scale: float,
) -> tuple[np.ndarray, list[np.ndarray]]:
    """As `protocols.Engine.sums_and_gradients`, on one device."""
    groups = model.trainable_variables, model.non_trainable_variables
    values = [[np.asarray(variable.value) for variable in group] for group in groups]
    weights = np.array([batch[name].sum() for name in run.task.weights], np.float32)
    weights[~np.isfinite(weights)] = 1.0  # or every row would seem to be to blame
    chosen = {name: values[rows] for name, values in batch.items()}
    seeds = np.asarray(seeds_of_rows(run.seed, step, np.asarray(rows)))
    forward_backward = jax.jit(_make_forward_backward(run, model))
    gradients, sums = forward_backward(*values, chosen, weights, seeds, loss_scale)
    return np.asarray(sums), [np.asarray(gradient) for gradient in gradients]


def _stacked(task, sums):
    return jnp.stack([sums[name] for name in task.sums])


def _next_state(state, steps, results, input_wait):
    """The loop's state after some updates; sums are added up in 64 bits, which devices lack."""
    sums, since_saved = np.array(state.sums), np.array(state.sums_since_saved)
    in_a_row = state.skipped_in_a_row
    for step in range(steps):
        skipped = results["skipped"][step]
        in_a_row = in_a_row + 1 if skipped else 0
        if not skipped:
            sums, since_saved = sums + results["sums"][step], since_saved + results["sums"][step]
    return dataclasses.replace(
        state,
        sums=sums.tolist(),
        sums_since_saved=since_saved.tolist(),
        loss_scale=float(results["loss_scale"]),
        good_updates=int(results["good_updates"]),
        skipped_in_a_row=in_a_row,
        input_wait=input_wait,
        stop_requests=float(results["stop_requests"]),
        noise=results["noise"].tolist(),
    )
