"""Available memory, and what the C library does with memory that was freed."""

import contextlib
import ctypes
import pathlib
import platform
import re

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # of glibc's malloc.h
_SYSTEM, _GROUP = pathlib.Path("/proc"), pathlib.Path("/sys/fs/cgroup")


def tune_malloc() -> None:
    """Makes the C library keep freed memory for the next request, until the process ends.

    TensorFlow on a CPU allocates every activation and gradient again. By default the largest ones
    come from the system and return to it each time. This costs a page fault for every 4 KiB: in
    float32 some per cent of an update (`docs/throughput.md`). Threads then share one heap, because
    heaps of their own are small. The maximum memory of the process stays about the same. Call it
    before there are other threads. It does nothing if the C library is not glibc.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        for option, value in ((_M_ARENA_MAX, 1), (_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1)):
            libc.mallopt(option, value)


def available(system: pathlib.Path = _SYSTEM, group: pathlib.Path = _GROUP) -> int | None:
    """Bytes that new processes can take before the system kills one; `None` if unknown.

    This is what Linux reports as available, or the limit of the container if that is less.

    Args:
        system: The folder where Linux describes itself.
        group: The folder where it describes the control group (version 2) of this container.
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
