"""Baselines from counts at masked positions: their definition, and their use of what is shown."""

import collections
import itertools

import numpy as np
import pytest

from official_bert.demonstration import neighbour_baseline
from official_bert.demonstration.neighbour_baseline import NeighbourCounts

SIZE, MASK = 12, 4


def some_documents(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(5, SIZE, rng.integers(0, 30)).tolist() for _ in range(20)]


def by_the_definition(documents, left, right):
    """p(x | l, r) token by token, in Python's own arithmetic."""
    once, pairs, triples = collections.Counter(), collections.Counter(), collections.Counter()
    for document in documents:
        once.update(document)
        pairs.update(itertools.pairwise(document))
        triples.update(zip(document, document[1:], document[2:]))
    p = [(once[x] + 1) / (once.total() + SIZE) for x in range(SIZE)]

    def mixed(counts, fallback):
        kinds = max(1, sum(count > 0 for count in counts))
        return [(c + kinds * f) / (sum(counts) + kinds) for c, f in zip(counts, fallback)]

    from_left = mixed([pairs[left, x] for x in range(SIZE)], p)
    from_right = mixed([pairs[x, right] for x in range(SIZE)], p)
    q = [a * b / c for a, b, c in zip(from_left, from_right, p)]
    return mixed([triples[left, x, right] for x in range(SIZE)], [each / sum(q) for each in q])


def test_the_distribution_between_two_neighbours_is_the_one_of_the_definition():
    documents = some_documents()
    left, right = np.meshgrid(range(SIZE), range(SIZE))
    left, right = left.ravel(), right.ravel()
    found = NeighbourCounts(documents, SIZE).between(left, right)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-6)
    for row, l, r in zip(found, left.tolist(), right.tolist()):  # noqa: E741
        np.testing.assert_allclose(row, by_the_definition(documents, l, r), rtol=1e-5)


def batch_of(sequences, positions, shown):
    """One batch in which each of `sequences` has one masked position, shown as another token."""
    ids = np.array(sequences, np.int32)
    rows, positions = np.arange(len(ids)), np.array(positions)
    labels = ids[rows, positions]
    ids[rows, positions] = shown
    weights = np.ones((len(ids), 2), np.float32) * [1, 0]  # the second slot is padding
    return {
        "input_ids": ids,
        "masked_lm_positions": np.stack([positions, 0 * positions], 1),
        "masked_lm_ids": np.stack([labels, 0 * labels], 1),
        "masked_lm_weights": weights,
    }


def test_a_text_in_which_the_neighbours_decide_is_guessed_and_word_frequencies_are_not_enough():
    circle = list(range(5, SIZE))
    counts = NeighbourCounts([circle * 20], SIZE)
    sequences = [[2, *(circle * 2)[start : start + 5], 3] for start in range(7)]
    batches = [batch_of(sequences, [3] * 7, shown=MASK)]
    scores = neighbour_baseline.evaluate(counts, batches, MASK)
    assert scores["neighbours"]["accuracy"] == 1
    assert scores["neighbours"]["loss"] < 0.1
    assert scores["word frequencies"]["accuracy"] == pytest.approx(1 / 7)
    assert scores["word frequencies"]["loss"] == pytest.approx(np.log(7), rel=0.1)


def test_a_token_that_is_shown_is_believed_as_far_as_masking_shows_tokens_as_they_are():
    counts = NeighbourCounts([list(range(5, SIZE)) * 3], SIZE)
    p = counts.frequencies
    for label in (7, 8):  # as it is, and a random one
        batches = [batch_of([[2, 6, label, 9, 3]], [2], shown=7)]
        scores = neighbour_baseline.evaluate(counts, batches, MASK)["word frequencies"]
        likelihood = np.full(SIZE, 0.1 / SIZE)
        likelihood[7] += 0.1
        posterior = p * likelihood / (p * likelihood).sum()
        assert scores["loss"] == pytest.approx(-np.log(posterior[label]), rel=1e-6)
        assert scores["accuracy"] == (label == 7)
