"""Windows over long contexts, against the official script's description of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_bert.tasks import squad_windows

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


@settings(deadline=None)
@given(**SIZES)
def test_windows_are_those_of_the_official_script(pieces, room, stride):
    windows = squad_windows.cut(pieces, room, stride)
    assert list(map(tuple, windows.tolist())) == described_windows(pieces, room, stride)


@settings(deadline=None)
@given(**SIZES)
def test_each_piece_is_answered_from_the_window_with_most_context(pieces, room, stride):
    windows = squad_windows.cut(pieces, room, stride)
    owners = [described_owner(windows.tolist(), piece) for piece in range(pieces)]
    for number, (start, length) in enumerate(windows.tolist()):
        expected = [owner == number for owner in owners[start : start + length]]
        assert squad_windows.sees_best(windows, number).tolist() == expected


def test_an_empty_context_has_one_empty_window():
    windows = squad_windows.cut(0, 10, 3)
    assert windows.tolist() == [[0, 0]]
    assert squad_windows.sees_best(windows, 0).shape == (0,)


@pytest.mark.parametrize("pieces", [100_000])
def test_one_window_of_thousands_is_compared_with_its_neighbours_alone(pieces):
    windows = squad_windows.cut(pieces, 300, 10)
    assert np.count_nonzero(squad_windows.sees_best(windows, 5000)) == 10
