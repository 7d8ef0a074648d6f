"""Logs of a run: JSON lines, TensorBoard's events, launches.

TensorBoard's events are written with its own messages, so no engine is needed.
"""

import contextlib
import datetime
import importlib.metadata
import importlib.util
import json
import math
import os
import pathlib
import platform
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn, Self

import numpy as np

from official_bert.data.records import frame
from official_bert.system.places import AnyPath, Place, as_path
from official_bert.system.whole_files import write_text, write_whole
from official_bert.training.run_files import STARTS

_LIBRARIES = ("lamb_tf", "tensorflow", "jax", "keras", "numpy")
_DISTRIBUTIONS = {"tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-tpu")}
_KINDS = ("train", "eval")  # of TensorBoard's curves


class TrainingLog:
    """A JSON-lines file in which every line carries the step it was written at.

    A number that is not finite is written as `null`, since JSON cannot represent it.

    Args:
        writes: Whether this process writes it; others of the same run pass `False`.
    """

    def __init__(self, path: AnyPath, writes: bool = True):
        self._path, self._writes = as_path(path), writes

    def rewind(self, step: int) -> None:
        """Drops the lines after `step`: a resumed run writes them again."""
        if self._writes:
            kept = [line for line in self._lines() if _step_of(line) <= step]
            write_text(self._path, "".join(kept))

    def keep_copy(self, word: str) -> None:
        """Copies the log under a name with this word in it, before steps are undone."""
        if self._writes and self._path.exists():
            copy = self._path.with_suffix(f".{word}{self._path.suffix}")
            write_whole(copy, [self._path.read_bytes()])

    def _lines(self):
        if not self._path.exists():
            return []
        return self._path.read_text(errors="replace").splitlines(keepends=True)

    def last(self, kind: str) -> dict:
        """The last line of a kind as a dictionary; empty if there is none, or if another writes."""
        if not self._writes:  # whose line may be there in part only
            return {}
        found = [values for values in map(json.loads, self._lines()) if values.get("kind") == kind]
        return found[-1] if found else {}

    def write(self, **values: object) -> None:
        if self._writes:
            with self._path.open("a") as file:
                file.write(json.dumps(_without_non_finite(values), allow_nan=False) + "\n")


class Summaries:
    """The curves and histograms of a run.

    Args:
        folder: Holds a folder of event files for each kind; `None` writes none.
    """

    def __init__(self, folder: Place | None):
        self._folder = folder if importlib.util.find_spec("tensorboard") else None
        self._paths: dict[str, Place] = {}
        self._resumed = 0

    def rewind(self, step: int) -> None:
        """Begins a session after `step`: TensorBoard drops later steps of earlier sessions.

        Raises:
            OSError: a file cannot be written.
        """
        self._resumed = step
        if self._folder is None:
            return
        for kind in _KINDS:
            if any((self._folder / kind).glob("events.out.tfevents.*")):
                self._append(kind, [])

    def write(
        self,
        kind: str,
        step: int,
        scalars: Mapping[str, float],
        histograms: Mapping[str, Sequence[float]],
    ) -> None:
        """Adds the values at a step to the curves of a kind, one of `_KINDS`.

        Raises:
            OSError: the file cannot be written.
        """
        if self._folder is None:
            return
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.histogram.summary_v2 import histogram_pb
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb

        found = [scalar_pb(name, value) for name, value in scalars.items()]
        found += [histogram_pb(name, np.array(values)) for name, values in histograms.items()]
        self._append(kind, [Event(step=step, summary=summary) for summary in found])

    def _append(self, kind, events):
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        if kind not in self._paths:
            start = SessionLog(status=SessionLog.START)
            first = Event(step=self._resumed + 1, session_log=start)
            events = [Event(file_version="brain.Event:2"), first, *events]
        for event in events:
            event.wall_time = time.time()
        with self._path(kind).open("ab") as file:
            file.write(b"".join(frame(event.SerializeToString()) for event in events))

    def _path(self, kind):
        if kind not in self._paths:
            folder = self._folder / kind
            folder.mkdir(parents=True, exist_ok=True)  # an OSError if that cannot be
            began = f"{time.time():.6f}".replace(".", "")
            name = f"events.out.tfevents.{began}.{socket.gethostname()}.{os.getpid()}"
            self._paths[kind] = folder / name
        return self._paths[kind]


def record_start(model_dir: Place, step: int, replicas: int) -> None:
    """Appends one line per launch to `starts.jsonl` (informational only).

    Args:
        step: Updates done before this start.
        replicas: Number of devices that compute an update together.
    """
    line = {
        "time": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "step": step,
        "command": [pathlib.Path(sys.argv[0]).stem, *sys.argv[1:]],
        "versions": {"python": platform.python_version()} | versions(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "replicas": replicas,
    }
    with (model_dir / STARTS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


def versions() -> dict[str, str]:
    """{library: version} of the libraries that a result depends on."""
    import keras

    other = "tensorflow" if keras.backend.backend() == "jax" else "jax"
    libraries = [name for name in _LIBRARIES if name != other]
    found = {name: _version(_DISTRIBUTIONS.get(name, (name,))) for name in libraries}
    return {name: version for name, version in found.items() if version}


def _version(names):
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


class Stopped(Exception):
    """The run was asked to stop and did so with its checkpoint written; `code` for the shell."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


class StopRequest:
    """Turns the first SIGINT or SIGTERM into a request; a second SIGINT stops at once."""

    def __init__(self):
        self._signals = []
        self._previous = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number, _):
        if number == signal.SIGINT and number in self._signals:
            raise KeyboardInterrupt
        self._signals.append(number)
        with contextlib.suppress(RuntimeError):  # the signal came amid a line that is being printed
            print("\nStopping after a checkpoint is written …", flush=True)

    @property
    def requested(self) -> bool:
        return bool(self._signals)

    def raise_stopped(self, step: int, model_dir: str | os.PathLike) -> NoReturn:
        """Raises `Stopped`; call it when all is saved.

        A worker that stops because another one was asked to ends as by SIGTERM.
        """
        raise Stopped(
            f"Stopped at step {step}. Run the same command again to resume from {model_dir}.",
            128 + (self._signals[-1] if self._signals else signal.SIGTERM),
        )


def _without_non_finite(value):
    if isinstance(value, dict):
        return {name: _without_non_finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _step_of(line):
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return math.inf  # a line that a kill cut short
