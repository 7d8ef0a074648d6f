"""BERT itself: configuration, encoder, heads, fused kernels."""

from collections.abc import Mapping
from typing import Any, TypeAlias

# A tensor of Keras' backend (`tf.Tensor`, `jax.Array` or `torch.Tensor`, which share no class), or
# an array or variable that converts to one.
Tensor: TypeAlias = Any
Tensors: TypeAlias = Mapping[str, Tensor]
