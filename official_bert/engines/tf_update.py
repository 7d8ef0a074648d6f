"""One update of pre-training as a graph, and the sums that its losses and accuracies come from.

Every replica runs forward and backward over its micro-batches and adds the gradients up; they are
summed over the replicas, and the optimizer checks, clips and applies them. The losses are divided
by weights summed over the whole global batch, so the result depends neither on the number of
replicas nor on that of micro-batches.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from lamb_tf import telemetry
from official_bert import stacking
from official_bert.engines import distribution
from official_bert.model import fused
from official_bert.model.modeling import BertPretrainer, pretraining_sums
from official_bert.stages import DTYPE_POLICIES

# What a step sums up over the global batch, in this order; see `modeling.pretraining_sums`.
SUMS = (
    "masked_lm_loss",
    "masked_lm_correct",
    "masked_lm_weight",
    "next_sentence_loss",
    "next_sentence_correct",
    "next_sentence_weight",
    "tokens",
)
_WEIGHTS = ("masked_lm_weights", "example_weights")  # what the two losses are divided by
_DTYPES = {"fp32": tf.float32, "bf16": tf.bfloat16, "fp16": tf.float16}
# Dynamic loss scaling, for float16: halve at an overflow, double after so many good updates.
FIRST_LOSS_SCALE, MOST_LOSS_SCALE, GOOD_UPDATES_TO_DOUBLE = 2.0**15, 2.0**24, 2000


def first_state(run):
    """The loop's own state before the first step, as JSON values.

    `sums` and `input_wait`, the seconds for which a step waited for its batch, are those since the
    last line of the log, `sums_since_saved` those since the last checkpoint. `stop_requests` is 1
    if this process was asked to stop; the loop gives back the sum over all replicas, so that all
    workers stop after the same update. The others drive the loss scale and the decision to give up.
    """
    return {
        **new_window(),
        **new_interval(),
        "stop_requests": 0.0,
        "loss_scale": run.fixed_loss_scale or (FIRST_LOSS_SCALE if _scales(run) else 1.0),
        "good_updates": 0,
        "skipped_in_a_row": 0,
    }


def new_window():
    """The part of the state that begins anew after every line of the log."""
    return {"sums": [0.0] * len(SUMS), "input_wait": 0.0}


def new_interval():
    """The part of the state that begins anew with every checkpoint."""
    return {"sums_since_saved": [0.0] * len(SUMS)}


def metrics_from_sums(sums, use_next_sentence_label=True):
    """Means by name from a vector of `SUMS`: losses in nats, accuracies in [0, 1].

    NaN where nothing was summed up, as where every update of a window was skipped.
    """
    values = dict(zip(SUMS, np.asarray(sums, np.float64).tolist(), strict=True))
    tasks = ("masked_lm", "next_sentence") if use_next_sentence_label else ("masked_lm",)
    metrics = {}
    for task in tasks:
        weight = values[f"{task}_weight"] or np.nan
        metrics[f"{task}_loss"] = values[f"{task}_loss"] / weight
        metrics[f"{task}_accuracy"] = values[f"{task}_correct"] / weight
    metrics["loss"] = sum(metrics[f"{task}_loss"] for task in tasks)
    return metrics


def make_model_and_optimizer(run, stage):
    """The model of a stage and the optimizer of what trains in it, with their first values.

    Args:
        run: A `stages.Run`.
        stage: One of its stages.

    Returns:
        A `BertPretrainer` and a `lamb_tf.LAMB`, built. Make them in the strategy's scope.
    """
    depth = stage.depth or run.config.num_hidden_layers
    config = dataclasses.replace(run.config, num_hidden_layers=depth)
    model = BertPretrainer(config, seed=run.seed, dtype=DTYPE_POLICIES[run.dtype])
    for variable in model.weights:
        variable.trainable = _trains(variable.path, run, stage)
    optimizer = run.optimizer.make()
    telemetry.record(optimizer)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def _trains(path, run, stage):
    next_sentence_only = path.startswith(("bert/pooler/", "cls/seq_relationship/"))
    if next_sentence_only and not run.use_next_sentence_label:
        return False
    return stacking.trained(path, stage)


def make_training_loop(run, model, optimizer, strategy):
    """Several updates inside one graph call.

    Args:
        run: A `stages.Run`.
        model: The `BertPretrainer`, made in the strategy's scope.
        optimizer: The optimizer, built on the model's trainable variables.
        strategy: A `tf.distribute.Strategy`.

    Returns:
        A `TrainingLoop`.
    """
    replica_update = make_replica_update(run, model, optimizer)
    learning_rate = run.learning_rate()
    clock = tf.timestamp if distribution.has_clock(strategy) else lambda: tf.zeros((), tf.float64)

    @tf.autograph.experimental.do_not_convert
    def update(batch, step, state, asked_to_stop):
        optimizer.learning_rate.assign(learning_rate(step))
        skipped_before = tf.identity(optimizer.skipped_updates.value)
        arguments = (batch, step, state["loss_scale"], asked_to_stop)
        sums = strategy.reduce("SUM", strategy.run(replica_update, args=arguments), axis=None)
        state |= {"stop_requests": sums[-1]}
        sums = tf.cast(sums[:-1], tf.float64)
        skipped = tf.identity(optimizer.skipped_updates.value) > skipped_before
        adapts = _scales(run) and run.fixed_loss_scale is None
        return _next_state(state, sums, skipped, adapts)

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

    def __init__(self, loop):
        self._loop = loop

    def __call__(self, iterator, first_step, steps, state):
        """Does `steps` updates on batches of a distributed iterator.

        Takes and returns the state that `first_state` describes.
        """
        state = self._loop(iterator, tf.constant(first_step), tf.constant(steps), _tensors(state))
        return {name: value.numpy().tolist() for name, value in state.items()}

    def reductions(self, iterator, state):
        """The `distribution.Reductions` of one update, read off its graph."""
        arguments = (iterator, tf.constant(0), tf.constant(0), _tensors(state))
        return distribution.reductions(self._loop.get_concrete_function(*arguments))


def _tensors(state):
    return {
        "sums": tf.constant(state["sums"], tf.float64),
        "sums_since_saved": tf.constant(state["sums_since_saved"], tf.float64),
        "loss_scale": tf.constant(state["loss_scale"], tf.float32),
        "good_updates": tf.constant(state["good_updates"]),
        "skipped_in_a_row": tf.constant(state["skipped_in_a_row"]),
        "input_wait": tf.constant(state["input_wait"], tf.float64),
        "stop_requests": tf.constant(state["stop_requests"], tf.float32),
    }


def make_replica_update(run, model, optimizer):
    """What each replica does for one update, to be called in `strategy.run`.

    Args:
        run: A `stages.Run`.
        model: The `BertPretrainer`, made in the strategy's scope.
        optimizer: The optimizer, built on the model's trainable variables.

    Returns:
        A function `replica_update(batch, step, loss_scale, asked_to_stop)` of this replica's rows
        of the batch that makes the update and returns the rows' `SUMS`, followed by
        `asked_to_stop`, a number.
    """
    forward_backward = _make_forward_backward(run, model)
    if run.enable_xla:
        forward_backward = tf.function(forward_backward, jit_compile=True)

    @tf.autograph.experimental.do_not_convert
    def replica_update(batch, step, loss_scale, asked_to_stop):
        weights = _global_weights(batch)
        gradients, sums = _accumulate(forward_backward, batch, weights, step, loss_scale, run)
        gradients = distribution.sum_over_replicas(gradients, _DTYPES[run.reduce_dtype])
        gradients = [gradient / loss_scale for gradient in gradients] if _scales(run) else gradients
        optimizer.apply(gradients, model.trainable_variables, skip_gradients_aggregation=True)
        return tf.concat([sums, [asked_to_stop]], 0)

    return replica_update


def make_evaluation_step(model, strategy):
    """A function that returns the `SUMS` of the next batch of a distributed iterator."""

    @tf.autograph.experimental.do_not_convert
    def replica_sums(batch):
        return _stack_sums(model(batch, training=False), batch)

    @tf.function
    def evaluation_step(iterator):
        sums = strategy.run(replica_sums, args=(next(iterator),))
        return strategy.reduce("SUM", sums, axis=None)

    return evaluation_step


def micro_batches(run, rows, replicas):
    """Numbers of the rows of each micro-batch of a global batch, in the order of `seed_of_part`.

    Args:
        run: A `stages.Run`.
        rows: Number of rows in the global batch.
        replicas: Number of replicas that share it: each takes a run of neighbouring rows.
    """
    count = run.gradient_accumulation_steps
    for of_replica in np.split(np.arange(rows), replicas):
        yield from (of_replica[index::count] for index in range(count))


def non_finite(run, model, batch, rows, step, part, loss_scale):
    """What is not finite in a micro-batch: names of losses and of variables with such a gradient.

    The arguments are those of `sums_and_gradients`.
    """
    sums, gradients = sums_and_gradients(run, model, batch, rows, step, part, loss_scale)
    losses = [name for name, value in zip(SUMS, sums) if not np.isfinite(value)]
    pairs = zip(model.trainable_variables, gradients, strict=True)
    return losses, [v.path for v, gradient in pairs if not np.isfinite(gradient.numpy()).all()]


def sums_and_gradients(run, model, batch, rows, step, part, loss_scale):
    """The `SUMS` of a micro-batch, and the gradients of its share of the loss, computed once more.

    Args:
        run: A `stages.Run`.
        model: The `BertPretrainer`.
        batch: The step's global batch, as a dictionary of arrays.
        rows: Numbers of the micro-batch's rows, or of some of them; see `micro_batches`.
        step: The step.
        part: Number of the micro-batch, counted over all replicas.
        loss_scale: The loss scale at that step.
    """
    weights = np.array([batch[name].sum() for name in _WEIGHTS])
    weights[~np.isfinite(weights)] = 1.0  # or every row would seem to be to blame
    chosen = {name: tf.constant(values[rows]) for name, values in batch.items()}
    seed = seed_of_part(run, step, part)
    gradients, sums = _make_forward_backward(run, model)(chosen, weights, seed, loss_scale)
    return sums.numpy(), gradients


def loss_scale_before_skip(run, loss_scale):
    """The loss scale at a step whose update was skipped, from that after it."""
    adapts = _scales(run) and run.fixed_loss_scale is None
    return min(2 * loss_scale, MOST_LOSS_SCALE) if adapts and loss_scale > 1 else loss_scale


def _scales(run):
    return run.dtype == "fp16"


def _make_forward_backward(run, model):
    variables = model.trainable_variables

    def forward_backward(batch, weights, dropout_seed, loss_scale):
        """Gradients of this micro-batch's share of the loss, times its scale; and its sums."""
        with tf.GradientTape() as tape:
            outputs = model(batch, training=True, dropout_seed=dropout_seed)
            sums = pretraining_sums(outputs, batch)
            loss = tf.math.divide_no_nan(sums["masked_lm_loss"], weights[0])
            if run.use_next_sentence_label:
                loss += tf.math.divide_no_nan(sums["next_sentence_loss"], weights[1])
            if _scales(run):
                loss *= loss_scale
        gradients = tape.gradient(loss, variables)
        dense = [  # of known shape, without which they cannot be put into buckets
            tf.ensure_shape(tf.convert_to_tensor(gradient), variable.shape)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        return dense, _stack_sums(outputs, batch, sums)

    return forward_backward


def _stack_sums(outputs, batch, sums=None):
    sums = dict(sums or pretraining_sums(outputs, batch))
    sums["tokens"] = tf.cast(tf.reduce_sum(batch["input_mask"]), tf.float32)
    return tf.stack([sums[name] for name in SUMS])


def _global_weights(batch):
    """Σ of the masked-LM and of the example weights over the global batch: shape (2,)."""
    local = [tf.reduce_sum(batch[name]) for name in _WEIGHTS]
    return tf.distribute.get_replica_context().all_reduce("SUM", tf.stack(local))


def seed_of_part(run, step, part):
    """The seed of dropout in a part of a step's batch: int32 of shape (2,), no two of a run equal.

    Args:
        run: A `stages.Run`.
        step: The step.
        part: Number of the micro-batch, counted over all replicas.
    """
    first, second = fused.shuffled(*tf.unstack(tf.convert_to_tensor([step, part], tf.int32)))
    return tf.stack([first ^ run.seed, second])


def _accumulate(forward_backward, batch, weights, step, loss_scale, run):
    """Gradients and sums added up over this replica's micro-batches."""
    count = run.gradient_accumulation_steps
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group

    def micro_batch(index):
        rows = {  # as in `micro_batches`: each is a sample of the replica's rows
            name: tf.reshape(value, (-1, count, *value.shape[1:]))[:, index]
            for name, value in batch.items()
        }
        seed = seed_of_part(run, step, replica * count + index)
        return forward_backward(rows, weights, seed, loss_scale)

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
    good = tf.where(skipped, 0, state["good_updates"] + 1)
    scale = state["loss_scale"]
    if adapts_loss_scale:
        doubles = good == GOOD_UPDATES_TO_DOUBLE
        scale = tf.where(skipped, scale / 2, tf.where(doubles, scale * 2, scale))
        scale = tf.clip_by_value(scale, 1.0, MOST_LOSS_SCALE)
        good = tf.where(doubles, 0, good)
    sums = tf.where(skipped, tf.zeros_like(sums), sums)
    return {
        "sums": state["sums"] + sums,
        "sums_since_saved": state["sums_since_saved"] + sums,
        "loss_scale": scale,
        "good_updates": good,
        "skipped_in_a_row": tf.where(skipped, state["skipped_in_a_row"] + 1, 0),
        "input_wait": state["input_wait"],
        "stop_requests": state["stop_requests"],
    }
