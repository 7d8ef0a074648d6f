"""What the studies of claims share: flags, trials that a killed study need not repeat, their page.

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
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import machine
import stats as findings  # before the next ones: it adds their path

NEEDED = (
    'In a clone, `pip install ".[cpu,bert,plot]"` brings what the studies of BERT need, '
    '`pip install ".[jax,bert,plot]"` what legw.py needs, and `make install` all, into .venv.'
)
try:
    import study_page
    import trials as studies

    from official_bert.system import child_commands
except ImportError as error:
    sys.exit(f"This needs {error.name}, which this Python has not. {NEEDED}")

PAGE_EVERY = 120  # seconds between pages while trials run


class OutOfTime(Exception):
    """`--minutes` are over."""


def _no_problem(settings):
    return None


def _no_preparation(options):
    return None


def _always(settings, record, records):
    return True


class Claim(NamedTuple):
    """A study.

    Args:
        name: Of its files.
        title: Of its page.
        settings: Dictionary of JSON values.
        quick: The settings that differ in its quick form.
        trials: Function of the settings; the trials in order, dictionaries of JSON values.
        run: Function of (options of the command, settings, trial, records so far); a dictionary
            for the record, which has `diverged` and, for the screen, `said`.
        needs: Function of two trials; whether the first uses what the second leaves, so that it
            has to begin after its end.
        draw: Function of (records, settings, path of the picture).
        text: Function of (records, settings); the page between its head and its settings.
        alike: Tuples of a trial's keys, by which the time left is guessed; see `studies.Study`.
        lost: What happened in a run that counts as diverged.
        packages: What it imports beyond this repository.
        model: More settings with their values, which are in no record where they are not given.
        extent: Names of settings that only say how many trials there are, or that `stands`
            compares; see `studies.Study`.
        problem: Function of the settings; what is wrong with them as a sentence, or None.
        ready: Function of the options, called before the trials; raises ValueError where what they
            need is not there.
        stands: Function of (settings, record, all records); whether the study would run that trial
            in the same way now. In one that has grown, another may be the best.
    """

    name: str
    title: str
    settings: dict
    quick: dict
    trials: Callable
    run: Callable
    needs: Callable
    draw: Callable
    text: Callable
    alike: Sequence
    lost: str
    packages: Sequence[str]
    model: Mapping = {}
    extent: Sequence[str] = ()
    problem: Callable = _no_problem
    ready: Callable = _no_preparation
    stands: Callable = _always


def parser(claim: Claim, description: str) -> argparse.ArgumentParser:
    """The options that all studies have."""
    found = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--quick", action="store_true", help="a small form that takes minutes")
    found.add_argument(
        "--settings", type=json.loads, default={}, help="JSON object of settings that differ"
    )
    files = {
        "results": "JSON lines, a line a trial; what it has is not done again. To repeat the whole "
        f"study, name a new file (benchmarks/results/claims_{claim.name}.jsonl)",
        "page": f"the page; its picture is put beside it (docs/evidence/{claim.name}.md)",
        "data_dir": f"where the data of the study are made (build/claims/{claim.name})",
    }
    for name, text in files.items():
        found.add_argument(f"--{name}", type=pathlib.Path, help=text)
    found.add_argument(
        "--page_only", action="store_true", help="write the page from the results that there are"
    )
    found.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        help="begin no trial after so many minutes; it ends with the trials that are running",
    )
    found.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="trials at a time, each on its share of the processor's cores (1)",
    )
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
    settings = claim.settings | (claim.quick if options.quick else {}) | options.settings
    if unknown := sorted({*options.settings} - {*claim.settings, *claim.model}):
        known = ", ".join([*claim.settings, *claim.model])
        print(f"--settings: there is no {', '.join(unknown)}; there are {known}.", file=sys.stderr)
        return 2
    if problem := misfit(claim, options.settings) or claim.problem(settings):
        print(f"--settings: {problem}", file=sys.stderr)
        return 2
    if missing := [name for name in claim.packages if importlib.util.find_spec(name) is None]:
        print(
            f"This needs {', '.join(missing)}, which this Python has not. {NEEDED}", file=sys.stderr
        )
        return 2
    cores = machine.cores()
    if not 1 <= options.jobs <= cores:
        print(f"--jobs={options.jobs}: give 1 to {cores}, the number of cores.", file=sys.stderr)
        return 2
    _settle_paths(claim.name, options)
    trials = claim.trials(settings)
    alike = *claim.alike, ()
    count = functools.partial(
        _that_count, claim, settings, {findings.trial_name(t) for t in trials}
    )
    work = studies.Study(
        options.results, settings, findings.trial_name, len(trials), alike, claim.extent, count
    )
    try:
        work.done()
        if not options.page_only:
            claim.ready(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    due = _Pace(lambda: study_page.write(claim, options, settings, work, len(trials)))
    if not options.page_only:
        runner = _side_by_side if options.jobs > 1 else _one_by_one
        try:
            with studies.exclusive(options.data_dir, options.results):
                runner(claim, options, settings, work, trials, due.maybe)
        except KeyboardInterrupt:
            kept = f"{len(work.done())} of {len(trials)} trials are kept in {options.results}"
            print(f"\nStopped. {kept}; the same command goes on.")
            return 128 + signal.SIGINT
    due.now()
    if done := len(work.done()):
        print(f"{done} of {len(trials)} trials are done: {options.page}")
    return 0


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


def _that_count(claim, settings, names, records):
    """Those of the study's own trials that it would run in the same way now.

    What was chosen from a trial that does not count does not count either.
    """
    found = {name: record for name, record in records.items() if name in names}
    while True:
        known = list(found.values())
        standing = {name: r for name, r in found.items() if claim.stands(settings, r, known)}
        if len(standing) == len(found):
            return found
        found = standing


def _settle_paths(name, options):
    """Results, page and folder where none are given; the quick form leaves the pages alone."""
    build = findings.ROOT / "build/claims"
    results, page = findings.ROOT / "benchmarks/results", findings.ROOT / "docs/evidence"
    if options.quick:
        results = page = build / "quick"
    options.results = options.results or results / f"claims_{name}.jsonl"
    options.page = options.page or page / f"{name}.md"
    options.data_dir = options.data_dir or build / name


def command() -> str:
    """The command of this study."""
    script = pathlib.Path(sys.argv[0]).resolve()
    script = (
        script.relative_to(findings.ROOT) if script.is_relative_to(findings.ROOT) else script.name
    )
    return shlex.join(["python", str(script), *sys.argv[1:]])


def commit() -> str:
    """The newest commit of `main` in this code, or HEAD; "unknown" outside of a clone."""
    for arguments in (["merge-base", "HEAD", "main"], ["rev-parse", "HEAD"]):
        git = subprocess.run(["git", *arguments], cwd=findings.ROOT, capture_output=True, text=True)
        if git.returncode == 0:
            return git.stdout.strip()[:12]
    return "unknown"


# Trials


def _one_by_one(claim, options, settings, work, trials, after_each):
    ends = time.monotonic() + 60 * options.minutes

    def run(trial):
        if time.monotonic() > ends:
            raise OutOfTime
        return _run(claim, options, settings, trial, list(work.done().values()))

    with contextlib.suppress(OutOfTime):
        work.run(trials, run, after_each)


def _run(claim, options, settings, trial, records):
    always = {"command": command(), "commit": commit(), "jobs": options.jobs}
    cpu = time.process_time()
    found = claim.run(options, settings, trial, records)
    lost = "diverged; " if found["diverged"] else ""
    print(f"  {findings.trial_name(trial)}: {lost}{found['said']}", flush=True)
    return always | found | {"cpu_seconds": time.process_time() - cpu}


def _side_by_side(claim, options, settings, work, trials, after_each):
    """Each trial as soon as a process is idle and what it needs is there."""
    ends, waiting, running = time.monotonic() + 60 * options.minutes, work.missing(trials), {}
    idle = [_start_worker(claim, options, settings, work, job) for job in range(options.jobs)]
    while waiting or running:
        if time.monotonic() > ends:
            waiting.clear()
        unfinished = [*running.values(), *waiting]
        ready = (t for t in waiting if not any(claim.needs(t, other) for other in unfinished))
        if idle and (trial := next(ready, None)):
            work.announce(trial, unfinished, len(running), options.jobs)
            waiting.remove(trial)
            worker = idle.pop()
            worker.send((trial, list(work.done().values())))
            running[worker] = trial
            continue
        for worker in multiprocessing.connection.wait(running):
            trial = running.pop(worker)
            try:
                work.add(worker.recv())
            except EOFError:
                raise RuntimeError(
                    f"The process of the trial '{findings.trial_name(trial)}' ended without a "
                    "result: by the error above, or killed, as for want of memory. What is done is "
                    "kept; the same command goes on."
                ) from None
            idle.append(worker)
            after_each()


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
            run = functools.partial(_run, claim, options, settings, records=records)
            pipe.send(work.record(trial, run))


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
