"""Random numbers and operations of `dynamic_masking` as tensors, for hosts that run no Python.

A key is the BLAKE2b digest (RFC 7693) of a text of at most 128 bytes, which is one block. NumPy's
Philox is Philox4x64-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011). Its
counter starts at 1, and each count gives four words. All arithmetic is modulo 2^64.
"""

import functools
import math
from typing import Any

import numpy as np
import tensorflow as tf

# Of BLAKE2b: its start, the order of the message's words in each round, rotations.
_START = (
    (0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1),
    (0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179),
)
_MESSAGE_ORDERS = (
    "0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8",
    "905724afe1bc683d", "2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a",
    "6fe9b308c2d714a5", "a2847615fb9e3cd0", "0123456789abcdef", "ea489fd61c02b753",
)  # fmt: skip
_ROTATIONS = (32, 24, 16, 63)
_BLOCK, _DIGEST = 128, 16  # bytes

# Of Philox.
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_KEY_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10

# The two long functions are traced once for the graphs of all hosts.
_KEYS, _NUMBER = tf.TensorSpec([None, 2], tf.uint64), tf.TensorSpec([], tf.int64)


@tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
def keys_of(texts: tf.Tensor) -> tf.Tensor:
    """The key of each text: (K, 2), uint64; as `hashlib.blake2b(text, digest_size=16).digest()`.

    Args:
        texts: (K,), strings of at most 128 bytes.
    """
    message = tf.io.decode_raw(texts, tf.int64, fixed_length=_BLOCK)
    message = tf.bitcast(message, tf.uint64)  # (K, 16)
    xor, zeros = tf.bitwise.bitwise_xor, tf.zeros_like(message[:, :4])
    chain = zeros + _words(*_START[0]), zeros + _words(*_START[1])
    chain = xor(chain[0], _words(0x01010000 + _DIGEST, 0, 0, 0)), chain[1]
    length = tf.cast(tf.strings.length(texts), tf.uint64)[:, None]
    state = [*chain, zeros + _words(*_START[0]), zeros + _words(*_START[1])]
    state[3] = xor(state[3], tf.concat([length, zeros[:, :3]], 1))
    state[3] = xor(state[3], _words(0, 0, 2**64 - 1, 0))  # the last block
    for order in _MESSAGE_ORDERS:
        words = tf.gather(message, [int(digit, 16) for digit in order], axis=1)
        state = _mixed(state[0], state[1], state[2], state[3], words)
    return xor(xor(chain[0], state[0]), state[2])[:, :2]


def _mixed(a, b, c, d, message):
    """A round: the columns of the state (rows a, b, c, d of four words), then its diagonals."""
    a, b, c, d = _quarters(a, b, c, d, message[:, 0:8:2], message[:, 1:8:2])
    b, c, d = (tf.roll(row, -n, 1) for n, row in enumerate((b, c, d), 1))
    a, b, c, d = _quarters(a, b, c, d, message[:, 8::2], message[:, 9::2])
    return a, *(tf.roll(row, n, 1) for n, row in enumerate((b, c, d), 1))


def _quarters(a, b, c, d, x, y):
    for more, turns in ((x, _ROTATIONS[:2]), (y, _ROTATIONS[2:])):
        a = a + b + more
        d = _rotated(tf.bitwise.bitwise_xor(d, a), turns[0])
        c = c + d
        b = _rotated(tf.bitwise.bitwise_xor(b, c), turns[1])
    return a, b, c, d


def _rotated(x, bits):
    right = tf.bitwise.right_shift(x, _word(bits))
    return tf.bitwise.bitwise_or(right, tf.bitwise.left_shift(x, _word(64 - bits)))


def _words(*values):
    return tf.constant(np.array(values, np.uint64))


@tf.function(autograph=False, input_signature=[_KEYS, _NUMBER, _NUMBER])
def philox(keys: tf.Tensor, start: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Words `start` … `start + count` of the streams of some keys.

    Args:
        keys: (K, 2), uint64.
        start: Number of the first word, int64.
        count: Number of words, int64.

    Returns:
        (K, count), uint64; what `np.random.Philox(key=…).random_raw` gives.
    """
    skipped, before = start // 4, start % 4
    counter = tf.cast(tf.range(skipped, (start + count + 3) // 4) + 1, tf.uint64)
    words = [counter[None] + tf.zeros_like(keys[:, :1]), *3 * [tf.zeros((1, 1), tf.uint64)]]
    key = [keys[:, :1], keys[:, 1:]]
    for number in range(_ROUNDS):
        words = _round(words, [k + _word(number * s) for k, s in zip(key, _KEY_STEPS, strict=True)])
    stream = tf.reshape(tf.stack(words, 2), tf.stack([tf.shape(keys)[0], -1]))
    return stream[:, before : before + count]


def _round(words, keys):
    (high_0, low_0), (high_1, low_1) = map(_product, words[::2], _MULTIPLIERS)
    xor = tf.bitwise.bitwise_xor
    return [xor(xor(high_1, words[1]), keys[0]), low_1, xor(xor(high_0, words[3]), keys[1]), low_0]


def _product(x, multiplier):
    """The high and the low word of x times a constant, from products of 32-bit halves."""
    x_high, x_low = _halves(x)
    m_high, m_low = map(_word, divmod(multiplier, 2**32))
    cross_0, cross_1, low = x_high * m_low, x_low * m_high, x_low * m_low
    carry = _halves(_halves(low)[0] + _halves(cross_0)[1] + _halves(cross_1)[1])[0]
    high = x_high * m_high + _halves(cross_0)[0] + _halves(cross_1)[0] + carry
    return high, x * _word(multiplier)


def _halves(x):
    return tf.bitwise.right_shift(x, _word(32)), tf.bitwise.bitwise_and(x, _word(2**32 - 1))


def _word(value):
    return tf.constant(np.uint64(value % 2**64))


def permutation(key: tf.Tensor, count: int | tf.Tensor) -> tf.Tensor:
    """As `dynamic_masking.permutation`: (count,), int64; the key is (2,), uint64."""
    words = philox(key[None], tf.constant(0, tf.int64), tf.cast(count, tf.int64))[0]
    signed = tf.bitcast(tf.bitwise.bitwise_xor(words, _word(2**63)), tf.int64)  # in the same order
    return tf.cast(tf.argsort(signed, stable=True), tf.int64)


def _rows(at):
    rows = tf.range(tf.shape(at, tf.int64)[0])
    return tf.reshape(rows, [-1, *[1] * (len(at.shape) - 1)])


def _cells(row, at):
    return tf.stack([row + tf.zeros_like(at), at], -1)


def _values(x, at, values):
    return tf.broadcast_to(tf.cast(values, x.dtype), tf.shape(at))


def _searchsorted(x, values, side):
    found = tf.searchsorted(x, tf.reshape(values, [-1]), side, tf.int64)
    return tf.reshape(found, tf.shape(values))


class Tensors:
    """The operations of `dynamic_masking.NumPy` on tensors, in a graph too."""

    where, minimum, maximum, round = tf.where, tf.minimum, tf.maximum, tf.round
    constant, zeros, zeros_like, as_type = tf.constant, tf.zeros, tf.zeros_like, tf.cast
    take, searchsorted, rows = tf.gather, _searchsorted, _rows
    integer = functools.partial(tf.cast, dtype=tf.int64)
    real = functools.partial(tf.cast, dtype=tf.float64)
    range = functools.partial(tf.range, dtype=tf.int64)
    pick = functools.partial(tf.gather, batch_dims=1)
    pick_cells = staticmethod(lambda x, row, at: tf.gather_nd(x, _cells(row, at)))
    length = staticmethod(lambda x: tf.shape(x, tf.int64)[0])
    cells = staticmethod(lambda mask: tf.unstack(tf.where(mask), 2, 1))
    count = staticmethod(lambda mask: tf.reduce_sum(tf.cast(mask, tf.int64), 1))
    total = functools.partial(tf.reduce_sum, axis=1)
    every = functools.partial(tf.reduce_all, axis=-1)
    cumsum = functools.partial(tf.cumsum, axis=-1)
    sort = functools.partial(tf.sort, axis=1)
    argmax = staticmethod(lambda x: tf.argmax(tf.cast(x, tf.int64), 1))
    is_zero = staticmethod(lambda x: False)  # not known before the graph runs

    @staticmethod
    def put(x: tf.Tensor, row: tf.Tensor, at: tf.Tensor, values: Any) -> tf.Tensor:
        return tf.tensor_scatter_nd_update(x, _cells(row, at), _values(x, at, values))

    @staticmethod
    def put_least(x: tf.Tensor, row: tf.Tensor, at: tf.Tensor, values: Any) -> tf.Tensor:
        return tf.tensor_scatter_nd_min(x, _cells(row, at), _values(x, at, values))

    @staticmethod
    def counted(shape: Any, row: tf.Tensor, at: tf.Tensor) -> tf.Tensor:
        return tf.scatter_nd(_cells(row, at), tf.ones_like(at), tf.stack(shape))

    @staticmethod
    def after_first(mask: tf.Tensor) -> tf.Tensor:
        return tf.pad(mask[:, :-1], [[0, 0], [1, 0]], constant_values=True)


class Draws:
    """As `dynamic_masking.Draws`, with keys (K, 2), uint64."""

    ops = Tensors

    def __init__(self, keys: tf.Tensor, rows: int):
        self._keys, self._rows, self._used = keys, rows, 0

    def uniform(self, *shape: int) -> tf.Tensor:
        """Numbers in [0, 1), `shape` of them for each row: (K · rows, *shape), float64."""
        count = self._rows * math.prod(shape)
        raw = philox(self._keys, *(tf.constant(n, tf.int64) for n in (self._used, count)))
        self._used += count
        bits = tf.cast(tf.bitwise.right_shift(raw, _word(11)), tf.float64)
        return tf.reshape(bits, (-1, *shape)) * 2.0**-53
