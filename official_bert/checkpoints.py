"""Checkpoints that are whole or absent: saved aside, renamed, verified before they are used.

A checkpoint is a TensorFlow tensor bundle whose keys are the official TensorFlow 1 names, so that
`tf.train.load_checkpoint` and every converter read it: the weights, their moments `…/adam_m` and
`…/adam_v`, and `global_step`. Beside the bundle lies `<prefix>.json` with the digests of its files
and the loop's own state. It is written last: without it, or if a digest differs, the checkpoint
does not count.
"""

import dataclasses
import hashlib
import json
import math
import os
import pathlib
import re
import shutil

import tensorflow as tf

from official_bert.whole_files import write_text

_PARTS = (".data-00000-of-00001", ".index")
_NAME = re.compile(r"ctl_step_(\d+)\.ckpt-(\d+)\.json")


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint: its path prefix, the step it was taken at and the loop's state."""

    prefix: str
    step: int
    state: dict

    def tensors(self):
        """All tensors by name, as NumPy arrays."""
        return read_tensors(self.prefix)


class CheckpointStore:
    """The checkpoints of one run, `ctl_step_{step}.ckpt-{count}` in a directory.

    Args:
        directory: Where they are; created if need be.
        keep: How many of the newest are kept; 0 keeps all.

    Example:

    >>> store = CheckpointStore("/tmp/model", keep=3)          # doctest: +SKIP
    >>> store.save({"global_step": np.int64(7)}, step=7, state={})   # doctest: +SKIP
    """

    def __init__(self, directory, keep=5):
        self.directory = pathlib.Path(directory)
        self.keep = keep
        self.directory.mkdir(parents=True, exist_ok=True)

    def save(self, tensors, step, state):
        """Writes a checkpoint and forgets those beyond `keep`; returns its prefix.

        Raises:
            OSError: if it cannot be written; those already there are untouched.
        """
        count = 1 + max((count for _, count, _ in self._found()), default=0)
        prefix = self.directory / f"ctl_step_{step}.ckpt-{count}"
        write_bundle(prefix, tensors)
        manifest = {
            "step": step,
            "state": state,
            "sha256": {part: _digest(f"{prefix}{part}") for part in _PARTS},
        }
        write_text(f"{prefix}.json", json.dumps(manifest, indent=1))
        write_text(self.directory / "checkpoint", f'model_checkpoint_path: "{prefix.name}"\n')
        self._forget_old()
        return str(prefix)

    def latest(self, say=print):
        """The newest whole checkpoint, or `None`; what is damaged is said and passed over.

        Raises:
            ValueError: if there are checkpoints and none of them is whole.
        """
        for _, _, path in sorted(self._found(), reverse=True):
            prefix = str(path)[: -len(".json")]
            problem = _problem(prefix)
            if problem is None:
                manifest = json.loads(path.read_text())
                return Checkpoint(prefix, manifest["step"], manifest["state"])
            say(f"Checkpoint {prefix} is damaged ({problem}); looking for the one before.")
        if self._found():
            raise ValueError(
                f"No checkpoint in {self.directory} is whole. Restore one, or move them away to "
                "start from the beginning."
            )
        return None

    def _found(self):
        names = ((_NAME.fullmatch(path.name), path) for path in self.directory.iterdir())
        return [(int(m[1]), int(m[2]), path) for m, path in names if m]

    def _forget_old(self):
        if self.keep:
            for _, _, path in sorted(self._found())[: -self.keep]:
                path.unlink()  # first the manifest: from here on the checkpoint does not count
        _forget_bundles(self.directory, "ctl_step_", {path.stem for _, _, path in self._found()})


def save_best(directory, weights, record):
    """Keeps the weights of the lowest held-out loss: `bert_model.ckpt-{step}` and `best.json`.

    A loss that is not finite is never the best. Losses at different sequence lengths do not
    compare: a new length begins anew.

    Args:
        directory: Where; created if need be.
        weights: Function that returns the tensors, called only if they are the best.
        record: What to say of them in `best.json`: `loss`, `step`, `max_seq_length`, …
    """
    if not math.isfinite(record["loss"]):
        return
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "best.json"
    best = json.loads(path.read_text()) if path.exists() else {}
    if best.get("max_seq_length") == record["max_seq_length"] and best["loss"] <= record["loss"]:
        _forget_bundles(directory, "bert_model", {f"bert_model.ckpt-{best['step']}"})
        return
    name = f"bert_model.ckpt-{record['step']}"
    write_bundle(directory / name, weights())
    write_text(path, json.dumps(record, indent=1) + "\n")
    _forget_bundles(directory, "bert_model", {name})


def read_tensors(prefix):
    """All tensors of a bundle by name, as NumPy arrays.

    Raises:
        ValueError: if there is no readable bundle at `prefix`.
    """
    try:
        reader = tf.train.load_checkpoint(str(prefix))
    except (tf.errors.OpError, ValueError) as error:
        raise ValueError(
            f"No readable checkpoint at {prefix} (expected {prefix}.index and its data files): "
            f"{str(error).splitlines()[0]}"
        ) from None
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def write_bundle(prefix, tensors):
    """Writes a tensor bundle whose files appear under their names only when whole.

    Raises:
        OSError: if it cannot be written.
    """
    prefix = pathlib.Path(prefix)
    aside = prefix.parent / f".writing-{prefix.name}"
    for left_by_a_kill in prefix.parent.glob(".writing-*"):
        shutil.rmtree(left_by_a_kill, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        names = sorted(tensors)
        with tf.device("CPU:0"):
            tf.raw_ops.SaveV2(
                prefix=str(aside / "bundle"),
                tensor_names=names,
                shape_and_slices=[""] * len(names),
                tensors=[tf.convert_to_tensor(tensors[name]) for name in names],
            )
        for part in _PARTS:
            _sync(aside / f"bundle{part}")
            os.replace(aside / f"bundle{part}", f"{prefix}{part}")
        _sync(prefix.parent)
    except tf.errors.OpError as error:
        raise OSError(f"Cannot write {prefix}: {str(error.message).splitlines()[0]}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _forget_bundles(directory, start, but):
    """Removes the bundles whose name has this start, but for some; what a kill left of one, too."""
    for part in _PARTS:
        for path in directory.glob(f"{start}*.ckpt-*{part}"):
            if path.name.removesuffix(part) not in but:
                path.unlink()


def _problem(prefix):
    """What is wrong with a checkpoint, or `None`."""
    try:
        digests = json.loads(pathlib.Path(f"{prefix}.json").read_text())["sha256"]
    except (ValueError, KeyError):
        return "its manifest is not readable"
    for part in _PARTS:
        if not os.path.exists(f"{prefix}{part}"):
            return f"{part} is missing"
        if _digest(f"{prefix}{part}") != digests[part]:
            return f"{part} does not match its digest"
    return None


def _digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path):
    """Has the operating system put a file or a folder on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
