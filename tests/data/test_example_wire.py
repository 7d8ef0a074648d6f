"""Examples are parsed without TensorFlow as by TensorFlow, and what is damaged names its record."""

import sys

import numpy as np
import pytest
import tensorflow as tf

from official_bert.data import example_wire
from official_bert.data.example_parsing import DynamicParser, StaticParser
from official_bert.data.record_files import RecordFiles
from official_bert.system.wire_format import delimited, number, varint


def example(**features):
    def feature(values):
        if isinstance(values[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    named = {name: feature(values) for name, values in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=named)).SerializeToString()


def without_tensorflow(monkeypatch, parser, records):
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "tensorflow")
        return parser(records, "record {}".format)


def test_integers_of_64_bits_and_floats_are_tensorflow_s():
    rng = np.random.default_rng(0)
    integers = [rng.integers(-(2**63), 2**63 - 1, n) >> rng.integers(0, 63, n) for n in (3, 1, 9)]
    floats = [rng.standard_normal(n) for n in (2, 5, 1)]
    records = [
        example_wire.features(example(b=f.tolist(), a=i.tolist()))
        for i, f in zip(integers, floats, strict=True)
    ]
    values, counts = example_wire.column(records, "a", example_wire.INTEGERS)
    np.testing.assert_array_equal(values, np.concatenate(integers))
    assert counts.tolist() == [3, 1, 9]
    values, counts = example_wire.column(records, "b", example_wire.FLOATS)
    np.testing.assert_array_equal(values, np.concatenate(floats).astype(np.float32))


def test_values_that_an_older_writer_did_not_pack_are_read():
    unpacked = b"".join(varint(1 << 3) + varint(value) for value in (5, 300, 70000))
    entry = delimited(1, b"a") + delimited(2, delimited(3, unpacked))
    record = delimited(1, delimited(1, entry))
    assert tf.train.Example.FromString(record).features.feature["a"].int64_list.value[:] == [
        5,
        300,
        70000,
    ]
    values, _ = example_wire.column([example_wire.features(record)], "a", example_wire.INTEGERS)
    assert values.tolist() == [5, 300, 70000]


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


def test_records_of_one_form_are_read_together_as_each_by_itself():
    records = records_in_step(50, seed=0)
    found = example_wire.features_in_step(records)
    assert found == [example_wire.features(record) for record in records]
    assert set(found[0]) == {"input_ids", "weights", "label"}


def test_records_of_several_forms_are_not_read_together():
    records = records_in_step(3, seed=0)
    assert example_wire.features_in_step([]) is None
    assert example_wire.features_in_step([*records, b""]) is None
    assert example_wire.features_in_step([*records, example(label=[1])]) is None
    assert example_wire.features_in_step([*records, records[0] + number(2, 5)]) is None
    assert example_wire.features_in_step([*records, records[0][:-1]]) is None


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
        found = example_wire.features_in_step(records)
        if found is not None:
            together += 1
            assert found == [example_wire.features(record) for record in records]
    assert 20 < together < 380


def test_official_records_give_the_same_arrays(small_corpus, monkeypatch):
    files = RecordFiles(small_corpus.train.replace("{max_seq_length}", "32"))
    records = files.read(0, 0, 40)
    parser = StaticParser(records[0], "first", 32, 5)
    expected = parser(records, str)
    for name, values in without_tensorflow(monkeypatch, parser, records).items():
        np.testing.assert_array_equal(values, expected[name])
        assert values.dtype == expected[name].dtype


def test_records_for_dynamic_masking_give_the_same_arrays(monkeypatch):
    rng = np.random.default_rng(1)
    records = []
    for document in range(20):
        lengths = rng.integers(1, 200, rng.integers(1, 5))
        ids = rng.integers(0, 30000, lengths.sum())
        features = {"input_ids": ids.tolist(), "sentence_lengths": lengths.tolist()}
        records.append(example(**features, document=[document]))
    expected = DynamicParser()(records, str)
    found = without_tensorflow(monkeypatch, DynamicParser(), records)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (example(a=[1, 2]), "record 1: the feature 'document' must have one"),
        (b"\x0a\xff", "record 1 must be a tf.train.Example"),
        (b"\xff" * 12, "record 1 must be a tf.train.Example"),
        (number(1, 7), "record 1 must be a tf.train.Example"),
        (example(input_ids=[0.5], sentence_lengths=[1], document=[0]), "has the wrong type"),
        (
            example(input_ids=[5], sentence_lengths=[2], document=[0]),
            "record 1 is damaged: its sente",
        ),
        (
            example(input_ids=[5], sentence_lengths=[1], document=[0, 1]),
            "record 1: the feature 'document' must",
        ),
        (
            example(input_ids=[7], sentence_lengths=[1], document=[0]).replace(b"\x07", b"\xff"),
            "record 1: the feature 'input_ids' is damaged",
        ),
    ],
    # Ids of their own: the bytes differ from process to process.
    ids=["nothing", "cut", "no field", "a number", "type", "lengths", "documents", "damaged"],
)
def test_a_damaged_record_is_named(monkeypatch, record, message):
    whole = example(input_ids=[5], sentence_lengths=[1], document=[0])
    with pytest.raises(ValueError, match=message):
        without_tensorflow(monkeypatch, DynamicParser(), [whole, record])
