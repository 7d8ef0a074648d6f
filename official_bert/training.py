"""The training loop: from stages and records to a checkpoint.

What a step does is a function of (run, step): the batch, the dropout, the learning rate. With the
weights, the moments and the loop's own state in the checkpoint, a run that was killed goes on as
if nothing had happened.
"""

import itertools
import json
import pathlib
import zlib

import numpy as np

from official_bert import (
    checkpoints,
    distribution,
    evaluation,
    flops,
    input_pipeline,
    model_directory,
    model_state,
    stacking,
)
from official_bert.pretraining_step import (
    first_state,
    make_model_and_optimizer,
    make_training_loop,
    new_window,
    non_finite,
)
from official_bert.reports import Pace, Profiler, Reports
from official_bert.training_log import StopRequest
from official_bert.whole_files import write_text


class Diverged(Exception):
    """Too many updates in a row had gradients that are not finite; the message says where."""


class Trainer:
    """Trains one run in one model directory.

    Construction does all the checks: of the directory, of the records of every stage, of the
    space on the disk. `train` does the work.

    Args:
        run: A `stages.Run`: what to train.
        reporting: A `stages.Reporting`: what to show and keep.
        strategy: A `tf.distribute.Strategy`.
        model_dir: Where checkpoints and logs are; a run found there is gone on with.

    Raises:
        ValueError: if records and stages do not fit, or `model_dir` holds another run.
        OSError: if the checkpoints do not fit on the disk.
    """

    def __init__(self, run, reporting, strategy, model_dir):
        self.run, self.reporting, self.strategy = run, reporting, strategy
        self.model_dir = pathlib.Path(model_dir)
        self.step = 0  # updates done, those that were skipped included
        self._is_chief = distribution.is_chief(strategy)
        self._pace = Pace(seconds=0.0)
        self._state = first_state(run)
        self._ends = list(itertools.accumulate(stage.steps for stage in run.stages))
        self._reports = Reports(run, reporting, strategy, self.model_dir)
        self._check_sizes()
        for stage in run.stages:  # opening records checks them
            shard = distribution.shard(strategy)
            self._open_training(stage, *shard)[0]  # and reading some, what is in them
            self._open_held_out(stage)
        self._store = checkpoints.CheckpointStore(model_dir, reporting.keep_checkpoint_max)
        model_directory.check(self.model_dir, run)
        self._make(run.stages[0])
        if run.init_checkpoint:
            self._reports.say(model_state.load_weights(self.model, run.init_checkpoint))
        checkpoints.require_space(model_dir, 2 * 12 * self.model.count_params())  # x, m, v; twice

    def train(self):
        """Trains to the end of the last stage.

        Leaves, beside checkpoints and log, the weights alone as `pretrained/bert_model.ckpt-1` and
        the last figures in `summaries/training_summary.txt`, as the official script does.

        Raises:
            training_log.Stopped: after SIGINT or SIGTERM, when the checkpoint is written.
            Diverged: when no update could be made for too long.
        """
        if self._is_chief:
            model_directory.claim(self.model_dir, self.run)
        self._warn()
        self._restore()
        self._check_that_workers_agree()
        with StopRequest() as stop:
            for index, end in enumerate(self._ends):
                if self.step < end:
                    if self.step and self.step == self._begin(index):
                        self._change_stage(index)
                    self._train_stage(index, stop)
        if self._is_chief:
            self._export()
        distribution.from_all_workers(self.strategy, [self.step])  # no one leaves before the chief

    def _warn(self):
        for index, stage in enumerate(self.run.stages):
            if stage.warmup_steps >= stage.steps:
                self._reports.say(
                    f"warning: stage {index + 1} has {stage.steps} steps, but its warm-up takes "
                    f"{stage.warmup_steps}: the rate never comes to {stage.learning_rate:g}."
                )

    def _train_stage(self, index, stop):
        """From `self.step` to the end of the stage."""
        stage, reporting = self.run.stages[index], self.reporting
        end = self._ends[index]
        described = flops.describe(self.run.config, stage)
        self._reports.say(f"stage {index + 1} of {len(self._ends)}: {described}")
        loop = make_training_loop(
            self.run, self.model, self.optimizer, self.strategy, reporting.enable_xla
        )
        iterator = iter(
            distribution.distribute(
                self.strategy,
                lambda *shard: self._open_training(stage, *shard),
                range(self.step, end),
            )
        )
        if distribution.shard(self.strategy)[1] > 1:
            self._reports.communication(loop.reductions(iterator, self._state))
        profiler = Profiler(reporting.profile_steps, self.model_dir / "summaries" / "train")
        self._pace.cool()
        while self.step < end:
            steps = self._steps_to_boundary(end)
            self._state["stop_requests"] = float(stop.requested)
            profiler.before(self.step, steps)
            self._state = self._pace.measure(
                lambda steps=steps: loop(iterator, self.step, steps, self._state), steps
            )
            self.step += steps
            profiler.after(self.step)
            if self._state["skipped_in_a_row"] >= reporting.max_skipped_updates:
                raise Diverged(self._diagnosis(index))
            if self._is_due(reporting.log_steps, end):
                self._reports.train(self.step, index, self._state, self.optimizer, self._pace)
                self._state |= new_window()
                self._pace.restart()
            if reporting.eval_files and self._is_due(reporting.eval_steps, end):
                self._evaluate(index)
            stops = self._must_stop(stop)
            if self._is_due(reporting.save_checkpoints_steps, end) or stops:
                self._save()
            if stops:
                stop.raise_stopped(self.step, self.model_dir)

    def _must_stop(self, stop):
        """Whether this process was asked to, or, of several workers, any one before this call."""
        if distribution.shard(self.strategy)[1] == 1:
            return stop.requested
        return self._state["stop_requests"] > 0

    def _begin(self, index):
        return self._ends[index] - self.run.stages[index].steps

    def _steps_to_boundary(self, end):
        """How many updates the next graph call does: up to the next line, checkpoint, …"""
        reporting = self.reporting
        intervals = (reporting.log_steps, reporting.save_checkpoints_steps, reporting.eval_steps)
        to_boundary = [every - self.step % every for every in intervals if every]
        return min(reporting.steps_per_loop, end - self.step, *to_boundary)

    def _is_due(self, every, end):
        return self.step == end or (every > 0 and self.step % every == 0)

    # The model of a stage

    def _make(self, stage):
        """Makes the model and the optimizer of a stage, with their first values."""
        with self.strategy.scope():
            self.model, self.optimizer = make_model_and_optimizer(self.run, stage)

    def _change_stage(self, index):
        """Carries the state over to the next stage, whose model may be deeper or partly frozen."""
        before, stage = self.run.stages[index - 1 : index + 1]
        if stage.model_key() == before.model_key() and stage.carry_moments:
            return
        tensors = model_state.gather(self.model, self.optimizer)
        old_depth = self.model.config.num_hidden_layers
        self._make(stage)
        new_depth = self.model.config.num_hidden_layers
        tensors |= stacking.grow(tensors, old_depth, new_depth, stage.growth)
        said = model_state.carry_over(self.model, self.optimizer, tensors, stage.carry_moments)
        self._reports.say(f"stage {index + 1}: {new_depth} layers; {said}")

    def _evaluate(self, index):
        stage = self.run.stages[index]
        metrics = evaluation.evaluate(
            self.model,
            self.strategy,
            lambda *shard: self._open_held_out(stage, *shard),
            self.run.use_next_sentence_label,
        )
        self._reports.evaluation(self.step, index, metrics)
        if self._is_chief:
            record = {"step": self.step, "max_seq_length": stage.max_seq_length, **metrics}
            checkpoints.save_best(self.model_dir / "best", self._weights, record)

    def _diagnosis(self, index):
        """Where the last step's gradients were not finite: it did not change the weights."""
        stage, step = self.run.stages[index], self.step - 1
        batch = self._open_training(stage)[step]
        parts = self.strategy.num_replicas_in_sync * self.run.gradient_accumulation_steps
        losses, variables = [], []
        for part in range(parts):
            rows = {name: np.split(values, parts)[part] for name, values in batch.items()}
            scale = self._state["loss_scale"]
            losses, variables = non_finite(self.run, self.model, rows, step, scale)
            if losses or variables:
                break
        return (
            f"No update could be made for {self._state['skipped_in_a_row']} steps in a row, the "
            f"last one step {step} of stage {index + 1}: gradients are not finite. Losses that are "
            f"not finite: {', '.join(losses) or 'none'}. Variables whose gradient is not: "
            f"{len(variables)} of {len(self.model.trainable_variables)}, first "
            f"{variables[0] if variables else 'none in a second computation'}. Loss scale "
            f"{self._state['loss_scale']:g}. The last good checkpoint in {self.model_dir} is "
            "intact; a lower learning rate or longer warm-up usually mends this."
        )

    # Files

    def _open_training(self, stage, shard_index=0, num_shards=1):
        return input_pipeline.Batches(
            stage.resolve(stage.input_files or self.run.input_files),
            stage.batch_size,
            stage.max_seq_length,
            stage.max_predictions_per_seq,
            seed=self.run.seed,
            vocab_size=self.run.config.vocab_size,
            shard_index=shard_index,
            num_shards=num_shards,
            masked_lm_prob=self.run.masked_lm_prob,
            do_whole_word_mask=self.run.do_whole_word_mask,
            max_ngram_size=self.run.max_ngram_size,
            use_next_sentence=self.run.use_next_sentence_label,
        )

    def _open_held_out(self, stage, shard_index=0, num_shards=1):
        if not self.reporting.eval_files:
            return None
        return input_pipeline.Batches(
            stage.resolve(self.reporting.eval_files),
            self.reporting.eval_batch_size,
            stage.max_seq_length,
            stage.max_predictions_per_seq,
            seed=self.run.seed,
            vocab_size=self.run.config.vocab_size,
            shard_index=shard_index,
            num_shards=num_shards,
            shuffle=False,
            use_next_sentence=self.run.use_next_sentence_label,
        )

    def _check_sizes(self):
        stacking.check(self.run.config, self.run.stages)
        replicas = self.strategy.num_replicas_in_sync
        parts = replicas * self.run.gradient_accumulation_steps
        longest = self.run.config.max_position_embeddings
        for stage in self.run.stages:
            if stage.batch_size % parts:
                raise ValueError(
                    f"The global batch size {stage.batch_size} is not a multiple of {parts} = "
                    f"{replicas} replicas × {self.run.gradient_accumulation_steps} micro-batches."
                )
            if stage.max_seq_length > longest:
                raise ValueError(
                    f"max_seq_length is {stage.max_seq_length}, but the model's "
                    f"max_position_embeddings is {longest}; shorten the records or enlarge the "
                    "position table in bert_config.json."
                )
        if self.reporting.eval_batch_size % replicas:
            raise ValueError(
                f"eval_batch_size {self.reporting.eval_batch_size} is not a multiple of the "
                f"{replicas} replicas."
            )

    def _save(self):
        if self._is_chief:
            tensors = model_state.gather(self.model, self.optimizer)
            tensors["global_step"] = np.int64(self.step)
            state = {"loop": self._state, "seconds": self._pace.seconds}
            self._reports.say(f"saved {self._store.save(tensors, self.step, state)}")
        distribution.from_all_workers(self.strategy, [self.step])  # it is there for all now

    def _restore(self):
        """Goes on from the newest whole checkpoint, if there is one."""
        checkpoint = self._store.latest(self._reports.say)
        if checkpoint is not None:
            self.step = checkpoint.step
            self._state = checkpoint.state["loop"]
            self._pace = Pace(checkpoint.state["seconds"])
            # The stage that wrote it, which is the one before if it was written at its end.
            index = next(i for i, end in enumerate(self._ends) if self.step <= end)
            if index:
                self._make(self.run.stages[index])
            model_state.restore(self.model, self.optimizer, checkpoint.tensors())
            self._reports.say(f"goes on from {checkpoint.prefix}")
        self._reports.log.rewind(self.step)

    def _check_that_workers_agree(self):
        description = json.dumps(self.run.describe(), sort_keys=True).encode()
        mine = [self.step, zlib.crc32(description)]
        steps, runs = distribution.from_all_workers(self.strategy, mine).astype(int).T.tolist()
        if len(set(runs)) > 1:
            raise ValueError(
                f"The workers were not given the same run: worker {_odd_one(runs)} differs from "
                "worker 0. Start all of them with the same flags, but for task_index."
            )
        if len(set(steps)) > 1:
            raise ValueError(
                f"The workers go on from different steps: {steps}, in the order of their places. "
                f"model_dir ({self.model_dir}) must be one directory that all of them see."
            )

    def _weights(self):
        return {variable.path: variable.numpy() for variable in self.model.weights}

    def _export(self):
        prefix = self.model_dir / "pretrained" / "bert_model.ckpt-1"
        checkpoints.write_bundle(prefix, self._weights())
        last_train, last_eval = self._reports.log.last("train"), self._reports.log.last("eval")
        summary = {
            "total_training_steps": self.step,
            "train_loss": last_train["loss"],
            **{name: value for name, value in last_train.items() if name.endswith("_accuracy")},
            "held_out": {name: v for name, v in last_eval.items() if name not in ("kind", "stage")},
        }
        path = self.model_dir / "summaries" / "training_summary.txt"
        path.parent.mkdir(exist_ok=True)
        write_text(path, json.dumps(summary, indent=1) + "\n")
        self._reports.say(f"trained {self.step} steps; weights: {prefix}; figures: {path}")


def _odd_one(values):
    return next(place for place, value in enumerate(values) if value != values[0])
