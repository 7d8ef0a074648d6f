"""The studies of claims, as tests run them: as modules, and as commands that may be killed."""

import importlib
import json
import sys
from pathlib import Path

import peers

ROOT = Path(__file__).parents[2]
TINY = {"vocab_size": 300, "documents": 40, "hidden_size": 32, "intermediate_size": 64}


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
