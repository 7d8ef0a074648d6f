"""Reads a model directory, as far as its files are there, for a report."""

import dataclasses
from pathlib import Path

from official_bert.training import checkpoint_names, forms, model_directory, starts
from official_bert.training.log_lines import Log, decoded, read_lines, read_log

LOG = "train_log.jsonl"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in the folder: its name, the step it was written at, its size in bytes."""

    name: str
    step: int
    size: int


@dataclasses.dataclass(frozen=True)
class Contents:
    """What was found in a folder.

    Attributes:
        folder: The folder.
        run: What `run.json` holds; empty if there is none.
        log: The training log.
        abandoned: {checkpoint that was the newest then: the log before the return}.
        seeds: {folder: its log}, where each seed has a folder of its own.
        best: What `best/best.json` holds; empty if there is none.
        summary: What a run writes at its end, `training_summary.txt`; empty if there is none.
        known_good: What `known_good.json` holds; empty if there is none.
        scores: What `results.json` of a fine-tuned model holds; empty if there is none.
        starts: Time, command and versions of each start of the run.
        checkpoints: Those that are still there.
        notes: Sentences on what is missing or damaged.
    """

    folder: Path
    run: dict
    log: Log
    abandoned: dict[str, Log]
    seeds: dict[str, Log]
    best: dict
    summary: dict
    known_good: dict
    scores: dict
    starts: list[dict]
    checkpoints: list[Checkpoint]
    notes: list[str]


def read(folder: Path) -> Contents:
    """Reads all of a folder that a report shows.

    Args:
        folder: A model directory, or the output folder of fine-tuning over several seeds.

    Raises:
        ValueError: if it is no such folder, or its `run.json` is damaged.
    """
    _require_run(folder)
    notes = []
    log = read_log(folder / LOG)
    seeds = {path.parent.name: read_log(path) for path in _by_number(folder, f"seed_*/{LOG}")}
    return Contents(
        folder=folder,
        run=_run_of(folder),
        log=log,
        abandoned={_word(path): read_log(path) for path in _by_number(folder, "train_log.*.jsonl")},
        seeds=seeds,
        best=_object(folder / "best/best.json", forms.BEST, notes),
        summary=_object(folder / "summaries/training_summary.txt", forms.SUMMARY, notes),
        known_good=_object(folder / "known_good.json", forms.KNOWN_GOOD, notes),
        scores=_object(folder / "results.json", forms.SCORES, notes),
        starts=list(read_lines(folder / starts.FILE, forms.START)[0]),
        checkpoints=_checkpoints(folder),
        notes=notes + _missing(folder, log, seeds),
    )


def _require_run(folder):
    if not folder.is_dir():
        raise ValueError(f"The folder must be the model_dir or output_dir of a run; got {folder}.")
    if any((folder / name).exists() for name in ("run.json", LOG)):
        return
    if any(folder.glob("seed_*/run.json")):
        return
    inside = sorted(path.parent.name for path in folder.glob("*/run.json"))
    hint = f"; did you mean {folder / inside[0]}?" if inside else "."
    raise ValueError(
        f"{folder} holds no run: neither run.json nor {LOG} is in it. Expected the model_dir or "
        f"output_dir of a run{hint}"
    )


def _run_of(folder):
    """What `run.json` holds, or that of the first seed."""
    first = next(iter(_by_number(folder, "seed_*/run.json")), folder / "run.json").parent
    run = model_directory.describes(folder) or model_directory.describes(first) or {}
    if wrong := list(forms.misfits(run, forms.RUN)):
        raise ValueError(
            f"{folder / 'run.json'} is damaged: {names_of(wrong)} is not what a run writes there. "
            "Restore the file, or remove it: the report then shows only the log."
        )
    return run


def names_of(wrong: list[str]) -> str:
    """The first of the names of values that are not of their form, fit for a terminal."""
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return ascii(wrong[0][:99])[1:-1] + more


def _by_number(folder: Path, pattern: str) -> list[Path]:
    """The files of a pattern, seed_2 before seed_10."""
    return sorted(folder.glob(pattern), key=lambda path: (len(str(path)), str(path)))


def _word(path):
    return path.name.removeprefix("train_log.").removesuffix(".jsonl")


def _object(path, form, notes):
    if not path.exists():
        return {}
    found = decoded(path.read_text(errors="replace"))
    if not found or any(forms.misfits(found, form)):
        notes.append(f"{path.name} is damaged and left out.")
        return {}
    return found


def _checkpoints(folder):
    found = []
    for path in folder.glob("*.index"):
        if checkpoint_names.is_name(path.stem):
            files = [path, *folder.glob(f"{path.stem}.data-*")]
            step, _ = checkpoint_names.step_and_count(path.stem)
            size = sum(file.stat().st_size for file in files if file.exists())
            found.append(Checkpoint(path.stem, step, size))
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def _missing(folder, log, seeds):
    logs = [log, *seeds.values()]
    notes = []
    if not any(one.train for one in logs):
        notes.append("The log has no training line yet, so there are no curves.")
    elif not any(one.held_out for one in logs):
        notes.append("No held-out text was evaluated, so only the training curves are shown.")
    if damaged := sum(one.damaged for one in logs):
        notes.append(f"{damaged} line(s) of {LOG} cannot be read and are left out.")
    if not (folder / "run.json").exists() and not seeds:
        notes.append("run.json is missing, so the settings of the run are unknown.")
    return notes
