"""A process of the record builder: a block of documents → a part, a run of parts → a shard.

It reads pickled tasks from standard input, writes pickled answers to standard output, and ends with
the input. `ProcessPoolExecutor`, with forkserver too, would import the caller's main module into
every worker: half a gigabyte if it imports TensorFlow, and an error if a script has no guard.
"""

import functools
import gc
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

from official_bert.data import corpus, fit, manifest, records, tokenization
from official_bert.data.instances import (
    Ids,
    Instance,
    InstanceMaker,
    Sentences,
    Settings,
    cut_long_sentences,
    rows,
    sequences,
)
from official_bert.data.tokenization import Casing
from official_bert.system import child_commands
from official_bert.system.places import as_path
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
    """A block of documents to be turned into records."""

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
    """Answers tasks, with a tokenizer that is loaded once."""

    def __init__(self, plan: BuildPlan):
        self._plan = plan
        vocabulary = tokenization.read_vocabulary(plan.vocab_file)
        self._tokenizer = tokenization.load(plan.vocab_file, plan.do_lower_case)
        self._encode = tokenization.SentenceEncoder(self._tokenizer)
        self._unknown = vocabulary[tokenization.UNK]
        self._special = vocabulary[tokenization.CLS], vocabulary[tokenization.SEP]
        settings = plan.settings
        if plan.dynamic:
            self._records: Any = records.DynamicRecord(settings.max_seq_length)
        else:
            self._make = InstanceMaker(settings, vocabulary)
            self._records = records.StaticRecord(
                settings.max_seq_length, settings.max_predictions_per_seq, plan.use_v2_feature_names
            )

    def part(self, task: Part) -> dict:
        """Writes the records of one block, and last a note with their checksums."""
        self._paragraph_tokens = 0
        documents = [
            (number, sentences)
            for number, document in enumerate(task.documents, task.first_document)
            if (sentences := self._tokens(document))
        ]
        counts = self._count(documents)
        lines = [line for document in task.documents for line in document.lines]
        counts |= fit.sampled_lines(lines, self._tokenizer, self._plan.do_lower_case)
        begun = sum(not document.continues for document in task.documents)
        draws_pairs = not self._plan.dynamic and self._plan.settings.row_filling == "documents"
        is_single = draws_pairs and task.documents[0].continues + begun == 1
        counts["single_document_tokens"] = counts["text_tokens"] * is_single
        seed = self._plan.random_seed
        rng = Random(seed if self._plan.one_stream else f"{seed}/{task.index}")
        self._tokens_used = 0
        make = self._dynamic if self._plan.dynamic else self._static
        framed = list(self._records(make(documents, rng)))
        rng.shuffle(framed)
        unused = 0 if self._plan.dynamic else self._make.unused
        counts |= {"sequences": len(framed), "tokens": self._tokens_used, "dropped_tokens": unused}
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
        language = self._plan.language
        lines = corpus.sentences(document, language)
        found = self._encode.arrays(lines)
        if not document.split:
            self._paragraph_tokens += sum(
                len(ids)
                for line, ids in zip(lines, found, strict=True)
                if corpus.looks_like_paragraph(line, language)
            )
        return [ids for ids in found if ids]

    def _static(self, documents: list[tuple[int, Sentences]], rng: Random) -> Iterator[Instance]:
        settings = self._plan.settings
        texts = [sentences for _, sentences in documents]
        documents.clear()  # with one_stream they are the whole corpus
        make = self._make if settings.row_filling == "documents" else self._make.of_rows
        if not self._plan.one_stream:
            texts = [cut_long_sentences(sentences, settings) for sentences in texts]
        for instance in make(texts, rng):
            self._tokens_used += len(instance.input_ids)
            yield instance

    def _dynamic(
        self, documents: list[tuple[int, Sentences]], rng: Random
    ) -> Iterator[tuple[Ids, list[int], int]]:
        settings = self._plan.settings
        if settings.row_filling != "documents":
            for row in rows([text for _, text in documents], settings, rng, *self._special):
                self._tokens_used += len(row) + 2
                yield row, [len(row)], 0
            return
        for number, document in documents:
            for ids, lengths in sequences(document, settings, rng):
                self._tokens_used += len(ids) + 3
                yield ids, lengths, number

    def _count(self, documents: list[tuple[int, Sentences]]) -> dict:
        room = self._plan.settings.max_seq_length - 3
        found: list[Any] = [sentence for _, sentences in documents for sentence in sentences]
        long = [len(sentence) for sentence in found if len(sentence) > room]
        ids = np.frombuffer(b"".join(found), np.intc)
        return {
            "sentences": len(found),
            "token_documents": len(documents),
            "single_sentence_documents": sum(len(sentences) == 1 for _, sentences in documents),
            "long_sentences": len(long),
            "text_tokens": len(ids),
            "long_sentence_tokens": sum(long),
            "paragraph_tokens": self._paragraph_tokens,
            "unknown_tokens": int((ids == self._unknown).sum()),
        }

    def shard(self, task: Shard) -> dict:
        """Writes one shard; returns its entry in the manifest."""
        lengths = np.concatenate([_lengths(p)[a:b] for p, a, b in task.pieces])
        starts = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        offsets = starts[:-1][:: records.RECORDS_PER_BLOCK].tolist()
        data = _pieces(task.pieces)
        if self._plan.gzip:
            sizes, offsets = np.diff([*offsets, starts[-1]]), []
            data = _gzipped(data, sizes, offsets)
        crc = size = 0

        def counted() -> Iterator[bytes]:
            nonlocal crc, size
            for chunk in data:
                crc = zlib.crc32(chunk, crc)
                size += len(chunk)
                yield chunk

        write_whole(task.path, counted(), task.temporary)
        return {
            "file": os.path.basename(task.path),
            "records": len(lengths),
            "bytes": size,
            "crc32": crc,
            "block_offsets": offsets,
        }


def _lengths(part: str) -> np.ndarray:
    """The lengths of a part's records in bytes."""
    return np.load(io.BytesIO(as_path(f"{part}.lengths.npy").read_bytes()))


def _pieces(pieces: list[tuple[str, int, int]], chunk: int = 1 << 20) -> Iterator[bytes]:
    for path, start, stop in pieces:
        lengths = _lengths(path)
        left = int(lengths[start:stop].sum(dtype=np.int64))
        with as_path(f"{path}.records").open("rb") as file:
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
    """One GZIP member whose blocks can be unpacked separately; adds their offsets to `offsets`."""
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


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # left to the parent
    child_commands.end_with_parent(signal.SIGKILL)
    gc.disable()  # nothing refers to itself; to look for it takes a tenth of the time
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
