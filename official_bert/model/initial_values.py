"""Initial values that follow from a seed and a variable's path alone: equal on every backend."""

import math
import zlib
from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from official_bert.model.tensor_types import Tensor

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

TRUNCATED_AT = 2.0  # standard deviations of the normal that is cut


def _ratio(a):
    density = math.exp(-(a**2) / 2) / math.sqrt(2 * math.pi)
    return math.sqrt(1 - 2 * a * density / math.erf(a / math.sqrt(2)))


# What cutting leaves of the standard deviation: 0.8796.
STDDEV_RATIO = _ratio(TRUNCATED_AT)


def truncated_normal(
    stddev: float, seed: int, path: str
) -> Callable[[tuple[int, ...], str], Tensor]:
    """A Keras initializer: a normal distribution of which nothing beyond 2 `stddev` is taken.

    As in the official code, `stddev` is that of the normal before it is cut; the values' own
    standard deviation is `STDDEV_RATIO` times that, 0.88 `stddev`.

    Args:
        stddev: Standard deviation of the normal.
        seed: Integer, the same for all variables of a model.
        path: The variable's path, so that its values depend on no other variable.
    """

    def initial_values(shape, dtype):
        # Keras' initializers draw from the backend's own generator: other values on each.
        rng = np.random.default_rng(zlib.crc32(f"{seed}/{path}".encode()))
        values = rng.standard_normal(shape, np.float32)
        while (outside := np.abs(values) > TRUNCATED_AT).any():
            values[outside] = rng.standard_normal(np.count_nonzero(outside), np.float32)
        return ops.convert_to_tensor(stddev * values, dtype)

    return initial_values


def unset(shape: tuple[int, ...], dtype: str) -> Tensor:
    """A Keras initializer for values that are about to be replaced: whatever the memory holds.

    On TensorFlow the memory of large variables is not touched, and so not taken, before then.
    """
    if keras.backend.backend() == "tensorflow":
        return tf.raw_ops.Empty(shape=shape, dtype=dtype)
    return ops.zeros(shape, dtype)
