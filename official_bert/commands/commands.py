"""The beginning and end of every command: flags parsed, `main` called, an exit code."""

import pathlib
import re
import sys
from collections.abc import Callable

from absl import app, flags

from official_bert.commands import command_help
from official_bert.system import messages

_REQUIRED = re.compile(r"flag --(\w+)=None: Flag --\1 must have a value other than None\.")
_OUT_OF_BOUNDS = re.compile(r"flag --(\w+)=.*?: (must be .*)", re.DOTALL)
HELP = {"--help": False, "-help": False, "-h": False, "--helpshort": True, "-helpshort": True}
"""Arguments that ask for help, and whether for the short one."""


def run(main: Callable[..., int | None], arguments: bool = False) -> None:
    """Parses the flags, calls `main`, and ends this process with an exit code.

    Args:
        main: The command; returns an exit code, `None` for 0. A ValueError, an OSError or a
            `messages.Failed` that it raises is printed.
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
            sys.exit(messages.report(command, in_our_words(error)))
        except SystemExit:  # after --helpfull, where absl's exit code is 1
            sys.exit(0)

    app.run(lambda given: messages.exit_code(command, main, given, arguments), flags_parser=parse)


def in_our_words(error: Exception) -> str:
    """What absl says of a flag, in the form of all other errors."""
    text = _REQUIRED.sub(r"--\1 is required.", str(error))
    return _OUT_OF_BOUNDS.sub(r"--\1 \2", text)


def _name(main):
    if messages.program:
        return messages.program
    module = main.__module__.rpartition(".")[2]
    return pathlib.Path(sys.argv[0]).stem if module == "__main__" else module
