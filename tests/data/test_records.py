"""Records written byte by byte, against tf.train.Example and TensorFlow's own reader."""

import random

import pytest
import tensorflow as tf

from official_bert.data import records
from official_bert.data.instances import Instance


def as_dict(example: tf.train.Example) -> dict:
    return {
        name: list(getattr(feature, feature.WhichOneof("kind")).value)
        for name, feature in example.features.feature.items()
    }


def random_instance(rng: random.Random, vocab_size: int) -> Instance:
    length = rng.randint(5, 300)
    ids = [rng.randrange(vocab_size) for _ in range(length)]
    positions = sorted(rng.sample(range(length), rng.randint(1, 5)))
    masked = [rng.randrange(vocab_size) for _ in positions]
    return Instance(ids, rng.randint(1, length), positions, masked, rng.random() < 0.5)


@pytest.mark.parametrize("v2_names", [False, True])
def test_static_records_are_what_tensorflow_reads(tmp_path, v2_names):
    rng = random.Random(1)
    instances = [random_instance(rng, 200_000) for _ in range(50)]
    make = records.StaticRecord(300, 10, v2_names)
    path = tmp_path / "records"
    path.write_bytes(b"".join(make(instances)))
    read = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())  # checks the checksums
    assert len(read) == 50
    ids, segments = (
        ("input_word_ids", "input_type_ids") if v2_names else ("input_ids", "segment_ids")
    )
    for instance, serialized in zip(instances, read, strict=True):
        n, k = len(instance.input_ids), len(instance.masked_ids)
        first = instance.first_segment
        assert as_dict(tf.train.Example.FromString(serialized)) == {
            ids: instance.input_ids + [0] * (300 - n),
            "input_mask": [1] * n + [0] * (300 - n),
            segments: [0] * first + [1] * (n - first) + [0] * (300 - n),
            "masked_lm_positions": instance.masked_positions + [0] * (10 - k),
            "masked_lm_ids": instance.masked_ids + [0] * (10 - k),
            "masked_lm_weights": [1.0] * k + [0.0] * (10 - k),
            "next_sentence_labels": [int(instance.is_random_next)],
        }


def test_dynamic_records_are_what_tensorflow_reads(tmp_path):
    make = records.DynamicRecord(20_003)
    sequences = [([5, 300, 39_999], [1, 2], 70_000), ([7] * 20_000, [20_000], 0)]
    path = tmp_path / "records"
    path.write_bytes(b"".join(make(sequences)))
    read = [
        as_dict(tf.train.Example.FromString(r))
        for r in tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    ]
    assert read == [
        {"input_ids": [5, 300, 39_999], "sentence_lengths": [1, 2], "document": [70_000]},
        {"input_ids": [7] * 20_000, "sentence_lengths": [20_000], "document": [0]},
    ]


def test_a_header_with_a_wrong_checksum_has_no_length():
    framed = records.frame(b"data")
    assert records.payload_length(framed) == 4
    assert records.payload_length(b"\x05" + framed[1:]) is None
