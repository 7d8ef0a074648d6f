"""Batches for a JAX engine: read ahead in a thread while the devices work."""

import collections
import itertools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from official_bert.protocols import Batches


class Feed:
    """This process's rows of the batches of some steps, in order.

    Args:
        batches: A task's batches of this process's shard.
        steps: Range of steps.
        on_read: Called with each batch, once.
        errors: What reading raises is added to this list.
    """

    def __init__(
        self,
        batches: "Batches",
        steps: range,
        on_read: Callable[[dict[str, np.ndarray]], None] | None,
        errors: list[Exception],
    ):
        self._batches, self._on_read, self._errors = batches, on_read, errors
        self._left = iter(steps)
        self._ahead: collections.deque[Future] = collections.deque()
        self._reader = ThreadPoolExecutor(1, "batches")

    def take(self, count: int) -> list[dict[str, np.ndarray]]:
        """The next batches; then as many are read ahead.

        Raises:
            Exception: what reading one of them raised.
        """
        self._read_ahead(count)
        taken = [self._ahead.popleft().result() for _ in range(count)]
        self._read_ahead(count)
        return taken

    def _read_ahead(self, count):
        for step in itertools.islice(self._left, max(0, count - len(self._ahead))):
            self._ahead.append(self._reader.submit(self._read, step))

    def _read(self, step):
        try:
            batch = self._batches[step]
            if self._on_read:
                self._on_read(batch)
        except Exception as error:
            self._errors.append(error)
            raise
        return batch
