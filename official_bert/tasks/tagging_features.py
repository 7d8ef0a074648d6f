"""Words of sentences → word pieces in windows, with each word's place.

    [CLS] pieces of the sentence, or of a part of it [SEP] [PAD] …

A word is predicted at its first piece, in one window: of the overlapping windows of a sentence that
is longer than the model, the one where that piece has most context.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from official_bert.data import row_batches, tokenization
from official_bert.tasks.windows import cut, sees_best

UNKNOWN = -1  # the number of a tag that is no class of the model


class Words(NamedTuple):
    """The words of N sentences, as pieces; sentence n has the words bounds[n : n + 2]."""

    ids: np.ndarray  # (pieces,) int32
    starts: np.ndarray  # (words + 1,) int64: the first piece of each word; the number of pieces
    bounds: np.ndarray  # (sentences + 1,) int64
    without_piece: int = 0  # words that give no piece, such as a lone control character: [UNK]


def from_words(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]) -> Words:
    """Pieces of sentences that are split into words; each word is tokenized by itself."""
    unknown = [tokenizer.token_to_id(tokenization.UNK)]
    encoded = tokenization.SentenceEncoder(tokenizer)(chain.from_iterable(sentences))
    of_words = [ids or unknown for ids in encoded]
    return Words(
        np.fromiter(chain.from_iterable(of_words), np.int32),
        np.cumsum([0, *map(len, of_words)], dtype=np.int64),
        np.cumsum([0, *map(len, sentences)], dtype=np.int64),
        sum(not ids for ids in encoded),
    )


def from_texts(tokenizer: Tokenizer, texts: Iterable[str]) -> tuple[Words, np.ndarray]:
    """Pieces of texts, split at blanks and punctuation as BERT does, and the words' characters.

    Returns:
        The words; and (words, 2) int32, the first character of each in its text, and one past the
        last.
    """
    pieces = tokenization.encode_with_spans(tokenizer, texts)
    tokens = [tokenizer.id_to_token(number) for number in range(tokenizer.get_vocab_size())]
    goes_on = np.array([token is not None and token.startswith("##") for token in tokens])
    # A text begins with a word, and a lone "#" is a word of its own: no "##" is one.
    starts = np.append(np.flatnonzero(~goes_on[pieces.ids]), len(pieces.ids))
    spans = np.stack([pieces.spans[starts[:-1], 0], pieces.spans[starts[1:] - 1, 1]], axis=1)
    return Words(pieces.ids, starts, np.searchsorted(starts, pieces.bounds)), spans


@dataclasses.dataclass(frozen=True, eq=False)
class Features:
    """Windows over sentences, in their order; made by `make_features`.

    Attributes:
        max_seq_length: Length of a row, S.
        special: Ids of [CLS], [SEP] and [PAD].
        ids: The pieces of all sentences.
        windows: (windows, 2): the first piece in `ids`, and the number of pieces.
        rows: (words,): the window in which each word is predicted.
        positions: (words,): the position of its first piece in that row.
        tags: (words,): its class number, or `UNKNOWN`.
        cut_sentences: Number of sentences with several windows.
    """

    max_seq_length: int
    special: tuple[int, int, int]
    ids: np.ndarray
    windows: np.ndarray
    rows: np.ndarray
    positions: np.ndarray
    tags: np.ndarray
    cut_sentences: int

    def __len__(self) -> int:
        """Number of windows."""
        return len(self.windows)

    def batch(self, rows: Sequence[int] | np.ndarray) -> dict[str, np.ndarray]:
        """Padded arrays of some windows.

        Returns:
            `input_ids`, `input_mask`, `segment_ids`: int32 of shape (rows, S); `tag_ids`: int32 of
            the same shape, the class of the word whose first piece is there, else 0; and
            `tag_weights`: float32, 1 where there is one, else 0.
        """
        cls, sep, pad = self.special
        shape = len(rows), self.max_seq_length
        ids, mask = np.full(shape, pad, np.int32), np.zeros(shape, np.int32)
        tags, weights = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        for index, row in enumerate(rows):
            first, length = self.windows[row]
            ids[index, : length + 2] = [cls, *self.ids[first : first + length], sep]
            mask[index, : length + 2] = 1
            words = self.words(row, row + 1)
            known = self.tags[words] != UNKNOWN
            positions = self.positions[words][known]
            tags[index, positions], weights[index, positions] = self.tags[words][known], 1.0
        return {
            "input_ids": ids,
            "input_mask": mask,
            "segment_ids": np.zeros(shape, np.int32),
            "tag_ids": tags,
            "tag_weights": weights,
        }

    def words(self, first: int, stop: int) -> slice:
        """The words that are predicted in the windows from `first` to before `stop`."""
        return slice(*np.searchsorted(self.rows, [first, stop]))

    def fingerprint(self) -> str:
        """A digest of everything that `batch` returns; it detects other windows."""
        arrays = {"length": np.array(self.max_seq_length), "special": np.array(self.special)}
        names = ("ids", "windows", "rows", "positions", "tags")
        return row_batches.fingerprint(arrays | {name: getattr(self, name) for name in names})


def make_features(
    words: Words, tokenizer: Tokenizer, max_seq_length: int, tags: np.ndarray | None = None
) -> Features:
    """Cuts windows, each half the room after the one before, and places the words in them.

    Args:
        words: Of `from_words` or `from_texts`, by the same tokenizer.
        max_seq_length: Length of a window in tokens, [CLS] and [SEP] included.
        tags: The class number of each word.

    Raises:
        ValueError: `max_seq_length` leaves no piece for a word.
    """
    if max_seq_length < 3:
        raise ValueError(
            "max_seq_length must be at least 3, for [CLS], a word piece and [SEP]; got "
            f"{max_seq_length}."
        )
    room = max_seq_length - 2
    first_pieces = words.starts[words.bounds]  # of each sentence, and the number of pieces
    windows, rows, positions, several = [np.zeros((0, 2), np.int64)], [], [], 0
    count = 0
    for start, stop, begin, end in zip(
        first_pieces, first_pieces[1:], words.bounds, words.bounds[1:]
    ):
        if start == stop:  # a sentence without words
            continue
        of_sentence = cut(int(stop - start), room, max(1, room // 2))
        places = words.starts[begin:end] - start
        for number, (first, length) in enumerate(of_sentence):
            inside = places[(first <= places) & (places < first + length)] - first
            inside = inside[sees_best(of_sentence, number)[inside]]
            rows.append(np.full(len(inside), count + number))
            positions.append(inside + 1)
        windows.append(of_sentence + np.array([start, 0]))
        count += len(of_sentence)
        several += len(of_sentence) > 1
    ids = tokenizer.get_vocab()
    return Features(
        max_seq_length=max_seq_length,
        special=(ids[tokenization.CLS], ids[tokenization.SEP], ids[tokenization.PAD]),
        ids=words.ids,
        windows=np.concatenate(windows),
        rows=np.concatenate([np.zeros(0, np.int64), *rows]),
        positions=np.concatenate([np.zeros(0, np.int64), *positions]),
        tags=np.full(len(words.starts) - 1, UNKNOWN) if tags is None else tags,
        cut_sentences=several,
    )
