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
import collections
import datetime
import json
import multiprocessing
import os
import random
import resource
import signal
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
MOST_PROBLEMS = 20  # of a kind, which is then given up


def fuzz(kind: str, count: int, first: int = 0) -> tuple[dict, list[tuple[int, str]]]:
    """Reads `count` inputs of a kind: its entry of the results, and [(number, problem)]."""
    context = multiprocessing.get_context("spawn")
    outcomes, problems, slowest = collections.Counter(), [], 0.0
    number = first
    while number < first + count and len(problems) < MOST_PROBLEMS:
        with tempfile.TemporaryDirectory() as folder:
            answers, theirs = context.Pipe(duplex=False)
            arguments = kind, folder, number, first + count, theirs
            process = context.Process(target=_work, args=arguments)
            process.start()
            theirs.close()
            try:
                while number < first + count and answers.poll(WAITING_SECONDS):
                    outcome, seconds = answers.recv()
                    slowest = max(slowest, seconds)
                    outcomes[outcome] += 1
                    problems += [(number, outcome)] if outcome not in ("read", "refused") else []
                    number += 1
            except EOFError:
                process.join()
                if process.exitcode == BROKEN:
                    raise RuntimeError(f"{kind}: a whole input is not read") from None
            if number < first + count:
                process.kill()
                process.join()
                killed = -signal.SIGPROF, -signal.SIGKILL
                late = "no answer in time" if process.exitcode in killed else "a crash"
                problems.append((number, f"{late}: exit code {process.exitcode}"))
                number += 1
            process.join()
    entry = {
        "inputs": number - first,
        "read": outcomes["read"],
        "refused": outcomes["refused"],
        "problems": len(problems),
        "slowest_seconds": slowest,
        "date": datetime.date.today().isoformat(),
    }
    return entry, problems


# In the process of a kind

BROKEN = 99  # exit code where the fuzzer, not what it tests, is at fault


def _work(kind, folder, first, end, answers):
    """Reads inputs and sends (outcome, seconds of CPU time) of each."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import fuzz_inputs

    case, allowed = fuzz_inputs.KINDS[kind](Path(folder))
    for whole in range(WARM):
        outcome = _outcome(case, allowed, random.Random(-1 - whole), warm=True)
        if outcome != "read":
            print(f"{kind}: {outcome}", file=sys.stderr)
            sys.exit(BROKEN)
    _bound_memory()
    for number in range(first, end):
        started = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # then the signal ends the process
        outcome = _outcome(case, allowed, random.Random(number))
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.send((outcome, round(time.process_time() - started, 3)))


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


def write(kind: str, entry: dict) -> None:
    """Writes the results of a kind, and the table in SECURITY.md."""
    entries = json.loads(RESULTS.read_text())["kinds"] if RESULTS.exists() else {}
    entries[kind] = entry
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
    parser.add_argument("--write", action="store_true", help="write the results")
    given = parser.parse_args()
    from fuzz_inputs import KINDS

    found = 0
    for kind in [kind for kind in given.only.split(",") if kind] or KINDS:
        entry, problems = fuzz(kind, given.count, given.first)
        print(kind, entry, flush=True)
        for number, problem in problems:
            print(f"    {number}: {problem}", flush=True)
        found += len(problems)
        if given.write:
            write(kind, entry)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
