"""The element-wise parts of the encoder, each as one compiled kernel; `modeling.py` calls them.

Run operation by operation they would read and write the activations many times over, at the speed
of memory. On TensorFlow XLA compiles each of them, forward and backward; the backward kernel
computes the forward values once more instead of reading them back. What is compiled as a whole
anyway (by JAX, or for a TPU) takes them up like any other operations; torch runs them one by one.

All compute in float32 whatever type comes in, and return the type of their first argument; gamma,
beta and the biases are float32.
"""

import functools

import keras
from keras import ops

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


def one_kernel(function):
    """A function of tensors and Python values (these by keyword), as one kernel each way."""
    if keras.backend.backend() != "tensorflow":
        return function
    forward = tf.function(function, jit_compile=True, autograph=False)

    @tf.function(jit_compile=True, autograph=False)
    def backward(upstream, tensors, values):
        sources = [x for x in tensors if x.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            y = function(*tensors, **values)
        gradients = iter(tape.gradient(y, sources, upstream))
        return [next(gradients) if x.dtype.is_floating else None for x in tensors]

    def call(*tensors, **values):
        @tf.custom_gradient
        def run(*tensors):
            return forward(*tensors, **values), lambda dy: backward(dy, tensors, values)

        return run(*[tf.convert_to_tensor(x) for x in tensors])

    return call


@one_kernel
def activated(x, bias, activation):
    """activation(x + bias): "gelu" is x Φ(x) by the formula with tanh (arXiv 1606.08415)."""
    return ops.cast(_ACTIVATIONS[activation](ops.cast(x, "float32") + bias), x.dtype)


_ACTIVATIONS = {
    "gelu": functools.partial(ops.gelu, approximate=True),
    "relu": ops.relu,
    "tanh": ops.tanh,
    "linear": lambda x: x,
}


@one_kernel
def dropout(x, seed, rate):
    """x / (1 − rate), or 0 with probability `rate`; a function of `seed`, int32 of shape (2,)."""
    return ops.cast(_dropped(x, seed, rate), x.dtype)


@one_kernel
def layer_norm(x, gamma, beta, epsilon):
    """x with mean 0 and variance 1 in each row, times gamma, plus beta."""
    return ops.cast(_normalized(ops.cast(x, "float32"), gamma, beta, epsilon), x.dtype)


@one_kernel
def add_and_norm(x, bias, residual, gamma, beta, seed, rate, epsilon):
    """`layer_norm(residual + dropout(x + bias))`."""
    total = ops.cast(residual, "float32") + _dropped(ops.cast(x, "float32") + bias, seed, rate)
    return ops.cast(_normalized(total, gamma, beta, epsilon), x.dtype)


def _normalized(x, gamma, beta, epsilon):
    centered = x - ops.mean(x, axis=-1, keepdims=True)
    variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)
    return centered * ops.rsqrt(variance + epsilon) * gamma + beta


def _dropped(x, seed, rate):
    x = ops.cast(x, "float32")
    return ops.where(kept(ops.shape(x), seed, rate), x / (1.0 - rate), 0.0) if rate else x


def kept(shape, seed, rate):
    """Booleans of this shape, each true with probability 1 − rate, to 32 bits.

    A row is a SplitMix stream that starts where (seed, row) says: cheap enough to be computed
    again for the gradient, the same on every backend, and independent of the compiler. (XLA's own
    generators take most of a step on a CPU.) Streams start anywhere in 32 bits, so a few per cent
    of the rows of a large tensor share a part of their bits, shifted, with another row.
    """
    *outer, width = shape
    rows = 1
    for size in outer:
        rows *= size
    row = _mixed(_mixed(ops.arange(rows, dtype="int32") ^ seed[0]) ^ seed[1])
    column = ops.arange(width, dtype="int32") * _INCREMENT
    bits = _mixed(ops.expand_dims(row, 1) + column)
    return ops.reshape(bits >= round(rate * 2**32) - 2**31, shape)


# The increment is 2³² over the golden ratio (Steele, Lea and Flood, Fast splittable pseudorandom
# number generators, 2014); shifts and factors are those of MurmurHash3's finalizer (Appleby, 2011).
_INCREMENT = 0x9E3779B9 - 2**32
_FIRST_FACTOR, _SECOND_FACTOR = 0x85EBCA6B - 2**32, 0xC2B2AE35 - 2**32


def _mixed(bits):
    """A bijection of 32 bits in which each depends on all."""
    for shift, factor in ((16, _FIRST_FACTOR), (13, _SECOND_FACTOR)):
        bits = (bits ^ _shifted(bits, shift)) * factor
    return bits ^ _shifted(bits, 16)


def _shifted(bits, places):
    """Shifted right with zeros from the left: the type is signed, for torch has no other."""
    return ops.bitwise_and(ops.right_shift(bits, places), 2 ** (32 - places) - 1)
