"""Writes pre-training records, `tf.train.Example` in TFRecord files, without TensorFlow.

TensorFlow would cost each worker process half a gigabyte, and Python's protocol buffers three
quarters of the time.

    TFRecord: uint64 length | uint32 masked crc32c of the length | data | uint32 masked crc32c of
        the data
"""

import functools
import itertools
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np

from official_bert.data.instances import Ids, Instance
from official_bert.system.wire_format import delimited, masked_crc

V2_NAMES = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}

_HEADER = struct.Struct("<QI")
HEADER_BYTES, FOOTER_BYTES = _HEADER.size, 4

RECORDS_PER_BLOCK = 256  # read at once
_TOKENS_AT_ONCE = 1 << 17  # their bytes stay in a processor's cache
_INTEGERS, _FLOATS = b"\x1a", b"\x12"  # tags of a Feature's list


def frame(data: bytes) -> bytes:
    """One record as the bytes of a TFRecord file."""
    return b"".join((_header(len(data)), data, masked_crc(data).to_bytes(4, "little")))


@functools.lru_cache(1 << 12)
def _header(length: int) -> bytes:
    return _HEADER.pack(length, masked_crc(length.to_bytes(8, "little")))


def payload_length(header: bytes, position: int = 0) -> int | None:
    """The length in a record's header; None if the header's checksum is wrong."""
    length, crc = _HEADER.unpack_from(header, position)
    return length if masked_crc(header[position : position + 8]) == crc else None


class StaticRecord:
    """Instances → framed records in the official schema, padded with zeros to fixed lengths.

    A packed row also has `sequence_ids`: for each token the number of its sequence, from 1.
    """

    def __init__(self, max_seq_length: int, max_predictions: int, v2_names: bool = False):
        self._length, self._predictions = max_seq_length, max_predictions
        names = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids")
        rename = V2_NAMES if v2_names else {}
        self._names = [rename.get(name, name) for name in names]

    def __call__(self, instances: Iterable[Instance]) -> Iterator[bytes]:
        """Yields one framed record per instance."""
        for some in _batches(instances, self._length):
            yield from self._framed(some)

    def _framed(self, instances: list[Instance]) -> Iterator[bytes]:
        ids, firsts, positions, masked, is_random_next, sequences = zip(*instances, strict=True)
        tokens, is_token = _padded(ids, self._length)
        places, is_masked = _padded(positions, self._predictions)
        labels, _ = _padded(masked, self._predictions)
        segments = is_token & (np.arange(self._length) >= np.array(firsts)[:, None])
        columns = (tokens, is_token, segments, places, labels)
        features = [_integers(name, c) for name, c in zip(self._names, columns, strict=True)]
        weights = is_masked.astype("<f4").view(np.uint8)
        features.append(_feature("masked_lm_weights", _FLOATS, _all(weights)))
        features.append(_integers("next_sentence_labels", np.array(is_random_next)[:, None]))
        if sequences[0]:
            numbers = [np.repeat(np.arange(1, len(n) + 1), n).tolist() for n in sequences]
            features.append(_integers("sequence_ids", _padded(numbers, self._length)[0]))
        return _frames(features)


class DynamicRecord:
    """Sequences without masks → framed records.

    | key | type | shape |
    |---|---|---|
    | `input_ids` | int64 | [n], without padding and special tokens |
    | `sentence_lengths` | int64 | [m], their sum is n |
    | `document` | int64 | [1], the document's number in the corpus |

    Of a full or packed row, `input_ids` has the special tokens within: [SEP] between documents, or
    [SEP] [CLS] between sequences. It counts as one sentence, of document 0.
    """

    def __init__(self, max_seq_length: int):
        self._length = max_seq_length

    def __call__(self, sequences: Iterable[tuple[Ids, list[int], int]]) -> Iterator[bytes]:
        """Yields one framed record per (ids, lengths of the sentences, document)."""
        for some in _batches(sequences, self._length):
            ids, lengths, documents = zip(*some, strict=True)
            features = [
                _integers("input_ids", *_padded(ids)),
                _integers("sentence_lengths", *_padded(lengths)),
                _integers("document", np.array(documents)[:, None]),
            ]
            yield from _frames(features)


def _batches(items: Iterable, length: int) -> Iterator[list]:
    items = iter(items)
    while some := list(itertools.islice(items, max(1, _TOKENS_AT_ONCE // length))):
        yield some


def _padded(rows: Sequence[Ids], width: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The rows filled with zeros to a matrix, and which of its values are theirs."""
    if isinstance(rows[0], array):
        flat = np.frombuffer(b"".join(cast("Sequence[array[int]]", rows)), rows[0].typecode)
    else:
        flat = np.fromiter(itertools.chain.from_iterable(rows), np.int64)
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    is_filled = np.arange(width or lengths.max()) < lengths[:, None]
    matrix = np.zeros(is_filled.shape, flat.dtype)
    matrix[is_filled] = flat
    return matrix, is_filled


class _Bytes(NamedTuple):
    """Some bytes of each record, (records, width), or of all alike, (1, width).

    `kept` tells which of them are the record's own, and `sizes` their number; None: all are.
    """

    data: np.ndarray
    kept: np.ndarray | None
    sizes: np.ndarray | int


def _all(data: np.ndarray) -> _Bytes:
    return _Bytes(data, None, data.shape[1])


def _constant(data: bytes) -> _Bytes:
    return _all(np.frombuffer(data, np.uint8)[None])


def _varints(values: np.ndarray, is_filled: np.ndarray | None = None) -> _Bytes:
    """Variable-length integers, seven bits per byte, of those values that are filled."""
    width = max(1, -(-int(values.max(initial=0)).bit_length() // 7))
    if width == 1 and is_filled is None:
        return _all(values.astype(np.uint8))
    data, kept = np.empty((2, *values.shape, width), np.uint8)
    kept[..., 0] = True if is_filled is None else is_filled
    for place in range(width - 1):
        rest = values >> 7
        more = rest > 0
        data[..., place] = np.where(more, values | 0x80, values)
        kept[..., place + 1] = more
        values = rest
    data[..., -1] = values
    rows = len(data)
    kept = kept.reshape(rows, -1)
    return _Bytes(data.reshape(rows, -1), kept.view(bool), kept.sum(1, np.int64))


def _delimited(tag: bytes, parts: list[_Bytes]) -> list[_Bytes]:
    """A field of the bytes of all parts, with its tag and length before them."""
    sizes = np.atleast_1d(sum(part.sizes for part in parts))
    return [_constant(tag), _varints(sizes[:, None]), *parts]


def _integers(name: str, values: np.ndarray, is_filled: np.ndarray | None = None) -> list[_Bytes]:
    return _feature(name, _INTEGERS, _varints(values, is_filled))


def _feature(name: str, kind: bytes, packed: _Bytes) -> list[_Bytes]:
    """An entry of the feature map."""
    feature = _delimited(kind, _delimited(b"\x0a", [packed]))
    key = _constant(delimited(1, name.encode()))
    return _delimited(b"\x0a", [key, *_delimited(b"\x12", feature)])


def _frames(features: list[list[_Bytes]]) -> Iterator[bytes]:
    """Yields the framed Example of each record."""
    parts = _delimited(b"\x0a", list(itertools.chain.from_iterable(features)))
    rows = max(len(part.data) for part in parts)
    width = sum(part.data.shape[1] for part in parts)
    data, kept = np.empty((rows, width), np.uint8), np.ones((rows, width), bool)
    at = 0
    for part in parts:
        end = at + part.data.shape[1]
        data[:, at:end] = part.data
        if part.kept is not None:
            kept[:, at:end] = part.kept
        at = end
    flat = data[kept].tobytes()
    sizes = sum(part.sizes for part in parts)
    ends = np.cumsum(np.broadcast_to(sizes, rows)).tolist()
    for start, end in itertools.pairwise((0, *ends)):
        yield frame(flat[start:end])
