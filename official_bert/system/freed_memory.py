"""What becomes of memory that a process frees."""

import ctypes
import platform

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # of glibc's malloc.h


def keep():
    """Makes the C library keep freed memory for the next request, to the end of the process.

    TensorFlow on a CPU allocates every activation and gradient anew. By default the largest ones
    come from the system and go back to it each time, which costs a page fault for every 4 KiB of
    them: in float32 some per cent of an update (`docs/throughput.md`). Threads share one heap then,
    for those of their own are small. The most memory that the process holds stays about the same.
    To be called before there are other threads. Does nothing where the C library is not glibc.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        for option, value in ((_M_ARENA_MAX, 1), (_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1)):
            libc.mallopt(option, value)
