"""Commands of fine-tuning with settings as flags, as processes that may be killed on the way."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

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
