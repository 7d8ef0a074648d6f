"""Files behind addresses, here of TensorFlow's `file://`; `test_bucket.py` has an object store."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from official_bert import run_pretraining
from official_bert.data.record_files import RecordFiles
from official_bert.data.records import frame
from official_bert.data.tokenization import read_vocabulary
from official_bert.model.config import BertConfig
from official_bert.system import local_paths
from official_bert.system.places import RemotePath, as_path
from official_bert.system.whole_files import write_text
from official_bert.training import checkpoints
from official_bert.training.training_log import TrainingLog

TENSORS = {"global_step": np.int64(7), "a/b": np.arange(1000.0)}
STATE = {"loop": {}, "seconds": 1.0}


@pytest.fixture
def folder(tmp_path):
    """A folder that only TensorFlow's file systems are asked for."""
    return RemotePath(f"file://{tmp_path}/store")


def test_a_path_of_this_machine_stays_one_and_an_address_is_none(tmp_path):
    assert as_path(tmp_path) == as_path(str(tmp_path)) == tmp_path
    assert as_path("gs://b/m/") == as_path(RemotePath("gs://b/m")) == RemotePath("gs://b/m")
    assert str(as_path("gs://b//m///a//")) == "gs://b/m/a"
    assert str(as_path("file:///tmp//m/")) == "file:///tmp/m"
    with pytest.raises(TypeError):
        os.makedirs(RemotePath("gs://b/m"))  # which would be a folder named gs:


@pytest.mark.parametrize("path", ["m/a.b.json", "m/a", "m/x/log.jsonl"])
def test_names_are_those_of_pathlib(path):
    local, remote = Path("/", path), RemotePath(f"gs://b/{path}")
    for part in ("name", "stem", "suffix"):
        assert getattr(remote, part) == getattr(local, part)
    for other in (lambda p: p.parent, lambda p: p / "c", lambda p: p.with_suffix(".new")):
        assert str(other(remote)) == f"gs://b{other(local)}"


def test_files_are_written_appended_to_listed_and_removed(folder):
    path = folder / "x" / "a.txt"
    folder.mkdir()
    (folder / "x").mkdir(parents=True, exist_ok=True)
    write_text(path, "größer\n")
    with path.open("a") as file:
        file.write("two\n")
    assert path.read_text() == "größer\ntwo\n"
    assert list((folder / "x").glob("*.txt")) == [path]
    assert path.exists()
    assert folder.is_dir()
    path.unlink()
    assert not path.exists()
    with pytest.raises(FileNotFoundError, match=re.escape(str(path))):
        path.read_text()


def test_a_store_that_is_not_known_is_named():
    with pytest.raises(ValueError, match="^s3://b/m needs the package tensorflow-io"):
        as_path("s3://b/m").exists()


@pytest.mark.parametrize("wrong", ["gs:/b/m", "gs:/b", "file:/tmp/m"])
def test_half_an_address_is_refused(wrong):
    local_paths.require_paths(model_dir="gs://b/m", bert_config_file="a/gs:/b", other=None)
    with pytest.raises(ValueError, match="model_dir must be .*two slashes"):
        local_paths.require_paths(model_dir=wrong)


@pytest.mark.parametrize("wrong", ["gs://", "gs:///", "file://"])
def test_an_address_without_a_bucket_is_refused(wrong):
    """As gs://$BUCKET is where BUCKET is not set: without its slashes it would be a folder."""
    with pytest.raises(ValueError, match=f"model_dir must name a bucket, .*; got '{wrong}'"):
        local_paths.require_paths(model_dir=wrong)


def test_a_folder_with_signs_of_a_pattern_in_its_name_keeps_its_checkpoints(tmp_path):
    folder = RemotePath(f"file://{tmp_path}/rate[1e-3]*")
    store = checkpoints.CheckpointStore(folder)
    store.save(TENSORS, 4, STATE)
    assert store.latest().step == 4


def test_a_run_does_not_write_over_what_it_starts_from():
    outputs = {"model_dir": ["gs://b/m/best", "gs://b/m/pretrained"]}
    local_paths.require_apart(outputs, {"init_checkpoint": ["gs://b/m/ctl_step_8.ckpt-2.index"]})
    with pytest.raises(ValueError, match="model_dir must not overwrite .* 'gs://b/m/pretrained'"):
        local_paths.require_apart(outputs, {"init_checkpoint": ["gs://b/m/pretrained/a.index"]})


@pytest.mark.parametrize("slashes", ["", "/", "//"])
def test_an_address_with_more_slashes_is_the_same_folder(slashes):
    values = SimpleNamespace(
        model_dir=f"gs://b{slashes}/m/{slashes}",
        bert_config_file="bert_config.json",
        init_checkpoint=f"gs://b/m{slashes}/pretrained/{slashes}bert_model.ckpt-1",
        engine="tensorflow",
    )
    with pytest.raises(ValueError, match="model_dir must not overwrite .* 'gs:.*/pretrained'"):
        run_pretraining._check_paths(values)


def test_records_are_found_under_an_address_with_more_slashes(folder):
    folder.mkdir()
    write_bytes(folder / "a.tfrecord", frame(b"abc"))
    files = RecordFiles(f"{folder}//*.tfrecord")
    assert files.paths == [f"{folder}/a.tfrecord"]


def test_configuration_and_vocabulary_are_read(folder):
    folder.mkdir()
    write_text(folder / "c.json", BertConfig(vocab_size=99).to_json())
    assert BertConfig.from_json_file(folder / "c.json") == BertConfig(vocab_size=99)
    write_text(folder / "vocab.txt", "\ufeff[PAD]\n[UNK]\r\n[CLS]\n[SEP]\n[MASK]\n")
    assert list(read_vocabulary(f"{folder}/vocab.txt"))[:2] == ["[PAD]", "[UNK]"]
    with pytest.raises(ValueError, match="must be an existing file"):
        read_vocabulary(f"{folder}/none.txt")


def test_the_manifest_decides_whether_a_checkpoint_counts(folder):
    store = checkpoints.CheckpointStore(folder, keep=2)
    first, second = (store.save(TENSORS, step, STATE) for step in (4, 8))
    np.testing.assert_array_equal(store.latest().tensors()["a/b"], TENSORS["a/b"])
    said = []
    data = as_path(f"{second}.data-00000-of-00001")
    content = data.read_bytes()
    write_bytes(data, content[:-1] + bytes([content[-1] ^ 1]))  # half-written, or damaged
    assert store.latest(said.append).prefix == first
    assert "does not match its digest" in said[0]
    as_path(f"{second}.json").unlink()
    with pytest.raises(ValueError, match="without ctl_step_8.ckpt-2.json"):
        store.latest()
    for end in (".index", ".data-00000-of-00001"):
        as_path(f"{second}{end}").unlink()
    assert store.latest().prefix == first
    third = store.save(TENSORS, 8, STATE)  # in the place of the one that does not count
    assert third == second
    assert store.latest().prefix == third


def test_what_a_kill_left_is_removed_with_the_next_checkpoint(folder):
    store = checkpoints.CheckpointStore(folder, keep=1)
    write_text(folder / "ctl_step_2.ckpt-1.data-00000-of-00001", "without a manifest")
    for step in (4, 8):
        store.save(TENSORS, step, STATE)
    names = {"ctl_step_8.ckpt-2" + end for end in (".json", ".index", ".data-00000-of-00001")}
    assert {path.name for path in folder.glob("*")} == {*names, "checkpoint"}


def test_best_weights_are_kept_there(folder):
    for step in (4, 8):
        record = {"loss": 1.0, "step": step, "max_seq_length": 32, "records": "those"}
        checkpoints.save_best(folder / "best", {"a": np.ones(2)}, record)
    assert json.loads((folder / "best/best.json").read_text())["step"] == 8
    assert len(list((folder / "best").glob("*.index"))) == 1


def test_the_log_is_appended_to_and_rewound(folder):
    folder.mkdir()
    log = TrainingLog(folder / "train_log.jsonl")
    for step in (1, 2, 3):
        log.write(kind="train", step=step)
    log.keep_copy("before")
    log.rewind(2)
    assert log.last("train")["step"] == 2
    assert len((folder / "train_log.before.jsonl").read_text().splitlines()) == 3


def test_files_of_other_tools_are_read_without_a_copy(folder, monkeypatch, tmp_path):
    payloads = [bytes([n % 256]) * (n * 37 % 5000) for n in range(900)]
    folder.mkdir()
    write_bytes(folder / "a.tfrecord", b"".join(map(frame, payloads)))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))  # where nothing can be written
    monkeypatch.setattr("official_bert.data.record_files._BYTES_AHEAD", 10_000)
    files = RecordFiles(f"{folder}/*.tfrecord")
    assert files.num_records == len(payloads)
    assert [r for n in range(len(files.blocks)) for r in files.read(n)] == payloads


def test_a_truncated_file_is_named(folder):
    folder.mkdir()
    write_bytes(folder / "a.tfrecord", frame(b"abc") + frame(b"defg")[:-1])
    with pytest.raises(ValueError, match="file://.*record 1 is truncated"):
        RecordFiles(f"{folder}/a.tfrecord")
    with pytest.raises(ValueError, match="got a folder"):
        RecordFiles(str(folder))


def write_bytes(path, content):
    with tf.io.gfile.GFile(str(path), "wb") as file:
        file.write(content)
