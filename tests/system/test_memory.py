"""Available memory, as Linux and a container's control group report it; freed memory is kept."""

import json
import platform
import subprocess
import sys

import pytest

from official_bert.system import memory

SCRIPT = """
import json, resource, sys, threading
from official_bert.system import memory

def allocate():
    for _ in range(5):
        b"x" * (100 * 2**20)  # 25,600 pages

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    thread = threading.Thread(target=allocate)  # as TensorFlow allocates, beside the main one
    thread.start()
    thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if "keep" in sys.argv:
    memory.tune_malloc()
faults()
print(json.dumps(faults()))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_a_thread_does_not_take_memory_from_the_system_again():
    def faults(*arguments):
        command = [sys.executable, "-c", SCRIPT, *arguments]
        return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)

    assert faults() > 5 * 25_600
    assert faults("keep") < 100


@pytest.mark.parametrize(
    ("limit", "expected"), [("max", 4096), ("3000", 1000), ("1000000", 4096), (None, 4096)]
)
def test_a_container_may_have_less_than_the_machine(tmp_path, limit, expected):
    assert memory.available(tmp_path, tmp_path) is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:        4 kB\n")
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.stat").write_text("anon 2000\nfile 70000\n")
    assert memory.available(tmp_path, tmp_path) == expected
