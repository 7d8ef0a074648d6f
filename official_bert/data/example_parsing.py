"""Serialized Examples → arrays: the static form (masked, padded) and the dynamic one (bare).

TensorFlow parses them. It is imported then: tasks of any backend import this module.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from official_bert.data.records import V2_NAMES
from official_bert.system.local_device import local_cpu

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
        import tensorflow as tf

        features = _features(first, where)
        self._names, self._lengths = {}, {}
        for name in STATIC_TYPES:
            there = [n for n in (name, V2_NAMES.get(name, name)) if n in features]
            if not there:
                raise ValueError(
                    f"{where}: no feature {name!r} (it holds "
                    f"{', '.join(sorted(features)) or 'none'}); expected a BERT pre-training "
                    f"record."
                )
            self._names[name] = there[0]
            self._lengths[name] = max_seq_length
        self._lengths |= dict.fromkeys(_PREDICTIONS, max_predictions) | {"next_sentence_labels": 1}
        self._check_lengths(first, where)
        self._spec = {
            self._names[name]: tf.io.FixedLenFeature(
                [self._lengths[name]], tf.float32 if kind is np.float32 else tf.int64
            )
            for name, kind in STATIC_TYPES.items()
        }

    def __call__(
        self, serialized: list[bytes], name: Callable[[int], str]
    ) -> dict[str, np.ndarray]:
        import tensorflow as tf

        try:
            with tf.device(local_cpu()):
                parsed = self.columns(tf.constant(serialized))
        except tf.errors.InvalidArgumentError as error:
            for number, record in enumerate(serialized):
                self._check_lengths(record, name(number))
            raise ValueError(
                f"{name(0)} or one of the next {len(serialized)}: {error.message}"
            ) from None
        return {
            key: parsed[key].numpy().astype(kind, copy=False) for key, kind in STATIC_TYPES.items()
        }

    def columns(self, serialized: "tf.Tensor") -> "dict[str, tf.Tensor]":
        """The features of records by their first names, integers as int64; also in a graph."""
        import tensorflow as tf

        parsed = tf.io.parse_example(serialized, self._spec)
        columns = {name: parsed[self._names[name]] for name in STATIC_TYPES}
        return columns | {"next_sentence_labels": columns["next_sentence_labels"][:, 0]}

    def _check_lengths(self, record: bytes, where: str) -> None:
        features = _features(record, where)
        for name, expected in self._lengths.items():
            feature = features[self._names[name]]
            values = (
                feature.float_list.value
                if STATIC_TYPES[name] is np.float32
                else feature.int64_list.value
            )
            if len(values) != expected:
                flag = "max_predictions_per_seq" if name in _PREDICTIONS else "max_seq_length"
                mend = f"; {flag} must equal that of the records" if expected > 1 else ""
                raise ValueError(
                    f"{where}: {self._names[name]} holds {len(values)} values, expected "
                    f"{expected}{mend}."
                )


def _features(record: bytes, where: str):
    """The feature map of a serialized Example."""
    import tensorflow as tf

    try:
        return tf.train.Example.FromString(record).features.feature
    except Exception as error:  # DecodeError, whose module moves between versions of protobuf
        raise ValueError(f"{where}: not a tf.train.Example ({error}).") from None


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
        import tensorflow as tf

        try:
            with tf.device(local_cpu()):
                parsed = _parsed_sequences(tf.constant(serialized))
                found = _joined_sequences(parsed)
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(
                f"{name(0)} or one of the next {len(serialized)}: {error.message}"
            ) from None
        _check_sentences(parsed["input_ids"], parsed["sentence_lengths"], name)
        return Sequences(*(tensor.numpy() for tensor in found))

    def sequences(self, serialized: "tf.Tensor") -> Sequences:
        """The records as tensors, for a graph."""
        return _joined_sequences(_parsed_sequences(serialized))


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


def _check_sentences(tokens, lengths, name: Callable[[int], str]) -> None:
    """Refuses records whose sentences are not their tokens cut in pieces, and negative ids."""
    ids, sizes = tokens.values.numpy(), lengths.values.numpy()
    token_splits, splits = tokens.row_splits.numpy(), lengths.row_splits.numpy()
    total = np.concatenate([[0], np.cumsum(sizes)])
    wrong = total[splits[1:]] - total[splits[:-1]] != np.diff(token_splits)
    wrong |= np.diff(splits) == 0
    bad_sizes = np.flatnonzero((sizes < 1) | (sizes > len(ids)))
    wrong[np.searchsorted(splits, bad_sizes, "right") - 1] = True
    wrong[np.searchsorted(token_splits, np.flatnonzero(ids < 0), "right") - 1] = True
    if wrong.any():
        raise ValueError(
            f"{name(int(np.argmax(wrong)))}: its sentences are not its tokens cut in pieces; the "
            "file is damaged, make it again."
        )
