"""Runs a command: its dataclass of settings becomes flags, `main` is called, an exit code ends it.

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Report(Arguments):
        output: str | None = setting("HTML file to write.", None)

    def main(args: Report) -> int: ...

    commands.run(main, Report)  # at the end of the module, where it is run as a program

A field without a default is a flag that is required. A field named `arguments` takes the arguments
that are not flags.
"""

import dataclasses
import pathlib
import re
import sys
import typing
from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags

from official_bert.commands import command_help, refused
from official_bert.commands.arguments import Args, Arguments
from official_bert.system import messages
from official_bert.system.settings import Bounds

_OUT_OF_BOUNDS = re.compile(r"flag --(\w+)=.*?: (must be .*)", re.DOTALL)
HELP = {"--help": False, "-help": False, "-h": False, "--helpshort": True, "-helpshort": True}
"""Arguments that ask for help, and whether for the short one."""


def run(main: Callable[[Any], int | None], settings: type[Arguments]) -> None:
    """Parses the flags, calls `main`, and ends this process with an exit code.

    Args:
        main: The command; takes the settings and returns an exit code, `None` for 0. A ValueError,
            an OSError or a `messages.Failed` that it raises is printed.
        settings: The command's dataclass.
    """
    command = _name(main)

    def parsed(argv):
        asked = [HELP[word] for word in argv[1:] if word in HELP]
        if asked:
            manual = sys.modules[main.__module__].__doc__
            print(command_help.text(manual, flags_of(settings), short=asked[0]))
            sys.exit(0)
        try:
            return parse(settings, argv[1:], flags.FLAGS)
        except ValueError as error:
            sys.exit(messages.report(command, error))
        except SystemExit:  # after --helpfull, where absl's exit code is 1
            sys.exit(0)

    def called(args):
        return messages.exit_code(command, lambda: main(args))

    app.run(called, flags_parser=parsed)


def _name(main):
    if messages.program:
        return messages.program
    module = main.__module__.rpartition(".")[2]
    return pathlib.Path(sys.argv[0]).stem if module == "__main__" else module


def flags_of(settings: type[Arguments]) -> dict[str, "dataclasses.Field[Any]"]:
    """{name: field} of the settings that are flags."""
    return {f.name: f for f in dataclasses.fields(settings) if "words" in f.metadata}


def parse(
    settings: type[Args], arguments: Sequence[str], values: flags.FlagValues | None = None
) -> Args:
    """The settings that a command line gives.

    Args:
        settings: The command's dataclass.
        arguments: The command line without the command.
        values: Where the flags are defined; default: nowhere else.

    Raises:
        ValueError: for the user.
    """
    values = flags.FlagValues() if values is None else values
    fields = flags_of(settings)
    for field in fields.values():
        _define(field, values)
    _refuse(refused.flags(settings), values)
    try:
        _, *others = values([sys.argv[0], *arguments])
    except (flags.Error, ValueError) as error:  # a ValueError for --noflag=value
        raise ValueError(_OUT_OF_BOUNDS.sub(r"--\1 \2", str(error))) from None
    given = {name: values[name].value for name in fields if values[name].present}
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    missing = [name for name, f in fields.items() if _is_required(f) and name not in given]
    if missing:
        raise ValueError(" ".join(f"--{name} is required." for name in missing))
    if "arguments" in {field.name for field in dataclasses.fields(settings)}:
        given["arguments"] = tuple(others)
    elif others:
        raise ValueError(
            f"unexpected argument {others[0]!r}; flags begin with --, globs need quotes."
        )
    try:
        return settings(**given)
    except ValueError as error:  # which begins with the name
        raise ValueError(f"--{error}") from None


def as_flags(args: Arguments) -> list[str]:
    """The command line that gives these settings, with absl's own flags of this process."""
    fields = flags_of(type(args))
    lists = flags.CsvListSerializer(",")
    given = {name: getattr(args, name) for name in fields if name in args.given}
    given = {n: lists.serialize([*v]) if isinstance(v, tuple) else v for n, v in given.items()}
    others = [name for name in flags.FLAGS if name not in fields and flags.FLAGS[name].present]
    return [
        *(f"--{name}={value}" for name, value in given.items() if value is not None),
        *(flags.FLAGS[name].serialize() for name in others),
    ]


def _is_required(field):
    return field.default is dataclasses.MISSING


# Flags


def _define(field, values):
    """Defines the flag of a field: its type, words, bounds and default."""
    default = None if _is_required(field) else field.default
    default = [*default] if isinstance(default, tuple) else default
    words = command_help.words(field) + " Required." * _is_required(field)
    flag = {"name": field.name, "default": default, "help": words}
    flag |= {"flag_values": values, "module_name": sys.argv[0]}
    types = typing.get_args(field.type) or (field.type,)
    number = next((kind for kind in (int, float) if kind in types), None)
    if typing.get_origin(field.type) is tuple:
        flags.DEFINE_list(**flag)
    elif bool in types:
        flags.DEFINE_bool(**flag)
    elif number:
        parser = _Number(number, field.metadata["bounds"])
        flags.DEFINE(parser, serializer=flags.ArgumentSerializer(), **flag)
    else:
        flags.DEFINE_string(**flag)


class _Number(flags.ArgumentParser):
    """Parses a number; its errors complete `--name …`. The settings check the bounds."""

    def __init__(self, kind: type, bounds: Bounds):
        self._kind = kind
        self._wanted = "a whole number" if kind is int else "a number"
        self.syntactic_help = f"{self._wanted} {bounds}".rstrip()

    def parse(self, argument):
        try:
            return self._kind(argument)
        except ValueError:
            raise ValueError(f"must be {self._wanted}; got {argument!r}.") from None

    def flag_type(self):
        return self._kind.__name__


def _refuse(reasons, values):
    """Defines flags of other scripts, which end the command with a reason; --help omits them."""
    for name, reason in reasons.items():
        flag = _Refused(
            parser=flags.ArgumentParser(),
            serializer=flags.ArgumentSerializer(),
            name=name,
            default=None,
            help_string=f"Refused: --{name} {reason}",
            boolean=True,  # which --name, --noname and --name=value all can be
        )
        flags.DEFINE_flag(flag, values, "flags of other scripts")


class _Refused(flags.Flag):
    """A flag of another script: to give it is an error, whatever comes after it."""

    def parse(self, argument):
        raise flags.IllegalFlagValueError(self.help.removeprefix("Refused: "))
