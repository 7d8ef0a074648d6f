"""Reads the files of a model directory for a report, as far as they exist."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from official_bert.training import model_directory, run_files
from official_bert.training.run_files import Log, decoded, read_lines, read_log

LOG = "train_log.jsonl"


class Checkpoint(NamedTuple):
    """A checkpoint in the folder: its name, the step it was written at, its size in bytes."""

    name: str
    step: int
    size: int


@dataclasses.dataclass(frozen=True)
class Contents:
    """The files of a run; missing ones are empty.

    Attributes:
        folder: The folder.
        log: The training log.
        run: `run.json`.
        abandoned: {the newest checkpoint before a return: the log until then}.
        seeds: The log of each seed, if each has its own folder.
        best: `best/best.json`.
        summary: `training_summary.txt`, written when a run ends.
        known_good: `known_good.json`.
        scores: `results.json` of a fine-tuned model.
        starts: Time, command and versions of each start of the run.
        checkpoints: Those that still exist.
        notes: Sentences about missing or damaged files.
    """

    folder: Path
    log: Log
    run: dict = dataclasses.field(default_factory=dict)
    abandoned: dict[str, Log] = dataclasses.field(default_factory=dict)
    seeds: Sequence[Log] = ()
    best: dict = dataclasses.field(default_factory=dict)
    summary: dict = dataclasses.field(default_factory=dict)
    known_good: dict = dataclasses.field(default_factory=dict)
    scores: dict = dataclasses.field(default_factory=dict)
    starts: Sequence[dict] = ()
    checkpoints: Sequence[Checkpoint] = ()
    notes: Sequence[str] = ()

    @property
    def logs(self) -> Sequence[Log]:
        """The logs to draw: the run's, or one per seed."""
        return self.seeds if self.seeds and not self.log.train else [self.log]


def read(folder: Path) -> Contents:
    """Reads all files of a folder that a report shows.

    Args:
        folder: A model directory, or the output folder of fine-tuning over several seeds.

    Raises:
        ValueError: if the folder holds no run, or its `run.json` is damaged.
    """
    _require_run(folder)
    notes: list[str] = []
    log = read_log(folder / LOG)
    seeds = [read_log(path) for path in _by_number(folder, f"seed_*/{LOG}")]
    return Contents(
        folder=folder,
        run=_run_of(folder),
        log=log,
        abandoned={
            path.name.removeprefix("train_log.").removesuffix(".jsonl"): read_log(path)
            for path in _by_number(folder, "train_log.*.jsonl")
        },
        seeds=seeds,
        best=_object(folder / "best/best.json", run_files.BEST, notes),
        summary=_object(folder / "summaries/training_summary.txt", run_files.SUMMARY, notes),
        known_good=_object(folder / "known_good.json", run_files.KNOWN_GOOD, notes),
        scores=_object(folder / "results.json", run_files.SCORES, notes),
        starts=read_lines(folder / run_files.STARTS, run_files.START)[0],
        checkpoints=sorted(_checkpoints(folder), key=lambda checkpoint: checkpoint.step),
        notes=[*notes, *_missing(folder, log, seeds)],
    )


def _require_run(folder):
    if not folder.is_dir():
        raise ValueError(f"The folder must be the model_dir or output_dir of a run; got {folder}.")
    if any(any(folder.glob(name)) for name in ("run.json", LOG, "seed_*/run.json")):
        return
    inside = sorted(path.parent.name for path in folder.glob("*/run.json"))
    hint = f"; did you mean {folder / inside[0]}?" if inside else "."
    raise ValueError(
        f"{folder} must be the model_dir or output_dir of a run; got a folder with neither "
        f"run.json nor {LOG}{hint}"
    )


def _run_of(folder):
    """`run.json`, or the first seed's."""
    first = next(iter(_by_number(folder, "seed_*/run.json")), folder / "run.json").parent
    run = model_directory.read_run_json(folder) or model_directory.read_run_json(first) or {}
    if wrong := list(run_files.misfits(run, run_files.RUN)):
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        name = ascii(wrong[0][:99])[1:-1] + more  # fit for a terminal
        raise ValueError(
            f"{folder / 'run.json'} must hold {name} as a run writes it; got another value. "
            "Restore the file, or remove it: the report then shows only the log."
        )
    return run


def _by_number(folder: Path, pattern: str) -> list[Path]:
    """The files of a pattern, seed_2 before seed_10."""
    return sorted(folder.glob(pattern), key=lambda path: (len(str(path)), str(path)))


def _object(path, form, notes):
    if not path.exists():
        return {}
    found = decoded(path.read_text(errors="replace"))
    if not found or any(run_files.misfits(found, form)):
        notes.append(f"{path.name} is damaged and left out.")
        return {}
    return found


def _checkpoints(folder: Path) -> Iterator[Checkpoint]:
    for path in folder.glob("*.index"):
        if run_files.is_name(path.stem):
            files = [path, *folder.glob(f"{path.stem}.data-*")]
            step, _ = run_files.step_and_count(path.stem)
            yield Checkpoint(path.stem, step, sum(f.stat().st_size for f in files if f.exists()))


def _missing(folder: Path, log: Log, seeds: Sequence[Log]) -> Iterator[str]:
    logs = [log, *seeds]
    if not any(one.train for one in logs):
        yield "The log has no training line yet, so there are no curves."
    elif not any(one.held_out for one in logs):
        yield "No held-out text was evaluated, so only the training curves are shown."
    if damaged := sum(one.damaged for one in logs):
        yield f"{damaged} line(s) of {LOG} cannot be read and are left out."
    if not (folder / "run.json").exists() and not seeds:
        yield "run.json is missing, so the settings of the run are unknown."
