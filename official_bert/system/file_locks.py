"""Locks that keep a second process out of a folder; a killed process loses its own at once."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator

_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def hold(
    path: str | os.PathLike,
    when_held: Callable[[], object] | None = None,
    with_children: bool = False,
) -> Iterator[None]:
    """Holds the lock of a file while the block runs.

    A file system without locks keeps nobody out; `owner_files` is for object stores.

    Args:
        path: The file; created if need be, and left there.
        when_held: Called if another process holds the lock; if it returns, this process waits.
            None: raise BlockingIOError.
        with_children: Whether child processes hold the lock too, until they end.

    Raises:
        BlockingIOError: another process holds the lock, and `when_held` is None.
    """
    with open(path, "w") as lock:
        os.set_inheritable(lock.fileno(), with_children)
        try:
            _lock(lock.fileno(), when_held)
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
        yield


def _lock(descriptor: int, when_held: Callable[[], object] | None) -> None:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    if when_held is None:
        raise BlockingIOError(errno.EWOULDBLOCK, "Another process holds the lock")
    when_held()
    fcntl.flock(descriptor, fcntl.LOCK_EX)
