"""How many tokens are to be guessed, and which: pieces, words, runs of words."""

from random import Random

import numpy as np
import pytest
import tensorflow as tf

from official_bert.data import masking


def test_words_are_chosen_whole_and_never_too_many():
    words = [[1, 2, 3], [4], [5, 6], [7], [8, 9, 10, 11], [12]]
    for seed in range(200):
        chosen = masking.choose(words, 5, Random(seed))
        assert all(group in words for group in chosen)
        positions = [p for group in chosen for p in group]
        assert len(positions) == len(set(positions)) <= 5
        left = [word for word in words if word not in chosen]
        assert all(len(positions) + len(word) > 5 for word in left)  # nothing that would fit


def test_the_callers_list_is_left_alone():
    words = [[1], [2], [3]]
    masking.choose(words, 2, Random(1))
    assert words == [[1], [2], [3]]


def test_ngrams_favour_short_runs():
    words = [[n] for n in range(1, 1001)]
    sizes = [len(g) for g in masking.choose(words, 300, Random(1), max_ngram_size=3)]
    shares = [sizes.count(n) / len(sizes) for n in (1, 2, 3)]
    assert shares == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.1)
    chosen = [p for group in masking.choose(words, 300, Random(1), 3) for p in group]
    assert len(chosen) == len(set(chosen)) == 300


def test_the_number_to_predict_rounds_half_to_even_as_python_does():
    cases = [(128, 20, 19), (128, 10, 10), (3, 20, 1), (30, 20, 4), (50, 20, 8)]
    for length, most, expected in cases:
        assert masking.number_to_predict(length, 0.15, most) == expected


def test_of_the_chosen_ones_80_percent_are_masked_10_are_kept_and_10_are_random_words():
    ids, words = list(range(1_000, 31_000)), list(range(900))
    replaced = masking.corrupt(ids, range(30_000), 7, words, Random(1))
    assert replaced == dict(enumerate(range(1_000, 31_000)))
    fate, word = np.random.default_rng(1).uniform(size=(2, 30_000))
    given = np.arange(1_000, 31_000), 7, (word * 900).astype(int), fate
    arrays, tensors = masking.corrupted(*given, np.where), masking.corrupted(*given, tf.where)
    assert np.array_equal(tensors, arrays)
    for found in (np.array(ids), arrays):
        masked, kept = found == 7, found == np.arange(1_000, 31_000)
        random_word = found[~masked & ~kept]
        assert masked.mean() == pytest.approx(0.8, abs=0.01)
        assert kept.mean() == pytest.approx(0.1, abs=0.01)
        assert random_word.max() < 900
        assert random_word.mean() == pytest.approx(450, rel=0.05)
