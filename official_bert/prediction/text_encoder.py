"""A pre-trained encoder without a head, which turns texts into vectors."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import keras
import numpy as np
from tokenizers import Tokenizer

from official_bert.data import tokenization
from official_bert.model.encoder import BertEncoder
from official_bert.prediction import forward, inputs
from official_bert.tasks.classification_features import make_features

_TEXTS_AT_ONCE = 4096  # whose padded arrays are in memory


class Encoding(NamedTuple):
    """The vectors of a text; S word pieces with [CLS] and [SEP], H hidden units.

    Attributes:
        tokens: The S word pieces.
        vectors: Their vectors, (S, H), float32.
        pooled: The pooled vector of [CLS], (H,); `None` if the checkpoint has no pooler.
    """

    tokens: list[str]
    vectors: np.ndarray
    pooled: np.ndarray | None


class TextEncoder:
    """A bare encoder together with its vocabulary; made by `official_bert.load`.

    Args:
        model: The `BertEncoder`.
        tokenizer: The tokenizer of its vocabulary, of `tokenization.load`.
        max_seq_length: Word pieces per text at most, with [CLS] and [SEP].
        has_pooler: Whether the checkpoint has a pooler.
        origin: What it was loaded from, for `repr` and errors.

    Attributes:
        model, tokenizer, max_seq_length, has_pooler: As given.

    Example:

    >>> encoder = official_bert.load("bert_model_hf")               # doctest: +SKIP
    >>> encoder.predict(["A good cat."])[0].vectors.shape           # doctest: +SKIP
    (6, 768)
    """

    def __init__(
        self,
        model: BertEncoder,
        tokenizer: Tokenizer,
        *,
        max_seq_length: int,
        has_pooler: bool,
        origin: str,
    ):
        self.model, self.tokenizer, self.max_seq_length = model, tokenizer, max_seq_length
        self.has_pooler, self._origin = has_pooler, origin
        self._graph = forward.as_graph(model)

    def __repr__(self):
        config = self.model.config
        return (
            f"<TextEncoder: {config.num_hidden_layers} × {config.hidden_size} units, without a "
            f"head, from {self._origin}>"
        )

    def predict(
        self, texts: Iterable[str | Sequence[str]], *, batch_size: int = 32
    ) -> list[Encoding]:
        """The vectors of each text.

        A text with more than `max_seq_length` word pieces is cut at its end; of a pair,
        pieces are taken from the end of the longer sentence.

        Args:
            texts: Sentences, or pairs of them, (first, second).
            batch_size: Texts computed at once.

        Returns:
            An `Encoding` for each.

        Raises:
            ValueError: if a text is no text, or has a `[MASK]`, which takes a head to fill.
        """
        sentences = inputs.sentences(texts)
        for number, sentence in enumerate(sentences):
            if any(tokenization.MASK in part for part in sentence if part is not None):
                raise ValueError(
                    f"text {number} must have no [MASK]; got {inputs.shown(sentence[0])}. "
                    f"{self._origin} has no masked-LM head to fill blanks with; load a model that "
                    "has one."
                )
        found: dict[int, Encoding] = {}
        for are_pairs in (False, True):
            rows = [n for n, pair in enumerate(sentences) if (pair[1] is not None) == are_pairs]
            for start in range(0, len(rows), _TEXTS_AT_ONCE):
                part = rows[start : start + _TEXTS_AT_ONCE]
                firsts, seconds = zip(*(sentences[n] for n in part))
                arrays = make_features(
                    firsts, seconds if are_pairs else None, self.tokenizer, self.max_seq_length
                )
                found |= zip(part, self._encodings(arrays, batch_size))
        return [found[number] for number in range(len(sentences))]

    def _encodings(self, arrays, batch_size):
        lengths = arrays["input_mask"].sum(axis=1)
        found = {}
        for rows in forward.by_length(lengths, batch_size):
            batch = {name: array[rows, : lengths[rows].max()] for name, array in arrays.items()}
            outputs = {n: keras.ops.convert_to_numpy(x) for n, x in self._graph(batch).items()}
            outputs = {name: array.astype(np.float32) for name, array in outputs.items()}
            forward.require_finite(outputs["sequence"])
            for row, vectors, pooled in zip(rows, outputs["sequence"], outputs["pooled"]):
                ids = arrays["input_ids"][row, : lengths[row]].tolist()
                found[row] = Encoding(
                    [self.tokenizer.id_to_token(id) for id in ids],
                    vectors[: lengths[row]],
                    pooled if self.has_pooler else None,
                )
        return [found[row] for row in range(len(lengths))]
