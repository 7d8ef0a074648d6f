"""What becomes of memory that a process frees."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def keep():
    """Makes the C library keep freed memory for the next request, to the end of the process.

    TensorFlow on a CPU allocates every activation and gradient anew. By default the large ones come
    from the system and go back to it each time, which costs a page fault for every 4 KiB of them:
    in float32 some per cent of an update (`docs/throughput.md`). The most memory that the process
    holds stays about the same. Does nothing where the C library is not glibc.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, -1)
