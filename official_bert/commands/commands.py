"""The beginning and end of every command of this package.

Exit codes: 0 done; 2 usage or input; 3 the run diverged; 4 a worker is lost; 130 and 143 stopped by
Ctrl-C or SIGTERM. Errors are one line on stderr: `COMMAND: error: REASON`.
"""

import pathlib
import re
import sys
from collections.abc import Callable

from absl import app, flags

from official_bert.commands import command_help

_REQUIRED = re.compile(r"flag --(\w+)=None: Flag --\1 must have a value other than None\.")
_OUT_OF_BOUNDS = re.compile(r"flag --(\w+)=.*?: (must be .*)", re.DOTALL)
USAGE = 2
STOPPED = (130, 143)
HELP = {"--help": False, "-help": False, "-h": False, "--helpshort": True, "-helpshort": True}
"""Arguments that ask for help, and whether for the short one."""

program: str | None = None
"""What the user typed to start the command, where that is not its module: `lamb-bert pretrain`."""


class Failed(Exception):
    """The end of a command, with a reason for the user and an exit code."""

    def __init__(self, reason: object, code: int = USAGE):
        super().__init__(str(reason))
        self.code = code


def run(main: Callable[..., int | None], arguments: bool = False) -> None:
    """Parses the flags, calls `main`, and ends this process with an exit code.

    Args:
        main: The command; returns an exit code, `None` for 0. A ValueError, an OSError or a
            `Failed` that it raises is printed.
        arguments: Whether `main` takes a list of arguments that are not flags. Otherwise such
            arguments are refused.
    """
    command = _name(main)

    def parse(argv):
        asked = [HELP[word] for word in argv[1:] if word in HELP]
        if asked:
            defined = flags.FLAGS.flags_by_module_dict().get(sys.argv[0], ())
            manual = sys.modules[main.__module__].__doc__
            print(command_help.text(manual, {f.name: f for f in defined}, short=asked[0]))
            sys.exit(0)
        try:
            return flags.FLAGS(argv)[1:]
        except (flags.Error, ValueError) as error:  # a ValueError for --noflag=value
            sys.exit(report(command, in_our_words(error)))
        except SystemExit:  # after --helpfull, where absl's exit code is 1
            sys.exit(0)

    app.run(lambda given: exit_code(command, main, given, arguments), flags_parser=parse)


def in_our_words(error: Exception) -> str:
    """What absl says of a flag, in the form of all other errors."""
    text = _REQUIRED.sub(r"--\1 is required.", str(error))
    return _OUT_OF_BOUNDS.sub(r"--\1 \2", text)


def _name(main):
    if program:
        return program
    module = main.__module__.rpartition(".")[2]
    return pathlib.Path(sys.argv[0]).stem if module == "__main__" else module


def exit_code(
    command: str, main: Callable[..., int | None], given: list[str], arguments: bool = False
) -> int:
    """Calls a command's `main` and prints its error, if any; the exit code."""
    if given and not arguments:
        reason = f"unexpected argument {given[0]!r}; flags begin with --, globs need quotes."
        return report(command, reason)
    try:
        return (main(given) if arguments else main()) or 0
    except Failed as failed:
        return report(command, failed, failed.code)
    except (ValueError, OSError) as error:
        return report(command, error)
    except KeyboardInterrupt:
        return report(command, "interrupted.", STOPPED[0])


def resumable(work: Callable[[], int]) -> int:
    """Calls the work of a command that the same command resumes; returns its exit code.

    Ctrl-C before the first update, or for the second time, ends it without a checkpoint.
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
