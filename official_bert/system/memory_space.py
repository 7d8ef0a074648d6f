"""Available memory, from /proc and the cgroup."""

import contextlib
import pathlib
import re

_SYSTEM, _GROUP = pathlib.Path("/proc"), pathlib.Path("/sys/fs/cgroup")


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
