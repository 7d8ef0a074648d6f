"""A lock keeps other processes out for as long as its own lives."""

import errno
import subprocess
import sys

import pytest

from official_bert.system import file_locks

HOLDER = """
import sys
from official_bert.system import file_locks
with file_locks.hold(sys.argv[1], with_children=sys.argv[2] == "True"):
    import subprocess
    child = subprocess.Popen(["cat"], stdin=0, close_fds=False)
    print("held", child.pid, flush=True)
    child.wait()
"""


@pytest.fixture
def held(tmp_path):
    """Function that starts a process that holds a lock, and a child of it that reads its input."""
    started = []

    def hold(path, with_children):
        command = [sys.executable, "-c", HOLDER, str(path), str(with_children)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
        assert started[-1].stdout.readline().startswith("held")
        return started[-1]

    yield hold
    for process in started:
        process.kill()
        process.stdin.close()
        process.stdout.close()
        process.wait()


def test_a_second_process_is_refused_until_the_first_is_killed(held, tmp_path):
    process = held(tmp_path / "lock", with_children=False)
    with pytest.raises(BlockingIOError), file_locks.hold(tmp_path / "lock"):
        raise AssertionError
    process.kill()
    process.wait()
    with file_locks.hold(tmp_path / "lock"):
        pass


def test_children_hold_the_lock_too_if_they_are_to(held, tmp_path):
    process = held(tmp_path / "lock", with_children=True)
    process.kill()
    process.wait()
    with pytest.raises(BlockingIOError), file_locks.hold(tmp_path / "lock"):
        raise AssertionError
    process.stdin.close()  # the child ends
    with file_locks.hold(tmp_path / "lock", when_held=lambda: None):
        pass


def test_who_finds_it_held_waits_unless_it_raises(held, tmp_path):
    process = held(tmp_path / "lock", with_children=False)

    def refuse():
        raise ValueError("busy")

    with pytest.raises(ValueError, match="busy"), file_locks.hold(tmp_path / "lock", refuse):
        raise AssertionError
    with file_locks.hold(tmp_path / "lock", when_held=process.kill):
        assert process.wait() != 0


def test_a_file_system_without_locks_keeps_nobody_out(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with file_locks.hold(tmp_path / "lock"):
        pass
