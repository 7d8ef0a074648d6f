"""Commands of fine-tuning with settings as flags, as processes that may be killed on the way."""

import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import small_runs
import warm_python

from official_bert.commands import commands, refused
from official_bert.training.run_files import step_and_count

# Of run_classifier.py and of run_squad.py in google-research/bert.
OFFICIAL_DEFAULTS = {
    "do_lower_case": None,
    "do_train": False,
    "do_predict": False,
    "train_batch_size": 32,
    "predict_batch_size": 8,
    "learning_rate": 5e-5,
    "num_train_epochs": 3.0,
    "warmup_proportion": 0.1,
    "save_checkpoints_steps": 1000,
}
OFFICIAL_FLAGS = """
    bert_config_file vocab_file output_dir init_checkpoint iterations_per_loop
    use_tpu tpu_name tpu_zone gcp_project master num_tpu_cores
"""
# Flags without effect where a model is not trained.
OF_TRAINING = ("do_train", "train_file", "train_batch_size", "num_train_epochs", "learning_rate")
OF_TRAINING += ("beta_2", "log_steps")


def assert_flags_of_the_official_script(settings, defaults, more):
    """Its flags keep their names and defaults, or are refused with a reason."""
    flags, refusals = commands.flags_of(settings), refused.flags(settings)
    defaults |= OFFICIAL_DEFAULTS
    assert {name: flags[name].default for name in defaults} == defaults
    assert {*OFFICIAL_FLAGS.split(), *more.split()} <= {*flags, *refusals}
    assert not {*flags} & {*refusals}


def small_training(small, folder, **settings):
    """The flags of a small training with evaluation; its files are in `folder`."""
    (folder / "bert_config.json").write_text(small.config.to_json())
    return {
        "bert_config_file": str(folder / "bert_config.json"),
        "vocab_file": small.vocab_file,
        "train_file": small.train,
        "output_dir": str(folder / "output"),
        "learning_rate": 5e-3,
        "beta_2": 0.98,
        "distribution_strategy": "off",
        "do_train": True,
        "do_eval": True,
    } | settings


def in_a_copy(settings, folder):
    """The flags of a training that is done, with its model in a folder of one's own."""
    return settings | {"output_dir": str(shutil.copytree(settings["output_dir"], folder))}


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
