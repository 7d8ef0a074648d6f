"""`lamb-bert`: the commands of the package under one name, as `python -m` runs them."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from official_bert import __file__ as package
from official_bert.commands.command_line import COMMANDS, description, find

ROOT = Path(__file__).parents[2]
MODULES = {
    path.stem
    for path in Path(package).parent.glob("*.py")
    if "commands.run(main, " in path.read_text()
}
PROGRAM = (
    "import sys; sys.argv[0] = 'lamb-bert'; from official_bert.commands import command_line as c; "
)
START = [sys.executable, "-c", PROGRAM + "sys.exit(c.main())"]


def run(*arguments):
    return subprocess.run([*START, *arguments], cwd=ROOT, capture_output=True, text=True)


def module(name, *arguments):
    command = [sys.executable, "-m", f"official_bert.{name}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_every_command_of_the_package_has_a_name_in_the_program():
    assert set(COMMANDS.values()) == MODULES
    assert len(COMMANDS) == len(MODULES)
    assert all(re.fullmatch("[a-z-]+", name) for name in COMMANDS)


def test_a_module_s_own_name_is_understood():
    assert find("run_pretraining") == find("run-pretraining") == "pretrain"
    assert find("no_such_command") is None


def test_help_lists_every_command_with_the_first_line_of_its_manual():
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for command, name in COMMANDS.items():
        first = (Path(package).parent / f"{name}.py").read_text().split('"""')[1].split("\n")[0]
        assert f"  {command:<18}{first}" in done.stdout.splitlines()
    assert done.stdout == description() + "\n"
    assert max(map(len, done.stdout.splitlines())) <= 120


def test_help_loads_neither_tensorflow_nor_the_commands():
    script = PROGRAM + "print(c.description()); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert not loaded & {"numpy", "keras", "absl", "tensorflow", "official_bert.run_pretraining"}


@pytest.mark.parametrize("command", ["pretrain", "learn-vocabulary"])
def test_the_help_of_a_command_is_that_of_its_module(command):
    ours, theirs = run(command, "--help"), module(COMMANDS[command], "--help")
    assert ours.stdout == theirs.stdout
    assert "--[no]" in ours.stdout or "--vocab_size" in ours.stdout
    assert ours.returncode == theirs.returncode == 0


def test_errors_begin_with_the_program_and_the_command_and_exit_codes_are_the_same():
    for arguments in (["--no_such_flag"], ["--input_file=nowhere", "--vocab_file=v"]):
        ours, theirs = run("learn-vocabulary", *arguments), module("learn_vocabulary", *arguments)
        assert ours.returncode == theirs.returncode == 2
        assert theirs.stderr.startswith("learn_vocabulary: error: ")
        assert ours.stderr == theirs.stderr.replace(
            "learn_vocabulary: error:", "lamb-bert learn-vocabulary: error:"
        )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pretain"], "unknown command 'pretain'. Did you mean 'pretrain'?"),
        (["qqqq"], "unknown command 'qqqq'."),
        (["--model_dir=x"], "a command must precede the flags; got '--model_dir=x'"),
    ],
)
def test_a_command_that_is_not_there_ends_in_one_line(arguments, said):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"lamb-bert: error: {said}")
    assert done.stderr.count("\n") == 1


def test_without_a_command_the_list_is_shown_and_the_exit_code_is_that_of_wrong_usage():
    done = run()
    assert done.returncode == 2
    assert "  pretrain  " in done.stdout


def test_the_version_is_said():
    done = run("--version")
    assert re.fullmatch(r"lamb-bert \d+\.\d+\.\d+.*\n", done.stdout)


def test_ctrl_c_ends_a_command_with_one_line(tmp_path):
    os.mkfifo(tmp_path / "log")  # nobody writes to it, so the command waits
    process = subprocess.Popen(
        [*START, "plot", f"--log_file={tmp_path}/log", f"--output_dir={tmp_path}/plots"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "lamb-bert plot: interrupted.\n"


def test_a_missing_extra_is_said_in_one_line():
    hide = "import sys; sys.modules['sentencex'] = None; import importlib.util as u; "
    hide += "f = u.find_spec; u.find_spec = lambda n, *a: None if n == 'sentencex' else f(n, *a); "
    done = subprocess.run(
        [sys.executable, "-c", hide + PROGRAM], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert 'pip install "lamb_tf[bert]"' in done.stderr
