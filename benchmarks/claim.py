"""Runs a study: its flags, its trials, of which a killed study repeats none, and its page.

A study is a `Claim`. Its trials run one after another in this process, or `--jobs` at a time in
processes of their own; each finished one is a line of `--results` with the command, the settings,
the seed, the commit and the seconds that it took. The same command, given again, goes on with the
trials that are missing.
"""

import argparse
import contextlib
import functools
import importlib.util
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean
from typing import Any, NamedTuple

import evidence  # before the next ones: it adds the path of this repository's packages
import machine
import stats

NEEDED = (
    'In a clone, `pip install ".[cpu,bert,plot]"` brings what the studies of BERT need, '
    '`pip install ".[jax,bert,plot]"` what legw.py needs, and `make install` all, into .venv.'
)
try:
    import trials

    from official_bert.system import child_commands
except ImportError as error:
    sys.exit(f"This needs {error.name}, which this Python has not. {NEEDED}")

ROOT = evidence.ROOT
PAGE_EVERY = 120  # seconds between pages while trials run


def never(*_):
    return False


def nothing(_):
    return None


def always(*_):
    return True


class Claim(NamedTuple):
    """A study.

    Args:
        name: Of its page in docs/evidence.
        results: Name of its records in benchmarks/results.
        title: Of a new page.
        settings: Dictionary of JSON values.
        trials: Function of (settings, records so far); the trials in order, dictionaries of JSON
            values.
        run: Function of (options of the command, settings, trial, records so far); a dictionary
            for the record, or None if the trial failed. `said` is printed; `diverged` is counted.
        tables: Function of (records, settings); {name: rows of cells, the head first}.
        pictures: {what follows the page's name in the picture's: function of (records, settings)
            that returns a figure}.
        packages: What it imports beyond this repository.
        alike: Tuples of a trial's keys, by which the time left is guessed; see `trials.Study`.
        quick: The settings that differ in its quick form.
        flags: {setting that is a flag of its own: (type, help)}.
        alone: Whether trials measure time: one at a time, each a process of its own.
        needs: Function of two trials; whether the first uses what the second leaves, so that it
            has to begin after its end.
        lost: What happened in a run that counts as diverged.
        model: More settings with their values, which are in no record where they are not given.
        extent: Names of settings that only say how many trials there are, or that `stands`
            compares; see `trials.Study`.
        problem: Function of the settings; what is wrong with them as a sentence, or None.
        ready: Function of the options, called before the trials; raises ValueError where what they
            need is not there.
        stands: Function of (settings, record, all records); whether the study would run that trial
            in the same way now. In one that has grown, another may be the best.
        suffix: Of the names of the tables, where several studies share a page.
    """

    name: str
    results: str
    title: str
    settings: dict
    trials: Callable
    run: Callable
    tables: Callable
    pictures: Mapping[str, Callable]
    packages: Sequence[str]
    alike: Sequence = ()
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
        "results": "JSON lines, a line a trial; what it has is not done again. To repeat the whole "
        f"study, name a new file ({results.relative_to(ROOT)})",
        "page": f"the page; its picture is put beside it ({page.relative_to(ROOT)})",
        "data_dir": f"where the data of the study are made ({data.relative_to(ROOT)})",
    }
    for name, text in files.items():
        add(f"--{name}", type=pathlib.Path, help=text)
    add("--page_only", action="store_true", help="write the page from the results that there are")
    for name, (kind, text) in claim.flags.items():
        add(f"--{name}", type=kind, default=claim.settings[name], help=text)
    if not claim.alone:
        add("--quick", action="store_true", help="a small form that takes minutes")
        text = "begin no trial after so many minutes; it ends with the trials that are running"
        add("--minutes", type=float, default=math.inf, help=text)
        text = "trials at a time, each on its share of the processor's cores (1)"
        add("--jobs", type=int, default=1, help=text)
    else:
        found.set_defaults(quick=False, minutes=math.inf, jobs=1)
    return found


def main(claim: Claim, options: argparse.Namespace) -> int:
    """Runs the trials that are missing, writes the page; returns the exit code.

    Args:
        claim: The study.
        options: What `parser` parsed.
    """
    if not isinstance(options.settings, dict):
        print(f"--settings: give a JSON object, not {options.settings!r}.", file=sys.stderr)
        return 2
    settings = claim.settings | ((claim.quick or {}) if options.quick else {})
    settings |= {name: getattr(options, name) for name in claim.flags} | options.settings
    if problem := _problem(claim, options, settings):
        print(problem, file=sys.stderr)
        return 2
    _settle_paths(claim, options)
    work = study(claim, settings, options.results)
    try:
        work.done()
        if not options.page_only:
            claim.ready(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    due, failed = _Pace(lambda: _write_page(claim, options, settings, work)), []
    if not options.page_only:
        if claim.alone:
            child_commands.raise_on_signals()
        try:
            with trials.exclusive(options.data_dir, options.results):
                failed = _run_missing(claim, options, settings, work, due.maybe)
        except (KeyboardInterrupt, child_commands.Interrupted):
            kept = f"{len(work.done())} of {len(work.trials())} trials are kept"
            print(f"\nStopped. {kept} in {options.results}; the same command goes on.")
            return 128 + signal.SIGINT
    due.now()
    for trial in failed:
        again = "the same command tries it again"
        print(f"failed: {stats.trial_name(trial)}; {again}", file=sys.stderr)
    if done := len(work.done()):
        print(f"{done} of {len(work.trials())} trials are done: {options.page}")
    return 1 if failed else 0


def study(claim: Claim, settings: dict, results: pathlib.Path) -> trials.Study:
    """The study's trials with these settings, in a file."""
    lists, stands = (functools.partial(f, settings) for f in (claim.trials, claim.stands))
    return trials.Study(results, settings, lists, (*claim.alike, ()), claim.extent, stands)


def _problem(claim, options, settings):
    """What is wrong with the options, as a line; or None."""
    known = *claim.settings, *claim.model
    if unknown := sorted({*options.settings} - {*known}):
        return f"--settings: there is no {', '.join(unknown)}; there are {', '.join(known)}."
    if problem := misfit(claim, options.settings) or claim.problem(settings):
        return f"--settings: {problem}"
    if missing := [name for name in claim.packages if importlib.util.find_spec(name) is None]:
        return f"This needs {', '.join(missing)}, which this Python has not. {NEEDED}"
    cores = machine.cores()
    if not 1 <= options.jobs <= cores:
        return f"--jobs={options.jobs}: give 1 to {cores}, the number of cores."
    return None


def misfit(claim: Claim, changed: dict) -> str | None:
    """What is wrong with the kinds of the changed settings, as a sentence; or None.

    A value is of the kind of the default; a number of trials or seeds is at least 1. A dictionary
    of numbers has the names that the default has; one of lists, some of them.
    """
    defaults = dict(claim.model) | claim.settings
    for name, value in changed.items():
        if not _is_like(value, defaults[name], 1 if name in claim.extent else 0):
            return f"{name} is {json.dumps(value)}; give one like {json.dumps(defaults[name])}."
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
    if isinstance(default, float):
        return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def default_paths(claim):
    """Results, page and folder of the data."""
    results = ROOT / f"benchmarks/results/{claim.results}.jsonl"
    data = ROOT / "build" / claim.results.replace("claims_", "claims/")
    return results, ROOT / f"docs/evidence/{claim.name}.md", data


def _settle_paths(claim, options):
    """The default paths where none are given; the quick form leaves the pages alone."""
    results, page, data = default_paths(claim)
    if options.quick:
        results, page = (data.parent / "quick" / path.name for path in (results, page))
    options.results = options.results or results
    options.page = options.page or page
    options.data_dir = options.data_dir or data


def command() -> str:
    """The command of this study."""
    script = pathlib.Path(sys.argv[0]).resolve()
    script = script.relative_to(ROOT) if script.is_relative_to(ROOT) else script.name
    return shlex.join(["python", str(script), *sys.argv[1:]])


def commit() -> str:
    """The newest commit of `main` in this code, or HEAD; "unknown" outside of a clone."""
    for arguments in (["merge-base", "HEAD", "main"], ["rev-parse", "HEAD"]):
        git = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
        if git.returncode == 0:
            return git.stdout.strip()[:12]
    return "unknown"


# Trials


def _run_missing(claim, options, settings, work, after_each):
    """Runs each trial as soon as a process is idle and what it needs is there; those that failed.

    With one job the trials run in this process.
    """
    ends, running, failed = time.monotonic() + 60 * options.minutes, {}, []
    shared = claim, options, settings
    idle = [None]
    if options.jobs > 1:
        idle = [_start_worker(*shared, work, job) for job in range(options.jobs)]

    def finish(trial, record):
        if record is None:
            failed.append(trial)
            return
        work.add(record)
        after_each()

    while True:
        waiting = [t for t in work.missing() if t not in [*running.values(), *failed]]
        left = [*running.values(), *waiting]
        ready = (t for t in waiting if not any(claim.needs(t, o) for o in [*left, *failed]))
        trial = next(ready, None) if idle and time.monotonic() <= ends else None
        if trial is not None:
            work.announce(trial, left, len(running) + len(failed), options.jobs)
            records = list(work.done().values())
            if options.jobs == 1:
                finish(trial, work.record(trial, functools.partial(_run, *shared, records)))
                continue
            worker = idle.pop()
            worker.send((trial, records))
            running[worker] = trial
            continue
        if not running:
            return failed
        for worker in multiprocessing.connection.wait(running):
            trial = running.pop(worker)
            try:
                record = worker.recv()
            except EOFError:
                raise RuntimeError(
                    f"The process of the trial '{stats.trial_name(trial)}' ended without a "
                    "result: by the error above, or killed, as for want of memory. What is done is "
                    "kept; the same command goes on."
                ) from None
            idle.append(worker)
            finish(trial, record)


def _run(claim, options, settings, records, trial):
    always = {"command": command(), "commit": commit(), "jobs": options.jobs}
    cpu = time.process_time()
    found = claim.run(options, settings, trial, records)
    if found is None:
        return None
    if "said" in found:
        lost = "diverged; " if found["diverged"] else ""
        print(f"  {stats.trial_name(trial)}: {lost}{found['said']}", flush=True)
    return always | found | {"cpu_seconds": time.process_time() - cpu}


def _start_worker(claim, options, settings, work, job):
    """A process that runs the trials which it is sent; the end of its pipe."""
    context = multiprocessing.get_context("spawn")  # a fork of this process may not train
    ours, theirs = context.Pipe()
    arguments = theirs, job, claim, options, settings, work
    context.Process(target=_work, args=arguments, daemon=True).start()
    theirs.close()
    return ours


def _work(pipe, job, claim, options, settings, work):
    child_commands.end_with_parent()
    if hasattr(os, "sched_setaffinity"):  # Linux has it
        cores = sorted(os.sched_getaffinity(0))
        own = slice(len(cores) * job // options.jobs, len(cores) * (job + 1) // options.jobs)
        os.sched_setaffinity(0, cores[own])
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            trial, records = pipe.recv()
            run = functools.partial(_run, claim, options, settings, records)
            pipe.send(work.record(trial, run))


# The page


class _Pace:
    """Writes the page now and then: drawing takes as long as a small trial."""

    def __init__(self, write):
        self._write, self._last = write, time.monotonic()

    def maybe(self):
        """Writes it if it is time to; the trials go on where that fails, as on a full disk."""
        if time.monotonic() - self._last <= PAGE_EVERY:
            return
        try:
            self.now()
        except Exception:
            traceback.print_exc()
            print("The page was not written, for the reason above; the trials go on.", flush=True)

    def now(self):
        self._last = time.monotonic()
        self._write()


def _write_page(claim, options, settings, work):
    if not work.done():
        print(f"No page: {options.results} has no trial with these settings.", file=sys.stderr)
        return
    small = ": the small form, which has no results" if options.quick else ""
    found = contents(claim, settings, work)
    evidence.write(options.page, found._replace(title=claim.title + small))


def kept(claim: Claim) -> Iterator[tuple[pathlib.Path, evidence.Contents]]:
    """The page of the study in docs/evidence, and what the kept records give to it."""
    results, page, _ = default_paths(claim)
    newest = trials.read(results)[-1]["settings"]
    settings = claim.settings | {k: v for k, v in newest.items() if k not in claim.extent}
    yield page, contents(claim, settings, study(claim, settings, results))


def contents(claim: Claim, settings: dict, work: trials.Study) -> evidence.Contents:
    """What the trials that are done give to the page of a study."""
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
