"""Pre-training records on disk: `tf.train.Example` in TFRecord files, written without TensorFlow.

Worker processes build millions of records. Importing TensorFlow alone would cost each of them half
a gigabyte, and its Python protocol buffers three quarters of the time. The wire format of an
Example is simple, so it is written out here.

    TFRecord: uint64 length | uint32 masked crc32c of the length | data | uint32 masked crc32c of
        the data
"""

import mmap
import struct
from collections.abc import Iterable

from official_bert.data.instances import Instance
from official_bert.system.wire_format import masked_crc, varint

V2_NAMES = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}

_HEADER = struct.Struct("<QI")
HEADER_BYTES, FOOTER_BYTES = _HEADER.size, 4

# Neighbouring records that are read at once.
RECORDS_PER_BLOCK = 256


def frame(data: bytes) -> bytes:
    """One record as the bytes of a TFRecord file."""
    length = struct.pack("<Q", len(data))
    return b"".join(
        (length, struct.pack("<I", masked_crc(length)), data, struct.pack("<I", masked_crc(data)))
    )


def payload_length(header: bytes | mmap.mmap, position: int = 0) -> int | None:
    """The length in a record's header; None if the header's checksum is wrong."""
    length, crc = _HEADER.unpack_from(header, position)
    return length if masked_crc(bytes(header[position : position + 8])) == crc else None


class StaticRecord:
    """Instances → framed records in the official schema, padded with zeros to fixed lengths."""

    def __init__(
        self, max_seq_length: int, max_predictions: int, vocab_size: int, v2_names: bool = False
    ):
        self._length, self._predictions = max_seq_length, max_predictions
        self._varints = _varints(max(vocab_size, max_seq_length))
        names = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids")
        rename = V2_NAMES if v2_names else {}
        self._ids, self._mask, self._segments, self._positions, self._masked = (
            _IntegerFeature(rename.get(name, name)) for name in names
        )
        next_sentence = _IntegerFeature("next_sentence_labels")
        self._next = (next_sentence(b"\0"), next_sentence(b"\1"))
        # Weights differ only in their number of ones: max_predictions + 1 possible features.
        self._weights = [_weights_feature(n, max_predictions) for n in range(max_predictions + 1)]

    def __call__(self, instance: Instance) -> bytes:
        ids, first, positions, masked, is_random_next = instance
        varint, padding = self._varints.__getitem__, bytes(self._length - len(ids))
        no_predictions = bytes(self._predictions - len(positions))
        features = (
            self._ids(b"".join(map(varint, ids)) + padding),
            self._mask(b"\1" * len(ids) + padding),
            self._segments(bytes(first) + b"\1" * (len(ids) - first) + padding),
            self._positions(b"".join(map(varint, positions)) + no_predictions),
            self._masked(b"".join(map(varint, masked)) + no_predictions),
            self._weights[len(positions)],
            self._next[is_random_next],
        )
        return frame(_delimited(0x0A, b"".join(features)))


class DynamicRecord:
    """Sequences without masks → framed records.

    | key | type | shape |
    |---|---|---|
    | `input_ids` | int64 | [n], without padding and special tokens |
    | `sentence_lengths` | int64 | [m], their sum is n |
    | `document` | int64 | [1], the document's number in the corpus |
    """

    def __init__(self, vocab_size: int):
        self._varints = _varints(vocab_size)
        names = ("input_ids", "sentence_lengths", "document")
        self._ids, self._lengths, self._document = map(_IntegerFeature, names)

    def __call__(self, ids: list[int], sentence_lengths: Iterable[int], document: int) -> bytes:
        features = (
            self._ids(b"".join(map(self._varints.__getitem__, ids))),
            self._lengths(b"".join(map(varint, sentence_lengths))),
            self._document(varint(document)),
        )
        return frame(_delimited(0x0A, b"".join(features)))


def _varints(count: int) -> list[bytes]:
    return [varint(value) for value in range(count)]


_LENGTHS = _varints(1 << 14)


def _delimited(tag: int, data: bytes) -> bytes:
    length = len(data)
    return bytes((tag,)) + (_LENGTHS[length] if length < len(_LENGTHS) else varint(length)) + data


class _IntegerFeature:
    """An entry of the feature map with packed int64 values."""

    def __init__(self, name: str):
        self._key = _delimited(0x0A, name.encode())

    def __call__(self, packed: bytes) -> bytes:
        feature = _delimited(0x1A, _delimited(0x0A, packed))
        return _delimited(0x0A, self._key + _delimited(0x12, feature))


def _weights_feature(ones: int, length: int) -> bytes:
    packed = struct.pack(f"<{length}f", *([1.0] * ones + [0.0] * (length - ones)))
    feature = _delimited(0x12, _delimited(0x0A, packed))
    return _delimited(0x0A, _delimited(0x0A, b"masked_lm_weights") + _delimited(0x12, feature))
