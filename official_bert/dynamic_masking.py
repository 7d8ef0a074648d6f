"""Sequences → masked examples while training: fresh pairs and masks at every epoch.

Whole batches at once, in NumPy.
"""

from dataclasses import dataclass

import numpy as np

from official_bert.example_parsing import Sequences


class Draws:
    """Random numbers that follow from a key alone, under every version of NumPy (raw Philox)."""

    def __init__(self, key: bytes):
        self._bits = np.random.Philox(key=np.frombuffer(key, np.uint64))

    def uniform(self, *shape: int) -> np.ndarray:
        """Numbers in [0, 1)."""
        return (self._bits.random_raw(int(np.prod(shape))) >> np.uint64(11)).reshape(
            shape
        ) * 2.0**-53

    def permutation(self, count: int) -> np.ndarray:
        """The numbers below `count` in random order."""
        return np.argsort(self._bits.random_raw(count), kind="stable")


@dataclass(frozen=True)
class DynamicMasking:
    """How sequences become examples.

    Args:
        max_seq_length, max_predictions: S and P, the lengths of the arrays.
        masked_lm_prob: share of the tokens that is to be guessed.
        whole_words: mask all pieces of a word together.
        max_ngram_size: with whole words, mask runs of 1 … n of them, a run of k with a weight of
            1/k.
        next_sentence: make pairs, half of them with a second part from another document.
        continues_a_word: for every id of the vocabulary whether it starts with `##`.
        cls, sep, mask: ids of the special tokens.
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

    def __call__(self, pool: Sequences, rows: np.ndarray, draws: Draws) -> dict[str, np.ndarray]:
        """Examples of the records `rows` of `pool`; random second parts come from `pool` too."""
        (a_start, a_length), (b_start, b_length), is_random = (
            self._pairs(pool, rows, draws) if self.next_sentence else self._singles(pool, rows)
        )
        ids, lengths, segments = self._assemble(pool.tokens, a_start, a_length, b_start, b_length)
        place = np.arange(self.max_seq_length)  # (S,)
        inside = place < lengths[:, None]  # (b, S)
        maskable = inside & (ids != self.cls) & (ids != self.sep)
        number = np.maximum(1, np.rint(lengths * self.masked_lm_prob).astype(np.int64))
        number = np.minimum(np.minimum(number, self.max_predictions), maskable.sum(1))
        if self.whole_words:
            chosen = self._choose_runs(ids, maskable, number, draws)
        else:
            chosen = _choose_pieces(maskable, number, draws)
        positions, weights = _positions(chosen, self.max_predictions)
        labels = np.where(weights, np.take_along_axis(ids, positions, 1), 0)
        return {
            "input_ids": self._corrupted(ids, chosen, draws).astype(np.int32),
            "input_mask": inside.astype(np.int32),
            "segment_ids": segments.astype(np.int32),
            "masked_lm_positions": positions.astype(np.int32),
            "masked_lm_ids": labels.astype(np.int32),
            "masked_lm_weights": weights.astype(np.float32),
            "next_sentence_labels": is_random.astype(np.int32),
        }

    def _singles(self, pool: Sequences, rows: np.ndarray):
        none = np.zeros(len(rows), np.int64)
        return (pool.token_splits[rows], pool.lengths[rows]), (none, none), none

    def _pairs(self, pool: Sequences, rows: np.ndarray, draws: Draws):
        """First and second part of each record, as (start, length) in `pool.tokens`.

        A random second part is as long as the real one that it replaces, so that lengths do not
        tell the label. A record of one sentence has no second part of its own; it gets a random
        one.
        """
        count, room = len(rows), self.max_seq_length - 3
        start, length = pool.token_splits[rows], pool.lengths[rows]
        first_sentence = pool.sentence_splits[rows]
        sentences = pool.sentence_splits[rows + 1] - first_sentence
        split = 1 + (draws.uniform(count) * np.maximum(sentences - 1, 1)).astype(np.int64)
        single = sentences == 1
        split_at = pool.sentence_starts[np.where(single, first_sentence, first_sentence + split)]
        wanted = np.where(single, np.minimum(length, room // 2), length - (split_at - start))
        a_length = np.where(single, np.minimum(length, room - wanted), split_at - start)

        partner = _partners(pool, rows, draws)
        is_random = single | (draws.uniform(count) < 0.5)
        partner_start, partner_length = pool.token_splits[partner], pool.lengths[partner]
        # It begins at a sentence, by chance one of those that leave enough behind them.
        latest = partner_start + np.maximum(partner_length - wanted, 0)
        last_sentence = np.searchsorted(pool.sentence_starts, latest, "right") - 1
        choices = last_sentence - pool.sentence_splits[partner] + 1
        sentence = pool.sentence_splits[partner] + (draws.uniform(count) * choices).astype(np.int64)
        other_start = pool.sentence_starts[sentence]
        other_length = np.minimum(wanted, partner_start + partner_length - other_start)
        b_start = np.where(is_random, other_start, split_at)
        b_length = np.where(is_random, other_length, wanted)
        return (start, a_length), (b_start, b_length), is_random

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
        """Draws runs of words until `number` tokens are chosen, none twice."""
        count, length = ids.shape
        begins = maskable & ~self.continues_a_word[ids]
        begins[:, 1:] |= (
            maskable[:, 1:] & ~maskable[:, :-1]
        )  # a part may begin with the rest of a cut word
        word = np.cumsum(begins, 1) - 1  # (b, S): the word of each position
        words = begins.sum(1)
        # ends[r, w]: maskable positions in the words before w
        ends = np.zeros((count, length + 1), np.int64)
        row = np.arange(count)
        flat = np.bincount(
            (row[:, None] * (length + 1) + word + 1)[maskable], minlength=count * (length + 1)
        )
        ends = np.cumsum(flat.reshape(count, length + 1), 1)
        taken = np.zeros((count, length + self.max_ngram_size), bool)
        left = number.copy()
        weights = np.cumsum(1 / np.arange(1, self.max_ngram_size + 1))
        for _ in range(3 * self.max_predictions):
            if not left.any():
                break
            size = 1 + np.searchsorted(weights, draws.uniform(count) * weights[-1], "right")
            size = np.minimum(size, words)
            first = (draws.uniform(count) * (words - size + 1)).astype(np.int64)
            tokens = ends[row, first + size] - ends[row, first]
            fits = tokens <= left
            for k in range(self.max_ngram_size):
                fits &= ~(taken[row, first + k] & (k < size))
            for k in range(self.max_ngram_size):
                taken[row, first + k] |= fits & (k < size)
            left -= np.where(fits, tokens, 0)
        return maskable & np.take_along_axis(taken, np.maximum(word, 0), 1)

    def _corrupted(self, ids, chosen, draws: Draws) -> np.ndarray:
        """80 % [MASK], 10 % a random word, 10 % as it was."""
        fate, word = draws.uniform(2, int(chosen.sum()))
        originals = ids[chosen]
        ids = ids.copy()
        ids[chosen] = np.where(
            fate < 0.8,
            self.mask,
            np.where(fate < 0.9, originals, (word * len(self.continues_a_word)).astype(ids.dtype)),
        )
        return ids


def _choose_pieces(maskable: np.ndarray, number: np.ndarray, draws: Draws) -> np.ndarray:
    keys = np.where(maskable, draws.uniform(*maskable.shape), 2.0)
    order = np.sort(keys, 1)
    threshold = np.take_along_axis(order, number[:, None] - 1, 1)
    return keys <= threshold


def _partners(pool: Sequences, rows: np.ndarray, draws: Draws) -> np.ndarray:
    """For each row a record of another document, if ten tries find one."""
    tries = (draws.uniform(len(rows), 10) * len(pool.documents)).astype(np.int64)
    other = pool.documents[tries] != pool.documents[rows][:, None]
    return np.take_along_axis(tries, np.argmax(other, 1)[:, None], 1)[:, 0]


def _positions(chosen: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """The chosen positions of each row, ascending and zero-padded, and which are no padding."""
    row, position = np.nonzero(chosen)
    counts = chosen.sum(1)
    at = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    positions = np.zeros((len(chosen), length), np.int64)
    positions[row, at] = position
    return positions, np.arange(length) < counts[:, None]
