"""Runs of records → pools: parsed, checked and joined, to draw batches from."""

from typing import Any

import numpy as np

from official_bert.data.example_parsing import DynamicParser, Sequences, StaticParser
from official_bert.data.record_files import RecordFiles, RecordRange

# The columns of static records, or the sequences of dynamic ones.
Pool = dict[str, np.ndarray] | Sequences

PARSED_AT_ONCE = 2048


class PoolReader:
    """Reads runs of records into one pool, in their order.

    Raises:
        ValueError: when called, if a record cannot be parsed, or has ids beyond the vocabulary or
            positions beyond the sequence; the message names file and record.
    """

    def __init__(
        self,
        files: RecordFiles,
        parse: StaticParser | DynamicParser,
        vocab_size: int | None,
        max_seq_length: int,
    ):
        self._files, self._parse = files, parse
        self._vocab_size, self._max_seq_length = vocab_size, max_seq_length

    def __call__(self, runs: list[RecordRange]) -> Pool:
        serialized = [record for run in runs for record in self._files.read(*run)]
        pools: list[Any] = []
        for at in range(0, len(serialized), PARSED_AT_ONCE):

            def name(number: int, at=at) -> str:
                return self._name(runs, at + number)

            pool = self._parse(serialized[at : at + PARSED_AT_ONCE], name)
            if isinstance(pool, Sequences):
                self._check_sequences(pool, name)
            else:
                self._check_columns(pool, name)
            pools.append(pool)
        if isinstance(pools[0], Sequences):
            return _joined(pools)
        return {key: np.concatenate([pool[key] for pool in pools]) for key in pools[0]}

    def _name(self, runs: list[RecordRange], number: int) -> str:
        for block, start, stop in runs:
            if number < stop - start:
                return self._files.name(self._files.first_of(block) + start + number)
            number -= stop - start
        raise IndexError(number)

    def _check_sequences(self, pool: Sequences, name) -> None:
        if self._vocab_size and pool.tokens.size and pool.tokens.max() >= self._vocab_size:
            token = int(np.argmax(pool.tokens >= self._vocab_size))
            record = int(np.searchsorted(pool.token_splits, token, "right")) - 1
            raise ValueError(self._beyond(name(record), int(pool.tokens[token])))
        lengths = np.diff(pool.token_splits)
        if lengths.max() > self._max_seq_length - 3:
            record = int(np.argmax(lengths))
            raise ValueError(
                f"{name(record)}: length must be at most {self._max_seq_length - 3} tokens with "
                f"max_seq_length={self._max_seq_length}; got {lengths[record]}. Make the records "
                "for this length."
            )

    def _check_columns(self, pool: dict[str, np.ndarray], name) -> None:
        limits = {
            "input_ids": self._vocab_size,
            "masked_lm_ids": self._vocab_size,
            "masked_lm_positions": self._max_seq_length,
        }
        for key, limit in limits.items():
            values = pool[key]
            if values.min() >= 0 and (not limit or values.max() < limit):
                continue
            bad = (values < 0) | (values >= (limit or np.inf))
            record = int(np.argmax(bad.any(1)))
            value = int(values[record][bad[record]][0])
            if key == "masked_lm_positions":
                raise ValueError(
                    f"{name(record)}: masked positions must be 0 to {self._max_seq_length - 1}; "
                    f"got {value}. Make the records for this max_seq_length."
                )
            raise ValueError(self._beyond(name(record), value))

    def _beyond(self, where: str, token: int) -> str:
        size = f" of {self._vocab_size:,}" if self._vocab_size else ""
        return (
            f"{where}: token ids must be in the vocabulary{size}; got {token}. Make the records "
            "with the vocabulary of the model."
        )


def _joined(pools: list[Sequences]) -> Sequences:
    def splits(arrays, sizes):
        offsets = np.cumsum([0, *sizes[:-1]])
        return [array + offset for array, offset in zip(arrays, offsets, strict=True)]

    tokens = [len(pool.tokens) for pool in pools]
    sentences = [len(pool.sentence_starts) for pool in pools]
    token_splits = splits([pool.token_splits for pool in pools], tokens)
    sentence_splits = splits([pool.sentence_splits for pool in pools], sentences)
    return Sequences(
        np.concatenate([pool.tokens for pool in pools]),
        np.concatenate([token_splits[0], *(s[1:] for s in token_splits[1:])]),
        np.concatenate(splits([pool.sentence_starts for pool in pools], tokens)),
        np.concatenate([sentence_splits[0], *(s[1:] for s in sentence_splits[1:])]),
        np.concatenate([pool.documents for pool in pools]),
    )
