"""Records built by a pipeline of Apache Beam are those of one machine."""

import importlib.util
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from official_bert import build_with_beam
from official_bert.data import build_shares
from official_bert.system import locks

ROOT = Path(__file__).parents[2]
# Beam needs older versions of packages that others need; so it may be elsewhere, with what the
# builder needs next to it.
PYTHON = os.environ.get("BEAM_PYTHON") or (
    sys.executable if importlib.util.find_spec("apache_beam") else ""
)
FLAGS = {"max_seq_length": 64, "dupe_factor": 1, "num_shards": 2, "input_format": "paragraphs"}


def pipeline(*arguments, python=PYTHON):
    return subprocess.run(
        [python, "-m", "official_bert.build_with_beam", *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
    )


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON, reason="apache-beam has an environment of its own: make test-beam")
def test_several_processes_of_beam_make_the_records_of_one_machine(small_text, tmp_path):
    flags = FLAGS | {"input_file": small_text.path, "vocab_file": small_text.vocab_file}
    flags |= {"num_workers": 1, "output_file": tmp_path / "beam/a.tfrecord"}
    ours = [f"--{name}={value}" for name, value in flags.items()]
    theirs = ["--runner=DirectRunner", "--direct_num_workers=2"]
    theirs += ["--direct_running_mode=multi_processing"]
    done = pipeline(3, *ours, "--", *theirs)
    assert done.returncode == 0, done.stderr
    small_text.build(tmp_path / "one/a.tfrecord", **FLAGS)
    names = sorted(os.listdir(tmp_path / "one"))
    assert sorted(os.listdir(tmp_path / "beam")) == names
    for name in names:
        assert (tmp_path / "beam" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


def test_a_repeated_step_waits_for_the_claim_of_a_lost_worker_to_expire(
    small_text, tmp_path, monkeypatch
):
    flags = FLAGS | {"input_file": (small_text.path,), "vocab_file": small_text.vocab_file}
    flags |= {"num_workers": 1, "output_file": (str(tmp_path / "a.tfrecord"),)}
    share = build_shares.folder([*flags["output_file"]], build_shares.Share(0, 1))
    monkeypatch.setattr(locks, "REFRESH_SECONDS", 0.05)
    Path(share).mkdir(parents=True)
    with locks.exclusive(share):
        monkeypatch.setattr(locks, "STALE_SECONDS", 0.1)
        with pytest.raises(locks.Busy):
            build_with_beam.make_part(0, 1, flags)
        monkeypatch.setattr(locks, "STALE_SECONDS", 100)
        waiting = ThreadPoolExecutor(1).submit(build_with_beam.make_part, 0, 1, flags)
        time.sleep(0.2)
        assert not waiting.done()
    assert waiting.result() == 0


REQUIRED = ("--input_file=a", "--output_file=b", "--vocab_file=c")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the number of parts must come first; got 'nothing'"),
        (REQUIRED, "the number of parts must come first; got '--input_file=a'"),
        (("0", *REQUIRED), "the number of parts must be at least 1; got 0"),
        (("2", *REQUIRED, "--build_part=0/2"), "build_part must be left out"),
        (("2", *REQUIRED, "--runner=FlinkRunner"), "Unknown command line flag 'runner'"),
    ],
)
def test_what_cannot_be_run_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        build_with_beam.main(arguments)


@pytest.mark.skipif(bool(importlib.util.find_spec("apache_beam")), reason="apache-beam is here")
def test_without_beam_the_package_is_named():
    with pytest.raises(ValueError, match="needs the package apache-beam, which is not installed"):
        build_with_beam.main(["2", *REQUIRED])
