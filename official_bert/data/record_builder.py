"""Builds shards of records from text: many processes, bounded memory, resumable after a kill.

    corpus → blocks of documents → (workers) parts → (workers) shards of even size → manifest

A part has the records of one block. It depends only on the block, its number and the settings, not
on the number of workers. Parts are kept in a folder `NAME.building` next to the output until the
manifest is written. A run that resumes makes only parts that are missing or damaged. On several
machines, each makes a share of the parts (see `build_shares`), and one makes the shards.
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
from official_bert.data import build_shares, corpus, manifest
from official_bert.data.build_shares import Share
from official_bert.data.build_worker import BuildPlan, Part, Shard
from official_bert.system import locks
from official_bert.system.places import RemotePath, as_path, is_remote

PART_FORMAT = b"parts 5"  # parts that were cut or counted in another way cannot be used
SECONDS_BETWEEN_LINES = 5.0


class Builder:
    """One build: its input, its output, and the folder of its parts.

    Args:
        plan: Form of the records.
        documents: Returns an iterator over the corpus, with the same documents at every call.
        progress: Called after each part with its (bytes of text, records).
        check: Called with the counts when all parts are made; an error ends the build, and the
            parts stay.
        share: The share of the parts that `run_share` makes; default: `run` makes all.

    Attributes:
        text_digest: A digest of the whole text, once it has been read.
    """

    def __init__(
        self,
        plan: BuildPlan,
        documents: Callable[[], Iterator[corpus.Document]],
        shards: list[str],
        workers: "Workers",
        progress: Callable,
        check: Callable[[dict], None],
        share: Share | None = None,
    ):
        self._plan, self._documents, self._shards = plan, documents, shards
        self._workers, self._progress, self._check = workers, progress, check
        self._share, self._folder = share, build_shares.folder(shards, share)

    def run(self) -> tuple[list[dict], dict]:
        """Builds parts, then shards; returns the manifest's shard entries, and the counts."""
        as_path(self._folder).mkdir(parents=True, exist_ok=True)
        with locks.exclusive(as_path(self._folder)):
            build_shares.require_none(self._shards)
            self._forget_other_builds()
            parts = self._make_parts()
            if not self._fit_the_shards(parts):
                self._clear()
                parts = self._make_parts()
                self._fit_the_shards(parts)
            counts = _total(parts)
            self._check(counts)
            return self._make_shards(parts), counts

    def run_share(self, described: dict, of_text: Callable[[], dict]) -> dict:
        """Builds a share of the parts, and last a note for `finish`; returns the share's counts.

        Args:
            described: The build's entries in the manifest.
            of_text: Returns the counts of the whole text, and warnings, once it has been read.
        """
        assert self._share
        if (building := as_path(manifest.building_folder(self._shards))).is_dir():
            locks.require_free(building)  # and leave no folder in it
        as_path(self._folder).mkdir(parents=True, exist_ok=True)
        with locks.exclusive(as_path(self._folder)):
            # `finish` locks the two folders in the other order, so one of them sees the other.
            locks.require_free(as_path(manifest.building_folder(self._shards)))
            build_shares.forget(self._folder)
            self._forget_other_builds()
            parts = self._make_parts()
            read = of_text() | {"text": self.text_digest}
            build_shares.write(self._folder, read | {"described": described, "parts": parts})
        return _total(parts) if parts else {}

    def finish(self, parts: list[dict]) -> tuple[list[dict], dict]:
        """Builds the shards from the parts of all shares; returns as `run` does."""
        with locks.exclusive(as_path(self._folder)):
            for share in build_shares.folders(self._shards):
                locks.require_free(share)
            self._forget_other_builds()
            begun = any(self._finished_shards())
            with ThreadPoolExecutor(self._workers.count) as threads:
                intact = threads.map(lambda part: _is_intact(part["path"], part, begun), parts)
                damaged = [part for part, whole in zip(parts, intact, strict=True) if not whole]
            if not damaged and not self._fit_the_shards(parts):
                self._clear()
                self._fit_the_shards(parts)
                damaged = [p for p in parts if manifest.size_of(f"{p['path']}.records") is None]
            build_shares.refuse_damaged(damaged)
            counts = _total(parts)
            self._check(counts)
            return self._make_shards(parts), counts

    def _forget_other_builds(self) -> None:
        """Removes parts of other settings, or of a build whose shards were removed since."""
        path = os.path.join(self._folder, manifest.PLAN)
        names = {"shards": [*map(os.path.basename, self._shards)]}
        build = json.dumps(dataclasses.asdict(self._plan) | names, sort_keys=True)
        build += hashlib.sha256(as_path(self._plan.vocab_file).read_bytes()).hexdigest()
        are_intact = all(
            not finished or manifest.is_intact(shard, finished)
            for shard, finished in zip(self._shards, self._finished_shards(), strict=True)
        )
        if manifest.read_note(path) != build or not are_intact:
            self._clear()
        manifest.write_note(path, build)

    def _fit_the_shards(self, parts: list[dict]) -> bool:
        """Whether the shards of an earlier run, if any, were made from the same parts.

        Parts in complete shards were removed. So the build starts again after a change of the text,
        or if a damaged shard needs a part that was removed.
        """
        path = os.path.join(self._folder, "parts.json")
        digests = [part["digest"] for part in parts]
        earlier = manifest.read_note(path)
        manifest.write_note(path, digests)
        shards = self._finished_shards()
        if not any(shards):
            return True
        needed = {part for pieces in self._pieces(parts, shards).values() for part, _, _ in pieces}
        return earlier == digests and all(
            manifest.size_of(f"{part}.records") is not None for part in needed
        )

    def _finished_shards(self) -> list[dict | None]:
        """For each shard its entry in the manifest if an earlier run has made it, else None."""
        return [manifest.read_note(self._made(number)) for number in range(len(self._shards))]

    def _clear(self) -> None:
        if not self._share:
            kept = manifest.of_last_build(self._shards)
            for shard in manifest.of_unfinished_build(self._shards) - kept:
                as_path(shard).unlink()  # without the notes, their build would be unknown
        for path in as_path(self._folder).iterdir():
            if path.name not in (".lock", ".owner.json", manifest.PLAN) and not path.is_dir():
                path.unlink()

    def _made(self, number: int) -> str:
        return os.path.join(self._folder, f"shard-{number:05d}.json")

    def _make_parts(self) -> list[dict]:
        parts, first = [], 0
        text = hashlib.sha256(PART_FORMAT)
        if self._plan.one_stream:
            source = iter([list(self._documents())])
        else:
            source = corpus.blocks(self._documents(), corpus.BLOCK_BYTES)

        def tasks() -> Iterator[Part]:
            nonlocal first
            for index, block in enumerate(filter(None, source)):
                path = os.path.join(self._folder, f"part-{index:06d}")
                texts = b"".join(corpus.digest(d) + bytes([d.split, d.continues]) for d in block)
                numbered = first.to_bytes(8, "little") + texts  # dynamic records have the numbers
                digest = hashlib.sha256(PART_FORMAT + numbered).hexdigest()
                text.update(digest.encode())
                if self._share is None or self._share.has(index):
                    yield Part(index, first, block, digest, path)
                first += len(block)

        begun = any(self._finished_shards())

        def make(ask: Callable, task: Part) -> None:
            part = manifest.read_note(f"{task.path}.json")
            if not part or part["digest"] != task.digest or not _is_intact(task.path, part, begun):
                part = ask(task)
            parts.append((task.index, {"path": task.path, **part}))
            self._progress(sum(map(corpus.text_bytes, task.documents)), part["counts"]["sequences"])

        self._workers.work(tasks(), make)
        self.text_digest = text.hexdigest()
        if not parts and not first:
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

    def _make_shards(self, parts: list[dict]) -> list[dict]:
        made = self._finished_shards()
        pieces = self._pieces(parts, made)
        # The last build's shards, then its manifest, which proves their origin.
        whole = {shard for shard, entry in zip(self._shards, made, strict=True) if entry}
        old = manifest.of_last_build(self._shards).union(self._shards) - whole
        for path in (*old, manifest.path_for(self._shards)):
            as_path(path).unlink(missing_ok=True)
        waiting = Counter(path for needed in pieces.values() for path, _, _ in needed)
        counting = threading.Lock()

        def tasks() -> Iterator[tuple[int, Shard]]:
            for number, needed in pieces.items():
                # Not next to the shards, whose glob would match the leftovers of a killed run.
                temporary = os.path.join(self._folder, f"shard-{number:05d}.tmp")
                yield number, Shard(self._shards[number], temporary, needed)

        def make(ask: Callable, task: tuple[int, Shard]) -> None:
            number, shard = task
            made[number] = ask(shard)
            manifest.write_note(self._made(number), made[number])
            # A part is removed as soon as its records are in shards, to save disk space.
            with counting:
                waiting.subtract(path for path, _, _ in shard.pieces)
                done = [path for path, _, _ in shard.pieces if not waiting[path]]
            for path in done:
                as_path(f"{path}.records").unlink()

        self._workers.work(tasks(), make)
        return list(filter(None, made))


class Progress:
    """Reports the rate and the time left, every few seconds; of one of `shares` of the text."""

    def __init__(
        self, source: corpus.Corpus, report: Callable[[str], object] | None, shares: int = 1
    ):
        self._source, self._report, self._shares = source, report, shares
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
        # Text in the workers does not count as done.
        made = self._shares * self._bytes / max(self._source.text_bytes, 1)
        done = self._source.share_read * min(1.0, made)
        left = round(max(0.0, seconds * (1 - done) / max(done, 1e-9)))
        self._report(
            f"{done:5.1%}  {self._sequences:,} sequences  {self._bytes / 1e6 / seconds:.2f} MB/s  "
            f"{left // 60} min {left % 60:02d} s left"
        )


def remove_parts(shards: list[str], finishes: bool) -> None:
    """Removes the parts of a finished build, unless another process is building there.

    Args:
        finishes: Whether the build was made of the shares of several machines. Otherwise such
            shares are those of another build, and stay.
    """
    folder = as_path(manifest.building_folder(shards))
    if folder.is_dir():
        with contextlib.suppress(locks.Busy), locks.exclusive(folder):
            shares = build_shares.folders(shards)
            if shares and not finishes:
                return
            for share in shares:
                locks.require_free(share)
            for share in shares:
                (share / manifest.PLAN).unlink(missing_ok=True)  # it is not begun again
            folder.rmtree() if isinstance(folder, RemotePath) else shutil.rmtree(folder)


class Workers:
    """At most `count` processes that answer tasks, each driven by a thread.

    Args:
        count: Their largest number; no more are started than there are tasks, or `at_once`.
        at_once: How many are started with the block, to be ready when the first tasks come, even if
            none comes because all parts are already there.
    """

    def __init__(self, plan: BuildPlan, count: int, at_once: int = 0):
        self._plan, self.count, self._at_once = plan, count, min(count, at_once)
        self._processes: list[subprocess.Popen] = []
        self._idle: list[subprocess.Popen] = []

    def __enter__(self) -> "Workers":
        # The pool lives until the end, because a process dies with the thread that started it.
        self._threads = ThreadPoolExecutor(self.count)
        try:
            self._idle += [self._new() for _ in range(self._at_once)]
        except BaseException:
            self.__exit__()
            raise
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
        """Calls `make(ask, task)` for every task, where `ask` sends a task to a process."""
        take = threading.Lock()
        failed = threading.Event()

        def serve() -> None:
            try:
                while not failed.is_set():
                    with take:
                        task = next(tasks, None)
                    if task is None:
                        break
                    make(self._answer, task)
            except BaseException:
                failed.set()
                raise

        results = [self._threads.submit(serve) for _ in range(self.count)]
        try:
            for result in results:
                result.result()
        except BaseException:  # Ctrl-C too: the threads finish their current task and no more
            failed.set()
            wait(results)
            raise

    def _answer(self, task):
        try:
            process = self._idle.pop()  # of several threads, one gets the last
        except IndexError:
            process = self._new()
        answer = _ask(process, task)
        self._idle.append(process)
        return answer

    def _new(self) -> subprocess.Popen:
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
    _send(process, task)
    assert process.stdout
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
    """Whether a part's files have the checksums of its note; finished shards remove the records."""
    if is_remote(path):  # an object is whole, and has a checksum of its own in its store
        records = part["records"] if manifest.size_of(f"{path}.records") is not None else None
    else:
        records = manifest.checksum(f"{path}.records")
    if manifest.checksum(f"{path}.lengths.npy") != part["lengths"]:
        return False
    return records == part["records"] or (records is None and begun)


def _total(parts: list[dict]) -> dict:
    return {key: sum(part["counts"][key] for part in parts) for key in parts[0]["counts"]}


def _overlaps(
    parts: list[dict], ends: np.ndarray, start: int, stop: int
) -> list[tuple[str, int, int]]:
    """(path, first, end) in each part of the records `start` … `stop` of all."""
    first, last = np.searchsorted(ends, start, "right") - 1, np.searchsorted(ends, stop)
    pieces = []
    for number in range(first, last):
        begin, end = map(int, ends[number : number + 2])
        low, high = max(start, begin), min(stop, end)
        if low < high:
            pieces.append((parts[number]["path"], low - begin, high - begin))
    return pieces
