"""Masks made during training follow the rules of static ones; lengths do not reveal the label."""

import hashlib
from random import Random

import numpy as np
import pytest
from small_text import topics

from official_bert.data import corpus, tokenization
from official_bert.data.dynamic_masking import (
    Draws,
    DynamicMasking,
    NumPy,
    Rows,
    _Words,
    permutation,
)
from official_bert.data.instances import Settings, sequences
from official_bert.data.parsed_records import Sequences

LENGTH, PREDICTIONS = 64, 10


def key(seed) -> bytes:
    return hashlib.blake2b(repr(seed).encode(), digest_size=16).digest()


def make(mask: DynamicMasking, pool: Sequences, numbers: np.ndarray, seed) -> dict:
    low, high = np.zeros_like(numbers), np.full_like(numbers, len(pool.documents))
    return mask(pool, Rows(numbers, low, high), Draws([key(seed)], len(numbers)))


def sequences_of(small_text, length: int, topics_per_document: int = 1) -> Sequences:
    encode = tokenization.SentenceEncoder(tokenization.load(small_text.vocab_file))
    runs, documents, texts = [], [], topics(40)
    for number in range(0, len(texts), topics_per_document):
        lines = [line for text in texts[number : number + topics_per_document] for line in text]
        split = corpus.sentences(corpus.Document(lines, True))
        document = [ids for ids in encode(split) if ids]
        made = list(sequences(document, Settings(max_seq_length=length), Random(number)))
        runs += made
        documents += [number] * len(made)
    lengths = np.array([n for _, sentences in runs for n in sentences])
    return Sequences(
        np.array([token for ids, _ in runs for token in ids], np.int32),
        np.cumsum([0, *(len(ids) for ids, _ in runs)]),
        np.cumsum(lengths) - lengths,
        np.cumsum([0, *(len(sentences) for _, sentences in runs)]),
        np.array(documents),
    )


@pytest.fixture(scope="module")
def pool(small_text) -> Sequences:
    return sequences_of(small_text, LENGTH)


def masking(small_text, **options) -> DynamicMasking:
    vocabulary = tokenization.read_vocabulary(small_text.vocab_file)
    options = {
        "max_seq_length": LENGTH,
        "max_predictions": PREDICTIONS,
        "masked_lm_prob": 0.15,
        "whole_words": False,
        "max_ngram_size": 1,
        "next_sentence": True,
        "continues_a_word": np.array([token.startswith("##") for token in vocabulary]),
        "cls": vocabulary["[CLS]"],
        "sep": vocabulary["[SEP]"],
        "mask": vocabulary["[MASK]"],
    } | options
    return DynamicMasking(**options)


def originals(batch) -> np.ndarray:
    ids = batch["input_ids"].copy()
    row, at = np.nonzero(batch["masked_lm_weights"])
    ids[row, batch["masked_lm_positions"][row, at]] = batch["masked_lm_ids"][row, at]
    return ids


WAYS = [
    {},
    {"next_sentence": False},
    {"whole_words": True},
    {"whole_words": True, "max_ngram_size": 3},
    {"masked_lm_prob": 0.4, "max_predictions": 30},
]


@pytest.mark.parametrize("way", WAYS)
def test_examples_keep_the_rules(pool, small_text, way):
    mask = masking(small_text, **way)
    rows = np.arange(len(pool.documents))
    batch = make(mask, pool, rows, 1)
    ids, lengths = originals(batch), batch["input_mask"].sum(1)
    inside = np.arange(LENGTH) < lengths[:, None]
    assert np.array_equal(batch["input_mask"], inside)
    assert not ids[~inside].any()
    assert (ids[:, 0] == mask.cls).all()
    assert (ids[rows, lengths - 1] == mask.sep).all()
    assert ((ids == mask.sep).sum(1) == (2 if mask.next_sentence else 1)).all()
    weights, positions = batch["masked_lm_weights"], batch["masked_lm_positions"]
    number = np.minimum(mask.max_predictions, np.maximum(1, np.rint(lengths * mask.masked_lm_prob)))
    assert (weights.sum(1) <= number).all()
    assert (weights.sum(1) == number).mean() > (0.9 if mask.whole_words else 0.999)
    real = weights == 1
    assert (np.diff(positions, axis=1)[real[:, 1:]] > 0).all()
    labels = np.take_along_axis(ids, positions, 1)
    assert np.array_equal(batch["masked_lm_ids"], np.where(real, labels, 0))
    assert not np.isin(labels[real], (mask.cls, mask.sep)).any()
    seen = np.take_along_axis(batch["input_ids"], positions, 1)[real]
    assert (seen == mask.mask).mean() == pytest.approx(0.8, abs=0.03)
    assert (seen == labels[real]).mean() == pytest.approx(0.1, abs=0.03)
    if mask.whole_words:
        chosen = np.zeros((len(rows), LENGTH), bool)
        row, at = np.nonzero(real)
        chosen[row, positions[row, at]] = True
        continues = mask.continues_a_word[ids[:, 1:]] & (ids[:, :-1] != mask.sep) & inside[:, 1:]
        continues[:, 0] = False
        assert (chosen[:, 1:] == chosen[:, :-1])[continues].all()


def test_every_token_but_the_special_ones_is_masked_equally_often(pool, small_text):
    mask = masking(small_text, next_sentence=False)
    rows = np.flatnonzero(np.diff(pool.token_splits) == LENGTH - 3)[:50]
    counts = np.zeros((len(rows), LENGTH))
    for trial in range(400):
        batch = make(mask, pool, rows, trial)
        row, at = np.nonzero(batch["masked_lm_weights"])
        np.add.at(counts, (row, batch["masked_lm_positions"][row, at]), 1)
    rate = counts.mean(0) / 400
    assert rate[0] == rate[LENGTH - 2] == 0
    assert rate[1 : LENGTH - 2] == pytest.approx(9 / 61, abs=0.02)


def test_pairs_are_real_or_of_another_document_and_equally_long(pool, small_text):
    mask = masking(small_text)
    rows = np.flatnonzero(np.diff(pool.sentence_splits) > 1)
    batch = make(mask, pool, rows, 2)
    is_random = batch["next_sentence_labels"].astype(bool)
    assert is_random.mean() == pytest.approx(0.5, abs=0.06)
    ids, segments = originals(batch), batch["segment_ids"]
    text = [row[row > 4].tolist() for row in ids]
    for row, tokens, random_next in zip(rows, text, is_random, strict=True):
        start, stop = pool.token_splits[row : row + 2]
        record = [t for t in pool.tokens[start:stop].tolist() if t > 4]
        assert (tokens == record[: len(tokens)]) != random_next
    lengths = [segments[is_random == label].sum(1).mean() for label in (False, True)]
    assert lengths[1] == pytest.approx(lengths[0], rel=0.1)


def test_where_a_second_part_ends_does_not_tell_whether_it_is_random(pool, small_text):
    mask = masking(small_text)
    rows = np.flatnonzero(np.diff(pool.sentence_splits) > 1)
    full_stop = tokenization.read_vocabulary(small_text.vocab_file)["."]
    last = pool.tokens[pool.token_splits[rows + 1] - 1]
    assert (last == full_stop)[np.diff(pool.token_splits)[rows] < LENGTH - 3].mean() > 0.15
    ends = {False: [], True: []}
    for trial in range(8):
        batch = make(mask, pool, rows, trial)
        ids, lengths = originals(batch), batch["input_mask"].sum(1)
        at_end = ids[np.arange(len(rows)), lengths - 2] == full_stop
        for label in ends:
            ends[label].extend(at_end[batch["next_sentence_labels"] == label])
    assert np.mean(ends[False]) == pytest.approx(np.mean(ends[True]), abs=0.015)


def test_a_row_of_one_sentence_is_split_within_it_for_both_labels(pool, small_text):
    mask = masking(small_text)
    rows = np.flatnonzero(np.diff(pool.sentence_splits) == 1)
    rows = np.repeat(rows[np.diff(pool.token_splits)[rows] > 1], 20)
    batch = make(mask, pool, rows, 3)
    is_random = batch["next_sentence_labels"].astype(bool)
    assert is_random.mean() == pytest.approx(0.5, abs=0.05)
    ids, segments, lengths = originals(batch), batch["segment_ids"], batch["input_mask"].sum(1)
    second = segments.sum(1) - 1
    first = lengths - second - 3
    assert first.min() > 0
    assert second.min() > 0
    inside = np.arange(LENGTH) < lengths[:, None]
    for row, tokens, label in zip(rows, np.where(inside, ids, 0), is_random, strict=True):
        record = pool.tokens[slice(*pool.token_splits[row : row + 2])].tolist()
        tokens = tokens[(tokens != mask.cls) & (tokens != mask.sep) & (tokens != 0)].tolist()
        assert (tokens == record[: len(tokens)]) >= (not label)
    begins_a_word = ~mask.continues_a_word[ids[np.arange(len(rows)), first + 2]]
    assert begins_a_word.mean() > 0.95


def test_of_runs_that_share_a_word_the_first_one_drawn_is_taken():
    rng = np.random.default_rng(5)
    rows, length, drawn, longest = 40, 30, 12, 3
    maskable, starts = rng.random((rows, length)) < 0.9, rng.random((rows, length)) < 0.6
    maskable[:, 0] = False  # [CLS]
    words = _Words(NumPy, maskable, starts, longest)
    first = rng.integers(0, 5, (rows, drawn))
    size = rng.integers(1, longest + 1, (rows, drawn))
    words.take_first(first, size, np.full(rows, length))
    taken = words.taken_positions()
    for row in range(rows):
        cut_off = np.r_[False, ~maskable[row, :-1]]
        begins = maskable[row] & (starts[row] | cut_off)
        word = np.cumsum(begins) - 1
        runs = [set(range(f, f + n)) for f, n in zip(first[row], size[row], strict=True)]
        free = [run for n, run in enumerate(runs) if run.isdisjoint(set().union(*runs[:n]))]
        expected = sorted(set().union(*free))
        inside = maskable[row]
        assert np.array_equal(taken[row][inside], np.isin(word, expected)[inside])


def test_a_record_of_one_token_makes_an_example(pool, small_text):
    short = Sequences(
        np.array([50, 51, 52, 53], np.int32),
        np.array([0, 3, 4]),
        np.array([0, 1, 3]),
        np.array([0, 2, 3]),
        np.array([0, 1]),
    )
    batch = make(masking(small_text), short, np.array([1, 1, 1]), 4)
    assert batch["next_sentence_labels"].tolist() == [1, 1, 1]
    assert batch["input_mask"].sum(1).tolist() == [5, 5, 5]
    assert originals(batch)[:, 1].tolist() == [53, 53, 53]


def best_auc_from_lengths(first: np.ndarray, second: np.ndarray, labels: np.ndarray) -> float:
    """Area under the ROC curve of the likelihood ratio of (len_a, len_b), and so of their total.

    The ratio is estimated on every other example and tried on the rest.
    """
    pair = first * 1000 + second
    seen, tried = np.arange(len(pair)) % 2 == 0, np.arange(len(pair)) % 2 == 1
    count = np.bincount(pair[seen], minlength=pair.max() + 1)
    random = np.bincount(pair[seen], labels[seen], minlength=pair.max() + 1)
    share = ((random + labels.mean()) / (count + 1))[pair[tried]]
    _, place, ties = np.unique(share, return_inverse=True, return_counts=True)
    rank = (np.cumsum(ties) - (ties - 1) / 2)[place]
    positive = labels[tried] == 1
    n1, n0 = positive.sum(), (~positive).sum()
    return (rank[positive].sum() - n1 * (n1 + 1) / 2) / (n0 * n1)


@pytest.mark.parametrize("length", [64, 128])
def test_the_lengths_of_the_parts_do_not_tell_the_label(small_text, length):
    pool, mask = sequences_of(small_text, length), masking(small_text, max_seq_length=length)
    rows = np.arange(len(pool.documents))
    found = []
    # 100,000 examples to try on: the area has a standard deviation of 0.002 there.
    for trial in range(200_000 // len(rows)):
        batch = make(mask, pool, rows, trial)
        lengths, second = batch["input_mask"].sum(1), batch["segment_ids"].sum(1) - 1
        found.append((lengths - second - 3, second, batch["next_sentence_labels"]))
    first, second, labels = map(np.concatenate, zip(*found, strict=True))
    assert best_auc_from_lengths(first, second, labels) <= 0.51
    assert best_auc_from_lengths(first, second, second > np.median(second)) > 0.99
    assert labels.mean() == pytest.approx(0.5, abs=0.01)


def test_rows_of_128_carry_at_most_a_tenth_of_padding(small_text):
    pool = sequences_of(small_text, 128, topics_per_document=2)  # 3,500 tokens, as in Wikipedia
    mask = masking(small_text, max_seq_length=128)
    batch = make(mask, pool, np.arange(len(pool.documents)), 5)
    assert batch["input_mask"].mean() >= 0.9


def test_draws_follow_from_their_keys_alone_and_not_from_each_other():
    a, b, both = Draws([key(1)], 3), Draws([key(2)], 3), Draws([key(1), key(2)], 3)
    for shape in ((), (4,), (2, 5)):
        parts = [a.uniform(*shape), b.uniform(*shape)]
        assert parts[0].shape == (3, *shape)
        assert np.array_equal(both.uniform(*shape), np.concatenate(parts))
    assert np.array_equal(np.sort(permutation(key(1), 9)), np.arange(9))
    assert not np.array_equal(permutation(key(1), 99), permutation(key(2), 99))
    assert np.array_equal(permutation(bytes(range(16)), 6), [4, 2, 3, 0, 5, 1])
