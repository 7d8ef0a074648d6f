"""How fast text becomes records and records become batches, and how much memory that takes.

    python benchmarks/data.py --text=enwiki_sample.txt --vocab_file=bert-base-uncased-vocab.txt

Every build is the command itself in a process of its own, from its start to its end, so that
imports, checks, sharding and the manifest count. Memory is the sum of the resident sizes of all its
processes, pages that several of them share counted several times. `--cases` runs some of the rows;
the others keep what was measured before.
"""

import datetime
import glob
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import machine
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("text", None, "A file of text, not compressed.")
flags.DEFINE_string("vocab_file", None, "An uncased vocabulary.")
flags.DEFINE_integer("workers", 4, "Processes that build.")
flags.DEFINE_integer("times", 10, "How often the text comes in the long builds.")
flags.DEFINE_list("cases", [], "Only these; default: all. See CASES.")
flags.DEFINE_string("output_dir", "benchmarks/results", "Where the table is written.")
flags.mark_flags_as_required(["text", "vocab_file"])

BATCH_SIZE, LENGTH, PREDICTIONS = 256, 128, 20
SECONDS_OF_BATCHES = 8.0
PAGE = os.sysconf("SC_PAGE_SIZE")


def build_static(folder: str) -> dict:
    return build(folder, "static", ["--dupe_factor=1"])


def build_dupe_10(folder: str) -> dict:
    return build(folder, "dupe_10", ["--dupe_factor=10"])


def build_dynamic(folder: str) -> dict:
    return build(folder, "dynamic", ["--dynamic_masking"])


def build_static_long(folder: str) -> dict:
    return build(folder, "static_long", ["--dupe_factor=1"], FLAGS.times)


def build_dynamic_long(folder: str) -> dict:
    return build(folder, "dynamic_long", ["--dynamic_masking"], FLAGS.times)


def batches_static(folder: str) -> dict:
    return read_batches(folder, "static")


def batches_dynamic(folder: str) -> dict:
    return read_batches(folder, "dynamic")


def batches_whole_words(folder: str) -> dict:
    return read_batches(folder, "dynamic", do_whole_word_mask=True)


def batches_ngrams(folder: str) -> dict:
    return read_batches(folder, "dynamic", do_whole_word_mask=True, max_ngram_size=3)


def graph_static(folder: str) -> dict:
    return read_batches(folder, "static", as_graph=True)


def graph_dynamic(folder: str) -> dict:
    return read_batches(folder, "dynamic", as_graph=True)


def graph_ngrams(folder: str) -> dict:
    masking = {"do_whole_word_mask": True, "max_ngram_size": 3}
    return read_batches(folder, "dynamic", as_graph=True, **masking)


# name: (what it says in the table, the function, the target)
CASES = {
    "static": ("text → static records, dupe 1", build_static, "≥ 4 MB/s, ≤ 1.5 GB"),
    "dupe_10": ("text → static records, dupe 10", build_dupe_10, "≥ 0.75 MB/s, ≤ 1.5 GB"),
    "dynamic": ("text → records for dynamic masking", build_dynamic, "≥ 10 MB/s, ≤ 1.5 GB"),
    "static_long": ("static, dupe 1, {times} × the text", build_static_long, "≤ 1.5 GB, the same"),
    "dynamic_long": ("dynamic, {times} × the text", build_dynamic_long, "≤ 1.5 GB, the same"),
    "batches_static": ("static records → batches", batches_static, "≥ 50,000 examples/s"),
    "batches_dynamic": ("dynamic records → batches", batches_dynamic, "≥ 20,000 examples/s"),
    "batches_whole_words": ("the same, whole words", batches_whole_words, "≥ 20,000 examples/s"),
    "batches_ngrams": ("the same, n-grams up to 3", batches_ngrams, "≥ 20,000 examples/s"),
    "graph_static": ("static records → batches, a graph", graph_static, "≥ 100,000 examples/s"),
    "graph_dynamic": ("dynamic records → batches, a graph", graph_dynamic, "–"),
    "graph_ngrams": ("the same graph, n-grams up to 3", graph_ngrams, "–"),
}


def main(_):
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in FLAGS.cases or CASES:
            what, measure, target = CASES[name]
            result = measure(folder)
            rows.append((what.format(times=FLAGS.times), result, target))
            print(rows[-1], flush=True)
    month = datetime.date.today().strftime("%Y%m")
    path = pathlib.Path(FLAGS.output_dir) / f"data_cpu{machine.cores()}_{month}.md"
    text = report(rows, path.read_text() if path.exists() else "")
    print(text)
    path.write_text(text)


def build(folder: str, name: str, arguments: list[str], times: int = 1) -> dict:
    """Runs the command; seconds, megabytes of text a second, the highest resident size."""
    texts = []
    for n in range(times):
        texts.append(os.path.join(folder, f"text_{n}.txt"))
        if not os.path.exists(texts[-1]):
            os.symlink(os.path.abspath(FLAGS.text), texts[-1])
    command = [
        *(sys.executable, "-m", "official_bert.create_pretraining_data"),
        f"--input_file={','.join(texts)}",
        f"--output_file={os.path.join(folder, name, 'text.tfrecord')}",
        f"--vocab_file={FLAGS.vocab_file}",
        f"--max_seq_length={LENGTH}",
        f"--max_predictions_per_seq={PREDICTIONS}",
        f"--num_workers={FLAGS.workers}",
        "--num_shards=8",
        *arguments,
    ]
    start = time.perf_counter()
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    peak = Peak(process.pid)
    summary = process.communicate()[1].strip().splitlines()
    seconds = time.perf_counter() - start
    if process.returncode:
        raise RuntimeError("\n".join(summary))
    print("\n".join(summary[-3:]), flush=True)
    megabytes = times * os.path.getsize(FLAGS.text) / 1e6
    return {
        "seconds": f"{seconds:.1f}",
        "rate": f"{megabytes / seconds:.2f} MB/s",
        "memory": f"{peak.stop() / 1e9:.2f} GB",
    }


def read_batches(folder: str, name: str, as_graph: bool = False, **masking) -> dict:
    """Takes batch after batch in this process, reading, parsing and masking; examples a second."""
    from official_bert.data.input_pipeline import Batches

    if not glob.glob(os.path.join(folder, name, "text.tfrecord*")):
        CASES[name][1](folder)
    batches = Batches(
        [os.path.join(folder, name, "text.tfrecord-*")],
        BATCH_SIZE,
        LENGTH,
        PREDICTIONS,
        vocab_size=30522,
        **masking,
    )
    steps = range(10**9)
    found = iter(batches.dataset(steps, 0, 1) if as_graph else map(batches.__getitem__, steps))
    next(found)
    step, start = 0, time.perf_counter()
    while (seconds := time.perf_counter() - start) < SECONDS_OF_BATCHES:
        step += 1
        next(found)
    own = pathlib.Path("/proc/self/statm").read_text().split()[1]
    return {
        "seconds": f"{seconds:.1f}",
        "rate": f"{step * BATCH_SIZE / seconds:,.0f} examples/s",
        "memory": f"{int(own) * PAGE / 1e9:.2f} GB",
    }


class Peak:
    """Watches the resident size of a process and all that come from it."""

    def __init__(self, pid: int):
        self._pid, self._highest = pid, 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> int:
        """The highest sum, in bytes."""
        self._done.set()
        self._thread.join()
        return self._highest

    def _watch(self) -> None:
        while not self._done.wait(0.05):
            self._highest = max(self._highest, sum(map(_resident, _family(self._pid))))


def _family(pid: int) -> Iterator[int]:
    yield pid
    for path in glob.glob(f"/proc/{pid}/task/*/children"):
        try:
            children = pathlib.Path(path).read_text().split()
        except OSError:
            continue
        for child in children:
            yield from _family(int(child))


def _resident(pid: int) -> int:
    try:
        return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def report(rows: list[tuple], earlier: str) -> str:
    """The measurements as a table in Markdown; cases that were not run keep their earlier rows."""
    size = os.path.getsize(FLAGS.text) / 1e6
    lines = [
        "# Text to records to batches",
        "",
        f"`python benchmarks/data.py`, {datetime.date.today()}; {machine.cores()} cores "
        f"({machine.processor()}), Python {platform.python_version()}; "
        f"{size:.1f} MB of Wikipedia (WikiExtractor's form), {FLAGS.workers} workers, sequences of "
        f"{LENGTH}, 8 shards. Builds are timed from the start of the command to its end; memory is "
        "the highest sum of the resident sizes of all its processes. Batches of "
        f"{BATCH_SIZE} are taken in one process; its memory includes TensorFlow.",
        "",
        "| what | seconds | rate | memory | must be |",
        "|---|---|---|---|---|",
    ]
    made = {line.split(" | ")[0]: line for line in earlier.splitlines() if line.startswith("| ")}
    for what, result, target in rows:
        cells = (what, result["seconds"], result["rate"], result["memory"], target)
        made[f"| {what}"] = f"| {' | '.join(cells)} |"
    names = [f"| {what.format(times=FLAGS.times)}" for what, *_ in CASES.values()]
    lines += [made[name] for name in names if name in made]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    app.run(main)
