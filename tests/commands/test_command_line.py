"""`lamb-bert`: the commands of the package under one name, as `python -m` runs them."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from official_bert import __file__ as package
from official_bert.commands.command_line import COMMANDS, find, main

ROOT = Path(__file__).parents[2]
PROGRAM = (
    "import sys; sys.argv[0] = 'lamb-bert'; from official_bert.commands import command_line as c; "
)
START = "-c", PROGRAM + "sys.exit(c.main())"


def python(*arguments):
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_every_command_of_the_package_has_a_name_in_the_program():
    paths = Path(package).parent.rglob("*.py")
    modules = [
        ".".join(path.relative_to(Path(package).parent).with_suffix("").parts)
        for path in paths
        if re.search(r"^    commands\.run\(main, \w+\)$", path.read_text(), re.M)
    ]
    assert sorted(COMMANDS.values()) == sorted(modules)
    assert all(re.fullmatch("[a-z-]+", name) for name in COMMANDS)
    assert find("run_pretraining") == find("run-pretraining") == "pretrain"
    assert find("no_such_command") is None


def test_help_lists_every_command_with_the_first_line_of_its_manual(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for command, name in COMMANDS.items():
        path = Path(package).parent.joinpath(*name.split(".")).with_suffix(".py")
        first = path.read_text().split('"""')[1].split("\n")[0]
        assert f"  {command:<18}{first}" in shown.splitlines()
    assert max(map(len, shown.splitlines())) <= 120
    assert main([]) == 2
    assert capsys.readouterr().out == shown
    assert main(["--version"]) == 0
    assert re.fullmatch(r"lamb-bert \d+\.\d+\.\d+.*\n", capsys.readouterr().out)


def test_help_loads_neither_tensorflow_nor_the_commands():
    done = python("-c", PROGRAM + "print(c.description()); print(*sys.modules)")
    assert done.returncode == 0
    loaded = set(done.stdout.splitlines()[-1].split())
    assert not loaded & {"numpy", "keras", "absl", "tensorflow", "official_bert.run_pretraining"}


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--no_such_flag"], ["--input_file=nowhere", "--vocab_file=v"]]
)
def test_a_command_is_its_module_under_the_name_that_was_typed(arguments):
    ours = python(*START, "learn-vocabulary", *arguments)
    theirs = python("-m", "official_bert.learn_vocabulary", *arguments)
    assert ours.stdout == theirs.stdout
    refused = arguments != ["--help"]
    assert ours.returncode == theirs.returncode == 2 * refused
    assert ours.stderr.count("\n") == refused
    assert ours.stderr.startswith("lamb-bert learn-vocabulary: error: " * refused)
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
def test_an_unknown_command_ends_in_one_line(arguments, said, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"lamb-bert: error: {said}")
    assert error.count("\n") == 1


def test_ctrl_c_ends_a_command_with_one_line(tmp_path):
    os.mkfifo(tmp_path / "log")  # nothing is written to it, so the command waits
    flags = f"--log_file={tmp_path}/log", f"--output_dir={tmp_path}/plots"
    process = subprocess.Popen(
        [sys.executable, *START, "plot", *flags],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with opened_when_read(tmp_path / "log", process):
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=600)
    assert process.returncode == 130
    assert said == "lamb-bert plot: interrupted.\n"


@contextlib.contextmanager
def opened_when_read(path, process):
    """Opens a pipe as soon as the process reads from it."""
    while True:
        with contextlib.suppress(OSError):  # nobody reads
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            break
        assert process.poll() is None
        time.sleep(0.02)
    try:
        yield
    finally:
        os.close(descriptor)


def test_a_missing_extra_is_reported_in_one_line():
    hide = "import sys; sys.modules['sentencex'] = None; import importlib.util as u; "
    hide += "f = u.find_spec; u.find_spec = lambda n, *a: None if n == 'sentencex' else f(n, *a); "
    done = python("-c", hide + PROGRAM)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert 'pip install "lamb_tf[bert]"' in done.stderr
