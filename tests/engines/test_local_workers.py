"""The launcher of workers on one machine: what it shows, passes on and returns."""

import json
import os
import signal
import subprocess
import sys

import pytest
from command_processes import as_flags
from small_runs import pretraining_settings

from official_bert.engines import local_workers
from official_bert.training import checkpoints

# A worker that says who it is and where it runs, and then does what its argument says.
WORKER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
flags = dict(argument[2:].split("=", 1) for argument in sys.argv[1:])
index = int(flags["task_index"])
print(index, len(flags["worker_hosts"].split(",")), len(os.sched_getaffinity(0)), end=" ")
print(os.environ["CUDA_VISIBLE_DEVICES"], "x" * 2000, flush=True)
act = flags["act"]
if act == "wait":
    time.sleep(600)
if act == "fail" and index == 1:
    sys.exit(7)
if act == "kill" and index == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if act in ("fail", "kill"):
    time.sleep(60)
    print("was not ended")
"""


@pytest.fixture
def command(tmp_path, monkeypatch):
    (tmp_path / "worker_for_test.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return "worker_for_test"


def test_workers_share_cores_and_gpus_and_all_but_the_first_are_marked(
    command, capsys, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert local_workers.run(2, command, ["--act=end"]) == 0
    lines = sorted(capsys.readouterr().out.splitlines())
    cores = max(1, len(os.sched_getaffinity(0)) // 2)
    assert [line[:12] for line in lines] == [f"0 2 {cores} 4,5 xx", f"[1] 1 2 {cores} 6,"]
    assert all(len(line) < 1100 and line.endswith("x …") for line in lines)


@pytest.mark.parametrize(("act", "code"), [("fail", 7), ("kill", 128 + signal.SIGKILL)])
def test_when_one_dies_the_others_are_ended_and_its_code_is_returned(
    command, monkeypatch, capsys, act, code
):
    monkeypatch.setattr(local_workers, "GRACE_SECONDS", 0.2)
    assert local_workers.run(3, command, [f"--act={act}"]) == code
    said = capsys.readouterr().out
    assert "was not ended" not in said
    assert ("worker 1 was killed by SIGKILL" in said) == (act == "kill")


def test_a_signal_goes_to_all_of_them(command):
    script = (
        "from official_bert.engines import local_workers as l; "
        f"exit(l.run(2, '{command}', ['--act=wait']))"
    )
    launcher = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    with launcher:
        said = [launcher.stdout.readline() for _ in range(2)]
        assert all(said)
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(300) == 143


@pytest.mark.slow
def test_two_local_workers_train(small_corpus, tmp_path):
    changed = {"local_workers": 2, "num_steps_per_epoch": 4, "use_next_sentence_label": False}
    flags = as_flags(pretraining_settings(small_corpus, tmp_path, **changed))
    done = subprocess.run(
        [sys.executable, "-m", "official_bert.run_pretraining", *flags],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 4/4" in done.stdout
    assert "[1] worker 1 of 2" in done.stdout
    assert checkpoints.CheckpointStore(tmp_path / "model").latest().step == 4
    line = json.loads((tmp_path / "model" / "train_log.jsonl").read_text().splitlines()[-1])
    assert "next_sentence_loss" not in line
    assert line["loss"] == line["masked_lm_loss"]
    assert line["timing"]["reductions"] == 4
