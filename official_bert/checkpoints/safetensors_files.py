"""Reads and writes safetensors files one tensor at a time, in constant memory.

The format: the length of a header as 8 bytes, the header (JSON: name → type, shape and the range of
bytes after it), the bytes of all tensors, little-endian, in C order. Nothing in a file is trusted:
its ranges must fill it without a gap, so that every byte belongs to one tensor.
"""

import json
import math
import os
import struct
from collections.abc import Iterable

import ml_dtypes
import numpy as np

from official_bert.checkpoints.source import Tensor
from official_bert.system import settings
from official_bert.system.whole_files import start_writing_out

DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_MAX_HEADER = 100_000_000  # bytes, the limit of the format


def read(path: str | os.PathLike) -> dict[str, Tensor]:
    """The tensors of a file by name; their bytes are read on demand.

    Raises:
        ValueError: it is not such a file, or it is incomplete.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(_MAX_HEADER, size - 8):
            raise _damaged(path, f"a header of {length:,} bytes in a file of {size:,}")
        header = file.read(length)
    try:
        entries = settings.strict_json(header)
        entries.pop("__metadata__", None)
        tensors = {name: _entry(path, 8 + length, entry) for name, entry in entries.items()}
        ranges = sorted(tuple(entry["data_offsets"]) for entry in entries.values())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"its header is damaged: {error}") from None
    end = 0
    for first, last in ranges:
        if first != end:
            gap = f"bytes {min(first, end):,} to {max(first, end):,}"
            raise _damaged(path, f"{gap} belong to no tensor, or to more than one")
        end = last
    if end != size - 8 - length:
        raise _damaged(path, f"{end:,} bytes of tensors expected, {size - 8 - length:,} found")
    return tensors


def write(path: str | os.PathLike, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Writes tensors in order, with one at a time in memory; marked as PyTorch's layout.

    Raises:
        ValueError: the format does not have the type of a tensor.
        OSError: it cannot be written.
    """
    tensors = list(tensors)
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors:
        if tensor.dtype not in _NAMES:
            raise ValueError(
                f"{name} must have a type that safetensors supports; got {tensor.dtype}."
            )
        first, end = end, end + math.prod(tensor.shape) * tensor.dtype.itemsize
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [first, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors are aligned
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, tensor in tensors:
            file.write(np.ascontiguousarray(tensor.read()).reshape(-1).view(np.uint8).data)
            start_writing_out(path)


def _entry(path, start, entry) -> Tensor:
    dtype, shape, (first, last) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (*shape, first, last)):
        raise ValueError(f"{entry} has a number that is negative or not whole")
    if last - first != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{entry} has the wrong number of bytes")

    def read_bytes():
        array = np.empty(shape, dtype)
        with open(path, "rb") as file:
            file.seek(start + first)
            if file.readinto(array.reshape(-1).view(np.uint8)) != array.nbytes:
                raise _damaged(path, "it was truncated while it was read")
        return array

    return Tensor(tuple(shape), dtype, read_bytes)


def _damaged(path, problem) -> ValueError:
    return ValueError(f"{path} is not a complete safetensors file: {problem}.")
