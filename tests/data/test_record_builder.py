"""Building records: the same bytes for any workers and interruptions; no partial files."""

import contextlib
import fcntl
import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from official_bert.data import build_worker, corpus, record_builder
from official_bert.data.instances import Settings

SETTINGS = Settings(max_seq_length=64, max_predictions_per_seq=10, dupe_factor=2)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(corpus, "BLOCK_BYTES", 40_000)


def build(small_text, folder, name="a.tfrecord", settings=SETTINGS, **options):
    options = {"num_shards": 3, "num_workers": 2, "input_format": "paragraphs"} | options
    return small_text.build(folder / name, settings, **options)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_output_does_not_depend_on_the_workers(small_text, tmp_path, worker_processes, dynamic):
    made = []
    for workers in (1, 3):
        folder = tmp_path / str(workers)
        build(small_text, folder, num_workers=workers, dynamic_masking=dynamic)
        made.append(contents(folder))
    assert made[0] == made[1]
    assert list(made[0]) == ["a.manifest.json", *(f"a.tfrecord-0000{n}-of-00003" for n in range(3))]


def test_shards_are_even_and_the_manifest_tells_what_is_in_them(small_text, tmp_path):
    summary = build(small_text, tmp_path)
    manifest = json.loads((tmp_path / "a.manifest.json").read_text())
    counts = [entry["records"] for entry in manifest["shards"]]
    assert max(counts) - min(counts) <= 1
    assert sum(counts) == summary["sequences"] == manifest["counts"]["sequences"]
    tokens = 0
    for entry in manifest["shards"]:
        path = tmp_path / entry["file"]
        records = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
        assert len(records) == entry["records"]
        sizes = np.cumsum([0, *(len(r) + 16 for r in records)])
        assert entry["bytes"] == sizes[-1] == path.stat().st_size
        assert entry["block_offsets"] == sizes[:-1][::256].tolist()
        for record in records:
            features = tf.train.Example.FromString(record).features.feature
            tokens += sum(features["input_mask"].int64_list.value)
    assert tokens == summary["tokens"]
    assert summary["documents"] == 40
    assert summary["unknown_tokens"] < 0.01 * summary["text_tokens"]


def test_gzip_and_v2_names_change_the_wrapping_only(small_text, tmp_path):
    build(small_text, tmp_path)
    build(small_text, tmp_path, "z.tfrecord", gzip_compress=True)
    for shard in tmp_path.glob("z.tfrecord-*"):
        plain = (tmp_path / shard.name.replace("z.", "a.")).read_bytes()
        assert gzip.decompress(shard.read_bytes()) == plain
        read = tf.data.TFRecordDataset(str(shard), compression_type="GZIP")
        assert sum(len(record) + 16 for record in read.as_numpy_iterator()) == len(plain)


COMMAND = """
import sys
from official_bert import create_pretraining_data
from official_bert.data import corpus, instances
corpus.BLOCK_BYTES = 40_000
text, output, vocab_file = sys.argv[1:]
create_pretraining_data.create_pretraining_data(
    text, output, vocab_file,
    instances.Settings(max_seq_length=64, max_predictions_per_seq=10, dupe_factor=2),
    num_shards=3, num_workers=2, input_format="paragraphs", gzip_compress=True,
)
"""


def start(small_text, folder) -> subprocess.Popen:
    output = str(folder / "a.tfrecord")
    command = [sys.executable, "-c", COMMAND, small_text.path, output, small_text.vocab_file]
    return subprocess.Popen(command, start_new_session=True, cwd=Path(__file__).parents[2])


def wait_for_changes(process: subprocess.Popen, folder: Path, count: int):
    """Until files came or went in `folder` so often, or the process is over."""
    times = set()
    while process.poll() is None and len(times) <= count:
        with contextlib.suppress(FileNotFoundError):
            times.add(folder.stat().st_mtime_ns)
        time.sleep(0.002)


def test_killed_at_random_moments_it_ends_with_the_same_bytes(small_text, tmp_path):
    whole = tmp_path / "whole"
    assert start(small_text, whole).wait() == 0
    expected = contents(whole)
    rng = random.Random(os.urandom(8))
    kills = 0
    for trial in range(2):
        folder = tmp_path / f"killed_{trial}"
        for _ in range(4):
            process = start(small_text, folder)
            wait_for_changes(process, folder / "a.building", rng.randrange(1, 12))
            kills += process.poll() is None
            if rng.random() < 0.5:
                process.kill()  # the workers follow
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for path in folder.glob("a.tfrecord-0*[0-9]"):  # a shard is there whole or not at all
                assert path.read_bytes() == expected[path.name]
        assert start(small_text, folder).wait() == 0
        assert contents(folder) == expected
    assert kills


def test_what_a_kill_after_the_manifest_left_is_removed(small_text, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(record_builder, "remove_parts", lambda *_: None)
        build(small_text, tmp_path)
    assert (tmp_path / "a.building").is_dir()
    with open(tmp_path / "a.building/.lock") as lock:  # while its process lives, they stay
        fcntl.flock(lock, fcntl.LOCK_EX)
        build(small_text, tmp_path)
    assert (tmp_path / "a.building").is_dir()
    build(small_text, tmp_path)
    assert not (tmp_path / "a.building").exists()


@pytest.fixture(scope="module")
def little_text(small_text, tmp_path_factory):
    path = tmp_path_factory.mktemp("little_text") / "text.txt"
    path.write_text(Path(small_text.path).read_text()[:40_000])
    return small_text._replace(path=str(path))


@pytest.fixture(scope="module")
def leftovers(little_text, tmp_path_factory, stopped) -> dict[int, Path]:
    """The folders of builds that were interrupted after this many shards; 3: of a whole one."""
    folders = {shards: tmp_path_factory.mktemp("leftovers") for shards in (0, 1, 3)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "BLOCK_BYTES", 8_000)
        for shards, folder in folders.items():
            with contextlib.suppress(KeyboardInterrupt), stopped(build_worker.Shard, shards):
                build(little_text, folder, num_workers=1)
    return folders


def flip(path, data):
    middle = len(data) // 2
    path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])


DAMAGES = {
    "missing": lambda path, data: path.unlink(),
    "cut": lambda path, data: path.write_bytes(data[: len(data) // 2]),
    "flipped": flip,
}
PARTS, SHARDS = ("part-000001.records", "part-000001.lengths.npy"), "a.tfrecord-0000{}-of-00003"
AFTER_A_SHARD = ("part-000001.lengths.npy", "part-000003.records", "parts.json", "shard-00000.json")
LEFTOVERS = [
    *((0, f"a.building/{name}") for name in (*PARTS, "part-000001.json", "build.json")),
    *((1, f"a.building/{name}") for name in (*AFTER_A_SHARD, "build.json")),
    (1, SHARDS.format(0)),
    (3, SHARDS.format(1)),
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("after_shards", "leftover"), LEFTOVERS)
def test_a_damaged_leftover_is_made_again(
    leftovers, little_text, tmp_path, monkeypatch, after_shards, leftover, damage
):
    monkeypatch.setattr(corpus, "BLOCK_BYTES", 8_000)
    folder = tmp_path / "again"
    shutil.copytree(leftovers[after_shards], folder)
    path = folder / leftover
    DAMAGES[damage](path, path.read_bytes())
    build(little_text, folder)
    assert contents(folder) == contents(leftovers[3])


def test_only_other_settings_are_built_anew(small_text, tmp_path):
    build(small_text, tmp_path)
    first, lines = contents(tmp_path), []
    build(small_text, tmp_path, report=lines.append)
    assert "nothing to do" in lines[0]
    assert contents(tmp_path) == first
    build(small_text, tmp_path, random_seed=1)
    second = contents(tmp_path)
    assert first.keys() == second.keys()
    assert all(first[name] != second[name] for name in first)


def test_two_builds_into_one_place_do_not_mix(small_text, tmp_path, monkeypatch):
    (tmp_path / "a.building").mkdir()
    with open(tmp_path / "a.building/.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="Another process works in"):
            build(small_text, tmp_path)


@pytest.mark.parametrize("before_a_shard", [False, True])
def test_a_worker_that_dies_is_reported_and_its_work_is_not_lost(
    small_text, tmp_path, monkeypatch, worker_processes, before_a_shard
):
    send = record_builder._send

    def kill_one(process, task):
        if before_a_shard and isinstance(task, build_worker.Shard):
            process.kill()
            process.wait()
        send(process, task)
        if not before_a_shard and isinstance(task, build_worker.Part) and task.index == 2:
            process.kill()

    monkeypatch.setattr(record_builder, "_send", kill_one)
    with pytest.raises(ValueError, match=r"a worker process died .*--num_workers"):
        build(small_text, tmp_path)


def test_parts_of_text_that_was_read_in_another_way_are_not_used_again(
    small_text, tmp_path, stopped
):
    with pytest.raises(KeyboardInterrupt), stopped(build_worker.Shard):
        build(small_text, tmp_path / "a", input_format="sentences")
    build(small_text, tmp_path / "a")
    build(small_text, tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def split_a_document(text):
    """The same lines in the same blocks, but documents of other numbers."""
    lines = text.splitlines(keepends=True)
    at = next(n for n in range(1, len(lines)) if lines[n - 1].strip() and lines[n].strip())
    return "".join([*lines[:at], "\n", *lines[at:]])


@pytest.mark.parametrize(
    ("after_shards", "change", "dynamic"),
    [(0, split_a_document, True), (1, "A new first document.\n\n{}".format, False)],
)
def test_a_text_changed_after_its_parts_or_a_shard_were_made_is_built_anew(
    small_text, tmp_path, stopped, after_shards, change, dynamic
):
    text = tmp_path / "text.txt"
    text.write_text(original := Path(small_text.path).read_text())
    changed, options = small_text._replace(path=str(text)), {"dynamic_masking": dynamic}
    with pytest.raises(KeyboardInterrupt), stopped(build_worker.Shard, after_shards):
        build(changed, tmp_path / "a", num_workers=1, **options)
    assert (tmp_path / "a/a.tfrecord-00000-of-00003").exists() == bool(after_shards)
    text.write_text(change(original))
    build(changed, tmp_path / "a", **options)
    build(changed, tmp_path / "b", **options)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_shards_of_two_makes_never_lie_side_by_side(small_text, tmp_path, stopped):
    build(small_text, tmp_path)
    with pytest.raises(KeyboardInterrupt), stopped(build_worker.Shard):
        build(small_text, tmp_path, random_seed=1)
    assert not list(tmp_path.glob("a.tfrecord*"))
    assert not (tmp_path / "a.manifest.json").exists()


def test_a_worker_that_cannot_be_started_leaves_no_other_behind(worker_processes, monkeypatch):
    started, start = [], subprocess.Popen

    def start_one(*arguments, **options):
        if started:
            raise OSError("no memory")
        started.append(start(*arguments, **options))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", start_one)
    workers = record_builder.Workers("plan", 3, at_once=3)
    with pytest.raises(OSError, match="no memory"):
        workers.__enter__()
    assert started[0].returncode == -signal.SIGKILL
    with pytest.raises(RuntimeError, match="shutdown"):
        workers._threads.submit(print)


class Taken(list):
    """Another thread takes the last entry just before each `pop`."""

    def __len__(self):
        return 1


def test_two_threads_that_want_the_last_idle_worker_get_one_each(monkeypatch):
    monkeypatch.setattr(record_builder.Workers, "_new", lambda _: "a new worker")
    monkeypatch.setattr(record_builder, "_ask", lambda worker, task: (worker, task))
    made = []
    with record_builder.Workers("plan", 1) as workers:
        workers._idle = Taken()
        workers.work(iter([1, 2]), lambda ask, task: made.append(ask(task)))
    assert made == [("a new worker", 1), ("a new worker", 2)]
