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


def start(
    count, arguments, folder, source="flags", command=("-m", "official_bert.run_pretraining")
):
    """Starts this many workers, which learn of each other from `source`; one trains alone.

    Args:
        count: Workers.
        arguments: Flags of all of them; a function of the worker's index, if they differ.
        folder: Where their output goes.
        source: `"flags"`, `"TF_CONFIG"` or `"Slurm"`.
        command: What Python runs.
    """
    hosts = [f"127.0.0.1:{port}" for port in free_ports(count)]
    job = free_ports(1)[0]
    workers = []
    for index in range(count):
        topology, variables = ["--distribution_strategy=off"], {}
        if count > 1:
            topology = ["--distribution_strategy=multi_worker_mirrored"]
            topology, variables = _topology(hosts, index, source, job)
        given = arguments(index) if callable(arguments) else arguments
        output = folder / f"output_{time.monotonic_ns()}_{index}.txt"
        with output.open("w") as file:
            process = warm_python.Popen(
                [sys.executable, *command, *given, *topology],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | variables,
            )
        workers.append(Worker(process, output))
    return workers


def _topology(hosts, index, source, job):
    flags, variables = ["--distribution_strategy=multi_worker_mirrored"], {}
    if source == "flags":
        flags += [f"--worker_hosts={','.join(hosts)}", f"--task_index={index}"]
    elif source == "TF_CONFIG":
        task = {"type": "worker", "index": index}
        variables = {"TF_CONFIG": json.dumps({"cluster": {"worker": hosts}, "task": task})}
    else:
        variables = {
            "SLURM_JOB_ID": str(job),
            "SLURM_PROCID": str(index),
            "SLURM_NTASKS": str(len(hosts)),
            "SLURM_STEP_NODELIST": "localhost",
            "SLURM_STEP_TASKS_PER_NODE": str(len(hosts)),
            "SLURM_NODEID": "0",
            "SLURM_LOCALID": str(index),
        }
    return flags, variables


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
