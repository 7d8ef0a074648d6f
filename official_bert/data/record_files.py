"""Reads record files block by block, and reports damage.

The manifest of our own files has the offset of every block of records. Files of other tools are
scanned once, header by header; if compressed, they are unpacked into a temporary file first.
"""

import contextlib
import glob
import gzip
import hashlib
import itertools
import json
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
_MASKED_BY = (  # the settings of the manifest and of its vocabulary that decide dynamic masks
    ("max_seq_length", "masked_lm_prob", "do_whole_word_mask", "max_ngram_size"),
    ("size", "special_tokens", "continues_a_word"),
)
MOST_BLOCK_BYTES = 1 << 26  # of a block unpacked in memory: 256 kB per record


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
        manifest: The first file's that has one; None if another tool made them all.
        unlisted: The files that no manifest lists.
        blocks: (blocks, 5), runs of neighbouring records in one file, each read with one request:
            file, first record, records, offset, bytes.
        num_records: Number of records.

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
        made, manifests, unfinished = _manifests_of(self.paths)
        self.manifest = next(filter(None, made), None)
        self.unlisted = {path for path, m in zip(self.paths, made, strict=True) if not m}
        manifest.require_whole(patterns, self.paths, manifests, unfinished)
        _check_same_make(self.paths, made)
        found: list[tuple[int, ...]] = []
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
            # Where the record's checksum is right, the header's need not be computed.
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
        """The files that are compressed with GZIP."""
        return list(itertools.compress(self.paths, self._packed))

    def runs(self, start: int, stop: int) -> list[RecordRange]:
        """The records `start` … `stop` of all, block by block."""
        low = int(np.searchsorted(self._first, start, "right")) - 1
        high = int(np.searchsorted(self._first, stop, "left"))
        ends = itertools.pairwise(self._first[low : high + 1].tolist())
        return [
            RecordRange(low + n, max(start - first, 0), min(stop, end) - first)
            for n, (first, end) in enumerate(ends)
        ]

    def first_of(self, block: int) -> int:
        """The number of the block's first record among all records."""
        return int(self._first[block])

    def damage_at(self, offset: int) -> str | None:
        """The error of a record near this byte of any file: TensorFlow reports only the byte."""
        starts, sizes = self.blocks[:, 3], self.blocks[:, 4]
        for block in np.flatnonzero((starts <= offset) & (offset < starts + sizes)):
            try:
                self.read(int(block))
            except ValueError as error:
                return str(error)
        return None

    def fingerprint(self) -> str:
        """A digest of the content, independent of the paths, at the same cost for any size.

        It covers the size of every block, all records of 64 blocks spread evenly over the files
        (with up to 16,384 records all of them), and the settings of dynamic masking.

        Raises:
            ValueError: one of these records is damaged.
        """
        digest = hashlib.sha256(self.blocks.astype("<i8").tobytes())
        if self.manifest and self.manifest["masking"] == "dynamic":
            settings, vocabulary = self.manifest["settings"], self.manifest["vocabulary"]
            masked_by = {key: settings[key] for key in _MASKED_BY[0]}
            masked_by |= {key: vocabulary[key] for key in _MASKED_BY[1]}
            digest.update(json.dumps(masked_by, sort_keys=True).encode())
        for block in np.unique(
            np.linspace(0, len(self.blocks) - 1, BLOCKS_IN_FINGERPRINT, dtype=int)
        ):
            digest.update(b"".join(self.read(int(block))))
        return digest.hexdigest()

    def name(self, record: int) -> str:
        """A record's file and its number in that file, for messages."""
        block = int(np.searchsorted(self._first, record, "right")) - 1
        file, first, *_ = map(int, self.blocks[block])
        return f"{self.paths[file]}, record {first + record - int(self._first[block])}"

    def _read(self, file: int, offset: int, size: int) -> bytes:
        if file in self._unpacked:
            return os.pread(self._unpacked[file].fileno(), size, offset)
        with as_path(self.paths[file]).open("rb") as opened:
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

    def _blocks(self, number: int, path: str, made: dict | None) -> list[tuple[int, ...]]:
        if made is None:
            return self._scanned_blocks(number, path)
        entry = next(e for e in made["shards"] if e["file"] == os.path.basename(path))
        size = as_path(path).stat().st_size
        if size != entry["bytes"]:
            wrong = "truncated" if size < entry["bytes"] else "a different file"
            raise ValueError(
                f"{path} must have {entry['bytes']:,} bytes, as in its manifest; got {size:,} "
                f"({wrong}). Make the records again."
            )
        self._packed[number] = made["settings"]["gzip_compress"]
        cuts = [*entry["block_offsets"], size]
        return _blocks(number, cuts, entry["records"], made["records_per_block"])

    def _scanned_blocks(self, number: int, path: str) -> list[tuple[int, ...]]:
        with as_path(path).open("rb") as file:
            start = file.read(HEADER_BYTES)
            is_whole = len(start) == HEADER_BYTES
            if start[:2] == b"\x1f\x8b" and is_whole and not payload_length(start):
                file = self._unpacked[number] = _unpack(path)
                weakref.finalize(self, file.close)
                self._packed[number] = True
            cuts, records = _walk(path, file)
        return _blocks(number, cuts, records, RECORDS_PER_BLOCK)


def _blocks(file: int, cuts: list[int], records: int, each: int) -> list[tuple[int, ...]]:
    """The blocks of a file, cut at these offsets (the last is its end)."""
    return [
        (file, n * each, min(each, records - n * each), start, end - start)
        for n, (start, end) in enumerate(itertools.pairwise(cuts))
    ]


def manifests(patterns: Iterable[str]) -> list[tuple[str, dict]]:
    """[(file, its manifest)] of the files that a manifest lists."""
    paths = _matches(patterns)
    return [(path, made) for path, made in zip(paths, _manifests_of(paths)[0]) if made]


def _manifests_of(paths: list[str]) -> tuple[list[dict | None], dict[str, dict], set[str]]:
    """The manifest that lists each file; all in their folders; folders of unfinished builds."""
    manifests: dict[str, dict] = {}
    listing: dict[str, dict] = {}
    unfinished: set[str] = set()
    for folder in dict.fromkeys(map(os.path.dirname, paths)):
        inside = os.path.join(glob.escape(folder), "*")
        unfinished.update(_glob(f"{inside}{manifest.BUILDING}"))
        for path in _glob(f"{inside}{manifest.ENDING}"):
            made = manifests[path] = manifest.parse(path, as_path(path).read_bytes())
            listing |= {os.path.join(folder, entry["file"]): made for entry in made["shards"]}
    return list(map(listing.get, paths)), manifests, unfinished


def _matches(patterns: Iterable[str]) -> list[str]:
    found, others = [], (manifest.ENDING, manifest.BUILDING)
    for pattern in patterns:
        if as_path(pattern).is_dir():
            inside = os.path.join(pattern, "*.tfrecord*")
            raise ValueError(
                f"{pattern!r} must be a file or a glob; got a folder. Name the files in it, such "
                f"as {inside!r}."
            )
        matches = sorted(path for path in _glob(pattern) if not path.endswith(others))
        if not matches:
            raise ValueError(
                f"{pattern!r} must match a file; got none (looked in {os.getcwd()}). Check the "
                "path."
            )
        found.extend(matches)
    if not found:
        raise ValueError("input_files must name at least one file; got none.")
    return list(dict.fromkeys(found))


def _check_same_make(paths: list[str], made: list[dict | None]) -> None:
    """Refuses files of several kinds, or two vocabularies.

    Without a manifest, a file next to others is taken for static records of documents: a reader
    learns the features of packed rows from the first file.
    """
    unknown = {"masking": "static", "row_filling": "documents"}
    known = [
        (path, m | {"row_filling": manifest.row_filling(m)} if m else unknown)
        for path, m in zip(paths, made, strict=True)
    ]
    for key in ("masking", "row_filling", "vocabulary"):
        having = [(path, m[key]) for path, m in known if key in m]
        for path, value in having:
            if value != having[0][1]:
                unlisted = next((p for p, m in zip(paths, made, strict=True) if not m), None)
                if unlisted in (path, having[0][0]):
                    listed = having[0][0] if unlisted == path else path
                    raise ValueError(
                        f"{unlisted} must be listed in a manifest next to it, as {listed} is; got "
                        "none that lists it. Put the .manifest.json of its build next to it, or "
                        "read the files of one build only."
                    )
                raise ValueError(
                    f"{path} and {having[0][0]} must be made with the same settings; got manifests "
                    f"that differ in {key!r}. Read the files of one build only."
                )


def _walk(path: str, file) -> tuple[list[int], int]:
    """The offsets of the blocks of a file (and its end), and its number of records."""
    file.seek(0, os.SEEK_END)
    size, cuts, position, records = file.tell(), [], 0, 0
    start, ahead = 0, b""  # read in large pieces, for object stores
    while position < size:
        if records % RECORDS_PER_BLOCK == 0:
            cuts.append(position)
        end = position + HEADER_BYTES
        if end > start + len(ahead):
            file.seek(position)
            start, ahead = position, file.read(_BYTES_AHEAD)
        length = payload_length(ahead, position - start) if end <= size else 0
        if length is None:
            raise ValueError(
                f"{path}, record {records} must begin with a TFRecord header; got none at byte "
                f"{position:,}. "
                + ("Make the file again: it is damaged." if position else "Is it a TFRecord file?")
            )
        position = end + length + FOOTER_BYTES
        if position > size:
            raise ValueError(
                f"{path}, record {records} is truncated: it ends at byte {position:,}, the file at "
                f"byte {size:,}. Make the file again."
            )
        records += 1
    return [*cuts, position], records


def _unpack(path: str):
    with contextlib.ExitStack() as stack:
        copy = stack.enter_context(tempfile.TemporaryFile())
        try:
            with as_path(path).open("rb") as file, gzip.open(file, "rb") as packed:
                shutil.copyfileobj(packed, copy, 1 << 20)
            copy.flush()
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(
                f"{path} is a truncated or damaged GZIP file ({error}). Make the file again."
            ) from None
        stack.pop_all()  # stays open as long as its reader
    return copy


def _glob(pattern: str) -> list[str]:
    if not is_remote(pattern):
        return local_paths.matches(pattern)
    with remote_files(pattern) as gfile:
        return gfile.glob(str(as_path(pattern)))
