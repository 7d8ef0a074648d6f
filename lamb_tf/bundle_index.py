"""Reads and checks the index of a TensorFlow checkpoint ("tensor bundle"), without TensorFlow.

TensorFlow's own reader ends the process if an index is damaged with correct checksums, and
allocates any memory that a shape claims.

    PREFIX.index                a table: "" → BundleHeaderProto, a tensor's name → BundleEntryProto
    PREFIX.data-00000-of-00001  the bytes of all tensors, one after another

    table   = block … | index of blocks | footer: handles of two blocks, magic number
    block   = (shared, unshared, length, end of key, value) … | restarts | their number
    entry   = type, shape, number of the data file, offset, size, checksum

`tensorflow/core/util/tensor_bundle` describes the files, LevelDB's documentation the tables.
"""

import functools
import itertools
import math
import os
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
FOOTER_BYTES = 48  # two block handles, padding and the magic number
TRAILER_BYTES = 5  # after each block: its compression and its checksum
_MAX_KEY_BYTES = 64 << 20  # of all names together; a short entry may repeat a long name
_MAX_AXES = 254  # TensorFlow's own bound
# As numbered in `tensorflow/core/framework/types.proto`. Among types with the same bytes, such as
# quantized integers, the first is written.
DTYPES = {
    1: np.dtype(np.float32),
    2: np.dtype(np.float64),
    3: np.dtype(np.int32),
    4: np.dtype(np.uint8),
    5: np.dtype(np.int16),
    6: np.dtype(np.int8),
    7: np.dtype(object),  # strings
    8: np.dtype(np.complex64),
    9: np.dtype(np.int64),
    10: np.dtype(np.bool_),
    14: np.dtype(ml_dtypes.bfloat16),
    17: np.dtype(np.uint16),
    18: np.dtype(np.complex128),
    19: np.dtype(np.float16),
    22: np.dtype(np.uint32),
    23: np.dtype(np.uint64),
    24: np.dtype(ml_dtypes.float8_e5m2),
    25: np.dtype(ml_dtypes.float8_e4m3fn),
    11: np.dtype(np.int8),
    12: np.dtype(np.uint8),
    13: np.dtype(np.int32),
    15: np.dtype(np.int16),
    16: np.dtype(np.uint16),
}
_OBJECTS = {20: "resource", 21: "variant"}
_open_local: Callable[[str], Any] = functools.partial(open, mode="rb")


class Entry(NamedTuple):
    """A tensor's type (`object` for strings), shape, place, and masked crc32c."""

    dtype: np.dtype
    shape: tuple[int, ...]
    file: str
    offset: int
    size: int
    crc: int


def entries(
    prefix: str | os.PathLike,
    open_file: Callable[[str], Any] = _open_local,
    checksum: Callable[[bytes], int] | None = None,
) -> dict[str, Entry]:
    """The tensors of a checkpoint by name, each within its file and in the size of its shape.

    Args:
        prefix: The checkpoint's files are `PREFIX.index` and `PREFIX.data-…`.
        open_file: Opens a file for reading bytes; by default one of this machine.
        checksum: Masked crc32c of some bytes; without it the checksums are not compared.

    Raises:
        ValueError: the index is damaged, claims more than the files hold, or has variables in
            slices (of partitioners and parameter servers) or of no plain type.
        OSError: a file cannot be read.
    """
    prefix = os.fspath(prefix)
    with open_file(f"{prefix}.index") as file:
        index = file.read()
    try:
        held = dict(table(index, checksum))
        files = _data_files(prefix, held.pop(b"", None), open_file)
        return dict(_entry(key, value, files, open_file) for key, value in held.items())
    except (IndexError, struct.error) as error:
        raise ValueError(f"{prefix}.index ends within an entry ({error})") from None


def strings(data: bytes, count: int) -> list[bytes]:
    """The strings of a tensor from its bytes: their lengths, a checksum of these, the strings."""
    found = [*_string_lengths(data, count)]
    first = found[-1][1] + 4 if found else 0
    places = itertools.accumulate((length for length, _ in found), initial=first)
    return [data[start:end] for start, end in itertools.pairwise(places)]


def _string_lengths(data, count):
    """(length, place of the next one) of each string."""
    at = 0
    for _ in range(count):
        length, at = _varint(data, at)
        yield length, at


# The table


def table(
    index: bytes, checksum: Callable[[bytes], int] | None = None
) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of all entries in the bytes of `PREFIX.index`; `checksum` as of `entries`.

    Raises:
        ValueError: the index is not a table, damaged or compressed.
        IndexError, struct.error: it ends within an entry.
    """
    if index[-len(MAGIC) :] != MAGIC or len(index) < FOOTER_BYTES:
        raise ValueError("its index is not a table of TensorFlow, or is cut")
    footer = index[-FOOTER_BYTES:]
    of_names, at = _handle(footer, 0)
    if checksum:  # of a block that is not read otherwise
        list(_block(index, of_names, checksum))
    last, held = None, 0
    for _, handle in _block(index, _handle(footer, at)[0], checksum):
        for key, value in _block(index, _handle(handle, 0)[0], checksum):
            held += len(key)
            if (last is not None and key <= last) or held > _MAX_KEY_BYTES:
                raise ValueError("the names in its index are not in order, or too long")
            last = key
            yield key, value


def _varint(data, at):
    """(number, place after it): 7 bits per byte, the lowest first."""
    number = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise ValueError("a number of its index has over 10 bytes")


def _handle(data, at):
    """((offset, size) of a block, place after it)."""
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return (offset, size), at


def _block(index, handle, checksum):
    """(key, value) of the entries of one block."""
    offset, size = handle
    end = offset + size
    if size < 4 or end + TRAILER_BYTES > len(index) - FOOTER_BYTES:
        raise ValueError(f"a block of its index claims {size:,} bytes at {offset:,}")
    if index[end] != 0:
        raise ValueError(f"its index is compressed (kind {index[end]}), which is not supported")
    stated = int.from_bytes(index[end + 1 : end + TRAILER_BYTES], "little")
    if checksum and checksum(index[offset : end + 1]) != stated:
        raise ValueError("its index does not match its checksum")
    (restarts,) = struct.unpack("<I", index[end - 4 : end])
    entries_end = size - 4 * (1 + restarts)
    if entries_end < 0 or restarts == 0:
        raise ValueError(f"a block of its index claims {restarts:,} restarts")
    block = index[offset : offset + entries_end]
    starts = struct.unpack(f"<{restarts}I", index[offset + entries_end : end - 4])
    at, key, begins = 0, b"", {0}
    while at < len(block):
        here = at
        shared, at = _varint(block, at)
        rest, at = _varint(block, at)
        length, at = _varint(block, at)
        if shared > len(key) or at + rest + length > len(block):
            raise ValueError("an entry of its index claims more than its block holds")
        if shared == 0:
            begins.add(here)
        key = key[:shared] + block[at : at + rest]
        at += rest + length
        yield key, block[at - length : at]
    if not begins.issuperset(starts):
        raise ValueError("a block of its index is searched from where no key begins")


# Entries


def _data_files(prefix, header, open_file):
    """[(data file, its size in bytes)]."""
    if header is None:
        raise ValueError("its index lacks the header")
    numbers, _ = _message("the header", header, {1, 2})
    shards = numbers.get(1, 0)
    if not 1 <= shards <= 99_999:
        raise ValueError(f"its index claims {shards:,} data files")
    if numbers.get(2):
        raise ValueError("it is big-endian, which is not supported")
    files = []
    for number in range(shards):
        name = f"{prefix}.data-{number:05d}-of-{shards:05d}"
        with open_file(name) as file:
            file.seek(0, os.SEEK_END)
            files.append((name, file.tell()))
    return files


def _entry(key, value, files, open_file):
    """The name of a tensor, and an `Entry` that its data file holds."""
    try:
        full_name = key.decode()
    except UnicodeDecodeError:
        raise ValueError(f"the name {key[:99]!r} in its index is damaged") from None
    name = repr(full_name[:99])
    numbers, rest = _message(name, value, {1, 3, 4, 5})
    if 7 in rest:
        raise ValueError(
            f"{name} is saved in slices, as partitioners and parameter servers do it; load it with "
            "TensorFlow, and save it as a whole"
        )
    kind, shard, offset, size = (numbers.get(field, 0) for field in (1, 3, 4, 5))
    if not 0 <= shard < len(files):
        raise ValueError(f"{name} is in data file {shard} of {len(files)}")
    file, held = files[shard]
    if min(offset, size) < 0 or offset + size > held:
        raise ValueError(f"{name} has {size:,} bytes at {offset:,} of a file of {held:,} bytes")
    shape = _shape(name, rest.get(2, ()))
    count = math.prod(shape)
    if kind in _OBJECTS:
        raise ValueError(f"{name} is of type {_OBJECTS[kind]}; save the checkpoint without it")
    if kind not in DTYPES:
        raise ValueError(f"{name} has the type {kind}, which is not known")
    crc = rest.get(6, [bytes(4)])[-1]
    found = Entry(DTYPES[kind], shape, file, offset, size, int.from_bytes(crc, "little"))
    if found.dtype == object:
        _check_strings(name, found, count, open_file)
    elif (needed := count * found.dtype.itemsize) != size:
        raise ValueError(f"{name} has {size:,} bytes; its shape {[*shape]} needs {needed:,}")
    return full_name, found


def _message(name, data, numbers):
    """({field: signed number} of the fields `numbers`, {field: values} of the others)."""
    found, rest = {}, {}
    try:
        for field, value in _fields(data):
            if field in numbers:
                if not isinstance(value, int):
                    raise ValueError(f"its field {field} is not a number")
                value &= 2**64 - 1
                found[field] = value - 2**64 * (value >> 63)
            elif not isinstance(value, int):
                rest.setdefault(field, []).append(value)
    except ValueError as error:
        raise ValueError(f"{name} in its index is damaged ({error})") from None
    return found, rest


def _fields(data):
    """(number, value) of each field of a protocol buffer; values are unsigned numbers or bytes."""
    at, end = 0, len(data)
    while at < end:
        try:
            tag, at = _varint(data, at)
            kind = tag & 7
            length = {1: 8, 5: 4}.get(kind)
            if kind in (0, 2):
                length, at = _varint(data, at)
        except IndexError:
            raise ValueError("it ends within a field") from None
        if kind == 0:
            yield tag >> 3, length
            continue
        if length is None or at + length > end:
            raise ValueError("a field is longer than it, or of an unknown kind")
        yield tag >> 3, data[at : at + length]
        at += length


def _shape(name, messages):
    """The axes; a repeated message adds further ones, as protocol buffers have it."""
    shape, is_known = [], True
    for message in messages:
        unknown_rank, rest = _message(name, message, {3})
        shape += [_message(name, axis, {1})[0].get(1, 0) for axis in rest.get(2, ())]
        is_known &= not unknown_rank.get(3)
    largest = math.prod(max(size, 1) for size in shape)  # TensorFlow multiplies from the left
    if not is_known or min(shape, default=0) < 0 or len(shape) > _MAX_AXES or largest >= 2**63:
        raise ValueError(f"{name} has the shape {shape[:9]}")
    return tuple(shape)


def _check_strings(name, entry, count, open_file):
    if count > entry.size:
        raise ValueError(f"{name} claims {count:,} strings in {entry.size:,} bytes")
    with open_file(entry.file) as file:
        file.seek(entry.offset)
        data = file.read(entry.size)
    at = total = 0
    try:
        for length, after in _string_lengths(data, count):
            total, at = total + length, after
    except (IndexError, ValueError):
        message = f"the lengths of the strings of {name} are damaged in {entry.file}"
        raise ValueError(message) from None
    if count and at + 4 + total != entry.size:
        raise ValueError(f"{name} claims strings of {total:,} bytes in {entry.size:,}")
