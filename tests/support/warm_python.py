"""Starts Python processes that have already imported Keras with TensorFlow or JAX.

A server of each test process imports them once, and forks: the new process has a PID, signals,
files and an exit code of its own, and saves the seconds of CPU that the imports take. Processes
that need a fresh start (PyTorch, options of Python) are started as usual. `run` and `Popen` are
those of `subprocess`.
"""

import atexit
import contextlib
import functools
import gc
import json
import os
import runpy
import selectors
import socket
import struct
import subprocess
import sys
import types


def run(args, *, input=None, capture_output=False, timeout=None, check=False, **options):
    """`subprocess.run`."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(args, **options) as process:
        try:
            stdout, stderr = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
    if check:
        done.check_returncode()
    return done


class Popen(subprocess.Popen):
    """`subprocess.Popen`; warm for `[sys.executable, PATH or "-m" MODULE or "-c" CODE, …]`."""

    _channel = None  # brings the exit status

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *more):
        pipes, new_session = more[3:9], more[-2]
        environment = {os.fsdecode(k): os.fsdecode(v) for k, v in (env or os.environ).items()}
        backend = _backend(args, environment)
        if executable or preexec_fn or pass_fds or not backend:
            super()._execute_child(
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *more
            )
            return
        request = {
            "args": [os.fspath(word) for word in args],
            "cwd": os.path.abspath(cwd or "."),
            "environment": environment,
            "new_session": new_session,
        }
        given = (pipes[0], pipes[3], pipes[5])
        standard = [number if fd == -1 else fd for number, fd in enumerate(given)]
        self._channel, remote = socket.socketpair()
        with remote, os.fdopen(os.memfd_create("request"), "w+") as file:
            json.dump(request, file)
            file.flush()
            descriptors = [file.fileno(), remote.fileno(), *standard]
            socket.send_fds(server(backend), [b"+"], descriptors)
        self.pid = struct.unpack("i", self._channel.recv(4))[0]
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _internal_poll(self, *arguments, **options):
        if self._channel is None:
            return super()._internal_poll(*arguments, **options)
        with self._waitpid_lock:
            if self.returncode is None:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)
        return self.returncode

    def _try_wait(self, wait_flags):
        if self._channel is None:
            return super()._try_wait(wait_flags)
        try:
            status = self._channel.recv(4, socket.MSG_DONTWAIT if wait_flags else 0)
        except BlockingIOError:
            return 0, 0
        self._channel.close()
        return self.pid, struct.unpack("i", status)[0]


def _backend(args, environment):
    """The backend of Keras that a command imports; None if it cannot be warm."""
    if not isinstance(args, list | tuple) or len(args) < 2 or args[0] != sys.executable:
        return None
    starts = args[1] in ("-m", "-c") or os.fspath(args[1]).endswith(".py")
    special = ("LD_PRELOAD", "MALLOC_", "PYTHON", "TF_USE_")
    changed = {k for k, v in environment.items() if os.environ.get(k) != v} | {
        k for k in os.environ if k not in environment
    }
    changed = {k for k in changed if k.startswith(special)} - {"PYTHONPATH", "PYTHONUNBUFFERED"}
    jax = "--engine=jax" in args
    backend = "jax" if jax else environment.get("KERAS_BACKEND", "tensorflow")
    return backend if starts and not changed and backend in ("tensorflow", "jax") else None


@functools.cache
def server(backend="tensorflow"):
    """The socket of the server of this process, and of the processes that it forks."""
    ours, theirs = socket.socketpair()
    with theirs:
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": backend}
        environment.pop("TF_USE_LEGACY_KERAS", None)
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is of those who wait
        )
    atexit.register(process.wait)
    atexit.register(ours.close)  # which ends the server, so it is the first of the two
    return ours


def _serve(control):
    """Forks for each request until the client has gone; returns its request, in the child only."""
    channels = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is control:
                    message, files, _, _ = socket.recv_fds(control, 1, 5)
                    if not message:
                        os._exit(0)
                    with os.fdopen(files[0]) as file:
                        file.seek(0)
                        request = json.load(file)
                    pid = os.fork()
                    if not pid:
                        for descriptor in (files[1], control.fileno(), *channels):
                            os.close(descriptor)
                        for _, channel in channels.values():
                            channel.close()
                        return request, files[2:]
                    channel = socket.socket(fileno=files[1])
                    channel.send(struct.pack("i", pid))
                    for descriptor in files[2:]:
                        os.close(descriptor)
                    descriptor = os.pidfd_open(pid)
                    channels[descriptor] = pid, channel
                    selector.register(descriptor, selectors.EVENT_READ)
                else:
                    pid, channel = channels.pop(key.fd)
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    status = struct.pack("i", os.waitpid(pid, 0)[1])
                    with contextlib.suppress(BrokenPipeError):  # where nobody waits any more
                        channel.send(status)
                    channel.close()


def _begin(request, standard):
    """Makes this process that of the request."""
    if request["new_session"]:
        os.setsid()
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
    for descriptor in set(standard) - {0, 1, 2}:
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if "jax" in sys.modules:
        _configure_jax()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    _, kind, *words = request["args"]
    sys.orig_argv = request["args"]
    code = words.pop(0) if kind in ("-m", "-c") else None
    sys.argv = [kind if code is None or kind == "-c" else code, *words]
    first = {"-m": os.getcwd(), "-c": ""}.get(kind, os.path.dirname(os.path.abspath(kind)))
    theirs = request["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [first, *filter(None, theirs), *sys.path[1 + len(_OWN_PATH) :]]
    if kind == "-m":
        runpy.run_module(code, run_name="__main__", alter_sys=True)
    elif kind == "-c":
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), vars(module))
    else:
        runpy.run_path(kind, run_name="__main__")


def _configure_jax():
    """Sets what JAX has read from the environment when it was imported."""
    import jax

    for name, value in os.environ.items():
        if name.startswith("JAX_") and name.lower() in jax.config.values:
            with contextlib.suppress(ValueError):
                value = json.loads(value)
            jax.config.update(name.lower(), value)


_OWN_PATH = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]

if __name__ == "__main__":
    import keras  # noqa: F401

    gc.collect()
    gc.freeze()
    _begin(*_serve(socket.socket(fileno=int(sys.argv[1]))))
