"""Runs several workers on this machine, to try out a cluster: `--local_workers=N`.

Each is a process with its share of the cores. They communicate through the loopback device, and
save, stop and fail as the workers of a cluster do.
"""

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from official_bert.system.child_commands import end_with_parent, handling

GRACE_SECONDS = 30  # for the others to notice by themselves that one is gone
LONGEST_LINE = 1000  # characters; an error of TensorFlow can have a graph in it


def run(count: int, command: str, arguments: Sequence[str]) -> int:
    """Runs `python -m command` on this number of workers to their end.

    The output of all but the first is prefixed with their index. SIGINT and SIGTERM are passed on
    to all. If one dies, the others end, too.

    Args:
        count: Workers, two or more.
        arguments: Flags of all of them.

    Returns:
        The exit code of the first worker that failed, 128 + its number if by a signal; or 0.
    """
    hosts = ",".join(f"127.0.0.1:{port}" for port in _free_ports(count))
    line = [sys.executable, "-m", command, *arguments, f"--worker_hosts={hosts}"]
    workers = [_start([*line, f"--task_index={index}"], index, count) for index in range(count)]
    readers = [
        threading.Thread(target=_show, args=(worker.stdout, f"[{index}] " if index else ""))
        for index, worker in enumerate(workers)
    ]

    def pass_on(number, _):
        for worker in workers:
            worker.send_signal(number)  # a no-op if it has ended

    for reader in readers:
        reader.start()
    try:
        with handling(pass_on, signal.SIGINT, signal.SIGTERM):
            return _wait(workers)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        for reader in readers:
            reader.join()


def _start(line, index, count):
    cores = _share(sorted(os.sched_getaffinity(0)), index, count)
    return subprocess.Popen(
        line,
        env=_environment(index, count),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # so that a Ctrl-C comes from here, and once
        preexec_fn=functools.partial(_begin, cores),
    )


def _wait(workers):
    """Waits for all; the first failure decides the exit code and the others' deadline."""
    code, deadline = 0, float("inf")
    while time.monotonic() < deadline:
        codes = [worker.poll() for worker in workers]
        if not code and any(codes):
            code, deadline = next(filter(None, codes)), time.monotonic() + GRACE_SECONDS
            if code < 0:
                name = signal.Signals(-code).name
                print(f"worker {codes.index(code)} was killed by {name}", flush=True)
        if None not in codes:
            break
        time.sleep(0.05)
    return 128 - code if code < 0 else code


def _show(lines, prefix):
    with lines:
        for line in lines:
            line = line.rstrip("\n")
            more = " …" if len(line) > LONGEST_LINE else ""
            print(f"{prefix}{line[:LONGEST_LINE]}{more}", flush=True)


def _free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _environment(index, count):
    """Divides the GPUs of CUDA_VISIBLE_DEVICES; without it, the workers use the CPU."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    named = [device for device in named if device not in ("", "-1")]
    gpus = _share(named, index, count) if len(named) >= count else ["-1"]
    return os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}


def _share(things, index, count):
    """Equal parts; all of them if there are too few."""
    each = len(things) // count
    return things[index * each : (index + 1) * each] or things


def _begin(cores):
    end_with_parent()
    os.sched_setaffinity(0, cores)
