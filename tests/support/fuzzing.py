"""Fuzzing of what strangers may give: 10,000 inputs of each kind by one command.

    python tests/support/fuzzing.py --count=10000 --write   # every kind; writes SECURITY.md
    python tests/support/fuzzing.py --only=records --count=500

Each kind (`fuzz_inputs`) makes input number n from the seed n. It is read in a process of its own,
which may need SECONDS of CPU time per input, and MEGABYTES of address space beyond what it has
after WARM whole inputs. An input may be read, or refused by one of the named errors with a message.
Anything else is a problem: another exception, a crash of native code, no answer in time, memory
beyond the bound.
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

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results/fuzzing.json"
SECURITY = ROOT / "SECURITY.md"
SECONDS = 10  # of CPU time per input; on a loaded machine, an answer may take long
WAITING_SECONDS = 900  # for an answer, whatever the process does
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
    """

    kind: str
    read: int = 0
    refused: int = 0
    problems: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    slowest: float = 0.0

    @property
    def count(self) -> int:
        return self.read + self.refused + len(self.problems)

    def add(self, line: dict) -> None:
        self.slowest = max(self.slowest, line["seconds"])
        if line["outcome"] == "read":
            self.read += 1
        elif line["outcome"] == "refused":
            self.refused += 1
        else:
            self.problems.append((line["number"], line["outcome"]))


def fuzz(kind: str, count: int, first: int = 0, most_problems: int = 20) -> Report:
    """Reads `count` inputs of a kind; after `most_problems` problems it gives up."""
    report, number = Report(kind), first
    while number < first + count and len(report.problems) < most_problems:
        number = _run_worker(report, number, first + count)
    return report


def _run_worker(report, first, end):
    """Inputs from `first` on, until the end or until the process has to be ended; the next one."""
    number = first
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as said:
        command = [sys.executable, __file__, "--worker", folder]
        command += [f"--only={report.kind}", f"--first={first}", f"--end={end}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True) as worker:
            while number < end:
                line = _answer(worker, None if number == first else SECONDS)
                if not line:
                    worker.kill()
                    problem = "no answer in time" if line is None else _end(worker, said)
                    report.problems.append((number, problem))
                    return number + 1
                answer = json.loads(line)
                if "broken" in answer:  # the fuzzer, not what it tests
                    raise RuntimeError(f"{report.kind}: {answer['broken']}")
                report.add(answer)
                number += 1
    return number


def _answer(worker, seconds):
    """The next line of a process; empty if it ends, None if it computes or waits for too long."""
    begun, deadline = _cpu_seconds(worker), time.monotonic() + WAITING_SECONDS
    while time.monotonic() < deadline:
        if select.select([worker.stdout], [], [], 1.0)[0]:
            return worker.stdout.readline()
        if seconds is not None and _cpu_seconds(worker) > begun + seconds:
            return None
    return None


def _cpu_seconds(worker):
    """What a process has computed so far, of all threads."""
    try:
        fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _end(worker, said):
    """How a process ended, and the last line that it printed."""
    code = worker.wait()
    said.seek(0)
    last = (said.read().strip().splitlines() or [""])[-1]
    return f"ended by exit code {code}: {last[:200]}"


# In the process of a kind


def work(kind: str, folder: str, first: int, end: int) -> None:
    """Reads inputs and prints a line of JSON for each."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import fuzz_inputs

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not get between the answers
    case, allowed = fuzz_inputs.KINDS[kind](Path(folder))
    for whole in range(WARM):
        outcome = _outcome(case, allowed, random.Random(-1 - whole), warm=True)
        if outcome != "read":
            print(json.dumps({"broken": f"a whole input is not read: {outcome}"}), file=answers)
            return
    _bound_memory()
    for number in range(first, end):
        started = time.process_time()
        outcome = _outcome(case, allowed, random.Random(number))
        seconds = round(time.process_time() - started, 3)
        line = {"number": number, "outcome": outcome, "seconds": seconds}
        print(json.dumps(line), file=answers)


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


# The results


def write(report: Report) -> None:
    """Writes the results of a kind, and the table in SECURITY.md."""
    entries = json.loads(RESULTS.read_text())["kinds"] if RESULTS.exists() else {}
    entries[report.kind] = {
        "inputs": report.count,
        "read": report.read,
        "refused": report.refused,
        "problems": len(report.problems),
        "slowest_seconds": report.slowest,
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
    sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="kinds, with commas")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--end", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="write the results")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.only, given.worker, given.first, given.end)
        return 0
    from fuzz_inputs import KINDS

    found = 0
    for kind in [kind for kind in given.only.split(",") if kind] or KINDS:
        report = fuzz(kind, given.count, given.first)
        print(dataclasses.replace(report, problems=len(report.problems)), flush=True)
        for number, problem in report.problems:
            print(f"    {number}: {problem}", flush=True)
        found += len(report.problems)
        if given.write:
            write(report)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
