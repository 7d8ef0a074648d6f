"""Freed memory is kept: measured by the page faults of a process that allocates it again."""

import ctypes
import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, resource
from official_bert import freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        b"x" * 2**26  # 16,384 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
freed_memory.keep()
faults()
print(json.dumps([before, faults()]))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
def test_memory_is_not_taken_from_the_system_again():
    output = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    ).stdout
    before, after = json.loads(output)
    assert before > 5 * 2**14
    assert after < 100
