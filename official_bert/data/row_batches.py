"""Examples in memory → the batch of step k, a function of (examples, seed, k), for fine-tuning."""

import hashlib
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from official_bert.data.dynamic_masking import permutation
from official_bert.protocols import ArraySpec


class Rows(Protocol):
    """Examples, accessible by their numbers."""

    def __len__(self) -> int:
        """Number of examples."""

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """{name: array} of the examples with these numbers, in this order."""

    def fingerprint(self) -> str:
        """A digest that detects other examples."""


class RowBatches:
    """The batches of examples that fit in memory, by step.

    Args:
        batch_size: Examples in a batch on all hosts together.
        seed: Of the order.
        shard: Which of the equal parts of each batch this host reads, and the number of parts.
        shuffle: Every example comes once per epoch, in a new order for each epoch; the batches do
            not end. False gives the examples in order, with the last batch padded.

    `batches[step]` is a dictionary of this host's rows, with `example_weights`: float32, 1, or 0
    for rows that pad the last batch.

    Attributes:
        element_spec: {name: ArraySpec} of such a dictionary.
        num_examples: Number of examples.
        num_batches: ceil(num_examples / batch_size).

    Raises:
        ValueError: if there are no examples, or the batch cannot be divided among the hosts.
    """

    def __init__(
        self,
        rows: Rows,
        batch_size: int,
        *,
        seed: int = 12345,
        shard: tuple[int, int] = (0, 1),
        shuffle: bool = True,
    ):
        self.num_examples = len(rows)
        if not self.num_examples:
            raise ValueError("The data must contain at least one example; got none.")
        index, hosts = shard
        if batch_size < 1 or batch_size % hosts or not 0 <= index < hosts:
            raise ValueError(
                f"batch_size must be a multiple of {hosts}, the number of hosts, and this host's "
                f"index 0 to {hosts - 1}; got {batch_size} and {index}."
            )
        self._rows, self._seed, self._shuffle = rows, seed, shuffle
        self._batch_size, of_host = batch_size, batch_size // hosts
        self._places = np.arange(index * of_host, (index + 1) * of_host)
        self.num_batches = -(-self.num_examples // batch_size)
        self.element_spec = {
            name: ArraySpec((of_host, *array.shape[1:]), array.dtype.type)
            for name, array in rows.batch(np.zeros(1, np.intp)).items()
        } | {"example_weights": ArraySpec((of_host,), np.float32)}
        self._epoch: tuple[int, np.ndarray] = -1, np.empty(0)  # its number and order

    def __getitem__(self, step: int) -> dict[str, np.ndarray]:
        """This host's rows in the batch of `step`, from 0 (without end if shuffled)."""
        if step < 0 or (not self._shuffle and step >= self.num_batches):
            raise IndexError(
                f"step must be below {self.num_batches}, the number of batches; got {step}."
            )
        numbers = step * self._batch_size + self._places
        weights = np.ones(len(numbers), np.float32)
        if self._shuffle:
            numbers = np.array([self._example(*divmod(int(n), self.num_examples)) for n in numbers])
        else:
            weights[numbers >= self.num_examples] = 0.0
            numbers = np.minimum(numbers, self.num_examples - 1)
        return self._rows.batch(numbers) | {"example_weights": weights}

    def _example(self, epoch: int, place: int) -> int:
        if self._epoch[0] != epoch:
            key = hashlib.blake2b(f"{self._seed}/{epoch}".encode(), digest_size=16).digest()
            self._epoch = epoch, permutation(key, self.num_examples)
        return self._epoch[1][place]

    def fingerprint(self) -> str:
        """A digest that detects other examples."""
        return self._rows.fingerprint()


class Arrays:
    """Arrays of one length as `Rows`.

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


def fingerprint(arrays: Mapping[str, np.ndarray]) -> str:
    """A digest of the names, types, shapes and values of arrays."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
