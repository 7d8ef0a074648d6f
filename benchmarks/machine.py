"""The machine and the versions that a measurement was made with."""

import os
import pathlib
import platform
import shutil
import subprocess
from importlib import metadata

_CPUS = pathlib.Path("/proc/cpuinfo")


def processor():
    """The processor's name."""
    lines = _CPUS.read_text().splitlines() if _CPUS.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def cores():
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def named_cores(count=None):
    """The number of cores in words; by default of those that this process may use."""
    count = count or cores()
    return "1 core" if count == 1 else f"{count} cores"


def gpus():
    """Name, memory and driver of each NVIDIA GPU, as `nvidia-smi` says them."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    if not shutil.which(query[0]):
        return []
    lines = subprocess.run(query, capture_output=True, text=True).stdout.splitlines()
    return [
        f"{name} ({memory}, driver {driver})"
        for name, memory, driver in (line.split(", ") for line in lines if line.count(", ") == 2)
    ]


def versions(*packages):
    """{package: version} of those that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def describe(*packages):
    """Processor, cores, Python and packages as the beginning of a sentence."""
    named = ", ".join(f"{name} {version}" for name, version in versions(*packages).items())
    return f"{processor()}, {named_cores()}; Python {platform.python_version()}, {named}"
