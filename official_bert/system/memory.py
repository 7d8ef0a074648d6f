"""Available memory, from /proc and the cgroup; retention of freed memory."""

import contextlib
import ctypes
import pathlib
import platform
import re

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # of glibc's malloc.h
_SYSTEM, _GROUP = pathlib.Path("/proc"), pathlib.Path("/sys/fs/cgroup")


def tune_malloc() -> None:
    """Makes the C library keep freed memory for the next request, until the process ends.

    TensorFlow on a CPU allocates every activation and gradient again, and glibc returns the largest
    to the system each time. The page faults take some per cent of a step (`docs/throughput.md`).
    Threads then share one heap. Peak memory stays about the same. Call it before other threads
    start. Without glibc it does nothing.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        for option, value in ((_M_ARENA_MAX, 1), (_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1)):
            libc.mallopt(option, value)


def available(system: pathlib.Path = _SYSTEM, group: pathlib.Path = _GROUP) -> int | None:
    """Bytes available to new processes, by Linux or the container's limit; `None` if unknown.

    Args:
        system: The folder of `meminfo`.
        group: The folder of the container's control group (version 2).
    """
    found = []
    with contextlib.suppress(OSError):
        described = re.search(r"^MemAvailable: +(\d+) kB", (system / "meminfo").read_text(), re.M)
        found += [1024 * int(described[1])] if described else []
    with contextlib.suppress(OSError):
        limit = (group / "memory.max").read_text().strip()
        taken = re.search(r"^anon (\d+)", (group / "memory.stat").read_text(), re.M)
        found += [int(limit) - int(taken[1])] if limit != "max" and taken else []
    return min(found, default=None)
