"""Checkpoints that are whole or absent: saved aside, renamed, verified before they are used.

A checkpoint is a TensorFlow tensor bundle whose keys are the official TensorFlow 1 names, so that
`tf.train.load_checkpoint` and every converter read it: the weights, their moments `…/adam_m` and
`…/adam_v` (LARS: `…/momentum`), and `global_step`. `<prefix>.json` holds the digests of its
files and the loop's own state. It is written last: without it, or if a digest
differs, the checkpoint does not count. While a checkpoint is written, `.writing-NAME` is there, and
`checkpoint` names it only when it is whole. So a half-written checkpoint is recognised, even in a
copy. Checkpoint files that lack their `.json` for another reason are refused and never removed.

`known_good.json` names the newest checkpoint whose weights the following updates have proved good
(see `known_good.py`). Rotation never removes that one.
"""

import dataclasses
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from official_bert.checkpoints import tensor_bundles
from official_bert.system.places import AnyPath, RemotePath, as_path, open_stream
from official_bert.system.whole_files import json_object, put_in_place, sync, write_text
from official_bert.training.model_directory import same_examples
from official_bert.training.run_files import Abandoned, is_name, step_and_count

_PARTS = (".data-00000-of-00001", ".index")


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint: its path prefix, the step it was taken at and the loop's state."""

    prefix: str
    step: int
    state: dict

    @property
    def name(self) -> str:
        return os.path.basename(self.prefix)

    def tensors(self) -> dict[str, np.ndarray]:
        """All tensors by name, as NumPy arrays."""
        return read_tensors(self.prefix)


class CheckpointStore:
    """The checkpoints of one run, `ctl_step_{step}.ckpt-{count}` in a directory.

    Args:
        directory: Where they are; created if need be.
        keep: How many of the newest are kept, apart from the one known to be good; 0 keeps all.
        abandoned: The `Abandoned` of each return to an earlier checkpoint. They are not resumed,
            and go first. May be assigned later.

    Example:

    >>> store = CheckpointStore("/tmp/model", keep=3)          # doctest: +SKIP
    >>> store.save({"global_step": np.int64(7)}, step=7, state={})   # doctest: +SKIP
    """

    def __init__(self, directory: AnyPath, keep: int = 5, abandoned: Sequence[Abandoned] = ()):
        self.directory = as_path(directory)
        self.keep = keep
        self.abandoned = abandoned
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ValueError(
                f"The folder of a run must be a directory; got {directory}, which is a file or "
                "inside one. Choose another folder."
            ) from None

    def save(self, tensors: Mapping[str, np.ndarray], step: int, state: dict) -> str:
        """Writes a checkpoint and removes those beyond `keep`; returns its prefix.

        Raises:
            OSError: if it cannot be written; those already there are untouched.
        """
        counts = [_count(name) for name in self._all_names()]
        count = 1 + max(
            [*counts, *(abandoned.up_to_count for abandoned in self.abandoned)], default=0
        )
        prefix = self.directory / f"ctl_step_{step}.ckpt-{count}"

        def write_manifest():
            manifest = {
                "step": step,
                "state": state,
                "sha256": {
                    **{part: _digest(f"{prefix}{part}") for part in _PARTS},
                    "state": _state_digest(state),
                },
            }
            write_text(f"{prefix}.json", json.dumps(manifest, indent=1))

        write_bundle(prefix, tensors, write_manifest)
        self.prune()
        return str(prefix)

    def prune(self, resumed: str | None = None) -> None:
        """Names the newest in `checkpoint` and removes old ones, also after a kill in between.

        Args:
            resumed: Name of a checkpoint that stays until a newer one is saved: those after it may
                be damaged.
        """
        if newest := self.newest_name():
            write_text(self.directory / "checkpoint", f'model_checkpoint_path: "{newest}"\n')
        self._prune_old({resumed, self.known_good()})

    def latest(self, log: Callable[[str], object] = print) -> Checkpoint | None:
        """The newest whole checkpoint, or `None`; damaged ones are reported and skipped.

        Raises:
            ValueError: if there are checkpoints and none of them is whole, or if the newest has no
                `.json`, or if they are gone.
        """
        unexplained = self._unexplained()
        names = self._names()
        found = self._newest_whole(names, log)
        self._require_explained(unexplained, found and found.name, found, log)
        if names and found is None:
            raise ValueError(
                f"No checkpoint in {self.directory} is complete: all are damaged. Restore one, or "
                "choose another folder to start from the beginning."
            )
        if found is None:
            self._require_new()
        return found

    def at(
        self,
        step: int,
        log: Callable[[str], object] = print,
        setting: str = "resume_from",
        others: Sequence[int] = (),
    ) -> Checkpoint:
        """The newest whole checkpoint of a step.

        Args:
            setting: The name of the setting that gives the step.
            others: Further steps that it may name.

        Raises:
            ValueError: if there is none; it lists the steps that have one.
        """
        unexplained = self._unexplained()
        steps = {name: step_and_count(name)[0] for name in self._names()}
        found = self._newest_whole([name for name in steps if steps[name] == step], log)
        self._require_explained(unexplained, self.newest_name(), found, log)
        if found is None:
            there = sorted({*steps.values(), *others} - {step})
            raise ValueError(
                f"{setting} must be the step of a complete checkpoint in {self.directory}; got "
                f"{step}. Steps with a checkpoint: {', '.join(map(str, there)) or '(none)'}."
            )
        return found

    def newest_name(self) -> str | None:
        """The name of the newest checkpoint, whole or not; `None` if there is none."""
        return max(self._names(), key=_count, default=None)

    def confirm(self, name: str, **evidence: object) -> None:
        """Notes down that a checkpoint is known to be good, and why."""
        record = {"checkpoint": name, "step": step_and_count(name)[0], **evidence}
        write_text(self.directory / "known_good.json", json.dumps(record, indent=1) + "\n")

    def known_good(self) -> str | None:
        """The name of the checkpoint last confirmed, or `None`."""
        name = json_object(self.directory / "known_good.json").get("checkpoint")
        return name if name in self._names() else None

    def _names(self):
        """The checkpoints that have a manifest and are not abandoned."""
        return [name for name in self._all_names() if not self._is_abandoned(name)]

    def _all_names(self):
        names = (path.stem for path in self.directory.glob("ctl_step_*.json"))
        return [name for name in names if is_name(name)]

    def _unexplained(self):
        """Bundles without a `.json` that are neither half written nor about to be removed."""
        begun = {path.name for path in self.directory.glob(".writing-*")}  # before they are listed
        names = {path.stem for path in self.directory.glob("ctl_step_*.index")}
        names |= {path.stem for path in self.directory.glob("ctl_step_*.data-*")}
        return [
            name
            for name in names.difference(self._all_names())
            if is_name(name) and f".writing-{name}" not in begun and not self._is_abandoned(name)
        ]

    def _require_explained(self, unexplained, newest, found, log):
        """Refuses bundles without a `.json` that no checkpoint has followed: `newest`, by name.

        If `checkpoint` names an older one that is there, the save of such a bundle never ended.
        """
        count, settled = _count(newest) if newest else 0, self._settled()
        later = sorted((name for name in unexplained if _count(name) > count), key=_count)
        if later and settled in self._names() and _count(settled) < _count(later[0]):
            left = ", ".join(later)
            log(f"Passed over: {left}, without its .json, as a save leaves it that was cut short.")
        elif later:
            lost = later[-1]
            raise ValueError(
                f"{self.directory} holds {lost} without {lost}.json, which has its digests and the "
                "state of the run; without it the run cannot be resumed. Copy the ctl_step_*.json "
                f"too; or move the files of {lost} to another folder, "
                + (f"to resume from step {found.step}; " if found else "")
                + "or start from its weights: another folder, with it as init_checkpoint."
            )

    def _settled(self):
        """The name in `checkpoint`: the newest that was whole when it was written."""
        try:
            text = (self.directory / "checkpoint").read_text(encoding="utf-8")
        except (OSError, ValueError):
            return None
        named = re.match(r'model_checkpoint_path: "([^"]+)"', text)
        return named[1] if named else None

    def _require_new(self):
        """Refuses to begin where a run has saved checkpoints, all of which are gone."""
        for left in "checkpoint", "pretrained/bert_model.ckpt-1.index":
            if (self.directory / left).exists():
                raise ValueError(
                    f"The checkpoints (ctl_step_*) of the run in {self.directory} are missing, but "
                    f"{self.directory / left} is there. Restore them to resume the run, or choose "
                    "another folder to start from the beginning."
                )

    def _is_abandoned(self, name):
        return any(abandoned.includes(name) for abandoned in self.abandoned)

    def _newest_whole(self, names, log):
        for name in sorted(names, key=_count, reverse=True):
            prefix = str(self.directory / name)
            try:
                return _read_whole(prefix)
            except ValueError as problem:
                log(f"Checkpoint {prefix} is damaged ({problem}); trying the previous one.")
        return None

    def _prune_old(self, but):
        if self.keep:
            in_order = sorted(
                self._all_names(), key=lambda name: (not self._is_abandoned(name), _count(name))
            )
            for name in in_order[: -self.keep]:
                if name not in but:  # first the manifest: then the checkpoint does not count
                    (self.directory / f"{name}.json").unlink()
        # A bundle without a `.json` stays until a checkpoint of a later step is there; where all
        # are kept, for good.
        newest = self.newest_name()
        step = step_and_count(newest)[0] if newest else 0
        unexplained = self._unexplained()
        kept = [name for name in unexplained if not self.keep or step_and_count(name)[0] > step]
        _prune_bundles(self.directory, "ctl_step_", {*self._all_names(), *kept})


def _count(name):
    return step_and_count(name)[1]


def save_best(directory: AnyPath, weights: Mapping[str, np.ndarray], record: dict) -> str | None:
    """Keeps weights as the best, instead of others: `bert_model.ckpt-{step}` and `best.json`.

    Args:
        directory: Where; created if need be.
        record: Content of `best.json`: `loss`, `step`, `max_seq_length`, `records` (the
            fingerprint of the held-out examples), …

    Returns:
        A sentence, if these are the best only because the held-out examples are others than before.
    """
    directory = as_path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    before = read_best(directory)
    name = f"bert_model.ckpt-{record['step']}"
    write_bundle(directory / name, weights)
    write_text(directory / "best.json", json.dumps(record, indent=1) + "\n")
    _prune_bundles(directory, "bert_model", {name})
    same_length = before.get("max_seq_length") == record["max_seq_length"]
    if same_length and not same_examples(str(before.get("records")), record["records"]):
        return (
            f"the held-out records have changed since step {before.get('step')}, so the losses do "
            "not compare: the weights of this evaluation are now the best"
        )
    return None


def read_best(directory: AnyPath) -> dict:
    """The content of `best.json`; empty if it is not there or damaged."""
    return json_object(as_path(directory) / "best.json")


def leave_best(directory: AnyPath, step: int, left: str) -> None:
    """Sets `best.json` aside, under a name with `left` in it, if it is of a later step than `step`.

    The run returns to `step`, so the next evaluation is the best of the new course.
    """
    path = as_path(directory) / "best.json"
    record = read_best(directory)
    if isinstance(record.get("step"), int) and record["step"] > step:
        write_text(path.parent / f"best.{left}.json", json.dumps(record, indent=1) + "\n")
        path.unlink()


def read_tensors(prefix: AnyPath) -> dict[str, np.ndarray]:
    """All tensors of a bundle by name, as NumPy arrays.

    Raises:
        ValueError: if there is no readable bundle at `prefix`.
    """
    one_file = re.search(r"\.(index|data-\d{5}-of-\d{5})$", str(prefix))
    if one_file:
        raise ValueError(
            f"A checkpoint must be given by the prefix of its files; got one file, {prefix}. Give "
            f"{str(prefix)[: one_file.start()]}."
        )
    try:
        return {name: tensor.read() for name, tensor in tensor_bundles.read(prefix).items()}
    except (OSError, ValueError) as error:
        raise ValueError(
            f"No readable checkpoint at {prefix} (expected {prefix}.index and its data files): "
            f"{error}."
        ) from None


def write_bundle(
    prefix: AnyPath, tensors: Mapping[str, np.ndarray], finish: Callable[[], object] = lambda: None
) -> None:
    """Writes a tensor bundle whose files appear under their names only when whole.

    In an object store each appears so by itself. As long as it is not finished `.writing-NAME` is
    there: on this machine a folder, in an object store a file.

    Args:
        finish: Called when the files are there, to write further files.

    Raises:
        OSError: if it cannot be written.
    """
    prefix = as_path(prefix)
    if isinstance(prefix, RemotePath):
        for mark in prefix.parent.glob(".writing-*"):  # left by a kill
            mark.unlink()
        mark = prefix.parent / f".writing-{prefix.name}"
        write_text(mark, "being written\n")
        tensor_bundles.write(prefix, tensors)
        finish()
        mark.unlink()
        return
    aside = prefix.parent / f".writing-{prefix.name}"
    for left_by_a_kill in prefix.parent.glob(".writing-*"):
        shutil.rmtree(left_by_a_kill, ignore_errors=True)
    is_finished = False
    try:
        aside.mkdir(parents=True)
        tensor_bundles.write(aside / "bundle", tensors)
        for part in _PARTS:
            put_in_place(aside / f"bundle{part}", f"{prefix}{part}")
        sync(prefix.parent)
        finish()
        is_finished = True
    except OSError as error:
        raise OSError(f"Cannot write {prefix}: {error.strerror or error}") from None
    finally:
        for left in aside.glob("*"):
            left.unlink()  # on a full disk there is room again
        if is_finished:
            aside.rmdir()


def _prune_bundles(directory, start, but):
    """Removes the bundles whose name has this start, whole or not, except some."""
    for part in _PARTS:
        for path in directory.glob(f"{start}*.ckpt-*{part}"):
            if path.name.removesuffix(part) not in but:
                path.unlink()


def _read_whole(prefix):
    """A `Checkpoint` whose files are as they were written.

    Raises:
        ValueError: with the damage.
    """
    try:
        manifest = json.loads(as_path(f"{prefix}.json").read_text())
        state, digests = manifest["state"], manifest["sha256"]
        wanted = [digests[part] for part in _PARTS]
        state["loop"], state["seconds"]  # raises KeyError
        wanted_of_state = digests["state"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("its .json is not readable") from None
    if _state_digest(state) != wanted_of_state:
        raise ValueError("its state does not match its digest")
    for part, digest in zip(_PARTS, wanted, strict=True):
        if not as_path(f"{prefix}{part}").exists():
            raise ValueError(f"{part} is missing")
        if _digest(f"{prefix}{part}") != digest:
            raise ValueError(f"{part} does not match its digest")
    return Checkpoint(prefix, step_and_count(os.path.basename(prefix))[0], state)


def _state_digest(state):
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _digest(path):
    with open_stream(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
