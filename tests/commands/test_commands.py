"""What every command of `official_bert` has in common."""

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from official_bert.commands import command_help, command_line

PACKAGE = Path(__file__).parents[2] / "official_bert"
COMMANDS = sorted(
    path.stem for path in PACKAGE.glob("*.py") if "commands.run(main, " in path.read_text()
)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_a_command_line_that_can_be_pasted_and_every_flag_once(command):
    done = helped(command, "--help")
    shown = re.search(r"\n\n((?:    .*\n)+)", done.stdout)[1]
    program, name, *given = shlex.split(shown.replace("\\\n", ""))
    assert (program, command_line.COMMANDS[name]) == ("lamb-bert", command)
    flags = re.findall(r"^  --(?:\[no\])?(\w+)\s+\S", done.stdout, re.M)
    assert len(flags) == len(set(flags))
    assert len(flags) == len(re.findall("^  --", done.stdout, re.M))  # each has a description
    for argument in given:
        if argument.startswith("--"):
            assert argument[2:].partition("=")[0] in flags
    assert done.returncode == 0
    assert not done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.parametrize("command", ["run_pretraining", "run_classifier"])
def test_the_short_help_has_what_everyone_needs(command):
    done = helped(command, "--helpshort")
    flags = re.findall(r"^  --(?:\[no\])?(\w+)", done.stdout, re.M)
    assert len(flags) <= 20
    assert {"train_batch_size", "learning_rate", "init_checkpoint"} <= set(flags)
    assert "Rarely needed" not in done.stdout
    if command == "run_pretraining":
        assert "warmup_steps" in flags  # its default, 10,000, suits no short run


def test_no_flag_has_two_topics():
    placed = " ".join(command_help.TOPICS.values()).replace("*", "").split()
    assert len(placed) == len(set(placed))


def helped(command, flag):
    module = f"official_bert.{command}"
    return subprocess.run(
        [sys.executable, "-m", module, flag], cwd=PACKAGE.parent, capture_output=True, text=True
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_help_does_not_wait_for_tensorflow(command):
    arguments = ["-X", "importtime", "-m", f"official_bert.{command}", "--help"]
    done = subprocess.run(
        [sys.executable, *arguments], cwd=PACKAGE.parent, capture_output=True, text=True
    )
    imported = set(re.findall(r"\| +(\w+)$", done.stderr, re.M))
    assert "absl" in imported
    assert not imported & {"keras", "lamb_tf", "tensorflow"}


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_flag_is_one_line_with_the_name_of_the_command(command):
    done = subprocess.run(
        [sys.executable, "-m", f"official_bert.{command}", "--no_such_flag=1"],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert re.fullmatch(f"{command}: error: .*'no_such_flag'.*\n", done.stderr)


def ended_by(number):
    """A command that gets a signal: as `subprocess.run` gives it back."""
    script = (
        "import os\n"
        "from official_bert.commands import arguments, commands\n"
        f"commands.run(lambda args: os.kill(os.getpid(), {number.value}), arguments.Arguments)"
    )
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        # As in a terminal, also where the tests run in a shell's background, which ignores SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def test_ctrl_c_ends_every_command_with_one_line():
    done = ended_by(signal.SIGINT)
    assert done.returncode == 130
    assert re.fullmatch(r".*: interrupted\.\n", done.stderr)


def test_a_crash_of_native_code_shows_where_in_python_it_was():
    done = ended_by(signal.SIGSEGV)
    assert done.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in done.stderr
    assert "in exit_code" in done.stderr


def test_a_flag_that_is_required_is_named_like_any_other():
    module = "official_bert.learn_vocabulary"
    done = subprocess.run(
        [sys.executable, "-m", module], cwd=PACKAGE.parent, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr == (
        "learn_vocabulary: error: --input_file is required. --vocab_file is required.\n"
    )
