"""A run on a stand-in for a TPU slice: hosts without Python, directed by one client.

Its records and its model directory are in a bucket, which the hosts and the client reach.
"""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import bucket
import numpy as np
import pod
import pytest
import warm_python
from small_runs import final_tensors, log_lines, train

pytestmark = [pytest.mark.slow, bucket.needs_namespaces]


def start(corpus, model_dir, on_pod, damaged=None):
    """Starts the run of `pod.train` on a pod."""
    settings = {
        "config": dataclasses.asdict(corpus.config),
        "train": corpus.train,
        "held_out": corpus.held_out,
        "model_dir": str(model_dir),
        "hosts": on_pod.hosts,
        "damaged": damaged,
    }
    paths = os.pathsep.join(filter(None, [*sys.path[:3], os.environ.get("PYTHONPATH")]))
    return warm_python.Popen(
        on_pod.bucket.inside(pod.__file__, "client", json.dumps(settings)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": paths} | on_pod.bucket.environment,
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


@dataclasses.dataclass
class OnPod:
    """Hosts, which outlive their clients, and the bucket that all of them reach."""

    hosts: list[str]
    bucket: bucket.Bucket


@pytest.fixture(scope="module")
def on_pod(small_corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pod")
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(pod.network())
        store = stack.enter_context(bucket.serve(folder, network.client))
        store.upload(*small_corpus.folder.glob("*.tfrecord*"), *small_corpus.folder.glob("*.json"))
        yield OnPod(stack.enter_context(pod.hosts(network, store, folder)), store)


@pytest.fixture(scope="module")
def in_bucket(small_corpus):
    def address(path):
        return f"gs://b/{Path(path).name}"

    corpus = small_corpus
    return corpus._replace(train=address(corpus.train), held_out=address(corpus.held_out))


@pytest.fixture(scope="module")
def runs(small_corpus, in_bucket, on_pod, tmp_path_factory):
    """The same run on one device, and on a pod, where it was killed once."""
    folder, model_dir = tmp_path_factory.mktemp("runs"), "gs://b/model"
    run, options = pod.run_and_options(small_corpus)
    train(run, folder / "alone", options)
    manifest = on_pod.bucket.path(f"{model_dir}/ctl_step_4.ckpt-1.json")
    kill_after(start(in_bucket, model_dir, on_pod), manifest)
    said = finish(start(in_bucket, model_dir, on_pod))
    assert f"resuming from {model_dir}/ctl_step_4.ckpt-1" in said
    on_pod.bucket.download(model_dir, folder / "on_pod")
    return folder / "alone", folder / "on_pod"


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


def test_hosts_read_the_records_themselves_and_only_the_client_writes(runs, on_pod):
    hosts = {host.partition(":")[0] for host in on_pod.hosts}
    for who, method, path, _ in on_pod.bucket.requests():
        if method != "GET":
            assert who not in hosts, path
    read = {who for who, *_, path, span in on_pod.bucket.requests() if "train_" in path and span}
    assert hosts < read


def test_records_that_a_host_cannot_read_end_the_run_with_the_reason(in_bucket, on_pod):
    name = "train_32.tfrecord-00001-of-00002"
    path = on_pod.bucket.path(f"gs://b/{name}")
    client = start(in_bucket, "gs://b/other", on_pod, str(path))
    said, _ = client.communicate(timeout=900)
    assert client.returncode == 1
    assert f"InputFailed: A host could not read its records: gs://b/{name}, record " in said
    assert "its checksum does not match" in said
