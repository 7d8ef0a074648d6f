"""The manifest: where it lies, what it packs, what it refuses."""

import glob
import json

import numpy as np
import pytest

from official_bert.data import manifest

CONTENTS = {
    "format": manifest.FORMAT,
    "masking": "static",
    "settings": {"gzip_compress": False},
    "vocabulary": {"size": 40},
    "records_per_block": 256,
    "shards": [],
    "tokens": "a\nb",
}
SHARD = {"file": "a", "records": 3, "bytes": 9, "crc32": 0, "block_offsets": [0]}


@pytest.mark.parametrize(
    "shard", ["wiki.tfrecord", "wiki.tfrecord-00003-of-00010", "wiki.tf_record", "wiki.tfrecord.gz"]
)
def test_a_glob_for_the_shards_misses_the_manifest(tmp_path, shard):
    path = manifest.path_for([str(tmp_path / shard)])
    assert path == str(tmp_path / "wiki.manifest.json")
    manifest.write([str(tmp_path / shard)], CONTENTS)
    assert not glob.glob(f"{tmp_path}/wiki.tf*")
    with open(path, "rb") as file:
        assert manifest.parse(path, file.read())["shards"] == []


@pytest.mark.parametrize("count", [0, 1, 8, 30522])
def test_flags_survive_packing(count):
    flags = np.random.default_rng(count).random(count) < 0.2
    packed = json.loads(json.dumps(manifest.pack_flags(flags)))
    assert np.array_equal(manifest.unpack_flags(packed, count), flags)


def test_a_whole_manifest_is_read():
    made = CONTENTS | {"shards": [SHARD]}
    assert manifest.parse("a.manifest.json", json.dumps(made).encode()) == made


@pytest.mark.parametrize(
    "text", [b"no json", b'{"a":' * 100_000, b"[]", b"{}", b'{"format": "something else"}']
)
def test_something_else_is_no_manifest(text):
    with pytest.raises(ValueError, match=r"a\.manifest\.json must be a manifest"):
        manifest.parse("a.manifest.json", text)


@pytest.mark.parametrize(
    "change",
    [
        {"shards": None},
        {"shards": [{"file": "a"}]},
        {"shards": ["a"]},
        {"settings": []},
        {"vocabulary": {"size": "40"}},
        {"masking": "dynamic"},
        {"records_per_block": 0},
        {"shards": [SHARD | {"file": "../a"}]},
        {"shards": [SHARD | {"records": -1}]},
        {"shards": [SHARD | {"block_offsets": [10]}]},
        {"shards": [SHARD | {"block_offsets": [0, 4]}]},
        {"shards": [SHARD | {"block_offsets": ["0"]}]},
        *({key: "missing"} for key in CONTENTS if key != "format"),
    ],
)
def test_a_manifest_that_lacks_something_is_called_damaged(change):
    made = {key: value for key, value in (CONTENTS | change).items() if value != "missing"}
    with pytest.raises(ValueError, match=r"a\.manifest\.json is damaged\. Make the records again"):
        manifest.parse("a.manifest.json", json.dumps(made).encode())
