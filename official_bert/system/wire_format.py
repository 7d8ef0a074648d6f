"""Protocol buffers' wire format and TensorFlow's checksum, without either library.

`lamb_tf.bundle_index` has its own reader of the same format: importing `lamb_tf` imports Keras,
which takes seconds and memory that the processes that make records do not need.
"""

from collections.abc import Iterator

import google_crc32c
import numpy as np

_VARINT, _EIGHT_BYTES, DELIMITED, _FOUR_BYTES = 0, 1, 2, 5
_MASK_DELTA = 0xA282EAD8
_MAX_SHIFT = 63  # of the last of a varint's ten bytes


def varint(value: int) -> bytes:
    """A variable-length integer: seven bits per byte, least significant first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def delimited(field: int, data: bytes) -> bytes:
    """A field of bytes: its tag, its length and the bytes."""
    return varint(field << 3 | DELIMITED) + varint(len(data)) + data


def number(field: int, value: int) -> bytes:
    """A field with an integer; nothing where it is 0, the default."""
    return varint(field << 3 | _VARINT) + varint(value) if value else b""


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """The integer at a position, and the position after it.

    Raises:
        ValueError: it has more than 64 bits.
        IndexError: the data end within it.
    """
    byte = data[position]
    value, shift = byte & 0x7F, 7
    while byte > 0x7F:
        if shift > _MAX_SHIFT:
            raise ValueError("an integer is longer than 64 bits")
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        shift += 7
    return value, position + 1


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields (number, value) of each field of a message, in order.

    A varint is an integer; other values are bytes.

    Raises:
        ValueError: the bytes are not a message.
    """
    position, end = 0, len(data)
    try:
        while position < end:
            tag, position = read_varint(data, position)
            kind = tag & 7
            if kind == _VARINT:
                value, position = read_varint(data, position)
                yield tag >> 3, value
                continue
            if kind == DELIMITED:
                length, position = read_varint(data, position)
            elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
                length = 8 if kind == _EIGHT_BYTES else 4
            else:
                raise ValueError(f"a field has the unknown wire type {kind}")
            if position + length > end:
                raise ValueError("a field is longer than its message")
            yield tag >> 3, data[position : position + length]
            position += length
    except IndexError:
        raise ValueError("the message ends within a field") from None


def masked_crc(data: bytes | np.ndarray) -> int:
    """crc32c of some bytes, rotated and shifted as in TensorFlow's files."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
