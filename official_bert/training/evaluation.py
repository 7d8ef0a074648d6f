"""Held-out evaluation: what a model predicts, beside what guessing would get."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

if TYPE_CHECKING:
    from official_bert.protocols import Batches, Engine, Task


class Evaluator:
    """Evaluates one model, as it is then; its graph is traced once for each shape of batches.

    Args:
        task: The task that is trained.
        model: Its model, made in the engine's scope.
        engine: Where the model lives.
    """

    def __init__(self, task: "Task", model: keras.Model, engine: "Engine"):
        self._task, self._engine, self._config = task, engine, model.config
        self._step = engine.evaluation_step(task, model)

    def __call__(self, open_batches: "Callable[[int, int], Batches]") -> dict[str, float]:
        """The task's `held_out_metrics` over all held-out examples, each read and counted once.

        Args:
            open_batches: Function of (shard index, number of shards) that returns the task's
                batches of that shard, in order. It is called for every input pipeline of this
                process: one, or on a TPU one per host.
        """
        counts: Any = 0.0
        lock = threading.Lock()  # every input pipeline reads in a thread of its own

        def count(batch):
            nonlocal counts
            with lock:
                counts = counts + self._task.baseline_counts(batch, self._config)

        steps = range(open_batches(*self._engine.shard).num_batches)
        batches = self._engine.feed(open_batches, steps, count)
        sums = np.sum([np.asarray(self._step(batches), np.float64) for _ in steps], axis=0)
        counts = self._engine.all_gather(counts).sum(0)
        return self._task.held_out_metrics(sums, counts)
