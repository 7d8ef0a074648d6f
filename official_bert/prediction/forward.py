"""Checks the texts of a caller, and runs a model over texts of any length."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from official_bert.model import fused
from official_bert.model.configured_model import ConfiguredModel

INPUTS = ConfiguredModel.input_names
_SHOWN = 40  # characters of a text in an error


class Forward:
    """Runs a model over rows: one graph, batches as long as their longest row.

    On TensorFlow the graph has no kernels that would be recompiled for each new shape.

    Args:
        model: The model, a function of {name: (B, S) int32}.
    """

    def __init__(self, model: ConfiguredModel):
        self._graph = _as_graph(model) if keras.backend.backend() == "tensorflow" else model

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
            batch_size: Rows at once.

        Yields:
            Numbers of rows, (B,), and their outputs as NumPy arrays, each (B, …).

        Raises:
            ValueError: if `batch_size` is below 1.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1; got {batch_size}.")
        order = np.argsort(-np.asarray(lengths), kind="stable")
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            outputs = self._graph(make_batch(rows))
            yield rows, keras.tree.map_structure(keras.ops.convert_to_numpy, outputs)

    def over_arrays(
        self, arrays: Mapping[str, np.ndarray], batch_size: int
    ) -> Iterator[tuple[np.ndarray, Any]]:
        """The same for padded arrays, `INPUTS` of shape (N, S).

        An axis of positions in the outputs ends with the batch's longest row.
        """
        lengths = arrays["input_mask"].sum(axis=1)

        def make_batch(rows):
            width = lengths[rows].max()
            return {name: np.ascontiguousarray(arrays[name][rows, :width]) for name in INPUTS}

        return self.over(lengths, make_batch, batch_size)


def _as_graph(model):
    import tensorflow as tf

    specs = {name: tf.TensorSpec((None, None), tf.int32, name=name) for name in model.input_names}

    @tf.function(input_signature=[specs], autograph=False)
    def outputs(batch):
        with fused.as_plain_operations():
            return model(batch)

    return outputs


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
    """Sentences and pairs of sentences, all as pairs; the second of a single one is `None`.

    Raises:
        ValueError: as `texts`.
    """
    found: list[tuple[str, str | None]] = []
    for number, one in enumerate(_listed(given, "texts")):
        name = f"text {number}"
        first, second = (one, None) if isinstance(one, str) else _pair(one, name)
        _require_text(first, name)
        if not isinstance(one, str):
            _require_text(second, f"the second sentence of {name}")
        found.append((first, second))
    return found


def questions(given: Iterable[Sequence[str]]) -> list[tuple[str, str]]:
    """Questions with their contexts.

    Raises:
        ValueError: as `texts`.
    """
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


def _listed(given, what):
    if isinstance(given, str):
        raise ValueError(f"{what} must be a list, such as [text]; got one text, {shown(given)}.")
    try:
        return list(given)
    except TypeError:
        raise ValueError(f"{what} must be a list; got {type(given).__name__}.") from None


def _pair(given, what):
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != 2:
        raise ValueError(f"{what} must be a pair of texts, (first, second); got {given!r:.99}.")
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
