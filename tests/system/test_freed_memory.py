"""Freed memory is kept: measured by the page faults of a process that allocates it again."""

import json
import platform
import subprocess
import sys

import pytest

SCRIPT = """
import json, resource, sys, threading
from official_bert.system import freed_memory

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
    freed_memory.keep()
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
