"""Sends the numbers of a run to experiment trackers: Weights & Biases and MLflow.

They get the rows that TensorBoard gets, and the settings of `run.json`. Their own environment
variables set the destination (`WANDB_PROJECT`, `WANDB_MODE`, `MLFLOW_TRACKING_URI`, …).
`trackers.json` keeps the id of a run at each tracker, so that a resumed run continues its curves.

No error of a tracker ends a run: rows wait until it can be reached again. A final warning lists
what was not sent.
"""

import collections
import json
import os
import pathlib
import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from official_bert.system import messages
from official_bert.system.places import Place
from official_bert.system.whole_files import write_text
from official_bert.training import run_files

IDS = "trackers.json"
MAX_WAITING = 10_000  # rows
FIRST_PAUSE, LONGEST_PAUSE = 30.0, 600.0  # seconds after a failure until the next try
STOPPED = (130, 143)  # exit codes
# The libraries would try for minutes, or forever, while training waits. Environment variables that
# are set go first.
_MLFLOW_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
_WANDB_PATIENCE = {"init_timeout": 10, "finish_timeout": 120}  # seconds
_MLFLOW_LIMITS = 100, 250, 500  # parameters of a request, characters of a name and of a value

Row = tuple[str, int, Mapping[str, float]]  # kind, step, values


class Trackers:
    """The trackers of one run.

    Args:
        names: Of `"wandb"` and `"mlflow"`, those to report to.
    """

    def __init__(self, names: Iterable[str], model_dir: Place):
        self._links = [_Link(name, _TRACKERS[name](), model_dir) for name in dict.fromkeys(names)]

    def __bool__(self):
        return bool(self._links)

    def begin(self, settings: dict) -> None:
        """Names the settings of the run: the content of `run.json`."""
        for link in self._links:
            link.settings = settings
            link.send()

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Adds the values at a step to the curves `kind/NAME`."""
        for link in self._links:
            link.add((kind, step, values))
            link.send()

    def end(self, code: int, files: Sequence[pathlib.Path] = ()) -> None:
        """Sends what waits, then files and folders to keep, and ends the runs that have begun.

        Warns of what a tracker did not get. `code` is the exit code of the command.
        """
        for link in self._links:
            if link.has_begun or link.waiting:
                link.next_try = 0.0
                link.send()
                link.end(code, files)


class _Link:
    """The connection to one tracker."""

    def __init__(self, name: str, tracker: "_Wandb | _Mlflow", model_dir: Place):
        self._name, self._tracker, self._model_dir = name, tracker, model_dir
        self.settings: dict = {}
        self.waiting: collections.deque[Row] = collections.deque(maxlen=MAX_WAITING)
        self.has_begun = False
        self.next_try, self._pause = 0.0, FIRST_PAUSE
        self._has_warned = False  # of the failures since it worked
        self._reason = ""  # of the last failure
        self._lost = 0  # rows
        self._refused: set[tuple[str, ...]] = set()  # names of rows

    def add(self, row: Row) -> None:
        """Adds a row to those that wait; if they are too many, the oldest is lost."""
        self._lost += len(self.waiting) == MAX_WAITING
        self.waiting.append(row)

    def send(self) -> None:
        """Sends all that waits, unless it failed a moment ago."""
        if time.monotonic() < self.next_try:
            return
        try:
            if not self.has_begun:
                self._begin()
            while self.waiting:
                self._send_first()
        except Exception as error:  # of any kind: these are other people's servers
            self._failed(error)
        else:
            self._pause, self._has_warned = FIRST_PAUSE, False

    def _begin(self) -> None:
        path = self._model_dir / IDS
        ids = run_files.decoded(path.read_text()) if path.exists() else {}
        known, name = ids.get(self._name), self._model_dir.name
        if name.startswith("seed_"):
            name = f"{self._model_dir.parent.name}/{name}"
        run_id = self._tracker.begin(known, name, self.settings)
        self.has_begun = True
        if run_id != known:
            write_text(path, json.dumps(ids | {self._name: run_id}, indent=1) + "\n")

    def _send_first(self) -> None:
        """Sends the first row that waits, or leaves it out if the tracker refuses it."""
        kind, step, values = self.waiting[0]
        try:
            self._tracker.write(self.waiting[0])
        except Exception as error:
            if not self._tracker.refuses(error):
                raise
            self._reason = _reason(error)
            self._lost += 1
            if (kind, *values) not in self._refused:  # its like are not named again
                self._refused.add((kind, *values))
                messages.warn(
                    f"{self._name} refuses the row {kind!r} of step {step}, so it is left out: "
                    f"{self._reason}"
                )
        self.waiting.popleft()

    def _failed(self, error: Exception) -> None:
        """Warns of the first failure since it worked, and sends nothing for a while."""
        self.next_try = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._reason = _reason(error)
        if not self._has_warned:
            self._has_warned = True
            messages.warn(
                f"{self._name} cannot be reached, so the run continues without it; its rows wait: "
                f"{self._reason}. If this is not a passing outage, {_REMEDIES[self._name]}."
            )

    def end(self, code: int, files: Sequence[pathlib.Path]) -> None:
        """Sends the files, ends the run in any case, and warns of what the tracker did not get."""
        rows = self._lost + len(self.waiting)
        missing = [f"{rows:,} rows"] if rows else []
        can_send = self.has_begun and not self.waiting
        if files and not (can_send and self._succeeds(lambda: self._tracker.keep(files))):
            missing.append(f"{len(files)} files or folders")
        if self.has_begun and not self._succeeds(lambda: self._tracker.end(code)):
            missing.append("the end of the run")
        if missing:
            messages.warn(
                f"{self._name} did not get {', '.join(missing)} ({self._reason}). They are in "
                f"{self._model_dir}, the rows in train_log.jsonl. Run the same command again when "
                f"{self._name} can be reached: it sends what is new since the last checkpoint, and "
                "at the end of the run the files."
            )
        self.waiting.clear()
        self.has_begun, self._lost = False, 0

    def _succeeds(self, work):
        try:
            work()
        except Exception as error:  # of any kind, as above
            self._reason = _reason(error)
            return False
        return True


def _reason(error):
    text = " ".join(str(error).split()).rstrip(".")
    return (text if len(text) <= 300 else f"{text[:300]}…") or type(error).__name__


class _Wandb:
    """Weights & Biases; its own process sends the rows."""

    def __init__(self):
        self._run: Any = None
        self._new_id = uuid.uuid4().hex[:8]  # the same at each try

    def begin(self, run_id: str | None, name: str, settings: dict) -> str:
        """Begins a run, or continues the one with this id; returns its id."""
        import wandb

        run_id = run_id or self._new_id
        patience = {
            setting: seconds
            for setting, seconds in _WANDB_PATIENCE.items()
            if f"WANDB_{setting.upper()}" not in os.environ
        }
        try:
            self._run = wandb.init(
                id=run_id,
                resume="allow",
                name=name,
                reinit="finish_previous",
                settings=wandb.Settings(**patience),
            )
        except Exception:
            wandb.teardown()  # else its process refuses this id at the next try
            raise
        self._run.config.update(settings, allow_val_change=True)
        # A step of its own: a resumed run may write the rows since its checkpoint again.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        return run_id

    def write(self, row):
        kind, step, values = row
        self._run.log({f"{kind}/{name}": value for name, value in values.items()} | {"step": step})

    def keep(self, files):
        import wandb

        artifact = wandb.Artifact(f"run-{self._run.id}", type="model")
        for path in files:
            if path.is_dir():
                artifact.add_dir(str(path), name=path.name)
            else:
                artifact.add_file(str(path), name=path.name)
        self._run.log_artifact(artifact)

    def end(self, code):
        self._run.finish(exit_code=code)

    def refuses(self, error: Exception) -> bool:
        """Whether an error of `write` means that this row is invalid: then it is left out."""
        return isinstance(error, ValueError | TypeError)


class _Mlflow:
    """MLflow: a server, a database or a folder."""

    def begin(self, run_id, name, settings):
        for variable, value in _MLFLOW_PATIENCE.items():
            os.environ.setdefault(variable, value)
        import mlflow

        if run_id:
            try:
                return mlflow.start_run(run_id=run_id, nested=True).info.run_id
            except mlflow.exceptions.MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
                messages.warn(
                    f"mlflow has no run {run_id}, which {IDS} names, so a new one begins, without "
                    "the earlier rows. Restore MLFLOW_TRACKING_URI to continue the old one."
                )
        run = mlflow.start_run(run_name=name, nested=True)
        most, _, longest = _MLFLOW_LIMITS
        params = [(_mlflow_name(n), str(v)[:longest]) for n, v in run_files.flat(settings).items()]
        try:
            for first in range(0, len(params), most):
                mlflow.log_params(dict(params[first : first + most]))
        except Exception:
            self.end(messages.USAGE)  # else the next try would begin a run inside this one
            raise
        return run.info.run_id

    def write(self, row):
        import mlflow

        kind, step, values = row
        named = {_mlflow_name(f"{kind}/{name}"): value for name, value in values.items()}
        mlflow.log_metrics(named, step=step)

    def keep(self, files):
        import mlflow

        for path in files:
            if path.is_dir():
                mlflow.log_artifacts(str(path), artifact_path=path.name)
            else:
                mlflow.log_artifact(str(path))

    def end(self, code):
        import mlflow

        status = "KILLED" if code in STOPPED else "FAILED" if code else "FINISHED"
        mlflow.end_run(status)

    def refuses(self, error):
        from mlflow.exceptions import MlflowException

        is_of_mlflow = isinstance(error, MlflowException)
        return is_of_mlflow and error.error_code == "INVALID_PARAMETER_VALUE"


def _mlflow_name(name):
    """A name as MLflow takes it: other characters become their codes, as in `f1/R_26_D`."""
    named = re.sub(r"[^/\w.\- :]", lambda other: f"_{ord(other[0]):x}_", name)
    parts = ["_" if part in ("", ".", "..") else part for part in named.split("/")]
    return "/".join(parts)[: _MLFLOW_LIMITS[1]]


_REMEDIES = {
    "wandb": "log in with `wandb login`, or set WANDB_MODE=offline",
    "mlflow": "set MLFLOW_TRACKING_URI to a server, or install mlflow (not mlflow-skinny) for a "
    "database on this machine",
}
_TRACKERS: dict[str, type[_Wandb] | type[_Mlflow]] = {"wandb": _Wandb, "mlflow": _Mlflow}
