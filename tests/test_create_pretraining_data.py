"""The commands: official flags, progress and a summary, one clear line for each mistake."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_text import small_text as small_text

from official_bert import build_progress, tokenization
from official_bert import create_pretraining_data as command
from official_bert.instances import Settings

ROOT = Path(__file__).parents[1]


def run(*arguments, module="create_pretraining_data", script=False) -> subprocess.CompletedProcess:
    how = [f"official_bert/{module}.py"] if script else ["-m", f"official_bert.{module}"]
    return subprocess.run(
        [sys.executable, *how, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT
    )


def flags(small_text, tmp_path, **values):
    values = {
        "input_file": small_text.path,
        "output_file": tmp_path / "out" / "a.tfrecord",
        "vocab_file": small_text.vocab_file,
        "dupe_factor": 1,
    } | values
    return [f"--{name}={value}" for name, value in values.items() if value is not None]


@pytest.mark.parametrize("script", [False, True])
def test_text_to_vocabulary_to_records_by_two_commands(small_text, tmp_path, script):
    vocab_file = tmp_path / "vocab.txt"
    learned = run(
        f"--input_file={small_text.path}",
        f"--vocab_file={vocab_file}",
        "--vocab_size=500",
        module="learn_vocabulary",
        script=script,
    )
    assert learned.returncode == 0, learned.stderr
    assert len(tokenization.read_vocabulary(str(vocab_file))) == 500
    official = {
        "do_lower_case": True,
        "do_whole_word_mask": True,
        "max_ngram_size": 3,
        "gzip_compress": True,
        "use_v2_feature_names": True,
        "max_seq_length": 64,
        "max_predictions_per_seq": 10,
        "random_seed": 5,
        "dupe_factor": 2,
        "masked_lm_prob": 0.2,
        "short_seq_prob": 0.2,
        "vocab_file": vocab_file,
    }
    made = run(*flags(small_text, tmp_path, **official, num_shards=2, num_workers=2), script=script)
    assert made.returncode == 0, made.stderr
    assert "MB/s" in made.stderr
    assert "padding" in made.stderr
    manifest = json.loads((tmp_path / "out/a.manifest.json").read_text())
    del official["vocab_file"]
    assert official.items() <= manifest["settings"].items()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"vocab_file": "nowhere.txt"}, "vocab_file: 'nowhere.txt' does not exist"),
        ({"input_file": "nowhere/*.txt"}, "input_file: nothing matches 'nowhere/*.txt'"),
        ({"max_ngram_size": 3}, "max_ngram_size=3 masks runs of whole words"),
        ({"max_seq_length": 2}, "max_seq_length: got 2"),
        ({"num_workers": -1}, "num_workers: got -1"),
        ({"num_shards": 100_000}, "num_shards: 100000 shards are more than the"),
        ({"output_file": "/proc/none/a"}, "output_file: cannot write into /proc/none"),
        ({"output_file": "a,b/c"}, "output_file: expected different files in one folder"),
    ],
)
def test_a_mistake_ends_with_one_clear_line_and_an_exit_code(small_text, tmp_path, wrong, message):
    made = run(*flags(small_text, tmp_path, **wrong))
    assert made.returncode == 1
    assert made.stderr.startswith(f"create_pretraining_data: {message}"), made.stderr
    assert made.stderr.count("\n") == 1


def create(small_text, tmp_path, text: bytes, **options):
    path = tmp_path / "text.txt"
    path.write_bytes(text)
    options = {"num_workers": 1, "vocab_file": small_text.vocab_file} | options
    return command.create_pretraining_data(
        str(path), str(tmp_path / "out/a.tfrecord"), settings=Settings(dupe_factor=1), **options
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "input_file: no text in"),
        (b"\n \n\n", "input_file: no text in"),
        ("漢字かな交じり文。\n".encode() * 20, "of the first .* tokens are .UNK.*does not fit"),
        (b"caf\xe9\n", "line 1: not UTF-8"),
    ],
)
def test_text_that_cannot_be_used_is_refused_before_the_work(small_text, tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        create(small_text, tmp_path, text)
    assert not (tmp_path / "out").exists()


def test_bytes_that_are_no_text_in_the_middle_lose_nothing(small_text, tmp_path, monkeypatch):
    monkeypatch.setattr("official_bert.corpus.BLOCK_BYTES", 20_000)
    good = Path(small_text.path).read_bytes()
    with pytest.raises(ValueError, match="not UTF-8"):
        create(small_text, tmp_path, good + b"\n\ncaf\xe9\n")
    parts = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out/a.building").glob("part*.json")}
    assert len(parts) > 5
    monkeypatch.setattr("official_bert.record_builder.Builder.finish", lambda self: None)
    create(small_text, tmp_path, good + b"\n\ncaf\n")
    again = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out/a.building").glob("part*.json")}
    assert sum(again.get(name) == time for name, time in parts.items()) >= len(parts) - 1


def test_duplicate_documents_are_counted_and_dropped_on_request(small_text, tmp_path):
    text = b"The same words again.\nAnd some more.\n\n" * 3 + b"Other words.\n"
    counted = create(small_text, tmp_path, text)
    dropped = create(small_text, tmp_path, text, drop_duplicate_documents=True)
    assert (counted["documents"], counted["duplicate_documents"]) == (4, 2)
    assert (dropped["documents"], dropped["duplicate_documents"]) == (2, 2)


def test_a_full_disk_is_refused_before_the_work(small_text, tmp_path, monkeypatch):
    import collections

    usage = collections.namedtuple("usage", "total used free")(10, 10, 1000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(ValueError, match="GB of records will not fit on the disk"):
        create(small_text, tmp_path, Path(small_text.path).read_bytes())


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/shm"), reason="needs a mount")
def test_a_disk_that_fills_up_ends_with_one_line_and_the_parts_stay(small_text, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)])
    if mounted.returncode:
        pytest.skip("cannot mount a small disk")
    try:
        output = disk / "a.tfrecord"
        values = {"output_file": output, "num_workers": 1, "dupe_factor": 10}
        made = run(*flags(small_text, tmp_path, **values))
        assert made.returncode == 1
        assert "No space left on device" in made.stderr
        assert made.stderr.count("\n") == 1
        assert not output.exists()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_progress_tells_rate_and_time_left(small_text, tmp_path, monkeypatch):
    monkeypatch.setattr("official_bert.corpus.BLOCK_BYTES", 20_000)
    monkeypatch.setattr(build_progress.Progress.__init__, "__defaults__", (0.0,))
    lines = []
    create(small_text, tmp_path, Path(small_text.path).read_bytes(), report=lines.append)
    assert len(lines) > 5
    assert all("MB/s" in line and "left" in line for line in lines[:-1])
    assert "documents" in lines[-1]


def test_ctrl_c_ends_with_one_line_and_the_next_run_goes_on(small_text, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text((Path(small_text.path).read_text() + "\n") * 40)
    arguments = flags(small_text, tmp_path, input_file=text, num_workers=2)
    command = [sys.executable, "-m", "official_bert.create_pretraining_data", *arguments]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
        # As in a terminal, also where the tests run in a shell's background, which ignores SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    building = tmp_path / "out/a.building"
    while process.poll() is None and not list(building.glob("part-*.json")):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert said == "create_pretraining_data: interrupted; start it again to go on\n"
    assert run(*arguments).returncode == 0
    assert not building.exists()
