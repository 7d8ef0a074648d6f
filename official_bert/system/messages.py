"""Messages and exit codes of the commands.

Exit codes: 0 done; 2 usage or input; 3 the run diverged; 4 a worker is lost; 130 and 143 stopped by
Ctrl-C or SIGTERM. Errors are one line on stderr: `COMMAND: error: REASON`.
"""

import functools
import sys
from collections.abc import Callable

USAGE = 2
STOPPED = (130, 143)

program: str | None = None
"""The command as typed, if not by its module's name: `lamb-bert pretrain`."""


class Failed(Exception):
    """The end of a command, with a reason for the user and an exit code."""

    def __init__(self, reason: object, code: int = USAGE):
        super().__init__(str(reason))
        self.code = code


def exit_code(command: str, work: Callable[[], int | None]) -> int:
    """Calls a command's work, prints its error if any, and returns the exit code."""
    try:
        return work() or 0
    except (Failed, ValueError, OSError) as error:
        return report(command, error, code_of(error))
    except KeyboardInterrupt:
        return report(command, "interrupted.", STOPPED[0])


def code_of(error: BaseException) -> int:
    """The exit code of a command that an error ends."""
    if isinstance(error, Failed):
        return error.code
    return STOPPED[0] if isinstance(error, KeyboardInterrupt) else USAGE


def resumable(work: Callable[[], int]) -> int:
    """Calls the work of a resumable command; returns its exit code.

    Ctrl-C before the first step, or a second one, ends it without a checkpoint.
    """
    try:
        return work()
    except KeyboardInterrupt:
        print("Stopped at once. Run the same command again to resume from the last checkpoint.")
        return STOPPED[0]


def report(command: str, reason: object, code: int = USAGE) -> int:
    """Prints why a command ends; returns its exit code."""
    kind = "" if code in STOPPED else "error: "
    print(f"{command}: {kind}{' '.join(str(reason).split())}", file=sys.stderr)
    return code


def warn(text: str) -> None:
    """Prints a warning to stderr."""
    print(f"warning: {text}", file=sys.stderr, flush=True)


@functools.cache
def once(say: Callable[[str], object], text: str) -> None:
    """Calls `say` with a text, unless this process did: a file may be read several times."""
    say(text)
    sys.stdout.flush()
