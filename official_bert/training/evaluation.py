"""Held-out evaluation: what a model predicts, beside what guessing would get."""


class Evaluator:
    """Evaluates one model, as it is then; its graph is traced once for each shape of batches.

    Args:
        task: What is trained; see `official_bert.tasks`.
        model: Its model, made in the engine's scope.
        engine: Where the model lives.
    """

    def __init__(self, task, model, engine):
        self._task, self._engine, self._config = task, engine, model.config
        self._step = engine.evaluation_step(task, model)
        self._counted = None, None  # batches, and their labels' counts

    def __call__(self, open_batches):
        """The task's `held_out_metrics` over all held-out examples, each read and counted once.

        Args:
            open_batches: Function of (shard index, number of shards) that returns the task's
                batches of that shard, in order. It is called for every input pipeline of this
                process: one, or on a TPU one per host.
        """
        mine = open_batches(*self._engine.shard)
        steps = range(mine.num_batches)
        batches = self._engine.feed(open_batches, steps)
        sums = sum(self._step(batches).numpy().astype("float64") for _ in steps)
        return self._task.held_out_metrics(sums, self._label_counts(mine))

    def _label_counts(self, mine):
        """Over all workers; the labels are the same at every evaluation."""
        if self._counted[0] is not mine:
            batches = (mine[step] for step in range(mine.num_batches))
            counts = sum(self._task.label_counts(batch, self._config) for batch in batches)
            self._counted = mine, self._engine.from_all_workers(counts).sum(0)
        return self._counted[1]
