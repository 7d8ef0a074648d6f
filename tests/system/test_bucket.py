"""Commands that read from Google Cloud Storage and write there, with a store on this machine."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import bucket
import numpy as np
import pytest
import warm_python
from small_runs import final_tensors, log_lines

pytestmark = [pytest.mark.slow, bucket.needs_namespaces]


@pytest.fixture(scope="module")
def store(small_corpus, tmp_path_factory):
    with bucket.serve(tmp_path_factory.mktemp("bucket")) as made:
        config = small_corpus.folder / "config.json"
        config.write_text(small_corpus.config.to_json())
        made.upload(*(path for path in small_corpus.folder.iterdir() if path.is_file()))
        yield made


def start(module, flags, folder, store=None, popen=warm_python.Popen):
    """Starts a command of official_bert in a folder, in the bucket if there is one."""
    words = ["-m", f"official_bert.{module}"]
    words += [f"--{name}={value}" for name, value in flags.items()]
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"}
    environment |= store.environment if store else {}
    folder.mkdir()
    return popen(
        store.inside(*words) if store else [sys.executable, *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(*arguments):
    """Runs such a command to its end; what it says."""
    process = start(*arguments)
    said, _ = process.communicate(timeout=900)
    assert process.returncode == 0, said
    return said


def flags_of_run(small_corpus, files, model_dir):
    return {
        "bert_config_file": f"{files}/config.json",
        "input_files": f"{files}/train_32.tfrecord-*",
        "eval_files": f"{files}/held_out_32.tfrecord",
        "model_dir": model_dir,
        "max_seq_length": 32,
        "max_predictions_per_seq": 5,
        "train_batch_size": 16,
        "eval_batch_size": 16,
        "num_steps_per_epoch": 8,
        "num_train_epochs": 1,
        "keep_checkpoint_max": 1,
        "save_checkpoints_steps": 4,
        "warmup_steps": 2,
        "enable_xla": "false",
    }


@pytest.fixture(scope="module")
def trained(small_corpus, store, tmp_path_factory):
    """A folder with the model directory of a run on this machine, and that of the same in `b`."""
    folder = tmp_path_factory.mktemp("trained")
    here = flags_of_run(small_corpus, small_corpus.folder, folder / "model")
    run("run_pretraining", here, folder / "here")
    there = flags_of_run(small_corpus, "gs://b", "gs://b/m/model")
    # From the start of Python: how much TensorFlow fetches at once is set before it is imported.
    run("run_pretraining", there, folder / "there", store, subprocess.Popen)
    assert os.listdir(folder / "there") == []  # no folder named gs:
    store.download("gs://b/m/model", folder / "fetched")
    return folder


def assert_same_tensors(found, expected):
    found, expected = final_tensors(found), final_tensors(expected)
    assert expected.keys() == found.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_a_run_in_a_bucket_is_the_run_on_this_machine(trained, store):
    here, fetched = trained / "model", trained / "fetched"
    assert_same_tensors(fetched, here)
    assert log_lines(fetched) == log_lines(here)
    assert names(fetched) == names(here)
    spans = [span for _, method, _, span in store.requests() if method == "GET" and span]
    for first, last in (map(int, span.removeprefix("bytes=").split("-")) for span in spans):
        assert last - first < 1 << 22  # not the 64 MB that TensorFlow would fetch


def test_jax_trains_in_a_bucket_too(trained, small_corpus, store, tmp_path):
    """From a checkpoint there, and by addresses with more slashes than are needed."""
    here = flags_of_run(small_corpus, small_corpus.folder, tmp_path / "model")
    there = flags_of_run(small_corpus, "gs://b", "gs://b//jax/model//")
    starts = f"{trained}/model", "gs://b/m//model"
    for flags, where, start in zip((here, there), (None, store), starts, strict=True):
        del flags["enable_xla"]
        flags |= {"engine": "jax", "init_checkpoint": f"{start}/pretrained/bert_model.ckpt-1"}
        run("run_pretraining", flags, tmp_path / ("there" if where else "here"), where)
    store.download("gs://b/jax/model", tmp_path / "fetched")
    assert_same_tensors(tmp_path / "fetched", tmp_path / "model")


def test_a_second_process_is_refused_until_the_first_is_gone(small_corpus, store, tmp_path):
    long = flags_of_run(small_corpus, "gs://b", "gs://b/taken")
    long |= {"num_steps_per_epoch": 100_000, "save_checkpoints_steps": 100_000}
    first = start("run_pretraining", long, tmp_path / "first", store)
    try:
        while "stage 1 of 1" not in first.stdout.readline():
            assert first.poll() is None
        second = start("run_pretraining", long, tmp_path / "second", store)
        said, _ = second.communicate(timeout=900)
    finally:
        first.kill()
        first.communicate()
    assert second.returncode == 2
    assert re.fullmatch(
        rf"run_pretraining: error: Another process works in gs://b/taken \(process {first.pid} of "
        r".*, since 20.* UTC, last seen \d+ s ago\)\. Wait until it ends, or choose another "
        r"folder\. If it no longer runs, remove gs://b/taken/.owner.json, or wait 3 minutes.",
        said.splitlines()[-1],
    )
    assert store.path("gs://b/taken/.owner.json").exists()
    third = start("run_pretraining", long, tmp_path / "third", store)
    try:
        while "stage 1 of 1" not in (line := third.stdout.readline()):
            assert line, third.communicate()
    finally:
        third.send_signal(signal.SIGTERM)
        third.communicate(timeout=900)
    assert third.returncode == 143
    assert not store.path("gs://b/taken/.owner.json").exists()


def names(folder):
    """The files below a folder, without what is only on this machine or has a name of its own."""
    found = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return {
        name
        for name in found
        if not name.startswith((".lock", "summaries/train", "summaries/eval"))
    }


def test_records_built_in_a_bucket_and_killed_there_are_those_of_this_machine(
    small_corpus, store, tmp_path
):
    flags = {
        "input_file": "gs://b/held_out.txt",
        "output_file": "gs://b/records/a.tfrecord",
        "vocab_file": "gs://b/vocab.txt",
        "max_seq_length": 32,
        "max_predictions_per_seq": 5,
        "dupe_factor": 1,
        "input_format": "paragraphs",
        "num_workers": 1,
    }
    killed = start("create_pretraining_data", flags, tmp_path / "killed", store)
    part = store.path("gs://b/records/a.building/part-000000.records")
    while not part.exists() and killed.poll() is None:
        time.sleep(0.01)
    killed.kill()
    killed.communicate()
    if killed.returncode:  # it may have been the faster one
        assert not store.path("gs://b/records/a.manifest.json").exists()
    run("create_pretraining_data", flags, tmp_path / "again", store)
    assert os.listdir(tmp_path / "again") == []  # no folder named gs:
    store.download("gs://b/records", tmp_path / "fetched")
    expected = Path(small_corpus.held_out.format(max_seq_length=32))
    assert (tmp_path / "fetched/a.tfrecord").read_bytes() == expected.read_bytes()
    assert sorted(os.listdir(tmp_path / "fetched")) == ["a.manifest.json", "a.tfrecord"]
