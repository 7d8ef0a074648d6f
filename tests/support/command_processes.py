"""Commands of fine-tuning with settings as flags, as processes that may be killed on the way."""

import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import small_runs
import warm_python

from official_bert.training.run_files import step_and_count


def without(settings, *names):
    return {name: value for name, value in settings.items() if name not in names}


def as_flags(settings):
    return [f"--{name}={value}" for name, value in settings.items() if value is not None]


def start(command, settings):
    """A command of `official_bert` as a process, quiet."""
    return warm_python.Popen(
        [sys.executable, "-m", f"official_bert.{command}", *as_flags(settings)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
    )


def kill_after_first_checkpoint(command, settings, seconds):
    """Starts the command, and kills it so long after its first checkpoint."""
    folder = Path(settings["output_dir"])
    with start(command, settings) as process:
        while process.poll() is None and not list(folder.glob("ctl_step_*.json")):
            time.sleep(0.02)
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


def assert_the_same_after_a_kill(command, call, settings, folder, files, before):
    """Killed after its first checkpoint and given again, a command leaves what it does in one go.

    Args:
        command: Its name.
        call: Calls it in this process with settings, and returns its code.
        folder: For the folders of both.
        files: Names of files of text that are the same.
        before: The kill has to come before this step.
    """
    whole, killed = folder / "whole", folder / "killed"
    assert call(settings | {"output_dir": str(whole)}) == 0
    again = settings | {"output_dir": str(killed)}
    kill_after_first_checkpoint(command, again, random.Random(3).uniform(0, 0.3))
    assert 40 <= newest_step(again) < before
    assert call(again) == 0
    assert small_runs.log_lines(killed) == small_runs.log_lines(whole)
    for name in files:
        assert (killed / name).read_text() == (whole / name).read_text()
    small_runs.assert_same(*map(small_runs.final_tensors, (killed, whole)))


def newest_step(settings):
    """The number of updates in the newest checkpoint."""
    names = Path(settings["output_dir"]).glob("ctl_step_*.json")
    return max(step_and_count(path.stem)[0] for path in names)


def eval_results(folder):
    """The metrics that a command has left as text."""
    lines = (Path(folder) / "eval_results.txt").read_text().splitlines()
    return {name: float(value) for name, value in (line.split(" = ") for line in lines)}


def of_page(command):
    """The words of a page's `lamb-bert …`, run by the program next to this Python."""
    program, *words = shlex.split(command.replace("\\\n", ""))
    assert program == "lamb-bert"
    return [Path(sys.executable).parent / program, *words]
