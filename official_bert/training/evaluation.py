"""Held-out evaluation: what a model predicts, beside what guessing would get."""

import numpy as np

from official_bert.engines import distribution
from official_bert.tasks.pretraining_step import SUMS, make_evaluation_step, metrics_from_sums


class Evaluator:
    """Evaluates one model, as it is then; its graph is traced once for each shape of batches.

    Args:
        model: A `BertPretrainer`, made in the strategy's scope.
        strategy: A `tf.distribute.Strategy`.
        use_next_sentence_label: Whether to report the next-sentence task.
    """

    def __init__(self, model, strategy, use_next_sentence_label=True):
        self._strategy = strategy
        self._vocab_size = model.config.vocab_size
        self._use_next_sentence_label = use_next_sentence_label
        self._step = make_evaluation_step(model, strategy)

    def __call__(self, open_batches):
        """Losses and accuracies over all held-out examples, each read and counted once.

        Args:
            open_batches: Function of (shard index, number of shards) that returns the
                `input_pipeline.Batches` of that shard, in order, that is with `shuffle=False`.
                It is called for every input pipeline of this process: one, or on a TPU one per
                host.

        Returns:
            Dictionary of `masked_lm_loss` (nats), `masked_lm_accuracy`, `next_sentence_loss`,
            `next_sentence_accuracy`, `loss` (their sum), `most_frequent_token_accuracy`: what
            always guessing the commonest of the held-out labels would get, and `examples`: how
            many were counted.
        """
        counted = []

        def open_counted(*shard):
            counted.append(_LabelCounts(open_batches(*shard), self._vocab_size))
            return counted[-1]

        steps = range(open_batches(*distribution.shard(self._strategy)).num_batches)
        iterator = iter(distribution.distribute(self._strategy, open_counted, steps))
        sums = np.zeros(len(SUMS))
        for _ in steps:
            sums += self._step(iterator).numpy()
        counts = sum(part.counts for part in counted)
        counts = distribution.from_all_workers(self._strategy, counts).sum(0)
        return {
            **metrics_from_sums(sums, self._use_next_sentence_label),
            "most_frequent_token_accuracy": float(counts.max() / max(counts.sum(), 1.0)),
            "examples": int(sums[SUMS.index("next_sentence_weight")]),
        }


class _LabelCounts:
    """Hands out batches and counts how often each token is a label in them."""

    def __init__(self, batches, vocab_size):
        self._batches, self._seen = batches, set()
        self.counts = np.zeros(vocab_size)

    def __getitem__(self, step):
        batch = self._batches[step]
        if step not in self._seen:  # the first one is also asked for to see its shape
            self._seen.add(step)
            ids, weights = batch["masked_lm_ids"].ravel(), batch["masked_lm_weights"].ravel()
            self.counts += np.bincount(ids, weights, minlength=len(self.counts))
        return batch


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
