"""Builds shards of records from text: many processes, bounded memory, resumable after a kill.

    corpus → blocks of documents → (workers) parts → (workers) shards of even size → manifest

A part holds the records of one block. It depends only on the block, the settings and the block's
number, so the number of workers changes nothing. Parts are kept in a folder `NAME.building` next to
the output until the manifest is written. A run that was killed finds them there, compares them with
their checksums, and makes only what is missing or damaged.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np

import official_bert
from official_bert.data import corpus, coverage, manifest
from official_bert.data.build_worker import BuildPlan, Part, Shard
from official_bert.system import locks
from official_bert.system.places import as_path

# Parts of another version cannot be used if it cut or counted differently.
PART_FORMAT = b"parts 4"
SECONDS_BETWEEN_LINES = 5.0


class Builder:
    """One build: its input, its output, and the folder of its parts.

    Args:
        plan: What the records look like.
        documents: Returns an iterator over the corpus, with the same documents at every call.
        shards: The paths to write.
        workers: Maximum number of processes; no more are started than there are tasks.
        progress: Called now and then with (bytes of text done, records made).
        check: Called with the counts when the parts are made. If it raises an error, the build ends
            and the parts stay.
    """

    def __init__(
        self,
        plan: BuildPlan,
        documents: Callable[[], Iterator[corpus.Document]],
        shards: list[str],
        workers: int,
        progress: Callable,
        check: Callable[[dict], None],
    ):
        self._plan, self._documents, self._shards = plan, documents, shards
        self._workers, self._progress, self._check = workers, progress, check
        self._folder = manifest.building_folder(shards)

    def run(self) -> tuple[list[dict], dict]:
        """Builds parts, then shards; returns the manifest's shard entries, and the counts."""
        os.makedirs(self._folder, exist_ok=True)
        with locks.exclusive(self._folder):
            self._forget_other_builds()
            with Workers(self._plan, self._workers) as workers:
                parts = self._make_parts(workers)
                if not self._fit_the_shards(parts):
                    self._clear()
                    parts = self._make_parts(workers)
                    self._fit_the_shards(parts)
                keys = parts[0]["counts"]
                counts = {key: sum(part["counts"][key] for part in parts) for key in keys}
                self._check(counts)
                shards = self._make_shards(workers, parts)
        return shards, counts

    def _forget_other_builds(self) -> None:
        """Removes parts of other settings, or of a build whose shards were removed since."""
        path = os.path.join(self._folder, "build.json")
        build = json.dumps(
            {
                **dataclasses.asdict(self._plan),
                "shards": [os.path.basename(shard) for shard in self._shards],
            },
            sort_keys=True,
        )
        build += hashlib.sha256(as_path(self._plan.vocab_file).read_bytes()).hexdigest()
        are_whole = all(map(_is_whole, self._shards, self._finished_shards()))
        if manifest.read_note(path) != build or not are_whole:
            self._clear()
        manifest.write_note(path, build)

    def _fit_the_shards(self, parts: list[dict]) -> bool:
        """Whether the parts fit the shards of an earlier run, if any: they were made of the same.

        Parts in complete shards were removed. So after a change of the text, or if a part is
        missing of a shard that was damaged, the build starts again.
        """
        path = os.path.join(self._folder, "parts.json")
        digests = [part["digest"] for part in parts]
        earlier = manifest.read_note(path)
        manifest.write_note(path, digests)
        shards = self._finished_shards()
        if not any(shards):
            return True
        needed = {part for pieces in self._pieces(parts, shards).values() for part, _, _ in pieces}
        return earlier == digests and all(os.path.exists(f"{part}.records") for part in needed)

    def _finished_shards(self) -> list[dict | None]:
        """The manifest's entries of the shards that an earlier run has made; else None."""
        return [manifest.read_note(self._made(number)) for number in range(len(self._shards))]

    def _remove_last_build(self, whole: set[str]) -> None:
        """Removes the last build's shards: those of two builds must never be in one folder.

        The manifest is removed last, because only it shows that the others may be removed.
        """
        old = manifest.of_last_build(self._shards).union(self._shards) - whole
        for path in (*old, manifest.path_for(self._shards)):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)

    def _clear(self) -> None:
        kept = manifest.of_last_build(self._shards)
        for shard in manifest.of_unfinished_build(self._shards) - kept:
            os.remove(shard)  # later, it would be unknown which build made them
        for name in os.listdir(self._folder):
            if name not in (".lock", "build.json"):
                os.remove(os.path.join(self._folder, name))

    def _made(self, number: int) -> str:
        return os.path.join(self._folder, f"shard-{number:05d}.json")

    def _make_parts(self, workers: "Workers") -> list[dict]:
        parts, first = [], 0
        if self._plan.one_stream:
            source = iter([list(self._documents())])
        else:
            source = corpus.blocks(self._documents(), corpus.BLOCK_BYTES)

        def tasks() -> Iterator[Part]:
            nonlocal first
            for index, block in enumerate(filter(None, source)):
                path = os.path.join(self._folder, f"part-{index:06d}")
                texts = b"".join(corpus.digest(d) + bytes([d.split]) for d in block)
                digest = hashlib.sha256(PART_FORMAT + texts).hexdigest()
                yield Part(index, first, block, digest, path)
                first += len(block)

        begun = any(self._finished_shards())

        def make(ask: Callable, task: Part) -> None:
            part = manifest.read_note(f"{task.path}.json")
            if not part or part["digest"] != task.digest or not _is_intact(task.path, part, begun):
                part = ask(task)
            parts.append((task.index, {"path": task.path, **part}))
            self._progress(sum(map(corpus.text_bytes, task.documents)), part["counts"]["sequences"])

        workers.work(tasks(), make)
        if not parts:
            raise ValueError(
                "input_file must contain text; got files without any. Check the paths."
            )
        return [part for _, part in sorted(parts, key=lambda pair: pair[0])]

    def _pieces(self, parts: list[dict], shards: list[dict | None]) -> dict[int, list]:
        """The parts of each shard that is not finished: path, first record and end record."""
        ends = np.cumsum([0, *(part["counts"]["sequences"] for part in parts)])
        total, count = int(ends[-1]), len(shards)
        if total < count:
            raise ValueError(
                f"num_shards must be at most {total}, the number of records; got {count}. Make "
                "fewer shards."
            )
        cuts = [total * number // count for number in range(count + 1)]
        return {
            number: _overlaps(parts, ends, *cuts[number : number + 2])
            for number, finished in enumerate(shards)
            if not finished
        }

    def _make_shards(self, workers: "Workers", parts: list[dict]) -> list[dict]:
        made = self._finished_shards()
        pieces = self._pieces(parts, made)
        self._remove_last_build({s for s, whole in zip(self._shards, made, strict=True) if whole})
        waiting = Counter(path for needed in pieces.values() for path, _, _ in needed)
        counting = threading.Lock()

        def tasks() -> Iterator[tuple[int, Shard]]:
            for number, needed in pieces.items():
                # Not in the shards' folder: their glob would match the leftovers of a killed run.
                temporary = os.path.join(self._folder, f"shard-{number:05d}.tmp")
                yield number, Shard(self._shards[number], temporary, needed)

        def make(ask: Callable, task: tuple[int, Shard]) -> None:
            number, shard = task
            made[number] = ask(shard)
            manifest.write_note(self._made(number), made[number])
            # A part whose records are in finished shards is removed, so the disk holds the records
            # hardly more than once.
            with counting:
                waiting.subtract(path for path, _, _ in shard.pieces)
                done = [path for path, _, _ in shard.pieces if not waiting[path]]
            for path in done:
                os.remove(f"{path}.records")

        workers.work(tasks(), make)
        return list(filter(None, made))


class Progress:
    """Lines with the rate and the time left, every few seconds.

    Args:
        source: The text that is read.
        report: Takes each line; None: no lines.
    """

    def __init__(self, source: corpus.Corpus, report: Callable[[str], object] | None):
        self._source, self._report = source, report
        self._started = self._last = time.monotonic()
        self._bytes = self._sequences = 0

    def __call__(self, text_bytes: int, sequences: int) -> None:
        self._bytes += text_bytes
        self._sequences += sequences
        now = time.monotonic()
        if self._report is None or now - self._last < SECONDS_BETWEEN_LINES:
            return
        self._last = now
        seconds = now - self._started
        # Text that the workers still process does not count as done.
        done = self._source.share_read * self._bytes / max(self._source.text_bytes, 1)
        left = round(max(0.0, seconds * (1 - done) / max(done, 1e-9)))
        self._report(
            f"{done:5.1%}  {self._sequences:,} sequences  {self._bytes / 1e6 / seconds:.2f} MB/s  "
            f"{left // 60} min {left % 60:02d} s left"
        )


def describe(summary: dict, max_seq_length: int) -> str:
    """The closing summary in words."""
    sequences, tokens = summary["sequences"], summary["tokens"]
    seconds = summary["seconds"] or float("nan")
    unknown = summary["unknown_tokens"] / max(summary["text_tokens"], 1)
    return (
        f"{summary['documents']:,} documents ({summary['duplicate_documents']:,} duplicates), "
        f"{summary['sentences']:,} sentences, {summary['text_bytes'] / 1e6:,.1f} MB of text\n"
        f"{sequences:,} sequences of {max_seq_length}, {tokens:,} tokens, "
        f"{1 - tokens / (sequences * max_seq_length):.1%} padding, "
        f"{unknown:.2%} of the text's tokens unknown\n"
        f"{coverage.describe(summary)}\n"
        f"{seconds:,.1f} s, {summary['text_bytes'] / 1e6 / seconds:.2f} MB/s, "
        f"{sequences / seconds:,.0f} sequences/s"
    )


def remove_parts(shards: list[str]) -> None:
    """Removes the parts of a finished build; a process that is building keeps its own.

    A process that was killed after writing the manifest and before this step leaves parts.
    """
    folder = manifest.building_folder(shards)
    if os.path.isdir(folder):
        with contextlib.suppress(locks.Busy), locks.exclusive(folder):
            shutil.rmtree(folder)


class Workers:
    """Processes that answer tasks; a thread of this process drives each, and starts it when needed.

    Args:
        plan: What each process is sent once.
        count: Maximum number of processes.
    """

    def __init__(self, plan: BuildPlan, count: int):
        self._plan, self._count = plan, count
        self._processes: list[subprocess.Popen] = []
        self._idle: list[subprocess.Popen] = []

    def __enter__(self):
        # One thread pool until the end: a process dies with the thread that started it.
        self._threads = ThreadPoolExecutor(self._count)
        return self

    def __exit__(self, *_):
        for process in self._processes:
            process.kill()
            process.wait()
            process.stdout.close()
            with contextlib.suppress(BrokenPipeError):  # it died before it read a task
                process.stdin.close()
        self._threads.shutdown()

    def work(self, tasks: Iterator, make: Callable) -> None:
        """Calls `make(ask, task)` for every task, a thread per process; `ask` asks the process."""
        take = threading.Lock()
        failed = threading.Event()

        def serve() -> None:
            process = None

            def ask(question):
                nonlocal process
                process = process or self._idle_or_new()
                return _ask(process, question)

            try:
                while not failed.is_set():
                    with take:
                        task = next(tasks, None)
                    if task is None:
                        break
                    make(ask, task)
            except BaseException:
                failed.set()
                raise
            if process:
                self._idle.append(process)

        results = [self._threads.submit(serve) for _ in range(self._count)]
        try:
            for result in results:
                result.result()
        except BaseException:  # Ctrl-C too: the threads finish their current task and no more
            failed.set()
            wait(results)
            raise

    def _idle_or_new(self) -> subprocess.Popen:
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        root = os.path.dirname(os.path.dirname(os.path.abspath(official_bert.__file__)))
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]),
            "TOKENIZERS_PARALLELISM": "false",  # the parallelism is in these processes
        }
        command = "from official_bert.data import build_worker; build_worker.main()"
        process = subprocess.Popen(
            [sys.executable, "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._processes.append(process)
        _send(process, self._plan)
        return process


def _ask(process: subprocess.Popen, task):
    """A process' answer to a task."""
    _send(process, task)
    assert process.stdout  # a pipe, as _start has it
    try:
        answer = pickle.load(process.stdout)
    except EOFError:
        raise ValueError(
            f"a worker process died (exit code {process.wait()}), probably because memory ran out. "
            "The finished part is kept: run the same command again with fewer --num_workers."
        ) from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _send(process: subprocess.Popen, task) -> None:
    assert process.stdin
    with contextlib.suppress(BrokenPipeError):  # the missing answer gives a better error
        pickle.dump(task, process.stdin)
        process.stdin.flush()


def _is_intact(path: str, part: dict, begun: bool) -> bool:
    """Whether the files of a part are those that its note vouches for.

    Args:
        begun: Some shards are finished, so that the records of their parts were removed.
    """
    records = manifest.checksum(f"{path}.records")
    if manifest.checksum(f"{path}.lengths.npy") != part["lengths"]:
        return False
    return records == part["records"] or (records is None and begun)


def _is_whole(shard: str, finished: dict | None) -> bool:
    """Whether a shard of an earlier run, if it was finished, is as it was made."""
    return not finished or manifest.checksum(shard) == finished["crc32"]


def _overlaps(
    parts: list[dict], ends: np.ndarray, start: int, stop: int
) -> list[tuple[str, int, int]]:
    """The parts, and the records in each, that are the records `start` … `stop` of all.

    Part n holds the records `ends[n]` … `ends[n + 1]`.
    """
    first, last = np.searchsorted(ends, start, "right") - 1, np.searchsorted(ends, stop)
    pieces = []
    for number in range(first, last):
        begin, end = map(int, ends[number : number + 2])
        low, high = max(start, begin), min(stop, end)
        if low < high:
            pieces.append((parts[number]["path"], low - begin, high - begin))
    return pieces
