"""The encoder's element-wise parts and the words' loss, with compiled kernels.

One operation at a time, they would read and write the activations many times, at the speed of
memory. On TensorFlow, XLA compiles each of them, forward and backward; the backward kernel
recomputes the forward values. Programs compiled as a whole (by JAX, or for a TPU) fuse them like
any other operations; torch runs them one by one.

All but `attention_weights` compute in float32 for any input type; all but `look_up` and
`cross_entropy` return the type of their first argument. Gamma, beta and the biases are float32.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator

import keras
from keras import ops

from lamb_tf import compile_target
from official_bert.model import Tensor

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


_plain = []  # not empty within `as_plain_operations`


@contextlib.contextmanager
def as_plain_operations() -> Iterator[None]:
    """Traces without XLA kernels and custom gradients, for a model that is exported."""
    _plain.append(True)
    try:
        yield
    finally:
        _plain.pop()


def _compiled(function: Callable) -> Callable:
    if keras.backend.backend() != "tensorflow":
        return function

    @functools.cache
    def kernel(target):  # `_row_sums` depends on it
        return tf.function(function, jit_compile=True, autograph=False)

    return lambda *args, **values: kernel(compile_target.target())(*args, **values)


def one_kernel(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of tensors and keyword Python values, as one kernel forward and one backward."""
    if keras.backend.backend() != "tensorflow":
        return function
    forward = _compiled(function)

    @_compiled
    def backward(upstream, tensors, values):
        sources = [x for x in tensors if x.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            y = function(*tensors, **values)
        gradients = iter(tape.gradient(y, sources, upstream))
        return [next(gradients) if x.dtype.is_floating else None for x in tensors]

    def call(*tensors, **values):
        if _plain:
            return function(*tensors, **values)

        @tf.custom_gradient
        def run(*tensors):
            return forward(*tensors, **values), lambda dy: backward(dy, tensors, values)

        return run(*[tf.convert_to_tensor(x) for x in tensors])

    return call


@one_kernel
def activated(x: Tensor, bias: Tensor, activation: str) -> Tensor:
    """activation(x + bias), the activation by its name in `BertConfig.hidden_act`.

    GELU is x Φ(x) (arXiv 1606.08415): by the paper's formula with tanh, or exactly, with erf.
    """
    return ops.cast(_ACTIVATIONS[activation](ops.cast(x, "float32") + bias), x.dtype)


def _exact_gelu(x):
    if not _plain:
        return ops.gelu(x, approximate=False)
    return 0.5 * x * (1.0 + ops.erf(x * 2**-0.5))  # exporters do not know TensorFlow's Erfc


_ACTIVATIONS = {
    "gelu": functools.partial(ops.gelu, approximate=True),
    "gelu_new": functools.partial(ops.gelu, approximate=True),
    "gelu_erf": _exact_gelu,
    "relu": ops.relu,
    "tanh": ops.tanh,
    "linear": lambda x: x,
}


@one_kernel
def dropout(x: Tensor, seed: Tensor, rate: float) -> Tensor:
    """x / (1 − rate), or 0 with probability `rate`; a function of `seed`, int32: see `kept`."""
    return ops.cast(_dropped(x, seed, rate), x.dtype)


@one_kernel
def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    """x with mean 0 and variance 1 in each row, times gamma, plus beta."""
    return ops.cast(_normalized(ops.cast(x, "float32"), gamma, beta, epsilon), x.dtype)


@one_kernel
def add_and_norm(
    x: Tensor,
    bias: Tensor,
    residual: Tensor,
    gamma: Tensor,
    beta: Tensor,
    seed: Tensor,
    rate: float,
    epsilon: float,
) -> Tensor:
    """`layer_norm(residual + dropout(x + bias))`."""
    total = ops.cast(residual, "float32") + _dropped(ops.cast(x, "float32") + bias, seed, rate)
    return ops.cast(_normalized(total, gamma, beta, epsilon), x.dtype)


def attention_weights(
    scores: Tensor, mask_bias: Tensor, seed: Tensor, scale: float, rate: float
) -> Tensor:
    """`dropout(softmax(scale · scores + mask_bias))`, scores (B, N, R, S).

    The bias is (B, 1, 1, S), or (B, 1, R, S) where keys are masked for some queries only.

    The softmax is TensorFlow's, which is faster than XLA's, in the type of the scores (float16
    ones must be below 65,504 before scaling). Its gradient, for the scores only, is one kernel.
    """

    def forward(scores):
        weights = ops.softmax(scale * scores + mask_bias)
        return weights, dropout(weights, seed, rate=rate) if rate else weights

    if _plain or keras.backend.backend() != "tensorflow":
        return forward(scores)[1]

    @tf.custom_gradient
    def run(scores):
        weights, dropped = forward(scores)
        return dropped, lambda dy: _attention_gradient(dy, weights, seed, scale=scale, rate=rate)

    return run(scores)


@_compiled
def _attention_gradient(upstream, weights, seed, scale, rate):
    weights = ops.cast(weights, "float32")
    product = _dropped(upstream, seed, rate) * weights
    return ops.cast(scale * (product - _row_sums(product) * weights), upstream.dtype)


def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The cross-entropy of each row in nats, and the class with its largest logit, int32.

    (…, V) float32 logits and (…) labels → (…), (…). TensorFlow's own cross-entropy is slow on CPUs:
    it computes class by class, without vector instructions. Its softmax uses them.
    """
    labels = ops.cast(labels, "int32")
    if _plain or keras.backend.backend() != "tensorflow":
        loss = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        return loss, ops.argmax(logits, axis=-1)

    @tf.custom_gradient
    def run(logits):
        # `ops.argmax` passes over the logits several times to distinguish −0 from 0.
        best = tf.argmax(logits, axis=-1, output_type="int32")
        probabilities = tf.nn.softmax(logits)

        def of(values, classes):
            return tf.gather(values, classes, batch_dims=classes.shape.rank)

        # The best class has a probability of at least 1/V, so its logarithm is finite.
        loss = of(logits, best) - of(logits, labels) - tf.math.log(of(probabilities, best))
        gradient = functools.partial(_cross_entropy_gradient, probabilities, labels)
        return (loss, best), lambda d_loss, _: gradient(d_loss)

    return run(logits)


@_compiled
def _cross_entropy_gradient(probabilities, labels, d_loss):
    is_label = ops.equal(ops.arange(probabilities.shape[-1], dtype="int32"), labels[..., None])
    return d_loss[..., None] * (probabilities - ops.cast(is_label, "float32"))


def look_up(table: Tensor, ids: Tensor, dtype: str) -> tuple[Tensor, Tensor]:
    """Rows of a float32 table, and all of it, both as `dtype`: (V, H), (B, S) → (B, S, H), (V, H).

    The table is read twice, so its gradient is summed here, in float32.
    """
    if _plain or keras.backend.backend() != "tensorflow":
        return ops.cast(ops.take(table, ids, axis=0), dtype), ops.cast(table, dtype)

    @tf.custom_gradient
    def run(table):
        def backward(d_rows, d_all):
            rows = tf.reshape(tf.cast(d_rows, table.dtype), (-1, table.shape[1]))
            indices = tf.reshape(tf.cast(ids, tf.int32), (-1, 1))
            return tf.tensor_scatter_nd_add(tf.cast(d_all, table.dtype), indices, rows)

        return (tf.cast(tf.gather(table, ids), dtype), tf.cast(table, dtype)), backward

    return run(tf.convert_to_tensor(table))


def _normalized(x, gamma, beta, epsilon):
    def forward(x):
        centered = x - _row_means(x)
        scale = ops.rsqrt(_row_means(ops.square(centered)) + epsilon)
        return centered * scale, scale

    if _plain or keras.backend.backend() != "tensorflow":
        return forward(x)[0] * gamma + beta

    @tf.custom_gradient  # fewer passes than TensorFlow's gradient
    def run(x, gamma, beta):
        normal, scale = forward(x)

        def backward(dy):
            d_normal = dy * gamma
            along = normal * _row_means(d_normal * normal)
            rows = list(range(x.ndim - 1))
            return (
                scale * (d_normal - _row_means(d_normal) - along),
                ops.sum(dy * normal, rows),
                ops.sum(dy, rows),
            )

        return normal * gamma + beta, backward

    return run(x, gamma, beta)


def _row_means(x):
    return _row_sums(x) / x.shape[-1]


def _row_sums(x):
    """The sum over the last axis, kept with size 1."""
    if not compile_target.compiles_for_cpu():
        return ops.sum(x, axis=-1, keepdims=True)
    # On CPU, XLA's matmul beats its reduction.
    width = x.shape[-1]
    sums = ops.matmul(ops.reshape(x, (-1, width)), ops.ones((width, 1), x.dtype))
    return ops.reshape(sums, (*ops.shape(x)[:-1], 1))


def _dropped(x, seed, rate):
    x = ops.cast(x, "float32")
    return ops.where(kept(ops.shape(x), seed, rate), x / (1.0 - rate), 0.0) if rate else x


def kept(shape: tuple[int | Tensor, ...], seed: Tensor, rate: float) -> Tensor:
    """Booleans of this shape, each true with probability 1 − rate, to 32 bits.

    The seed is int32, (2,) or (B, 2): one for each of B examples, which divide the first axis
    equally. An example's booleans then depend only on its own seed.

    A row is a SplitMix stream whose 64-bit start and key follow from (seed, row): cheap to compute
    again for the gradient, and the same with every backend and compiler. (XLA's own generators take
    most of a step on a CPU.) With a 32-bit start only, one row in a hundred of a large tensor would
    share a part of its bits, shifted, with another.
    """
    *outer, width = shape
    rows = 1
    for size in outer:
        rows *= size
    seed = ops.reshape(seed, (-1, 2))
    first, second = shuffled(seed[:, :1], seed[:, 1:])  # (B, 1)
    of_example = ops.arange(rows // ops.shape(seed)[0], dtype="int32")
    start, key = (ops.reshape(word, (-1, 1)) for word in shuffled(of_example ^ first, second))
    column = ops.arange(width, dtype="int32") * _INCREMENT
    bits = _mixed(start + column, key)
    return ops.reshape(bits >= round(rate * 2**32) - 2**31, shape)


# The increment is 2³² over the golden ratio (Steele, Lea and Flood, Fast splittable pseudorandom
# number generators, 2014); shifts and factors are those of MurmurHash3's finalizer (Appleby, 2011).
_INCREMENT = 0x9E3779B9 - 2**32
_FIRST_FACTOR, _SECOND_FACTOR = 0x85EBCA6B - 2**32, 0xC2B2AE35 - 2**32


def shuffled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A bijection of 64 bits, as two words, each bit depending on all: a Feistel network."""
    for turn in (1, 2, 3):
        x, y = y ^ _mixed(x + turn), x
    return x, y


def _mixed(bits, key=0):
    """A bijection of 32 bits for each key, each bit depending on all."""
    bits = (bits ^ _shifted(bits, 16)) * _FIRST_FACTOR ^ key
    bits = (bits ^ _shifted(bits, 13)) * _SECOND_FACTOR
    return bits ^ _shifted(bits, 16)


def _shifted(bits, places):
    """Logical shift to the right; the type is signed because torch has no other."""
    return ops.bitwise_and(ops.right_shift(bits, places), 2 ** (32 - places) - 1)
