"""Processes that take turns, so that each round measures all of them under the same conditions."""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import machine

TENSORFLOW_ON_CPU = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "KERAS_BACKEND": "tensorflow",
}


class Worker:
    """A process of a script that does as it is told on a pipe, and sleeps in between.

    Args:
        script: The script; `--worker` and `arguments` make it call `take`.
        arguments: What the process is to measure.
        environment: Variables that the process gets beside those of this one.
    """

    def __init__(self, script, *arguments, environment=TENSORFLOW_ON_CPU):
        root, more = str(pathlib.Path(__file__).parents[1]), os.environ.get("PYTHONPATH")
        path = os.pathsep.join([root, more]) if more else root
        self._process = subprocess.Popen(
            [sys.executable, script, "--worker", *arguments],
            env={**os.environ, **environment, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        self._answer()  # it is ready
        return self

    def ask(self, way):
        self._process.stdin.write(way + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self):
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
        what: What is measured, for the lines that say how far it is.
        workers: {way: the `Worker` that is asked for it}.
        rounds: Number of measurements of each way, after two that do not count.

    Returns:
        `seconds`: {way: those that it answered, by round}; `errors`: {way: why it could not be
        run}; `idle_load`: the largest share of a core that a process used whose turn it was not.
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
    """A worker's life: makes its functions, then answers each line with a measurement.

    Args:
        make_ways: Function without arguments; {what can be asked: function that measures it and
            returns a dictionary of JSON values}.
    """
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what libraries print is no answer

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
            except Exception as error:  # a compiler may be missing: the table says so
                first_line = (str(error).splitlines() or [""])[0]
                answer({"error": f"{type(error).__name__}: {first_line}".removesuffix(": ")})
            time.sleep(0.3)  # thread pools fall asleep
            rested, cpu = time.perf_counter(), time.process_time()


def offer(ways, left_out=None, after=dict):
    """What a worker that says itself what it measures hands to `take`.

    Args:
        ways: {way: function that measures it}; "ways" answers with their names.
        left_out: {way: why it cannot be measured}, answered with them.
        after: Function that returns what is known once all is measured, by way, as JSON values.
    """
    says = {"ways": list(ways), "left_out": left_out or {}}
    return {**ways, "ways": lambda: says, "after": after}


def timed(function, updates):
    """Seconds per update of a function that does so many."""
    started = time.perf_counter()
    function()
    return {"seconds": (time.perf_counter() - started) / updates}


# The page


def table(unit, form, results, labels, amount):
    """Lines of a Markdown table of rates, and of how many times as fast the first way is.

    Args:
        unit: Of the rates, such as `"tokens/s"`.
        form: How a rate is written.
        results: {what was measured: what `measure` returned}.
        labels: {way: its name}, the first way first.
        amount: Function of what was measured: how much an update works on, in the rates' unit.
    """
    first = next(iter(labels))
    lines = [
        f"| work | way | {unit} | ours / it, median of rounds | fewest, most |",
        "|---|---|---|---|---|",
    ]
    for what, result in results.items():
        seconds = result["seconds"]
        for way, label in labels.items():
            if way in result["errors"]:
                lines.append(f"| {what} | {label} | failed: {result['errors'][way]} | | |")
                continue
            rate = form.format(amount(what) / statistics.median(seconds[way]))
            ratios = [s / ours for s, ours in zip(seconds[way], seconds[first], strict=True)]
            lines.append(
                f"| {what} | {label} | {rate} | {statistics.median(ratios):.2f} "
                f"| {min(ratios):.2f}, {max(ratios):.2f} |"
            )
    return lines


def rounds(results):
    """The number of measurements of each way."""
    return max(len(values) for r in results.values() for values in r["seconds"].values())


def idle_load(results):
    """The largest share of a core that a process used whose turn it was not."""
    return max(result["idle_load"] for result in results.values())


def command():
    """The command as it is typed."""
    script = f"python benchmarks/{pathlib.Path(sys.argv[0]).name}"
    arguments = " ".join(f'"{a}"' if " " in a else a for a in sys.argv[1:])
    return f"{script} {arguments}".strip()


def made_on():
    """The command, the machine and the versions as a sentence."""
    packages = ("tensorflow", "tensorflow-cpu", "keras", "numpy", "torch", "transformers")
    return f"`{command()}` on {machine.describe(*packages)}."


def write(path, values, text):
    """Writes the values, `path` with the suffix .json, and the page, .md."""
    path.with_suffix(".json").write_text(json.dumps(values, indent=1) + "\n")
    path.with_suffix(".md").write_text(text)
    print(text)
