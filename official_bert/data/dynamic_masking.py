"""Sequences → masked examples during training, with new pairs and masks in every epoch.

It makes whole batches by the operations of `NumPy`. For hosts that run no Python, `graph_ops` has
the same operations on tensors, with the same results, bit for bit.
"""

import functools
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from official_bert.data.instances import KEPT_SHARE, MASK_SHARE
from official_bert.data.parsed_records import DynamicParser, Sequences, StaticParser
from official_bert.data.record_files import RecordFiles


def _rows(at):
    return np.arange(len(at)).reshape(-1, *[1] * (at.ndim - 1))


class NumPy:
    """Operations on arrays, named as in `graph_ops.Tensors`."""

    where, minimum, maximum, round = np.where, np.minimum, np.maximum, np.rint
    constant, length, range, cells, rows = np.asarray, len, np.arange, np.nonzero, _rows
    zeros, zeros_like, searchsorted = np.zeros, np.zeros_like, np.searchsorted
    as_type = staticmethod(lambda x, name: np.asarray(x).astype(name, copy=False))
    integer = functools.partial(as_type, name="int64")  # towards zero
    real = functools.partial(as_type, name="float64")
    take = staticmethod(lambda x, at: x[at])
    pick = staticmethod(lambda x, at: x[_rows(at), at])  # items `at` (b, …) of the rows of x (b, n)
    pick_cells = staticmethod(lambda x, row, at: x[row, at])
    count = total = functools.partial(np.sum, axis=1)
    every = functools.partial(np.all, axis=-1)
    cumsum = functools.partial(np.cumsum, axis=-1)
    sort = functools.partial(np.sort, axis=1)
    argmax = functools.partial(np.argmax, axis=1)
    is_zero = staticmethod(lambda x: not x.any())  # in a graph: False, as it is not known yet

    @staticmethod
    def put(x: np.ndarray, row: np.ndarray, at: np.ndarray, values: Any) -> np.ndarray:
        """A copy of x (b, n) with the values at these places."""
        x = x.copy()
        x[row, at] = values
        return x

    @staticmethod
    def put_least(x: np.ndarray, row: np.ndarray, at: np.ndarray, values: Any) -> np.ndarray:
        """A copy of x (b, n) with the minimum of its own and the values at these places."""
        x = x.copy()
        np.minimum.at(x, (row, at), values)
        return x

    @staticmethod
    def counted(shape: tuple[int, int], row: np.ndarray, at: np.ndarray) -> np.ndarray:
        """The number of times that each place of an array of this shape (b, n) is given."""
        return np.bincount(row * shape[1] + at, minlength=math.prod(shape)).reshape(shape)

    @staticmethod
    def after_first(mask: np.ndarray) -> np.ndarray:
        """For each column the one before it; True for the first."""
        return np.pad(mask[:, :-1], [(0, 0), (1, 0)], constant_values=True)


class Draws:
    """Random numbers that depend only on keys, in every version of NumPy (raw Philox).

    Each key (16 bytes) serves `rows` rows, independently of the other keys.
    """

    ops: Any = NumPy

    def __init__(self, keys: Iterable[bytes], rows: int):
        self._bits = [np.random.Philox(key=np.frombuffer(key, np.uint64)) for key in keys]
        self._rows = rows

    def uniform(self, *shape: int) -> np.ndarray:
        """Numbers in [0, 1), `shape` of them for each row."""
        count = self._rows * math.prod(shape)
        raw = np.concatenate([bits.random_raw(count) for bits in self._bits])
        return (raw >> np.uint64(11)).reshape(-1, *shape) * 2.0**-53


def permutation(key: bytes, count: int) -> np.ndarray:
    """The numbers below `count`, in an order that depends only on the key."""
    bits = np.random.Philox(key=np.frombuffer(key, np.uint64))
    return np.argsort(bits.random_raw(count), kind="stable")


class Rows(NamedTuple):
    """The records of a batch in a pool, and for each the range of its random second part."""

    numbers: np.ndarray
    low: np.ndarray
    high: np.ndarray


LATE_DRAWS = 12  # tries to fill the room that the first runs leave


class Plan(NamedTuple):
    """Settings that decide the batches of one host; see `input_pipeline.Batches`.

    Attributes:
        masking: None for static records.
        rows: This host's rows of a batch.
        sections: Number of sections of a window.
        window_steps: Batches in a window.
        in_memory: Whether all records are shuffled together.
        shapes: {name: shape of a row} of a batch.
    """

    files: RecordFiles
    parse: StaticParser | DynamicParser
    masking: "DynamicMasking | None"
    seed: int
    batch_size: int
    rows: range
    sections: int
    window_steps: int
    in_memory: bool
    shuffle: bool
    vocab_size: int | None
    shapes: dict[str, tuple[int, ...]]

    @property
    def width(self) -> int:
        """Rows of a section in a batch."""
        return self.batch_size // self.sections

    @property
    def my_sections(self) -> range:
        """The sections that feed this host."""
        return range(self.rows.start // self.width, -(-self.rows.stop // self.width))

    @property
    def mine(self) -> slice:
        """This host's rows among the rows of its sections."""
        skip = self.rows.start - self.my_sections.start * self.width
        return slice(skip, skip + len(self.rows))


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
        packed: Whether a row holds several sequences, each from its [CLS].
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
    packed: bool = False

    def __call__(self, pool: Sequences, rows: Rows, draws: Draws) -> dict[str, Any]:
        """Examples of the records `rows` of `pool`: arrays, or tensors if all these are tensors."""
        ops = draws.ops
        parts = self._pairs if self.next_sentence else self._singles
        first, second, is_random = parts(ops, pool, rows, draws)
        ids, lengths, segments = self._assemble(ops, pool.tokens, *first, *second)
        inside = ops.range(self.max_seq_length) < lengths[:, None]  # (b, S)
        maskable = inside & (ids != self.cls) & (ids != self.sep)
        number = ops.integer(ops.round(ops.real(lengths) * self.masked_lm_prob))
        number = ops.minimum(ops.maximum(number, 1), self.max_predictions)
        number = ops.minimum(number, ops.count(maskable))
        choose = self._choose_runs if self.whole_words else self._choose_pieces
        chosen = choose(ops, ids, maskable, number, draws)
        positions, weights = self._positions(ops, chosen)
        old = ops.pick(ids, positions)
        examples = {
            "input_ids": self._corrupted(ops, ids, positions, weights, old, draws),
            "input_mask": inside,
            "segment_ids": segments,
            "masked_lm_positions": positions,
            "masked_lm_ids": ops.where(weights, old, 0),
            "masked_lm_weights": weights,
            "next_sentence_labels": is_random,
        }
        if self.packed:
            begins = ops.integer(inside & (ids == self.cls))
            examples["sequence_ids"] = ops.where(inside, ops.cumsum(begins), 0)
        return {
            name: ops.as_type(values, "float32" if name == "masked_lm_weights" else "int32")
            for name, values in examples.items()
        }

    def _singles(self, ops, pool: Sequences, rows: Rows, draws: Draws):
        start = ops.take(pool.token_splits, rows.numbers)
        none = ops.zeros_like(start)
        return (start, ops.take(pool.token_splits, rows.numbers + 1) - start), (none, none), none

    def _pairs(self, ops, pool: Sequences, rows: Rows, draws: Draws):
        """First and second part of each record, as (start, length) in `pool.tokens`.

        The label must not follow from the lengths of the parts, nor from the places where the
        second part begins or ends. So a real and a random second part have the same length, fixed
        before the label is drawn. Both begin at a sentence that is not the first of its record,
        which may be the rest of a sentence; for a record of one sentence, both begin within one.
        Random second parts end anywhere, as does a record that fills a sequence. So the real second
        part of a shorter record is cut at a random place of its last sentence.
        """
        numbers, room = rows.numbers, self.max_seq_length - 3
        start = ops.take(pool.token_splits, numbers)
        stop = ops.take(pool.token_splits, numbers + 1)
        length = stop - start
        first_sentence = ops.take(pool.sentence_splits, numbers)
        end_sentence = ops.take(pool.sentence_splits, numbers + 1)
        sentences = end_sentence - first_sentence
        single = sentences == 1
        u = draws.uniform()
        within = start + 1 + ops.integer(u * ops.real(length - 1))
        between = first_sentence + ops.integer(~single) + ops.integer(u * ops.real(sentences - 1))
        split = ops.where(
            single,
            self._word_start(ops, pool.tokens, ops.minimum(within, stop - 1), stop - 1),
            ops.take(pool.sentence_starts, between),
        )
        split = ops.maximum(split, start + 1)
        last_piece = ops.maximum(split, ops.take(pool.sentence_starts, end_sentence - 1))
        is_shorter = ops.real(length < room)
        cut = ops.integer(draws.uniform() * ops.real(stop - last_piece) * is_shorter)
        rest = ops.maximum(stop - split - cut, 1)  # one token has no second part of its own

        partner, earliest = _partners(ops, pool, rows, rest, single, draws)
        partner_stop = ops.take(pool.token_splits, partner + 1)
        b_length = ops.minimum(rest, partner_stop - earliest)
        latest = partner_stop - b_length  # the last place with enough tokens after it
        low = ops.searchsorted(pool.sentence_starts, earliest, "left")
        high = ops.searchsorted(pool.sentence_starts, latest, "right")
        u = draws.uniform()
        within = earliest + ops.integer(u * ops.real(latest - earliest + 1))
        other_start = ops.where(
            single,
            self._word_start(ops, pool.tokens, within, latest),
            ops.take(pool.sentence_starts, low + ops.integer(u * ops.real(high - low))),
        )
        is_random = (draws.uniform() < 0.5) | (length < 2)
        b_start = ops.where(is_random, other_start, split)
        return (start, split - start), (b_start, b_length), is_random

    def _word_start(self, ops, tokens, at, latest):
        """The places `at`, or the start of the next word if it is near, up to `latest`."""
        near = ops.minimum(at[:, None] + ops.range(8), latest[:, None])
        begins = ops.take(ops.constant(~self.continues_a_word), ops.take(tokens, near))
        return ops.pick(near, ops.argmax(begins)[:, None])[:, 0]

    def _assemble(self, ops, tokens, a_start, a_length, b_start, b_length):
        """[CLS] A [SEP] B [SEP], or [CLS] A [SEP] where B is empty; ids, lengths and segments."""
        place = ops.range(self.max_seq_length)[None]  # (1, S)
        a_start, a_length, b_start, b_length = (
            x[:, None] for x in (a_start, a_length, b_start, b_length)
        )
        second = a_length + 2
        lengths = second + ops.where(b_length > 0, b_length + 1, 0)
        in_a = (place >= 1) & (place <= a_length)
        in_b = (place >= second) & (place < second + b_length)
        source = ops.where(in_a, a_start + place - 1, ops.where(in_b, b_start + place - second, 0))
        ids = ops.where(in_a | in_b, ops.take(tokens, source), self.sep)
        ids = ops.where(place == 0, self.cls, ids)
        inside = place < lengths
        return ops.where(inside, ids, 0), lengths[:, 0], (place >= second) & inside

    def _choose_pieces(self, ops, ids, maskable, number, draws: Draws):
        """The `number` maskable positions of each row with the least random numbers; (b, S)."""
        keys = ops.where(maskable, draws.uniform(self.max_seq_length), 2.0)
        last = (number - 1) % self.max_seq_length
        return keys <= ops.pick(ops.sort(keys), last[:, None])

    def _choose_runs(self, ops, ids, maskable, number, draws: Draws):
        """Draws runs of words without repetition until `number` tokens are chosen."""
        starts = ops.take(ops.constant(~self.continues_a_word), ids)
        words = _Words(ops, maskable, starts, self.max_ngram_size)
        count = self.max_predictions + LATE_DRAWS
        first, size = words.draw(count, draws)
        cuts = [0, *range(self.max_predictions, count + 1)]
        for start, stop in itertools.pairwise(cuts):  # many, then one by one into the room left
            if ops.is_zero(number):
                break
            number = words.take_first(first[:, start:stop], size[:, start:stop], number)
        return maskable & words.taken_positions()

    def _positions(self, ops, chosen):
        """The chosen positions of each row, ascending and zero-padded; which are not padding."""
        row, position = ops.cells(chosen)
        counts = ops.count(chosen)
        at = ops.range(ops.length(row)) - ops.take(ops.cumsum(counts) - counts, row)
        none = ops.zeros((ops.length(counts), self.max_predictions), "int64")
        is_filled = ops.range(self.max_predictions) < counts[:, None]
        return ops.put(none, row, at, position), is_filled

    def _corrupted(self, ops, ids, positions, weights, old, draws: Draws):
        """The ids (b, S) with [MASK], the same or a random word at the chosen positions."""
        drawn = draws.uniform(2, self.max_predictions)
        word = ops.as_type(drawn[:, 1] * len(self.continues_a_word), "int32")
        kept = ops.where(drawn[:, 0] < MASK_SHARE + KEPT_SHARE, old, word)
        new = ops.where(drawn[:, 0] < MASK_SHARE, self.mask, kept)
        # Padding positions point to [CLS], which is never chosen, and replaces itself.
        return ops.put(ids, ops.rows(positions), positions, ops.where(weights, new, old))


class _Words:
    """The words of each row of a batch, and which of them are chosen.

    Args:
        maskable: (b, S), positions that belong to words.
        starts: (b, S), positions that start a word.
        max_size: Words in the longest run.
    """

    def __init__(self, ops, maskable, starts, max_size: int):
        count, length = ops.length(maskable), maskable.shape[1]
        begins = maskable & (starts | ~ops.after_first(maskable))  # a part may begin within a word
        self._ops = ops
        self._word = ops.cumsum(ops.integer(begins)) - 1  # (b, S): the word of each position
        self._words = ops.count(begins)[:, None]
        # ends[r, w]: maskable positions in the words before w
        row, position = ops.cells(maskable)
        at = ops.pick_cells(self._word, row, position) + 1
        self._ends = ops.cumsum(ops.counted((count, length + 1), row, at))
        # The last column is for positions outside a run.
        self._last = length + max_size
        self._taken = ops.zeros((count, self._last + 1), "bool")
        self._runs = ops.range(max_size)
        weights = np.cumsum(1 / np.arange(1, max_size + 1))
        self._shares = ops.constant(weights / weights[-1])

    def draw(self, number: int, draws: Draws):
        """First words and sizes of `number` runs per row; a run of k words has weight 1/k."""
        ops, drawn = self._ops, draws.uniform(2, number)
        size = 1 + ops.searchsorted(self._shares, drawn[:, 0], "right")
        size = ops.minimum(size, self._words)
        return ops.integer(drawn[:, 1] * ops.real(self._words - size + 1)), size

    def take_first(self, first, size, room):
        """Takes runs in order while there is room; returns the room (in tokens) left.

        Runs that touch words already chosen, or an earlier run, are skipped.
        """
        ops, count = self._ops, first.shape[1]
        inside = self._runs < size[:, :, None]  # (b, n, k)
        words = ops.where(inside, first[:, :, None] + self._runs, self._last)
        row = ops.rows(words)
        number = ops.range(count)[:, None]  # (n, 1)
        none = ops.zeros_like(self._taken, "int64") + count
        earliest = ops.put_least(none, row, words, number)  # the first run that contains a word
        free = (ops.pick(earliest, words) == number) & ~ops.pick(self._taken, words)
        free = ops.every(free | ~inside)
        tokens = ops.pick(self._ends, first + size) - ops.pick(self._ends, first)
        used = ops.cumsum(ops.where(free, tokens, 0))
        accepted = free & (used <= room[:, None])
        chosen = ops.where(accepted[:, :, None], words, self._last)
        self._taken = ops.put(self._taken, row, chosen, True)
        return room - ops.total(ops.where(accepted, tokens, 0))

    def taken_positions(self):
        """(b, S), positions of chosen words."""
        return self._ops.pick(self._taken, self._ops.maximum(self._word, 0))


def _partners(ops, pool: Sequences, rows: Rows, wanted, within, draws: Draws):
    """For each row the best of ten records, and the first token where its second part may begin.

    The best is of another document, has a second sentence (unless the part begins `within` one),
    and the `wanted` number of tokens.
    """
    low, high, within = rows.low[:, None], rows.high[:, None], within[:, None]
    tries = low + ops.integer(draws.uniform(10) * ops.real(high - low))  # (b, 10)
    documents = ops.take(pool.documents, rows.numbers)
    other = ops.take(pool.documents, tries) != documents[:, None]
    first_sentence = ops.take(pool.sentence_splits, tries)
    sentences = ops.take(pool.sentence_splits, tries + 1) - first_sentence
    several = (sentences > 1) & ~within
    earliest = ops.take(pool.sentence_starts, first_sentence + ops.integer(several))
    enough = ops.minimum(ops.take(pool.token_splits, tries + 1) - earliest, wanted[:, None])
    rank = 2 * ops.integer(other) + ops.integer(several | within)
    best = ops.argmax(rank * (1 + wanted[:, None]) + enough)[:, None]
    return ops.pick(tries, best)[:, 0], ops.pick(earliest, best)[:, 0]
