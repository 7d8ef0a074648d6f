"""The batch of step k as a TensorFlow graph: `input_pipeline.Batches` for hosts without Python.

On a TPU slice under TensorFlow, the hosts that feed the chips are plain TensorFlow servers. So this
module chooses the records, from files, seed and k, by operations that such a host runs itself. The
host gets the places of the blocks and the keys of the random numbers, and reads the blocks that
feed its rows through TensorFlow's file systems. The result equals `Batches`, bit for bit.
"""

import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from official_bert.data.dynamic_masking import Plan, Rows
from official_bert.data.graph_ops import Draws, keys_of, permutation
from official_bert.data.parsed_records import STATIC_TYPES, Sequences

_BYTES_AT_ONCE = 1 << 18  # of a file
_UNREADABLE = "In the records that a host read, "  # the beginning of every assertion
_RUNS_AT_ONCE = 8  # read in parallel, because an object store has a high latency


class _Pool(NamedTuple):
    """Records in memory, serialized if they are static, and their origin; see `_Reader.runs`."""

    records: tf.Tensor | Sequences
    runs: tf.Tensor


@tf.autograph.experimental.do_not_convert  # nor what tf.data calls later
def dataset(plan: Plan, steps: range) -> tf.data.Dataset:
    """A dataset of this host's rows of the batch of each step.

    Raises:
        ValueError: the records are compressed.
    """
    compressed = plan.files.compressed()
    if compressed:
        raise ValueError(
            f"{compressed[0]} must not be compressed for a TPU, whose hosts read from the middle "
            "of files; got GZIP. Make the records without --gzip_compress."
        )
    reader = _Reader(plan)
    if not plan.shuffle:
        found = _in_order(plan, reader, steps)
    elif plan.in_memory:
        found = _shuffled_as_one(plan, reader, steps)
    else:
        found = _windows(plan, reader, steps)
    found = tf.data.Dataset.zip(found, tf.data.Dataset.range(steps.start, steps.stop))
    make = functools.partial(_batch, plan, reader)
    return found.map(make, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _batch(plan, reader, found, step):
    pool, rows, weights = found
    weights = weights[plan.mine]
    if plan.masking is None:
        batch = reader.columns(pool, rows.numbers[plan.mine])
    else:
        draws = Draws(_keys(plan, "mask", step, list(plan.my_sections)), plan.width)
        batch = plan.masking(pool.records, rows, draws)
        batch = {name: values[plan.mine] for name, values in batch.items()}
    batch["masked_lm_weights"] *= weights[:, None]
    batch["example_weights"] = weights
    count = len(plan.rows)
    return {n: tf.ensure_shape(x, [count, *plan.shapes[n]]) for n, x in batch.items()}


def _keys(plan, *purpose):
    """The keys (K, 2) of some purposes, whose last part is a vector."""
    parts = [part if isinstance(part, str) else tf.strings.as_string(part) for part in purpose[:-1]]
    texts = tf.strings.join([str(plan.seed), *parts, tf.strings.as_string(purpose[-1])], "/")
    return keys_of(tf.reshape(texts, [-1]))


# The choice of records


def _numbers(plan, step):
    """The numbers of the rows of this host's sections in the batch of a step, from 0."""
    first = step * plan.batch_size + plan.my_sections.start * plan.width
    return first + tf.range(plan.width * len(plan.my_sections), dtype=tf.int64)


def _in_order(plan, reader, steps):
    """Batches without shuffling: static records batch by batch, sequences in one pool."""
    total = plan.files.num_records

    def of_step(pool, before, step):
        numbers = _numbers(plan, step)
        weights = tf.cast(numbers < total, tf.float32)
        numbers = tf.minimum(numbers, total - 1)
        if pool is None:
            before = numbers[0]
            pool = reader.pool(reader.runs_in_order(before, numbers[-1] + 1))
        numbers -= before
        if plan.in_memory:
            bounds = tf.zeros_like(numbers), tf.fill(tf.shape(numbers), np.int64(total))
        else:
            sections = tf.reshape(numbers, (-1, plan.width))
            ends = tf.repeat(sections[:, 0], plan.width), tf.repeat(sections[:, -1], plan.width)
            bounds = ends[0], ends[1] + 1
        return pool, Rows(numbers, *bounds), weights

    numbers = tf.data.Dataset.range(steps.start, steps.stop)
    if plan.in_memory and plan.masking:  # a second part may come from any record
        return _all(reader).flat_map(
            lambda pool: numbers.map(lambda k: of_step(pool, np.int64(0), k))
        )
    return numbers.map(lambda k: of_step(None, None, k))


def _all(reader):
    """One element: the pool of all records."""
    total = tf.data.Dataset.from_tensors(np.int64(reader.plan.files.num_records))
    return total.map(lambda count: reader.pool(reader.runs_in_order(0, count)))


def _shuffled_as_one(plan, reader, steps):
    """All records in one order per epoch."""
    total = plan.files.num_records
    first = steps.start * plan.batch_size
    epoch, skipped = divmod(first, total)

    def order(number):
        skip = tf.where(number == epoch, np.int64(skipped), np.int64(0))
        return permutation(_keys(plan, "epoch", number)[0], total)[skip:]

    epochs = tf.data.Dataset.range(epoch, np.iinfo(np.int64).max)
    orders = epochs.map(order)
    numbers = orders.prefetch(1).rebatch(plan.batch_size).take(len(steps))
    start = plan.my_sections.start * plan.width
    stop = start + len(plan.my_sections) * plan.width

    def of_step(pool, numbers):
        numbers = tf.ensure_shape(numbers, [plan.batch_size])[start:stop]
        low = tf.zeros_like(numbers)
        return pool, Rows(numbers, low, low + total), tf.ones_like(numbers, tf.float32)

    return _all(reader).flat_map(lambda pool: numbers.map(lambda some: of_step(pool, some)))


def _windows(plan, reader, steps):
    """Windows cut into sections, each shuffled by itself."""
    per = plan.window_steps
    size, total = per * plan.width, plan.files.num_records
    # epochs that a window may touch
    spanned = np.arange((plan.sections * size - 1) // total + 2)

    def load(window):
        start = window * plan.sections * size
        epochs = start // total + spanned
        blocks = reader.in_epoch_orders(epochs, _keys(plan, "epoch", epochs))
        runs, orders = [], []
        for section in plan.my_sections:
            first = start + section * size
            runs.append(reader.runs(*blocks, first, first + size))
            keys = _keys(plan, "section", window, str(section), epochs)
            order = _section_order(first, first + size, total, epochs, keys)
            orders.append(tf.ensure_shape(order, [size]))
        return reader.pool(tf.concat(runs, 0)), tf.stack(orders)

    low = np.repeat(np.arange(len(plan.my_sections), dtype=np.int64) * size, plan.width)
    weights = np.ones(len(low), np.float32)

    def steps_of(pool, orders):
        orders += np.arange(len(plan.my_sections), dtype=np.int64)[:, None] * size
        cut = tf.reshape(orders, (len(plan.my_sections), per, plan.width))
        by_step = tf.reshape(tf.transpose(cut, (1, 0, 2)), (per, -1))
        of_window = tf.data.Dataset.from_tensor_slices(by_step)
        return of_window.map(lambda numbers: (pool, Rows(numbers, low, low + size), weights))

    window, skipped = divmod(steps.start, per)
    windows = tf.data.Dataset.range(window, -(-steps.stop // per))
    loaded = windows.map(load, num_parallel_calls=1).prefetch(1)
    return loaded.flat_map(steps_of).skip(skipped).take(len(steps))


def _section_order(start, stop, total, epochs, keys):
    """The order in a section, where each epoch's records are shuffled separately."""
    orders, before = [], tf.constant(0, tf.int64)
    for epoch, key in zip(tf.unstack(epochs), tf.unstack(keys), strict=True):
        count = tf.minimum(stop, (epoch + 1) * total) - tf.maximum(start, epoch * total)
        count = tf.maximum(count, 0)
        orders.append(before + permutation(key, count))
        before += count
    return tf.concat(orders, 0)


# Reading


class _Reader:
    """Reads and parses runs of records."""

    def __init__(self, plan):
        self.plan, self._length = plan, plan.shapes["input_ids"][0]
        self._paths = tf.constant(list(map(str, plan.files.paths)))
        blocks = plan.files.blocks  # file, first record, records, offset, bytes
        self._places, self._sizes = tf.constant(blocks[:, [0, 3, 1]]), tf.constant(blocks[:, 2])

    def runs_in_order(self, start, stop):
        """The records `start` … `stop` in the order of the files; see `runs`."""
        blocks = tf.range(tf.size(self._sizes, tf.int64))
        return self.runs(blocks, tf.cumsum(self._sizes, exclusive=True), start, stop)

    def in_epoch_orders(self, epochs, keys):
        """The blocks of some epochs in turn, and their places in the endless stream."""
        orders, begins = [], []
        for epoch, key in zip(tf.unstack(epochs), tf.unstack(keys), strict=True):
            orders.append(permutation(key, len(self.plan.files.blocks)))
            before = tf.cumsum(tf.gather(self._sizes, orders[-1]), exclusive=True)
            begins.append(epoch * self.plan.files.num_records + before)
        return tf.concat(orders, 0), tf.concat(begins, 0)

    def runs(self, blocks, begins, start, stop):
        """The reads of the records at `start` … `stop` of `blocks`, whose first are at `begins`.

        Returns:
            (R, 5), int64: file, byte in it, number of the record there, records to skip from there,
            records to take.
        """
        start, stop = tf.cast(start, tf.int64), tf.cast(stop, tf.int64)
        low = tf.searchsorted(begins, start[None], "right")[0] - 1
        high = tf.searchsorted(begins, stop[None], "left")[0]
        blocks, begins = blocks[low:high], begins[low:high]
        skipped = tf.maximum(start - begins, 0)
        last = tf.minimum(stop - begins, tf.gather(self._sizes, blocks))
        ends = tf.stack([skipped, last - skipped], 1)
        return tf.concat([tf.gather(self._places, blocks), ends], 1)

    def pool(self, runs):
        """The `_Pool` of the records of some runs."""
        found = tf.data.Dataset.from_tensor_slices(runs)
        found = found.map(self._records, num_parallel_calls=_RUNS_AT_ONCE, deterministic=True)
        serialized = found.rebatch(tf.reduce_sum(runs[:, 4])).get_single_element()
        return _Pool(
            serialized if self.plan.masking is None else self._sequences(serialized, runs), runs
        )

    def _records(self, run):
        opened = tf.raw_ops.TFRecordDatasetV2(
            filenames=tf.gather(self._paths, run[0])[None],
            compression_type="",
            buffer_size=_BYTES_AT_ONCE,
            byte_offsets=run[1:2],
        )
        records = tf.data.experimental.from_variant(opened, tf.TensorSpec((), tf.string))
        return records.skip(run[3]).batch(run[4]).take(1).get_single_element()

    def columns(self, pool, numbers):
        """Some records of a static pool as the arrays of a batch, except `example_weights`."""
        columns = _columns(self.plan.parse, tf.gather(pool.records, numbers))
        limits = {
            "input_ids": (self.plan.vocab_size, self._beyond),
            "masked_lm_ids": (self.plan.vocab_size, self._beyond),
            "masked_lm_positions": (self._length, self._beyond_the_sequence),
        }

        def find():
            for name, (limit, reason) in limits.items():
                self._require_inside(
                    columns[name], limit, reason, pool.runs, lambda row, _: tf.gather(numbers, row)
                )
            return tf.no_op()

        fine = [~tf.reduce_any(_outside(columns[name], limits[name][0])) for name in limits]
        tf.cond(tf.reduce_all(fine), tf.no_op, find)  # one branch costs less than three
        return {
            name: values if values.dtype == tf.float32 else tf.cast(values, tf.int32)
            for name, values in columns.items()
        }

    def _sequences(self, serialized, runs):
        found = _sequences(serialized)
        splits = found.token_splits
        self._require_inside(
            found.tokens[None],
            self.plan.vocab_size,
            self._beyond,
            runs,
            lambda _, token: tf.searchsorted(splits, token[None], "right")[0] - 1,
        )
        lengths, longest_allowed = splits[1:] - splits[:-1], self.plan.parse.longest

        def longest():
            record = tf.argmax(lengths)
            limit = (
                f"length must be at most {longest_allowed} tokens with "
                f"max_seq_length={self._length}; got "
            )
            return record, [limit, lengths[record], ". Make the records for this length."]

        self._require(tf.reduce_max(lengths) <= longest_allowed, runs, longest)
        return found

    def _require_inside(self, values, limit, reason, runs, record):
        """Refuses values (rows, columns) outside 0 … `limit`.

        `reason(value)` is the message, `record(row, column)` the number of the value's record.
        """
        if not limit:
            return
        outside = _outside(values, limit)

        def first():
            row, column = tf.unstack(tf.where(outside)[0])
            return record(row, column), reason(values[row, column])

        self._require(~tf.reduce_any(outside), runs, first)

    def _require(self, holds, runs, find):
        """Fails unless `holds`, with the number of a record and the reason from `find()`.

        `find` runs in a branch, so it costs nothing for correct records.
        """

        def fail():
            number, reason = find()
            parts = [_UNREADABLE, *self._name(runs, tf.cast(number, tf.int64)), ": ", *reason]
            parts = [part if isinstance(part, str) else _as_text(part) for part in parts]
            return tf.raw_ops.Assert(condition=False, data=[tf.strings.join(parts)])

        tf.cond(holds, tf.no_op, fail)

    def _name(self, runs, number):
        """The file of a record of some runs, and its number in that file."""
        ends = tf.cumsum(runs[:, 4])
        run = tf.searchsorted(ends, number[None], "right")[0]
        file, _, first, skipped, taken = tf.unstack(runs[run])
        within = first + skipped + number - (ends[run] - taken)
        return tf.gather(self._paths, file), ", record ", within

    def _beyond(self, token):
        return (
            f"token ids must be in the vocabulary of {self.plan.vocab_size:,}; got ",
            token,
            ". Make the records with the vocabulary of the model.",
        )

    def _beyond_the_sequence(self, position):
        return (
            f"masked positions must be 0 to {self._length - 1}; got ",
            position,
            ". Make the records for this max_seq_length.",
        )


def _columns(parse, serialized):
    """The features of static records by their official names, integers as int64."""
    spec = {
        feature: tf.io.FixedLenFeature(
            [length], tf.float32 if STATIC_TYPES[name] is np.float32 else tf.int64
        )
        for name, (feature, length) in parse.features.items()
    }
    parsed = tf.io.parse_example(serialized, spec)
    columns = {name: parsed[feature] for name, (feature, _) in parse.features.items()}
    return columns | {"next_sentence_labels": columns["next_sentence_labels"][:, 0]}


def _sequences(serialized):
    """The `Sequences` of dynamic records."""
    ragged = tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)
    document = tf.io.FixedLenFeature([], tf.int64)
    spec = {"input_ids": ragged, "sentence_lengths": ragged, "document": document}
    parsed = tf.io.parse_example(serialized, spec)
    tokens, lengths = parsed["input_ids"], parsed["sentence_lengths"]
    return Sequences(
        tf.cast(tokens.values, tf.int32),
        tokens.row_splits,
        tf.cumsum(lengths.values, exclusive=True),
        lengths.row_splits,
        parsed["document"],
    )


def _outside(values, limit):
    """Which values are not in 0 … `limit`; none if the limit is unknown."""
    return (values < 0) | (values >= limit) if limit else tf.zeros_like(values, tf.bool)


def _as_text(value):
    return value if value.dtype == tf.string else tf.strings.as_string(value)
