"""Several worker processes: they train as one, stop as one, and go on after one was killed."""

import functools
import json
import pathlib
import shutil
import signal

import numpy as np
import pytest
import worker_processes
from command_processes import as_flags
from small_runs import assert_same, pretraining_settings, without_dropout

from official_bert.training import checkpoints

STEPS = 30
SETTINGS = {
    "num_steps_per_epoch": STEPS,
    "warmup_steps": 5,
    "learning_rate": 1e-3,
    "log_steps": 5,
    "save_checkpoints_steps": 10,
    "train_summary_interval": -1,
}
SUPPORT = pathlib.Path(__file__).parents[1] / "support"
WAITING = [str(SUPPORT / "hooked_worker.py"), "waiting"]


@pytest.fixture(scope="module")
def arguments(small_corpus, tmp_path_factory):
    """Function of the model directory that returns the flags of a run without dropout."""
    corpus = small_corpus._replace(config=without_dropout(small_corpus.config))
    settings = pretraining_settings(corpus, tmp_path_factory.mktemp("config"), **SETTINGS)
    settings["eval_files"] = corpus.held_out
    return lambda model_dir, **changed: as_flags(settings | {"model_dir": model_dir} | changed)


@pytest.fixture(scope="module")
def trained_in(arguments, tmp_path_factory):
    """Function of a number of workers: the directory of an uninterrupted run on this many."""

    @functools.cache
    def model_dir(workers):
        folder = tmp_path_factory.mktemp(f"on_{workers}")
        run(workers, arguments(folder / "model"), folder)
        return folder / "model"

    return model_dir


@pytest.fixture(scope="module")
def trained(trained_in):
    """Function of a number of workers: the final tensors of an uninterrupted run on this many."""
    return lambda workers: final_tensors(trained_in(workers))


def run(count, arguments, folder, **options):
    """Trains on this many workers to the end; returns the final tensors."""
    workers = worker_processes.start(count, arguments, folder, **options)
    codes = worker_processes.finish(workers)
    said = [worker.said() for worker in workers]
    assert codes == [0] * count, said
    assert [f"step {STEPS}/{STEPS}" in text for text in said] == [True] + [False] * (count - 1)
    return final_tensors(folder / "model")


def final_tensors(model_dir):
    checkpoint = checkpoints.CheckpointStore(model_dir).latest()
    assert checkpoint.step == STEPS
    return checkpoint.tensors()


def held_out_figures(model_dir):
    return json.loads((model_dir / "summaries/training_summary.txt").read_text())["held_out"]


ROUND_OFF = {"rtol": 1e-3, "atol": 1e-4}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4])
def test_worker_processes_give_the_weights_and_the_held_out_figures_of_one(
    trained, trained_in, workers
):
    assert_same(trained(workers), trained(1), **ROUND_OFF)
    ours, alone = (held_out_figures(trained_in(count)) for count in (workers, 1))
    for name in ("examples", "most_frequent_token_accuracy"):  # of all records, each once
        assert ours[name] == alone[name]
    assert ours["masked_lm_loss"] == pytest.approx(alone["masked_lm_loss"], rel=1e-3)


@pytest.mark.slow
def test_a_signal_to_one_worker_stops_all_after_the_same_update(
    trained, arguments, tmp_path, monkeypatch
):
    """On workers from TF_CONFIG; resumed, exactly, on workers from Slurm's variables."""
    flags = arguments(tmp_path / "model")
    by_tf_config, by_slurm = worker_processes.by_tf_config, worker_processes.by_slurm
    workers = start_waiting(flags, tmp_path, monkeypatch, launcher=by_tf_config)
    workers[1].process.send_signal(signal.SIGTERM)
    (tmp_path / "go").touch()
    assert worker_processes.finish(workers) == [143, 143]
    step = checkpoints.CheckpointStore(tmp_path / "model").latest().step
    assert 20 <= step < STEPS
    for worker in workers:
        assert f"Stopped at step {step}. Run the same command again" in worker.said()
        assert "Traceback" not in worker.said()
    assert_same(run(2, flags, tmp_path, launcher=by_slurm), trained(2))


@pytest.mark.slow
def test_after_a_kill_all_end_and_the_run_goes_on_on_another_number_of_workers(
    trained, arguments, tmp_path, monkeypatch
):
    flags = arguments(tmp_path / "model")
    workers = start_waiting(flags, tmp_path, monkeypatch)
    assert_others_end_with_a_message(workers, tmp_path, killed=1)
    assert checkpoints.CheckpointStore(tmp_path / "model").latest().step >= 10
    assert_same(run(1, flags, tmp_path), trained(2), **ROUND_OFF)


@pytest.mark.slow
def test_when_the_first_worker_is_killed_the_others_end_too(arguments, tmp_path, monkeypatch):
    workers = start_waiting(arguments(tmp_path / "model"), tmp_path, monkeypatch)
    assert_others_end_with_a_message(workers, tmp_path, killed=0)


def start_waiting(flags, folder, monkeypatch, **options):
    """Two workers in the middle of a run, which they finish when there is a file `go`."""
    monkeypatch.setenv("GO", str(folder / "go"))
    workers = worker_processes.start(2, flags, folder, command=WAITING, **options)
    worker_processes.wait_for(workers, "step 20/")
    return workers


def assert_others_end_with_a_message(workers, folder, killed):
    workers[killed].process.kill()
    (folder / "go").touch()
    codes = worker_processes.finish(workers)
    assert codes.pop(killed) == -signal.SIGKILL
    assert set(codes) == {4}
    workers.pop(killed)
    for worker in workers:
        assert "error: Another worker has ended" in worker.said()
        assert f"names worker {killed}" in worker.said()
        assert "Traceback" not in worker.said()


@pytest.mark.slow
def test_workers_that_do_not_share_a_model_dir_or_the_flags_are_refused(
    trained_in, arguments, tmp_path
):
    shutil.copytree(trained_in(1), tmp_path / "model_0")
    for differs, message in (
        ({}, f"must resume from the same step; got [{STEPS}, 0]"),
        ({"learning_rate": 2e-3}, "got other ones in worker 1 than in worker 0"),
    ):
        workers = worker_processes.start(
            2,
            lambda index, differs=differs: arguments(
                tmp_path / f"model_{index}", **(differs if index else {})
            ),
            tmp_path,
        )
        assert worker_processes.finish(workers) == [2, 2]
        for worker in workers:
            assert message in worker.said()


@pytest.mark.slow
def test_each_worker_reads_only_its_share_of_the_records(
    small_corpus, arguments, tmp_path, monkeypatch
):
    monkeypatch.setenv("NOTES", str(tmp_path))
    shards = sorted(small_corpus.folder.glob("train_32.tfrecord-*"))
    for copy in range(9):
        for number, shard in enumerate(shards):
            shutil.copy(shard, tmp_path / f"records_{copy}_{number}.tfrecord")
    workers = worker_processes.start(
        2,
        arguments(
            tmp_path / "model",
            input_files=str(tmp_path / "records_*"),
            eval_files="",
            train_batch_size=32,
            num_steps_per_epoch=3,
        ),
        tmp_path,
        command=[str(SUPPORT / "hooked_worker.py"), "recording"],
    )
    assert worker_processes.finish(workers) == [0, 0], workers[0].said()
    first, second = (records_read(tmp_path / str(worker.process.pid)) for worker in workers)
    common = first & second  # the first record of a file shows its shapes and kind of rows
    assert len(common) <= 9 * len(shards)
    for read in (first, second):  # its half of two windows, to which some of those may belong
        assert 2048 - len(common) <= len(read - common) <= 2048


def records_read(notes):
    runs = (map(int, line.split()) for line in notes.read_text().splitlines())
    return {record for first, stop in runs for record in range(first, stop)}


@pytest.mark.slow
def test_sixteen_bits_on_the_wire_halve_the_bytes_and_hardly_change_the_weights(
    trained, arguments, tmp_path
):
    changed = {"reduce_dtype": "bf16", "gradient_accumulation_steps": 2}
    tensors = run(2, arguments(tmp_path / "model", **changed), tmp_path)
    expected = trained(2)
    weights = [name for name in expected if "adam" not in name and "optimizer" not in name]
    parameters = sum(expected[name].size for name in weights if name != "global_step")
    for name in weights:  # the sum of two numbers is rounded to 8 bits
        difference = np.linalg.norm(tensors[name] - expected[name])
        assert difference <= 0.01 * np.linalg.norm(expected[name]) + 1e-6, name
    log = (tmp_path / "model/train_log.jsonl").read_text().splitlines()
    lines = [line for line in map(json.loads, log) if line["kind"] == "train"]
    assert lines[-1]["loss"] < lines[0]["loss"]
    small = 8 + 4 * (2 + 8)  # is there another batch, the losses' weights, the sums for the log
    for line in lines:  # once an update, whatever the number of micro-batches
        assert line["timing"]["reductions"] == 4
        assert line["timing"]["reduced_bytes"] == 2 * parameters + small
