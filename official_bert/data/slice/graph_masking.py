"""`dynamic_masking` as tensors: the same examples, bit for bit, on hosts that run no Python.

The reasons for each step stand in `dynamic_masking.py`; the functions here bear the same names.
"""

import itertools

import numpy as np
import tensorflow as tf

from official_bert.data import masking
from official_bert.data.dynamic_masking import LATE_DRAWS, DynamicMasking, Rows
from official_bert.data.parsed_records import Sequences
from official_bert.data.slice.graph_random import Draws


def examples(
    made: DynamicMasking, pool: Sequences, rows: Rows, draws: Draws
) -> dict[str, tf.Tensor]:
    """Examples of some records of a pool: what `made(pool, rows, draws)` gives in NumPy.

    Args:
        made: How sequences become examples.
        pool: Sequences, as tensors.
        rows: Which of them, and where their random second parts come from: int64 tensors of (b,).
        draws: Random numbers.
    """
    pick = _pairs if made.next_sentence else _singles
    first, second, is_random = pick(made, pool, rows, draws)
    ids, lengths, segments = _assemble(made, pool.tokens, *first, *second)
    inside = tf.range(made.max_seq_length, dtype=tf.int64) < lengths[:, None]  # (b, S)
    maskable = inside & (ids != made.cls) & (ids != made.sep)
    number = _integer(tf.round(_real(lengths) * made.masked_lm_prob))
    number = tf.clip_by_value(number, 1, made.max_predictions)
    number = tf.minimum(number, _count(maskable))
    choose = _choose_runs if made.whole_words else _choose_pieces
    positions, weights = _positions(made, choose(made, ids, maskable, number, draws))
    labels = tf.where(weights, tf.gather(ids, positions, batch_dims=1), 0)
    return {
        "input_ids": tf.cast(_corrupted(made, ids, positions, weights, draws), tf.int32),
        "input_mask": tf.cast(inside, tf.int32),
        "segment_ids": tf.cast(segments, tf.int32),
        "masked_lm_positions": tf.cast(positions, tf.int32),
        "masked_lm_ids": tf.cast(labels, tf.int32),
        "masked_lm_weights": tf.cast(weights, tf.float32),
        "next_sentence_labels": tf.cast(is_random, tf.int32),
    }


def _integer(x):
    return tf.cast(x, tf.int64)  # towards zero, as NumPy's


def _real(x):
    return tf.cast(x, tf.float64)


def _count(x):
    return tf.reduce_sum(_integer(x), 1)


def _singles(made, pool, rows, draws):
    start = tf.gather(pool.token_splits, rows.numbers)
    none = tf.zeros_like(start)
    return (start, tf.gather(pool.token_splits, rows.numbers + 1) - start), (none, none), none


def _pairs(made, pool, rows, draws):
    start = tf.gather(pool.token_splits, rows.numbers)
    stop = tf.gather(pool.token_splits, rows.numbers + 1)
    length = stop - start
    first_sentence = tf.gather(pool.sentence_splits, rows.numbers)
    end_sentence = tf.gather(pool.sentence_splits, rows.numbers + 1)
    sentences = end_sentence - first_sentence
    single = sentences == 1
    u = draws.uniform()
    within = start + 1 + _integer(u * _real(length - 1))
    between = first_sentence + _integer(~single) + _integer(u * _real(sentences - 1))
    split = tf.where(
        single,
        _word_start(made, pool.tokens, tf.minimum(within, stop - 1), stop - 1),
        tf.gather(pool.sentence_starts, between),
    )
    split = tf.maximum(split, start + 1)
    last_piece = tf.maximum(split, tf.gather(pool.sentence_starts, end_sentence - 1))
    is_shorter = _real(length < made.max_seq_length - 3)
    cut = _integer(draws.uniform() * _real(stop - last_piece) * is_shorter)
    rest = tf.maximum(stop - split - cut, 1)

    partner, earliest = _partners(pool, rows, rest, single, draws)
    partner_stop = tf.gather(pool.token_splits, partner + 1)
    b_length = tf.minimum(rest, partner_stop - earliest)
    latest = partner_stop - b_length
    low = _integer(tf.searchsorted(pool.sentence_starts, earliest, "left"))
    high = _integer(tf.searchsorted(pool.sentence_starts, latest, "right"))
    u = draws.uniform()
    within = earliest + _integer(u * _real(latest - earliest + 1))
    other_start = tf.where(
        single,
        _word_start(made, pool.tokens, within, latest),
        tf.gather(pool.sentence_starts, low + _integer(u * _real(high - low))),
    )
    is_random = (draws.uniform() < 0.5) | (length < 2)
    b_start = tf.where(is_random, other_start, split)
    return (start, split - start), (b_start, b_length), is_random


def _word_start(made, tokens, at, latest):
    near = tf.minimum(at[:, None] + tf.range(8, dtype=tf.int64), latest[:, None])
    begins = tf.gather(tf.constant(~made.continues_a_word), tf.gather(tokens, near))
    first = tf.argmax(_integer(begins), 1)[:, None]
    return tf.gather(near, first, batch_dims=1)[:, 0]


def _partners(pool, rows, wanted, within, draws):
    low, high, within = rows.low[:, None], rows.high[:, None], within[:, None]
    tries = low + _integer(draws.uniform(10) * _real(high - low))  # (b, 10)
    documents = tf.gather(pool.documents, rows.numbers)
    other = tf.gather(pool.documents, tries) != documents[:, None]
    first_sentence = tf.gather(pool.sentence_splits, tries)
    sentences = tf.gather(pool.sentence_splits, tries + 1) - first_sentence
    several = (sentences > 1) & ~within
    earliest = tf.gather(pool.sentence_starts, first_sentence + _integer(several))
    enough = tf.minimum(tf.gather(pool.token_splits, tries + 1) - earliest, wanted[:, None])
    rank = (2 * _integer(other) + _integer(several | within)) * (1 + wanted[:, None]) + enough
    best = tf.argmax(rank, 1)[:, None]
    return tuple(tf.gather(x, best, batch_dims=1)[:, 0] for x in (tries, earliest))


def _assemble(made, tokens, a_start, a_length, b_start, b_length):
    place = tf.range(made.max_seq_length, dtype=tf.int64)[None]
    a_start, a_length, b_start, b_length = (
        x[:, None] for x in (a_start, a_length, b_start, b_length)
    )
    second = a_length + 2
    lengths = second + tf.where(b_length > 0, b_length + 1, 0)
    in_a = (place >= 1) & (place <= a_length)
    in_b = (place >= second) & (place < second + b_length)
    source = tf.where(in_a, a_start + place - 1, tf.where(in_b, b_start + place - second, 0))
    ids = tf.where(in_a | in_b, tf.gather(tokens, source), made.sep)
    ids = tf.where(place == 0, made.cls, ids)
    inside = place < lengths
    return ids * tf.cast(inside, ids.dtype), lengths[:, 0], (place >= second) & inside


def _choose_pieces(made, ids, maskable, number, draws):
    keys = tf.where(maskable, draws.uniform(made.max_seq_length), np.float64(2.0))
    last = tf.math.floormod(number - 1, made.max_seq_length)
    return keys <= tf.gather(tf.sort(keys, 1), last[:, None], batch_dims=1)


def _choose_runs(made, ids, maskable, number, draws):
    starts = tf.gather(tf.constant(~made.continues_a_word), ids)
    words = _Words(maskable, starts, made.max_ngram_size)
    count = made.max_predictions + LATE_DRAWS
    first, size = words.draw(count, draws)
    for start, stop in itertools.pairwise([0, *range(made.max_predictions, count + 1)]):
        number = words.take_first(first[:, start:stop], size[:, start:stop], number)
    return maskable & words.taken_positions()


def _positions(made, chosen):
    at = tf.where(chosen)  # rows and their positions, ascending
    row, position = at[:, 0], at[:, 1]
    counts = _count(chosen)
    before = tf.gather(tf.cumsum(counts, exclusive=True), row)
    slots = tf.stack([row, tf.range(tf.size(row, tf.int64)) - before], 1)
    shape = [tf.size(counts, tf.int64), made.max_predictions]
    positions = tf.ensure_shape(tf.scatter_nd(slots, position, tf.stack(shape)), [None, shape[1]])
    return positions, tf.range(made.max_predictions, dtype=tf.int64) < counts[:, None]


def _corrupted(made, ids, positions, weights, draws):
    fate, word = tf.unstack(draws.uniform(2, made.max_predictions), axis=1)
    slots = tf.where(weights)
    at = tf.stack([slots[:, 0], tf.gather_nd(positions, slots)], 1)
    old, fate, word = tf.gather_nd(ids, at), tf.gather_nd(fate, slots), tf.gather_nd(word, slots)
    random_word = tf.cast(word * len(made.continues_a_word), ids.dtype)
    kept = tf.where(fate < masking.MASK_SHARE + masking.KEPT_SHARE, old, random_word)
    new = tf.where(fate < masking.MASK_SHARE, made.mask, kept)
    return tf.tensor_scatter_nd_update(ids, at, new)


class _Words:
    """As `dynamic_masking._Words`."""

    def __init__(self, maskable, starts, max_size):
        before = tf.pad(maskable[:, :-1], [[0, 0], [1, 0]], constant_values=True)
        begins = maskable & (starts | ~before)
        self._word = tf.cumsum(_integer(begins), 1) - 1  # (b, S)
        self._words = _count(begins)[:, None]
        rows, length = tf.shape(maskable, tf.int64)[0], maskable.shape[1]
        cells = tf.where(maskable)  # (n, 2)
        cells = tf.stack([cells[:, 0], tf.gather_nd(self._word, cells) + 1], 1)
        ones = tf.ones(tf.shape(cells)[:1], tf.int64)
        self._ends = tf.cumsum(tf.scatter_nd(cells, ones, tf.stack([rows, length + 1])), 1)
        self._columns = length + max_size + 1
        self._taken = tf.zeros(tf.stack([rows, self._columns]), tf.bool)
        self._row = tf.range(rows)[:, None, None]
        self._runs = tf.range(max_size, dtype=tf.int64)
        shares = np.cumsum(1 / np.arange(1, max_size + 1))
        self._shares = tf.constant(shares / shares[-1])

    def draw(self, number, draws):
        u, v = tf.unstack(draws.uniform(2, number), axis=1)  # (b, n)
        size = tf.reshape(tf.searchsorted(self._shares, tf.reshape(u, [-1]), "right"), tf.shape(u))
        size = tf.minimum(1 + _integer(size), self._words)
        return _integer(v * _real(self._words - size + 1)), size

    def take_first(self, first, size, room):
        inside = self._runs < size[:, :, None]  # (b, n, k)
        words = tf.where(inside, first[:, :, None] + self._runs, self._columns - 1)
        number = tf.range(first.shape[1], dtype=tf.int64)[:, None] + tf.zeros_like(words)
        at = tf.stack([self._row + tf.zeros_like(words), words], -1)
        earliest = tf.fill(tf.shape(self._taken), tf.constant(first.shape[1], tf.int64))
        earliest = tf.tensor_scatter_nd_min(earliest, at, number)
        free = (tf.gather_nd(earliest, at) == number) & ~tf.gather_nd(self._taken, at)
        free = tf.reduce_all(free | ~inside, 2)
        ends = (tf.gather(self._ends, x, batch_dims=1) for x in (first + size, first))
        tokens = tf.subtract(*ends)
        used = tf.cumsum(tf.where(free, tokens, 0), 1)
        accepted = free & (used <= room[:, None])
        chosen = tf.boolean_mask(at, inside & accepted[:, :, None])
        self._taken = tf.tensor_scatter_nd_update(
            self._taken, chosen, tf.ones(tf.shape(chosen)[:1], tf.bool)
        )
        return room - tf.reduce_sum(tf.where(accepted, tokens, 0), 1)

    def taken_positions(self):
        return tf.gather(self._taken, tf.maximum(self._word, 0), batch_dims=1)
