"""The processes of a JAX run: discovery, and errors when one is lost.

When a process is lost, JAX aborts the others from its C++ code, sooner or later. So with several
processes, each works in a child of the one that was started, which reports how the child ended.
"""

import collections
import contextlib
import importlib.util
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, MutableMapping

from official_bert.engines import cluster
from official_bert.system import messages, quiet_tensorflow
from official_bert.system.child_commands import end_with_parent

HEARTBEAT_SECONDS = 30  # after which a silent process is lost
GRACE_SECONDS = 3  # for the others to report their own errors
_LAST_BYTES, _LAST_LINES = 1 << 14, 3  # of the output of a process, shown if it is killed
# JAX's messages when it aborts a process because of another one.
_SIGNS_OF_ABORTS = ("JAX distributed service detected fatal errors", "missing heartbeats")


def start(
    strategy: str | None,
    worker_hosts: str | None,
    task_index: int,
    environment: MutableMapping[str, str],
    lost_code: int,
) -> None:
    """Imports JAX and joins the other processes, if there are any. Call it before Keras is used.

    Args:
        strategy: `"multi_worker_mirrored"`: the workers of the flags, `TF_CONFIG` or Slurm;
            `"tpu"`: the hosts of a Cloud TPU slice, as JAX finds them. `None`: the workers of the
            flags or `TF_CONFIG`, or only this process.
        worker_hosts: Comma-separated `host:port` of all processes, or `None`.
        task_index: The index of this process, or −1.
        environment: `os.environ`.
        lost_code: Exit code of a process that has lost another.

    Raises:
        ValueError: if flags and environment contradict each other, JAX or its devices are missing,
            or the processes have different numbers of devices.
    """
    if importlib.util.find_spec("jax") is None:
        raise ValueError(
            '--engine=jax needs JAX, not installed here: `pip install "lamb_tf[jax,bert]"`, and '
            '"jax[cuda13]" for GPUs or "jax[tpu]" for TPUs.'
        )
    found = _cluster(strategy, worker_hosts, task_index, environment)
    if found or strategy == "tpu":
        _continue_in_child(lost_code)
    quiet_tensorflow.skip_tpu_query(environment)
    import jax

    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM for itself
    if strategy == "tpu":
        _start_on_tpu(jax)
    elif found:
        _join(jax, found)
    _find_devices(jax, is_alone=not found)
    if jax.process_count() > 1 and not (found or strategy == "tpu"):
        raise ValueError(
            f"All {jax.process_count()} hosts of a Cloud TPU slice must train together; got one "
            "alone. Start the command on every host, with --distribution_strategy=tpu."
        )
    _require_equal_numbers(jax)
    if jax.process_count() > 1 and jax.default_backend() == "cpu":
        # On CPUs the programs of several processes in JAX_COMPILATION_CACHE_DIR compute wrongly.
        jax.config.update("jax_enable_compilation_cache", False)


def _find_devices(jax, is_alone):
    try:
        # libtpu, if installed, logs that no TPU was found; JAX logs that a process is lost.
        with quiet_tensorflow.silence() if is_alone else contextlib.nullcontext():
            jax.devices()
    except (RuntimeError, AssertionError) as error:  # as JAX_PLATFORMS=cuda without its plug-in
        if not is_alone:  # it may be another process that is missing
            raise
        reason = str(error).strip().partition("\n")[0] or "none of that platform"
        raise ValueError(
            f"JAX finds no devices with JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')!r}: "
            f"{reason.rstrip('.')}. Unset it, or install JAX for these devices; JAX_PLATFORMS=cpu "
            "trains on the CPU."
        ) from error


def _require_equal_numbers(jax):
    """Each process reads an equal part of every batch, for its own devices."""
    counts = collections.Counter(device.process_index for device in jax.devices())
    processes = collections.defaultdict(list)
    for process in range(jax.process_count()):
        processes[counts[process]].append(process)
    if len(processes) > 1:
        each = "; ".join(f"{_named(some)}: {count}" for count, some in processes.items())
        raise ValueError(
            "All processes must have the same number of devices; got "
            f"({jax.default_backend()}) {each}. Start all with equal numbers: CUDA_VISIBLE_DEVICES "
            "selects the GPUs of a process, XLA_FLAGS=--xla_force_host_platform_device_count=N "
            "divides a CPU."
        )


def _named(processes):
    """`processes 0, 1, 2`, at most five of them."""
    more = f" and {len(processes) - 5} more" if len(processes) > 5 else ""
    several = "es" if len(processes) > 1 else ""
    return f"process{several} {', '.join(map(str, processes[:5]))}{more}"


def _cluster(strategy, worker_hosts, task_index, environment):
    """The cluster of this process; `None` if it is the only one, or JAX finds the others."""
    if strategy == "tpu":
        return None
    configured = cluster.configured(environment)
    several = configured is not None and len(configured.hosts) > 1
    if strategy or worker_hosts or task_index != -1 or several:
        return cluster.find(worker_hosts, task_index, environment)
    return None


def _continue_in_child(lost_code):
    """Returns in a child; this process waits for it, reports how it ended, and ends.

    The child's stderr is read here, for its last lines.
    """
    sys.stdout.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # a Ctrl-C comes from the parent, and once
        end_with_parent(signal.SIGKILL)
        os.dup2(writing, 2)
        os.close(reading)
        os.close(writing)
        return
    os.close(writing)

    def pass_to_child(number, _):
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(child, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_to_child)
    said = bytearray()
    passing_on = threading.Thread(target=_pass_on, args=(reading, said), daemon=True)
    passing_on.start()
    _, status = os.waitpid(child, 0)
    passing_on.join(GRACE_SECONDS)  # a process that the child has left behind may keep it open
    os._exit(_ended(os.waitstatus_to_exitcode(status), said.decode(errors="replace"), lost_code))


def _pass_on(reading, said):
    """Copies a pipe to stderr, and its last bytes to `said`.

    It reads on if stderr is closed or the disk is full, or the child would block forever.
    """
    while data := os.read(reading, 1 << 16):
        with contextlib.suppress(OSError):
            os.write(2, data)
        said += data
        del said[:-_LAST_BYTES]


def _ended(code, said, lost_code):
    """Reports how a child ended, unless it has done so itself; the exit code."""
    if code >= 0 or -code in (signal.SIGINT, signal.SIGTERM):
        return code if code >= 0 else 128 - code
    command = messages.program or "run_pretraining"
    if code == -signal.SIGABRT and any(sign in said for sign in _SIGNS_OF_ABORTS):
        return messages.report(command, cluster.LOST.format(who=""), lost_code)
    lines = [line for line in said.splitlines() if line[:1].strip() and line[0] not in "@*"]
    last = f"; its last output: {' | '.join(lines[-_LAST_LINES:])}" if lines else ""
    reason = f"The process was ended by {signal.Signals(-code).name}{last}"
    return messages.report(command, reason, 128 - code)


@contextlib.contextmanager
def leaving_others_on_errors(command: str) -> Iterator[None]:
    """An error ends a process that has others at once, with its own exit code.

    At the usual end JAX would wait for the others, or abort if they are lost.
    """
    try:
        yield
    except BaseException as error:
        import jax

        if jax.process_count() == 1:
            raise
        code = _said(command, error)
        if jax.process_index() == 0 and isinstance(error, Exception):
            time.sleep(GRACE_SECONDS)  # without this one JAX aborts the others
        os._exit(code)


def _said(command, error):
    """Prints an error as every command does; its exit code."""

    def fail():
        raise error

    try:
        return messages.exit_code(command, lambda: messages.resumable(fail))
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _start_on_tpu(jax):
    try:
        jax.distributed.initialize()
        found = jax.default_backend()
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"JAX finds no Cloud TPU slice here: {reason.rstrip('.')}. Start it on a TPU VM."
        ) from error
    if found != "tpu":
        raise ValueError(
            f"distribution_strategy=tpu needs a TPU; JAX finds only {found} here, in "
            f"{jax.process_count()} processes. Start the command on every host of the slice, with "
            "jax[tpu] installed."
        )


def _join(jax, found):
    print(
        f"worker {found.index} of {len(found.hosts)}, {found.hosts[found.index]} (by "
        f"{found.source}): waiting for the others …",
        flush=True,
    )
    logging.getLogger("jax._src.distributed").setLevel(logging.WARNING)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # used on CPUs only
    jax.distributed.initialize(
        found.hosts[0],
        len(found.hosts),
        found.index,
        cluster_detection_method="deactivate",
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
    )


def lost_worker(error: Exception) -> str | None:
    """The message if an error of JAX means that another process is gone, or `None`."""
    text = str(error)
    signs = ("Gloo", "Connection closed by peer", "heartbeat", "NCCL", "coordination service")
    if type(error).__name__ != "JaxRuntimeError" or not any(sign in text for sign in signs):
        return None
    return cluster.LOST.format(who="")
