"""Runs of records → arrays: reads, parses by NumPy, checks and joins them.

    Example { Features { map entry { name, Feature { BytesList | FloatList | Int64List } } … } }

Records with the features of one writer are decoded together, any other record by itself.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from official_bert.data.record_files import RecordFiles, RecordRange
from official_bert.data.records import V2_NAMES
from official_bert.system import wire_format

STATIC_TYPES = {
    "input_ids": np.int32,
    "input_mask": np.int8,
    "segment_ids": np.int8,
    "masked_lm_positions": np.int16,
    "masked_lm_ids": np.int32,
    "masked_lm_weights": np.float32,
    "next_sentence_labels": np.int8,
}
_OF_PACKED = "sequence_ids"  # a feature of packed rows only
_OF_DYNAMIC = "sentence_lengths"  # a feature of records for dynamic masking only
_TYPES = {**STATIC_TYPES, _OF_PACKED: np.int16}
_PREDICTIONS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
PARSED_AT_ONCE = 2048
INTEGERS, FLOATS = 3, 2  # fields of a Feature
_LONGEST = 4  # bytes of a length that is decoded together with others

Name = Callable[[int], str]  # a record's number → its name in messages


class Sequences(NamedTuple):
    """Parsed records of the dynamic form, concatenated.

    Record r holds the tokens `token_splits[r] … token_splits[r+1]` and the sentences
    `sentence_splits[r] … sentence_splits[r+1]`; sentence s begins at token `sentence_starts[s]`.
    """

    tokens: np.ndarray
    token_splits: np.ndarray
    sentence_starts: np.ndarray
    sentence_splits: np.ndarray
    documents: np.ndarray


# The columns of static records, or the sequences of dynamic ones.
ParsedRecords = dict[str, np.ndarray] | Sequences


def read(
    files: RecordFiles, parse: "StaticParser | DynamicParser", runs: list[RecordRange]
) -> ParsedRecords:
    """Reads runs of records, in their order.

    Raises:
        ValueError: a record cannot be parsed, or has ids beyond the vocabulary or positions beyond
            the sequence; the message names file and record.
    """
    serialized = [record for run in runs for record in files.read(*run)]

    def name(number: int) -> str:
        for block, start, stop in runs:
            if number < stop - start:
                return files.name(files.first_of(block) + start + number)
            number -= stop - start
        raise IndexError(number)

    def parsed_from(at: int) -> Any:
        return parse(serialized[at : at + PARSED_AT_ONCE], lambda number: name(at + number))

    return parse.join(list(map(parsed_from, range(0, len(serialized), PARSED_AT_ONCE))))


def _beyond_the_vocabulary(where: str, token: int, vocab_size: int | None) -> ValueError:
    size = f" of {vocab_size:,}" if vocab_size else ""
    return ValueError(
        f"{where}: token ids must be in the vocabulary{size}; got {token}. Make the records with "
        "the vocabulary of the model."
    )


def _mixed(feature: str, having: str, lacking: str) -> ValueError:
    return ValueError(
        f"Records must be of one kind; got {having} with the feature {feature!r} and "
        f"{lacking} without it. Read the files of one build only, and join no files of several."
    )


class StaticParser:
    """Parses the official schema; the first record, named `where`, decides the names of features.

    Args:
        max_seq_length, max_predictions: S and P, the lengths of the features.
        vocab_size: Ids must be below it; None: any are accepted.

    Attributes:
        features: {name: (name in the records, length)}.

    Raises:
        ValueError: a record, the first at construction, has other features or lengths than
            expected, or values out of range; the message starts with its name.
    """

    def __init__(
        self,
        first: bytes,
        where: str,
        max_seq_length: int,
        max_predictions: int,
        vocab_size: int | None = None,
    ):
        self._max_seq_length, self._vocab_size, self._first = max_seq_length, vocab_size, where
        there, self.features = _features(first, where), {}
        if _OF_DYNAMIC in there:
            raise ValueError(
                f"{where} must lie next to its manifest, which tells how to mask it; got a record "
                "of --dynamic_masking that no manifest lists. Put the .manifest.json of its build "
                "next to it, and keep the names of both."
            )
        for name in _TYPES:
            names = [n for n in (name, V2_NAMES.get(name, name)) if n in there]
            if not names and name == _OF_PACKED:
                continue
            if not names:
                raise ValueError(
                    f"{where} must be a BERT pre-training record with a feature {name!r}; got "
                    f"{', '.join(sorted(there)) or 'no features'}. Make the records with "
                    "`lamb-bert create-data`."
                )
            length = max_predictions if name in _PREDICTIONS else max_seq_length
            self.features[name] = names[0], 1 if name == "next_sentence_labels" else length
        self._columns([first], lambda _: where)

    def __call__(self, serialized: list[bytes], name: Name) -> dict[str, np.ndarray]:
        """{feature: (records, length) of its type}; the labels of next sentences are (records,)."""
        found = self._columns(serialized, name)
        self._check(found, name)
        return found

    def join(self, parsed: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """The records of several calls."""
        return {key: np.concatenate([columns[key] for columns in parsed]) for key in parsed[0]}

    def _columns(self, serialized, name):
        kinds = {
            feature: FLOATS if _TYPES[key] is np.float32 else INTEGERS
            for key, (feature, _) in self.features.items()
        }
        found, made = columns(serialized, {_OF_PACKED: INTEGERS, **kinds}, name), {}
        if _OF_PACKED not in self.features and (also := found[_OF_PACKED].counts).any():
            raise _mixed(_OF_PACKED, name(int(np.argmax(also > 0))), self._first)
        for key, (feature, length) in self.features.items():
            values, counts = found[feature]
            if (counts != length).any():
                number = int(np.argmax(counts != length))
                there = _features(serialized[number], name(number))
                if lacking := [other for other in kinds if other not in there]:
                    raise _mixed(lacking[0], self._first, name(number))
                flag = "max_predictions_per_seq" if key in _PREDICTIONS else "max_seq_length"
                cure = f" Set {flag} to that of the records." if length > 1 else ""
                raise ValueError(
                    f"{name(number)}: {feature} must have length {length}; got {counts[number]}."
                    f"{cure}"
                )
            shape = (-1,) if key == "next_sentence_labels" else (-1, length)
            made[key] = values.astype(_TYPES[key], copy=False).reshape(shape)
        return made

    def _check(self, found, name):
        limits = {
            "input_ids": self._vocab_size,
            "masked_lm_ids": self._vocab_size,
            "masked_lm_positions": self._max_seq_length,
        }
        for key, limit in limits.items():
            values = found[key]
            if values.min() >= 0 and (not limit or values.max() < limit):
                continue
            bad = (values < 0) | (values >= (limit or np.inf))
            record = int(np.argmax(bad.any(1)))
            value = int(values[record][bad[record]][0])
            if key == "masked_lm_positions":
                raise ValueError(
                    f"{name(record)}: masked positions must be 0 to {self._max_seq_length - 1}; "
                    f"got {value}. Make the records for this max_seq_length."
                )
            raise _beyond_the_vocabulary(name(record), value, self._vocab_size)


class DynamicParser:
    """Parses records made for dynamic masking.

    Args:
        max_seq_length: Named in errors.
        vocab_size: As of `StaticParser`.
        special_tokens: The least number that a row adds to those of a record.

    Attributes:
        longest: Tokens of the longest record that fits.

    Raises:
        ValueError: when called, if a record is damaged or out of range; as `StaticParser`.
    """

    def __init__(self, max_seq_length: int, vocab_size: int | None = None, special_tokens: int = 3):
        self._max_seq_length, self._vocab_size = max_seq_length, vocab_size
        self.longest = max_seq_length - special_tokens

    def __call__(self, serialized: list[bytes], name: Name) -> Sequences:
        """The records' `Sequences`."""
        keys = ("input_ids", "sentence_lengths", "document")
        found = columns(serialized, dict.fromkeys(keys, INTEGERS), name)
        tokens, lengths, documents = (found[key] for key in keys)
        if (documents.counts != 1).any():
            raise ValueError(
                f"{name(int(np.argmax(documents.counts != 1)))}: the feature 'document' must have "
                "one value. Make the file again."
            )
        sizes, ids = lengths.values.astype(np.int64), tokens.values.astype(np.int32)
        numbers = documents.values.astype(np.int64)
        parsed = _sequences(ids, tokens.counts, sizes, lengths.counts, numbers)
        _check_sentences(parsed, sizes, name)
        self._check(parsed, name)
        return parsed

    def join(self, parsed: list[Sequences]) -> Sequences:
        """The records of several calls."""
        parts = [
            (
                each.tokens,
                np.diff(each.token_splits),
                np.diff(each.sentence_starts, append=len(each.tokens)),
                np.diff(each.sentence_splits),
                each.documents,
            )
            for each in parsed
        ]
        return _sequences(*map(np.concatenate, zip(*parts, strict=True)))

    def _check(self, parsed, name):
        if self._vocab_size and parsed.tokens.size and parsed.tokens.max() >= self._vocab_size:
            token = int(np.argmax(parsed.tokens >= self._vocab_size))
            record = int(np.searchsorted(parsed.token_splits, token, "right")) - 1
            value = int(parsed.tokens[token])
            raise _beyond_the_vocabulary(name(record), value, self._vocab_size)
        lengths = np.diff(parsed.token_splits)
        if lengths.max() > self.longest:
            record = int(np.argmax(lengths))
            raise ValueError(
                f"{name(record)}: length must be at most {self.longest} tokens with "
                f"max_seq_length={self._max_seq_length}; got {lengths[record]}. Make the records "
                "for this length."
            )


def _sequences(tokens, token_counts, sizes, sentence_counts, documents) -> Sequences:
    """The `Sequences` of records with these numbers of tokens, of sentences, and sentence sizes."""
    token_splits, sentence_splits = (
        np.concatenate([[0], np.cumsum(counts)]) for counts in (token_counts, sentence_counts)
    )
    return Sequences(tokens, token_splits, np.cumsum(sizes) - sizes, sentence_splits, documents)


def _check_sentences(parsed: Sequences, sizes: np.ndarray, name: Name) -> None:
    """Refuses records whose sentences do not add up to their tokens, and negative ids."""
    ids, token_splits, _, splits, _ = parsed
    total = np.concatenate([[0], np.cumsum(sizes)])
    wrong = total[splits[1:]] - total[splits[:-1]] != np.diff(token_splits)
    wrong |= np.diff(splits) == 0
    bad_sizes = np.flatnonzero((sizes < 1) | (sizes > len(ids)))
    wrong[np.searchsorted(splits, bad_sizes, "right") - 1] = True
    wrong[np.searchsorted(token_splits, np.flatnonzero(ids < 0), "right") - 1] = True
    if wrong.any():
        raise ValueError(
            f"{name(int(np.argmax(wrong)))} is damaged: its sentences do not add up to its tokens. "
            "Make the file again."
        )


def is_packed(record: bytes, where: str) -> bool:
    """Whether a static record, named `where`, is a row of several sequences.

    Raises:
        ValueError: it is no `tf.train.Example`.
    """
    return _OF_PACKED in _features(record, where)


# The wire format


class Column(NamedTuple):
    """One feature of several records: all values, and their number per record."""

    values: np.ndarray  # integers of a sufficient type, or float32
    counts: np.ndarray


def columns(records: Sequence[bytes], kinds: dict[str, int], name: Name) -> dict[str, Column]:
    """Features {name: `INTEGERS` or `FLOATS`} of serialized Examples; a missing one has no values.

    Raises:
        ValueError: a record is damaged, or a feature of another kind; the message names it.
    """
    packed = _packed_in_step(records, kinds)
    if packed is None:
        found, packed = [_features(r, name(n)) for n, r in enumerate(records)], {}
        for key, kind in kinds.items():
            values = [record.get(key, (kind, b"")) for record in found]
            for number, (other, _) in enumerate(values):
                if other not in (kind, 0):
                    raise _damaged(name(number), f"the feature {key!r} has the wrong type")
            sizes = np.array([len(data) for _, data in values])
            packed[key] = b"".join(data for _, data in values), sizes
    decode = {INTEGERS: _integers, FLOATS: _floats}
    return {key: decode[kinds[key]](*packed[key], key, name) for key in kinds}


def _damaged(where: str, reason: str) -> ValueError:
    return ValueError(f"{where}: {reason}. Make the file again.")


def _floats(packed: bytes, sizes: np.ndarray, key: str, name: Name) -> Column:
    if (sizes % 4).any():
        raise _damaged(name(int(np.argmax(sizes % 4 > 0))), f"the feature {key!r} is damaged")
    return Column(np.frombuffer(packed, "<f4"), sizes // 4)


def _integers(packed: bytes, sizes: np.ndarray, key: str, name: Name) -> Column:
    data = np.frombuffer(packed, np.uint8)
    is_last = data < 0x80  # byte of an integer
    if is_last.all():
        return Column(data, sizes)
    ends, ends_of_records = np.flatnonzero(is_last), np.cumsum(sizes)
    filled = np.flatnonzero(sizes)
    is_whole = is_last[ends_of_records[filled] - 1]
    if not is_whole.all():
        number = int(filled[np.argmin(is_whole)])
        raise _damaged(name(number), f"the feature {key!r} is damaged")
    counts = np.diff(np.searchsorted(ends, ends_of_records), prepend=0)
    more = ends.copy()  # bytes of each integer before its last; three times as fast as `np.diff`
    more[1:] -= ends[:-1] + 1
    if more.max() > 9:
        number = int(np.searchsorted(np.cumsum(counts), np.argmax(more > 9), "right"))
        raise _damaged(name(number), f"the feature {key!r} has an integer longer than 64 bits")
    values = data[ends].astype(np.int64)
    for before in range(1, more.max() + 1):
        longer = np.flatnonzero(more >= before)
        values[longer] = values[longer] << 7 | data[ends[longer] - before] & 0x7F
    return Column(values, counts)


class _Unlike(Exception):
    """The records do not have the same features in the same order."""


def _packed_in_step(records, kinds) -> dict[str, tuple[bytes, np.ndarray]] | None:
    """The packed values of features, and their sizes in each record.

    Returns:
        None if the records do not have the same features in the same order, packed.
    """
    if not records:
        return None
    none = b"", np.zeros(len(records), np.int64)
    data, found = b"".join(records) + bytes(2 + _LONGEST), {}
    try:
        for key, kind, starts, ends in _lists_in_step(data, np.array(list(map(len, records)))):
            if kind != kinds.get(key, kind):
                return None
            if key in kinds:
                places = zip(starts.tolist(), ends.tolist(), strict=True)
                found[key] = b"".join([data[a:b] for a, b in places]), ends - starts
    except (_Unlike, UnicodeDecodeError):
        return None
    return {key: found.get(key, none) for key in kinds}


def _lists_in_step(padded: bytes, sizes: np.ndarray):
    """Yields name, kind, and the places where the packed values of each record begin and end.

    Zeros after the records, of lengths `sizes`, make reads past the end safe, and match nothing.
    """
    data, ends_of_records = np.frombuffer(padded, np.uint8), np.cumsum(sizes)

    def same(values):
        if (values != values[0]).any():
            raise _Unlike
        return int(values[0])

    def enter(field, ends):
        """Enters the message at the current place; returns where it ends."""
        nonlocal here
        if same(data[here]) != field << 3 | wire_format.DELIMITED:
            raise _Unlike
        here = here + 1
        length, shift, more = np.zeros_like(here), 0, np.ones(len(here), bool)
        while more.any():
            if shift == 7 * _LONGEST:
                raise _Unlike
            byte = np.where(more, data[here], 0).astype(np.int64)
            length |= (byte & 0x7F) << shift
            here, shift, more = here + more, shift + 7, byte > 0x7F
        if (here + length > ends).any():
            raise _Unlike
        return here + length

    here = ends_of_records - sizes
    ends = enter(1, ends_of_records)
    if (ends != ends_of_records).any():
        raise _Unlike
    while (here < ends).any():
        entry = enter(1, ends)
        end_of_name = enter(1, entry)
        names = data[here[:, None] + np.arange(same(end_of_name - here))]
        if (names != names[0]).any():
            raise _Unlike
        here = end_of_name
        feature = enter(2, entry)
        kind = same(data[here]) >> 3
        values = enter(kind, feature)
        packed = enter(1, values)
        if (packed != entry).any() or (packed != values).any() or (packed != feature).any():
            raise _Unlike
        yield names[0].tobytes().decode(), kind, here, packed
        here = packed


def _features(record: bytes, where: str) -> dict[str, tuple[int, bytes]]:
    """The kind and the packed values of each feature of an Example, or a ValueError."""
    found = {}
    try:
        for field, content in wire_format.fields(record):
            for place, entry in wire_format.fields(_bytes(content)) if field == 1 else ():
                if place == 1:
                    named = dict(wire_format.fields(_bytes(entry)))
                    key = _bytes(named.get(1, b"")).decode()
                    found[key] = _values(_bytes(named.get(2, b"")))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{where} must be a tf.train.Example; got other or damaged data ({error}). Make the "
            "file again."
        ) from None
    return found


def _values(feature: bytes) -> tuple[int, bytes]:
    """The kind of a Feature, and its values packed; older writers do not pack them."""
    packed, kind = [], 0  # an empty list may be left out
    for field, content in wire_format.fields(feature):
        kind, packed = field, []
        for place, value in wire_format.fields(_bytes(content)) if field in (2, 3) else ():
            if place == 1:
                packed.append(wire_format.varint(value) if isinstance(value, int) else value)
    return kind, b"".join(packed)


def _bytes(value: Any) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number in place of a message")
    return value
