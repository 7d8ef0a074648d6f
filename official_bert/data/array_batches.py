"""Arrays in memory → the batch of step k, a function of (arrays, seed, k) on any host."""

import hashlib

import numpy as np

from official_bert.data.dynamic_masking import permutation
from official_bert.data.input_pipeline import ArraySpec


class ArrayBatches:
    """The batches of examples that fit in memory, by step; for fine-tuning tasks.

    Args:
        arrays: {name: array}; the first axis of each counts the examples.
        batch_size: Examples in a batch on all hosts together.
        seed: Of the order.
        shard: Which of the equal parts of each batch this host reads, and the number of parts.
        shuffle: Every example comes once per epoch, in a new order for each epoch; the batches do
            not end. False gives the examples in order, with the last batch padded.

    `batches[step]` is a dictionary of this host's rows, with `example_weights`: float32, 1, or 0
    for rows that pad the last batch.

    Attributes:
        element_spec: {name: ArraySpec} of such a dictionary.
        num_examples: Examples in the arrays.
        num_batches: ceil(num_examples / batch_size).

    Raises:
        ValueError: if there are no examples, arrays of different lengths, or the batch cannot be
            divided among the hosts.
    """

    def __init__(
        self,
        arrays: dict[str, np.ndarray],
        batch_size: int,
        *,
        seed: int = 12345,
        shard: tuple[int, int] = (0, 1),
        shuffle: bool = True,
    ):
        counts = {name: len(array) for name, array in arrays.items()}
        if len(set(counts.values())) != 1 or not min(counts.values()):
            raise ValueError(f"arrays must have one length, and examples; got lengths {counts}.")
        index, hosts = shard
        if batch_size < 1 or batch_size % hosts or not 0 <= index < hosts:
            raise ValueError(
                f"batch_size {batch_size} cannot be divided among {hosts} hosts, of which this is "
                f"number {index}."
            )
        self._arrays, self._seed, self._shuffle = arrays, seed, shuffle
        self._batch_size, rows = batch_size, batch_size // hosts
        self._rows = np.arange(index * rows, (index + 1) * rows)
        self.num_examples = next(iter(counts.values()))
        self.num_batches = -(-self.num_examples // batch_size)
        self.element_spec = {
            name: ArraySpec((rows, *array.shape[1:]), array.dtype.type)
            for name, array in arrays.items()
        } | {"example_weights": ArraySpec((rows,), np.float32)}
        self._epoch = None, None  # number and order of the current epoch

    def __getitem__(self, step: int) -> dict[str, np.ndarray]:
        """This host's rows in the batch of `step`, from 0 (without end if shuffled)."""
        if step < 0 or (not self._shuffle and step >= self.num_batches):
            raise IndexError(f"step {step}: there are {self.num_batches} batches.")
        numbers = step * self._batch_size + self._rows
        weights = np.ones(len(numbers), np.float32)
        if self._shuffle:
            numbers = np.array([self._example(*divmod(n, self.num_examples)) for n in numbers])
        else:
            weights[numbers >= self.num_examples] = 0.0
            numbers = np.minimum(numbers, self.num_examples - 1)
        batch = {name: array[numbers] for name, array in self._arrays.items()}
        return batch | {"example_weights": weights}

    def _example(self, epoch: int, place: int) -> int:
        if self._epoch[0] != epoch:
            key = hashlib.blake2b(f"{self._seed}/{epoch}".encode(), digest_size=16).digest()
            self._epoch = epoch, permutation(key, self.num_examples)
        return self._epoch[1][place]

    def fingerprint(self) -> str:
        """A digest that detects other examples."""
        digest = hashlib.sha256()
        for name in sorted(self._arrays):
            array = np.ascontiguousarray(self._arrays[name])
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()
