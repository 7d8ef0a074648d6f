"""Arrays in memory as rows, and the batches of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from official_bert.data.array_fingerprint import fingerprint
from official_bert.data.row_batches import RowBatches


class Arrays:
    """Arrays of one length as `row_batches.Rows`.

    Args:
        arrays: {name: array}; the first axis of each counts the examples.

    Raises:
        ValueError: if there are no examples, or arrays of different lengths.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        counts = {name: len(array) for name, array in arrays.items()}
        if len(set(counts.values())) != 1 or not min(counts.values()):
            raise ValueError(f"arrays must have the same length, at least 1; got {counts}.")
        self._arrays, self._count = arrays, next(iter(counts.values()))

    def __len__(self) -> int:
        return self._count

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The rows with these numbers, of every array."""
        return {name: array[rows] for name, array in self._arrays.items()}

    def fingerprint(self) -> str:
        """A digest that detects other arrays."""
        return fingerprint(self._arrays)


class ArrayBatches(RowBatches):
    """The `RowBatches` of arrays.

    Args:
        arrays: As of `Arrays`.
        batch_size, seed, shard, shuffle: As of `RowBatches`.

    Raises:
        ValueError: as `Arrays` and `RowBatches`.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], batch_size: int, **settings: Any):
        super().__init__(Arrays(arrays), batch_size, **settings)
