"""Serialized Examples → arrays without TensorFlow, from their wire format.

    Example { Features { map entry { name, Feature { BytesList | FloatList | Int64List } } … } }

Records that one writer made stand in one form: what they hold is found and decoded by NumPy, of all
of them together. Any other is read by itself, field by field.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from official_bert.system import wire_format

INTEGERS, FLOATS = 3, 2  # the fields of a Feature that hold them
Features = dict[str, tuple[int, bytes]]  # of each its kind and packed values
_LONGEST = 4  # bytes of a length that is read together with others


class Column(NamedTuple):
    """One feature of several records: all values in a row, and the number of each record's."""

    values: np.ndarray
    counts: np.ndarray


def features(record: bytes) -> Features:
    """Of each feature of an Example its kind, `INTEGERS` or `FLOATS`, and packed values.

    Raises:
        ValueError: it is no Example.
    """
    found = {}
    for field, content in wire_format.fields(record):
        for place, entry in wire_format.fields(_bytes(content)) if field == 1 else ():
            if place == 1:
                named = dict(wire_format.fields(_bytes(entry)))
                kind, packed = _values(_bytes(named.get(2, b"")))
                found[_bytes(named.get(1, b"")).decode()] = kind, packed
    return found


def features_in_step(records: Sequence[bytes]) -> list[Features] | None:
    """The `features` of Examples that name the same ones in the same order, packed.

    Returns:
        `None` if they are of any other form, or none at all.
    """
    if not records:
        return None
    found = [{} for _ in records]
    try:
        for name, kind, starts, ends in _lists_in_step(records):
            for here, record, start, end in zip(found, records, starts, ends, strict=True):
                here[name] = kind, record[start:end]
    except (_Unlike, UnicodeDecodeError):
        return None
    return found


class _Unlike(Exception):
    """The records do not stand in one form."""


def _lists_in_step(records):
    """Yields name, kind, and where the packed values of each record begin and end in it."""
    sizes = np.array([len(record) for record in records])
    offsets = np.cumsum(sizes) - sizes
    # Padding: reads past the end are safe and match nothing.
    data = np.frombuffer(b"".join(records) + bytes(2 + _LONGEST), np.uint8)

    def same(values):
        if (values != values[0]).any():
            raise _Unlike
        return int(values[0])

    def enter(field, ends):
        """Into the message that stands here: where it ends."""
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

    here = offsets
    ends = enter(1, offsets + sizes)
    if (ends != offsets + sizes).any():
        raise _Unlike
    while (here < ends).any():
        entry = enter(1, ends)
        end_of_name = enter(1, entry)
        length = same(end_of_name - here)
        names = data[here[:, None] + np.arange(length)]
        if (names != names[0]).any():
            raise _Unlike
        here = end_of_name
        feature = enter(2, entry)
        kind = same(data[here]) >> 3
        values = enter(kind, feature)
        packed = enter(1, values)
        if (packed != entry).any() or (packed != values).any() or (packed != feature).any():
            raise _Unlike
        starts, ends_of_values = (here - offsets).tolist(), (packed - offsets).tolist()
        yield names[0].tobytes().decode(), kind, starts, ends_of_values
        here = packed


def column(records: Sequence[Features], name: str, kind: int) -> Column:
    """One feature of several Examples, from their `features`.

    Args:
        records: What `features` returned of each.
        name: The feature.
        kind: `INTEGERS` or `FLOATS`.

    Returns:
        A `Column` of int64 or float32.

    Raises:
        ValueError: it begins with the number of the record whose values are damaged.
    """
    packed = []
    for number, record in enumerate(records):
        found, values = record.get(name, (kind, b""))
        if found not in (kind, 0):
            raise ValueError(f"{number}: the feature {name!r} has the wrong type")
        packed.append(values)
    sizes = np.array([len(values) for values in packed])
    ends_of_records = np.cumsum(sizes)
    joined = np.frombuffer(b"".join(packed), np.uint8)
    if kind == FLOATS:
        if (sizes % 4).any():
            raise ValueError(f"{int(np.argmax(sizes % 4 > 0))}: the feature {name!r} is damaged")
        return Column(joined.view("<f4"), sizes // 4)
    ends = np.flatnonzero(joined < 0x80)  # the last byte of each integer
    filled = ends_of_records[sizes > 0]
    whole = joined[filled - 1] < 0x80
    if not whole.all():
        number = np.flatnonzero(sizes > 0)[np.argmin(whole)]
        raise ValueError(f"{int(number)}: the feature {name!r} is damaged")
    counts = np.diff(np.searchsorted(ends, ends_of_records), prepend=0)
    return Column(_varints(joined, ends), counts)


def _varints(joined, ends):
    """The integers in bytes, of which those at `ends` are the last of one."""
    values = joined[ends].astype(np.int64)
    if len(ends) == len(joined):
        return values
    more = np.diff(ends, prepend=-1) - 1  # bytes before the last
    if more.max() > 9:
        raise ValueError(
            "0: an integer in this record or in one of the next is longer than 64 bits"
        )
    for before in range(1, more.max() + 1):
        longer = np.flatnonzero(more >= before)
        lower = joined[ends[longer] - before] & 0x7F
        values[longer] = values[longer] << 7 | lower
    return values


def _values(feature):
    """The kind of a Feature, and its values packed; older writers leave them apart."""
    packed, kind = [], 0  # an empty list may be left out
    for field, content in wire_format.fields(feature):
        kind, packed = field, []
        for place, value in wire_format.fields(_bytes(content)) if field in (2, 3) else ():
            if place == 1:
                packed.append(wire_format.varint(value) if isinstance(value, int) else value)
    return kind, b"".join(packed)


def _bytes(value):
    if isinstance(value, int):
        raise ValueError("a number in place of a message")
    return value
