"""Opening record files of any origin; errors name the file."""

import gzip
import json

import pytest
import tensorflow as tf

from official_bert.data.instances import Settings
from official_bert.data.record_files import RecordFiles


@pytest.fixture(scope="module")
def made(small_text, tmp_path_factory):
    """Folders with the same records: plain, in GZIP."""
    folder = tmp_path_factory.mktemp("records")
    for name in ("plain", "gzip"):
        small_text.build(
            folder / name / "a.tfrecord",
            Settings(max_seq_length=32, max_predictions_per_seq=5, dupe_factor=1),
            num_shards=2,
            input_format="paragraphs",
            gzip_compress=name == "gzip",
        )
    return folder


def all_records(files: RecordFiles) -> list[bytes]:
    return [record for block in range(len(files.blocks)) for record in files.read(block)]


def copy(made, tmp_path, kind: str, with_manifest: bool) -> str:
    for path in (made / kind).iterdir():
        if with_manifest or "manifest" not in path.name:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    return f"{tmp_path}/a*"


@pytest.mark.parametrize("kind", ["plain", "gzip"])
@pytest.mark.parametrize("with_manifest", [True, False])
def test_the_same_records_with_and_without_manifest_and_gzip(made, tmp_path, kind, with_manifest):
    files = RecordFiles([copy(made, tmp_path, kind, with_manifest)])
    paths = sorted(str(p) for p in (made / "plain").glob("*-of-*"))
    expected = list(tf.data.TFRecordDataset(paths).as_numpy_iterator())
    assert all_records(files) == expected
    assert files.num_records == len(expected)
    assert (files.manifest is not None) == with_manifest
    second = len(list(tf.data.TFRecordDataset(paths[0]).as_numpy_iterator()))
    assert files.name(second + 3) == f"{files.paths[1]}, record 3"
    start = files.blocks[0].tolist()[2] - 5
    assert files.read(0, start, start + 2) == expected[start : start + 2]


def test_a_pattern_that_matches_nothing_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"'.*/none\*' must match a file"):
        RecordFiles([f"{tmp_path}/none*"])


def test_a_folder_is_refused_with_what_to_name_instead(tmp_path):
    with pytest.raises(
        ValueError,
        match=r"must be a file or a glob; got a folder. Name the files in it, .*tfrecord",
    ):
        RecordFiles([str(tmp_path)])


@pytest.mark.parametrize("kind", ["plain", "gzip"])
@pytest.mark.parametrize("with_manifest", [True, False])
def test_a_truncated_file_is_named(made, tmp_path, kind, with_manifest):
    pattern = copy(made, tmp_path, kind, with_manifest)
    path = tmp_path / "a.tfrecord-00001-of-00002"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(ValueError, match=r"a\.tfrecord-00001-of-00002.*truncated"):
        RecordFiles([pattern])


def test_a_damaged_record_is_named_when_it_is_read(made, tmp_path):
    pattern = copy(made, tmp_path, "plain", True)
    path = tmp_path / "a.tfrecord-00000-of-00002"
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"00000-of-00002, record 0 is damaged: its checksum"):
        RecordFiles([pattern]).read(0)


@pytest.mark.parametrize(
    "content",
    [b"text that is no record at all", gzip.compress(b"text" * 9)],
    ids=["plain", "gzip"],
)
def test_a_file_of_something_else_is_refused(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ValueError, match=r"a, record 0 (must begin with a TFRecord|is truncated)"):
        RecordFiles([f"{tmp_path}/a"])


def test_empty_files_hold_no_records(tmp_path):
    (tmp_path / "a").touch()
    with pytest.raises(ValueError, match="must contain records; got none"):
        RecordFiles([f"{tmp_path}/a"])


def test_a_manifest_of_something_else_is_refused(made, tmp_path):
    pattern = copy(made, tmp_path, "plain", True)
    (tmp_path / "a.manifest.json").write_text(json.dumps({"format": "pre-training records 99"}))
    with pytest.raises(ValueError, match=r"a\.manifest\.json must be a manifest of the format"):
        RecordFiles([pattern])
