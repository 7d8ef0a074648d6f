"""The training loop: from stages and records to a checkpoint.

Batch, dropout and learning rate of a step are functions of (run, step). A checkpoint holds weights,
moments and the loop's own state, so a killed run resumes exactly.
"""

import contextlib
import dataclasses
import itertools
import json
import threading
import zlib
from typing import TYPE_CHECKING

import numpy as np

from official_bert import stacking
from official_bert.engines import loop_state
from official_bert.optimizers import optimizers
from official_bert.protocols import LoopState
from official_bert.system.locks import exclusive
from official_bert.system.places import AnyPath, as_path
from official_bert.system.whole_files import write_text
from official_bert.training import (
    checkpoints,
    flops,
    known_good,
    model_directory,
    model_state,
    run_checks,
    run_files,
)
from official_bert.training.reports import Profiler, Reports, StepTimer
from official_bert.training.run_checks import RunRecords
from official_bert.training.stage_model import make_model_and_optimizer
from official_bert.training.training_log import StopRequest, record_start

if TYPE_CHECKING:
    from collections.abc import Callable

    import keras

    from official_bert.protocols import Batches, Engine, Task
    from official_bert.stages import LoopOptions, Run


class Diverged(Exception):
    """Too many updates in a row had gradients that are not finite; the message locates them."""


class InputFailed(ValueError):
    """A batch could not be read in the middle of the run; the message has reason and remedy."""


class Trainer:
    """Trains one run in one model directory.

    Construction does all the checks: of the directory, of the records of every stage, of the
    space on the disk. `train` does the work.

    Args:
        run: The stages, the optimizer and the task.
        options: Logs, evaluations and checkpoints.
        engine: Where the model lives: a `tf_distribute.TfDistribute` or a `jax_mesh.JaxMesh`.
        model_dir: Where checkpoints and logs are; a run found there is resumed.
        resume_from: Step of the checkpoint to resume instead of the newest. The learning rate and
            other settings may then differ from those that the run began with.

    Raises:
        ValueError: if records and stages do not fit, `model_dir` holds another run, or there is no
            checkpoint of that step.
        OSError: if the checkpoints do not fit on the disk.
    """

    def __init__(
        self,
        run: "Run",
        options: "LoopOptions",
        engine: "Engine",
        model_dir: AnyPath,
        resume_from: int | None = None,
    ):
        self.run, self.options, self.engine = run, options, engine
        self.model_dir = as_path(model_dir)
        self.step = 0  # updates done, those that were skipped included
        self._pace = StepTimer(seconds=0.0)
        self._state = loop_state.first_state(run)
        self._ends = list(itertools.accumulate(stage.steps for stage in run.stages))
        self._reports = Reports(run, options, engine, self.model_dir)
        self.trackers = self._reports.trackers
        self._profiler = Profiler(
            options.profile_steps, self.model_dir / "summaries" / "train", engine
        )
        self._records = RunRecords(run, options, engine.shard)
        self._claim = run_checks.claim(
            run, options, engine, self._records, self.model_dir, resume_from
        )
        self._store = checkpoints.CheckpointStore(
            model_dir, options.keep_checkpoint_max, self._claim.abandoned()
        )
        self._good = known_good.KnownGood(run, self._store)
        self._owes_checkpoint = False  # one was due amid updates that were skipped
        if self._claim.return_to is None:
            self._checkpoint = self._store.latest(self._reports.log)
        else:
            self._checkpoint = self._store.at(self._claim.return_to, self._reports.log)
        self._make(run.stages[self._stage_of(self._checkpoint)])
        run_checks.require_space(self.model_dir, run, options, self.optimizer)
        if run.init_checkpoint and not self._checkpoint:
            optimizer = self.optimizer if run.init_moments else None
            self._reports.log(
                str(model_state.load_weights(self.model, run.init_checkpoint, optimizer))
            )
            if not optimizer:
                optimizers.follow_weights(self.optimizer)

    def train(self) -> None:
        """Trains to the end of the last stage.

        Leaves, next to checkpoints and log, the weights as `pretrained/bert_model.ckpt-1` and
        the last figures in `summaries/training_summary.txt`, as the official script does; and those
        before the first step as `initial/bert_model.ckpt-0`.

        Raises:
            training_log.Stopped: after SIGINT or SIGTERM, when the checkpoint is written.
            Diverged: when no update could be made for too long.
            InputFailed: when a batch cannot be read.
            ValueError: if another process trains in the model directory, or the workers differ.
        """
        with contextlib.ExitStack() as stack:
            if self.engine.is_chief:
                self._require_alone = stack.enter_context(exclusive(self.model_dir))
            self._train()

    def _train(self):
        self._restore()
        for warning in run_checks.warnings(
            self.run, self.options, self.engine.num_replicas, self.step, self.model
        ):
            self._reports.log(f"warning: {warning}")
        if not optimizers.has_trust_ratios(self.optimizer):
            name = type(self.optimizer).__name__
            self._reports.log(f"the log has no trust ratios, as {name} computes none")
        self._check_that_workers_agree()
        try:
            with StopRequest() as stop, self._profiler:  # before the directory is written to
                self._write_claim()
                self._find_best()
                self.trackers.begin(self._claim.description)
                if self.engine.is_chief:
                    record_start(self.model_dir, self.step, self.engine.num_replicas)
                    if not self._checkpoint:
                        initial = self.model_dir / run_files.INITIAL
                        checkpoints.write_bundle(initial, self._weights())
                for index, end in enumerate(self._ends):
                    if self.step < end and not self._stops_early():
                        if self.step and self.step == self._begin(index):
                            self._change_stage(index)
                        self._train_stage(index, stop)
        except Exception as error:
            self._raise_input_error(error)
            raise
        if self._stops_early():
            self._reports.log(self._early_stop())
        if self.engine.is_chief:
            self._export()
        self.engine.all_gather([self.step])  # barrier: wait for the chief

    def _raise_input_error(self, error):
        """Raises the error of reading a batch, if that caused `error`."""
        cause = self.engine.input_error(error)
        if cause:
            raise InputFailed(
                f"{cause} The run ended after step {self.step}; the last checkpoint in "
                f"{self.model_dir} is intact. Repair the records and run the same command again; "
                "if the repair changes them, add --resume_from with the step of a checkpoint."
            ) from error

    def _train_stage(self, index, stop):
        """From `self.step` to the end of the stage."""
        stage, options = self.run.stages[index], self.options
        end = self._ends[index]
        if self.step == self._begin(index):
            self._good.begin_stage()
            self._state = self._state.without_best()
        measured = len(self.model.trainable_variables) if options.noise_scale else 0
        self._state = self._state.measuring_noise(measured, self.step == self._begin(index))
        described = flops.describe(self.run.config, stage, self.run.optimizer.freeze)
        if self.run.optimizer.freeze:
            trained = len(self.model.trainable_variables), len(self.model.weights)
            described += "; {} of {} variables are trained".format(*trained)
        self._reports.log(f"stage {index + 1} of {len(self._ends)}: {described}")
        batches = self.engine.feed(
            lambda *shard: self._records.training(stage, *shard), range(self.step, end)
        )
        if self.engine.shard[1] > 1:
            self._reports.communication(self._loop.reductions(batches, self._state))
        self._pace.skip_next()
        while self.step < end and not self._stops_early():
            steps = self._steps_to_boundary(end)
            self._state = dataclasses.replace(self._state, stop_requests=float(stop.requested))
            self._profiler.at(self.step)
            self._state = self._pace.measure(
                lambda steps=steps: self._loop(batches, self.step, steps, self._state), steps
            )
            self.step += steps
            self._profiler.at(self.step)
            if self._state.skipped_in_a_row >= options.max_skipped_updates:
                raise Diverged(self._diagnosis(index))
            is_reported = self._is_due(options.log_steps, end)
            if is_reported:
                self._report(index)
            if options.eval_files and self._is_due(options.eval_steps, end):
                self._evaluate(index)
                if self._stops_early() and not is_reported:
                    self._report(index)
            stops = self._must_stop(stop)
            self._owes_checkpoint |= self._is_due(options.save_checkpoints_steps, end)
            if self._may_save(end) or stops or self._stops_early():
                self._save()
            if stops and not self._stops_early():
                stop.raise_stopped(self.step, self.model_dir)

    def _report(self, index):
        """Writes the line of the log about the updates since the last one."""
        self._reports.train(self.step, index, self._state, self.optimizer, self._pace)
        self._state = self._state.new_window()
        self._pace.restart()

    def _stops_early(self):
        """Whether the last stage ends early: too many evaluations without a lower loss."""
        is_within = self._begin(len(self._ends) - 1) < self.step < self._ends[-1]
        return is_within and 0 < self.options.early_stopping <= self._state.evaluations_since_best

    def _early_stop(self):
        """Why the run ends before its last step, and which of its weights are the best."""
        state = self._state
        reason = (
            f"stopped early at step {self.step} of {self._ends[-1]}: "
            f"{state.evaluations_since_best} evaluations in a row without a lower held-out loss"
        )
        if state.best_loss is None:
            return f"{reason}; none was finite"
        best = self.model_dir / "best" / f"bert_model.ckpt-{state.best_step}"
        return f"{reason} than {state.best_loss:.4g} of step {state.best_step}; its weights: {best}"

    def _may_save(self, end):
        """Whether a checkpoint is due; skipped updates alone do not justify a new one.

        A skipped update changes nothing, so a checkpoint waits for the first that is not. Only the
        last of a stage does not: there may be no other update.
        """
        return self._owes_checkpoint and (not self._state.skipped_in_a_row or self.step == end)

    def _must_stop(self, stop):
        """Whether this process, or any of several workers, has received a signal to stop."""
        if self.engine.shard[1] == 1:
            return stop.requested
        return self._state.stop_requests > 0

    def _begin(self, index):
        return self._ends[index] - self.run.stages[index].steps

    def _steps_to_boundary(self, end):
        """How many updates the next graph call does: up to the next line, checkpoint, …"""
        options = self.options
        intervals = (options.log_steps, options.save_checkpoints_steps, options.eval_steps)
        to_boundary = [every - self.step % every for every in intervals if every]
        to_boundary.append(self._profiler.steps_to_border(self.step))
        return min(options.steps_per_loop, end - self.step, *to_boundary)

    def _is_due(self, every, end):
        return self.step == end or (every > 0 and self.step % every == 0)

    # The model of a stage

    def _make(self, stage):
        """Makes the model and the optimizer of a stage, with their first values.

        The graphs that train and evaluate them go with them: stages that share a model share these.
        """
        with self.engine.scope():
            self.model, self.optimizer = make_model_and_optimizer(self.run, stage)
        self._loop = self.engine.training_loop(self.run, self.model, self.optimizer)
        self._evaluate_on = make_evaluator(self.run.task, self.model, self.engine)

    def _change_stage(self, index):
        """Carries the state over to the next stage, whose model may be deeper or partly frozen."""
        before, stage = self.run.stages[index - 1 : index + 1]
        if stage.model_key() != before.model_key() or not stage.carry_moments:
            tensors = model_state.gather(self.model, self.optimizer, self.engine.to_host)
            old_depth = self.model.config.num_hidden_layers
            self._make(stage)
            new_depth = self.model.config.num_hidden_layers
            tensors |= stacking.grow(tensors, old_depth, new_depth, stage.growth)
            said = model_state.carry_over(self.model, self.optimizer, tensors, stage.carry_moments)
            self._reports.log(f"stage {index + 1}: {new_depth} layers; {said}")
        if stage.new_positions == "repeat":
            self._repeat_positions(index)

    def _repeat_positions(self, index):
        """Adds the trained positions to those that only this stage's longer sequences have."""
        known = stacking.known_positions(self.run.stages[:index])
        length = self.run.stages[index].max_seq_length
        if not 0 < known < length:
            return
        tables = [v for v in self.model.weights if v.path == stacking.POSITIONS]
        copies = getattr(self.optimizer, "copies", ())  # slots that began as a weight
        tables += [slot for slot, weight in copies if weight.path == stacking.POSITIONS]
        for table in tables:
            (values,) = self.engine.to_host([table])
            table.assign(stacking.repeat_positions(values, known, length))
        self._reports.log(
            f"stage {index + 1}: positions {known} to {length - 1} start with those of 0 to "
            f"{known - 1} added"
        )

    def _evaluate(self, index):
        stage = self.run.stages[index]
        metrics = self._evaluate_on(lambda *shard: self._records.held_out(stage, *shard))
        self._reports.evaluation(self.step, index, metrics)
        record = {
            "step": self.step,
            "max_seq_length": stage.max_seq_length,
            "records": self._records.held_out_fingerprint(stage),
            **metrics,
        }
        self._state = self._state.evaluated(self.step, metrics["loss"], _examples_of(record))
        if self.engine.is_chief and not self._state.evaluations_since_best:
            said = checkpoints.save_best(self.model_dir / "best", self._weights(), record)
            if said:
                self._reports.log(said)

    def _diagnosis(self, index):
        """Where the last step's gradients were not finite: it did not change the weights."""
        stage, step = self.run.stages[index], self.step - 1
        if self.engine.is_chief:
            self._good.judge(self._state.sums_since_saved)
        batch = self._records.training(stage)[step]
        scale = loop_state.loss_scale_before_skip(self.run, self._state.loss_scale)

        def found(rows):
            results = self.engine.sums_and_gradients(self.run, self.model, batch, rows, step, scale)
            return loop_state.names_of_non_finite(self.run, self.model, *results)

        losses, variables, where = [], [], None
        for rows in loop_state.micro_batches(self.run, stage.batch_size, self.engine.num_replicas):
            losses, variables = found(rows)
            if losses or variables:
                where = _first_row(rows, lambda some: any(found(some)))
                break
        return (
            f"Gradients were not finite for {self._state.skipped_in_a_row} steps in a row, up "
            f"to step {step} of stage {index + 1}, so all of them were skipped. Losses not finite: "
            f"{', '.join(losses) or 'none'}. Variables with such a gradient: {len(variables)} of "
            f"{len(self.model.trainable_variables)}, first "
            f"{variables[0] if variables else 'none when computed again'}. First row of the batch "
            f"that is enough to cause it: {'none' if where is None else where} (counted from 0). "
            f"Loss scale {scale:g}. {self._good.advice()}"
        )

    # Files

    def _save(self):
        exploded = self._good.judge(self._state.sums_since_saved) if self.engine.is_chief else None
        self._state = self._state.new_interval()
        self._owes_checkpoint = False
        tensors = model_state.gather(self.model, self.optimizer, self.engine.to_host)
        if self.engine.is_chief:
            tensors["global_step"] = np.int64(self.step)
            state = {"loop": dataclasses.asdict(self._state), "seconds": self._pace.seconds}
            state |= self._good.state(tensors)
            self._require_alone()
            prefix = self._store.save(tensors, self.step, state)
            self._good.saved(as_path(prefix).name, state["suspect"])
            self._reports.saved(prefix, state["suspect"], exploded, self._good.advice())
        self.engine.all_gather([self.step])  # barrier: the checkpoint is visible to all workers

    def _stage_of(self, checkpoint):
        """The stage that wrote it, which is the one before if it was written at its end."""
        step = checkpoint.step if checkpoint else 0
        return next(index for index, end in enumerate(self._ends) if step <= end)

    def _restore(self):
        if self._checkpoint is not None:
            self.step = self._checkpoint.step
            self._state = LoopState(**self._checkpoint.state["loop"])
            self._pace = StepTimer(self._checkpoint.state["seconds"])
            self._good.resume(self._checkpoint)
            model_state.restore(self.model, self.optimizer, self._checkpoint.tensors())
            self._reports.log(f"resuming from {self._checkpoint.prefix}")

    def _find_best(self):
        """Makes the state agree with the weights in `best/`, of which there are only the best.

        They may be of a later step, which is made again. After a return they may be gone.
        """
        self.engine.all_gather([self.step])  # barrier: the chief has set aside what a return undoes
        if self._checkpoint is None:
            return
        state, record = self._state, checkpoints.read_best(self.model_dir / "best")
        if "best_step" in self._checkpoint.state["loop"]:
            is_other = state.best_step and record.get("step") != state.best_step
            if is_other and (record or not self._stops_early()):
                self._state = state.without_best()
        elif self._is_of_this_stage(record):  # of an older version, whose checkpoints do not say
            self._state = state.evaluated(record["step"], record["loss"], _examples_of(record))

    def _is_of_this_stage(self, record):
        """Whether the content of `best.json` is of an evaluation in the checkpoint's stage."""
        kinds = {"step": int, "loss": float, "max_seq_length": int, "records": str}
        if any(type(record.get(name)) is not kind for name, kind in kinds.items()):
            return False
        return self._begin(self._stage_of(self._checkpoint)) < record["step"] <= self.step

    def _write_claim(self):
        """Records which run owns the directory, and which settings were changed on purpose."""
        change = self._claim.change(
            self._checkpoint and self._checkpoint.name, self._store.newest_name()
        )
        if change:
            changes = (*self._claim.changes, change)
            self._claim = dataclasses.replace(self._claim, changes=changes)
            self._store.abandoned = self._claim.abandoned()
        if change and "instead_of" in change:
            self._reports.training_log.keep_copy(change["instead_of"])
            if self.engine.is_chief:
                checkpoints.leave_best(self.model_dir / "best", self.step, change["instead_of"])
        if self.engine.is_chief:
            self._claim.write(self.model_dir, self.run.config)
            self._store.prune(self._checkpoint and self._checkpoint.name)
        self._reports.rewind(self.step)
        if change:
            self._reports.change(self.step, change)
        if self._claim.has_returned:
            self._reports.log("resume_from has no effect: the run has already returned there.")

    def _check_that_workers_agree(self):
        deciding = model_directory.deciding(self._claim.description)
        description = json.dumps(deciding, sort_keys=True).encode()
        mine = [self.step, zlib.crc32(description)]
        steps, runs = self.engine.all_gather(mine).astype(int).T.tolist()
        if len(set(runs)) > 1:
            odd = next(worker for worker, value in enumerate(runs) if value != runs[0])
            raise ValueError(
                "All workers must have the same settings; got other ones in worker "
                f"{odd} than in worker 0. Start all with the same flags, except "
                "task_index."
            )
        if len(set(steps)) > 1:
            raise ValueError(
                f"All workers must resume from the same step; got {steps}, in the order of "
                f"task_index. Share one model_dir between them; here it is {self.model_dir}."
            )

    def _weights(self):
        weights = self.model.weights
        paths = [variable.path for variable in weights]
        return dict(zip(paths, self.engine.to_host(weights), strict=True))

    def _export(self):
        prefix = self.model_dir / "pretrained" / "bert_model.ckpt-1"
        checkpoints.write_bundle(prefix, self._weights())
        last_train, last_eval = map(self._reports.training_log.last, ("train", "eval"))
        summary = {
            "total_training_steps": self.step,
            "train_loss": last_train.get("loss"),  # of a finished run whose log is gone: null
            **{name: value for name, value in last_train.items() if name.endswith("_accuracy")},
            "held_out": {name: v for name, v in last_eval.items() if name not in ("kind", "stage")},
            "stopped_early": self._stops_early(),
        }
        path = self.model_dir / "summaries" / "training_summary.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(summary, indent=1) + "\n")
        self._reports.log(f"trained {self.step} steps; weights: {prefix}; metrics: {path}")


def _examples_of(record):
    """The length and the digest of the examples of an evaluation, from its record."""
    return f"{record['max_seq_length']}-{record['records'].rpartition('-')[2]}"


def make_evaluator(
    task: "Task", model: "keras.Model", engine: "Engine"
) -> "Callable[[Callable[[int, int], Batches]], dict[str, float]]":
    """A function that evaluates a model; its graph is traced once for each shape of batches.

    Args:
        model: The task's, made in the engine's scope.

    Returns:
        A function of (shard index, number of shards) → held-out batches of that shard, in order. It
        calls it for every input pipeline of this process: one, or on a TPU one per host. It returns
        the task's `held_out_metrics` over all examples, each read and counted once.
    """
    evaluation_step = engine.evaluation_step(task, model)
    lock = threading.Lock()  # every input pipeline reads in a thread of its own

    def evaluate(open_batches):
        counts = 0.0

        def count(batch):
            nonlocal counts
            with lock:
                counts = counts + task.baseline_counts(batch, model.config)

        steps = range(open_batches(*engine.shard).num_batches)
        batches = engine.feed(open_batches, steps, count)
        sums = np.sum([np.asarray(evaluation_step(batches), np.float64) for _ in steps], axis=0)
        return task.held_out_metrics(sums, engine.all_gather(counts).sum(0))

    return evaluate


def _first_row(rows, is_bad):
    """The first of `rows` that by itself `is_bad`, by halving; `None` if it takes several.

    `is_bad` gets the same number of rows every time: TensorFlow would compile for each number.
    """
    count = len(rows)
    while len(rows) > 1:
        halves = np.array_split(rows, 2)
        rows = next((half for half in halves if is_bad(np.resize(half, count))), None)
        if rows is None:
            return None
    return rows[0]
