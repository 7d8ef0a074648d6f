"""Dropout of one call of a model: a function of seeds, or drawn from the model's generator."""

import keras
from keras import ops

from official_bert.model import fused
from official_bert.model.tensor_types import Tensor


def seeds_of_rows(seed: int, step: int | Tensor, rows: Tensor) -> Tensor:
    """The seeds of dropout in rows of a step's batch: int32 of shape (B, 2), no two of a run equal.

    They depend only on the place of a row in the global batch: neither on how many devices share
    the batch, nor on the number of micro-batches.

    Args:
        seed: Of the run.
        step: The step, from 0.
        rows: (B,), int32: numbers of the rows in the global batch, from 0.
    """
    rows = ops.cast(rows, "int32")
    first, second = fused.shuffled(ops.zeros_like(rows) + step, rows)
    return ops.stack([first ^ seed, second], axis=-1)


class Dropout:
    """Dropout of one call of the model.

    With a key, (2,) for all examples together or (B, 2) for each example its own, its seeds follow
    from that: Keras' own generator counts calls in a variable, which can neither start at any step
    nor differ between replicas.
    """

    def __init__(
        self, training: bool, seed_generator: keras.random.SeedGenerator, key: Tensor | None
    ):
        self._training, self._seed_generator = training, seed_generator
        self._key, self._drawn = None, 0
        if key is not None:  # shuffled, so that neighbouring keys do not count the same seeds
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
        """`layer`'s norm of the residual and of x and its bias, which are dropped."""
        rate, seed = self._rate_and_seed(rate)
        return fused.add_and_norm(
            x, bias, residual, layer.gamma, layer.beta, seed, rate=rate, epsilon=layer.epsilon
        )

    def attention_weights(
        self, scores: Tensor, mask_bias: Tensor, scale: float, rate: float
    ) -> Tensor:
        """The softmax of scaled scores and the mask, dropped."""
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
