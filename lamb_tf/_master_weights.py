"""Variables of bfloat16 and float16: a wider master copy in the state, or stochastic rounding.

A step of 1e-3 of a weight is less than half the distance to the next number of bfloat16: rounded to
nearest, it is always lost. So a step moves a copy as wide as the rest of the state, from which the
variable is rounded; without a copy, the variable is rounded up or down at random, with the
probabilities that give the exact step on average.
"""

import keras
from keras import ops

from lamb_tf import _kernels, _replicas
from lamb_tf._types import Tensor

# Explicit digits of the mantissa, and the least distance between two numbers in use.
FORMATS = {"bfloat16": (7, 2.0**-126), "float16": (10, 2.0**-24)}


def needs_master(variable: keras.Variable) -> bool:
    """Whether rounding to nearest could freeze the variable."""
    return keras.backend.standardize_dtype(variable.dtype) in FORMATS


def sync_master(master: keras.Variable, variable: keras.Variable) -> None:
    """Copies external assignments to the variable into `master`, element by element.

    An element that was loaded, averaged or constrained differs from the rounded master copy. For
    all others the copy keeps its digits.
    """
    x, copy = _replicas.read(variable), _replicas.read(master)
    # Bits are compared, since XLA may leave out a cast there and back.
    bits, bits_of_copy = (_kernels.bitcast(v, "int16") for v in (x, ops.cast(copy, x.dtype)))
    master.assign(ops.where(ops.equal(bits, bits_of_copy), copy, ops.cast(x, copy.dtype)))


def round_stochastically(x: Tensor, dtype: str, noise: Tensor) -> Tensor:
    """Rounds x to 16 bits with the mean x; numbers of that type stay unchanged.

    Args:
        x: A tensor of float32 or float64.
        dtype: "bfloat16" or "float16".
        noise: Uniform random numbers in [0, 1), of the shape of x.
    """
    digits, least = FORMATS[dtype]
    # The exponent's bits are the power of 2 at or below |x|.
    exponent = ops.bitwise_and(_kernels.bitcast(ops.cast(x, "float32"), "int32"), 0x7F800000)
    power = ops.cast(_kernels.bitcast(exponent, "float32"), x.dtype)
    distance = ops.maximum(power * 2.0**-digits, least)
    below = ops.floor(x / distance)
    above = ops.cast(noise, x.dtype) < x / distance - below
    rounded = (below + ops.cast(above, x.dtype)) * distance
    return ops.cast(ops.where(ops.isfinite(x), rounded, x), dtype)
