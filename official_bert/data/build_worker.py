"""The work of the builder's processes: a block of documents → a part, a run of parts → a shard.

Started by `record_builder`, one process per worker. It reads pickled tasks from standard input and
writes pickled answers to standard output. The end of the input ends the process.
`ProcessPoolExecutor`, with forkserver too, would import the caller's main module into every worker:
half a gigabyte if it imports TensorFlow, and an error if a script is without a guard.
"""

import functools
import io
import os
import pickle
import signal
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import numpy as np

from official_bert.data import corpus, manifest, records, tokenization
from official_bert.data.instances import (
    InstanceMaker,
    Sentences,
    Settings,
    cut_long_sentences,
    sequences,
)
from official_bert.data.tokenization import Casing
from official_bert.system import child_commands
from official_bert.system.whole_files import write_whole

GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"


@dataclass(frozen=True)
class BuildPlan:
    """The settings of a build, sent to each worker once."""

    settings: Settings
    vocab_file: str
    do_lower_case: Casing
    language: str
    random_seed: int
    dynamic: bool
    use_v2_feature_names: bool
    gzip: bool
    one_stream: bool


class Part(NamedTuple):
    """A block of documents to turn into a file of records."""

    index: int  # type: ignore[assignment]  # tuple.index is never called
    first_document: int
    documents: list[corpus.Document]
    digest: str
    path: str  # without ending: .records, .lengths.npy, .json are added


class Shard(NamedTuple):
    """Records `start` … `stop` of the concatenated parts, to be written to `path`."""

    path: str
    temporary: str
    pieces: list[tuple[str, int, int]]  # path of a part, first record, end record


class Worker:
    """Answers tasks; holds objects that are costly to make, such as the tokenizer."""

    def __init__(self, plan: BuildPlan):
        self._plan = plan
        vocabulary = tokenization.read_vocabulary(plan.vocab_file)
        self._encode = tokenization.SentenceEncoder(
            tokenization.load(plan.vocab_file, plan.do_lower_case)
        )
        self._unknown = vocabulary[tokenization.UNK]
        settings = plan.settings
        if plan.dynamic:
            self._record: Any = records.DynamicRecord(len(vocabulary))
        else:
            self._make = InstanceMaker(settings, vocabulary)
            self._record = records.StaticRecord(
                settings.max_seq_length,
                settings.max_predictions_per_seq,
                len(vocabulary),
                plan.use_v2_feature_names,
            )

    def part(self, task: Part) -> dict:
        """Writes the records of one block, and last a note that vouches for them."""
        self._paragraph_tokens = 0
        documents = [
            (task.first_document + i, self._tokens(d)) for i, d in enumerate(task.documents)
        ]
        documents = [(number, sentences) for number, sentences in documents if sentences]
        counts = self._count(documents)
        alone = not self._plan.dynamic and _number_of_documents(task.documents) == 1
        counts["single_document_tokens"] = counts["text_tokens"] * alone
        seed = self._plan.random_seed
        rng = Random(seed if self._plan.one_stream else f"{seed}/{task.index}")
        framed, used = [], 0
        make = self._dynamic if self._plan.dynamic else self._static
        for length, record in make(documents, rng):
            framed.append(record)
            used += length
        rng.shuffle(framed)
        unused = 0 if self._plan.dynamic else self._make.unused
        counts |= {"sequences": len(framed), "tokens": used, "dropped_tokens": unused}
        lengths = io.BytesIO()
        np.save(lengths, np.fromiter(map(len, framed), np.uint32, len(framed)))
        made = {
            "digest": task.digest,
            "counts": counts,
            "records": functools.reduce(lambda crc, data: zlib.crc32(data, crc), framed, 0),
            "lengths": zlib.crc32(lengths.getvalue()),
        }
        write_whole(f"{task.path}.records", framed)
        write_whole(f"{task.path}.lengths.npy", [lengths.getvalue()])
        manifest.write_note(f"{task.path}.json", made)
        return made

    def _tokens(self, document: corpus.Document) -> Sentences:
        lines = corpus.sentences(document, self._plan.language)
        found = self._encode(lines)
        if not document.split:
            self._paragraph_tokens += self._in_paragraphs(lines, found)
        return [ids for ids in found if ids]

    def _in_paragraphs(self, lines: list[str], found: Sentences) -> int:
        """The tokens of lines that look like three sentences or more."""
        language = self._plan.language
        return sum(
            len(ids)
            for line, ids in zip(lines, found, strict=True)
            if corpus.looks_like_paragraph(line, language)
        )

    def _static(
        self, documents: list[tuple[int, Sentences]], rng: Random
    ) -> Iterator[tuple[int, bytes]]:
        settings = self._plan.settings
        texts = [sentences for _, sentences in documents]
        documents.clear()  # with one_stream they are the whole corpus
        if not self._plan.one_stream:
            texts = [cut_long_sentences(sentences, settings) for sentences in texts]
        for instance in self._make(texts, rng):
            yield len(instance.input_ids), self._record(instance)

    def _dynamic(
        self, documents: list[tuple[int, Sentences]], rng: Random
    ) -> Iterator[tuple[int, bytes]]:
        settings = self._plan.settings
        for number, document in documents:
            for ids, lengths in sequences(document, settings, rng):
                yield len(ids) + 3, self._record(ids, lengths, number)

    def _count(self, documents: list[tuple[int, Sentences]]) -> dict:
        room = self._plan.settings.max_seq_length - 3
        found = [sentence for _, sentences in documents for sentence in sentences]
        long = [len(sentence) for sentence in found if len(sentence) > room]
        return {
            "sentences": len(found),
            "long_sentences": len(long),
            "text_tokens": sum(map(len, found)),
            "long_sentence_tokens": sum(long),
            "paragraph_tokens": self._paragraph_tokens,
            "unknown_tokens": sum(sentence.count(self._unknown) for sentence in found),
        }

    def shard(self, task: Shard) -> dict:
        """Writes one shard; returns the offset of each of its blocks of records."""
        lengths = np.concatenate(
            [np.load(f"{p}.lengths.npy", mmap_mode="r")[a:b] for p, a, b in task.pieces]
        )
        starts = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        offsets = starts[:-1][:: records.RECORDS_PER_BLOCK].tolist()
        data = _pieces(task.pieces)
        if self._plan.gzip:
            sizes, offsets = np.diff([*offsets, starts[-1]]), []
            data = _gzipped(data, sizes, offsets)
        crc = 0

        def counted() -> Iterator[bytes]:
            nonlocal crc
            for chunk in data:
                crc = zlib.crc32(chunk, crc)
                yield chunk

        write_whole(task.path, counted(), task.temporary)
        return {
            "file": os.path.basename(task.path),
            "records": len(lengths),
            "bytes": os.path.getsize(task.path),
            "crc32": crc,
            "block_offsets": offsets,
        }


def _number_of_documents(found: list[corpus.Document]) -> int:
    """Of how many documents these are, or are pieces."""
    return found[0].continues + sum(not document.continues for document in found)


def _pieces(pieces: list[tuple[str, int, int]], chunk: int = 1 << 20) -> Iterator[bytes]:
    for path, start, stop in pieces:
        lengths = np.load(f"{path}.lengths.npy", mmap_mode="r")
        left = int(lengths[start:stop].sum(dtype=np.int64))
        with open(f"{path}.records", "rb") as file:
            file.seek(int(lengths[:start].sum(dtype=np.int64)))
            while left:
                data = file.read(min(left, chunk))
                if not data:
                    raise ValueError(
                        f"{path}.records was truncated during the build. Run the same command "
                        "again."
                    )
                left -= len(data)
                yield data


def _gzipped(data: Iterator[bytes], sizes: np.ndarray, offsets: list[int]) -> Iterator[bytes]:
    """One GZIP member; each block of records can be unpacked on its own (full flushes).

    The offsets of the blocks are added to `offsets`.
    """
    compressor = zlib.compressobj(6, zlib.DEFLATED, -15)
    yield GZIP_HEADER
    buffer, position, crc, total = bytearray(), len(GZIP_HEADER), 0, 0
    for size in map(int, sizes):
        while len(buffer) < size:
            buffer += next(data)
        block = bytes(buffer[:size])
        del buffer[:size]
        packed = compressor.compress(block) + compressor.flush(zlib.Z_FULL_FLUSH)
        yield packed
        offsets.append(position)
        position += len(packed)
        crc, total = zlib.crc32(block, crc), total + size
    yield (
        compressor.flush() + crc.to_bytes(4, "little") + (total & 0xFFFFFFFF).to_bytes(4, "little")
    )


def _follow_parent() -> None:
    """Leaves Ctrl-C to the parent process; if the parent dies in any way, this process dies too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child_commands.end_with_parent(signal.SIGKILL)


def main() -> None:
    _follow_parent()
    tasks, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # a stray print must not get between the answers
    worker = Worker(pickle.load(tasks))
    while True:
        try:
            task = pickle.load(tasks)
        except EOFError:
            return
        try:
            answer: object = worker.part(task) if isinstance(task, Part) else worker.shard(task)
        except (OSError, ValueError) as error:
            answer = error
        pickle.dump(answer, answers)
        answers.flush()
