"""Overlapping windows over a text that is too long for the model, and the best for each piece."""

import numpy as np


def cut(pieces: int, room: int, stride: int) -> np.ndarray:
    """First pieces and lengths of the windows over a context, as in the official script.

    Each begins `stride` pieces after the one before (at most `room`, so that no piece is skipped)
    and fills the room; the first that reaches the end is the last. An empty context has one empty
    window.

    Args:
        pieces: Length of the context.
        room: Longest window.
        stride: Stride between windows, in pieces.

    Returns:
        int64 of shape (windows, 2).
    """
    step = min(room, stride)
    count = 1 + max(0, -(-(pieces - room) // step))
    starts = step * np.arange(count)
    return np.stack([starts, np.minimum(room, pieces - starts)], axis=1)


def sees_best(windows: np.ndarray, number: int) -> np.ndarray:
    """Pieces of a window that have their largest context there ("is max context").

    Each piece is answered from only one of the windows that contain it: the first with the largest
    sum of its smaller distance to the two ends and a hundredth of the window's length.

    Args:
        windows: All windows of the context, from `cut`.
        number: The number of the window.

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
