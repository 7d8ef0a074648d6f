"""The batches of a run: each stage's training records and held-out records, opened and checked."""

from official_bert.data import input_pipeline
from official_bert.engines import distribution


class RunRecords:
    """Opens the records of a run.

    Args:
        run: A `stages.Run`.
        reporting: A `stages.Reporting`.
        strategy: A `tf.distribute.Strategy`.

    Attributes:
        errors: What reading batches raised so far. TensorFlow, which calls for them, passes on the
            text of an error alone.
    """

    def __init__(self, run, reporting, strategy):
        self._run, self._reporting = run, reporting
        self._shard = distribution.shard(strategy)
        self._held_out = {}
        self.errors = []

    def check(self):
        """Reads some of every stage's, so that what is wrong shows before the work.

        Returns:
            The fingerprint of each stage's training records, by which others are noticed.

        Raises:
            ValueError: if records and stages do not fit, or records are damaged.
            OSError: if a file cannot be read.
        """
        fingerprints = []
        for stage in reversed(self._run.stages):  # what is held out for the first stays open
            batches = self.training(stage, *self._shard)
            batches[0]
            fingerprints.append(batches.fingerprint())
            if self._reporting.eval_files:
                self.held_out(stage, *self._shard)[0]
        return fingerprints[::-1]

    def training(self, stage, shard_index=0, num_shards=1):
        """The training batches of a stage, from step 0 of the run: `input_pipeline.Batches`."""
        run = self._run
        return self._open(
            stage,
            stage.input_files or run.input_files,
            stage.batch_size,
            (shard_index, num_shards),
            masked_lm_prob=run.masked_lm_prob,
            do_whole_word_mask=run.do_whole_word_mask,
            max_ngram_size=run.max_ngram_size,
        )

    def held_out(self, stage, shard_index=0, num_shards=1):
        """The held-out batches, in order: `input_pipeline.Batches`.

        They stay open until another length is asked for: the records are parsed once, not at every
        evaluation.
        """
        lengths = stage.max_seq_length, stage.max_predictions_per_seq
        shard = shard_index, num_shards
        if lengths not in self._held_out:
            self._held_out = {lengths: {}}
        opened = self._held_out[lengths]
        if shard not in opened:
            files, size = self._reporting.eval_files, self._reporting.eval_batch_size
            opened[shard] = self._open(stage, files, size, shard, shuffle=False)
        return opened[shard]

    def _open(self, stage, files, batch_size, shard, **options):
        batches = input_pipeline.Batches(
            stage.resolve(files),
            batch_size,
            stage.max_seq_length,
            stage.max_predictions_per_seq,
            seed=self._run.seed,
            vocab_size=self._run.config.vocab_size,
            shard_index=shard[0],
            num_shards=shard[1],
            use_next_sentence=self._run.use_next_sentence_label,
            **options,
        )
        return _Watched(batches, self.errors)


class _Watched:
    """Batches that note down the errors of reading them."""

    def __init__(self, batches, errors):
        self._batches, self._errors = batches, errors
        self.num_batches, self.fingerprint = batches.num_batches, batches.fingerprint

    def __getitem__(self, step):
        try:
            return self._batches[step]
        except Exception as error:
            self._errors.append(error)
            raise
