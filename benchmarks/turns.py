"""Processes that take turns, so that each round measures all of them under the same conditions."""

import json
import os
import statistics
import subprocess
import sys
import time

import evidence

TENSORFLOW_ON_CPU = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "KERAS_BACKEND": "tensorflow",
}


class Worker:
    """A process of a script that answers measurements on a pipe, and sleeps in between.

    Args:
        script: The script; `--worker` and `arguments` make it call `take`.
        arguments: The work of the process.
        environment: Additional environment variables.
        prefix: The beginning of its command line, before Python.
    """

    def __init__(self, script, *arguments, environment=TENSORFLOW_ON_CPU, prefix=()):
        paths = [str(evidence.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [*prefix, sys.executable, script, "--worker", *arguments],
            env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        self.answer()  # it is ready
        return self

    def ask(self, way):
        self.tell(way)
        return self.answer()

    def tell(self, way):
        self._process.stdin.write(way + "\n")
        self._process.stdin.flush()

    def answer(self):
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"A worker ended with status {self._process.wait()}; see above.")
        return json.loads(line)

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def measure(what, workers, rounds):
    """Measures all ways in turn, round by round.

    Args:
        what: The work, for the progress lines.
        workers: {way: the `Worker` that is asked for it}.
        rounds: Number of measurements of each way, after two that do not count.

    Returns:
        `seconds`: {way: its measurements, by round}; `errors`: {way: why it failed}; `idle_load`:
        the largest share of a core that a process used while it was not its turn.
    """
    seconds, errors, idle = {way: [] for way in workers}, {}, []

    def ask(way):
        answer = workers[way].ask(way)
        if "error" in answer:  # at any turn: memory may end when all the others have theirs
            errors[way] = answer["error"]
            del seconds[way]
        return answer

    for way in workers:
        started = time.perf_counter()
        ask(way)  # builds and compiles
        print(f"{what}, {way}: built in {time.perf_counter() - started:.0f} s", file=sys.stderr)
    for way in [*seconds]:  # the first turn after the others were built is a slow one
        ask(way)
    for index in range(rounds):
        for way in [*seconds]:
            answer = ask(way)
            if way in seconds:
                seconds[way].append(answer["seconds"])
                idle.append(answer["idle_load"])
        latest = ", ".join(f"{way} {values[-1]:.2g} s" for way, values in seconds.items())
        print(f"{what}, round {index + 1}: {latest}", file=sys.stderr)
    return {"seconds": seconds, "errors": errors, "idle_load": max(idle, default=0.0)}


def take(make_ways):
    """Runs a worker, which answers each line with the measurement that it names.

    `make_ways()` returns {way: function that measures it and returns a dictionary of JSON values}.
    """
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # the output of libraries goes to stderr

        def answer(values):
            answers.write(json.dumps(values) + "\n")
            answers.flush()

        ways = make_ways()
        answer({})
        rested, cpu = time.perf_counter(), time.process_time()
        for line in sys.stdin:
            waited = time.perf_counter() - rested
            idle = (time.process_time() - cpu) / waited if waited > 1 else 0.0  # else too short
            try:
                answer({**ways[line.strip()](), "idle_load": idle})
            except Exception as error:  # a compiler may be missing: the table shows the error
                first_line = (str(error).splitlines() or [""])[0]
                answer({"error": f"{type(error).__name__}: {first_line}".removesuffix(": ")})
            time.sleep(0.3)  # thread pools fall asleep
            rested, cpu = time.perf_counter(), time.process_time()


def offer(ways, left_out=None, after=dict):
    """The functions for `take` of a worker that chooses its measurements.

    Args:
        ways: {way: function that measures it}; "ways" answers with their names.
        left_out: {way: why it cannot be measured}, in the same answer.
        after: Function that returns further results of all measurements, by way, as JSON values.
    """
    names = {"ways": list(ways), "left_out": left_out or {}}
    return {**ways, "ways": lambda: names, "after": after}


def timed(function, updates):
    """Seconds per update of a function that runs `updates` updates."""
    started = time.perf_counter()
    function()
    return {"seconds": (time.perf_counter() - started) / updates}


# The tables


def table(unit, form, results, labels, amount):
    """Rows of rates and ratios, the head first.

    Args:
        unit: The unit of the rates, such as `"tokens/s"`.
        form: Format of a rate.
        results: {work: the result of `measure`}.
        labels: {way: its name}, ours first.
        amount: Function of the work: the number of units per update.
    """
    first = next(iter(labels))
    rows = [("work", "way", unit, "ours / it, median of rounds", "fewest, most")]
    for what, result in results.items():
        seconds = result["seconds"]
        for way, label in labels.items():
            if way in result["errors"]:
                rows.append((what, label, f"failed: {result['errors'][way]}", "", ""))
                continue
            rate = form.format(amount(what) / statistics.median(seconds[way]))
            middle, least, most = ratios(seconds, way, first)
            rows.append((what, label, rate, f"{middle:.2f}", f"{least:.2f}, {most:.2f}"))
    return rows


def ratios(seconds, way, first):
    """Median, minimum and maximum of a way's time over the first way's, by round."""
    found = [s / ours for s, ours in zip(seconds[way], seconds[first], strict=True)]
    return statistics.median(found), min(found), max(found)


def conditions(results):
    """How the measurements alternated, in a sentence."""
    count = max(len(values) for r in results.values() for values in r["seconds"].values())
    return (
        f"{count} rounds in alternation, all ways in each; rates are medians. A process used at "
        f"most {100 * idle_load(results):.1f} % of a core while it was not its turn."
    )


def idle_load(results):
    """The largest share of a core that a process used while it was not its turn."""
    return max(result["idle_load"] for result in results.values())
