"""Checks before the work that a run's files fit on the disk."""

import shutil
from typing import TYPE_CHECKING

from official_bert.model.config import BertConfig
from official_bert.system.places import Place, RemotePath
from official_bert.training import flops

if TYPE_CHECKING:
    from official_bert.stages import LoopOptions, Run, Stage

BYTES_OF_NUMBER = 4  # weights and moments are float32
# Files that a run writes into its directory, and replaces there.
_OWN_FILES = ("ctl_step_*", ".writing-*/*", "best/*", "pretrained/*")


def require(model_dir: Place, run: "Run", options: "LoopOptions") -> None:
    """Refuses to begin if the checkpoints and the best and final weights do not fit.

    A new checkpoint is written before the oldest is removed, and the one known to be good stays. So
    there are two more checkpoints than `keep_checkpoint_max`. Files of the run that are already in
    the directory count as free space.

    Args:
        model_dir: The model directory; it exists. An object store has room for all.
        run: A `stages.Run`.
        options: A `stages.LoopOptions`.

    Raises:
        OSError: with the needed space, the free space, and what to do.
    """
    if isinstance(model_dir, RemotePath):
        return
    count = _checkpoints(run, options)
    one = max(checkpoint_bytes(run, stage) for stage in run.stages)
    weights = max(weight_bytes(run.config, stage) for stage in run.stages)
    exports = 2 if options.eval_files else 1
    needed = count * one + exports * weights - _present(model_dir)
    free = shutil.disk_usage(model_dir).free
    if needed > free:
        best = "best and final weights" if options.eval_files else "final weights"
        keep = options.keep_checkpoint_max
        kept = ", plus the one being written and the last known to be good" if keep else ": all"
        raise OSError(
            f"The disk of {model_dir} must have {_gigabytes(needed)} free; got {_gigabytes(free)}. "
            f"The run writes up to {count:,} checkpoints of {_gigabytes(one)} "
            f"(keep_checkpoint_max={keep}{kept}) and "
            f"{_gigabytes(exports * weights)} of {best}; existing files are already subtracted. "
            "Free some space, lower keep_checkpoint_max, or choose a folder on another disk."
        )


def checkpoint_bytes(run: "Run", stage: "Stage") -> int:
    """Size of a checkpoint of this stage: all weights, and the optimizer's slots of what trains."""
    slot = flops.reduced_bytes(run.config, stage, run.optimizer.freeze)
    return weight_bytes(run.config, stage) + len(run.optimizer.slot_names) * slot


def weight_bytes(config: BertConfig, stage: "Stage") -> int:
    """Size of the weights alone."""
    return BYTES_OF_NUMBER * sum(flops.parameters(config, stage.depth_in(config)).values())


def _checkpoints(run, options):
    """Their maximum number: one per interval, at the end of each stage, and on a stop."""
    every = options.save_checkpoints_steps or run.total_steps
    written = run.total_steps // every + len(run.stages) + 1
    keep = options.keep_checkpoint_max
    return min(keep + 2, written) if keep else written


def _present(model_dir):
    found = (path for names in _OWN_FILES for path in model_dir.glob(names))
    return sum(path.stat().st_size for path in found)


def _gigabytes(size):
    return f"{size / 1e9:,.3g} GB"
