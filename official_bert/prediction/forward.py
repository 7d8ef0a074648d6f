"""Runs a model over rows of any length, and checks the texts of a caller."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from tokenizers import Tokenizer

from official_bert.data.row_batches import Rows
from official_bert.model.configured_model import ConfiguredModel
from official_bert.tasks.classification_features import make_features

if TYPE_CHECKING:
    from official_bert.protocols import Engine

INPUTS = ConfiguredModel.input_names
_ROWS_AT_ONCE = 1024  # whose padded arrays are in memory
_TEXTS_AT_ONCE = 4096  # the same, of texts
_SHOWN = 40  # characters of a text in an error


class Forward:
    """Runs a model over rows, in batches of rows of similar length.

    Args:
        model: The model, a function of {name: (B, S) int32}.
        engine: Where it lives; default: on one device of this process.
    """

    def __init__(self, model: keras.Model, engine: "Engine | None" = None):
        engine = engine or _engine_of_backend()
        self._outputs = engine.outputs(model)
        self._replicas, self._rounds = engine.num_replicas, engine.compiles_each_shape
        self._longest = model.config.max_position_embeddings

    def over(
        self,
        lengths: np.ndarray,
        make_batch: Callable[[np.ndarray], dict[str, np.ndarray]],
        batch_size: int,
    ) -> Iterator[tuple[np.ndarray, Any]]:
        """The model's outputs for all rows, in batches of rows of similar length.

        The longest come first: too large a batch fails at once.

        Args:
            lengths: Word pieces of each row, (N,).
            make_batch: Function of the numbers of some rows that returns their arrays.

        Yields:
            Numbers of rows, (B,), and their outputs as NumPy arrays, each (B, …). An axis of
            positions may be longer than in the batch.

        Raises:
            ValueError: if `batch_size` is below 1.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1; got {batch_size}.")
        order = np.argsort(-np.asarray(lengths), kind="stable")

        def first(count):
            return lambda array: array[:count]

        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            batch = {name: self._padded(array) for name, array in make_batch(rows).items()}
            yield rows, keras.tree.map_structure(first(len(rows)), self._outputs(batch))

    def over_arrays(
        self, arrays: Mapping[str, np.ndarray], batch_size: int
    ) -> Iterator[tuple[np.ndarray, Any]]:
        """The same for padded arrays, `INPUTS` of shape (N, S).

        An axis of positions in the outputs ends with the batch's longest row, or after it.
        """
        lengths = arrays["input_mask"].sum(axis=1)

        def make_batch(rows):
            width = lengths[rows].max()
            return {name: arrays[name][rows, :width] for name in INPUTS}

        return self.over(lengths, make_batch, batch_size)

    def parts(
        self, rows: Rows, batch_size: int, shape: Sequence[int]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Numbers of some rows at a time, in their order, and their outputs, (…, *shape).

        The outputs are 0 where a position is padding.
        """
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = np.arange(start, min(start + _ROWS_AT_ONCE, len(rows)))
            found = np.zeros((len(part), *shape), np.float32)
            for numbers, outputs in self.over_arrays(rows.batch(part), batch_size):
                outputs = outputs[:, : shape[0]]
                found[numbers, : outputs.shape[1]] = outputs
            yield part, found

    def whole(self, rows: Rows, batch_size: int, shape: Sequence[int]) -> np.ndarray:
        """The outputs of `parts` for all rows together, (N, *shape)."""
        found = np.zeros((len(rows), *shape), np.float32)
        for part, outputs in self.parts(rows, batch_size, shape):
            found[part] = outputs
        return found

    def over_sentences(
        self,
        sentences: Sequence[tuple[str, str | None]],
        tokenizer: Tokenizer,
        max_seq_length: int,
        batch_size: int,
    ) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray], Any]]:
        """Numbers of `sentences`, their padded arrays and their outputs; pairs come last."""
        for are_pairs in (False, True):
            rows = np.array(
                [n for n, (_, second) in enumerate(sentences) if (second is not None) == are_pairs]
            )
            for start in range(0, len(rows), _TEXTS_AT_ONCE):
                part = rows[start : start + _TEXTS_AT_ONCE]
                firsts, seconds = zip(*(sentences[n] for n in part))
                arrays = make_features(
                    firsts, seconds if are_pairs else None, tokenizer, max_seq_length
                )
                for numbers, outputs in self.over_arrays(arrays, batch_size):
                    yield part[numbers], {n: array[numbers] for n, array in arrays.items()}, outputs

    def _padded(self, array):
        """Rows that the replicas can share; where each shape is compiled, one of few shapes."""
        count, width = array.shape
        if self._rounds:
            count, width = _rounded(count), min(_rounded(width), self._longest)
        count = -(-count // self._replicas) * self._replicas
        return np.pad(array, [(0, count - array.shape[0]), (0, width - array.shape[1])])


def _rounded(size: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, …: at most half more."""
    power = 1 << (size - 1).bit_length()
    return power * 3 // 4 if size <= power * 3 // 4 else power


def _engine_of_backend():
    """An engine of Keras' backend, on one device of this process."""
    if keras.backend.backend() == "jax":
        import jax

        from official_bert.engines.jax_mesh import JaxMesh

        return JaxMesh(devices=jax.local_devices()[:1])
    if keras.backend.backend() == "torch":
        return _Operations()
    import tensorflow as tf

    from official_bert.engines.tf_distribute import TfDistribute

    return TfDistribute(tf.distribute.get_strategy())


class _Operations:
    """Keras on torch, which no engine trains on: one operation after the other."""

    num_replicas, compiles_each_shape = 1, False

    def outputs(self, model):
        return lambda rows: keras.tree.map_structure(keras.ops.convert_to_numpy, model(rows))


def require_finite(outputs: np.ndarray) -> None:
    """Raises a ValueError if a model's outputs are NaN or infinity."""
    if not np.isfinite(outputs).all():
        raise ValueError(
            "the model's outputs must be finite; got others. Its training diverged, or its numbers "
            "exceed the range of dtype='fp16'. Try dtype='fp32'."
        )


# Texts of a caller; an error names one by its number


def texts(given: Iterable[str]) -> list[str]:
    """A list of texts.

    Raises:
        ValueError: it is a single text, or one of its entries is not a text.
    """
    found = _listed(given, "texts")
    for number, text in enumerate(found):
        _require_text(text, f"text {number}")
    return found


def sentences(given: Iterable[str | Sequence[str]]) -> list[tuple[str, str | None]]:
    """Sentences and pairs, all as pairs, with `None` for a missing second. Raises as `texts`."""
    found: list[tuple[str, str | None]] = []
    for number, one in enumerate(_listed(given, "texts")):
        name = f"text {number}"
        first, second = (one, None) if isinstance(one, str) else _pair(one, name, "a text or ")
        _require_text(first, name)
        if not isinstance(one, str):
            _require_text(second, f"the second sentence of {name}")
        found.append((first, second))
    return found


def questions(given: Iterable[Sequence[str]]) -> list[tuple[str, str]]:
    """Questions with their contexts. Raises as `texts`."""
    found = []
    for number, one in enumerate(_listed(given, "questions")):
        question, context = _pair(one, f"question {number}")
        _require_text(question, f"question {number}")
        _require_text(context, f"the context of question {number}")
        found.append((question, context))
    return found


def shown(text: str) -> str:
    """The beginning of a text, for an error."""
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}…"


def words_or_texts(given: Iterable[str | Sequence[str]]) -> list[str | list[str]]:
    """Texts and lists of words. Raises as `texts`."""
    found: list[str | list[str]] = []
    for number, one in enumerate(_listed(given, "texts")):
        if isinstance(one, str):
            _require_text(one, f"text {number}")
        elif not isinstance(one, Sequence):
            raise ValueError(f"text {number} must be a text or a list of words; got {one!r:.99}.")
        else:
            one = [*one]
            for place, word in enumerate(one):
                _require_text(word, f"word {place} of text {number}")
        found.append(one)
    return found


def _listed(given, what):
    if isinstance(given, str):
        raise ValueError(f"{what} must be a list, such as [text]; got one text, {shown(given)}.")
    try:
        return list(given)
    except TypeError:
        raise ValueError(f"{what} must be a list; got {type(given).__name__}.") from None


def _pair(given, what, else_text=""):
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != 2:
        raise ValueError(
            f"{what} must be {else_text}a pair of texts, (first, second); got {given!r:.99}."
        )
    return given


def _require_text(text, what):
    if not isinstance(text, str):
        raise ValueError(f"{what} must be text (str); got {text!r:.99}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what} must be valid Unicode; got {text[error.start]!r}, half of a character."
        ) from None
