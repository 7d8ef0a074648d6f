"""Runs commands of this package as child processes that end when this process is stopped."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from typing import NoReturn


class Interrupted(Exception):
    """The user (Ctrl-C), the terminal or the system stopped this process."""


class ChildFailed(Exception):
    """A command ended with an error that it has already printed."""

    def __init__(self, command: str, code: int):
        super().__init__(f"{command} ended with exit code {code}")
        self.code = code


def raise_on_signals() -> None:
    """Makes SIGINT, SIGTERM and SIGHUP raise `Interrupted` in the main thread, once."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(number: int, frame: types.FrameType | None) -> NoReturn:
        for other in numbers:
            signal.signal(other, signal.SIG_IGN)  # a child may need a moment to save its work
        raise Interrupted

    for number in numbers:
        signal.signal(number, interrupt)


@contextlib.contextmanager
def handling(
    handler: Callable[[int, types.FrameType | None], object] | signal.Handlers, *numbers: int
) -> Iterator[None]:
    """Temporarily handles the signals of these numbers in this way."""
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


def call(command: str, *arguments: str) -> None:
    """Runs `python -m official_bert.<command>` to its end.

    It runs in its own session, so that Ctrl-C reaches only this process, which forwards it as
    SIGTERM and waits. The child inherits inheritable file descriptors.

    Raises:
        ChildFailed: if the command failed.
        Interrupted: if this process was stopped; the command has ended by then.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", f"official_bert.{command}", *arguments],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3")},
        start_new_session=True,
        close_fds=False,
        preexec_fn=end_with_parent,
    )
    try:
        code = child.wait()
    except Interrupted:
        child.terminate()
        child.wait()
        raise
    if code:
        raise ChildFailed(command, code)


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Makes Linux send a signal to this process when its parent ends, even by `kill -9`."""
    pr_set_pdeathsig = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, number)
