"""NumPy parses Examples as TensorFlow does; errors name the damaged record."""

import numpy as np
import pytest
import tensorflow as tf

from official_bert.data import parsed_records
from official_bert.data.parsed_records import FLOATS, INTEGERS, DynamicParser, StaticParser
from official_bert.data.record_files import RecordFiles
from official_bert.system.wire_format import delimited, number, varint

KINDS = {"input_ids": INTEGERS, "label": INTEGERS, "weights": FLOATS}


def example(**features):
    def feature(values):
        if isinstance(values[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    named = {name: feature(values) for name, values in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=named)).SerializeToString()


def columns(records, **kinds):
    return parsed_records.columns(records, kinds, "record {}".format)


def test_integers_of_64_bits_and_floats_are_tensorflow_s():
    rng = np.random.default_rng(0)
    integers = [rng.integers(-(2**63), 2**63 - 1, n) >> rng.integers(0, 63, n) for n in (3, 1, 9)]
    floats = [rng.standard_normal(n) for n in (2, 5, 1)]
    pairs = zip(integers, floats, strict=True)
    found = columns([example(b=f.tolist(), a=i.tolist()) for i, f in pairs], a=INTEGERS, b=FLOATS)
    np.testing.assert_array_equal(found["a"].values, np.concatenate(integers))
    assert found["a"].counts.tolist() == [3, 1, 9]
    np.testing.assert_array_equal(found["b"].values, np.concatenate(floats).astype(np.float32))
    assert found["b"].counts.tolist() == [2, 5, 1]


def test_values_that_an_older_writer_did_not_pack_are_read():
    unpacked = b"".join(varint(1 << 3) + varint(value) for value in (5, 300, 70000))
    entry = delimited(1, b"a") + delimited(2, delimited(3, unpacked))
    record = delimited(1, delimited(1, entry))
    theirs = tf.train.Example.FromString(record).features.feature["a"].int64_list.value
    assert columns([record], a=INTEGERS)["a"].values.tolist() == theirs[:] == [5, 300, 70000]


def records_in_step(count, seed):
    rng = np.random.default_rng(seed)
    return [
        example(
            input_ids=rng.integers(0, 2**21, rng.integers(1, 90)).tolist(),
            weights=rng.random(5).tolist(),
            label=[int(rng.integers(0, 2))],
        )
        for _ in range(count)
    ]


def one_by_one(records):
    made = [parsed_records._features(record, "") for record in records]
    return {
        key: (b"".join(packed := [m[key][1] for m in made]), list(map(len, packed)))
        for key in KINDS
    }


def in_step(records):
    found = parsed_records._packed_in_step(records, KINDS)
    return found and {key: (packed, sizes.tolist()) for key, (packed, sizes) in found.items()}


def test_records_of_one_form_are_read_together_as_each_by_itself():
    records = records_in_step(50, seed=0)
    assert in_step(records) == one_by_one(records)
    for other in (b"", example(label=[1]), records[0] + number(2, 5), records[0][:-1]):
        assert in_step([*records, other]) is None
    assert in_step([]) is None


def test_damaged_records_are_read_together_only_as_each_by_itself():
    rng = np.random.default_rng(2)
    together = 0
    for seed in range(400):
        records = records_in_step(3, seed)
        hurt = bytearray(records[1])
        # In the names and lengths rather than in the values, which may be anything.
        place = rng.integers(0, 30) if rng.random() < 0.5 else rng.integers(0, len(hurt))
        hurt[place] = rng.integers(0, 256)
        records[1] = bytes(hurt)
        found = in_step(records)
        if found is not None:
            together += 1
            assert found == one_by_one(records)
    assert 20 < together < 380


def test_official_records_are_parsed_as_tensorflow_parses_them(small_corpus):
    files = RecordFiles(small_corpus.train.replace("{max_seq_length}", "32"))
    records = files.read(0, 0, 40)
    lengths = dict.fromkeys(parsed_records.STATIC_TYPES, 32) | {"next_sentence_labels": ()}
    lengths |= dict.fromkeys(("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"), 5)
    expected = tf.io.parse_example(
        records,
        {
            name: tf.io.FixedLenFeature(
                length, tf.float32 if name == "masked_lm_weights" else tf.int64
            )
            for name, length in lengths.items()
        },
    )
    found = StaticParser(records[0], "first", 32, 5)(records, str)
    for name, kind in parsed_records.STATIC_TYPES.items():
        np.testing.assert_array_equal(found[name], expected[name])
        assert found[name].dtype == kind


def test_records_for_dynamic_masking_are_parsed_together_and_in_pieces():
    rng = np.random.default_rng(1)
    records, every_ids, every_lengths = [], [], []
    for document in range(20):
        lengths = rng.integers(1, 200, rng.integers(1, 5))
        ids = rng.integers(0, 30000, lengths.sum())
        every_ids.append(ids)
        every_lengths.append(lengths)
        features = {"input_ids": ids.tolist(), "sentence_lengths": lengths.tolist()}
        records.append(example(**features, document=[document]))
    parse = DynamicParser(max_seq_length=1000)
    found = parse(records, str)
    np.testing.assert_array_equal(found.tokens, np.concatenate(every_ids))
    ends = np.cumsum(np.concatenate(every_lengths))
    np.testing.assert_array_equal(found.sentence_starts, [0, *ends[:-1]])
    np.testing.assert_array_equal(found.token_splits, np.cumsum([0, *map(len, every_ids)]))
    np.testing.assert_array_equal(found.sentence_splits, np.cumsum([0, *map(len, every_lengths)]))
    assert found.documents.tolist() == [*range(20)]
    pieces = parse.join([parse(records[a:b], str) for a, b in ((0, 1), (1, 7), (7, 20))])
    for together, apart in zip(found, pieces, strict=True):
        np.testing.assert_array_equal(together, apart)
        assert together.dtype == apart.dtype


def dynamic(ids=(5,), lengths=(1,), documents=(0,)):
    return example(input_ids=ids, sentence_lengths=lengths, document=documents)


DAMAGED = {  # ids of their own: the bytes differ from process to process
    "none": (example(a=[1, 2]), "record 1: the feature 'document' must have one"),
    "cut": (b"\x0a\xff", "record 1 must be a tf.train.Example"),
    "no field": (b"\xff" * 12, "record 1 must be a tf.train.Example"),
    "number": (number(1, 7), "record 1 must be a tf.train.Example"),
    "type": (dynamic(ids=[0.5]), "has the wrong type"),
    "lengths": (dynamic(lengths=[2]), "record 1 is damaged: its sente"),
    "documents": (dynamic(documents=[0, 1]), "record 1: the feature 'document' must"),
    "damaged": (
        dynamic([7]).replace(b"\x07", b"\xff"),
        "record 1: the feature 'input_ids' is damaged",
    ),
    "long": (
        dynamic([7] * 12, [12]).replace(b"\x07" * 12, b"\xff" * 11 + b"\x07"),
        "record 1: the feature 'input_ids' has an integer longer than 64 bits",
    ),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_record_is_named(kind):
    record, message = DAMAGED[kind]
    with pytest.raises(ValueError, match=message):
        DynamicParser(max_seq_length=128)([dynamic(), record], "record {}".format)
