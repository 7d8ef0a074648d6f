"""Sequences → masked examples during training, with new pairs and masks in every epoch.

Whole batches at once, in NumPy.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from official_bert.data import masking
from official_bert.data.parsed_records import Sequences


class Draws:
    """Random numbers that depend only on keys, in every version of NumPy (raw Philox).

    Each key (16 bytes) serves `rows` rows, whose numbers do not depend on the other keys.
    """

    def __init__(self, keys: Iterable[bytes], rows: int):
        self._bits = [np.random.Philox(key=np.frombuffer(key, np.uint64)) for key in keys]
        self._rows = rows

    def uniform(self, *shape: int) -> np.ndarray:
        """Numbers in [0, 1), `shape` of them for each row."""
        count = self._rows * math.prod(shape)
        raw = np.concatenate([bits.random_raw(count) for bits in self._bits])
        return (raw >> np.uint64(11)).reshape(-1, *shape) * 2.0**-53


def permutation(key: bytes, count: int) -> np.ndarray:
    """The numbers below `count` in an order that depends only on the key."""
    bits = np.random.Philox(key=np.frombuffer(key, np.uint64))
    return np.argsort(bits.random_raw(count), kind="stable")


class Rows(NamedTuple):
    """Records of a pool that make a batch, and the range of each one's random second part."""

    numbers: np.ndarray
    low: np.ndarray
    high: np.ndarray


# Number of tries to fill the room that the first runs leave.
LATE_DRAWS = 12


@dataclass(frozen=True)
class DynamicMasking:
    """How sequences become examples.

    Args:
        max_seq_length, max_predictions: S and P, the lengths of the arrays.
        masked_lm_prob: Fraction of the tokens to predict.
        whole_words: Mask all pieces of a word together.
        max_ngram_size: n; with whole words, mask runs of 1 … n words, a run of k with weight 1/k.
        next_sentence: Make pairs, half of them with a second part from another document.
        continues_a_word: For each id of the vocabulary, whether its token starts with `##`.
        cls, sep, mask: Ids of the special tokens.
    """

    max_seq_length: int
    max_predictions: int
    masked_lm_prob: float
    whole_words: bool
    max_ngram_size: int
    next_sentence: bool
    continues_a_word: np.ndarray
    cls: int
    sep: int
    mask: int

    def __call__(self, pool: Sequences, rows: Rows, draws: Draws) -> dict[str, np.ndarray]:
        """Examples of the records `rows` of `pool`."""
        (a_start, a_length), (b_start, b_length), is_random = (
            self._pairs(pool, rows, draws) if self.next_sentence else self._singles(pool, rows)
        )
        ids, lengths, segments = self._assemble(pool.tokens, a_start, a_length, b_start, b_length)
        place = np.arange(self.max_seq_length)  # (S,)
        inside = place < lengths[:, None]  # (b, S)
        maskable = inside & (ids != self.cls) & (ids != self.sep)
        number = masking.number_to_predict(lengths, self.masked_lm_prob, self.max_predictions)
        number = np.minimum(number, maskable.sum(1))
        if self.whole_words:
            chosen = self._choose_runs(ids, maskable, number, draws)
        else:
            chosen = _choose_pieces(maskable, number, draws)
        positions, weights = _positions(chosen, self.max_predictions)
        labels = np.where(weights, np.take_along_axis(ids, positions, 1), 0)
        return {
            "input_ids": self._corrupted(ids, positions, weights, draws).astype(np.int32),
            "input_mask": inside.astype(np.int32),
            "segment_ids": segments.astype(np.int32),
            "masked_lm_positions": positions.astype(np.int32),
            "masked_lm_ids": labels.astype(np.int32),
            "masked_lm_weights": weights.astype(np.float32),
            "next_sentence_labels": is_random.astype(np.int32),
        }

    def _singles(self, pool: Sequences, rows: Rows):
        start, none = pool.token_splits[rows.numbers], np.zeros_like(rows.numbers)
        return (start, pool.token_splits[rows.numbers + 1] - start), (none, none), none

    def _pairs(self, pool: Sequences, rows: Rows, draws: Draws):
        """First and second part of each record, as (start, length) in `pool.tokens`.

        The label must not follow from the lengths of the parts, nor from where the second part
        begins or ends. So both lengths are fixed before the label is drawn, from the record and its
        partner; a real and a random second part have the same length. Both begin at a sentence that
        is not the first of their record, because the first may be the rest of a sentence that was
        cut. A record of one sentence is split within it, and its random second part begins within a
        sentence too. A record that fills a sequence was cut there, so it ends anywhere. Random
        second parts end anywhere as well. Therefore the real second part of a shorter record is cut
        at a random place of its last sentence.
        """
        numbers, room = rows.numbers, self.max_seq_length - 3
        start, stop = pool.token_splits[numbers], pool.token_splits[numbers + 1]
        length = stop - start
        first_sentence = pool.sentence_splits[numbers]
        sentences = pool.sentence_splits[numbers + 1] - first_sentence
        single = sentences == 1
        u = draws.uniform()
        within = start + 1 + (u * (length - 1)).astype(np.int64)
        between = first_sentence + ~single + (u * (sentences - 1)).astype(np.int64)
        split = np.where(
            single,
            self._word_start(pool.tokens, np.minimum(within, stop - 1), stop - 1),
            pool.sentence_starts[between],
        )
        split = np.maximum(split, start + 1)
        last_piece = np.maximum(split, pool.sentence_starts[pool.sentence_splits[numbers + 1] - 1])
        cut = (draws.uniform() * (stop - last_piece) * (length < room)).astype(np.int64)
        rest = np.maximum(stop - split - cut, 1)  # one token has no second part of its own

        partner, earliest = _partners(pool, rows, rest, single, draws)
        partner_stop = pool.token_splits[partner + 1]
        b_length = np.minimum(rest, partner_stop - earliest)
        latest = partner_stop - b_length  # the last place with enough tokens after it
        low = np.searchsorted(pool.sentence_starts, earliest, "left")
        high = np.searchsorted(pool.sentence_starts, latest, "right")
        u = draws.uniform()
        within = earliest + (u * (latest - earliest + 1)).astype(np.int64)
        other_start = np.where(
            single,
            self._word_start(pool.tokens, within, latest),
            pool.sentence_starts[low + (u * (high - low)).astype(np.int64)],
        )
        is_random = (draws.uniform() < 0.5) | (length < 2)
        b_start = np.where(is_random, other_start, split)
        return (start, split - start), (b_start, b_length), is_random

    def _word_start(self, tokens: np.ndarray, at: np.ndarray, latest: np.ndarray) -> np.ndarray:
        """The places `at`, or the start of the next word if it is close, up to `latest`."""
        near = np.minimum(at[:, None] + np.arange(8), latest[:, None])
        begins = ~self.continues_a_word[tokens[near]]
        return np.take_along_axis(near, np.argmax(begins, 1)[:, None], 1)[:, 0]

    def _assemble(self, tokens, a_start, a_length, b_start, b_length):
        """[CLS] A [SEP] B [SEP], or [CLS] A [SEP] where B is empty; ids, lengths and segments."""
        place = np.arange(self.max_seq_length)[None]  # (1, S)
        a_start, a_length, b_start, b_length = (
            x[:, None] for x in (a_start, a_length, b_start, b_length)
        )
        second = a_length + 2
        lengths = second + np.where(b_length > 0, b_length + 1, 0)
        in_a, in_b = place <= a_length, (place >= second) & (place < second + b_length)
        source = np.where(in_a, a_start + place - 1, np.where(in_b, b_start + place - second, 0))
        ids = np.where(in_a | in_b, tokens[np.maximum(source, 0)], self.sep)
        ids[:, 0] = self.cls
        inside = place < lengths
        return ids * inside, lengths[:, 0], (place >= second) & inside

    def _choose_runs(self, ids, maskable, number, draws: Draws) -> np.ndarray:
        """Draws runs of words without repetition until `number` tokens are chosen."""
        words = _Words(maskable, ~self.continues_a_word[ids], self.max_ngram_size)
        first, size = words.draw(self.max_predictions + LATE_DRAWS, draws)
        cuts = [0, *range(self.max_predictions, first.shape[1] + 1)]
        for start, stop in itertools.pairwise(cuts):  # many, then one by one into the room left
            if not number.any():
                break
            number = words.take_first(first[:, start:stop], size[:, start:stop], number)
        return maskable & words.taken_positions()

    def _corrupted(self, ids, positions, weights, draws: Draws) -> np.ndarray:
        """The ids (b, S) with [MASK], the same or a random word at the chosen positions."""
        fate, word = np.moveaxis(draws.uniform(2, self.max_predictions), 1, 0)
        row, slot = np.nonzero(weights)
        at, size = (row, positions[row, slot]), len(self.continues_a_word)
        ids = ids.copy()
        ids[at] = masking.corrupted(ids[at], self.mask, size, fate[row, slot], word[row, slot])
        return ids


class _Words:
    """The words of each row of a batch, and which of them are chosen.

    Args:
        maskable: (b, S), which positions belong to words.
        starts: (b, S), which positions start a word.
        max_size: Words in the longest run.
    """

    def __init__(self, maskable: np.ndarray, starts: np.ndarray, max_size: int):
        count, length = maskable.shape
        begins = maskable & starts
        # A part may begin with the rest of a word that was cut.
        begins[:, 1:] |= maskable[:, 1:] & ~maskable[:, :-1]
        self._word = np.cumsum(begins, 1) - 1  # (b, S): the word of each position
        self._words = begins.sum(1)[:, None]
        self._row = np.arange(count)[:, None]
        # ends[r, w]: maskable positions in the words before w
        flat = (self._row * (length + 1) + self._word + 1)[maskable]
        counts = np.bincount(flat, minlength=count * (length + 1))
        self._ends = np.cumsum(counts.reshape(count, length + 1), 1)
        # The last column is for positions outside a run.
        self._taken = np.zeros((count, length + max_size + 1), bool)
        self._runs = np.arange(max_size)
        weights = np.cumsum(1 / np.arange(1, max_size + 1))
        self._shares = weights / weights[-1]

    def draw(self, number: int, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        """First words and sizes of `number` runs per row; a run of k words has weight 1/k."""
        u, v = np.moveaxis(draws.uniform(2, number), 1, 0)
        size = np.minimum(1 + np.searchsorted(self._shares, u, "right"), self._words)
        return (v * (self._words - size + 1)).astype(np.int64), size

    def take_first(self, first: np.ndarray, size: np.ndarray, room: np.ndarray) -> np.ndarray:
        """Takes runs in order while there is room; returns the room (in tokens) left.

        Runs that touch words already chosen, or an earlier run, are skipped.
        """
        inside = self._runs < size[:, :, None]  # (b, n, k)
        words = np.where(inside, first[:, :, None] + self._runs, self._taken.shape[1] - 1)
        number = np.arange(first.shape[1])[:, None]  # (n, 1)
        row = self._row[:, :, None]
        earliest = np.full(self._taken.shape, first.shape[1])
        np.minimum.at(earliest, (row, words), number)  # the first run that contains a word
        free = (earliest[row, words] == number) & ~self._taken[row, words]
        free = (free | ~inside).all(2)
        tokens = self._ends[self._row, first + size] - self._ends[self._row, first]
        used = np.cumsum(np.where(free, tokens, 0), 1)
        accepted = free & (used <= room[:, None])
        self._taken[row, np.where(accepted[:, :, None], words, self._taken.shape[1] - 1)] = True
        self._taken[:, -1] = False
        return room - np.where(accepted, tokens, 0).sum(1)

    def taken_positions(self) -> np.ndarray:
        """Which positions belong to chosen words; (b, S)."""
        return np.take_along_axis(self._taken, np.maximum(self._word, 0), 1)


def _choose_pieces(maskable: np.ndarray, number: np.ndarray, draws: Draws) -> np.ndarray:
    keys = np.where(maskable, draws.uniform(maskable.shape[1]), 2.0)
    order = np.sort(keys, 1)
    threshold = np.take_along_axis(order, number[:, None] - 1, 1)
    return keys <= threshold


def _partners(
    pool: Sequences, rows: Rows, wanted: np.ndarray, within: np.ndarray, draws: Draws
) -> tuple[np.ndarray, np.ndarray]:
    """For each row the best of ten records, and the first token where a second part may begin.

    It should be of another document, have a second sentence (unless the part begins `within` one),
    and have the `wanted` number of tokens.
    """
    low, high, within = rows.low[:, None], rows.high[:, None], within[:, None]
    tries = low + (draws.uniform(10) * (high - low)).astype(np.int64)  # (b, 10)
    other = pool.documents[tries] != pool.documents[rows.numbers][:, None]
    first_sentence = pool.sentence_splits[tries]
    several = (pool.sentence_splits[tries + 1] - first_sentence > 1) & ~within
    earliest = pool.sentence_starts[first_sentence + several]
    enough = np.minimum(pool.token_splits[tries + 1] - earliest, wanted[:, None])
    rank = (2 * other + (several | within)) * (1 + wanted[:, None]) + enough
    best = np.argmax(rank, 1)[:, None]
    return np.take_along_axis(tries, best, 1)[:, 0], np.take_along_axis(earliest, best, 1)[:, 0]


def _positions(chosen: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """The chosen positions of each row, ascending and zero-padded, and which are not padding."""
    row, position = np.nonzero(chosen)
    counts = chosen.sum(1)
    at = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    positions = np.zeros((len(chosen), length), np.int64)
    positions[row, at] = position
    return positions, np.arange(length) < counts[:, None]
