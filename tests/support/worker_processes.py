"""Real worker processes of `run_pretraining` on this host.

The timeouts say that something hangs, not how fast anything has to be.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from typing import NamedTuple

import warm_python

COMMAND = "official_bert.run_pretraining"
SEVERAL = "--distribution_strategy=multi_worker_mirrored"


class Worker(NamedTuple):
    """A process and the file that its output goes to."""

    process: subprocess.Popen
    output: object

    def said(self):
        return self.output.read_text()


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _hosts(ports):
    return [f"127.0.0.1:{port}" for port in ports]


# Launchers: flags of a worker and variables of its environment, by which it learns of the others.


def by_flags(index, ports):
    """One worker trains alone."""
    if len(ports) == 1:
        return ["--distribution_strategy=off"], {}
    hosts = ",".join(_hosts(ports))
    return [SEVERAL, f"--worker_hosts={hosts}", f"--task_index={index}"], {}


def by_tf_config(index, ports):
    config = {"cluster": {"worker": _hosts(ports)}, "task": {"type": "worker", "index": index}}
    return [SEVERAL], {"TF_CONFIG": json.dumps(config)}


def by_slurm(index, ports):
    """As tasks of one node; the number of the job decides which ports they take."""
    return [SEVERAL], {
        "SLURM_JOB_ID": str(ports[0]),
        "SLURM_PROCID": str(index),
        "SLURM_NTASKS": str(len(ports)),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": str(len(ports)),
        "SLURM_NODEID": "0",
        "SLURM_LOCALID": str(index),
    }


def start(
    count,
    arguments,
    folder,
    launcher=by_flags,
    command=("-m", COMMAND),
    environment=lambda index: os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
):
    """Starts this many workers.

    Args:
        count: Workers.
        arguments: Flags of all of them; a function of the worker's index, if they differ.
        folder: Where their output goes.
        launcher: One of those above.
        command: What Python runs.
        environment: A function of the worker's index.
    """
    ports, workers = free_ports(count), []
    for index in range(count):
        topology, variables = launcher(index, ports)
        given = arguments(index) if callable(arguments) else arguments
        output = folder / f"output_{time.monotonic_ns()}_{index}.txt"
        with output.open("w") as file:
            process = warm_python.Popen(
                [sys.executable, *command, *given, *topology],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment(index) | variables,
            )
        workers.append(Worker(process, output))
    return workers


def wait_for(workers, text, timeout=600):
    """Waits until the first worker has said something."""
    deadline = time.monotonic() + timeout
    while text not in workers[0].said():
        if workers[0].process.poll() is not None or time.monotonic() > deadline:
            finish(workers, timeout=0)
            raise AssertionError([worker.said() for worker in workers])
        time.sleep(0.02)


def finish(workers, timeout=1200):
    """The exit codes, when all have ended; kills what has not after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    for worker in workers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(max(0.0, deadline - time.monotonic()))
        worker.process.kill()
    for worker in workers:
        worker.process.wait()
    return [worker.process.returncode for worker in workers]
