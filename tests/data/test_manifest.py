"""The files of a build: a sound manifest, and sets of shards that are never mixed."""

import glob
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from official_bert.data import manifest, record_builder
from official_bert.data.build_worker import Shard
from official_bert.data.instances import Settings
from official_bert.data.record_files import RecordFiles

SETTINGS = Settings(max_seq_length=64, max_predictions_per_seq=10, dupe_factor=1)
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


@pytest.fixture
def build(small_text, tmp_path):
    def build(num_shards=4, name="a.tfrecord", **options):
        output = tmp_path / "out" / name
        return small_text.build(output, SETTINGS, num_shards=num_shards, **options)

    return build


def shards(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "out").glob("a.tfrecord*"))


def numbered(count: int) -> list[str]:
    return [f"a.tfrecord-{n:05d}-of-{count:05d}" for n in range(count)]


@pytest.mark.parametrize(("first", "second"), [(4, 8), (8, 4), (1, 4), (4, 1)])
def test_another_number_of_shards_leaves_no_old_one_beside_them(build, tmp_path, first, second):
    build(first)
    made = build(second)
    assert shards(tmp_path) == (numbered(second) if second > 1 else ["a.tfrecord"])
    assert RecordFiles(f"{tmp_path}/out/a.tfrecord*").num_records == made["sequences"]


def test_shards_of_an_interrupted_build_are_not_read_and_go_when_another_number_is_built(
    build, tmp_path, stopped
):
    with pytest.raises(KeyboardInterrupt), stopped(Shard, after=2):
        build(4)
    assert shards(tmp_path) == numbered(4)[:2]
    with pytest.raises(ValueError, match=r"00000-of-00004 is part of an unfinished build"):
        RecordFiles(f"{tmp_path}/out/a.tfrecord*")
    build(8)
    assert shards(tmp_path) == numbered(8)


def test_the_last_build_can_be_read_until_the_shards_of_the_next_are_made(
    build, tmp_path, monkeypatch
):
    made = build(4)
    with monkeypatch.context() as patch:
        patch.setattr(record_builder.Builder, "_make_shards", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build(8, random_seed=2)
    assert RecordFiles(f"{tmp_path}/out/a.tfrecord*").num_records == made["sequences"]
    build(8, random_seed=2)
    assert shards(tmp_path) == numbered(8)


@pytest.mark.parametrize("finished", [False, True])
def test_files_of_unknown_origin_under_the_name_are_refused_and_stay(build, tmp_path, finished):
    if finished:
        build(8)
    (tmp_path / "out").mkdir(exist_ok=True)
    for name in numbered(4):
        (tmp_path / "out" / name).write_bytes(b"not ours")
    before = shards(tmp_path)
    message = r"00000-of-00004, .* and 1 more of an unknown build in .*/out"
    with pytest.raises(ValueError, match=message):
        build(8)
    assert shards(tmp_path) == before


def test_a_file_that_is_no_longer_what_the_last_build_made_is_not_removed(build, tmp_path):
    build(4)
    (tmp_path / "out" / numbered(4)[1]).write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"got .*00001-of-00004 of an unknown build in"):
        build(8)
    assert shards(tmp_path) == numbered(4)


def test_other_names_in_the_folder_are_left_alone(build, tmp_path):
    build(4)
    for name in ("a", "ab.tfrecord", "b.tfrecord-00000-of-00004", "a.txt"):
        (tmp_path / "out" / name).write_bytes(b"other")
    build(2)
    assert shards(tmp_path) == numbered(2)
    assert len(list((tmp_path / "out").iterdir())) == 2 + 1 + 4


@pytest.mark.parametrize("other", ["a.tfrecord.gz", "a", "a.tfrecord,b.tfrecord"])
def test_a_build_under_another_name_with_the_same_manifest_is_not_replaced(build, tmp_path, other):
    names = [f"{tmp_path}/out/{name}" for name in other.split(",")]
    build(0, name=",".join(names))
    with pytest.raises(
        ValueError, match=r"the manifest of another build; got .*/a\.manifest\.json"
    ):
        build(2)
    assert len(RecordFiles(names).paths) == len(names)


def test_a_shard_that_another_manifest_lists_is_not_built_over(build, tmp_path):
    build(0, name="b.tfrecord")
    with pytest.raises(
        ValueError, match=r"another build; got b\.tfrecord, listed in .*/b\.manifest"
    ):
        build(0, name=f"a.tfrecord,{tmp_path}/out/b.tfrecord")
    assert shards(tmp_path) == []


@pytest.fixture(scope="module")
def eight(small_text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("eight")
    small_text.build(folder / "a.tfrecord", SETTINGS, num_shards=8)
    return folder


@pytest.fixture
def folder(eight, tmp_path):
    return shutil.copytree(eight, tmp_path / "copy")


def test_a_reader_names_stale_files(folder):
    for n, name in enumerate(numbered(4)):
        (folder / name).write_bytes((folder / numbered(8)[n]).read_bytes())
    message = r"lists .8 files.; got also .*00000-of-00004, .* and 1 more, left by another build"
    for pattern in ("a.tfrecord*", "a.tfrecord-*", "*-of-00004"):
        with pytest.raises(ValueError, match=message) as error:
            RecordFiles(f"{folder}/{pattern}")
        assert "\n" not in str(error.value)
    assert RecordFiles(f"{folder}/*-of-00008").num_records


def test_a_reader_names_missing_files_unless_those_to_read_are_named(folder):
    for name in (numbered(8)[2], numbered(8)[7]):
        (folder / name).unlink()
    message = r"all 8 files that .*manifest.json lists; got all but .*00002-of-00008, .*00007"
    with pytest.raises(ValueError, match=message):
        RecordFiles(f"{folder}/a.tfrecord-*")
    RecordFiles(f"{folder}/a.tfrecord-0000[0-1]-of-00008")
    RecordFiles([f"{folder}/{numbered(8)[n]}" for n in (0, 5)])


def test_a_part_of_a_set_can_be_read_and_held_out(folder):
    held_out = RecordFiles(f"{folder}/{numbered(8)[7]}")
    rest = RecordFiles(f"{folder}/a.tfrecord-0000[0-6]-of-00008")
    assert held_out.num_records + rest.num_records == RecordFiles(f"{folder}/a*").num_records


def test_two_numbers_of_shards_are_not_read_together_without_a_manifest_either(folder):
    (folder / "a.manifest.json").unlink()
    (folder / "a.tfrecord-00000-of-00002").write_bytes((folder / numbered(8)[0]).read_bytes())
    with pytest.raises(
        ValueError, match="one copy of the data; got copies in (2 and 8|8 and 2) files"
    ):
        RecordFiles(f"{folder}/a.tfrecord*")
    RecordFiles(f"{folder}/*-of-00008")


class Counted(list):
    """A list that counts how often an item of it is looked at."""

    looks = 0

    def __iter__(self):
        for item in super().__iter__():
            Counted.looks += 1
            yield item

    def __getitem__(self, index):
        Counted.looks += 1
        return super().__getitem__(index)


@pytest.mark.parametrize(("num_parts", "num_shards"), [(150, 150), (10, 300), (300, 10)])
def test_the_bookkeeping_of_shards_grows_with_parts_and_shards_not_with_their_product(
    tmp_path, monkeypatch, num_parts, num_shards
):
    counts = np.random.default_rng(1).integers(0, 9, num_parts) + num_shards // num_parts
    parts = Counted()
    for n, count in enumerate(counts.tolist()):
        (tmp_path / f"part-{n}.records").touch()
        parts.append({"path": str(tmp_path / f"part-{n}"), "counts": {"sequences": count}})

    class Workers:
        """Work through the tasks one by one; each shard holds what is asked for, for certain."""

        def work(self, tasks, make):
            for task in tasks:
                make(self.shard, task)

        def shard(self, task):
            assert all(Path(f"{path}.records").exists() for path, _, _ in task.pieces)
            written.extend((path, n) for path, a, b in task.pieces for n in range(a, b))
            return {"file": Path(task.path).name, "bytes": 0}

    written = []
    monkeypatch.setattr(manifest, "write_note", lambda *_: None)
    paths = [str(tmp_path / f"s-{n:05d}-of-{num_shards:05d}") for n in range(num_shards)]
    builder = record_builder.Builder(None, None, paths, Workers(), None, None)
    builder._make_shards(parts)
    assert Counted.looks < 8 * (num_parts + num_shards)
    assert written == [(p["path"], n) for p in list(parts) for n in range(p["counts"]["sequences"])]
    left = {path.stem for path in tmp_path.glob("*.records")}
    assert left == {f"part-{n}" for n, count in enumerate(counts) if not count}


def test_a_manifest_that_is_none_does_not_stand_in_the_way(build, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/z.manifest.json").write_text(json.dumps({"format": "something else"}))
    build(2)
    assert manifest.path_for([str(tmp_path / "out/a.tfrecord")]).endswith("a.manifest.json")
    assert shards(tmp_path) == numbered(2)
