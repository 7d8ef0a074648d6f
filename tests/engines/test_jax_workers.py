"""Several devices and processes under the JAX engine: same weights; a process that is lost."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import jax_training
import pytest
import warm_python
import worker_processes
from command_processes import as_flags
from small_runs import assert_same, final_tensors, forget_after, log_lines, pretraining_settings
from worker_processes import finish, wait_for

from official_bert.engines.cluster import LOST
from official_bert.training import checkpoints

pytestmark = pytest.mark.slow

SECONDS_TO_NOTICE = 60


@pytest.fixture
def flags(small_corpus, tmp_path):
    """A function of settings that returns the flags of a run of 12 updates."""

    def flags_of(model_dir, **changed):
        every = dict.fromkeys(("log_steps", "save_checkpoints_steps", "steps_per_loop"), 4)
        steps = {"num_steps_per_epoch": 12, "warmup_steps": 3, **every, "keep_checkpoint_max": 0}
        changed = {"engine": "jax", "model_dir": model_dir, **steps, **changed}
        return as_flags(pretraining_settings(small_corpus, tmp_path, **changed))

    return flags_of


def by_flags(index, ports):
    """Each process is told of all by flags, without a strategy; a single one needs none."""
    return worker_processes.by_flags(index, ports)[0][1:], {}


def start(processes, devices, flags, folder, launcher=by_flags):
    """Starts processes with this many devices each, or as many as a tuple says."""
    counts = devices if isinstance(devices, tuple) else (devices,) * processes
    environments = [jax_training.environment(count) for count in counts]
    return worker_processes.start(
        processes, flags, folder, launcher, environment=environments.__getitem__
    )


def train(*arguments):
    workers = start(*arguments)
    assert finish(workers) == [0] * len(workers), [worker.said()[-3000:] for worker in workers]


@pytest.fixture(scope="module")
def alone():
    """{name: tensors} of what was trained by one process, made by the first test that needs it."""
    return {}


@pytest.fixture
def whole(alone, flags, tmp_path):
    """The tensors, the log and the folder of a run of one process with two devices."""
    if not alone:
        folder = tmp_path / "alone"
        train(1, 2, flags(folder), tmp_path)
        alone.update(tensors=final_tensors(folder), log=log_lines(folder), folder=folder)
    return alone


def test_weights_do_not_depend_on_the_number_of_devices(whole, flags, tmp_path):
    """Nor on that of processes: see the launchers."""
    train(1, 8, flags(tmp_path / "model"), tmp_path)
    assert_same(final_tensors(tmp_path / "model"), whole["tensors"], atol=1e-6)


def test_a_run_resumes_exactly(whole, flags, tmp_path):
    shutil.copytree(whole["folder"], tmp_path / "model")
    forget_after(tmp_path / "model", 4)
    train(1, 2, flags(tmp_path / "model"), tmp_path)
    assert_same(final_tensors(tmp_path / "model"), whole["tensors"])
    assert log_lines(tmp_path / "model") == whole["log"]


def start_two(script, *words):
    """Starts two processes that are told of each other."""
    hosts = ",".join(f"127.0.0.1:{port}" for port in worker_processes.free_ports(2))
    return [
        warm_python.Popen(
            [sys.executable, "-c", script, hosts, str(index), *words],
            env=jax_training.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]


def outputs(processes):
    """The exit code, the output and the errors of each process."""
    said = [process.communicate(timeout=300) for process in processes]
    return [(process.returncode, *each) for process, each in zip(processes, said, strict=True)]


def test_an_error_of_all_processes_is_said_by_each_with_its_own_exit_code():
    script = (
        "import os, sys\n"
        "from official_bert.engines import jax_processes\n"
        "hosts, index = sys.argv[1], int(sys.argv[2])\n"
        "jax_processes.start('multi_worker_mirrored', hosts, index, os.environ, 4)\n"
        "with jax_processes.leaving_others_on_errors('the command'):\n"
        "    raise ValueError('a damaged record')\n"
    )
    for code, _, said in outputs(start_two(script)):
        assert (code, said) == (2, "the command: error: a damaged record\n")


def in_open_mpi(index, ports):
    """Environment of one of four processes of Open MPI; a flag has its rank, as in docs/jax.md."""
    flags, _ = by_flags(index, ports)
    return flags, {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": str(index)}


@pytest.mark.parametrize(
    ("launcher", "devices"),
    [(worker_processes.by_slurm, 2), (in_open_mpi, 1)],
    ids=["slurm", "open_mpi"],
)
def test_launchers_of_clusters_start_it(whole, flags, tmp_path, launcher, devices):
    """On two processes of two devices, and on four of one."""
    count = 4 // devices
    workers = start(count, devices, flags(tmp_path / "model"), tmp_path, launcher)
    assert finish(workers) == [0] * count, [worker.said()[-3000:] for worker in workers]
    assert f"worker 1 of {count}" in workers[1].said()
    assert_same(final_tensors(tmp_path / "model"), whole["tensors"], atol=1e-6)


def test_processes_that_jax_itself_finds_are_joined(flags, tmp_path):
    """As on a slice, where JAX asks for the others; here it then misses the TPU."""
    port = next(port for port in range(61440, 65536) if is_free(port))

    def by_jax_itself(index, _):
        """Open MPI's variables, in which JAX finds the processes and the port."""
        return ["--distribution_strategy=tpu"], {
            "OMPI_MCA_orte_hnp_uri": f"{(port - 61440) << 12}.0;tcp://127.0.0.1:34911",
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_RANK": str(index),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(index),
        }

    workers = start(2, 2, flags(tmp_path / "model"), tmp_path, by_jax_itself)
    assert finish(workers, timeout=300) == [2, 2]
    for worker in workers:
        assert worker.said().splitlines()[-1] == (
            "run_pretraining: error: distribution_strategy=tpu needs a TPU; JAX finds only cpu "
            "here, in 2 processes. Start the command on every host of the slice, with jax[tpu] "
            "installed."
        )


def is_free(port):
    with socket.socket() as attempt, contextlib.suppress(OSError):
        attempt.bind(("127.0.0.1", port))
        return True
    return False


def test_processes_with_unequal_numbers_of_devices_are_refused_in_a_line(flags, tmp_path):
    workers = start(2, (2, 3), flags(tmp_path / "model"), tmp_path)
    assert finish(workers, timeout=300) == [2, 2]
    for worker in workers:
        (line,) = [line for line in worker.said().splitlines() if "error" in line]
        assert line == (
            "run_pretraining: error: All processes must have the same number of devices; got "
            "(cpu) process 0: 2; process 1: 3. Start all with equal numbers: CUDA_VISIBLE_DEVICES "
            "selects the GPUs of a process, XLA_FLAGS=--xla_force_host_platform_device_count=N "
            "divides a CPU."
        )
    assert not (tmp_path / "model").exists()


def test_one_host_of_a_slice_does_not_train_as_if_it_were_alone():
    """Processes that know of each other by other means than the command's, as on a TPU slice."""
    script = (
        "import os, sys, jax\n"
        "from official_bert.engines import jax_processes\n"
        "jax.distributed.initialize(sys.argv[1].split(',')[0], 2, int(sys.argv[2]))\n"
        "try:\n"
        "    jax_processes.start(None, None, -1, os.environ, 4)\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    line = (
        "All 2 hosts of a Cloud TPU slice must train together; got one alone. Start the command on "
        "every host, with --distribution_strategy=tpu.\n"
    )
    assert [said for _, said, _ in outputs(start_two(script))] == [line, line]


ENDING = """
import os, signal, sys, time
from official_bert.engines import jax_processes
hosts, index, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
jax_processes.start("multi_worker_mirrored", hosts, index, os.environ, 4)
if index == 1:
    sys.stderr.write("step 7\\n    @ 0x7f31  a frame\\nfree(): invalid pointer\\n")
    sys.stderr.flush()
    os.kill(os.getpid(), number)
time.sleep(600)
"""


def test_a_process_that_is_ended_says_how_and_only_the_others_say_that_one_is_lost():
    numbers = signal.SIGABRT, signal.SIGKILL
    pairs = [start_two(ENDING, str(int(number))) for number in numbers]  # which wait together
    for number, pair in zip(numbers, pairs, strict=True):
        codes, _, said = zip(*outputs(pair), strict=True)
        assert codes == (4, 128 + number)
        assert said[0].splitlines()[-1] == f"run_pretraining: error: {LOST.format(who='')}"
        assert said[1].splitlines() == [
            "step 7",
            "    @ 0x7f31  a frame",
            "free(): invalid pointer",
            f"run_pretraining: error: The process was ended by {number.name}; its last output: "
            "step 7 | free(): invalid pointer",
        ]


TALKING = """
import sys
from official_bert.engines import jax_processes
jax_processes._continue_in_child(4)
for _ in range(1_000):
    sys.stderr.write("a warning\\n" * 100)
print("done")
"""


def test_a_process_whose_messages_nobody_reads_goes_on():
    reading, writing = os.pipe()
    os.close(reading)  # as by `2> >(head)`
    process = subprocess.Popen(
        [sys.executable, "-c", TALKING],
        env=jax_training.environment(),
        stdout=subprocess.PIPE,
        stderr=writing,
        text=True,
    )
    os.close(writing)
    try:
        assert process.communicate(timeout=300)[0] == "done\n"
        assert process.returncode == 0
    finally:
        process.kill()


def test_a_lost_process_ends_the_others_and_the_run_resumes_on_another_number(flags, tmp_path):
    def begin(count, folder):
        return start(count, 2, flags(folder, num_steps_per_epoch=100_000), tmp_path)

    def tensors_of_one_process(folder, step):
        """Of a process that is stopped after the checkpoint of this step."""
        alone = begin(1, folder)
        wait_for(alone, f"ctl_step_{step}.ckpt")
        alone[0].process.send_signal(signal.SIGTERM)
        assert finish(alone) == [143]
        return checkpoints.CheckpointStore(folder).at(step).tensors()

    workers = begin(2, tmp_path / "model")
    wait_for(workers, "ctl_step_4.ckpt-1")
    os.kill(workers[1].process.pid, signal.SIGKILL)
    killed = time.monotonic()
    assert finish(workers[:1], timeout=600) == [4]
    assert time.monotonic() - killed < SECONDS_TO_NOTICE
    said = workers[0].said().splitlines()[-1]
    assert said.startswith("run_pretraining: error: Another worker has ended or cannot be reached")
    finish(workers, timeout=300)
    written = [int(step) for step in re.findall(r"saved \S*ctl_step_(\d+)", workers[0].said())]
    end = written[-1] + 8
    ends = [tensors_of_one_process(tmp_path / name, end) for name in ("model", "never killed")]
    assert_same(*ends, atol=1e-5)


def test_sharded_state_gives_the_same_weights_and_moments_in_less_memory(small_corpus, tmp_path):
    devices, stages = 4, [{"steps": 20}]
    jobs = [
        jax_training.job(
            small_corpus,
            tmp_path / f"{kind}_{shards}",
            stages=stages,
            optimizer={"type": kind},
            engine={"shards_optimizer": shards},
            measures=kind == "lamb",
        )
        for kind in ("lamb", "lars", "muon")
        for shards in (False, True)
    ]
    results = jax_training.run_jobs(jobs, tmp_path, devices)
    for kind in ("lamb", "lars", "muon"):
        whole, sharded = (final_tensors(tmp_path / f"{kind}_{s}") for s in (False, True))
        assert_same(sharded, whole, atol=1e-6)
    whole, sharded = results[:2]
    moments = 2 * whole["weights"]  # m and v
    saved = whole["arguments"] - sharded["arguments"]
    # Of the small corpus' model, the bias of two classes and the like are whole everywhere.
    assert 0.98 * moments * (1 - 1 / devices) < saved <= moments * (1 - 1 / devices)
