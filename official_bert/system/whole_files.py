"""Files that appear only when they are complete."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterable


def write_whole(path: str, chunks: Iterable[bytes], temporary: str | None = None) -> None:
    """Writes under a temporary name and renames, so that `path` is never incomplete.

    Args:
        temporary: the temporary name, on the same disk; default: `path` with `.tmp` appended.
    """
    temporary = temporary or f"{path}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)  # free the space on a full disk
        raise
    os.replace(temporary, path)


def start_writing_out(path: str | os.PathLike) -> None:
    """Makes Linux begin to write a file's data so far to the disk, without waiting for it.

    Then syncing a large file at its end takes little time.
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
    """Replaces a UTF-8 text file in one step."""
    write_whole(os.fspath(path), [text.encode("utf-8")])
