"""Speed and memory of text → records → batches.

    python benchmarks/data.py --text=enwiki_sample.txt --vocab_file=bert-base-uncased-vocab.txt

Every build is the command in a process of its own, timed from start to end, with imports, checks,
sharding and the manifest. Memory is the sum of the resident sizes of all its processes, with shared
pages counted in each. `--cases` runs some of the rows; the others keep their earlier measurements.

The original script is that of tf-models-official. It reads the same sentences of the text, one per
line, in one process; the dynamic build, whose masks differ in every epoch, is compared with
its dupe 10.
"""

import functools
import glob
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import machine

BATCH_SIZE, LENGTH, PREDICTIONS = 256, 128, 20
SECONDS_OF_BATCHES = 8.0
PAGE = os.sysconf("SC_PAGE_SIZE")
DUPE_1, DUPE_10, DYNAMIC = ("--dupe_factor=1",), ("--dupe_factor=10",), ("--dynamic_masking",)
WHOLE_WORDS = {"do_whole_word_mask": True}
NGRAMS = WHOLE_WORDS | {"max_ngram_size": 3}

BUILDS = {  # name: label, flags, target
    "static": ("text → static records, dupe 1", DUPE_1, "≥ 4 MB/s, ≤ 1.5 GB"),
    "dupe_10": ("text → static records, dupe 10", DUPE_10, "≥ 0.75 MB/s, ≤ 1.5 GB"),
    "dynamic": ("text → records for dynamic masking", DYNAMIC, "≥ 10 MB/s, ≤ 1.5 GB"),
}
BATCHES = {  # name: label, records of which build, as a graph, masking, target in examples/s
    "batches_static": ("static records → batches", "static", False, {}, "≥ 50,000"),
    "batches_dynamic": ("dynamic records → batches", "dynamic", False, {}, "≥ 20,000"),
    "batches_whole_words": ("the same, whole words", "dynamic", False, WHOLE_WORDS, "≥ 20,000"),
    "batches_ngrams": ("the same, n-grams up to 3", "dynamic", False, NGRAMS, "≥ 20,000"),
    "graph_static": ("static records → batches, a graph", "static", True, {}, "≥ 100,000"),
    "graph_dynamic": ("dynamic records → batches, a graph", "dynamic", True, {}, "–"),
    "graph_ngrams": ("the same graph, n-grams up to 3", "dynamic", True, NGRAMS, "–"),
}
SCRIPT = "official.nlp.data.create_pretraining_data"
BESIDE = {  # name: label, flags, those of the original script, the least ratio of their times
    "beside_static": ("the original script / static, dupe 1", DUPE_1, DUPE_1, 15),
    "beside_dupe_10": ("the original script / static, dupe 10", DUPE_10, DUPE_10, 15),
    "beside_dynamic": ("the original script, dupe 10 / dynamic", DYNAMIC, DUPE_10, 75),
}
GROWTH = {  # name: label, flags, megabytes of sentences
    f"{name}_{size}": (f"{name}, {size} MB of sentences", flags, size)
    for name, flags in (("static", DUPE_1), ("dynamic", DYNAMIC))
    for size in (10, 20, 40)
}
HEAD = ("what", "seconds", "rate", "memory", "must be")


def main():
    parser = machine.parser(
        __doc__, workers=(4, "processes that build"), rounds=(3, "runs of each build")
    )
    parser.add_argument("--text", required=True, help="a file of text, not compressed")
    parser.add_argument("--vocab_file", required=True, help="an uncased vocabulary")
    parser.add_argument("--beside_mb", type=float, default=10, help="text of the original script")
    names = [*BUILDS, *BESIDE, *GROWTH, *BATCHES]
    parser.add_argument("--cases", default=",".join(names), help="only these (%(default)s)")
    given = parser.parse_args()
    path = machine.dated(given.output_dir, "data")
    lines = path.read_text().splitlines() if path.exists() else []
    cases = BUILDS | BESIDE | GROWTH | BATCHES
    labels = {label: None for label, *_ in cases.values()}
    made = dict.fromkeys(labels) | {
        cells[0]: cells for line in lines if (cells := line[2:-2].split(" | "))[0] in labels
    }
    with tempfile.TemporaryDirectory() as folder:
        for name in given.cases.split(","):
            measures = ((BUILDS, build), (BESIDE, beside), (GROWTH, grow), (BATCHES, read_batches))
            (measure,) = (measure for names, measure in measures if name in names)
            row = measure(given, folder, name)
            made[row[0]] = row
            print(row, flush=True)
    about = (
        f"{os.path.getsize(given.text) / 1e6:.1f} MB of text, {given.workers} workers, sequences "
        f"of {LENGTH}, 8 shards. Builds are timed from the start of the command to its end, "
        f"medians of {given.rounds} runs; memory is the highest sum of the resident sizes of all "
        f"its processes. The original script, of tf-models, reads {given.beside_mb:g} MB of "
        "sentences in one process, once; its seconds come first. Batches of "
        f"{BATCH_SIZE} are taken in one process, whose memory is given."
    )
    rows = filter(None, made.values())
    machine.write(path, machine.page("Text to records to batches", about, [HEAD, *rows]))


def build(given, folder, name):
    """Runs the command; a row: seconds, megabytes of text per second, the highest resident size."""
    label, arguments, target = BUILDS[name]
    seconds, memory = timed(given, folder, name, given.text, arguments)
    rate = os.path.getsize(given.text) / 1e6 / seconds
    return label, f"{seconds:.1f}", f"{rate:.2f} MB/s", f"{memory:.2f} GB", target


def beside(given, folder, name):
    """Runs the original script and the command on the same sentences; a row with the ratio."""
    label, ours, theirs, target = BESIDE[name]
    text = sentences(given.text, folder, given.beside_mb)
    slow, _ = original(given.vocab_file, folder, text, theirs)
    seconds, memory = timed(given, folder, name, text, ours)
    rate = f"{slow / seconds:.1f} ×"
    return label, f"{slow:.1f} / {seconds:.1f}", rate, f"{memory:.2f} GB", f"≥ {target} ×"


def grow(given, folder, name):
    """Runs the command on the first megabytes of the text; a row."""
    label, arguments, size = GROWTH[name]
    seconds, memory = timed(given, folder, name, sentences(given.text, folder, size), arguments)
    rate = f"{size / seconds:.2f} MB/s"
    return label, f"{seconds:.1f}", rate, f"{memory:.2f} GB", "the same memory"


@functools.cache
def sentences(source, folder, megabytes):
    """A file with the first megabytes of the text in the original script's form."""
    from official_bert.data import corpus

    path, size = os.path.join(folder, f"sentences_{megabytes}.txt"), 0
    with open(path, "w", encoding="utf-8") as file:
        for document in corpus.Corpus([source]).documents():
            for sentence in ["", *corpus.sentences(document)]:
                size += len(f"{sentence}\n".encode())
                if size > megabytes * 1e6:
                    return path
                file.write(f"{sentence}\n")
    raise ValueError(f"{source} must have {megabytes} MB of sentences. Give a longer text.")


@functools.cache  # one run serves two rows
def original(vocab_file, folder, text, arguments):
    """Seconds and gigabytes of the original script, which writes one file; of one run."""
    flags = (f"--input_file={text}", f"--output_file={os.path.join(folder, 'original')}")
    return run(
        (sys.executable, "-m", SCRIPT, "--do_lower_case", *shape(vocab_file), *flags, *arguments)
    )


def timed(given, folder, name, text, arguments):
    """Seconds (the median of some runs) and gigabytes (the most) of the command."""
    output = os.path.join(folder, name)
    command = (
        *(sys.executable, "-m", "official_bert.create_pretraining_data"),
        f"--input_file={text}",
        f"--output_file={os.path.join(output, 'text.tfrecord')}",
        *shape(given.vocab_file),
        f"--num_workers={given.workers}",
        "--num_shards=8",
        *arguments,
    )
    measured = []
    for _ in range(given.rounds):
        shutil.rmtree(output, ignore_errors=True)
        measured.append(run(command))
    seconds, memory = zip(*measured)
    return statistics.median(seconds), max(memory)


def shape(vocab_file):
    """Flags that both scripts take."""
    return [
        f"--vocab_file={vocab_file}",
        f"--max_seq_length={LENGTH}",
        f"--max_predictions_per_seq={PREDICTIONS}",
    ]


def run(command):
    """Runs a command; its seconds, and its highest resident size in gigabytes."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    peak = Peak(process.pid)
    summary = process.communicate()[1].strip().splitlines()
    seconds, memory = time.perf_counter() - start, peak.stop() / 1e9
    if process.returncode:
        raise RuntimeError("\n".join(summary))
    print("\n".join(line[:200] for line in summary[-3:]), flush=True)
    return seconds, memory


def read_batches(given, folder, name):
    """Reads, parses and masks batch after batch in this process; a row."""
    from official_bert.data.input_pipeline import Batches

    label, source, as_graph, masking, target = BATCHES[name]
    files = os.path.join(folder, source, "text.tfrecord-*")
    if not glob.glob(files):
        build(given, folder, source)
    shape = BATCH_SIZE, LENGTH, PREDICTIONS
    batches = Batches([files], *shape, vocab_size=30522, **masking)
    steps = range(10**9)
    found = iter(batches.dataset(steps, 0, 1) if as_graph else map(batches.__getitem__, steps))
    next(found)
    start = time.perf_counter()
    count = 0
    while (seconds := time.perf_counter() - start) < SECONDS_OF_BATCHES:
        count += 1
        next(found)
    rate, memory = count * BATCH_SIZE / seconds, _resident(os.getpid()) / 1e9
    target = target if target == "–" else f"{target} examples/s"
    return label, f"{seconds:.1f}", f"{rate:,.0f} examples/s", f"{memory:.2f} GB", target


class Peak:
    """Watches the resident size of a process and all its descendants."""

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


if __name__ == "__main__":
    main()
