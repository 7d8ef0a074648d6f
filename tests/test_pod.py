"""A run on a stand-in for a TPU slice: hosts without Python, directed by one client."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pod
import pytest
from small_runs import final_tensors, log_lines

pytestmark = [pytest.mark.slow, pod.needs_namespaces]


def start(corpus, model_dir, hosts=(), damaged=None):
    """Starts the run of `pod_client`, on hosts or, without, on one device."""
    settings = {
        "config": dataclasses.asdict(corpus.config),
        "train": corpus.train,
        "held_out": corpus.held_out,
        "model_dir": str(model_dir),
        "hosts": list(hosts),
        "damaged": damaged,
    }
    script = Path(__file__).with_name("pod_client.py")
    paths = os.pathsep.join(filter(None, [*sys.path[:3], os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, script, json.dumps(settings)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    )


def finish(process):
    said, _ = process.communicate(timeout=900)
    assert process.returncode == 0, said
    return said


def kill_after(process, path):
    """Kills the process when a file is there."""
    deadline = time.monotonic() + 600
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.fixture(scope="module")
def runs(small_corpus, tmp_path_factory):
    """The same run on one device, and on a pod, where it was killed in either stage."""
    folder = tmp_path_factory.mktemp("pod")
    alone, on_pod = folder / "alone", folder / "on_pod"
    finish(start(small_corpus, alone))
    with pod.hosts(folder) as hosts:  # which outlive their clients
        kill_after(start(small_corpus, on_pod, hosts), on_pod / "ctl_step_4.ckpt-1.json")
        kill_after(start(small_corpus, on_pod, hosts), on_pod / "ctl_step_8.ckpt-2.json")
        said = finish(start(small_corpus, on_pod, hosts))
    assert f"resumes {on_pod}/ctl_step_8.ckpt-2" in said
    return alone, on_pod


def test_a_run_that_was_killed_ends_with_the_weights_and_moments_of_one_device(runs):
    alone, on_pod = map(final_tensors, runs)
    assert alone.keys() == on_pod.keys()
    for name, values in alone.items():
        np.testing.assert_allclose(on_pod[name], values, rtol=0, atol=1e-6, err_msg=name)


def test_its_log_and_its_evaluations_are_those_of_one_device(runs):
    alone, on_pod = map(log_lines, runs)
    assert [line["kind"] for line in on_pod] == [line["kind"] for line in alone]
    assert sum(line["kind"] == "eval" for line in on_pod) == 2
    for line, of_one in zip(on_pod, alone, strict=True):
        assert line.keys() == of_one.keys()
        for name, value in of_one.items():
            expected = value if isinstance(value, str) else pytest.approx(value, rel=1e-4)
            assert line[name] == expected, (name, line["step"])


def test_records_that_a_host_cannot_read_end_the_run_with_the_reason(small_corpus, tmp_path):
    for path in small_corpus.folder.glob("train_*"):
        shutil.copy(path, tmp_path)
    corpus = small_corpus._replace(train=str(tmp_path / Path(small_corpus.train).name))
    damaged = str(tmp_path / "train_32.tfrecord-00001-of-00002")
    with pod.hosts(tmp_path) as hosts:
        client = start(corpus, tmp_path / "model", hosts, damaged)
        said, _ = client.communicate(timeout=900)
    assert client.returncode == 1
    assert "InputFailed: A host could not read its records: " in said
    assert "corrupted record" in said
