"""Reading record files: finding their blocks, and reporting damage.

Files of this project have a manifest with the offset of every block of records, so opening them
reads very little. Files of other tools are read through once, header by header. GZIP files without
a manifest are first decompressed into a temporary file, because they cannot be read from the
middle.
"""

import contextlib
import glob
import gzip
import hashlib
import itertools
import json
import mmap
import os
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from official_bert.data import manifest
from official_bert.data.records import (
    FOOTER_BYTES,
    HEADER_BYTES,
    RECORDS_PER_BLOCK,
    masked_crc,
    payload_length,
)
from official_bert.system import local_paths
from official_bert.system.places import as_path, is_remote, remote_files

BLOCKS_IN_FINGERPRINT = 64  # of 256 records; fewer are all read
_BYTES_AHEAD = 1 << 23
MOST_BLOCK_BYTES = 1 << 26  # of a block that is unpacked in memory: 256 kB per record


class Block(NamedTuple):
    """A run of neighbouring records in one file, read with one request."""

    file: int
    first_record: int
    records: int
    offset: int
    bytes: int


class RecordRange(NamedTuple):
    """The records `start` … `stop` of a block."""

    block: int
    start: int
    stop: int


class RecordFiles:
    """The records of some files, in the order of the files.

    Args:
        patterns: Globs or paths, local or with a scheme of TensorFlow's file systems (`gs://`).

    Attributes:
        paths: The files.
        manifest: Of the first file that has one; None if another tool made them all.
        blocks: All blocks, as an array with a row (file, first record, records, offset, bytes) for
            each.
        num_records: Their number.

    Raises:
        ValueError: a pattern matches nothing, a file is truncated or has another format, the files
            do not belong together or are not the set that their manifest lists.
        OSError: a file cannot be read, or an address cannot be reached.
    """

    def __init__(self, patterns: Iterable[str] | str):
        patterns = [patterns] if isinstance(patterns, str) else list(map(str, patterns))
        self.paths = _matches(patterns)
        self._unpacked: dict[int, tempfile._TemporaryFileWrapper] = {}
        self._packed = [False] * len(self.paths)
        manifests, found = _Manifests(), []
        made = [manifests.of(path) for path in self.paths]
        self.manifest = next(filter(None, made), None)
        manifest.require_whole(patterns, self.paths, manifests.all, manifests.unfinished)
        _check_same_make(self.paths, made)
        for number, path in enumerate(self.paths):
            found.extend(self._blocks(number, path, made[number]))
        self.blocks = np.array(found, np.int64).reshape(-1, 5)
        self.num_records = int(self.blocks[:, 2].sum())
        if not self.num_records:
            raise ValueError(
                f"{', '.join(self.paths[:3])} must contain records; got none. Make the records "
                "again."
            )
        self._first = np.concatenate(([0], np.cumsum(self.blocks[:, 2])))

    def read(self, block: int, start: int = 0, stop: int | None = None) -> list[bytes]:
        """The serialized Examples `start` … `stop` of a block."""
        file, first, records, offset, size = map(int, self.blocks[block])
        data = self._read(file, offset, size)
        found, position = [], 0
        for number in range(records if stop is None else stop):
            begin, wanted = position + HEADER_BYTES, number >= start
            end = begin + int.from_bytes(data[position : position + 8], "little")
            payload, footer = data[begin:end], data[end : end + FOOTER_BYTES]
            position = end + FOOTER_BYTES
            # The header's own checksum need not be computed if that of its record is right.
            if wanted and masked_crc(payload).to_bytes(4, "little") == footer:
                found.append(payload)
                continue
            header = data[begin - HEADER_BYTES : begin]
            if len(footer) < FOOTER_BYTES or payload_length(header) is None:
                raise ValueError(
                    f"{self.paths[file]}, record {first + number} is truncated or damaged. Make "
                    "the file again."
                )
            if wanted:
                raise ValueError(
                    f"{self.paths[file]}, record {first + number} is damaged: its checksum does "
                    "not match. Make the file again."
                )
        return found

    def compressed(self) -> list[str]:
        """Those of the files that are compressed with GZIP."""
        return list(itertools.compress(self.paths, self._packed))

    def runs(self, start: int, stop: int) -> list[RecordRange]:
        """The records `start` … `stop` of all, block by block."""
        low = int(np.searchsorted(self._first, start, "right")) - 1
        high = int(np.searchsorted(self._first, stop, "left"))
        return [
            RecordRange(
                n,
                max(start - self.first_of(n), 0),
                min(stop, self.first_of(n + 1)) - self.first_of(n),
            )
            for n in range(low, high)
        ]

    def first_of(self, block: int) -> int:
        """The number of the block's first record among all records."""
        return int(self._first[block])

    def damage_at(self, offset: int) -> str | None:
        """What is wrong with the records near a byte, in whichever file; `None`: nothing.

        Where TensorFlow reads, it reports the byte of a damaged record, but not the file.
        """
        starts, sizes = self.blocks[:, 3], self.blocks[:, 4]
        for block in np.flatnonzero((starts <= offset) & (offset < starts + sizes)):
            try:
                self.read(int(block))
            except ValueError as error:
                return str(error)
        return None

    def fingerprint(self) -> str:
        """A digest of the content, wherever the files are.

        It covers the size of every block, all records of 64 blocks spread evenly over the files (up
        to 16,384 records are all read), and how dynamic records are masked. So it costs the same
        for files of any size, and other records are noticed if a block has another size or is among
        those that are read.

        Raises:
            ValueError: one of these records is damaged.
        """
        digest = hashlib.sha256(self.blocks.astype("<i8").tobytes())
        if self.manifest and self.manifest["masking"] == "dynamic":
            digest.update(json.dumps(_masked_by(self.manifest), sort_keys=True).encode())
        for block in np.unique(
            np.linspace(0, len(self.blocks) - 1, BLOCKS_IN_FINGERPRINT, dtype=int)
        ):
            digest.update(b"".join(self.read(int(block))))
        return digest.hexdigest()

    def name(self, record: int) -> str:
        """The file of a record and its number in that file, for messages."""
        block = int(np.searchsorted(self._first, record, "right")) - 1
        file, first, *_ = map(int, self.blocks[block])
        return f"{self.paths[file]}, record {first + record - int(self._first[block])}"

    def _read(self, file: int, offset: int, size: int) -> bytes:
        if file in self._unpacked:
            return os.pread(self._unpacked[file].fileno(), size, offset)
        with _open(self.paths[file]) as opened:
            opened.seek(offset)
            data = opened.read(size)
        if not self._packed[file]:
            return data
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            records = unpacker.decompress(data, MOST_BLOCK_BYTES)
        except zlib.error as error:
            raise ValueError(
                f"{self.paths[file]} is damaged near byte {offset} ({error}). Make the file again."
            ) from None
        if unpacker.unconsumed_tail:
            raise ValueError(
                f"{self.paths[file]} is damaged: its block at byte {offset} must unpack to at most "
                f"{MOST_BLOCK_BYTES:,} bytes; got more. Make the file again."
            )
        return records

    def _keep(self, number: int, file):
        self._unpacked[number] = file
        weakref.finalize(self, file.close)
        return file

    def _blocks(self, number: int, path: str, made: dict | None) -> list[Block]:
        if made is None:
            return self._scanned_blocks(number, path)
        entry = next(e for e in made["shards"] if e["file"] == os.path.basename(path))
        size = _size(path)
        if size != entry["bytes"]:
            wrong = "truncated" if size < entry["bytes"] else "a different file"
            raise ValueError(
                f"{path} must have {entry['bytes']:,} bytes, as in its manifest; got {size:,} "
                f"({wrong}). Make the records again."
            )
        self._packed[number] = made["settings"]["gzip_compress"]
        each, ends = made["records_per_block"], [*entry["block_offsets"][1:], size]
        return [
            Block(number, n * each, min(each, entry["records"] - n * each), offset, end - offset)
            for n, (offset, end) in enumerate(zip(entry["block_offsets"], ends, strict=True))
        ]

    def _scanned_blocks(self, number: int, path: str) -> list[Block]:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(_open(path))
            start = file.read(HEADER_BYTES)
            if (
                start[:2] == b"\x1f\x8b"
                and len(start) == HEADER_BYTES
                and not payload_length(start)
            ):
                file = self._keep(number, _unpack(path))
                self._packed[number] = True
            is_in_store = is_remote(path) and number not in self._unpacked
            size = _size(path) if is_in_store else os.fstat(file.fileno()).st_size
            if not size:
                return []
            data: _Ahead | mmap.mmap
            if is_in_store:
                data = _Ahead(file)
            else:
                data = stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            cuts, records = _walk(path, data, size)
        return [
            Block(
                number,
                n * RECORDS_PER_BLOCK,
                min(RECORDS_PER_BLOCK, records - n * RECORDS_PER_BLOCK),
                a,
                b - a,
            )
            for n, (a, b) in enumerate(itertools.pairwise(cuts))
        ]


def manifests(patterns: Iterable[str]) -> list[tuple[str, dict]]:
    """The files that a manifest lists, each with it; see `RecordFiles`."""
    known = _Manifests()
    made = [(path, known.of(path)) for path in _matches(patterns)]
    return [(path, found) for path, found in made if found]


class _Manifests:
    """Finds the manifest that lists a file; reads each folder once.

    Attributes:
        all: The manifests found, by their paths.
        unfinished: The folders of builds that were not finished.
    """

    def __init__(self) -> None:
        self.all: dict[str, dict] = {}
        self.unfinished: set[str] = set()
        self._folders: set[str] = set()
        self._found: dict[str, dict] = {}

    def of(self, path: str) -> dict | None:
        folder = os.path.dirname(path)
        if folder not in self._folders:
            self._folders.add(folder)
            inside = os.path.join(glob.escape(folder), "*")
            self.unfinished.update(_glob(f"{inside}{manifest.BUILDING}"))
            for found in _glob(f"{inside}{manifest.ENDING}"):
                with _open(found) as file:
                    made = manifest.parse(found, file.read())
                self.all[found] = made
                for entry in made["shards"]:
                    self._found[os.path.join(folder, entry["file"])] = made
        return self._found.get(path)


def _matches(patterns: Iterable[str]) -> list[str]:
    found = []
    for pattern in patterns:
        others = (manifest.ENDING, manifest.BUILDING)
        if as_path(pattern).is_dir():
            inside = os.path.join(pattern, "*.tfrecord*")
            raise ValueError(
                f"{pattern!r} must be a file or a glob; got a folder. Name the files in it, such "
                f"as {inside!r}."
            )
        matches = sorted(path for path in _glob(pattern) if not path.endswith(others))
        if not matches:
            raise ValueError(
                f"no file matches {pattern!r} (looked in {os.getcwd()}). Check the path."
            )
        found.extend(matches)
    if not found:
        raise ValueError("input_files must name at least one file; got none.")
    return list(dict.fromkeys(found))


def _masked_by(made: dict) -> dict:
    """The entries of a manifest that decide the masks of dynamic records."""
    settings = ("max_seq_length", "masked_lm_prob", "do_whole_word_mask", "max_ngram_size")
    vocabulary = ("size", "special_tokens", "continues_a_word")
    return {key: made["settings"][key] for key in settings} | {
        key: made["vocabulary"][key] for key in vocabulary
    }


def _check_same_make(paths: list[str], made: list[dict | None]) -> None:
    """Refuses files of both forms, or of two vocabularies; without a manifest it is static."""
    known = [(path, m or {"masking": "static"}) for path, m in zip(paths, made, strict=True)]
    for key in ("masking", "vocabulary"):
        having = [(path, m[key]) for path, m in known if key in m]
        for path, value in having:
            if value != having[0][1]:
                raise ValueError(
                    f"{path} and {having[0][0]} must be made with the same settings; got manifests "
                    f"that differ in {key!r}. Read the files of one build only."
                )


class _Ahead:
    """The bytes of an open file in an object store, read from front to back, much at a time."""

    def __init__(self, file):
        self._file, self._start, self._held = file, 0, b""

    def header(self, position: int) -> bytes:
        """The header of a record."""
        end = position + HEADER_BYTES
        if not self._start <= position <= end <= self._start + len(self._held):
            self._file.seek(position)
            self._start, self._held = position, self._file.read(_BYTES_AHEAD)
        return self._held[position - self._start : end - self._start]


def _header(data: "mmap.mmap | _Ahead", position: int) -> bytes:
    if isinstance(data, _Ahead):
        return data.header(position)
    return data[position : position + HEADER_BYTES]


def _walk(path: str, data: "mmap.mmap | _Ahead", size: int) -> tuple[list[int], int]:
    """The offsets of the blocks of an unknown file (and the end), and its number of records."""
    cuts, position, records = [], 0, 0
    while position < size:
        if records % RECORDS_PER_BLOCK == 0:
            cuts.append(position)
        fits = position + HEADER_BYTES <= size
        length = payload_length(_header(data, position)) if fits else 0
        if length is None:
            raise ValueError(
                f"{path}, record {records} must begin with a TFRecord header; got none at byte "
                f"{position:,}. "
                + ("Make the file again: it is damaged." if position else "Is it a TFRecord file?")
            )
        position += HEADER_BYTES + length + FOOTER_BYTES
        if position > size:
            raise ValueError(
                f"{path}, record {records} is truncated: it ends at byte {position:,}, the file at "
                f"byte {size:,}. Make the file again."
            )
        records += 1
    return [*cuts, position], records


def _unpack(path: str):
    try:
        with _open(path) as file, gzip.open(file, "rb") as packed:
            return _temporary_copy(packed)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is a truncated or damaged GZIP file ({error}). Make the file again."
        ) from None


def _temporary_copy(source):
    copy = tempfile.TemporaryFile()  # noqa: SIM115 (stays open as long as its reader)
    try:
        shutil.copyfileobj(source, copy, 1 << 20)
        copy.flush()
    except BaseException:
        copy.close()
        raise
    return copy


def _glob(pattern: str) -> list[str]:
    if not is_remote(pattern):
        return local_paths.matches(pattern)
    with remote_files(pattern) as gfile:
        return gfile.glob(str(as_path(pattern)))


def _open(path: str):
    return as_path(path).open("rb")


def _size(path: str) -> int:
    if not is_remote(path):
        return os.path.getsize(path)
    with remote_files(path) as gfile:
        return gfile.stat(path).length
