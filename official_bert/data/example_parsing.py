"""Serialized Examples → arrays: the static form (masked, padded) and the dynamic one (bare).

Where TensorFlow is loaded it parses them, on all cores; elsewhere `example_wire` does.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from official_bert.data import example_wire
from official_bert.data.records import V2_NAMES
from official_bert.system.quiet_tensorflow import local_cpu

if TYPE_CHECKING:
    import tensorflow as tf

STATIC_TYPES = {
    "input_ids": np.int32,
    "input_mask": np.int8,
    "segment_ids": np.int8,
    "masked_lm_positions": np.int16,
    "masked_lm_ids": np.int32,
    "masked_lm_weights": np.float32,
    "next_sentence_labels": np.int8,
}
_PREDICTIONS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")


class StaticParser:
    """Parses the official schema with either set of names; the first record decides which.

    Raises:
        ValueError: a record has other features or lengths than expected. The first record is
            checked at construction, the others when they are parsed; the message starts with
            `name(i)` of record i.
    """

    def __init__(self, first: bytes, where: str, max_seq_length: int, max_predictions: int):
        features = _features(first, where)
        self._names, self._lengths = {}, {}
        for name in STATIC_TYPES:
            there = [n for n in (name, V2_NAMES.get(name, name)) if n in features]
            if not there:
                raise ValueError(
                    f"{where} must be a BERT pre-training record with a feature {name!r}; got "
                    f"{', '.join(sorted(features)) or 'no features'}. Make the records with "
                    "`lamb-bert create-data`."
                )
            self._names[name] = there[0]
            self._lengths[name] = max_seq_length
        self._lengths |= dict.fromkeys(_PREDICTIONS, max_predictions) | {"next_sentence_labels": 1}
        self._check_lengths(first, where)

    def __call__(
        self, serialized: list[bytes], name: Callable[[int], str]
    ) -> dict[str, np.ndarray]:
        parse = self._parse_in_tensorflow if sys.modules.get("tensorflow") else self._parse
        parsed = parse(serialized, name)
        return {key: parsed[key].astype(kind, copy=False) for key, kind in STATIC_TYPES.items()}

    def _parse(self, serialized, name):
        columns = {}
        features = _all_features(serialized, name)
        for key, kind in STATIC_TYPES.items():
            values, counts = _column(features, self._names[key], kind, name)
            if (counts != self._lengths[key]).any():
                for number, record in enumerate(serialized):
                    self._check_lengths(record, name(number))
            columns[key] = values.reshape(len(serialized), -1)
        return columns | {"next_sentence_labels": columns["next_sentence_labels"][:, 0]}

    def _parse_in_tensorflow(self, serialized, name):
        import tensorflow as tf

        try:
            with tf.device(local_cpu()):
                parsed = self.columns(tf.constant(serialized))
        except tf.errors.InvalidArgumentError as error:
            for number, record in enumerate(serialized):
                self._check_lengths(record, name(number))
            raise ValueError(
                f"{name(0)} or one of the next {len(serialized)} is damaged: {error.message}"
            ) from None
        return {key: tensor.numpy() for key, tensor in parsed.items()}

    def columns(self, serialized: "tf.Tensor") -> "dict[str, tf.Tensor]":
        """The features of records by their first names, integers as int64; also in a graph."""
        import tensorflow as tf

        spec = {
            self._names[name]: tf.io.FixedLenFeature(
                [self._lengths[name]], tf.float32 if kind is np.float32 else tf.int64
            )
            for name, kind in STATIC_TYPES.items()
        }
        parsed = tf.io.parse_example(serialized, spec)
        columns = {name: parsed[self._names[name]] for name in STATIC_TYPES}
        return columns | {"next_sentence_labels": columns["next_sentence_labels"][:, 0]}

    def _check_lengths(self, record: bytes, where: str) -> None:
        features = [_features(record, where)]
        for name, expected in self._lengths.items():
            kind = STATIC_TYPES[name]
            (count,) = _column(features, self._names[name], kind, lambda _: where).counts
            if count != expected:
                flag = "max_predictions_per_seq" if name in _PREDICTIONS else "max_seq_length"
                mend = f" Set {flag} to that of the records." if expected > 1 else ""
                raise ValueError(
                    f"{where}: {self._names[name]} must have length {expected}; got {count}.{mend}"
                )


def _features(record: bytes, where: str):
    """The features of a serialized Example, as `example_wire` has them."""
    try:
        return example_wire.features(record)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{where} must be a tf.train.Example; got other or damaged data ({error}). Make the "
            "file again."
        ) from None


def _all_features(serialized, name: Callable[[int], str]):
    """The features of each of several serialized Examples."""
    return example_wire.features_in_step(serialized) or [
        _features(record, name(number)) for number, record in enumerate(serialized)
    ]


def _column(features, key, kind, name: Callable[[int], str]):
    """One feature of several records; what is wrong names its record."""
    try:
        wanted = example_wire.FLOATS if kind is np.float32 else example_wire.INTEGERS
        return example_wire.column(features, key, wanted)
    except ValueError as error:
        number, _, reason = str(error).partition(": ")
        raise ValueError(f"{name(int(number))}: {reason}. Make the file again.") from None


class Sequences(NamedTuple):
    """Parsed records of the dynamic form, concatenated.

    Record r holds the tokens `token_splits[r] … token_splits[r+1]` and the sentences
    `sentence_splits[r] … sentence_splits[r+1]`; sentence s begins at token `sentence_starts[s]`.
    """

    tokens: np.ndarray
    token_splits: np.ndarray
    sentence_starts: np.ndarray
    sentence_splits: np.ndarray
    documents: np.ndarray

    def lengths_of(self, records: np.ndarray) -> np.ndarray:
        """Number of tokens of some of the records."""
        return self.token_splits[records + 1] - self.token_splits[records]


class DynamicParser:
    """Parses records made for dynamic masking."""

    def __call__(self, serialized: list[bytes], name: Callable[[int], str]) -> Sequences:
        parse = _sequences_in_tensorflow if sys.modules.get("tensorflow") else _sequences
        found, sizes = parse(serialized, name)
        _check_sentences(found, sizes, name)
        return found

    def sequences(self, serialized: "tf.Tensor") -> Sequences:
        """The records as tensors, for a graph."""
        return _joined_sequences(_parsed_sequences(serialized))


def _sequences(serialized, name):
    """The records' `Sequences`, and the lengths of all sentences."""
    features = _all_features(serialized, name)
    keys = ("input_ids", "sentence_lengths", "document")
    tokens, lengths, documents = (_column(features, key, np.int64, name) for key in keys)
    if (documents.counts != 1).any():
        raise ValueError(
            f"{name(int(np.argmax(documents.counts != 1)))}: the feature 'document' must have one "
            "value. Make the file again."
        )
    found = Sequences(
        tokens.values.astype(np.int32),
        _splits(tokens.counts),
        np.cumsum(lengths.values) - lengths.values,
        _splits(lengths.counts),
        documents.values,
    )
    return found, lengths.values


def _splits(counts):
    return np.concatenate([[0], np.cumsum(counts)])


def _sequences_in_tensorflow(serialized, name):
    import tensorflow as tf

    try:
        with tf.device(local_cpu()):
            parsed = _parsed_sequences(tf.constant(serialized))
            found = _joined_sequences(parsed)
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(
            f"{name(0)} or one of the next {len(serialized)} is damaged: {error.message}"
        ) from None
    lengths = parsed["sentence_lengths"].values.numpy()
    return Sequences(*(tensor.numpy() for tensor in found)), lengths


def _parsed_sequences(serialized):
    import tensorflow as tf

    ragged = tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)
    document = tf.io.FixedLenFeature([], tf.int64)
    spec = {"input_ids": ragged, "sentence_lengths": ragged, "document": document}
    return tf.io.parse_example(serialized, spec)


def _joined_sequences(parsed):
    import tensorflow as tf

    tokens, lengths = parsed["input_ids"], parsed["sentence_lengths"]
    return Sequences(
        tf.cast(tokens.values, tf.int32),
        tokens.row_splits,
        tf.cumsum(lengths.values, exclusive=True),
        lengths.row_splits,
        parsed["document"],
    )


def _check_sentences(found: Sequences, sizes: np.ndarray, name: Callable[[int], str]) -> None:
    """Refuses records whose sentences do not add up to their tokens, and negative ids."""
    ids, token_splits, _, splits, _ = found
    total = np.concatenate([[0], np.cumsum(sizes)])
    wrong = total[splits[1:]] - total[splits[:-1]] != np.diff(token_splits)
    wrong |= np.diff(splits) == 0
    bad_sizes = np.flatnonzero((sizes < 1) | (sizes > len(ids)))
    wrong[np.searchsorted(splits, bad_sizes, "right") - 1] = True
    wrong[np.searchsorted(token_splits, np.flatnonzero(ids < 0), "right") - 1] = True
    if wrong.any():
        raise ValueError(
            f"{name(int(np.argmax(wrong)))} is damaged: its sentences do not add up to its tokens. "
            "Make the file again."
        )
