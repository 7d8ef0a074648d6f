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
from typing import TYPE_CHECKING, cast

import numpy as np

from official_bert.data import manifest, parsed_records
from official_bert.data.dynamic_masking import Draws, DynamicMasking, Plan, Rows, permutation
from official_bert.data.parsed_records import (
    DynamicParser,
    ParsedRecords,
    Sequences,
    StaticParser,
    is_packed,
)
from official_bert.data.record_files import RecordFiles, RecordRange
from official_bert.protocols import ArraySpec

if TYPE_CHECKING:
    import tensorflow as tf

WINDOW_RECORDS = 65536
MAX_SECTIONS = 16
MIN_ROWS = 16  # of a section in a batch: fewer would be slow


def batch_spec(
    rows: int, length: int, predictions: int, packed: bool = False
) -> dict[str, ArraySpec]:
    """The arrays of a batch of pre-training with B rows, by name."""
    tokens, masked = (ArraySpec((rows, width), np.int32) for width in (length, predictions))
    return {
        **dict.fromkeys(("input_ids", "input_mask", "segment_ids"), tokens),
        **dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), masked),
        "masked_lm_weights": ArraySpec(masked.shape, np.float32),
        "next_sentence_labels": ArraySpec((rows,), np.int32),
        "example_weights": ArraySpec((rows,), np.float32),
        **({"sequence_ids": tokens} if packed else {}),
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
        masked_lm_prob, do_whole_word_mask, max_ngram_size: For dynamic records. Default: the values
            they were made with.
        use_next_sentence: With False, dynamic records become examples of one part with label 0;
            static ones keep their pairs. Full and packed rows, which have no pairs, need it.
        window_records: W; this number of records is held in memory. Default: `WINDOW_RECORDS`.

    `batches[step]` is a dictionary of arrays, b = batch_size / num_shards:

    | key | type | shape |
    |---|---|---|
    | `input_ids`, `input_mask`, `segment_ids` | int32 | (b, S) |
    | `masked_lm_positions`, `masked_lm_ids` | int32 | (b, P) |
    | `masked_lm_weights` | float32 | (b, P) |
    | `next_sentence_labels` | int32 | (b,) |
    | `example_weights` | float32 | (b,), 1, or 0 for padding |
    | `sequence_ids` | int32 | (b, S), of packed rows: a token's sequence, from 1; 0: padding |

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
        rows = _rows_of_shard(batch_size, shard_index, num_shards)
        files = RecordFiles(patterns)
        self.num_examples = files.num_records
        self.num_batches = -(-self.num_examples // batch_size)
        if files.manifest and vocab_size and files.manifest["vocabulary"]["size"] > vocab_size:
            raise ValueError(
                f"{files.paths[0]} must be made with a vocabulary of at most {vocab_size:,} "
                "tokens, the model's vocab_size; got "
                f"{files.manifest['vocabulary']['size']:,}. Make the records again with the "
                "model's vocabulary."
            )
        given = {
            "masked_lm_prob": masked_lm_prob,
            "do_whole_word_mask": do_whole_word_mask,
            "max_ngram_size": max_ngram_size,
        }
        lengths = max_seq_length, max_predictions_per_seq
        parse, masking = _parser(files, lengths, vocab_size, use_next_sentence, given)
        packed = masking.packed if masking else "sequence_ids" in cast(StaticParser, parse).features
        window_records = window_records or WINDOW_RECORDS
        self.element_spec = batch_spec(len(rows), *lengths, packed)
        self._plan = Plan(
            files=files,
            parse=parse,
            masking=masking,
            seed=seed,
            batch_size=batch_size,
            rows=rows,
            # Neither depends on num_shards, because they decide the order.
            sections=_number_of_sections(batch_size, max(window_records, batch_size)),
            window_steps=max(1, window_records // batch_size),
            in_memory=self.num_examples <= window_records,
            shuffle=shuffle,
            vocab_size=vocab_size,
            shapes={name: spec.shape[1:] for name, spec in self.element_spec.items()},
        )
        self._orders: dict[int, np.ndarray] = {}
        self._whole: ParsedRecords | None = None
        self._windows: dict[int, Future] = {}
        self._loader = ThreadPoolExecutor(1, "records")

    def __getitem__(self, step: int) -> dict[str, np.ndarray]:
        """The rows of this shard in the batch of `step`, from 0 (without end if shuffled)."""
        plan = self._plan
        if step < 0 or (not plan.shuffle and step >= self.num_batches):
            raise IndexError(
                f"step must be below {self.num_batches}, the number of batches; got {step}."
            )
        pool, rows, weights = self._draw(step)
        if plan.masking:
            keys = [self._key("mask", step, section) for section in plan.my_sections]
            batch = plan.masking(cast(Sequences, pool), rows, Draws(keys, plan.width))
        else:
            batch = {
                key: values[rows.numbers].astype(self.element_spec[key].dtype, copy=False)
                for key, values in cast(dict, pool).items()
            }
        batch["masked_lm_weights"] *= weights[:, None]
        batch["example_weights"] = weights
        return {key: values[plan.mine] for key, values in batch.items()}

    def __len__(self) -> int:
        return self.num_batches

    def dataset(self, steps: range, shard_index: int, num_shards: int) -> "tf.data.Dataset":
        """The batches of some steps as a graph, for a host that runs no Python.

        Returns:
            A dataset whose elements equal `batches[step]` of that shard.

        Raises:
            ValueError: the batch cannot be divided so, or the records are compressed or packed.
        """
        from official_bert.data import graph_batches

        if "sequence_ids" in self.element_spec:
            raise ValueError(
                f"{self._plan.files.paths[0]} must not have packed rows for a TPU under "
                "TensorFlow; got row_filling=packed. Train with --engine=jax, or make the records "
                "with --row_filling=full."
            )
        rows = _rows_of_shard(self._plan.batch_size, shard_index, num_shards)
        return graph_batches.dataset(self._plan._replace(rows=rows), steps)

    def damage_at(self, offset: int) -> str | None:
        """As `RecordFiles.damage_at`."""
        return self._plan.files.damage_at(offset)

    def fingerprint(self) -> str:
        """As `RecordFiles.fingerprint`."""
        return self._plan.files.fingerprint()

    def _read(self, runs: list[RecordRange]) -> ParsedRecords:
        return parsed_records.read(self._plan.files, self._plan.parse, runs)

    def _draw(self, step: int) -> tuple[ParsedRecords, Rows, np.ndarray]:
        """The rows of this host's sections: their records, and the weight of each."""
        plan, width = self._plan, self._plan.width
        first = step * plan.batch_size + plan.my_sections.start * width
        numbers = np.arange(first, first + width * len(plan.my_sections))
        weights = np.ones(len(numbers), np.float32)
        if not plan.shuffle:
            weights = (numbers < self.num_examples).astype(np.float32)
            numbers = np.minimum(numbers, self.num_examples - 1)
        if plan.in_memory:
            if plan.shuffle:
                numbers = self._in_epoch_order(numbers)
            low, high = np.zeros_like(numbers), np.full_like(numbers, self.num_examples)
            return self._all(), Rows(numbers, low, high), weights
        if not plan.shuffle:
            pool = self._read(plan.files.runs(int(numbers[0]), int(numbers[-1]) + 1))
            numbers -= numbers[0]
            sections = numbers.reshape(-1, width)
            low, high = np.repeat(sections[:, 0], width), np.repeat(sections[:, -1] + 1, width)
            return pool, Rows(numbers, low, high), weights
        window, inside = divmod(step, plan.window_steps)
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
            self._whole = self._read(self._plan.files.runs(0, self.num_examples))
        return self._whole

    def _window(self, window: int) -> tuple[ParsedRecords, np.ndarray]:
        """This host's records of a window, the orders of its sections; the next is fetched."""
        for old in self._windows.keys() - {window, window + 1}:
            self._windows.pop(old).cancel()
        for wanted in (window, window + 1):
            if wanted not in self._windows:
                self._windows[wanted] = self._loader.submit(self._load_window, wanted)
        return self._windows[window].result()

    def _load_window(self, window: int) -> tuple[ParsedRecords, np.ndarray]:
        size = self._plan.window_steps * self._plan.width
        runs: list[RecordRange] = []
        orders: list[np.ndarray] = []
        for section in self._plan.my_sections:
            start = (window * self._plan.sections + section) * size
            stop = start + size
            while start < stop:  # an epoch may end within the section
                epoch, place = divmod(start, self.num_examples)
                count = min(stop - start, self.num_examples - place)
                runs += self._epoch_runs(epoch, place, count)
                order = permutation(self._key("section", window, section, epoch), count)
                orders.append(order + sum(len(o) for o in orders))
                start += count
        return self._read(runs), np.concatenate(orders).reshape(-1, size)

    def _epoch_runs(self, epoch: int, place: int, count: int) -> list[RecordRange]:
        """The records `place` … `place + count` of an epoch."""
        sizes = self._plan.files.blocks[:, 2]
        order = self._epoch_order(epoch, len(sizes))
        ends = np.cumsum(sizes[order])
        runs, number = [], int(np.searchsorted(ends, place, "right"))
        while count:
            block = int(order[number])
            size = int(sizes[block])
            start = place - (int(ends[number]) - size)
            stop = min(size, start + count)
            runs.append(RecordRange(block, start, stop))
            place, count, number = place + stop - start, count - (stop - start), number + 1
        return runs

    def _key(self, *purpose) -> bytes:
        key = "/".join(map(str, (self._plan.seed, *purpose)))
        return hashlib.blake2b(key.encode(), digest_size=16).digest()


def _rows_of_shard(batch_size: int, shard_index: int, num_shards: int) -> range:
    if batch_size < 1 or num_shards < 1 or batch_size % num_shards:
        raise ValueError(
            f"batch_size must be a multiple of {num_shards}, the number of hosts; got {batch_size}."
        )
    if not 0 <= shard_index < num_shards:
        raise ValueError(f"shard_index must be 0 to {num_shards - 1}; got {shard_index}.")
    rows = batch_size // num_shards
    return range(shard_index * rows, (shard_index + 1) * rows)


def _number_of_sections(batch_size: int, window: int) -> int:
    """The largest power of two that divides the batch into sections of sufficient size."""
    sections = MAX_SECTIONS
    while sections > 1 and (
        batch_size % sections or batch_size // sections < MIN_ROWS or window // sections < 1024
    ):
        sections //= 2
    return sections


def _parser(
    files: RecordFiles,
    lengths: tuple[int, int],
    vocab_size: int | None,
    next_sentence: bool,
    given: dict,
) -> tuple[StaticParser | DynamicParser, DynamicMasking | None]:
    """The parser of the records, and the masking of dynamic ones."""
    made = files.manifest
    filling = manifest.row_filling(made) if made else "documents"
    is_dynamic = made and made["masking"] == "dynamic"
    static = None if is_dynamic else _static_parser(files, lengths, vocab_size, given)
    if static and "sequence_ids" in static.features:
        filling = "packed"  # known without a manifest, too
    if next_sentence and filling != "documents":
        raise ValueError(
            f"use_next_sentence_label must be False for {files.paths[0]}, whose rows have no "
            f"sentence pairs (row_filling={filling}); got True. Give "
            "--use_next_sentence_label=False, or make the records with --row_filling=documents."
        )
    if static:
        return static, None
    assert made
    parse = DynamicParser(lengths[0], vocab_size, 3 if filling == "documents" else 2)
    return parse, _dynamic_masking(files.paths[0], made, *lengths, next_sentence, given)


def _static_parser(
    files: RecordFiles, lengths: tuple[int, int], vocab_size: int | None, given: dict
) -> StaticParser:
    idle = [name for name, value in given.items() if value is not None]
    if idle:
        raise ValueError(
            f"{', '.join(idle)} must be left out for records with fixed pairs and masks; got "
            f"{files.paths[0]}. Leave it out, or make the records with --dynamic_masking."
        )
    parser = StaticParser(files.read(0, 0, 1)[0], files.name(0), *lengths, vocab_size)
    # Either all files have packed rows or none: without a manifest, the first record tells.
    packed = "sequence_ids" in parser.features
    numbers, blocks = np.unique(files.blocks[:, 0], return_index=True)
    for path, block in zip((files.paths[n] for n in numbers), blocks, strict=True):
        if path in files.unlisted and is_packed(files.read(int(block), 0, 1)[0], path) != packed:
            kinds = ("several sequences", "one sequence")[:: 1 if packed else -1]
            raise ValueError(
                f"input_files must have one kind of rows; got rows of {kinds[0]} in "
                f"{files.paths[numbers[0]]} and of {kinds[1]} in {path}. Read the files of one "
                "build only."
            )
    return parser


def _dynamic_masking(
    path: str,
    made: dict,
    max_seq_length: int,
    max_predictions: int,
    next_sentence: bool,
    given: dict,
) -> DynamicMasking:
    settings, vocabulary = made["settings"], made["vocabulary"]
    made_for = settings["max_seq_length"]
    if made_for != max_seq_length:
        padding = f": {1 - made_for / max_seq_length:.0%} would be padding"
        raise ValueError(
            f"max_seq_length must be {made_for}, for which {path} was made; got "
            f"{max_seq_length}{padding if made_for < max_seq_length else ''}. Set max_seq_length "
            f"to {made_for}; for a recipe, make records for each of its lengths, and write "
            "{max_seq_length} in place of the length in --input_files."
        )
    chosen = {key: settings[key] if value is None else value for key, value in given.items()}
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
        packed=manifest.row_filling(made) == "packed",
    )
