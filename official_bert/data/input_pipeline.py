"""Records → the batch of step k: a function of (files, seed, k), the same on any number of hosts.

The order. Up to `WINDOW_RECORDS` records are held in memory and shuffled together. Larger data are
read in blocks of neighbouring records:

    epoch e of N records: the blocks, in an order drawn from (seed, e)
    the endless stream: record g is number g mod N of epoch g // N
    the stream is cut into windows of W records, a window into L sections; each section is shuffled
    a batch of B examples takes the next B / L of every section of its window

So a batch mixes hundreds of blocks. A host that trains a part of each batch reads only the sections
that feed it. Any step can be read directly. Every record comes exactly once per epoch.
"""

import hashlib
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from official_bert.data import manifest, parsed_records
from official_bert.data.dynamic_masking import Draws, DynamicMasking, Rows, permutation
from official_bert.data.parsed_records import (
    DynamicParser,
    ParsedRecords,
    Sequences,
    StaticParser,
)
from official_bert.data.record_files import RecordFiles, RecordRange
from official_bert.protocols import ArraySpec

if TYPE_CHECKING:
    import tensorflow as tf

WINDOW_RECORDS = 65536
MAX_SECTIONS = 16
MIN_ROWS = 16  # of a section in a batch: fewer would be slow


class Window(NamedTuple):
    """The sections of a window that feed this host: their records, and the order in each."""

    records: ParsedRecords
    orders: np.ndarray  # (sections, records in a section)


def batch_spec(rows: int, length: int, predictions: int) -> dict[str, ArraySpec]:
    """The arrays of a batch of pre-training with B rows, by name."""
    tokens, masked = (ArraySpec((rows, width), np.int32) for width in (length, predictions))
    return {
        **dict.fromkeys(("input_ids", "input_mask", "segment_ids"), tokens),
        **dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), masked),
        "masked_lm_weights": ArraySpec(masked.shape, np.float32),
        "next_sentence_labels": ArraySpec((rows,), np.int32),
        "example_weights": ArraySpec((rows,), np.float32),
    }


class Batches:
    """The batches of a training run, by their step.

    Args:
        patterns: Paths or globs of the record files, official or made for dynamic masking, with or
            without GZIP.
        batch_size: Examples in a batch on all hosts together.
        max_seq_length: S; static records must have been made with it.
        max_predictions_per_seq: P; static records must have been made with it.
        seed: Of the order, and of pairs and masks if the records are dynamic.
        vocab_size: Of the model; records with larger ids are refused.
        shard_index: Which of the `num_shards` equal parts of each batch this host reads.
        num_shards: Number of these parts.
        shuffle: False gives the records in the order of the files, the last batch padded with rows
            of weight 0.
        masked_lm_prob: For dynamic records; None, here and below, means the value they were made
            with.
        do_whole_word_mask: For dynamic records.
        max_ngram_size: For dynamic records.
        use_next_sentence: With False, dynamic records become examples of one part with label 0;
            static ones keep their pairs.
        window_records: W; data of at most this number of records are held in memory; None:
            `WINDOW_RECORDS`.

    `batches[step]` is a dictionary of arrays, b = batch_size / num_shards:

    | key | type | shape |
    |---|---|---|
    | `input_ids`, `input_mask`, `segment_ids` | int32 | (b, S) |
    | `masked_lm_positions`, `masked_lm_ids` | int32 | (b, P) |
    | `masked_lm_weights` | float32 | (b, P) |
    | `next_sentence_labels` | int32 | (b,) |
    | `example_weights` | float32 | (b,), 1, or 0 for the rows that fill up the last batch |

    Attributes:
        element_spec: {key: ArraySpec} of such a dictionary.
        num_examples: Records in the files.
        num_batches: ceil(num_examples / batch_size): batches of one pass without shuffling.

    Raises:
        ValueError: nothing matches, a truncated or damaged file, records of another length, ids
            beyond the vocabulary; the message names the file and, where there is one, the record.

    Examples:
        >>> batches = Batches(["records/wiki.tfrecord*"], batch_size=256, max_seq_length=128,
        ...                   max_predictions_per_seq=20, seed=1)
        >>> batches[1000]["input_ids"].shape
        (256, 128)
    """

    def __init__(
        self,
        patterns: str | Iterable[str],
        batch_size: int,
        max_seq_length: int,
        max_predictions_per_seq: int,
        *,
        seed: int = 12345,
        vocab_size: int | None = None,
        shard_index: int = 0,
        num_shards: int = 1,
        shuffle: bool = True,
        masked_lm_prob: float | None = None,
        do_whole_word_mask: bool | None = None,
        max_ngram_size: int | None = None,
        use_next_sentence: bool = True,
        window_records: int | None = None,
    ):
        _check_sharding(batch_size, shard_index, num_shards)
        self._files = RecordFiles(patterns)
        self.num_examples = self._files.num_records
        self.num_batches = -(-self.num_examples // batch_size)
        self._batch_size, self._seed, self._shuffle = batch_size, seed, shuffle
        rows = batch_size // num_shards
        self._rows = range(shard_index * rows, (shard_index + 1) * rows)
        _check_vocabulary(self._files, vocab_size)
        asked = {
            "masked_lm_prob": masked_lm_prob,
            "do_whole_word_mask": do_whole_word_mask,
            "max_ngram_size": max_ngram_size,
        }
        self._lengths = (max_seq_length, max_predictions_per_seq)
        self._parse, self._masking = _parser(
            self._files, self._lengths, vocab_size, use_next_sentence, asked
        )
        self._vocab_size = vocab_size
        self._sizes = self._files.blocks[:, 2]
        self._orders: dict[int, np.ndarray] = {}
        window_records = window_records or WINDOW_RECORDS
        self._in_memory = self.num_examples <= window_records
        self._whole: ParsedRecords | None = None
        # Windows and sections must not depend on num_shards, because they decide the order.
        self._sections = _number_of_sections(batch_size, max(window_records, batch_size))
        self._window_steps = max(1, window_records // batch_size)
        width = batch_size // self._sections
        self._my_sections = range(self._rows.start // width, -(-self._rows.stop // width))
        self._windows: dict[int, Future] = {}
        self._loader = ThreadPoolExecutor(1, "records")

    def __getitem__(self, step: int) -> dict[str, np.ndarray]:
        """The rows of this shard in the batch of `step`, from 0 (without end if shuffled)."""
        if step < 0 or (not self._shuffle and step >= self.num_batches):
            raise IndexError(
                f"step must be below {self.num_batches}, the number of batches; got {step}."
            )
        pool, rows, weights = self._draw(step)
        if self._masking:
            keys = [self._key("mask", step, section) for section in self._my_sections]
            draws = Draws(keys, self._batch_size // self._sections)
            batch = self._masking(cast(Sequences, pool), rows, draws)
        else:
            batch = {
                key: values[rows.numbers].astype(_type(values), copy=False)
                for key, values in cast(dict, pool).items()
            }
        batch["masked_lm_weights"] *= weights[:, None]
        batch["example_weights"] = weights
        skip = self._rows.start - self._my_sections.start * (self._batch_size // self._sections)
        return {key: values[skip : skip + len(self._rows)] for key, values in batch.items()}

    def __len__(self) -> int:
        return self.num_batches

    @property
    def element_spec(self) -> dict[str, ArraySpec]:
        """What `batches[step]` holds, without reading it."""
        return batch_spec(len(self._rows), *self._lengths)

    def dataset(self, steps: range, shard_index: int, num_shards: int) -> "tf.data.Dataset":
        """The batches of some steps as a graph, for a host that runs no Python.

        Args:
            steps: Range of steps.
            shard_index: Which part of each batch that host reads.
            num_shards: Number of these parts.

        Returns:
            A dataset whose elements equal the `batches[step]` of that shard.

        Raises:
            ValueError: if the batch cannot be divided so, or the records are compressed.
        """
        from official_bert.data.slice import graph_batches

        _check_sharding(self._batch_size, shard_index, num_shards)
        rows = self._batch_size // num_shards
        plan = graph_batches.Plan(
            files=self._files,
            parse=self._parse,
            masking=self._masking,
            seed=self._seed,
            batch_size=self._batch_size,
            rows=range(shard_index * rows, (shard_index + 1) * rows),
            sections=self._sections,
            window_steps=self._window_steps,
            in_memory=self._in_memory,
            shuffle=self._shuffle,
            vocab_size=self._vocab_size,
            max_seq_length=self._lengths[0],
            shapes={name: spec.shape[1:] for name, spec in self.element_spec.items()},
        )
        return graph_batches.dataset(plan, steps)

    def damage_at(self, offset: int) -> str | None:
        """What is wrong near a byte; see `RecordFiles.damage_at`."""
        return self._files.damage_at(offset)

    def fingerprint(self) -> str:
        """A digest of the records; see `RecordFiles.fingerprint`."""
        return self._files.fingerprint()

    def _read(self, runs: list[RecordRange]) -> ParsedRecords:
        return parsed_records.read(self._files, self._parse, runs)

    def _draw(self, step: int) -> tuple[ParsedRecords, Rows, np.ndarray]:
        """The rows of this host's sections: their records, and the weight of each."""
        width = self._batch_size // self._sections
        first = step * self._batch_size + self._my_sections.start * width
        numbers = np.arange(first, first + width * len(self._my_sections))
        weights = np.ones(len(numbers), np.float32)
        if not self._shuffle:
            weights = (numbers < self.num_examples).astype(np.float32)
            numbers = np.minimum(numbers, self.num_examples - 1)
        if self._in_memory:
            if self._shuffle:
                numbers = self._in_epoch_order(numbers)
            low, high = np.zeros_like(numbers), np.full_like(numbers, self.num_examples)
            return self._all(), Rows(numbers, low, high), weights
        if not self._shuffle:
            pool = self._read(self._files.runs(int(numbers[0]), int(numbers[-1]) + 1))
            numbers -= numbers[0]
            sections = numbers.reshape(-1, width)
            low, high = np.repeat(sections[:, 0], width), np.repeat(sections[:, -1] + 1, width)
            return pool, Rows(numbers, low, high), weights
        window, inside = divmod(step, self._window_steps)
        pool, orders = self._window(window)
        numbers = orders[:, inside * width : (inside + 1) * width].reshape(-1)
        low = np.repeat(np.arange(len(orders)) * orders.shape[1], width)
        return pool, Rows(numbers, low, low + orders.shape[1]), weights

    def _in_epoch_order(self, numbers: np.ndarray) -> np.ndarray:
        epochs, places = np.divmod(numbers, self.num_examples)
        rows = np.empty_like(numbers)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            rows[here] = self._epoch_order(int(epoch), self.num_examples)[places[here]]
        return rows

    def _epoch_order(self, epoch: int, count: int) -> np.ndarray:
        if epoch not in self._orders:
            if len(self._orders) > 2:
                self._orders.clear()
            self._orders[epoch] = permutation(self._key("epoch", epoch), count)
        return self._orders[epoch]

    def _all(self) -> ParsedRecords:
        if self._whole is None:
            self._whole = self._read(self._files.runs(0, self.num_examples))
        return self._whole

    def _window(self, window: int) -> Window:
        """This host's part of a window; that of the next one is fetched meanwhile."""
        for old in self._windows.keys() - {window, window + 1}:
            self._windows.pop(old).cancel()
        for wanted in (window, window + 1):
            if wanted not in self._windows:
                self._windows[wanted] = self._loader.submit(self._load_window, wanted)
        return self._windows[window].result()

    def _load_window(self, window: int) -> Window:
        size = self._window_steps * self._batch_size // self._sections
        runs: list[RecordRange] = []
        orders: list[np.ndarray] = []
        for section in self._my_sections:
            start = (window * self._sections + section) * size
            stop = start + size
            while start < stop:  # in pieces: an epoch may end within the section
                epoch, place = divmod(start, self.num_examples)
                count = min(stop - start, self.num_examples - place)
                runs += self._epoch_runs(epoch, place, count)
                order = permutation(self._key("section", window, section, epoch), count)
                orders.append(order + sum(len(o) for o in orders))
                start += count
        return Window(self._read(runs), np.concatenate(orders).reshape(-1, size))

    def _epoch_runs(self, epoch: int, place: int, count: int) -> list[RecordRange]:
        """The records `place` … `place + count` of an epoch."""
        order = self._epoch_order(epoch, len(self._sizes))
        ends = np.cumsum(self._sizes[order])
        runs, number = [], int(np.searchsorted(ends, place, "right"))
        while count:
            block = int(order[number])
            size = int(self._sizes[block])
            start = place - (int(ends[number]) - size)
            stop = min(size, start + count)
            runs.append(RecordRange(block, start, stop))
            place, count, number = place + stop - start, count - (stop - start), number + 1
        return runs

    def _key(self, *purpose) -> bytes:
        key = "/".join(map(str, (self._seed, *purpose)))
        return hashlib.blake2b(key.encode(), digest_size=16).digest()


def _type(values: np.ndarray) -> type:
    return np.float32 if values.dtype == np.float32 else np.int32


def _check_sharding(batch_size: int, shard_index: int, num_shards: int) -> None:
    if batch_size < 1 or num_shards < 1 or batch_size % num_shards:
        raise ValueError(
            f"batch_size must be a multiple of {num_shards}, the number of hosts; got {batch_size}."
        )
    if not 0 <= shard_index < num_shards:
        raise ValueError(f"shard_index must be 0 to {num_shards - 1}; got {shard_index}.")


def _number_of_sections(batch_size: int, window: int) -> int:
    """The largest power of two that divides the batch and leaves no section too thin."""
    sections = 1
    while (
        sections < MAX_SECTIONS
        and batch_size % (2 * sections) == 0
        and batch_size // (2 * sections) >= MIN_ROWS
        and window // (2 * sections) >= 1024
    ):
        sections *= 2
    return sections


def _check_vocabulary(files: RecordFiles, vocab_size: int | None) -> None:
    if files.manifest and vocab_size and files.manifest["vocabulary"]["size"] > vocab_size:
        raise ValueError(
            f"{files.paths[0]} must be made with a vocabulary of at most {vocab_size:,} tokens, "
            f"the model's vocab_size; got {files.manifest['vocabulary']['size']:,}. Make the "
            "records again with the model's vocabulary."
        )


def _parser(
    files: RecordFiles,
    lengths: tuple[int, int],
    vocab_size: int | None,
    next_sentence: bool,
    asked: dict,
) -> tuple[StaticParser | DynamicParser, DynamicMasking | None]:
    """The parser of the records, and the masking of dynamic ones."""
    made = files.manifest
    if made and made["masking"] == "dynamic":
        parse = DynamicParser(lengths[0], vocab_size)
        return parse, _dynamic_masking(files, *lengths, next_sentence, asked)
    given = [name for name, value in asked.items() if value is not None]
    if given:
        raise ValueError(
            f"{', '.join(given)} must be left out for records with fixed pairs and masks; got "
            f"{files.paths[0]}. Leave it out, or make the records with --dynamic_masking."
        )
    return StaticParser(files.read(0, 0, 1)[0], files.name(0), *lengths, vocab_size), None


def _dynamic_masking(
    files: RecordFiles, max_seq_length: int, max_predictions: int, next_sentence: bool, asked: dict
) -> DynamicMasking:
    assert files.manifest is not None  # without one, nothing masks here
    settings, vocabulary = files.manifest["settings"], files.manifest["vocabulary"]
    made_for = settings["max_seq_length"]
    if made_for != max_seq_length:
        padding = f": {1 - made_for / max_seq_length:.0%} would be padding"
        raise ValueError(
            f"max_seq_length must be {made_for}, for which {files.paths[0]} was made; got "
            f"{max_seq_length}{padding if made_for < max_seq_length else ''}. Make records for "
            "each length, and write {max_seq_length} in place of the length in --input_files."
        )
    chosen = {key: settings[key] if value is None else value for key, value in asked.items()}
    if chosen["max_ngram_size"] > 1 and not chosen["do_whole_word_mask"]:
        raise ValueError(
            f"max_ngram_size must be 1 without do_whole_word_mask; got {chosen['max_ngram_size']}. "
            "Set do_whole_word_mask, too."
        )
    special = vocabulary["special_tokens"]
    return DynamicMasking(
        max_seq_length=max_seq_length,
        max_predictions=max_predictions,
        masked_lm_prob=chosen["masked_lm_prob"],
        whole_words=chosen["do_whole_word_mask"],
        max_ngram_size=chosen["max_ngram_size"],
        next_sentence=next_sentence,
        continues_a_word=manifest.unpack_flags(vocabulary["continues_a_word"], vocabulary["size"]),
        cls=special["[CLS]"],
        sep=special["[SEP]"],
        mask=special["[MASK]"],
    )
