"""TensorBoard's event files, written with TensorBoard's own messages: no engine is needed."""

import importlib.util
import os
import socket
import time
from collections.abc import Mapping, Sequence

import numpy as np

from official_bert.data.records import frame
from official_bert.system.places import Place

_KINDS = ("train", "eval")


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
        """Begins a session after `step`: TensorBoard drops what earlier ones wrote of later steps.

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
