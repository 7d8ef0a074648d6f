"""The batches of a run: each stage's training records and held-out records, opened and checked."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from official_bert.protocols import Batches, Lengths
    from official_bert.stages import LoopOptions, Run, Stage


def same(was: str, now: str) -> bool:
    """Whether two fingerprints are of the same examples.

    Earlier versions of this project wrote the first part of a record file's fingerprint only.
    """
    return was.rpartition("-")[2] in now.split("-")


class RunRecords:
    """Opens the records of a run.

    Args:
        run: A `stages.Run`.
        options: A `stages.LoopOptions`.
        shard: Which part of each batch this process reads, and of how many.
    """

    def __init__(self, run: "Run", options: "LoopOptions", shard: tuple[int, int]):
        self._run, self._options, self._shard = run, options, shard
        self._held_out = {}
        self._fingerprints: dict[Lengths, str] = {}  # of held-out examples, by lengths

    def check(self, accept: "Callable[[Batches], object]") -> list[str]:
        """Reads some records of every stage, to fail early.

        Args:
            accept: Raises a ValueError for batches that the engine cannot train on.

        Returns:
            The fingerprint of each stage's training records, by which others are noticed.

        Raises:
            ValueError: if records and stages do not fit, or records are damaged.
            OSError: if a file cannot be read.
        """
        fingerprints = []
        for stage in reversed(self._run.stages):  # what is held out for the first stays open
            batches = self.training(stage, *self._shard)
            held_out = [self.held_out(stage, *self._shard)] if self._options.eval_files else []
            for opened in (batches, *held_out):
                opened[0]
                accept(opened)
            fingerprints.append(batches.fingerprint())
        return fingerprints[::-1]

    def training(self, stage: "Stage", shard_index: int = 0, num_shards: int = 1) -> "Batches":
        """The training batches of a stage, from step 0 of the run."""
        files = stage.input_files or self._run.input_files
        return self._open(files, stage, stage.batch_size, (shard_index, num_shards))

    def held_out(self, stage: "Stage", shard_index: int = 0, num_shards: int = 1) -> "Batches":
        """The held-out batches, in order.

        They stay open until another length is needed: the records are parsed once, not at every
        evaluation.
        """
        lengths = stage.lengths
        shard = shard_index, num_shards
        if lengths not in self._held_out:
            self._held_out = {lengths: {}}
        opened = self._held_out[lengths]
        if shard not in opened:
            files, size = self._options.eval_files, self._options.eval_batch_size
            opened[shard] = self._open(files, stage, size, shard, held_out=True)
        return opened[shard]

    def held_out_fingerprint(self, stage: "Stage") -> str:
        """The fingerprint of a stage's held-out examples, which is computed once."""
        if stage.lengths not in self._fingerprints:
            self._fingerprints[stage.lengths] = self.held_out(stage, *self._shard).fingerprint()
        return self._fingerprints[stage.lengths]

    def _open(self, files, stage, batch_size, shard, held_out=False):
        return self._run.task.batches(
            stage.resolve(files),
            stage.lengths,
            batch_size,
            self._run.config,
            seed=self._run.seed,
            shard=shard,
            held_out=held_out,
        )
