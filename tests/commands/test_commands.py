"""Properties of every command of `official_bert`."""

import functools
import importlib
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import in_process
import pytest

from official_bert.commands import command_line, commands
from official_bert.commands.arguments import Arguments
from official_bert.commands.commands import flags_of

PACKAGE = Path(__file__).parents[2] / "official_bert"
COMMANDS = sorted(command_line.COMMANDS.values())  # all: see test_command_line.py


@functools.cache
def helped(command):
    """The process of `--help`, with what it imported in stderr."""
    arguments = ["-X", "importtime", "-m", f"official_bert.{command}", "--help"]
    return subprocess.run(
        [sys.executable, *arguments], cwd=PACKAGE.parent, capture_output=True, text=True
    )


def settings_of(command):
    """A command's module and dataclass."""
    module = importlib.import_module(f"official_bert.{command}")
    name = re.search(r"commands\.run\(main, (\w+)\)", Path(module.__file__).read_text())[1]
    return module, getattr(module, name)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_a_command_line_that_can_be_pasted_and_every_flag_once(command):
    done = helped(command)
    shown = re.search(r"\n\n((?:    .*\n)+)", done.stdout)[1]
    program, name, *given = shlex.split(shown.replace("\\\n", ""))
    assert (program, command_line.COMMANDS[name]) == ("lamb-bert", command)
    flags = re.findall(r"^  --(?:\[no\])?(\w+)\s+\S", done.stdout, re.M)
    assert sorted(flags) == sorted(flags_of(settings_of(command)[1]))
    assert len(flags) == len(re.findall("^  --", done.stdout, re.M))  # each has a description
    for argument in given:
        if argument.startswith("--"):
            assert argument[2:].partition("=")[0] in flags
    assert done.returncode == 0
    assert all(line.startswith("import time:") for line in done.stderr.splitlines())
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.parametrize("command", COMMANDS)
def test_help_does_not_wait_for_tensorflow(command):
    imported = set(re.findall(r"\| +(\w+)$", helped(command).stderr, re.M))
    assert "absl" in imported
    assert not imported & {"keras", "lamb_tf", "tensorflow"}


@pytest.mark.parametrize("command", ["run_pretraining", "run_classifier"])
def test_the_short_help_has_what_everyone_needs(command):
    module, settings = settings_of(command)
    shown = commands.help_text(module.__doc__, flags_of(settings), short=True)
    flags = re.findall(r"^  --(?:\[no\])?(\w+)", shown, re.M)
    assert len(flags) <= 20
    assert {"train_batch_size", "learning_rate", "init_checkpoint"} <= set(flags)
    assert "Rarely needed" not in shown
    if command == "run_pretraining":
        assert "warmup_steps" in flags  # its default, 10,000, suits no short run


def test_no_flag_has_two_topics():
    placed = " ".join(commands.TOPICS.values()).replace("*", "").split()
    assert len(placed) == len(set(placed))


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_flag_is_one_line_with_the_name_of_the_command(command, capsys):
    assert in_process.call(*settings_of(command), ["--no_such_flag=1"]) == 2
    name = command.rpartition(".")[2]
    assert re.fullmatch(f"{name}: error: .*'no_such_flag'.*\n", capsys.readouterr().err)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_settings_of_a_command_are_documented_by_its_flags(command):
    _, settings = settings_of(command)
    assert issubclass(settings, Arguments)
    for name, field in flags_of(settings).items():
        assert len(field.metadata["words"]) > 14, name
        assert f"    {name}: " in settings.__doc__


def test_a_command_names_its_missing_flags_and_ends_with_2(capsys):
    assert in_process.call(*settings_of("learn_vocabulary"), []) == 2
    assert capsys.readouterr().err == (
        "learn_vocabulary: error: --input_file is required. --vocab_file is required.\n"
    )


def test_a_crash_of_native_code_shows_where_in_python_it_was():
    script = (
        "import os, signal\n"
        "from official_bert.commands import arguments, commands\n"
        "commands.run(lambda args: os.kill(os.getpid(), signal.SIGSEGV), arguments.Arguments)"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True)
    assert done.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in done.stderr
    assert "in exit_code" in done.stderr
