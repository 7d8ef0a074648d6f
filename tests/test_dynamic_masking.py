"""Masks made while training keep the promises of static ones; lengths do not tell the label."""

import hashlib
from random import Random

import numpy as np
import pytest
from small_text import small_text as small_text
from small_text import topics

from official_bert import corpus, tokenization
from official_bert.dynamic_masking import Draws, DynamicMasking, Rows, permutation
from official_bert.example_parsing import Sequences
from official_bert.instances import Settings, sequences

LENGTH, PREDICTIONS = 64, 10


def key(seed) -> bytes:
    return hashlib.blake2b(repr(seed).encode(), digest_size=16).digest()


def make(mask: DynamicMasking, pool: Sequences, numbers: np.ndarray, seed) -> dict:
    low, high = np.zeros_like(numbers), np.full_like(numbers, len(pool.documents))
    return mask(pool, Rows(numbers, low, high), Draws([key(seed)], len(numbers)))


@pytest.fixture(scope="module")
def pool(small_text) -> Sequences:
    encode = tokenization.SentenceEncoder(tokenization.load(small_text.vocab_file))
    runs, documents = [], []
    for number, lines in enumerate(topics(40)):
        split = corpus.sentences(corpus.Document(lines, True))
        document = [ids for ids in encode(split) if ids]
        made = list(sequences(document, Settings(max_seq_length=LENGTH), Random(number)))
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
    last = pool.tokens[pool.token_splits[1:] - 1]
    full_stop = np.bincount(last).argmax()  # the commonest end of a sentence
    assert (last == full_stop).mean() > 0.5
    ends = {False: [], True: []}
    for trial in range(8):
        batch = make(mask, pool, rows, trial)
        ids, lengths = originals(batch), batch["input_mask"].sum(1)
        at_end = ids[np.arange(len(rows)), lengths - 2] == full_stop
        for label in ends:
            ends[label].extend(at_end[batch["next_sentence_labels"] == label])
    assert np.mean(ends[False]) == pytest.approx(np.mean(ends[True]), abs=0.08)


def test_a_single_sentence_gets_a_random_second_part(pool, small_text):
    rows = np.flatnonzero(np.diff(pool.sentence_splits) == 1)
    batch = make(masking(small_text), pool, rows, 3)
    assert batch["next_sentence_labels"].all()
    assert (batch["segment_ids"].sum(1) > 1).all()


def test_draws_follow_from_their_keys_alone_and_not_from_each_other():
    a, b, both = Draws([key(1)], 3), Draws([key(2)], 3), Draws([key(1), key(2)], 3)
    for shape in ((), (4,), (2, 5)):
        parts = [a.uniform(*shape), b.uniform(*shape)]
        assert parts[0].shape == (3, *shape)
        assert np.array_equal(both.uniform(*shape), np.concatenate(parts))
    assert np.array_equal(np.sort(permutation(key(1), 9)), np.arange(9))
    assert not np.array_equal(permutation(key(1), 99), permutation(key(2), 99))
    assert np.array_equal(permutation(bytes(range(16)), 6), [4, 2, 3, 0, 5, 1])
