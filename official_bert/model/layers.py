"""Layers of encoder and heads, built with their checkpoint names and initial values; dropout.

Every variable's `path` is its name in the official TensorFlow 1 checkpoints, for example
`bert/encoder/layer_0/attention/output/LayerNorm/gamma`: one language for exclusions, telemetry,
checkpoints and conversion. All shapes follow from the config, so a layer is built when made.
"""

import contextlib
import math
import zlib
from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from official_bert.model import Tensor, fused
from official_bert.model.config import BertConfig

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

LAYER_NORM_EPSILON = 1e-12
TRUNCATED_AT = 2.0  # standard deviations


def _ratio(a):
    density = math.exp(-(a**2) / 2) / math.sqrt(2 * math.pi)
    return math.sqrt(1 - 2 * a * density / math.erf(a / math.sqrt(2)))


# The share of the standard deviation that truncation leaves: 0.8796.
STDDEV_RATIO = _ratio(TRUNCATED_AT)


class LayerFactory:
    """Makes built sub-layers with the model's dtype and initial values, at a path.

    Args:
        config: A `BertConfig`.
        dtype: A Keras dtype policy.
        seed: Integer that determines, with its path, each variable's initial value; `None` leaves
            values unset.
    """

    def __init__(self, config: BertConfig, dtype: keras.DTypePolicy, seed: int | None):
        self.config, self.dtype, self._seed = config, dtype, seed

    def scope(self, path: str) -> contextlib.AbstractContextManager:
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
    """A dense layer, x · kernel + bias, with a float32 bias in any arithmetic type."""

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
        # Not `ops.add`: TensorFlow would sum the bias gradient in bfloat16.
        return product(x, self) + ops.cast(self.bias, x.dtype)


class OutputHead(keras.Layer):
    """One dense layer of K outputs, (B, H) → (B, K) in float32, named as in official checkpoints.

    Args:
        parts: Config, dtype and initial values.
        name: Of the layer.
        path: Folder of `output_weights` (K, H) and `output_bias` (K,), or empty.
        outputs: K.
    """

    def __init__(self, parts: LayerFactory, name: str, path: str, outputs: int):
        super().__init__(name=name, dtype=parts.dtype)
        weights = f"{path}/output_weights".lstrip("/")
        # Not `add_weight`, which would put the layer's name into the variables' paths.
        with parts.scope(path) if path else contextlib.nullcontext():
            self.output_weights = keras.Variable(
                parts.initializer(weights),
                shape=(outputs, parts.config.hidden_size),
                dtype=self.variable_dtype,
                name="output_weights",
            )
            self.output_bias = keras.Variable(
                "zeros", shape=(outputs,), dtype=self.variable_dtype, name="output_bias"
            )
        self.built = True

    def call(self, x: Tensor) -> Tensor:
        scores = matmul_transposed(x, self.output_weights) + self.output_bias
        return ops.cast(scores, "float32")


class Dropout:
    """Dropout of one call of the model, seeded by a key or else by Keras' generator.

    The key is (2,) for all examples together, or (B, 2), one per example. Keras' own generator
    counts calls in a variable, which can neither start at any step nor differ between replicas.
    """

    def __init__(
        self, training: bool, seed_generator: keras.random.SeedGenerator, key: Tensor | None
    ):
        self._training, self._seed_generator = training, seed_generator
        self._key, self._drawn = None, 0
        if key is not None:  # shuffled, so that neighbouring keys share no seeds
            key = ops.cast(key, "int32")
            self._key = ops.stack(fused.shuffled(key[..., 0], key[..., 1]), axis=-1)

    def __call__(self, x: Tensor, rate: float) -> Tensor:
        return fused.dropout(x, self._seed(), rate=rate) if self._training and rate else x

    def add_and_norm(
        self,
        x: Tensor,
        bias: Tensor,
        residual: Tensor,
        layer: keras.layers.LayerNormalization,
        rate: float,
    ) -> Tensor:
        """`layer` of the residual and dropout(x + bias)."""
        rate, seed = self._rate_and_seed(rate)
        return fused.add_and_norm(
            x, bias, residual, layer.gamma, layer.beta, seed, rate=rate, epsilon=layer.epsilon
        )

    def attention_weights(
        self, scores: Tensor, mask_bias: Tensor, scale: float, rate: float
    ) -> Tensor:
        """Dropout of the softmax of scaled scores and the mask."""
        rate, seed = self._rate_and_seed(rate)
        return fused.attention_weights(scores, mask_bias, seed, scale=scale, rate=rate)

    def _rate_and_seed(self, rate):
        rate = rate if self._training else 0.0
        return rate, self._seed() if rate else ops.zeros(2, "int32")

    def _seed(self):
        if self._key is None:
            return ops.cast(self._seed_generator.next(), "int32")
        self._drawn += 1
        return self._key + ops.convert_to_tensor([0, self._drawn], "int32")


def seeds_of_rows(seed: int, step: int | Tensor, rows: Tensor) -> Tensor:
    """Dropout seeds of rows of a step's batch: int32, (B, 2), no two of a run equal.

    They depend only on a row's place in the global batch, not on devices or micro-batches.

    Args:
        seed: Of the run.
        step: The step, from 0.
        rows: (B,), int32: numbers of the rows in the global batch, from 0.
    """
    rows = ops.cast(rows, "int32")
    first, second = fused.shuffled(ops.zeros_like(rows) + step, rows)
    return ops.stack([first ^ seed, second], axis=-1)


def activated(x: Tensor, dense: Dense, activation: str) -> Tensor:
    """The activation of `dense(x)`; bias and activation in one kernel."""
    return fused.activated(product(x, dense), dense.bias, activation=activation)


def norm(x: Tensor, layer: keras.layers.LayerNormalization) -> Tensor:
    """`layer(x)`, a LayerNorm, in one kernel."""
    return fused.layer_norm(x, layer.gamma, layer.beta, epsilon=layer.epsilon)


def product(x: Tensor, dense: Dense) -> Tensor:
    """`dense(x)` without its bias, for a kernel that adds it."""
    return ops.matmul(x, dense.kernel)


def matmul_transposed(x: Tensor, y: Tensor) -> Tensor:
    """x · yᵀ, on the last two axes. Through Keras, TensorFlow would also transpose a gradient."""
    if keras.backend.backend() == "tensorflow":
        return tf.linalg.matmul(x, y, transpose_b=True)
    return ops.matmul(x, ops.swapaxes(y, -1, -2))


def truncated_normal(
    stddev: float, seed: int, path: str
) -> Callable[[tuple[int, ...], str], Tensor]:
    """A Keras initializer: a normal distribution truncated at 2 `stddev`.

    As in the official code, `stddev` is the normal's before truncation; the values' own is
    `STDDEV_RATIO` times as large, 0.88 `stddev`.

    Args:
        stddev: Standard deviation of the normal.
        seed: Integer, the same for all variables of a model.
        path: The variable's path, so that its values depend on no other variable.
    """

    def initial_values(shape, dtype):
        # Keras' initializers give different values on each backend.
        rng = np.random.default_rng(zlib.crc32(f"{seed}/{path}".encode()))
        values = rng.standard_normal(shape, np.float32)
        while (outside := np.abs(values) > TRUNCATED_AT).any():
            values[outside] = rng.standard_normal(np.count_nonzero(outside), np.float32)
        return ops.convert_to_tensor(stddev * values, dtype)

    return initial_values


def unset(shape: tuple[int, ...], dtype: str) -> Tensor:
    """A Keras initializer for values about to be replaced: uninitialized memory.

    On TensorFlow, large variables then take no memory before they are assigned.
    """
    if keras.backend.backend() == "tensorflow":
        return tf.raw_ops.Empty(shape=shape, dtype=dtype)
    return ops.zeros(shape, dtype)
