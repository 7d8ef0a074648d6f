"""Exclusive use of a folder, on this machine or in an object store.

On this machine `flock` is used: a killed process releases it at once. In an object store, where
TensorFlow's file systems have no conditional write, a process owns a folder by a small file that it
refreshes. The file expires after some minutes without a refresh, and at once when its process was
on this machine and has ended. If two processes start at the same moment, the one whose file was
overwritten notices before it writes its next checkpoint.
"""

import contextlib
import datetime
import errno
import fcntl
import json
import os
import pathlib
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator

from official_bert.system.places import Place, RemotePath

REFRESH_SECONDS = 30.0
STALE_SECONDS = 180.0
SETTLE_SECONDS = 2.0  # for a process that looked at the same moment to write its own file
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Busy(ValueError):
    """Another process works in the folder."""


@contextlib.contextmanager
def exclusive(
    folder: Place | str, wait: str | None = None, name: str = ".lock", with_children: bool = False
) -> Iterator[Callable[[], None]]:
    """Keeps other processes out of a folder while the block runs.

    On a local file system without locks it has no effect.

    Args:
        folder: The folder; a local one must exist.
        wait: A line to print before waiting for another process; None refuses at once, as an object
            store always does.
        name: The locked file in it; created if need be, and left there as it is.
        with_children: Whether child processes hold the lock too, until they end.

    Yields:
        A function to call before files are replaced. In an object store it raises `Busy` if another
        process has taken over.

    Raises:
        Busy: another process works there.
        OSError: the folder cannot be reached.
    """
    if isinstance(folder, RemotePath):
        with _owning(folder) as require_mine:
            yield require_mine
        return
    with open(pathlib.Path(folder) / name, "a") as lock:  # which may be a file with contents
        os.set_inheritable(lock.fileno(), with_children)
        with _unless_without_locks():
            _lock(lock.fileno(), folder, wait)
        yield lambda: None


def require_free(folder: Place) -> None:
    """Refuses a folder that another process works in.

    Raises:
        Busy: another process works there.
    """
    if isinstance(folder, RemotePath):
        theirs = _read(folder / ".owner.json")
        if theirs and not _is_gone(theirs):
            raise _owned(folder / ".owner.json", theirs)
        return
    # A shared lock: many processes can look at the same moment. On NFS it needs a file to read.
    with open(pathlib.Path(folder) / ".lock", "a+") as lock, _unless_without_locks():
        _lock(lock.fileno(), folder, None, fcntl.LOCK_SH)


@contextlib.contextmanager
def _unless_without_locks():
    """On a local file system without locks, locking has no effect."""
    try:
        yield
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise


def _lock(descriptor, folder, wait, kind=fcntl.LOCK_EX):
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        return
    if wait is None:
        raise _busy(folder)
    print(wait, flush=True)
    fcntl.flock(descriptor, kind)


def _busy(folder, who="", if_gone=""):
    return Busy(
        f"Another process works in {folder}{who}. Wait until it ends, or choose another "
        f"folder.{if_gone}"
    )


# Object stores


@contextlib.contextmanager
def _owning(folder):
    path = folder / ".owner.json"
    theirs = _read(path)
    if theirs and not _is_gone(theirs):
        raise _owned(path, theirs)
    mine = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "machine": _machine(),
        "started": time.time(),
        "token": uuid.uuid4().hex,
    }

    def require_mine():
        found = _read(path)
        if found and found["token"] != mine["token"]:
            raise _owned(path, found)

    ended = threading.Event()
    refresher = threading.Thread(target=_refresh, args=(path, mine, require_mine, ended))
    refresher.daemon = True
    try:
        _write(path, mine)
        time.sleep(SETTLE_SECONDS)
        require_mine()
        refresher.start()
        yield require_mine
    finally:
        ended.set()
        if refresher.is_alive():
            refresher.join()
        with contextlib.suppress(OSError, Busy):
            require_mine()
            path.unlink()


def _refresh(path, mine, require_mine, ended):
    while not ended.wait(REFRESH_SECONDS):
        with contextlib.suppress(OSError, Busy):  # try again later, or let the work fail
            require_mine()
            _write(path, mine)


def _write(path, mine):
    """Writes always the same length, because TensorFlow may cache an object's for seconds."""
    with path.open("w") as file:
        file.write(json.dumps(mine | {"refreshed": time.time()}).ljust(512))


def _read(path):
    """The contents of the file; `None` if it is missing or malformed."""
    try:
        found = json.loads(path.read_text())
        for name in ("started", "refreshed"):
            datetime.datetime.fromtimestamp(found[name], datetime.UTC)
        os.fspath(found["token"])
        return found
    except (FileNotFoundError, ValueError, TypeError, KeyError, OverflowError):
        return None


def _is_gone(theirs):
    of_here = theirs.get("machine") == _machine()
    ended = of_here and not os.path.exists(f"/proc/{theirs.get('pid')}")
    return ended or time.time() - theirs["refreshed"] > STALE_SECONDS


def _machine():
    """The scope of process numbers: this boot of this machine, and the container."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"


def _owned(path, theirs):
    since = datetime.datetime.fromtimestamp(theirs["started"], datetime.UTC)
    who = (
        f" (process {theirs.get('pid')} of {theirs.get('host')}, since "
        f"{since:%Y-%m-%d %H:%M} UTC, last seen {time.time() - theirs['refreshed']:.0f} s ago)"
    )
    minutes = STALE_SECONDS / 60
    if_gone = f" If it no longer runs, remove {path}, or wait {minutes:g} minutes."
    return _busy(path.parent, who, if_gone)
