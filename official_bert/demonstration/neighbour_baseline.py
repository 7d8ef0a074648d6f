"""Baselines for a model's scores: predictions of masked tokens from counts of the training text.

Both predict at the positions where the model is evaluated, from the same input:

- *word frequencies*: how often each token occurs anywhere;
- *neighbours*: how often it follows the token to the left, precedes the token to the right, and
  occurs between the two.

Both account for how masked tokens are shown (80 % [MASK], 10 % random, 10 % unchanged), so a
model's lead does not come from this knowledge.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from official_bert.data.instances import KEPT_SHARE, MASK_SHARE, RANDOM_SHARE


class NeighbourCounts:
    """The counts of a text, and the distributions of a token derived from them.

    With c the counts, x the token, l and r its neighbours:

        p(x)        = (c(x) + 1) / (Σ c + V)
        p(x | l)    = (c(l x) + t(l ·) p(x)) / (c(l ·) + t(l ·)), and p(x | r) likewise
        q(x | l, r) ∝ p(x | l) p(x | r) / p(x)
        p(x | l, r) = (c(l x r) + t(l · r) q(x | l, r)) / (c(l · r) + t(l · r))

    t is the number of different tokens seen in a context: the more there are, the less the counts
    are trusted (Witten and Bell 1991). An unseen context has the fallback's distribution.

    Args:
        documents: Iterable of documents, each a list of token ids.
        vocab_size: V; the pairs take 8 V² bytes.
    """

    def __init__(self, documents: Iterable[Sequence[int]], vocab_size: int):
        ids = [np.asarray(document, np.int64) for document in documents]
        pairs = np.concatenate([_runs(document, 2) for document in ids])
        triples = np.concatenate([_runs(document, 3) for document in ids])
        counts = np.bincount(np.concatenate(ids), minlength=vocab_size)
        self.frequencies = (counts + 1) / (counts.sum() + vocab_size)  # p(x), (V,)
        self._pairs = np.zeros((vocab_size, vocab_size), np.float32)  # (l, x)
        np.add.at(self._pairs, (pairs[:, 0], pairs[:, 1]), 1)
        left, token, right = triples.T
        places = (left * vocab_size + right) * vocab_size + token
        self._places, self._counts = np.unique(places, return_counts=True)

    def between(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """p(x | l, r) for n pairs of neighbours, two arrays of ids: (n, V)."""
        p = self.frequencies
        size = len(p)
        both = _mixed(self._pairs[left], p) * _mixed(self._pairs.T[right], p) / p
        both /= both.sum(1, keepdims=True)
        seen = np.zeros_like(both)
        first = (left * size + right) * size
        starts, stops = np.searchsorted(self._places, [first, first + size])
        for row, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            seen[row, self._places[start:stop] - first[row]] = self._counts[start:stop]
        return _mixed(seen, both)


def _runs(document, length):
    """All runs of `length` tokens of a document, (n, length)."""
    if len(document) < length:
        return np.zeros((0, length), np.int64)
    return np.lib.stride_tricks.sliding_window_view(document, length)


def _mixed(counts, fallback):
    """Each row of `counts` as a distribution, mixed with `fallback` by the number of kinds."""
    kinds = np.maximum((counts > 0).sum(1, keepdims=True), 1)  # an empty row becomes the fallback
    return (counts + kinds * fallback) / (counts.sum(1, keepdims=True) + kinds)


def evaluate(
    counts: NeighbourCounts, batches: Iterable[Mapping[str, np.ndarray]], mask_id: int
) -> dict[str, dict[str, float]]:
    """The scores of both predictions at all masked positions.

    Args:
        counts: `NeighbourCounts`.
        batches: The batches of the model's evaluation, in order.
        mask_id: The id of [MASK].

    Returns:
        {`word frequencies`, `neighbours`: {`loss` in nats, `accuracy`}}.
    """
    sums = {"word frequencies": np.zeros(2), "neighbours": np.zeros(2)}
    number = 0
    for batch in batches:
        rows, slots = np.nonzero(batch["masked_lm_weights"])
        at, labels = batch["masked_lm_positions"][rows, slots], batch["masked_lm_ids"][rows, slots]
        ids = batch["input_ids"].astype(np.int64)
        shown, left, right = (ids[rows, at + offset] for offset in (0, -1, 1))
        number += len(labels)
        for name, guess in (
            ("word frequencies", np.tile(counts.frequencies, (len(labels), 1))),
            ("neighbours", counts.between(left, right)),
        ):
            guess = _given_what_is_shown(guess, shown, mask_id)
            chosen = guess[np.arange(len(labels)), labels]
            sums[name] += -np.log(chosen).sum(), (guess.argmax(1) == labels).sum()
    return {
        name: {"loss": float(loss / number), "accuracy": float(hits / number)}
        for name, (loss, hits) in sums.items()
    }


def _given_what_is_shown(guess, shown, mask_id):
    """The predictions (n, V), by Bayes' rule, given the ids shown at masked positions, (n,)."""
    size = guess.shape[1]
    likelihood = np.full_like(guess, RANDOM_SHARE / size)
    likelihood[np.arange(len(shown)), shown] += KEPT_SHARE
    likelihood[shown == mask_id] += MASK_SHARE
    guess = guess * likelihood
    return guess / guess.sum(1, keepdims=True)
