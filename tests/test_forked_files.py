"""The tests of each file run in a process of their own, and are reported as usual."""

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
import forked_files

def pytest_configure(config):
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(forked_files.ForkedFiles(config, MOST_BYTES))
"""
FIRST = """
import os, pytest

@pytest.fixture(scope="module")
def made():
    return os.getpid()

def test_process(made):
    assert made == os.getpid() != os.getppid()

def test_failure(made):
    print("printed before")
    assert made == "expected"

def test_crash(made):
    os.kill(os.getpid(), 9)

def test_after_the_crash(made):
    os.environ["left"] = "in this process"
    assert made == os.getpid()
"""
SECOND = """
import os, pytest
from conftest import MOST_BYTES

def test_other_process():
    assert "left" not in os.environ
    os.environ["seen"] = "here"

def test_process_of_the_same_file():
    assert ("seen" in os.environ) == (MOST_BYTES > 0)

@pytest.mark.skip(reason="for the report")
def test_skipped():
    pass
"""


@pytest.mark.parametrize("most_bytes", [1 << 40, 0])
def test_each_file_has_a_process_and_a_crash_fails_one_test(tmp_path, most_bytes):
    (tmp_path / "conftest.py").write_text(f"MOST_BYTES = {most_bytes}\n{CONFTEST}")
    (tmp_path / "test_first.py").write_text(FIRST)
    (tmp_path / "test_second.py").write_text(SECOND)
    support = Path(__file__).with_name("support")
    command = [sys.executable, "-m", "pytest", "-rs", "-n1", "--dist=loadfile"]
    options = [f"--override-ini=pythonpath={support}", f"--rootdir={tmp_path}", tmp_path]
    done = subprocess.run([*command, *options], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "2 failed, 4 passed, 1 skipped" in done.stdout
    for said in ("test_first.py ended with -9", "printed before", "for the report"):
        assert said in done.stdout
