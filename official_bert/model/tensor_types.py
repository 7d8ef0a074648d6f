"""Type aliases for the tensors of any Keras backend."""

from collections.abc import Mapping
from typing import Any, TypeAlias

# A tensor of Keras' backend: `tf.Tensor`, `jax.Array` or `torch.Tensor`, which share no class; or
# what becomes one, an array or a variable.
Tensor: TypeAlias = Any
Tensors: TypeAlias = Mapping[str, Tensor]
