"""How much memory there is to take, asked before the work."""

import contextlib
import pathlib
import re

_SYSTEM, _GROUP = pathlib.Path("/proc"), pathlib.Path("/sys/fs/cgroup")


def available(system: pathlib.Path = _SYSTEM, group: pathlib.Path = _GROUP) -> int | None:
    """Bytes that new processes can take before the system kills one; `None` if it does not tell.

    That is what Linux calls available, or less where a container may not take as much.

    Args:
        system: where Linux describes itself.
        group: where it describes the control group (version 2) of this container.
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
