"""Input features for sentences and sentence pairs: ids, masks and segments.

    [CLS] sentence1 [SEP] [PAD] …
    [CLS] sentence1 [SEP] sentence2 [SEP] [PAD] …

Segment 0 is the first sentence with its [CLS] and [SEP], segment 1 the second with its [SEP]; in
padding, ids, mask and segments are 0.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
from tokenizers import Tokenizer

from official_bert.data import tokenization

_ROWS_AT_ONCE = 4096  # Python lists take ten times the memory of arrays


def make_features(
    sentences1: Sequence[str],
    sentences2: Sequence[str] | None,
    tokenizer: Tokenizer,
    max_seq_length: int = 128,
) -> dict[str, np.ndarray]:
    """The arrays of all examples, S = `max_seq_length`.

    A sentence that is too long is cut at its end; in a pair, pieces are removed from the end of the
    longer sentence, from the second if both are equally long, as in the official script.

    Args:
        sentences1: N sentences, which may be empty.
        sentences2: N second sentences of pairs; None for single sentences.
        tokenizer: Of `tokenization.load`.
        max_seq_length: Number of pieces per example, with [CLS], [SEP] and padding.

    Returns:
        `input_ids`, `input_mask` and `segment_ids`, int32 of shape (N, S).

    Raises:
        ValueError: `max_seq_length` leaves no piece for a sentence.

    Examples:
        >>> features = make_features(["Hello."], ["Who are you?"], tokenizer, 8)
        >>> features["input_mask"]
        array([[1, 1, 1, 1, 1, 1, 1, 1]], dtype=int32)
    """
    fewest = 3 if sentences2 is None else 5
    if max_seq_length < fewest:
        raise ValueError(
            f"max_seq_length must be at least {fewest}, for [CLS] and, per sentence, a word piece "
            f"and [SEP]; got {max_seq_length}."
        )
    encode = tokenization.SentenceEncoder(tokenizer)
    ids = tokenizer.get_vocab()
    cls, sep = ids[tokenization.CLS], ids[tokenization.SEP]
    places = np.arange(max_seq_length)
    shape = len(sentences1), max_seq_length
    features = {
        name: np.zeros(shape, np.int32) for name in ("input_ids", "input_mask", "segment_ids")
    }
    for start in range(0, len(sentences1), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        pieces1 = encode(sentences1[rows])
        lengths1 = np.fromiter(map(len, pieces1), np.int64, len(pieces1))
        if sentences2 is None:
            first = np.minimum(lengths1, max_seq_length - 2)
            total = first + 2
            made = ([cls, *a[:m], sep] for a, m in zip(pieces1, first.tolist()))
        else:
            pieces2 = encode(sentences2[rows])
            lengths2 = np.fromiter(map(len, pieces2), np.int64, len(pieces2))
            first, second = kept_lengths(lengths1, lengths2, max_seq_length - 3)
            total = first + second + 3
            kept = zip(pieces1, first.tolist(), pieces2, second.tolist())
            made = ([cls, *a[:m], sep, *b[:n], sep] for a, m, b, n in kept)
        is_used = places < total[:, None]
        pieces = np.fromiter(chain.from_iterable(made), np.int32, int(total.sum()))
        features["input_ids"][rows][is_used] = pieces
        features["input_mask"][rows] = is_used
        features["segment_ids"][rows] = is_used & (places >= first[:, None] + 2)
    return features


def kept_lengths(
    lengths1: np.ndarray, lengths2: np.ndarray, room: int
) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of pieces of each sentence of a pair that remain.

    Removing pieces one by one from the longer sentence, from the second if both are equally long,
    has this result: a sentence of at most half the room stays whole, the other gets the rest; else
    each gets half, and the first the odd piece.

    Args:
        lengths1, lengths2: Pieces of the first and of the second sentences, (N,).
        room: Maximum number of pieces of both together.
    """
    fits = lengths1 + lengths2 <= room
    kept1 = np.minimum(lengths1, np.maximum((room + 1) // 2, room - lengths2))
    return np.where(fits, lengths1, kept1), np.where(fits, lengths2, room - kept1)
