"""A tensor of a checkpoint that is read on demand."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Tensor(NamedTuple):
    """Shape and type, and a function that reads the values."""

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]

    def transposed(self) -> "Tensor":
        """The same tensor with its two axes exchanged."""
        return Tensor(self.shape[::-1], self.dtype, lambda: self.read().T)

    def cast(self, dtype: np.dtype) -> "Tensor":
        """The same tensor in another type."""
        return Tensor(self.shape, np.dtype(dtype), lambda: self.read().astype(dtype, copy=False))

    def reshaped(self, shape: tuple[int, ...]) -> "Tensor":
        """The same values in another shape."""
        return Tensor(shape, self.dtype, lambda: self.read().reshape(shape))
