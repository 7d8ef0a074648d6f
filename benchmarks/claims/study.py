"""What the studies of claims share: flags, trials that a killed study need not repeat, their page.

A study is a `Claim`. Its trials run one after another in this process, or `--jobs` at a time in
processes of their own; each finished one is a line of `--results` with the command, the settings,
the seed, the commit and the seconds that it took. The same command, given again, goes on with the
trials that are missing.
"""

import argparse
import contextlib
import functools
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from statistics import mean, stdev
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # for what all studies there share

import curves  # noqa: E402  # after the path
import machine  # noqa: E402
import studies  # noqa: E402

from official_bert.system import child_commands  # noqa: E402
from official_bert.system.whole_files import write_text  # noqa: E402

# Student's t for 95 %, by the number of values; for more, that of the last is nearly right.
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
PAGE_EVERY = 120  # seconds between pages while trials run


class OutOfTime(Exception):
    """`--minutes` are over."""


def _no_problem(settings):
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
            for the record, which has `diverged`.
        needs: Function of two trials; whether the first uses what the second leaves, so that it
            has to begin after its end.
        draw: Function of (records, settings, path of the picture).
        text: Function of (records, settings); the page between its head and its settings.
        alike: Tuples of a trial's keys, by which the time left is guessed; see `studies.Study`.
        model: Names of more settings, which are in no record where they are not given.
        extent: Names of settings that only say how many trials there are; see `studies.Study`.
        problem: Function of the settings; what is wrong with them as a sentence, or None.
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
    model: Iterable[str] = ()
    extent: Sequence[str] = ()
    problem: Callable = _no_problem
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
        "results": f"JSON lines, a line a trial (benchmarks/results/claims_{claim.name}.jsonl)",
        "page": f"the page; its picture is put beside it (docs/evidence/{claim.name}.md)",
        "data_dir": f"where the data of the study are made (build/claims/{claim.name})",
    }
    for name, text in files.items():
        found.add_argument(f"--{name}", type=pathlib.Path, help=text)
    found.add_argument(
        "--page_only", action="store_true", help="write the page from the results that there are"
    )
    found.add_argument(
        "--minutes", type=float, default=math.inf, help="begin no trial after so many minutes"
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
    if problem := claim.problem(settings):
        print(f"--settings: {problem}", file=sys.stderr)
        return 2
    cores = machine.cores()
    if not 1 <= options.jobs <= cores:
        print(f"--jobs={options.jobs}: give 1 to {cores}, the number of cores.", file=sys.stderr)
        return 2
    _settle_paths(claim.name, options)
    trials = claim.trials(settings)
    alike = *claim.alike, ()
    count = functools.partial(_that_count, claim, settings, {trial_name(t) for t in trials})
    work = studies.Study(
        options.results, settings, trial_name, len(trials), alike, claim.extent, count
    )
    due = _Pace(lambda: write_page(claim, options, settings, work, len(trials)))
    if not options.page_only:
        with studies.alone_in(options.data_dir):
            runner = _side_by_side if options.jobs > 1 else _one_by_one
            runner(claim, options, settings, work, trials, due.maybe)
    due.now()
    return 0


def _that_count(claim, settings, names, records):
    """Those of the study's own trials that it would run in the same way now."""
    ours = {name: record for name, record in records.items() if name in names}
    known = list(ours.values())
    return {name: r for name, r in ours.items() if claim.stands(settings, r, known)}


def _settle_paths(name, options):
    """Results, page and folder where none are given; the quick form leaves the pages alone."""
    build = pathlib.Path("build/claims")
    results, page = pathlib.Path("benchmarks/results"), pathlib.Path("docs/evidence")
    if options.quick:
        results = page = build / "quick"
    options.results = options.results or results / f"claims_{name}.jsonl"
    options.page = options.page or page / f"{name}.md"
    options.data_dir = options.data_dir or build / name


def trial_name(trial: dict) -> str:
    """A trial in words: its values that are not None."""
    return ", ".join(f"{key} {value}" for key, value in trial.items() if value is not None)


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
    print(f"  {trial_name(trial)}: {found.get('said', 'done')}", flush=True)
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
                    f"The process of the trial '{trial_name(trial)}' ended without a result: by "
                    "the error above, or killed, as for want of memory. What is done is kept; the "
                    "same command goes on."
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
        if time.monotonic() - self._last > PAGE_EVERY:
            self.now()

    def now(self):
        self._write()
        self._last = time.monotonic()


# The page


def write_page(claim, options, settings, work, trials):
    """Page and picture of the records that there are; nothing where there are none."""
    records, page = list(work.done().values()), options.page
    if not records:
        print(f"No page: {options.results} has no trial with these settings.", file=sys.stderr)
        return
    page.parent.mkdir(parents=True, exist_ok=True)
    claim.draw(records, settings, page.with_suffix(".png"))
    text = "\n\n".join(
        [
            f"# {claim.title}",
            claim.text(records, settings, page.stem).strip(),
            "## How it was made",
            made(records, trials, options.results),
            *other_form(claim, settings),
            curves.settings_table(settings),
        ]
    )
    write_text(page, text + "\n")


def made(records: Sequence[dict], trials: int, results: os.PathLike) -> str:
    """Machine, command, commits, number of trials, time, and the trials that diverged."""
    spent, cpu = (sum(r[key] for r in records) / 60 for key in ("wall_seconds", "cpu_seconds"))
    lost = [record for record in records if record["diverged"]]
    commits = ", ".join(sorted({record["commit"] for record in records}))
    packages = ("tensorflow", "tensorflow-cpu", "jax", "keras")
    names = "; ".join(trial_name(record["trial"]) for record in lost)
    load = max(record["machine"]["load_before"] for record in records)
    jobs = sorted({record.get("jobs", 1) for record in records})
    side_by_side = f", up to {jobs[-1]} at a time, each on cores of its own" if jobs[-1] > 1 else ""
    return f"""{curves.made_on(records, packages)}. **{len(records)} of {trials} trials are \
done**, in {spent:.0f} minutes of trials ({cpu:.0f} of the processor's; a trial \
{mean(map(_wall, records)):.0f} s on \
average{side_by_side}). The load average before a trial was at most {load:.1f}: times are those \
of a shared machine.

Made by `{records[-1]["command"]}` on commit {commits} of `main`, which writes this page from \
`{pathlib.Path(results).name}`: a line a trial, with its command, settings, seed and seconds. A \
study that was killed goes on with the next trial.

{len(lost)} of {len(records)} trials diverged or learned nothing{": " + names if lost else ""}."""


def other_form(claim: Claim, settings: dict) -> list[str]:
    """Where the settings are not the script's own: what those are; else nothing."""
    changed = [name for name in claim.settings if settings[name] != claim.settings[name]]
    if not changed:
        return []
    values = ", ".join(f"`{name}` {claim.settings[name]}" for name in changed)
    return [
        "These are not the settings that the command has by itself, which are: "
        f"{values}; {len(claim.trials(claim.settings))} trials."
    ]


def _wall(record):
    return record["wall_seconds"]


def table(head: Sequence[str], rows: Iterable[Sequence]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def spread(values: Sequence[float], form: str = "{:.2f}") -> str:
    """Mean ± standard deviation, of those that are finite."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return curves.with_deviation(known, form) if known else "–"


def paired(runs: Sequence[dict], others: Sequence[dict]) -> list[float]:
    """Differences of the losses to report, seed by seed; those that diverged have none."""
    other = {r["trial"]["seed"]: r["report"] for r in others}
    pairs = [(r["report"], other.get(r["trial"]["seed"])) for r in runs]
    return [mine - theirs for mine, theirs in pairs if None not in (mine, theirs)]


def signed(values: Sequence[float]) -> str:
    """Mean of differences ± half the width of its 95 % interval."""
    if len(values) < 2:
        return "–"
    return f"{mean(values):+.3f} ± {half_width(values):.3f}"


def half_width(values: Sequence[float]) -> float:
    """Of the 95 % interval of their mean, by Student's t."""
    return STUDENT[min(len(values), max(STUDENT))] * stdev(values) / math.sqrt(len(values))


def chosen(records: Iterable[dict], key: str, lowest: bool = False) -> dict:
    """The record whose value of `key` is the best, of equal ones by their names.

    Diverged ones are the last resort.
    """

    def merit(record):
        value = record[key]
        if value is None or not math.isfinite(value):
            return -math.inf
        return -value if lowest else value

    return max(records, key=lambda record: (merit(record), trial_name(record["trial"])))


def picture(draw: Callable, path: os.PathLike, columns: int, size: tuple[float, float]) -> None:
    """Saves what `draw(axes)` puts on `columns` axes.

    Args:
        draw: Function of a list of axes.
        path: The PNG file.
        columns: Number of axes beside each other.
        size: Width and height in inches.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, columns, figsize=size, squeeze=False)
    draw(list(axes[0]))
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
