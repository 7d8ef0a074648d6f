"""Files that are there whole or not at all."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterable


def write_whole(path: str, chunks: Iterable[bytes], temporary: str | None = None) -> None:
    """Writes under a temporary name and renames, so that `path` is never seen half written.

    Args:
        temporary: the other name, on the same disk; default: `path` with `.tmp` behind it.
    """
    temporary = temporary or f"{path}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)  # a full disk has no room for what is of no use
        raise
    os.replace(temporary, path)


def start_writing_out(path: str | os.PathLike) -> None:
    """Has Linux begin to put on the disk what a file holds so far, without waiting for it.

    Then little is left to be waited for when a large file is synced at its end.
    """
    if not sys.platform.startswith("linux"):
        return
    everything, write = (ctypes.c_int64(0), ctypes.c_int64(0)), ctypes.c_uint(2)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        ctypes.CDLL(None).sync_file_range(descriptor, *everything, write)
    finally:
        os.close(descriptor)


def write_text(path: str | os.PathLike, text: str) -> None:
    """Replaces a UTF-8 text file by another in one step."""
    write_whole(os.fspath(path), [text.encode("utf-8")])
