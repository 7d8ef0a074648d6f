"""Writes files that appear only when complete, and survive a loss of power; reads JSON."""

import contextlib
import ctypes
import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from official_bert.system.places import AnyPath, RemotePath, as_path


@contextlib.contextmanager
def whole_file(
    path: str | os.PathLike, temporary: str | os.PathLike | None = None
) -> Iterator[BinaryIO]:
    """A file to write that appears under its name when the block ends without an error.

    Args:
        path: The name; a file there is replaced in one step.
        temporary: The name until then, on the same disk; default: `path` with `.tmp` appended.
    """
    temporary = temporary or f"{os.fspath(path)}.tmp"
    try:
        with open(temporary, "wb") as file:
            yield file
        put_in_place(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)  # free the space on a full disk
        raise


def write_whole(
    path: AnyPath, chunks: Iterable[bytes], temporary: str | os.PathLike | None = None
) -> None:
    """Writes a `whole_file` of these bytes (in an object store, every file is whole)."""
    path = as_path(path)
    if isinstance(path, RemotePath):
        is_partial = False
        try:
            with path.open("wb") as file:
                file.write(b"")  # without any chunk, too, there is a file
                is_partial = True
                for chunk in chunks:
                    file.write(chunk)
                is_partial = False
        except BaseException:
            # A partial upload overwrites the old file; a failed one keeps it.
            if is_partial:
                with contextlib.suppress(OSError):
                    path.unlink()
            raise
        return
    with whole_file(path, temporary) as file:
        file.writelines(chunks)


def write_text(path: AnyPath, text: str) -> None:
    """Replaces a UTF-8 text file in one step."""
    write_whole(path, [text.encode("utf-8")])


def json_object(path: AnyPath) -> dict:
    """The object in a JSON file; {} without a valid one."""
    try:
        found = json.loads(as_path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def put_in_place(temporary: str | os.PathLike, path: str | os.PathLike) -> None:
    """Renames a finished file after its data are on the disk."""
    sync(temporary)
    os.replace(temporary, path)


def sync(path: str | os.PathLike) -> None:
    """Waits until a file's data or a folder's entries are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def start_writing_out(path: str | os.PathLike) -> None:
    """Starts writing a file's data to the disk (on Linux), so that a later `sync` is short."""
    if not sys.platform.startswith("linux"):
        return
    everything, write = (ctypes.c_int64(0), ctypes.c_int64(0)), ctypes.c_uint(2)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        ctypes.CDLL(None).sync_file_range(descriptor, *everything, write)
    finally:
        os.close(descriptor)
