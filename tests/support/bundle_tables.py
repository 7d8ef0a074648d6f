"""Writes indices of TensorFlow checkpoints from chosen entries, with right checksums; for tests."""

import struct

from tensorflow.core.protobuf import tensor_bundle_pb2 as messages

from lamb_tf.bundle_index import MAGIC
from official_bert.system.wire_format import masked_crc, varint


def block(entries: dict[bytes, bytes], restarts: int = 1) -> bytes:
    """A block whose keys are written in full, with its trailer."""
    content = b"".join(
        varint(0) + varint(len(key)) + varint(len(value)) + key + value
        for key, value in entries.items()
    )
    content += struct.pack("<I", 0) + struct.pack("<I", restarts)
    return content + b"\0" + masked_crc(content + b"\0").to_bytes(4, "little")


def table(entries: dict[bytes, bytes]) -> bytes:
    """A whole index: one block of entries, that of names of further blocks, the block's handle."""
    data, meta = block(entries), block({})
    index = block({max(entries) + b"\xff": varint(0) + varint(len(data) - 5)})
    handles = varint(len(data)) + varint(len(meta) - 5)
    handles += varint(len(data) + len(meta)) + varint(len(index) - 5)
    return data + meta + index + handles.ljust(40, b"\0") + MAGIC


def header(**fields) -> bytes:
    """The entry of the empty key; one data file, if nothing else is said."""
    made = messages.BundleHeaderProto(num_shards=1)
    made.version.producer = 1
    for name, value in fields.items():
        setattr(made, name, value)
    return made.SerializeToString()


def entry(shape: list[int], dtype: int = 1, size: int = 0, **fields) -> bytes:
    """The entry of a tensor; dtype 1 is float32."""
    made = messages.BundleEntryProto(dtype=dtype, size=size, **fields)
    for axis in shape:
        made.shape.dim.add(size=axis)
    return made.SerializeToString()
