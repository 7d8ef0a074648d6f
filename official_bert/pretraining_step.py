"""One update of pre-training as a graph, and the sums that its losses and accuracies come from.

Every replica runs forward and backward over its micro-batches and adds the gradients up; the
optimizer then sums them over the replicas, checks, clips and applies them. The losses are divided
by weights summed over the whole global batch, so the result depends neither on the number of
replicas nor on that of micro-batches.
"""

import numpy as np
import tensorflow as tf

from official_bert.modeling import pretraining_sums

# What a step sums up over the global batch, in this order; see `modeling.pretraining_sums`.
SUMS = (
    "masked_lm_loss",
    "masked_lm_correct",
    "masked_lm_weight",
    "next_sentence_loss",
    "next_sentence_correct",
    "next_sentence_weight",
)
_MASKED_LM_WEIGHT, _NEXT_SENTENCE_WEIGHT = SUMS.index(SUMS[2]), SUMS.index(SUMS[5])


def metrics_from_sums(sums, use_next_sentence_label=True):
    """Means by name from a vector of `SUMS`: losses in nats, accuracies in [0, 1]."""
    values = dict(zip(SUMS, np.asarray(sums, np.float64).tolist(), strict=True))
    tasks = ("masked_lm", "next_sentence") if use_next_sentence_label else ("masked_lm",)
    metrics = {}
    for task in tasks:
        weight = values[f"{task}_weight"] or 1.0
        metrics[f"{task}_loss"] = values[f"{task}_loss"] / weight
        metrics[f"{task}_accuracy"] = values[f"{task}_correct"] / weight
    metrics["loss"] = sum(metrics[f"{task}_loss"] for task in tasks)
    return metrics


def make_training_loop(run, model, optimizer, strategy, enable_xla=False):
    """Several updates inside one graph call.

    Args:
        run: A `training.Run`.
        model: The `BertPretrainer`, made in the strategy's scope.
        optimizer: The optimizer, built on the model's trainable variables.
        strategy: A `tf.distribute.Strategy`.
        enable_xla: Whether forward and backward pass are compiled by XLA.

    Returns:
        A function `loop(iterator, first_step, steps, sums)` that does `steps` updates on batches
        of the distributed `iterator` and returns `sums` (float64, as `SUMS`) plus theirs. Adding
        step by step makes the result independent of how steps are cut into calls.
    """
    forward_backward = _make_forward_backward(run, model)
    if enable_xla:
        forward_backward = tf.function(forward_backward, jit_compile=True)

    def replica_update(batch, step):
        weights = _global_weights(batch)
        gradients, sums = _accumulate(forward_backward, batch, weights, step, run)
        optimizer.apply(gradients, model.trainable_variables)
        return sums

    @tf.function
    def loop(iterator, first_step, steps, sums):
        for offset in tf.range(steps):
            replica_sums = strategy.run(
                tf.autograph.experimental.do_not_convert(replica_update),
                args=(next(iterator), first_step + offset),
            )
            step_sums = strategy.reduce("SUM", replica_sums, axis=None)
            sums += tf.cast(step_sums, tf.float64)
        return sums

    return lambda iterator, first_step, steps, sums: loop(
        iterator, tf.constant(first_step), tf.constant(steps), tf.constant(sums, tf.float64)
    )


def make_evaluation_step(model, strategy):
    """A function that returns the `SUMS` of the next batch of a distributed iterator."""

    def replica_sums(batch):
        sums = pretraining_sums(model(batch, training=False), batch)
        return tf.stack([sums[name] for name in SUMS])

    @tf.function
    def evaluation_step(iterator):
        sums = strategy.run(
            tf.autograph.experimental.do_not_convert(replica_sums), args=(next(iterator),)
        )
        return strategy.reduce("SUM", sums, axis=None)

    return evaluation_step


def _make_forward_backward(run, model):
    variables = model.trainable_variables

    def forward_backward(batch, weights, dropout_seed):
        """Gradients of this micro-batch's share of the loss, and its sums."""
        with tf.GradientTape() as tape:
            outputs = model(batch, training=True, dropout_seed=dropout_seed)
            sums = pretraining_sums(outputs, batch)
            loss = tf.math.divide_no_nan(sums["masked_lm_loss"], weights[0])
            if run.use_next_sentence_label:
                loss += tf.math.divide_no_nan(sums["next_sentence_loss"], weights[1])
        gradients = tape.gradient(loss, variables)
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return dense, tf.stack([sums[name] for name in SUMS])

    return forward_backward


def _global_weights(batch):
    """Σ of the masked-LM and of the example weights over the global batch: shape (2,)."""
    local = [tf.reduce_sum(batch[name]) for name in ("masked_lm_weights", "example_weights")]
    return tf.distribute.get_replica_context().all_reduce("SUM", tf.stack(local))


def _accumulate(forward_backward, batch, weights, step, run):
    """Gradients and sums added up over this replica's micro-batches."""
    count = run.gradient_accumulation_steps
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    step_seed = tf.random.experimental.stateless_fold_in(tf.constant([run.seed, 0]), step)

    def micro_batch(index):
        rows = {  # a strided cut, so that every micro-batch is a sample of the replica's rows
            name: tf.reshape(value, (-1, count, *value.shape[1:]))[:, index]
            for name, value in batch.items()
        }
        seed = tf.random.experimental.stateless_fold_in(step_seed, replica * count + index)
        return forward_backward(rows, weights, seed)

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
