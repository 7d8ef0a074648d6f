"""Keeps a second process out of a folder of an object store, where there are no locks.

TensorFlow's file systems cannot write an object on the condition that nobody else has. So the
process that works in a folder says so in a small file, which it refreshes while it lives. A file
that has not been refreshed for some minutes counts for nothing, nor does that of a process of this
machine that is gone. Of two processes that both believe that they are alone, the one whose file was
overwritten finds that out before it writes its next checkpoint.
"""

import contextlib
import datetime
import errno
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator

from official_bert.system.places import RemotePath

REFRESH_SECONDS = 30.0
STALE_SECONDS = 180.0
SETTLE_SECONDS = 2.0  # for another process that has looked at the same moment to write its own


@contextlib.contextmanager
def hold(path: RemotePath) -> Iterator[Callable[[], None]]:
    """Holds a folder by a file in it while the block runs.

    Args:
        path: The file; removed at the end.

    Yields:
        A function that raises a BlockingIOError if another process has taken the folder since.

    Raises:
        BlockingIOError: another process holds it; its text says which.
        OSError: the store cannot be reached.
    """
    theirs = _read(path)
    if theirs and not _is_gone(theirs):
        raise _held(theirs)
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
            raise _held(found)

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
        with contextlib.suppress(OSError):
            require_mine()
            path.unlink()


def _refresh(path, mine, require_mine, ended):
    while not ended.wait(REFRESH_SECONDS):
        with contextlib.suppress(OSError):  # the next time, or the work itself fails of it
            require_mine()
            _write(path, mine)


def _write(path, mine):
    """In one length: TensorFlow may remember for some seconds how long an object was."""
    with path.open("w") as file:
        file.write(json.dumps(mine | {"refreshed": time.time()}).ljust(512))


def _read(path):
    """What the file says; `None` where there is none, or it is not of this form."""
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
    """What numbers of processes are known by: this boot of this machine, and the container."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"


def _held(theirs):
    since = datetime.datetime.fromtimestamp(theirs["started"], datetime.UTC)
    return BlockingIOError(
        errno.EWOULDBLOCK,
        f"process {theirs.get('pid')} of {theirs.get('host')}, since {since:%Y-%m-%d %H:%M} UTC, "
        f"last seen {time.time() - theirs['refreshed']:.0f} s ago",
    )
