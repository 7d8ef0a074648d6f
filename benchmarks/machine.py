"""Machine, versions and command of a measurement; the pages that contain them."""

import argparse
import datetime
import json
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys
from importlib import metadata

import evidence

_CPUS = pathlib.Path("/proc/cpuinfo")
PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "jax", "numpy", "torch", "transformers")
PACKAGES += ("optax", "tensorflow-addons")


def processor():
    """The processor's name."""
    lines = _CPUS.read_text().splitlines() if _CPUS.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def cores():
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def named_cores(count=None):
    """A number of cores in words; by default, of the cores that this process may use."""
    count = count or cores()
    return "1 core" if count == 1 else f"{count} cores"


def gpus():
    """Name, memory and driver of each NVIDIA GPU, as reported by `nvidia-smi`."""
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


def command():
    """The command of this process, as typed in the root of the repository."""
    script = pathlib.Path(sys.argv[0]).resolve()
    script = script.relative_to(evidence.ROOT) if script.is_relative_to(evidence.ROOT) else script
    return shlex.join(["python", str(script), *sys.argv[1:]])


# Scripts and their pages


def parser(doc, **numbers):
    """A parser with --output_dir and with flags of whole numbers: {name: (default, help)}."""
    found = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--output_dir", type=pathlib.Path, default="benchmarks/results")
    for name, (default, words) in numbers.items():
        found.add_argument(f"--{name}", type=int, default=default, help=f"{words} ({default})")
    return found


def page(title, *parts):
    """A page with title, month, command, machine and versions.

    Args:
        *parts: Paragraphs, and tables as lists of rows, the head first.
    """
    parts = [part if isinstance(part, str) else evidence.table(part) for part in parts]
    title = f"# {title}, {datetime.date.today():%B %Y}"
    return "\n\n".join([title, f"`{command()}` on {describe(*PACKAGES)}.", *parts]) + "\n"


def dated(folder, name):
    """The path of a page whose name contains the number of cores and the month."""
    return pathlib.Path(folder, f"{name}_cpu{cores()}_{datetime.date.today():%Y%m}.md")


def write_or_print(folder, name, text):
    """Writes a `dated` page into the folder, if there is one, and prints it."""
    if folder:
        write(dated(folder, name), text)
    else:
        print(text)


def write(path, text, values=None):
    """Writes and prints a page; with `values`, also the .json file next to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if values is not None:
        path.with_suffix(".json").write_text(json.dumps(values, indent=1) + "\n")
    print(text)
