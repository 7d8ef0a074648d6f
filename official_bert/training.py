"""The training loop: from stages and records to a checkpoint.

What a step does is a function of (run, step): the batch, the dropout, the learning rate. With the
weights, the moments and the sums of the open log window in the checkpoint, a run that was killed
goes on as if nothing had happened.
"""

import json
import pathlib
import time

import numpy as np

from lamb_tf import telemetry
from official_bert import checkpoints, distribution, evaluation, input_pipeline, modeling, stages
from official_bert.pretraining_step import SUMS, make_training_loop, metrics_from_sums
from official_bert.training_log import StopRequest, TrainingLog, progress_line


class Trainer:
    """Trains one run in one model directory.

    Construction does all the checks: of the directory, of the records of every stage, of the
    space on the disk. `train` does the work.

    Args:
        run: What to train.
        reporting: What to show and keep.
        strategy: A `tf.distribute.Strategy`.
        model_dir: Where checkpoints and logs are; a run found there is gone on with.

    Raises:
        ValueError: if records and stages do not fit, or `model_dir` holds another run.
        OSError: if the checkpoints do not fit on the disk.
    """

    def __init__(self, run, reporting, strategy, model_dir):
        self.run, self.reporting, self.strategy = run, reporting, strategy
        self.model_dir = pathlib.Path(model_dir)
        self._is_chief = distribution.is_chief(strategy)
        self._check_batch_sizes()
        for stage in run.stages:  # opening records checks them
            self._open_training(stage, 0, 1)
            self._open_held_out(stage, 0, 1)
        self._store = checkpoints.CheckpointStore(model_dir, reporting.keep_checkpoint_max)
        self._check_directory()
        with strategy.scope():
            self.model = modeling.BertPretrainer(
                run.config, seed=run.seed, dtype=stages.DTYPE_POLICIES[run.dtype]
            )
            if not run.use_next_sentence_label:
                self.model.pooler.trainable = self.model.next_sentence_head.trainable = False
            self.optimizer = run.optimizer.make(run.learning_rate())
            telemetry.record(self.optimizer)
            self.optimizer.build(self.model.trainable_variables)
        self._learning_rate = run.learning_rate()
        self._log = TrainingLog(self.model_dir / "train_log.jsonl", writes=self._is_chief)
        self.step = 0  # updates done
        self._seconds = 0.0  # of training, over all processes that have worked on this run
        self._window = np.zeros(len(SUMS))  # sums since the last line of the log
        size = sum(value.nbytes for value in self._tensors().values())
        checkpoints.require_space(model_dir, 2 * size)

    def train(self):
        """Trains to the end of the last stage.

        Leaves, beside checkpoints and log, the weights alone as `pretrained/bert_model.ckpt-1` and
        the last figures in `summaries/training_summary.txt`, as the official script does.

        Raises:
            training_log.Stopped: after SIGINT or SIGTERM, when the checkpoint is written.
        """
        self._claim_directory()
        self._restore()
        with StopRequest() as stop:
            loop = make_training_loop(
                self.run, self.model, self.optimizer, self.strategy, self.reporting.enable_xla
            )
            end = 0
            for index, stage in enumerate(self.run.stages):
                begin, end = end, end + stage.steps
                if self.step < end:
                    self._train_stage(loop, index, begin, end, stop)
        if self._is_chief:
            self._export()

    def _train_stage(self, loop, index, begin, end, stop):
        """From `self.step` to `end`, where the stage ends."""
        stage, reporting = self.run.stages[index], self.reporting
        iterator = iter(
            distribution.distribute(
                self.strategy,
                lambda *shard: self._open_training(stage, *shard),
                range(self.step - begin, stage.steps),
            )
        )
        logged = None  # step and seconds at the last line of the log, or after the first call,
        while self.step < end:  # which traces the graph and is no measure of the rate
            started, started_at = time.perf_counter(), self._seconds
            steps = self._steps_to_boundary(end)
            self._window = loop(iterator, self.step, steps, self._window).numpy()
            self.step += steps
            self._seconds += time.perf_counter() - started
            if self._is_due(reporting.log_steps, end):
                self._report(index, logged or (self.step - steps, started_at))
                logged = None
            logged = logged or (self.step, self._seconds)
            if reporting.eval_files and self._is_due(reporting.eval_steps, end):
                self._evaluate(index)
            if self._is_due(reporting.save_checkpoints_steps, end) or stop.requested:
                self._save()
                stop.raise_if_requested(self.step, self.model_dir)

    def _steps_to_boundary(self, end):
        """How many updates the next graph call does: up to the next line, checkpoint, …"""
        reporting = self.reporting
        intervals = (reporting.log_steps, reporting.save_checkpoints_steps, reporting.eval_steps)
        to_boundary = [every - self.step % every for every in intervals if every]
        return min(reporting.steps_per_loop, end - self.step, *to_boundary)

    def _is_due(self, every, end):
        return self.step == end or (bool(every) and self.step % every == 0)

    def _report(self, index, logged):
        """Writes the open window to the log and the screen, and opens a new one."""
        metrics = metrics_from_sums(self._window, self.run.use_next_sentence_label)
        self._window = np.zeros(len(SUMS))
        updates = int(self.optimizer.iterations.numpy())
        learning_rate = float(self._learning_rate(updates - 1))  # of the last update
        layers = telemetry.read(self.optimizer)
        rate = (self.step - logged[0]) / max(self._seconds - logged[1], 1e-9)  # updates a second
        batch_size = self.run.stages[index].batch_size
        self._log.write(
            kind="train",
            step=self.step,
            stage=index,
            **metrics,
            learning_rate=learning_rate,
            gradient_norm=telemetry.gradient_norm(self.optimizer),
            skipped_updates=int(self.optimizer.skipped_updates.numpy()),
            examples_per_second=rate * batch_size,
            seconds=self._seconds,
            trust_ratios={path: layer["trust_ratio"] for path, layer in layers.items()},
        )
        if self._is_chief:
            seconds_left = self._tokens_left(index) / (self._tokens(index) * rate)
            print(
                progress_line(
                    step=self.step,
                    total_steps=self.run.total_steps,
                    stage=index,
                    metrics=metrics,
                    learning_rate=learning_rate,
                    examples_per_second=rate * batch_size,
                    seconds=seconds_left,
                ),
                flush=True,
            )

    def _tokens(self, index):
        """Tokens an update of this stage."""
        return self.run.stages[index].batch_size * self.run.stages[index].max_seq_length

    def _tokens_left(self, index):
        """Tokens from here to the end of the run."""
        ends = np.cumsum([stage.steps for stage in self.run.stages])
        here = (ends[index] - self.step) * self._tokens(index)
        later = range(index + 1, len(self.run.stages))
        return here + sum(self._tokens(i) * self.run.stages[i].steps for i in later)

    def _evaluate(self, index):
        stage = self.run.stages[index]
        metrics = evaluation.evaluate(
            self.model,
            self.strategy,
            lambda *shard: self._open_held_out(stage, *shard),
            self.run.use_next_sentence_label,
        )
        self._log.write(kind="eval", step=self.step, stage=index, **metrics)
        if self._is_chief:
            print(f"held out: {evaluation.describe(metrics)}", flush=True)

    # Files

    def _open_training(self, stage, shard_index, num_shards):
        return input_pipeline.Batches(
            _resolve(stage.input_files or self.run.input_files, stage),
            stage.batch_size,
            stage.max_seq_length,
            stage.max_predictions_per_seq,
            seed=self.run.seed,
            vocab_size=self.run.config.vocab_size,
            shard_index=shard_index,
            num_shards=num_shards,
        )

    def _open_held_out(self, stage, shard_index, num_shards):
        if not self.reporting.eval_files:
            return None
        return input_pipeline.Batches(
            _resolve(self.reporting.eval_files, stage),
            self.reporting.eval_batch_size,
            stage.max_seq_length,
            stage.max_predictions_per_seq,
            seed=self.run.seed,
            vocab_size=self.run.config.vocab_size,
            shard_index=shard_index,
            num_shards=num_shards,
            shuffle=False,
        )

    def _check_batch_sizes(self):
        parts = self.strategy.num_replicas_in_sync * self.run.gradient_accumulation_steps
        longest = self.run.config.max_position_embeddings
        for stage in self.run.stages:
            if stage.batch_size % parts:
                raise ValueError(
                    f"The global batch size {stage.batch_size} is not a multiple of {parts} = "
                    f"{self.strategy.num_replicas_in_sync} replicas × "
                    f"{self.run.gradient_accumulation_steps} micro-batches."
                )
            if stage.max_seq_length > longest:
                raise ValueError(
                    f"max_seq_length is {stage.max_seq_length}, but the model's "
                    f"max_position_embeddings is {longest}; shorten the records or enlarge the "
                    "position table in bert_config.json."
                )
        if self.reporting.eval_batch_size % self.strategy.num_replicas_in_sync:
            raise ValueError(
                f"eval_batch_size {self.reporting.eval_batch_size} is not a multiple of the "
                f"{self.strategy.num_replicas_in_sync} replicas."
            )

    def _check_directory(self):
        """Refuses the directory of another run, listing what differs."""
        path = self.model_dir / "run.json"
        if path.exists():
            theirs = json.loads(path.read_text())
            differences = list(_differences(theirs, self.run.describe()))
            if differences:
                raise ValueError(
                    f"{self.model_dir} holds another run: {'; '.join(differences)}. Go on with its "
                    "settings, or choose another model_dir (and its checkpoint as "
                    "init_checkpoint, to start from its weights)."
                )
        elif any(self.model_dir.glob("*.index")):
            raise ValueError(
                f"{self.model_dir} holds checkpoints but no run.json, so they are not of such a "
                "run; choose another model_dir."
            )

    def _claim_directory(self):
        """Says in the directory whose it is; `bert_config.json` is what other tools ask for."""
        if self._is_chief:
            description = json.dumps(self.run.describe(), indent=1)
            checkpoints.write_text(self.model_dir / "run.json", description)
            config = self.run.config.to_json()
            checkpoints.write_text(self.model_dir / "bert_config.json", config)

    def _tensors(self):
        """Everything a checkpoint holds, by its official name."""
        tensors = {"global_step": np.int64(self.step)}
        for variable in self.model.trainable_variables:
            for slot, value in self.optimizer.slots(variable).items():
                tensors[f"{variable.path}/adam_{slot}"] = value.numpy()
        for variable in self.model.weights:
            tensors[variable.path] = variable.numpy()
        for name in ("iterations", "skipped_updates"):
            tensors[f"optimizer/{name}"] = getattr(self.optimizer, name).numpy()
        return tensors

    def _save(self):
        if not self._is_chief:
            return
        state = {"window": self._window.tolist(), "seconds": self._seconds}
        prefix = self._store.save(self._tensors(), self.step, state)
        print(f"saved {prefix}", flush=True)

    def _export(self):
        weights = {variable.path: variable.numpy() for variable in self.model.weights}
        prefix = self.model_dir / "pretrained" / "bert_model.ckpt-1"
        checkpoints.write_bundle(prefix, weights)
        last_train, last_eval = self._log.last("train"), self._log.last("eval")
        summary = {
            "total_training_steps": self.step,
            "train_loss": last_train["loss"],
            **{name: last_train[name] for name in last_train if name.endswith("_accuracy")},
            "held_out": {name: v for name, v in last_eval.items() if name not in ("kind", "stage")},
        }
        path = self.model_dir / "summaries" / "training_summary.txt"
        path.parent.mkdir(exist_ok=True)
        checkpoints.write_text(path, json.dumps(summary, indent=1) + "\n")
        print(f"trained {self.step} steps; weights: {prefix}; figures: {path}", flush=True)

    def _restore(self):
        """Goes on from the newest whole checkpoint, or starts from `init_checkpoint`."""
        checkpoint = self._store.latest()
        if checkpoint is None:
            if self.run.init_checkpoint:
                print(load_weights(self.model, self.run.init_checkpoint), flush=True)
            self._log.rewind(0)
            return
        tensors = checkpoint.tensors()
        for variable in self.model.trainable_variables:
            for slot, value in self.optimizer.slots(variable).items():
                value.assign(tensors[f"{variable.path}/adam_{slot}"])
        for variable in self.model.weights:
            variable.assign(tensors[variable.path])
        for name in ("iterations", "skipped_updates"):
            getattr(self.optimizer, name).assign(tensors[f"optimizer/{name}"])
        self.step = checkpoint.step
        self._window = np.array(checkpoint.state["window"])
        self._seconds = checkpoint.state["seconds"]
        self._log.rewind(self.step)
        print(f"goes on from {checkpoint.prefix}", flush=True)


def load_weights(model, prefix):
    """Puts the weights of a checkpoint with official names into a model.

    Moments, rate and step are not taken over: that is what going on in a model directory does.

    Returns:
        A sentence that says what was carried over and what was not.

    Raises:
        ValueError: if the checkpoint is not readable, carries no weight of this model, or one of
            another shape.
    """
    tensors = checkpoints.read_tensors(prefix)
    fresh = []
    for variable in model.weights:
        if variable.path not in tensors:
            fresh.append(variable.path)
        elif tensors[variable.path].shape != tuple(variable.shape):
            raise ValueError(
                f"{prefix} has {variable.path} of shape {tensors[variable.path].shape}, but the "
                f"model's is {tuple(variable.shape)}; is it another bert_config.json's?"
            )
    if len(fresh) == len(model.weights):
        raise ValueError(
            f"{prefix} carries none of the model's variables; expected names like {fresh[0]}, "
            f"found names like {min(tensors)}."
        )
    for variable in model.weights:
        if variable.path in tensors:
            variable.assign(tensors[variable.path])
    carried = f"{len(model.weights) - len(fresh)} of {len(model.weights)} variables"
    return f"{prefix}: carried {carried}; " + (f"fresh: {', '.join(fresh)}" if fresh else "all")


def _resolve(patterns, stage):
    return [p.replace("{max_seq_length}", str(stage.max_seq_length)) for p in patterns]


def _differences(theirs, mine, name=""):
    """Sentences on where two JSON values differ."""
    if isinstance(theirs, dict) and isinstance(mine, dict):
        for key in sorted({*theirs, *mine}):
            inner = f"{name}.{key}" if name else key
            yield from _differences(theirs.get(key), mine.get(key), inner)
    elif isinstance(theirs, list) and isinstance(mine, list) and len(theirs) == len(mine):
        for index, pair in enumerate(zip(theirs, mine, strict=True)):
            yield from _differences(*pair, f"{name}[{index}]")
    elif theirs != mine:
        yield f"{name} was {json.dumps(theirs)} and is {json.dumps(mine)}"
