"""Held-out evaluation: what a model predicts, beside what guessing would get."""

import numpy as np

from official_bert import distribution
from official_bert.pretraining_step import SUMS, make_evaluation_step, metrics_from_sums


def evaluate(model, strategy, open_batches, use_next_sentence_label=True):
    """Losses and accuracies over all held-out examples, each counted once.

    Args:
        model: A `BertPretrainer`, made in the strategy's scope.
        strategy: A `tf.distribute.Strategy`.
        open_batches: Function of (shard index, number of shards) that returns `Batches` in
            order, that is with `shuffle=False`.
        use_next_sentence_label: Whether to report the next-sentence task.

    Returns:
        Dictionary of `masked_lm_loss` (nats), `masked_lm_accuracy`, `next_sentence_loss`,
        `next_sentence_accuracy`, `loss` (their sum), and `most_frequent_token_accuracy`: what
        always guessing the commonest of the held-out labels would get.
    """
    whole = open_batches(0, 1)
    step = make_evaluation_step(model, strategy)
    iterator = iter(distribution.distribute(strategy, open_batches, range(whole.num_batches)))
    sums = np.zeros(len(SUMS))
    for _ in range(whole.num_batches):
        sums += step(iterator).numpy()
    metrics = metrics_from_sums(sums, use_next_sentence_label)
    return {**metrics, "most_frequent_token_accuracy": most_frequent_token_accuracy(whole)}


def most_frequent_token_accuracy(batches):
    """The share of masked positions whose label is the commonest one."""
    counts = np.zeros(1)
    for step in range(batches.num_batches):
        batch = batches[step]
        ids, weights = batch["masked_lm_ids"].ravel(), batch["masked_lm_weights"].ravel()
        more = np.bincount(ids, weights, minlength=len(counts))
        more[: len(counts)] += counts
        counts = more
    return float(counts.max() / max(counts.sum(), 1.0))


def describe(metrics):
    """The metrics as one line of text."""
    text = (
        f"masked LM loss {metrics['masked_lm_loss']:.3f}, accuracy "
        f"{metrics['masked_lm_accuracy']:.1%} (most frequent token: "
        f"{metrics['most_frequent_token_accuracy']:.1%})"
    )
    if "next_sentence_accuracy" in metrics:
        text += f"; next sentence {metrics['next_sentence_accuracy']:.1%}"
    return text
