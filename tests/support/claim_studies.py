"""The studies of claims, as tests run them: as modules, and as commands that may be killed."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import peers

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks/claims"))  # as for a script there


def script(name):
    """A study's module, which is also a script; its flags are defined once."""
    peers.load("matplotlib")
    return importlib.import_module(name)


def record(trial, **values):
    about = {"cpu": "a CPU", "cores": 2, "python": "3", "load_before": 0.5}
    return {
        "trial": trial,
        "wall_seconds": 1.0,
        "cpu_seconds": 1.0,
        "machine": about,
        "date": "2026-01-01",
        "commit": "abc",
        "command": "python x",
        "diverged": values.get("report") is None,
    } | values


def command(name, folder, settings, *more):
    return [
        *(sys.executable, f"benchmarks/claims/{name}.py", f"--settings={json.dumps(settings)}"),
        *(f"--results={folder}/{name}.jsonl", f"--page={folder}/{name}.md"),
        *(f"--data_dir={folder}/data", *more),
    ]


def records_of(folder, name):
    path = folder / f"{name}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def run_and_kill(arguments, folder, name, trials):
    """Kills a study after so many trials; what is in its results."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    study = subprocess.Popen(arguments, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    try:
        ends = time.monotonic() + 300
        while len(records_of(folder, name)) < trials and time.monotonic() < ends:
            assert study.poll() is None, "the study ended before it was killed"
            time.sleep(0.05)
    finally:
        study.send_signal(signal.SIGKILL)
        study.wait()
    return (folder / f"{name}.jsonl").read_text()
