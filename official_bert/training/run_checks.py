"""Checks a run before the work: devices, records, model directory and disk space.

`claim` checks everything but the disk; `warnings` reports settings without effect.
"""

import math
import re
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from lamb_tf import gradient_noise
from official_bert import stacking
from official_bert.model.config import BertConfig
from official_bert.optimizers import optimizers
from official_bert.system.places import Place, RemotePath
from official_bert.training import flops, model_directory, model_state, stage_model

if TYPE_CHECKING:
    import keras

    from official_bert.protocols import Batches, Engine, Lengths
    from official_bert.stages import LoopOptions, Run, Stage

BYTES_OF_NUMBER = 4  # weights and moments are float32
# Files that a run writes into its directory, and replaces there.
_OWN_FILES = ("ctl_step_*", ".writing-*/*", "best/*", "initial/*", "pretrained/*")


class RunRecords:
    """Opens the records of a run.

    Args:
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
        for stage in reversed(self._run.stages):  # held-out records of the first stay open
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


def claim(
    run: "Run",
    options: "LoopOptions",
    engine: "Engine",
    records: RunRecords,
    model_dir: Place,
    resume_from: int | None = None,
) -> model_directory.Claim:
    """A run's right to its model directory, once its stages and records are found to be in order.

    Args:
        resume_from: Step of the checkpoint to return to.

    Raises:
        ValueError: as `check`, `RunRecords.check` and `model_directory.check`.
        OSError: if a file cannot be read.
    """
    check(run, options, engine.num_replicas)
    run.optimizer.make()  # to refuse its settings before the records are read
    description = run.describe() | {"records": records.check(engine.validate)}
    if run.init_checkpoint:
        description["init_weights"] = model_state.digest(run.init_checkpoint)
    return model_directory.check(model_dir, run.config, description, resume_from)


def check(run: "Run", options: "LoopOptions", replicas: int) -> None:
    """Refuses batches that cannot be divided, and updates that the run does not have.

    Args:
        replicas: Number of replicas that share a batch.

    Raises:
        ValueError: the batch does not fit.
    """
    stacking.check(run.config, run.stages)
    parts = replicas * run.gradient_accumulation_steps
    for stage in run.stages:
        if stage.batch_size % parts:
            raise ValueError(
                f"The global batch size must be a multiple of {parts} = {replicas} replicas × "
                f"{run.gradient_accumulation_steps} micro-batches (gradient_accumulation_steps); "
                f"got {stage.batch_size}. Change one of these numbers."
            )
    if options.noise_scale:
        remedy = "Set gradient_accumulation_steps to 2 or more, or leave noise_scale out."
        gradient_noise.require_micro_batches(parts, remedy)
    if options.eval_files and options.eval_batch_size % replicas:
        raise ValueError(
            f"eval_batch_size must be a multiple of the {replicas} replicas; got "
            f"{options.eval_batch_size}."
        )
    window = options.profile_steps
    if window and window[1] > run.total_steps:
        raise ValueError(
            f"profile_steps must be within the {run.total_steps} steps of this run; got "
            f"{window[0]},{window[1]}."
        )


def warnings(
    run: "Run", options: "LoopOptions", replicas: int, step: int, model: "keras.Model"
) -> Iterator[str]:
    """Sentences on settings that have no effect in a run that starts after `step` updates.

    These depend on devices, records and the model; the rules of the commands depend only on flags.
    """
    decay, depth = run.optimizer.layer_decay, model.config.num_hidden_layers
    rates = stage_model.layer_rates(model.trainable_variables, depth, decay) or ()
    if rates and all(rate == 1 for _, rate in rates):
        yield (
            f"layer_decay={decay:g} has no effect: encoder layers and embeddings are frozen, and "
            "all other variables use the full learning rate. Leave it out, or freeze less."
        )
    for index, stage in enumerate(run.stages):
        if stage.warmup_steps >= stage.steps:
            yield (
                f"stage {index + 1} has {stage.steps} steps, but its warm-up takes "
                f"{stage.warmup_steps}: the learning rate never reaches {stage.learning_rate:g}. "
                "Shorten the warm-up, or train longer."
            )
        known = stacking.known_positions(run.stages[:index])
        if stage.new_positions == "repeat" and not 0 < known < stage.max_seq_length:
            yield (
                f"new_positions of stage {index + 1} has no effect: earlier stages have trained "
                f"{min(known, stage.max_seq_length)} of its {stage.max_seq_length} positions, so "
                "there is nothing to repeat. Leave it out."
            )
    if run.reduce_dtype != "fp32" and replicas == 1:
        yield (
            f"reduce_dtype={run.reduce_dtype} has no effect: with one replica there is nothing to "
            "reduce. Leave it out."
        )
    if options.early_stopping:
        begin = run.total_steps - run.stages[-1].steps
        within = (run.total_steps - 1) // options.eval_steps - begin // options.eval_steps
        if within <= options.early_stopping:
            yield (
                f"early_stopping={options.early_stopping} is unlikely to end this run: its last "
                f"stage has {within} evaluation{'s' * (within != 1)} before step "
                f"{run.total_steps}, and {options.early_stopping + 1} are needed, as the first is "
                "the lowest so far. Give smaller eval_steps."
            )
    window = options.profile_steps
    if window and step >= window[1]:
        yield (
            f"profile_steps={window[0]},{window[1]} has no effect: this run resumes after step "
            f"{step}. Give later steps."
        )


def require_space(
    model_dir: Place, run: "Run", options: "LoopOptions", optimizer: "keras.optimizers.Optimizer"
) -> None:
    """Refuses to begin if the checkpoints and the best, first and final weights do not fit.

    A new checkpoint is written before the oldest is removed, and the one known to be good stays. So
    there are two more checkpoints than `keep_checkpoint_max`. Files of the run that are already in
    the directory count as free space.

    Args:
        model_dir: The model directory; it exists. An object store has room for all.

    Raises:
        OSError: with the needed space, the free space, and what to do.
    """
    if isinstance(model_dir, RemotePath):
        return
    count = _checkpoints(run, options)
    one = max(checkpoint_bytes(run, stage, optimizer) for stage in run.stages)
    weights = max(weight_bytes(run.config, stage) for stage in run.stages)
    exports = 3 if options.eval_files else 2
    own = (path for names in _OWN_FILES for path in model_dir.glob(names))
    needed = count * one + exports * weights - sum(path.stat().st_size for path in own)
    free = shutil.disk_usage(model_dir).free
    if needed > free:
        best = "best, first and final weights" if options.eval_files else "first and final weights"
        keep = options.keep_checkpoint_max
        kept = ", plus the one being written and the last known to be good" if keep else ": all"
        raise OSError(
            f"The disk of {model_dir} must have {_gigabytes(needed)} free; got {_gigabytes(free)}. "
            f"The run writes up to {count:,} checkpoints of {_gigabytes(one)} "
            f"(keep_checkpoint_max={keep}{kept}) and "
            f"{_gigabytes(exports * weights)} of {best}; existing files are already subtracted. "
            "Free some space, lower keep_checkpoint_max, or choose a folder on another disk."
        )


def checkpoint_bytes(run: "Run", stage: "Stage", optimizer: "keras.optimizers.Optimizer") -> float:
    """Bytes of a checkpoint of this stage: all weights, slots of the trained ones, other state.

    Args:
        optimizer: The optimizer of this stage or of another; variables that this one does not
            train are taken to have the largest number of slots.
    """
    shares = {
        _of_any_layer(v.path): sum(math.prod(s.shape) for s in optimizer.slots(v).values())
        / math.prod(v.shape)
        for v in optimizer.trainable_variables
    }
    trained = flops.trained_parameters(run.config, stage, run.optimizer.freeze).items()
    most = max(shares.values())
    slots = sum(size * shares.get(_of_any_layer(path), most) for path, size in trained)
    others = sum(math.prod(v.shape) for v in optimizers.other_state(optimizer).values())
    return weight_bytes(run.config, stage) + BYTES_OF_NUMBER * (slots + others)


def _of_any_layer(path):
    return re.sub(r"/layer_\d+/", "/layer/", path)


def weight_bytes(config: BertConfig, stage: "Stage") -> int:
    """Size of the weights."""
    return BYTES_OF_NUMBER * sum(flops.parameters(config, stage.depth_in(config)).values())


def _checkpoints(run, options):
    """Their maximum number: one per interval, at the end of each stage, and on a stop."""
    every = options.save_checkpoints_steps or run.total_steps
    written = run.total_steps // every + len(run.stages) + 1
    keep = options.keep_checkpoint_max
    return min(keep + 2, written) if keep else written


def _gigabytes(size):
    return f"{size / 1e9:,.3g} GB"
