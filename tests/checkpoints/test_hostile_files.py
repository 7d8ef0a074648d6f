"""Hostile files, some found by fuzzing: refused in one line and in bounded memory."""

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
from bert_checkpoints import keras_weights, make_source

from official_bert.checkpoints import sources
from official_bert.convert_checkpoint import convert
from official_bert.data.input_pipeline import Batches
from official_bert.data.records import DynamicRecord, frame
from official_bert.tasks import labels
from official_bert.training import checkpoints

DEEP = b'{"a":' * 100_000


def dynamic(folder: Path, content: bytes, records: int, gzip: bool = False) -> Batches:
    """Batches of a file of dynamic records, with a manifest that fits it."""
    settings = {"gzip_compress": gzip, "max_seq_length": 16, "masked_lm_prob": 0.15}
    settings |= {"do_whole_word_mask": False, "max_ngram_size": 1}
    special = {"[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
    shard = {"file": "a.tfrecord", "records": records, "bytes": len(content), "crc32": 0}
    made = {
        "format": "pre-training records 1",
        "masking": "dynamic",
        "settings": settings,
        "vocabulary": {"size": 40, "special_tokens": special, "continues_a_word": "AAAAAAA="},
        "records_per_block": 256,
        "tokens": "",
        "shards": [shard | {"block_offsets": [0]}],
    }
    (folder / "a.tfrecord").write_bytes(content)
    (folder / "a.manifest.json").write_text(json.dumps(made))
    return Batches([str(folder / "a.tfrecord")], 2, 16, 3, vocab_size=40)


def test_a_record_that_is_no_example_is_named(tmp_path):
    (tmp_path / "a").write_bytes(frame(b"\xff\xff\xff"))
    with pytest.raises(ValueError, match="a, record 0 must be a tf.train.Example"):
        Batches([str(tmp_path / "a")], 1, 16, 3)


@pytest.mark.parametrize(
    ("ids", "lengths"),
    [([], []), ([5, 6], []), ([5, 6], [0, 2]), ([5, 6], [2**40, 1]), ([5, 6, 7], [1, 1])],
    ids=["nothing", "no sentence", "an empty sentence", "a long one", "too few tokens"],
)
def test_sentences_that_are_not_the_tokens_cut_in_pieces_are_refused(tmp_path, ids, lengths):
    whole = ([5, 6, 7, 8], [2, 2], 0)
    content = b"".join(DynamicRecord(16)([whole, (ids, lengths, 0), whole]))
    with pytest.raises(ValueError, match="a.tfrecord, record 1 is damaged: its sentences do not"):
        dynamic(tmp_path, content, 3)[0]


def test_negative_ids_are_refused(tmp_path):
    import tensorflow as tf

    def feature(*values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    entries = {"input_ids": feature(5, -1), "sentence_lengths": feature(2), "document": feature(0)}
    example = tf.train.Example(features=tf.train.Features(feature=entries))
    with pytest.raises(ValueError, match="record 0"):
        dynamic(tmp_path, frame(example.SerializeToString()), 1)[0]


def test_whole_records_of_that_form_are_read(tmp_path):
    content = b"".join(DynamicRecord(16)([([5, 6, 7, 8], [2, 2], 0)] * 3))
    assert dynamic(tmp_path, content, 3)[0]["input_ids"].shape == (2, 16)


def test_a_block_that_unpacks_to_gigabytes_is_refused_before_they_are_in_memory(tmp_path):
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    bomb = packer.compress(bytes(1 << 27)) + packer.flush()
    assert len(bomb) < 200_000
    with pytest.raises(ValueError, match="must unpack to at most 67,108,864 bytes"):
        dynamic(tmp_path, bomb, 3, gzip=True)[0]


def test_json_of_a_hundred_thousand_levels_is_damage_and_no_crash(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(DEEP)
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 40}))
    with pytest.raises(ValueError, match="its weight_map is not readable"):
        sources.open_checkpoint(tmp_path)
    (tmp_path / "labels.json").write_bytes(DEEP)
    with pytest.raises(ValueError, match="must be the file of labels"):
        labels.load(str(tmp_path / "labels.json"))
    prefix = tmp_path / "ctl_step_4.ckpt-1"
    checkpoints.write_bundle(prefix, {"a": np.ones(3, "float32")})
    Path(f"{prefix}.json").write_bytes(DEEP)
    with pytest.raises(ValueError, match="No checkpoint in .* is complete"):
        checkpoints.CheckpointStore(tmp_path).latest()


@pytest.mark.parametrize("chunks", [None, (1024,)], ids=["never written", "in chunks"])
def test_weights_of_terabytes_in_a_keras_file_of_kilobytes_are_refused(tmp_path, chunks):
    make_source(tmp_path / "in")
    convert(tmp_path / "in", tmp_path / "keras", "keras")
    with keras_weights(tmp_path / "keras/model.keras") as file:
        del file["encoder/layers/dense/vars/1"]
        file.create_dataset("encoder/layers/dense/vars/1", (2**42,), "f4", chunks=chunks)
    with pytest.raises(ValueError, match="vars/1 are compressed or incomplete") as error:
        convert(tmp_path / "keras", tmp_path / "out", "tf1")
    assert "\n" not in str(error.value)
