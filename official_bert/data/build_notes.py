"""Notes of a build about what it has finished, for the run that resumes it.

A kill or a loss of power may leave anything on the disk. So a note is a JSON file with a digest of
itself, and holds the checksums of the files that it vouches for.
"""

import hashlib
import json
import zlib
from typing import Any

from official_bert.system.whole_files import write_whole


def write(path: str, value: Any) -> None:
    """Writes a note that holds a JSON value."""
    write_whole(path, [json.dumps({"sha256": _digest(value), "note": value}).encode()])


def read(path: str) -> Any:
    """The value of a note; None if there is none, or it is damaged."""
    try:
        with open(path, "rb") as file:
            made = json.loads(file.read())
        return made["note"] if made["sha256"] == _digest(made["note"]) else None
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
        return None


def checksum(path: str) -> int | None:
    """The CRC-32 of a file; None if there is none."""
    crc = 0
    try:
        with open(path, "rb") as file:
            while data := file.read(1 << 20):
                crc = zlib.crc32(data, crc)
    except FileNotFoundError:
        return None
    return crc


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
