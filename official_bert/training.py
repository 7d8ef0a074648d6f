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
import tensorflow as tf

from official_bert import (
    checkpoints,
    disk_space,
    distribution,
    evaluation,
    flops,
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
from official_bert.run_records import RunRecords
from official_bert.training_log import StopRequest
from official_bert.whole_files import write_text


class Diverged(Exception):
    """Too many updates in a row had gradients that are not finite; the message says where."""


class InputFailed(ValueError):
    """A batch could not be read in the middle of the run; the message says why and what to do."""


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
        self._profiler = Profiler(reporting.profile_steps, self.model_dir / "summaries" / "train")
        self._records = RunRecords(run, reporting, strategy)
        self._check_sizes()
        self._records.check()
        self._store = checkpoints.CheckpointStore(model_dir, reporting.keep_checkpoint_max)
        model_directory.check(self.model_dir, run)
        disk_space.require(self.model_dir, run, reporting)
        self._make(run.stages[0])
        if run.init_checkpoint:
            self._reports.say(model_state.load_weights(self.model, run.init_checkpoint))

    def train(self):
        """Trains to the end of the last stage.

        Leaves, beside checkpoints and log, the weights alone as `pretrained/bert_model.ckpt-1` and
        the last figures in `summaries/training_summary.txt`, as the official script does.

        Raises:
            training_log.Stopped: after SIGINT or SIGTERM, when the checkpoint is written.
            Diverged: when no update could be made for too long.
            InputFailed: when a batch cannot be read.
        """
        if self._is_chief:
            model_directory.claim(self.model_dir, self.run)
        self._restore()
        self._warn()
        self._check_that_workers_agree()
        try:
            with StopRequest() as stop, self._profiler:
                for index, end in enumerate(self._ends):
                    if self.step < end:
                        if self.step and self.step == self._begin(index):
                            self._change_stage(index)
                        self._train_stage(index, stop)
        except (tf.errors.OpError, ValueError, OSError) as error:
            self._raise_input_error(error)
            raise
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
        if self.run.reduce_dtype != "fp32" and self.strategy.num_replicas_in_sync == 1:
            self._reports.say(
                f"warning: reduce_dtype={self.run.reduce_dtype} has no effect: one replica alone "
                "has nothing to reduce."
            )
        window = self.reporting.profile_steps
        if window and self.step >= window[1]:
            self._reports.say(
                f"warning: no profile of the updates {window[0]} to {window[1]}: this run goes on "
                f"after update {self.step}."
            )

    def _raise_input_error(self, error):
        """Raises what reading a batch raised, if that is behind `error`."""
        errors = self._records.errors
        if errors and (isinstance(error, tf.errors.OpError) or error is errors[0]):
            raise InputFailed(
                f"{errors[0]} The run ended after update {self.step}; the last checkpoint in "
                f"{self.model_dir} is intact. Mend the records and give the same command again."
            ) from error

    def _train_stage(self, index, stop):
        """From `self.step` to the end of the stage."""
        stage, reporting = self.run.stages[index], self.reporting
        end = self._ends[index]
        described = flops.describe(self.run.config, stage)
        self._reports.say(f"stage {index + 1} of {len(self._ends)}: {described}")
        iterator = iter(
            distribution.distribute(
                self.strategy,
                lambda *shard: self._records.training(stage, *shard),
                range(self.step, end),
            )
        )
        if distribution.shard(self.strategy)[1] > 1:
            self._reports.communication(self._loop.reductions(iterator, self._state))
        self._pace.cool()
        while self.step < end:
            steps = self._steps_to_boundary(end)
            self._state["stop_requests"] = float(stop.requested)
            self._profiler.at(self.step)
            self._state = self._pace.measure(
                lambda steps=steps: self._loop(iterator, self.step, steps, self._state), steps
            )
            self.step += steps
            self._profiler.at(self.step)
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
        to_boundary.append(self._profiler.steps_to_border(self.step))
        return min(reporting.steps_per_loop, end - self.step, *to_boundary)

    def _is_due(self, every, end):
        return self.step == end or (every > 0 and self.step % every == 0)

    # The model of a stage

    def _make(self, stage):
        """Makes the model and the optimizer of a stage, with their first values.

        The graphs that train and evaluate them go with them: stages that share a model share these.
        """
        with self.strategy.scope():
            self.model, self.optimizer = make_model_and_optimizer(self.run, stage)
        self._loop = make_training_loop(
            self.run, self.model, self.optimizer, self.strategy, self.reporting.enable_xla
        )
        self._evaluator = evaluation.Evaluator(
            self.model, self.strategy, self.run.use_next_sentence_label
        )

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
        metrics = self._evaluator(self._records.held_out(stage))
        self._reports.evaluation(self.step, index, metrics)
        if self._is_chief:
            record = {"step": self.step, "max_seq_length": stage.max_seq_length, **metrics}
            checkpoints.save_best(self.model_dir / "best", self._weights, record)

    def _diagnosis(self, index):
        """Where the last step's gradients were not finite: it did not change the weights."""
        stage, step = self.run.stages[index], self.step - 1
        batch = self._records.training(stage)[step]
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

    def _check_sizes(self):
        stacking.check(self.run.config, self.run.stages)
        replicas = self.strategy.num_replicas_in_sync
        parts = replicas * self.run.gradient_accumulation_steps
        for stage in self.run.stages:
            if stage.batch_size % parts:
                raise ValueError(
                    f"The global batch size {stage.batch_size} is not a multiple of {parts} = "
                    f"{replicas} replicas × {self.run.gradient_accumulation_steps} micro-batches."
                )
        if self.reporting.eval_batch_size % replicas:
            raise ValueError(
                f"eval_batch_size {self.reporting.eval_batch_size} is not a multiple of the "
                f"{replicas} replicas."
            )
        window = self.reporting.profile_steps
        if window and window[1] > self.run.total_steps:
            raise ValueError(
                f"profile_steps={window[0]},{window[1]} is beyond the {self.run.total_steps} "
                "updates of this run."
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
