"""A tensor of a checkpoint that is read only when it is asked for."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Tensor(NamedTuple):
    """Shape and type, known at once, and a function that reads the values."""

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]

    def transposed(self) -> "Tensor":
        """The same with two axes exchanged."""
        return Tensor(self.shape[::-1], self.dtype, lambda: self.read().T)

    def cast(self, dtype: np.dtype) -> "Tensor":
        """The same as another type."""
        return Tensor(self.shape, np.dtype(dtype), lambda: self.read().astype(dtype, copy=False))

    def reshaped(self, shape: tuple[int, ...]) -> "Tensor":
        """The same values, as many, under another shape."""
        return Tensor(shape, self.dtype, lambda: self.read().reshape(shape))
