"""Keeps the memory that a process frees for its next requests."""

import ctypes
import platform

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # of glibc's malloc.h


def keep() -> None:
    """Makes the C library keep freed memory for the next request, until the process ends.

    TensorFlow on a CPU allocates every activation and gradient anew. By default the largest ones
    come from the system and return to it each time. This costs a page fault for every 4 KiB: in
    float32 some per cent of an update (`docs/throughput.md`). Threads then share one heap, because
    heaps of their own are small. The maximum memory of the process stays about the same. Call it
    before there are other threads. It does nothing if the C library is not glibc.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        for option, value in ((_M_ARENA_MAX, 1), (_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1)):
            libc.mallopt(option, value)
