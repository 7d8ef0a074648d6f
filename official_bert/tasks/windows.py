"""Shared by the tasks of fine-tuning: vocabulary and batches; windows over a long text."""

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from tokenizers import Tokenizer

from official_bert.data import tokenization
from official_bert.data.row_batches import RowBatches, Rows
from official_bert.data.tokenization import Casing
from official_bert.model.config import BertConfig
from official_bert.protocols import Lengths, Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowTask(Task):
    """A task on rows that are in memory, with the vocabulary of a pre-trained model.

    Args:
        vocab_file: The vocabulary that the model was pre-trained with.
        do_lower_case: Whether that is an uncased one.
    """

    vocab_file: str
    do_lower_case: Casing = True
    reads_pooler: ClassVar[bool] = False

    @abstractmethod
    def rows(
        self, files: Sequence[str], lengths: Lengths, config: BertConfig, held_out: bool
    ) -> Rows:
        """The labelled examples of files; read once by a process."""

    def is_trainable(self, path: str) -> bool:
        return self.reads_pooler or not path.startswith("bert/pooler/")

    def batches(
        self,
        files: Sequence[str],
        lengths: Lengths,
        batch_size: int,
        config: BertConfig,
        *,
        seed: int,
        shard: tuple[int, int],
        held_out: bool = False,
    ) -> RowBatches:
        """The `RowBatches` of `rows`."""
        rows = self.rows(files, lengths, config, held_out)
        return RowBatches(rows, batch_size, seed=seed, shard=shard, shuffle=not held_out)

    def tokenizer(self, config: BertConfig) -> Tokenizer:
        """The tokenizer; a ValueError if its vocabulary is not the model's, or of another case."""
        tokenizer = tokenization.load(self.vocab_file, self.do_lower_case)
        vocabulary = tokenizer.get_vocab()
        tokenization.require_within(config.vocab_size, vocabulary, self.vocab_file)
        tokenization.check_case(vocabulary, self.vocab_file, self.do_lower_case)
        return tokenizer


# Windows


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
