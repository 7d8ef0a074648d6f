"""Runs a study: its flags, its trials and its page; a killed study repeats no finished trial.

A study is a `Claim`. Its trials run one after another in this process, or `--jobs` at a time in
processes of their own. Each finished trial is a line of `--results` with the command, the settings,
the seed, the commit and the seconds that it took. The same command, given again, continues with the
missing trials.
"""

import argparse
import contextlib
import functools
import importlib.util
import json
import math
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from statistics import mean
from typing import Any, NamedTuple

import evidence  # before the next ones: it adds the path of this repository's packages
import machine
import stats

NEEDED = (
    'In a clone, `pip install ".[cpu,bert,plot]"` installs the needs of the studies of BERT, '
    '`pip install ".[jax,bert,plot]"` those of legw.py, and `make install` all, into .venv.'
)
try:
    import trials

    from official_bert.system import child_commands
except ImportError as error:
    reason = f"This needs {error.name}, which is not installed." if error.name else f"{error}."
    sys.exit(f"{reason} {NEEDED}")

ROOT = evidence.ROOT


def never(*_):
    return False


def nothing(_):
    return None


def always(*_):
    return True


class Claim(NamedTuple):
    """A study.

    Args:
        name: Name of its page in docs/evidence.
        results: Name of its records in benchmarks/results.
        title: Title of a new page.
        settings: Dictionary of JSON values.
        trials: Function of (settings, records so far) that returns all trials in order,
            dictionaries of JSON values.
        run: Function of (options of the command, settings, trial, records so far) that returns a
            dictionary for the record, or None if the trial failed. `said` is printed; `diverged`
            is counted.
        tables: Function of (records, settings) that returns {name: rows of cells, the head first}.
        pictures: {suffix of the picture's name: function of (records, settings) that returns a
            figure}.
        packages: Imported packages beyond this repository.
        quick: The settings that differ in its quick form.
        flags: {setting that is a flag of its own: (type, help)}.
        alone: Whether trials measure time: one at a time, each a process of its own.
        needs: Function of two trials: whether the first uses a result of the second, so that it
            begins after its end.
        lost: The meaning of a diverged run, for the page.
        model: More settings with their values, which are in a record only where they were given.
        extent: Names of settings that only determine the number of trials, or that `stands`
            compares; see `trials.Study`.
        problem: Function of the settings: the error in them as a sentence, or None.
        ready: Function of the options, called before the trials; raises ValueError where something
            that they need is missing.
        stands: Function of (settings, record, all records): whether the study would run that trial
            in the same way now. In one that has grown, another may be the best.
        suffix: Suffix of the names of the tables, where several studies share a page.
    """

    name: str
    results: str
    title: str
    settings: dict
    trials: Callable
    run: Callable
    tables: Callable
    pictures: Mapping[str, Callable] = {}
    packages: Sequence[str] = ("tensorflow", "matplotlib")
    quick: dict | None = None
    flags: Mapping[str, tuple] = {}
    alone: bool = False
    needs: Callable = never
    lost: str = ""
    model: Mapping = {}
    extent: Sequence[str] = ()
    problem: Callable = nothing
    ready: Callable = nothing
    stands: Callable = always
    suffix: str = ""


def of(module: dict, name: str, title: str, **fields: Any) -> Claim:
    """The study of a module's `globals()`, whose functions have the names of the fields of `Claim`.

    `results` is "claims_NAME" by default.
    """
    names = ("trials", "run", "tables", "needs", "problem", "ready", "stands")
    found = {each: module[each] for each in names if callable(module.get(each))}
    found |= {"results": f"claims_{name}", "settings": module["SETTINGS"]}
    found["quick"] = module.get("QUICK")
    if "draw" in module:
        found["pictures"] = {"": module["draw"]}
    return Claim(name=name, title=title, **found | fields)


def comma_separated(text: str) -> list[str]:
    return text.split(",")


def parser(claim: Claim, description: str) -> argparse.ArgumentParser:
    """The options of a study."""
    found = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = found.add_argument
    add("--settings", type=json.loads, default={}, help="JSON object of settings that differ")
    results, page, data = default_paths(claim)
    files = {
        "results": "JSON lines, one per trial; those in it are not run again. To repeat the whole "
        f"study, name a new file ({results.relative_to(ROOT)})",
        "page": f"the page; its picture is written next to it ({page.relative_to(ROOT)})",
        "data_dir": f"folder for the data of the study ({data.relative_to(ROOT)})",
    }
    for name, text in files.items():
        add(f"--{name}", type=pathlib.Path, help=text)
    add("--page_only", action="store_true", help="write the page from the existing results")
    for name, (kind, text) in claim.flags.items():
        add(f"--{name}", type=kind, default=claim.settings[name], help=text)
    found.set_defaults(quick=False, minutes=math.inf, jobs=1)
    if not claim.alone:
        add("--quick", action="store_true", help="a small form that takes minutes")
        add("--minutes", type=float, help="begin no trial after this number of minutes")
        add("--jobs", type=int, help="trials at a time, each on its share of the cores (1)")
    return found


def script(claim: Claim, description: str, run_trial: Callable = nothing, **flags: str) -> int:
    """Runs the script of a study.

    Args:
        run_trial: Function that runs one trial where the script is called for it, with `--trial`.
        **flags: {further option: help}.
    """
    options = parser(claim, description)
    for name, words in flags.items():
        options.add_argument(f"--{name}", help=words)
    options.add_argument("--trial", type=json.loads, help=argparse.SUPPRESS)
    options = options.parse_args()
    if options.trial:
        run_trial(**options.trial)
        return 0
    return main(claim, options)


def main(claim: Claim, options: argparse.Namespace) -> int:
    """Runs the missing trials and writes the page; returns the exit code."""
    if not isinstance(options.settings, dict):
        print(f"--settings must be a JSON object; got {options.settings!r}.", file=sys.stderr)
        return 2
    settings = claim.settings | ((claim.quick or {}) if options.quick else {})
    settings |= {name: getattr(options, name) for name in claim.flags} | options.settings
    if problem := _problem(claim, options, settings):
        print(problem, file=sys.stderr)
        return 2
    _settle_paths(claim, options)
    work, failed = study(claim, settings, options.results), []
    try:
        work.done()
        if not options.page_only:
            claim.ready(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if not options.page_only:
        if claim.alone:
            child_commands.raise_on_signals()
        try:
            with trials.exclusive(options.data_dir, options.results):
                failed = _run_missing(claim, options, settings, work)
        except (KeyboardInterrupt, child_commands.Interrupted):
            kept = f"{len(work.done())} of {len(work.trials())} trials are kept"
            print(f"\nStopped. {kept} in {options.results}; the same command resumes.")
            return 128 + signal.SIGINT
    _write_page(claim, options, settings, work)
    for trial in failed:
        again = "the same command tries it again"
        print(f"failed: {stats.trial_name(trial)}; {again}", file=sys.stderr)
    if done := len(work.done()):
        print(f"{done} of {len(work.trials())} trials are done: {options.page}")
    return 1 if failed else 0


def study(claim: Claim, settings: dict, results: pathlib.Path) -> trials.Study:
    """The study's trials with these settings, in a file."""
    lists, stands = (functools.partial(f, settings) for f in (claim.trials, claim.stands))
    return trials.Study(results, settings, lists, claim.extent, stands)


def _problem(claim, options, settings):
    """The error in the options as a line, or None."""
    known = *claim.settings, *claim.model
    if unknown := sorted({*options.settings} - {*known}):
        known = ", ".join(known)
        return f"--settings must be among {known}; got {', '.join(unknown)}. Correct the name."
    if problem := misfit(claim, options.settings) or claim.problem(settings):
        return f"--settings: {problem}"
    if missing := [name for name in claim.packages if importlib.util.find_spec(name) is None]:
        return f"This needs {', '.join(missing)}, which is not installed. {NEEDED}"
    cores = machine.cores()
    if not 1 <= options.jobs <= cores:
        return f"--jobs must be 1 to {cores}, the number of cores; got {options.jobs}."
    return None


def misfit(claim: Claim, changed: dict) -> str | None:
    """The first changed setting of another kind than its default, as a sentence; or None.

    A number of trials or seeds is at least 1. A dictionary of numbers has the names that the
    default has; a dictionary of lists, some of them.
    """
    defaults = dict(claim.model) | claim.settings
    for name, value in changed.items():
        if not _is_like(value, defaults[name], 1 if name in claim.extent else 0):
            example = json.dumps(defaults[name])
            return f"{name} must be like {example}; got {json.dumps(value)}."
    return None


def _is_like(value, default, least):
    if isinstance(default, dict):
        if not isinstance(value, dict) or not value or not value.keys() <= default.keys():
            return False
        whole = value.keys() == default.keys() or isinstance(next(iter(default.values())), list)
        return whole and all(_is_like(each, default[name], least) for name, each in value.items())
    if isinstance(default, list):
        return isinstance(value, list) and all(_is_like(e, default[0], least) for e in value)
    if default is None or isinstance(default, str):
        return isinstance(value, int if default is None else str)
    kinds = (int, float) if isinstance(default, float) else (int,)
    return type(value) in kinds and value >= (0 if isinstance(default, float) else least)


def default_paths(claim):
    """Results, page and folder of the data."""
    results = ROOT / f"benchmarks/results/{claim.results}.jsonl"
    data = ROOT / "build" / claim.results.replace("claims_", "claims/")
    return results, ROOT / f"docs/evidence/{claim.name}.md", data


def _settle_paths(claim, options):
    """Sets the default paths where none are given; the quick form has paths of its own."""
    results, page, data = default_paths(claim)
    if options.quick:
        results, page = (data.parent / "quick" / path.name for path in (results, page))
    options.results = options.results or results
    options.page = options.page or page
    options.data_dir = options.data_dir or data


def commit() -> str:
    """The newest commit of `main` in this code, or HEAD; "unknown" outside of a clone."""
    for arguments in (["merge-base", "HEAD", "main"], ["rev-parse", "HEAD"]):
        git = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
        if git.returncode == 0:
            return git.stdout.strip()[:12]
    return "unknown"


# Trials


def _run_missing(claim, options, settings, work):
    """Runs each trial as soon as a process is idle and its needs are met; those that failed."""
    ends, running, failed = time.monotonic() + 60 * options.minutes, {}, []
    with _processes(options.jobs) as pool:
        while True:
            waiting = [t for t in work.missing() if t not in [*running.values(), *failed]]
            left = [*running.values(), *waiting]
            ready = (t for t in waiting if not any(claim.needs(t, o) for o in [*left, *failed]))
            may_begin = len(running) < options.jobs and time.monotonic() <= ends
            trial = next(ready, None) if may_begin else None
            if trial is not None:
                work.announce(trial, left, len(running) + len(failed), options.jobs)
                records = list(work.done().values())
                found = pool.submit(_record, claim, options, settings, work, trial, records)
                running[found] = trial
                continue
            if not running:
                return failed
            done, _ = futures.wait(running, return_when=futures.FIRST_COMPLETED)
            for future in done:
                trial = running.pop(future)
                try:
                    record = future.result()
                except BrokenProcessPool:
                    names = " or ".join(
                        f"'{stats.trial_name(t)}'" for t in (trial, *running.values())
                    )
                    raise RuntimeError(
                        f"The process of the trial {names} ended without a result: killed, perhaps "
                        "for lack of memory. Finished trials are kept; the same command resumes."
                    ) from None
                if record is None:
                    failed.append(trial)
                    continue
                work.add(record)


def _record(claim, options, settings, work, trial, records):
    """The record of a trial, which is run here; None if it failed."""

    def run(trial):
        always = {"command": machine.command(), "commit": commit(), "jobs": options.jobs}
        cpu = sum(os.times()[:4])  # of child processes, too
        found = claim.run(options, settings, trial, records)
        if found is None:
            return None
        if "said" in found:
            lost = "diverged; " if found["diverged"] else ""
            print(f"  {stats.trial_name(trial)}: {lost}{found['said']}", flush=True)
        return always | found | {"cpu_seconds": sum(os.times()[:4]) - cpu}

    return work.record(trial, run)


class _ThisProcess:
    """Takes the place of a pool of processes, for one job."""

    def submit(self, function, *arguments):
        future = futures.Future()
        future.set_result(function(*arguments))
        return future


@contextlib.contextmanager
def _processes(jobs):
    """A pool of processes, each with its share of the cores; for one job, this process."""
    if jobs == 1:
        yield _ThisProcess()
        return
    context = multiprocessing.get_context("spawn")  # a fork of this process may not train
    given = context.Value("i", 0), jobs
    pool = futures.ProcessPoolExecutor(jobs, context, _begin_process, given)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _begin_process(count, jobs):
    child_commands.end_with_parent()
    with count.get_lock():
        job = count.value
        count.value += 1
    if hasattr(os, "sched_setaffinity"):  # Linux has it
        cores = sorted(os.sched_getaffinity(0))
        own = slice(len(cores) * job // jobs, len(cores) * (job + 1) // jobs)
        os.sched_setaffinity(0, cores[own])


# The page


def _write_page(claim, options, settings, work):
    if not work.done():
        print(f"No page: {options.results} has no trial with these settings.", file=sys.stderr)
        return
    small = ": the small form, without results" if options.quick else ""
    found = contents(claim, settings, work)
    evidence.write(options.page, found._replace(title=claim.title + small))


def kept(claim: Claim) -> Iterator[tuple[pathlib.Path, evidence.Contents]]:
    """The page of the study in docs/evidence, and its contents from its kept records, if any."""
    results, page, _ = default_paths(claim)
    for record in trials.read(results)[-1:]:  # the newest
        newest = {k: v for k, v in record["settings"].items() if k not in claim.extent}
        settings = claim.settings | newest
        yield page, contents(claim, settings, study(claim, settings, results))


def contents(claim: Claim, settings: dict, work: trials.Study) -> evidence.Contents:
    """The tables and pictures of a study from its finished trials."""
    records = list(work.done().values())
    tables = claim.tables(records, settings) | {
        "measured": measured(claim, records, work),
        "settings": [("setting", ""), *settings_rows(dict(claim.model) | settings)],
    }
    tables = {f"{name}{claim.suffix}": rows for name, rows in tables.items()}
    pictures = {
        ending: functools.partial(draw, records, settings)
        for ending, draw in claim.pictures.items()
    }
    return evidence.Contents(claim.title, tables, [work.results], pictures)


def settings_rows(settings: dict) -> list[tuple[str, Any]]:
    return [(f"`{name}`", value) for name, value in settings.items() if value is not None]


def measured(claim: Claim, records: Sequence[dict], work: trials.Study) -> list[tuple[str, str]]:
    """How the records were made: trials, time, machine, versions, dates, commands, commits."""
    about, jobs = records[-1]["machine"], max(record.get("jobs", 1) for record in records)
    trained = [record for record in records if "twin" not in record]
    counts = [f"{len(records)} of {len(work.trials())} done"]
    minutes = [f"{sum(r['wall_seconds'] for r in records) / 60:.0f} minutes of trials"]
    if not claim.alone:
        counts.append(f"{sum(r['diverged'] for r in records)} diverged: {claim.lost}")
        minutes.append(f"{sum(r['cpu_seconds'] for r in records) / 60:.0f} minutes of CPU time")
    if copies := len(records) - len(trained):
        counts.append(f"{copies} reuse a run of another part")
    minutes.append(f"{mean(r['wall_seconds'] for r in trained):.0f} s per trial")
    if jobs > 1:
        minutes.append(f"up to {jobs} trials at a time, each on an equal share of the cores")
    load = max(record["machine"]["load_before"] for record in records)
    processors = " and ".join(dict.fromkeys(record["machine"]["cpu"] for record in records))
    cores = machine.named_cores(jobs * about["cores"])
    versions = [f"{n} {about[n]}" for n in ("python", *trials.PACKAGES) if n in about]
    dates = sorted(record["date"] for record in records)
    rows = [
        ("trials", "; ".join(counts)),
        ("time", ", ".join(minutes)),
        ("machine", f"{processors}, {cores}; load average before a trial at most {load:.1f}"),
        ("versions", ", ".join(versions)),
        ("dates", " to ".join(dict.fromkeys((dates[0], dates[-1])))),
    ]
    if not claim.alone:
        commands = dict.fromkeys(f"`{record['command']}`" for record in records)
        rows.append(("commands", ", ".join(commands)))
        rows.append(("commits", ", ".join(sorted({record["commit"] for record in records}))))
    return [("measured", ""), *rows]
