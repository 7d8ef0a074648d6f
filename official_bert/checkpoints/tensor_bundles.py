"""TensorFlow checkpoints ("tensor bundles"), read and written without TensorFlow.

`lamb_tf.bundle_index` reads and checks `PREFIX.index`, and describes the format. Values are read on
demand and compared with their checksums; they are written one tensor at a time.
"""

import functools
import math
import os
import struct
from collections.abc import Mapping

import numpy as np

from lamb_tf import bundle_index
from lamb_tf.bundle_index import DTYPES
from official_bert.checkpoints.source import Tensor
from official_bert.system.places import AnyPath, RemotePath, as_path, is_remote
from official_bert.system.whole_files import start_writing_out
from official_bert.system.wire_format import delimited, masked_crc, number, varint

_NUMBERS = {dtype: number for number, dtype in reversed(DTYPES.items())}
_UNCOMPRESSED = b"\0"


def read(prefix: AnyPath) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name; strings have the type `object`.

    Reading the values of one raises a ValueError if they do not match their checksum.

    Args:
        prefix: Of the checkpoint; addresses such as `gs://bucket/a.ckpt`, too.

    Raises:
        ValueError: the index is damaged, or claims more than its files hold.
        OSError: it cannot be read.
    """
    entries = bundle_index.entries(str(prefix), lambda file: as_path(file).open("rb"), masked_crc)
    return {
        name: Tensor(entry.shape, entry.dtype, functools.partial(_values, entry))
        for name, entry in entries.items()
    }


def _values(entry):
    data = _bytes(entry)
    name = os.path.basename(entry.file)
    if len(data) < entry.size:
        raise ValueError(f"{name} is too short")
    if entry.dtype == object:
        values = bundle_index.strings(data.tobytes(), math.prod(entry.shape))
        if _strings(values)[1] != entry.crc:
            raise ValueError(f"strings in {name} do not match their checksum")
        return np.array([*values, None], object)[:-1].reshape(entry.shape)
    if masked_crc(data) != entry.crc:
        raise ValueError(f"values in {name} do not match their checksum")
    return data.view(entry.dtype).reshape(entry.shape)


def _bytes(entry):
    if is_remote(entry.file):
        with as_path(entry.file).open("rb") as file:
            file.seek(entry.offset)
            return np.frombuffer(file.read(entry.size), np.uint8)
    return np.fromfile(entry.file, np.uint8, entry.size, offset=entry.offset)


def write(prefix: AnyPath, tensors: Mapping[str, np.ndarray | Tensor]) -> None:
    """Writes `PREFIX.data-00000-of-00001` and `PREFIX.index`, with one tensor at a time in memory.

    Args:
        prefix: Of the checkpoint.
        tensors: Arrays, or `Tensor`s that are read when it is their turn, by name.

    Raises:
        OSError: a file cannot be written.
        ValueError: an array has a type that such files do not hold.
    """
    header = number(1, 1) + delimited(3, number(1, 1))  # one data file; version 1; little-endian
    entries, offset = {b"": header}, 0
    path = as_path(f"{prefix}.data-00000-of-00001")
    with path.open("wb") as file:
        for name in sorted(tensors, key=str.encode):
            tensor = tensors[name]
            array = np.asarray(tensor.read() if isinstance(tensor, Tensor) else tensor)
            if array.dtype not in _NUMBERS:
                raise ValueError(
                    f"{name} must have a type that checkpoints can hold; got {array.dtype}."
                )
            if array.dtype == object:
                data, crc = _strings([*array.flat])
            else:
                data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                crc = masked_crc(data)
            file.write(data.tobytes() if isinstance(path, RemotePath) else data.data)
            entries[name.encode()] = _entry(array, offset, len(data), crc)
            offset += len(data)
            if not isinstance(path, RemotePath):
                start_writing_out(path)
    with as_path(f"{prefix}.index").open("wb") as file:
        file.write(_table(entries))


def _strings(values):
    """The bytes of a tensor of strings, and their checksum, which is of unpacked lengths."""
    sizes = [struct.pack("<I", len(value)) for value in values]
    crc_of_lengths = struct.pack("<I", masked_crc(b"".join(sizes)))
    lengths = b"".join(varint(len(value)) for value in values)
    return (
        np.frombuffer(b"".join([lengths, crc_of_lengths, *values]), np.uint8),
        masked_crc(b"".join([*sizes, crc_of_lengths, *values])),
    )


def _entry(array, offset, size, crc):
    sizes = b"".join(delimited(2, number(1, size)) for size in array.shape)
    where = number(4, offset) + number(5, size)
    crc = varint(6 << 3 | 5) + struct.pack("<I", crc)
    return number(1, _NUMBERS[array.dtype]) + delimited(2, sizes) + where + crc


def _table(entries):
    data = _block(entries)
    index = _block({max(entries): varint(0) + varint(len(data))})
    nothing, after = _block({}), len(data) + bundle_index.TRAILER_BYTES
    handles = varint(after) + varint(len(nothing))
    after += len(nothing) + bundle_index.TRAILER_BYTES
    handles += varint(after) + varint(len(index))
    blocks = b"".join(block + _trailer(block) for block in (data, nothing, index))
    padded = handles.ljust(bundle_index.FOOTER_BYTES - len(bundle_index.MAGIC), b"\0")
    return blocks + padded + bundle_index.MAGIC


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
