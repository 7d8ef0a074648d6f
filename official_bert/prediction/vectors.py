"""Vectors of word pieces and of whole texts, from any layer of a loaded model."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from tokenizers import Tokenizer

from official_bert.data import tokenization
from official_bert.model.config import BertConfig
from official_bert.model.configured_model import ConfiguredModel
from official_bert.model.encoder import BertEncoder, LayerOutputs
from official_bert.prediction import forward
from official_bert.prediction.forward import Forward
from official_bert.system import messages

_SMALLEST_NORM = 1e-12  # of a vector that is divided by its length


class Layers:
    """Computes the vectors of word pieces in some layers of a model.

    Args:
        layers: Numbers of layers: 0 is the first, -1 the last.
        max_seq_length: Maximum number of word pieces of a text, with [CLS] and [SEP].

    Attributes:
        num_cut: Number of texts so far that were longer.

    Raises:
        ValueError: the model has no such layer, or fewer positions.
    """

    def __init__(
        self,
        model: ConfiguredModel,
        tokenizer: Tokenizer,
        layers: Sequence[int],
        max_seq_length: int,
    ):
        positions = model.config.max_position_embeddings
        if max_seq_length > positions:
            raise ValueError(
                f"max_seq_length must be at most {positions}, the model's number of positions; got "
                f"{max_seq_length}. Give {positions} or less."
            )
        encoder = model if isinstance(model, BertEncoder) else model.encoder
        numbers = [_layer_number(layer, model.config) for layer in layers]
        self.num_cut = 0
        self._forward = Forward(LayerOutputs(encoder, numbers))
        self._tokenizer, self._max_seq_length = tokenizer, max_seq_length
        self._pieces = tokenization.SentenceEncoder(tokenizer)

    def over(
        self, sentences: Sequence[tuple[str, str | None]], batch_size: int
    ) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray], list[np.ndarray]]]:
        """Numbers of B `forward.sentences` at a time, arrays (B, S), and per layer (B, S, H)."""
        settings = self._tokenizer, self._max_seq_length, batch_size
        for numbers, arrays, outputs in self._forward.over_sentences(sentences, *settings):
            width = int(arrays["input_mask"].sum(axis=1).max())
            self.num_cut += sum(
                self._is_cut(sentences[number])
                for number, is_full in zip(numbers, arrays["input_mask"][:, -1])
                if is_full
            )
            layers = [layer[:, :width].astype(np.float32) for layer in outputs]
            for layer in layers:
                forward.require_finite(layer)
            yield numbers, {name: array[:, :width] for name, array in arrays.items()}, layers

    def _is_cut(self, sentence):
        parts = self._pieces([part for part in sentence if part is not None])
        return 1 + sum(len(part) + 1 for part in parts) > self._max_seq_length

    def warn_of_cut(self, texts: str) -> None:
        """Prints a warning if texts were cut; `texts` completes the sentence that counts them."""
        if self.num_cut:
            messages.warn(
                f"{self.num_cut:,} {texts} have more than {self._max_seq_length:,} word pieces, "
                "with [CLS] and [SEP], and were cut at their end. To read them whole, divide them."
            )


def _layer_number(layer: int, config: BertConfig) -> int:
    count = config.num_hidden_layers
    if not isinstance(layer, int | np.integer) or not -count <= layer < count:
        raise ValueError(
            f"a layer must be {-count} to {count - 1}, where -1 is the last; got {layer!r}. Name "
            "layers that the model has, such as -1."
        )
    return int(layer) % count


# Vectors of texts


def _mean(vectors: np.ndarray, mask: np.ndarray) -> np.ndarray:
    weights = mask.astype(np.float32)[:, None]  # (B, 1, S)
    return (weights @ vectors)[:, 0] / weights.sum(axis=-1)


def _max(vectors: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.where(mask[..., None] == 1, vectors, -np.inf).max(axis=1)


def _cls(vectors: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return vectors[:, 0]


POOLINGS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "mean": _mean,
    "cls": _cls,
    "max": _max,
}
"""Functions of vectors (B, S, H) and the input mask (B, S) that return (B, H)."""


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class Embedding:
    """`embed`, for every model that `official_bert.load` returns.

    Attributes:
        model: The model.
        tokenizer: The tokenizer of its vocabulary.
        max_seq_length: Maximum number of word pieces of a text, with [CLS] and [SEP].
        origin: Path and format of the checkpoint.
    """

    model: ConfiguredModel
    tokenizer: Tokenizer
    max_seq_length: int
    origin: str

    def __post_init__(self):
        self._forward = Forward(self.model)

    def embed(
        self,
        texts: Iterable[str | Sequence[str]],
        pooling: str = "mean",
        layer: int = -1,
        normalize: bool = True,
        *,
        batch_size: int = 32,
    ) -> np.ndarray:
        """One vector for each text.

        A text with more than `max_seq_length` word pieces is cut at its end, with one warning for
        all. Special tokens in a text, such as [MASK], are read as ordinary characters.

        Args:
            texts: Texts, or pairs of them, (first, second).
            pooling: `"mean"`: the mean over the word pieces, [CLS] and [SEP] included, as
                sentence-transformers does; `"max"`: their maximum in each dimension; `"cls"`: the
                vector of [CLS].
            layer: The layer whose vectors are taken: 0 is the first, -1 the last.
            normalize: Whether each vector is divided by its length: the dot product of two is then
                the cosine of their angle.
            batch_size: Texts computed at once.

        Returns:
            N vectors of H hidden units, (N, H), float32.

        Raises:
            ValueError: if an entry is not a text, or there is no such pooling or layer.

        Example:

        >>> model = official_bert.load("bert_model_hf")          # doctest: +SKIP
        >>> a, b = model.embed(["A good cat.", "A fine cat."])   # doctest: +SKIP
        >>> float(a @ b)                                         # doctest: +SKIP
        0.93
        """
        if pooling not in [*POOLINGS]:
            raise ValueError(f"pooling must be {' or '.join(POOLINGS)}; got {pooling!r}.")
        sentences, number = forward.sentences(texts), _layer_number(layer, self.model.config)
        key = number, self.max_seq_length
        if key not in self._by_layer:
            self._by_layer[key] = Layers(self.model, self.tokenizer, [number], self.max_seq_length)
        layers = self._by_layer[key]
        layers.num_cut = 0
        found = np.zeros((len(sentences), self.model.config.hidden_size), np.float32)
        for numbers, arrays, (vectors,) in layers.over(sentences, batch_size):
            found[numbers] = POOLINGS[pooling](vectors, arrays["input_mask"])
        layers.warn_of_cut(f"of {len(sentences):,} texts")
        if normalize:
            lengths = np.linalg.norm(found, axis=-1, keepdims=True)
            found /= np.maximum(lengths, _SMALLEST_NORM)
        return found

    @functools.cached_property
    def _by_layer(self) -> dict[tuple[int, int], Layers]:
        """The layers asked for so far: each has a program of its own."""
        return {}
