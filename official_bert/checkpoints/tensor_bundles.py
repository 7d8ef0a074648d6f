"""TensorFlow's checkpoints, read and written without TensorFlow, for an engine that has none.

A checkpoint ("tensor bundle") is two kinds of files (`tensorflow/core/util/tensor_bundle` describes
them, LevelDB's documentation the tables):

    PREFIX.data-00000-of-00001   the tensors' bytes, one after another
    PREFIX.index                 a sorted table: "" → a header, a tensor's name → its entry

    table   = block … | index of blocks | footer: where the index is, magic number
    block   = (shared, unshared, length, end of key, value) … | restarts | their number
    entry   = type, shape, number of the data file, offset, size, checksum
"""

import math
import os
import struct
from collections.abc import Mapping
from typing import NamedTuple

import ml_dtypes
import numpy as np

from lamb_tf import bundle_index
from official_bert.system import wire_format
from official_bert.system.checksums import masked_crc
from official_bert.system.places import AnyPath, is_remote, place
from official_bert.system.wire_format import delimited, number, varint

_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_FOOTER_BYTES, _TRAILER_BYTES = 48, 5
_UNCOMPRESSED = b"\0"
# The numbers of the types in `tensorflow/core/framework/types.proto`.
_DTYPES = {
    1: np.dtype(np.float32),
    2: np.dtype(np.float64),
    3: np.dtype(np.int32),
    4: np.dtype(np.uint8),
    5: np.dtype(np.int16),
    6: np.dtype(np.int8),
    9: np.dtype(np.int64),
    10: np.dtype(np.bool_),
    14: np.dtype(ml_dtypes.bfloat16),
    17: np.dtype(np.uint16),
    19: np.dtype(np.float16),
    22: np.dtype(np.uint32),
    23: np.dtype(np.uint64),
}
_NUMBERS = {dtype: place for place, dtype in _DTYPES.items()}


class Entry(NamedTuple):
    """Where a tensor is, and what."""

    dtype: np.dtype
    shape: tuple[int, ...]
    file: str
    offset: int
    size: int
    crc: int


def write(prefix: AnyPath, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes `PREFIX.data-00000-of-00001` and `PREFIX.index`.

    Args:
        prefix: Of the checkpoint.
        tensors: Arrays of numbers by name.

    Raises:
        OSError: a file cannot be written.
        ValueError: an array has a type that such files do not hold.
    """
    entries, offset = {b"": _header()}, 0
    path = place(f"{prefix}.data-00000-of-00001")
    with path.open("wb") as file:
        for name in sorted(tensors, key=str.encode):
            array = np.asarray(tensors[name])
            if array.dtype not in _NUMBERS:
                raise ValueError(
                    f"{name} must have a type that checkpoints can hold; got {array.dtype}."
                )
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            entries[name.encode()] = _entry(array, offset, data)
            file.write(data.tobytes() if is_remote(path) else data.data)
            offset += len(data)
    with place(f"{prefix}.index").open("wb") as file:
        file.write(_table(entries))


def entries(prefix: AnyPath) -> dict[str, Entry]:
    """The tensors of a checkpoint by name, without their values.

    Raises:
        ValueError: the index is damaged, or holds what is not read here: texts, or tensors that are
            saved in slices.
        OSError: it cannot be read.
    """
    table = place(f"{prefix}.index").read_bytes()
    try:
        (_, header), *found = bundle_index.table(table, masked_crc)
        shards = int(dict(wire_format.fields(header)).get(1, 1))
        return {key.decode(): _read_entry(value, prefix, shards) for key, value in found}
    except (IndexError, struct.error, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"the index is damaged ({error})") from None


def read(entry: Entry) -> np.ndarray:
    """The values of a tensor.

    Raises:
        ValueError: the file is too short, or the values do not match their checksum.
        OSError: it cannot be read.
    """
    if math.prod(entry.shape) * entry.dtype.itemsize != entry.size:
        raise ValueError(f"{entry.size:,} bytes cannot be {entry.dtype} of shape {entry.shape}")
    values = _bytes(entry)
    if len(values) < entry.size:
        raise ValueError(f"{os.path.basename(entry.file)} is too short")
    if masked_crc(values) != entry.crc:
        raise ValueError(f"values in {os.path.basename(entry.file)} do not match their checksum")
    return values.view(entry.dtype).reshape(entry.shape)


def _bytes(entry):
    if is_remote(entry.file):
        with place(entry.file).open("rb") as file:
            file.seek(entry.offset)
            return np.frombuffer(file.read(entry.size), np.uint8)
    if entry.offset + entry.size > os.path.getsize(entry.file):
        return np.zeros(0, np.uint8)  # and no memory is asked for
    return np.fromfile(entry.file, np.uint8, entry.size, offset=entry.offset)


def _header():
    return number(1, 1) + delimited(3, number(1, 1))  # one data file; version 1; little-endian


def _entry(array, offset, data):
    sizes = b"".join(delimited(2, number(1, size)) for size in array.shape)
    where = number(4, offset) + number(5, len(data))
    crc = varint(6 << 3 | 5) + struct.pack("<I", masked_crc(data))
    return number(1, _NUMBERS[array.dtype]) + delimited(2, sizes) + where + crc


def _read_entry(value, prefix, shards):
    found, sizes = {}, []
    for field, content in wire_format.fields(value):
        if field == 2:
            dims = [dim for place, dim in wire_format.fields(content) if place == 2]
            sizes = [int(dict(wire_format.fields(dim)).get(1, 0)) for dim in dims]
        found[field] = content
    if 7 in found:
        raise ValueError("a tensor is saved in slices, which only TensorFlow reads")
    if found.get(1) not in _DTYPES:
        raise ValueError(f"tensors of type number {found.get(1)} need TensorFlow to be read")
    return Entry(
        dtype=_DTYPES[found[1]],
        shape=tuple(sizes),
        file=f"{prefix}.data-{found.get(3, 0):05}-of-{shards:05}",
        offset=int(found.get(4, 0)),
        size=int(found.get(5, 0)),
        crc=struct.unpack("<I", found[6])[0] if 6 in found else 0,
    )


def _table(entries):
    data = _block(entries)
    index = _block({max(entries): varint(0) + varint(len(data))})
    nothing, after = _block({}), len(data) + _TRAILER_BYTES
    handles = varint(after) + varint(len(nothing))
    after += len(nothing) + _TRAILER_BYTES
    handles += varint(after) + varint(len(index))
    blocks = b"".join(block + _trailer(block) for block in (data, nothing, index))
    return blocks + handles.ljust(_FOOTER_BYTES - len(_MAGIC), b"\0") + _MAGIC


def _block(entries):
    """Keys are written out: each entry could be the first that is read."""
    out, restarts = bytearray(), []
    for key, value in entries.items():
        restarts.append(len(out))
        out += varint(0) + varint(len(key)) + varint(len(value)) + key + value
    restarts = restarts or [0]
    return bytes(out) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def _trailer(block):
    return _UNCOMPRESSED + struct.pack("<I", masked_crc(block, _UNCOMPRESSED))
