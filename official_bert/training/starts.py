"""Records each launch of a run: the command, library versions and time."""

import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import sys

from official_bert.system.places import Place

FILE = "starts.jsonl"
_LIBRARIES = ("lamb_tf", "tensorflow", "jax", "keras", "numpy")
_DISTRIBUTIONS = {"tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-tpu")}


def record(model_dir: Place, step: int, replicas: int) -> None:
    """Appends one line per launch to `starts.jsonl` (informational only).

    Args:
        model_dir: The model directory.
        step: Updates done before this start.
        replicas: Number of devices that compute an update together.
    """
    line = {
        "time": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "step": step,
        "command": [pathlib.Path(sys.argv[0]).stem, *sys.argv[1:]],
        "versions": {"python": platform.python_version()} | versions(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "replicas": replicas,
    }
    with (model_dir / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


def versions() -> dict[str, str]:
    """{library: version} of those that decide what a run computes, with Keras' backend."""
    import keras

    other = "tensorflow" if keras.backend.backend() == "jax" else "jax"
    libraries = [name for name in _LIBRARIES if name != other]
    found = {name: _version(_DISTRIBUTIONS.get(name, (name,))) for name in libraries}
    return {name: version for name, version in found.items() if version}


def _version(names):
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
