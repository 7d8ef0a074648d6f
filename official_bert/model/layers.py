"""Layers of encoder and heads, built with their names in the checkpoints and their initial values.

Every variable's `path` is its name in the official TensorFlow 1 checkpoints, for example
`bert/encoder/layer_0/attention/output/LayerNorm/gamma`: one language for exclusions, telemetry,
checkpoints and conversion. All shapes follow from the config, so a layer is built when made.
"""

import math
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager

import keras
import numpy as np
from keras import ops

from official_bert.model import fused
from official_bert.model.config import BertConfig
from official_bert.model.tensor_types import Tensor

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

LAYER_NORM_EPSILON = 1e-12
TRUNCATED_AT = 2.0  # standard deviations of the normal that is cut


def _ratio(a):
    density = math.exp(-(a**2) / 2) / math.sqrt(2 * math.pi)
    return math.sqrt(1 - 2 * a * density / math.erf(a / math.sqrt(2)))


# What cutting leaves of the standard deviation: 0.8796.
STDDEV_RATIO = _ratio(TRUNCATED_AT)


class LayerFactory:
    """Makes built sub-layers with the model's dtype and initial values, at a path.

    Args:
        config: A `BertConfig`.
        dtype: A Keras dtype policy.
        seed: Integer from which, with its path, each variable's initial value follows; `None`
            leaves them unset.
    """

    def __init__(self, config: BertConfig, dtype: keras.DTypePolicy, seed: int | None):
        self.config, self.dtype, self._seed = config, dtype, seed

    def scope(self, path: str) -> AbstractContextManager:
        """The context in which a layer's own variables get paths under `path`."""
        parent, _, name = path.rpartition("/")
        return keras.name_scope(name, override_parent=parent)

    def initializer(self, path: str) -> Callable[..., Tensor]:
        """The Keras initializer of the variable at a path."""
        if self._seed is None:
            return unset
        return truncated_normal(self.config.initializer_range, self._seed, path)

    def layer_norm(self, path: str) -> keras.layers.LayerNormalization:
        """A built LayerNorm over hidden vectors."""
        parent, _, name = path.rpartition("/")
        layer = keras.layers.LayerNormalization(
            epsilon=LAYER_NORM_EPSILON, dtype=self.dtype, name=name
        )
        with self.scope(parent):
            layer.build((None, self.config.hidden_size))
        return layer


class Dense(keras.Layer):
    """A dense layer, x · kernel + bias; or its weights, for a fused kernel that adds the bias.

    The bias is float32 whatever the type of the arithmetic.
    """

    def __init__(self, parts: LayerFactory, path: str, units: int, inputs: int | None = None):
        parent, _, name = path.rpartition("/")
        super().__init__(name=name, dtype=parts.dtype)
        with parts.scope(parent):
            self.kernel = self.add_weight(
                (inputs or parts.config.hidden_size, units),
                initializer=parts.initializer(f"{path}/kernel"),
                name="kernel",
            )
            self.bias = self.add_weight((units,), initializer="zeros", autocast=False, name="bias")
        self.built = True

    def call(self, x: Tensor) -> Tensor:
        # Not `ops.add`: TensorFlow would sum up the bias gradient of bfloat16 in bfloat16.
        return product(x, self) + ops.cast(self.bias, x.dtype)


def activated(x: Tensor, dense: Dense, activation: str) -> Tensor:
    """The activation of `dense(x)`, bias and activation in one kernel."""
    return fused.activated(product(x, dense), dense.bias, activation=activation)


def norm(x: Tensor, layer: keras.layers.LayerNormalization) -> Tensor:
    """`layer(x)`, a LayerNorm, in one kernel."""
    return fused.layer_norm(x, layer.gamma, layer.beta, epsilon=layer.epsilon)


def product(x: Tensor, dense: Dense) -> Tensor:
    """`dense(x)` without its bias, for a kernel that adds it."""
    return ops.matmul(x, dense.kernel)


def matmul_transposed(x: Tensor, y: Tensor) -> Tensor:
    """x · yᵀ, the last two axes of y transposed. Through Keras a gradient would be, too."""
    if keras.backend.backend() == "tensorflow":
        return tf.linalg.matmul(x, y, transpose_b=True)
    return ops.matmul(x, ops.swapaxes(y, -1, -2))


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
