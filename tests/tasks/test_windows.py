"""Overlapping windows of a long text, against the official script's description of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from official_bert.tasks import windows

SIZES = {"pieces": st.integers(1, 60), "room": st.integers(1, 12), "stride": st.integers(1, 15)}


def described_windows(pieces, room, stride):
    """Window after window, until one reaches the end."""
    windows, start = [], 0
    while start < pieces:
        length = min(room, pieces - start)
        windows.append((start, length))
        if start + length == pieces:
            break
        start += min(length, stride)
    return windows


def described_owner(windows, piece):
    """The window that gives a piece the best score, the first of equal ones."""
    best, owner = None, None
    for number, (start, length) in enumerate(windows):
        if start <= piece < start + length:
            score = min(piece - start, start + length - 1 - piece) + 0.01 * length
            if best is None or score > best:
                best, owner = score, number
    return owner


@given(**SIZES)
def test_windows_are_those_of_the_official_script(pieces, room, stride):
    found = windows.cut(pieces, room, stride)
    assert list(map(tuple, found.tolist())) == described_windows(pieces, room, stride)


@given(**SIZES)
def test_each_piece_is_answered_from_the_window_with_most_context(pieces, room, stride):
    found = windows.cut(pieces, room, stride)
    owners = [described_owner(found.tolist(), piece) for piece in range(pieces)]
    for number, (start, length) in enumerate(found.tolist()):
        expected = [owner == number for owner in owners[start : start + length]]
        assert windows.sees_best(found, number).tolist() == expected


def test_one_window_of_thousands_is_compared_only_with_its_neighbours():
    found = windows.cut(100_000, 300, 10)
    assert np.count_nonzero(windows.sees_best(found, 5000)) == 10
