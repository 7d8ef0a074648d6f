"""Opens checkpoints of TensorFlow ("tensor bundles") whose index has been checked.

TensorFlow's own reader ends the process where an index is damaged with right checksums, and asks
for as much memory as a shape claims. So the index is read here first, as data:

    PREFIX.index                  a table: key → BundleEntryProto (type, shape, file, offset, size)
    PREFIX.data-00000-of-00001    the bytes of all tensors

A table ends in a footer that names the index block, whose values name the other blocks. A block is
a list of (length shared with the last key, length of the rest, length of the value, rest, value).
"""

import math
import os
import struct
from collections.abc import Callable, Iterator
from typing import Any

_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_FOOTER = 48  # two block handles, padding and the magic number
_TRAILER = 5  # after each block: its compression and its checksum
_MOST_KEYS = 64 << 20  # bytes of all names together; a short entry may repeat a long name
_MOST_AXES = 254  # TensorFlow's own bound
_REFERENCES = 100  # from here on, types stand for references to tensors


def open_bundle(prefix: str | os.PathLike) -> Any:
    """TensorFlow's reader of a checkpoint, after its index has been checked.

    Args:
        prefix: The checkpoint's files are `PREFIX.index` and `PREFIX.data-…`; addresses that
            TensorFlow reads, such as `gs://bucket/a.ckpt`, too.

    Returns:
        What `tf.train.load_checkpoint` returns.

    Raises:
        ValueError: the index is damaged, claims more than the files hold, or has variables in
            slices, as partitioners and parameter servers save them, or of no plain type.
        tf.errors.OpError: there is no such checkpoint, or TensorFlow cannot read it.
    """
    import tensorflow as tf

    prefix = os.fspath(prefix)
    with tf.io.gfile.GFile(f"{prefix}.index", "rb") as file:
        index = file.read()
    try:
        _check(prefix, dict(table(index)))
    except (IndexError, struct.error) as error:
        raise ValueError(f"{prefix}.index ends within an entry ({error})") from None
    return tf.train.load_checkpoint(prefix)


# The table


def table(
    index: bytes, checksum: Callable[[bytes], int] | None = None
) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of all entries, in the order of the file.

    Args:
        index: The bytes of `PREFIX.index`.
        checksum: Masked crc32c of some bytes; without it the checksums are left to TensorFlow.

    Raises:
        ValueError: the index is no table, damaged or compressed.
        IndexError, struct.error: it ends within an entry.
    """
    if index[-len(_MAGIC) :] != _MAGIC or len(index) < _FOOTER:
        raise ValueError("its index is not a table of TensorFlow, or is cut")
    footer = index[-_FOOTER:]
    of_names, at = _handle(footer, 0)
    if checksum:  # which is all that could be wrong with what nobody reads
        list(_block(index, of_names, checksum))
    last, held = None, 0
    for _, handle in _block(index, _handle(footer, at)[0], checksum):
        for key, value in _block(index, _handle(handle, 0)[0], checksum):
            held += len(key)
            if (last is not None and key <= last) or held > _MOST_KEYS:
                raise ValueError("the names in its index are not in order, or too long")
            last = key
            yield key, value


def _handle(data, at):
    """((offset, size) of a block, where the next byte is)."""
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return (offset, size), at


def _varint(data, at):
    """(number, where the next byte is): 7 bits per byte, the lowest first."""
    number = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise ValueError("a number of its index has over 10 bytes")


def _block(index, place, checksum):
    """(key, value) of the entries of one block."""
    offset, size = place
    end = offset + size
    if size < 4 or end + _TRAILER > len(index) - _FOOTER:
        raise ValueError(f"a block of its index claims {size:,} bytes at {offset:,}")
    if index[end] != 0:
        raise ValueError(f"its index is compressed (kind {index[end]}), which is not supported")
    said = int.from_bytes(index[end + 1 : end + _TRAILER], "little")
    if checksum and checksum(index[offset : end + 1]) != said:
        raise ValueError("its index does not match its checksum")
    entries, starts = _entries_and_starts(index[offset:end])
    at, key = 0, b""
    begins = {0}
    while at < len(entries):
        shared, rest, length, begin = _lengths(entries, at)
        if shared > len(key) or begin + rest + length > len(entries):
            raise ValueError("an entry of its index claims more than its block holds")
        if shared == 0:
            begins.add(at)
        key = key[:shared] + entries[begin : begin + rest]
        at = begin + rest + length
        yield key, entries[begin + rest : at]
    if not begins.issuperset(starts):
        raise ValueError("a block of its index is searched from where no key begins")


def _entries_and_starts(block):
    """The bytes of the entries, and the offsets at which a search may start."""
    (number,) = struct.unpack("<I", block[-4:])
    end = len(block) - 4 * (1 + number)
    if end < 0 or number == 0:
        raise ValueError(f"a block of its index claims {number:,} restarts")
    return block[:end], struct.unpack(f"<{number}I", block[end:-4])


def _lengths(entries, at):
    """(shared with the last key, rest of the key, value, where the rest begins)."""
    shared, at = _varint(entries, at)
    rest, at = _varint(entries, at)
    value, at = _varint(entries, at)
    return shared, rest, value, at


# What the entries say


def _check(prefix, entries):
    """Raises ValueError unless every tensor lies within its file, in the size of its shape."""
    import tensorflow as tf
    from tensorflow.core.protobuf import tensor_bundle_pb2 as messages

    header = _message(messages.BundleHeaderProto, entries.pop(b"", None), "the header")
    shards = header.num_shards
    if not 1 <= shards <= 99_999:
        raise ValueError(f"its index claims {shards:,} data files")
    files = [f"{prefix}.data-{n:05d}-of-{shards:05d}" for n in range(shards)]
    sizes = [tf.io.gfile.stat(file).length for file in files]
    for key, value in entries.items():
        name = repr(key[:99].decode(errors="replace"))
        entry = _message(messages.BundleEntryProto, value, name)
        _check_place(name, entry, sizes)
        _check_size(name, entry, files)


def _message(kind, value, name):
    if value is None:
        raise ValueError(f"its index lacks {name}")
    try:
        return kind.FromString(value)
    except Exception as error:  # of protobuf's own kind
        raise ValueError(f"{name} in its index is damaged ({error})") from None


def _check_place(name, entry, sizes):
    if entry.slices:
        raise ValueError(
            f"{name} is saved in slices, as partitioners and parameter servers do it; load it with "
            "TensorFlow, and save it as a whole"
        )
    if not 0 <= entry.shard_id < len(sizes):
        raise ValueError(f"{name} lies in data file {entry.shard_id} of {len(sizes)}")
    held = sizes[entry.shard_id]
    if min(entry.offset, entry.size) < 0 or entry.offset + entry.size > held:
        raise ValueError(
            f"{name} has {entry.size:,} bytes at {entry.offset:,} of a file of {held:,} bytes"
        )


def _check_size(name, entry, files):
    """Its shape and type are known, and need the bytes that it has."""
    shape = [axis.size for axis in entry.shape.dim]
    largest = math.prod(max(size, 1) for size in shape)  # TensorFlow multiplies from the left
    known = not entry.shape.unknown_rank and min(shape, default=0) >= 0
    if not known or len(shape) > _MOST_AXES or largest >= 2**63:
        raise ValueError(f"{name} has the shape {shape[:9]}")
    count, itemsize = (0 if 0 in shape else largest), _item_size(name, entry.dtype)
    if itemsize is None:
        _check_strings(name, entry, count, files[entry.shard_id])
    elif count * itemsize != entry.size:
        raise ValueError(
            f"{name} has {entry.size:,} bytes; its shape {shape} needs {count * itemsize:,}"
        )


def _item_size(name, number):
    """Bytes of a number of that type; None where they vary, as of strings."""
    import tensorflow as tf

    if not 0 < number < _REFERENCES:
        raise ValueError(f"{name} has the type {number}, which is not known")
    try:
        dtype = tf.as_dtype(number)
    except TypeError:
        raise ValueError(f"{name} has the type {number}, which is not known") from None
    return None if dtype in (tf.string, tf.variant, tf.resource) else dtype.size


def _check_strings(name, entry, count, file):
    """Strings lie in the file as their lengths, a checksum of these, and their bytes."""
    import tensorflow as tf

    if count > entry.size:
        raise ValueError(f"{name} claims {count:,} strings in {entry.size:,} bytes")
    if tf.as_dtype(entry.dtype) != tf.string:
        raise ValueError(
            f"{name} is of type {tf.as_dtype(entry.dtype).name}; save the checkpoint without it"
        )
    with tf.io.gfile.GFile(file, "rb") as data:
        data.seek(entry.offset)
        held = data.read(entry.size)
    at = total = 0
    try:
        for _ in range(count):
            length, at = _varint(held, at)
            total += length
    except (IndexError, ValueError):
        raise ValueError(f"the lengths of the strings of {name} are damaged in {file}") from None
    if count and at + 4 + total != entry.size:
        raise ValueError(f"{name} claims strings of {total:,} bytes in {entry.size:,}")
