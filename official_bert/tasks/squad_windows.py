"""Cuts long contexts into overlapping windows, as the official script for SQuAD does."""

import numpy as np


def cut(pieces: int, room: int, stride: int) -> np.ndarray:
    """First pieces and lengths of the windows over a context.

    Each begins `stride` pieces after the one before (`room` at most, so that none is left out) and
    is as long as there is room; the first that reaches the end is the last. An empty context has
    one empty window.

    Args:
        pieces: Length of the context.
        room: Longest window.
        stride: Pieces from the beginning of a window to that of the next.

    Returns:
        int64 of shape (windows, 2).
    """
    step = min(room, stride)
    count = 1 + max(0, -(-(pieces - room) // step))
    starts = step * np.arange(count)
    return np.stack([starts, np.minimum(room, pieces - starts)], axis=1)


def sees_best(windows: np.ndarray, number: int) -> np.ndarray:
    """Which pieces of a window have their largest context there ("is max context").

    A piece that several windows hold is answered from one of them alone: that in which the smaller
    of its distances to the two ends, plus a hundredth of the window's length, is largest; the
    first of those that are equal.

    Args:
        windows: All windows of the context, from `cut`.
        number: Which one of them is asked about.

    Returns:
        bool of shape (pieces of the window,).
    """
    start, length = windows[number]
    overlap = np.flatnonzero((windows[:, 0] < start + length) & (windows.sum(axis=1) > start))
    starts, lengths = windows[overlap, :, None].transpose(1, 0, 2)  # (overlapping windows, 1) each
    before = np.arange(start, start + length) - starts
    after = lengths - 1 - before
    margin = np.minimum(before, after)  # negative where a window does not hold the piece
    scores = np.where(margin < 0, -np.inf, margin + 0.01 * lengths)
    return overlap[scores.argmax(axis=0)] == number if len(overlap) else np.zeros(0, bool)
