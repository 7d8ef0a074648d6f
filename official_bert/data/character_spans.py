"""Word pieces together with the characters that they stand for.

A piece that the tokenizer lower-cased, stripped of accents or replaced by [UNK] still has its place
in the text. So text can be cut from the original instead of being put together from pieces.
"""

import unicodedata
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from tokenizers import Encoding, Tokenizer

_AT_ONCE = 1 << 18  # characters; the library's answer takes some 200 bytes per piece


class Pieces(NamedTuple):
    """The word pieces of several texts, concatenated; text n has bounds[n : n + 2]."""

    ids: np.ndarray  # (pieces,) int32
    spans: np.ndarray  # (pieces, 2) int32: first character in its text, and one past the last
    bounds: np.ndarray  # (texts + 1,) int64


def encode(tokenizer: Tokenizer, texts: Iterable[str]) -> Pieces:
    """Word pieces and their spans, in characters (code points) of the original text.

    Spans ascend. Accents that the tokenizer strips belong to the piece before them, and pieces of
    one character (the parts of a Korean syllable) share its span. The library uses all cores; their
    number does not change the result.

    Args:
        tokenizer: What `tokenization.load` returned.
        texts: Read once, some at a time, so memory is needed only for the arrays.
    """
    ids, spans, lengths = [], [], [0]
    for batch in _batches(texts):
        encodings = tokenizer.encode_batch(batch, add_special_tokens=False)
        ids += [np.array(encoding.ids, np.int32) for encoding in encodings]
        spans += map(_spans, batch, encodings)
        lengths += map(len, encodings)
    return Pieces(
        np.concatenate([np.zeros(0, np.int32), *ids]),
        np.concatenate([np.zeros((0, 2), np.int32), *spans]),
        np.cumsum(lengths, dtype=np.int64),
    )


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch, size = [], 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size > _AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _spans(text: str, encoding: Encoding) -> np.ndarray:
    spans = np.array(encoding.offsets, np.int32).reshape(-1, 2)
    if not text.isascii() and any(map(_is_accent, set(text))):
        nexts = [*spans[1:, 0].tolist(), len(text)]
        for span, following in zip(spans, nexts):
            while span[1] < following and _is_accent(text[span[1]]):
                span[1] += 1
    return spans


def _is_accent(character: str) -> bool:
    return unicodedata.category(character) == "Mn"
