"""Fuzzing of what strangers may give: 10,000 inputs of each kind by one command.

    python tests/fuzzing.py --count=10000 --write   # every kind; writes results and SECURITY.md
    python tests/fuzzing.py --only=records --count=500

Each kind (`fuzz_inputs`) makes input number n from the seed n. It is read in a process of its own,
which may need SECONDS per input and MEGABYTES of address space beyond what it has after its first
inputs; the first of them are whole. An input may be read, or refused by one of the named errors
with a message. Anything else is a problem: another exception, a crash of native code, no answer
within the time, memory beyond the bound.
"""

import argparse
import dataclasses
import datetime
import json
import os
import random
import resource
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/fuzzing.json"
SECURITY = ROOT / "SECURITY.md"
SECONDS = 10  # per input; starting takes longer
STARTING_SECONDS = 300
MEGABYTES = 512
WARM = 20  # inputs before memory is bounded: libraries are loaded and threads started by then


@dataclasses.dataclass
class Report:
    """What became of the inputs of one kind.

    Args:
        kind: Its name.
        read: How many were read.
        refused: How many were refused by a named error.
        problems: Of the others: (number, what happened).
        slowest: Seconds of the slowest.
        megabytes: Highest growth of the resident memory.
    """

    kind: str
    read: int = 0
    refused: int = 0
    problems: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    slowest: float = 0.0
    megabytes: float = 0.0

    @property
    def count(self) -> int:
        return self.read + self.refused + len(self.problems)

    def add(self, line: dict) -> None:
        self.slowest = max(self.slowest, line["seconds"])
        self.megabytes = max(self.megabytes, line["megabytes"])
        if line["outcome"] == "read":
            self.read += 1
        elif line["outcome"] == "refused":
            self.refused += 1
        else:
            self.problems.append((line["number"], line["outcome"]))


def fuzz(kind: str, count: int, most_problems: int = 20) -> Report:
    """Reads `count` inputs of a kind; after `most_problems` problems it gives up."""
    report, number = Report(kind), 0
    while number < count and len(report.problems) < most_problems:
        number = _run_worker(report, number, count)
    return report


def _run_worker(report, first, count):
    """Inputs from `first` on, until the end or until the process has to be ended; the next one."""
    number = first
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as said:
        command = [sys.executable, __file__, "--worker", folder]
        command += [f"--only={report.kind}", f"--first={first}", f"--count={count}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True) as worker:
            while number < count:
                wait = STARTING_SECONDS if number == first else SECONDS
                ready, _, _ = select.select([worker.stdout], [], [], wait)
                line = worker.stdout.readline() if ready else None
                if not line:
                    worker.kill()
                    problem = f"ended by {_end(worker, said)}" if ready else f"over {wait} s"
                    report.problems.append((number, problem))
                    return number + 1
                report.add(json.loads(line))
                number += 1
    return number


def _end(worker, said):
    """How a process ended, and the last line that it printed."""
    code = worker.wait()
    said.seek(0)
    last = (said.read().strip().splitlines() or [""])[-1]
    return f"exit code {code}: {last[:200]}"


# In the process of a kind


def work(kind: str, folder: str, first: int, count: int) -> None:
    """Reads inputs and prints a line of JSON for each."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import fuzz_inputs

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not get between the answers
    case, allowed = fuzz_inputs.KINDS[kind](Path(folder))
    for whole in range(WARM):
        outcome = _outcome(case, allowed, random.Random(-1 - whole), warm=True)
        if outcome != "read":
            sys.exit(f"a whole input is not read: {outcome}")
    _bound_memory()
    begun = _resident()
    for number in range(first, count):
        started = time.monotonic()
        outcome = _outcome(case, allowed, random.Random(number))
        seconds = round(time.monotonic() - started, 3)
        line = {"number": number, "outcome": outcome, "seconds": seconds}
        print(json.dumps(line | {"megabytes": _resident() - begun}), file=answers)


def _outcome(case, allowed, rng, warm=False):
    try:
        case(rng, damage=not warm)
    except allowed as error:
        if warm:
            return f"{error}"
        return "refused" if str(error).strip() else f"no message: {type(error).__name__}"
    except Exception as error:  # what this is for
        place = error.__traceback__
        while place.tb_next:
            place = place.tb_next
        file = Path(place.tb_frame.f_code.co_filename).name
        return f"{type(error).__name__}: {str(error)[:200]} ({file}:{place.tb_lineno})"
    return "read"


def _bound_memory():
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + (MEGABYTES << 20),) * 2)


def _resident():
    """Highest resident memory of this process so far, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# The results


def write(reports: list[Report]) -> None:
    """Writes the results, and the table in SECURITY.md."""
    entries = json.loads(RESULTS.read_text())["kinds"] if RESULTS.exists() else {}
    for report in reports:
        entries[report.kind] = {
            "inputs": report.count,
            "read": report.read,
            "refused": report.refused,
            "problems": len(report.problems),
            "slowest_seconds": report.slowest,
            "megabytes": round(report.megabytes),
            "date": datetime.date.today().isoformat(),
        }
    bounds = {"seconds": SECONDS, "megabytes": MEGABYTES}
    RESULTS.write_text(json.dumps({"bounds": bounds, "kinds": entries}, indent=1) + "\n")
    before, begin, rest = SECURITY.read_text().partition("<!-- fuzzing -->\n")
    _, end, after = rest.partition("<!-- end of fuzzing -->\n")
    SECURITY.write_text(before + begin + table(entries) + end + after)


def table(entries: dict[str, dict]) -> str:
    """The results as a table."""
    rows = ["| kind | inputs | read | refused | problems | slowest | date |", "|---" * 7 + "|"]
    rows += [
        f"| {kind} | {e['inputs']:,} | {e['read']:,} | {e['refused']:,} | {e['problems']:,} | "
        f"{e['slowest_seconds']:.2f} s | {e['date']} |"
        for kind, e in entries.items()
    ]
    return "\n".join(rows) + "\n"


def main() -> int:
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="kinds, with commas")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write the results")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.only, given.worker, given.first, given.count)
        return 0
    from fuzz_inputs import KINDS

    reports = [fuzz(kind, given.count) for kind in given.only.split(",") if kind] or [
        fuzz(kind, given.count) for kind in KINDS
    ]
    for report in reports:
        print(dataclasses.replace(report, problems=len(report.problems)))
        for number, problem in report.problems:
            print(f"    {number}: {problem}")
    if given.write:
        write(reports)
    return 1 if any(report.problems for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
