"""Variables of bfloat16 and float16: a wider master copy in the state, or stochastic rounding.

A step of 1e-3 of a weight is less than half the distance to the next number of bfloat16. Rounded to
nearest it is lost, each time, and the weight never moves. So the step moves a copy as wide as the
rest of the state, from which the variable is rounded; or, without one, the variable is rounded up
or down at random, in proportion to where the result lies between the two neighbours, which gives
the step in the mean.
"""

import keras
from keras import ops

from lamb_tf import _kernels, _replicas
from lamb_tf._types import Tensor

# Explicit digits of the mantissa, and the least distance of two numbers that is taken for one.
FORMATS = {"bfloat16": (7, 2.0**-126), "float16": (10, 2.0**-24)}


def needs_master(variable: keras.Variable) -> bool:
    """Whether this is a variable that rounding to nearest could freeze."""
    return keras.backend.standardize_dtype(variable.dtype) in FORMATS


def sync_master(master: keras.Variable, variable: keras.Variable) -> None:
    """Takes over into `master` what someone else assigned to the variable, element by element.

    Weights that were loaded, averaged or constrained are recognised by themselves: they are not
    what the master copy rounds to. Of the others the copy keeps all digits.
    """
    x, copy = _replicas.read(variable), _replicas.read(master)
    # Bits are compared, since XLA may leave out a cast there and back.
    bits, bits_of_copy = (_kernels.bitcast(v, "int16") for v in (x, ops.cast(copy, x.dtype)))
    master.assign(ops.where(ops.equal(bits, bits_of_copy), copy, ops.cast(x, copy.dtype)))


def round_stochastically(x: Tensor, dtype: str, noise: Tensor) -> Tensor:
    """x in a type of 16 bits, on average x; a number of that type stays what it is.

    Args:
        x: A tensor of float32 or float64.
        dtype: "bfloat16" or "float16".
        noise: Random numbers in [0, 1), as many.
    """
    digits, least = FORMATS[dtype]
    # The bits of the exponent alone are the power of 2 at or below |x|.
    exponent = ops.bitwise_and(_kernels.bitcast(ops.cast(x, "float32"), "int32"), 0x7F800000)
    power = ops.cast(_kernels.bitcast(exponent, "float32"), x.dtype)
    distance = ops.maximum(power * 2.0**-digits, least)
    below = ops.floor(x / distance)
    above = ops.cast(noise, x.dtype) < x / distance - below
    rounded = (below + ops.cast(above, x.dtype)) * distance
    return ops.cast(ops.where(ops.isfinite(x), rounded, x), dtype)
