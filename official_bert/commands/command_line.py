"""The program `lamb-bert`: all commands of this package under one name.

    lamb-bert pretrain --help

`lamb-bert pretrain …` is `python -m official_bert.run_pretraining …`: the same flags, text of
--help and exit codes. Errors begin with `lamb-bert pretrain: error:`.
"""

import ast
import difflib
import importlib.metadata
import importlib.util
import pathlib
import runpy
import sys
from collections.abc import Sequence

PROGRAM = "lamb-bert"

COMMANDS = {  # {command: module}, in the order of the work
    "demo": "demo",
    "learn-vocabulary": "learn_vocabulary",
    "create-data": "create_pretraining_data",
    "pretrain": "run_pretraining",
    "fill-blanks": "commands.fill_blanks",
    "extract-features": "extract_features",
    "classify": "run_classifier",
    "squad": "run_squad",
    "tag": "run_tagger",
    "convert": "convert_checkpoint",
    "report": "report",
    "compare": "commands.compare",
    "plot": "commands.plots",
    "rehearse": "rehearse",
}

USAGE = 2
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command that the first argument names.

    Args:
        arguments: Command and flags; default: `sys.argv[1:]`.

    Returns:
        The exit code, if no command has run; a command ends the process with its own.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    if not given or given[0] in ("--help", "-h", "-help", "--helpfull", "help"):
        print(description())
        return 0 if given else USAGE
    if given[0] == "--version":
        print(f"{PROGRAM} {importlib.metadata.version('lamb_tf')}")
        return 0
    command = find(given[0])
    if command is None:
        print(f"{PROGRAM}: error: {_unknown(given[0])}", file=sys.stderr)
        return USAGE
    return _run(command, given[1:])


def find(name: str) -> str | None:
    """The command with this name or module name: `run_pretraining` is `pretrain`."""
    modules = {module.rpartition(".")[2]: command for command, module in COMMANDS.items()}
    return name if name in COMMANDS else modules.get(name.replace("-", "_"))


def description() -> str:
    """The output of `lamb-bert --help`: each command with the first line of its manual."""
    lines = [f"  {name:<18}{_purpose(module)}\n" for name, module in COMMANDS.items()]
    return (
        "BERT with large batches, from raw text to a model in use.\n\n"
        f"usage: {PROGRAM} COMMAND [FLAGS]\n\n{''.join(lines)}\n"
        f"{PROGRAM} COMMAND --help lists a command's flags; {PROGRAM} --version prints the release."
    )


def _purpose(module):
    """The first line of a module's docstring, without importing the module."""
    spec = importlib.util.find_spec(f"official_bert.{module}")
    source = pathlib.Path(spec.origin).read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source)).partition("\n")[0]


def _unknown(name):
    near = difflib.get_close_matches(name, COMMANDS, 1)
    if name.startswith("-"):
        return f"a command must precede the flags; got {name!r}. See `{PROGRAM} --help`."
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"unknown command {name!r}.{hint} `{PROGRAM} --help` lists all commands."


def _run(command, flags):
    """Runs the command's module as `python -m` does, under the name that the user typed."""
    try:
        from official_bert.system import messages

        messages.program = f"{PROGRAM} {command}"
        sys.argv[1:] = flags
        runpy.run_module(f"official_bert.{COMMANDS[command]}", run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:  # while modules are imported
        print(f"{PROGRAM} {command}: interrupted.", file=sys.stderr)
        return INTERRUPTED
    return 0
