"""Commands called in this process: the command line parsed, `main` called, errors printed."""

from official_bert.commands import commands
from official_bert.system import messages


def call(module, settings, arguments):
    """The exit code of a command.

    Args:
        module: The command's module.
        settings: Its dataclass.
        arguments: The command line.
    """
    name = module.__name__.rpartition(".")[2]
    return messages.exit_code(name, lambda: module.main(commands.parse(settings, arguments)))
