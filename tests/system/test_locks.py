"""One process works in a folder, of this machine or of an object store, for as long as it lives."""

import errno
import fcntl
import json
import signal
import subprocess
import sys
import time

import pytest
import warm_python

from official_bert.system import locks
from official_bert.system.places import RemotePath, as_path

HOLDER = """
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
from official_bert.system import locks
from official_bert.system.places import as_path
folder, with_children = as_path(sys.argv[1]), sys.argv[2] == "True"
locks.SETTLE_SECONDS, locks.REFRESH_SECONDS = map(float, sys.argv[3:])
try:
    with locks.exclusive(folder, with_children=with_children) as require_mine:
        child = subprocess.Popen(["cat"], stdin=0, close_fds=False) if with_children else None
        print("held", flush=True)
        child.wait() if child else sys.stdin.readline()
        require_mine()
    print("ended", flush=True)
except locks.Busy as error:
    print("refused", error, flush=True)
"""


@pytest.fixture
def begin():
    """A function that starts a process that holds a folder until it reads a line."""
    started = []

    def start(folder, with_children=False, settle=0.0, refresh=0.1):
        arguments = map(str, (folder, with_children, settle, refresh))
        command = [sys.executable, "-c", HOLDER, *arguments]
        pipe = subprocess.PIPE
        # A store is reached by TensorFlow, whose import takes seconds.
        popen = warm_python.Popen if isinstance(folder, RemotePath) else subprocess.Popen
        started.append(popen(command, stdin=pipe, stdout=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def held(begin):
    """A function that starts such a process, and returns when it holds the folder."""

    def start(*arguments, **settings):
        process = begin(*arguments, **settings)
        assert process.stdout.readline() == "held\n"
        return process

    return start


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "SETTLE_SECONDS", 0.0)
    return RemotePath(f"file://{tmp_path}")


def assert_free(folder):
    with locks.exclusive(folder) as require_mine:
        require_mine()


def assert_busy(folder, message="Another process works in"):
    with pytest.raises(locks.Busy, match=message), locks.exclusive(folder):
        raise AssertionError


# On this machine


def test_a_second_process_is_refused_until_the_first_is_killed(held, tmp_path):
    process = held(tmp_path)
    assert_busy(tmp_path, f"Another process works in {tmp_path}. Wait until it ends, or choose")
    process.kill()
    process.wait()
    assert_free(tmp_path)


def test_those_who_look_whether_it_is_free_do_not_refuse_each_other(tmp_path):
    with open(tmp_path / ".lock", "a+") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        locks.require_free(tmp_path)
        with pytest.raises(locks.Busy), locks.exclusive(tmp_path):
            pass


def test_children_hold_the_folder_too_if_they_are_to(held, tmp_path, capsys):
    process = held(tmp_path, with_children=True)
    process.kill()
    process.wait()
    assert_busy(tmp_path)
    process.stdin.close()  # the child ends
    with locks.exclusive(tmp_path, wait="Waiting …"):
        assert capsys.readouterr().out in ("Waiting …\n", "")
    process.stdin = None


def test_who_is_to_wait_says_so_and_waits(held, tmp_path, capsys, monkeypatch):
    process = held(tmp_path)
    monkeypatch.setattr("builtins.print", lambda *_, **__: process.kill())
    with locks.exclusive(tmp_path, wait="Waiting …"):
        assert process.wait() != 0


def test_a_file_system_without_locks_keeps_nobody_out(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    assert_free(tmp_path)


# In an object store


def owner(store):
    return store / ".owner.json"


def change(store, **values):
    """Changes what the file says, as another machine would have written it."""
    theirs = json.loads(owner(store).read_text()) | values
    with owner(store).open("w") as file:
        file.write(json.dumps(theirs).ljust(512))


def refreshed(store):
    return json.loads(owner(store).read_text())["refreshed"]


def test_a_second_process_is_told_who_is_there_until_the_first_ends(held, store):
    process = held(store)
    with pytest.raises(locks.Busy) as raised, locks.exclusive(store):
        raise AssertionError
    said = str(raised.value)
    assert f"works in {store} (process {process.pid} of " in said
    end = f"another folder. If it no longer runs, remove {owner(store)}, or wait 3 minutes."
    assert said.endswith(end)
    assert process.communicate("\n", timeout=300)[0] == "ended\n"
    assert not owner(store).exists()
    with locks.exclusive(store) as require_mine:
        require_mine()
        assert owner(store).exists()


def test_what_a_killed_process_left_counts_while_it_could_be_of_another_machine(held, store):
    process = held(store, refresh=1000.0)
    process.kill()
    process.wait()
    for age, message in ((100.0, "last seen 10. s ago"), (-90.0, "last seen -.. s ago")):
        change(store, machine="another", refreshed=time.time() - age)
        assert_busy(store, message)
    change(store, refreshed=time.time() - locks.STALE_SECONDS - 1)
    assert_free(store)


def test_a_process_of_this_machine_that_was_killed_keeps_nobody_out(held, store):
    process = held(store)
    process.kill()
    process.wait()
    assert owner(store).exists()
    assert_free(store)


def test_who_is_interrupted_before_the_work_begins_leaves_no_file(begin, store):
    process = begin(store, settle=300.0)
    wait_until(owner(store).exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=600) != 0
    assert not owner(store).exists()


def test_who_was_taken_for_gone_finds_that_out_and_leaves_the_file_to_the_other(held, store):
    process = held(store)
    before = refreshed(store)
    wait_until(lambda: refreshed(store) > before)
    owner(store).unlink()
    wait_until(owner(store).exists)  # it is written again
    change(store, refreshed=0.0, machine="another")  # as if it had been stopped for long
    with locks.exclusive(store) as require_mine:
        assert "refused Another process" in process.communicate("\n", timeout=300)[0]
        require_mine()
        assert owner(store).exists()


def test_of_two_that_start_at_the_same_moment_one_is_refused(begin, store):
    processes = [begin(store, settle=2.0), begin(store, settle=2.0)]
    said = sorted(process.stdout.readline()[:7] for process in processes)
    assert said in (["held\n", "refused"],), said


@pytest.mark.parametrize("content", ["", "[]", '{"token": "a"}', '{"started": "x"}', "\0" * 9])
def test_a_damaged_file_keeps_nobody_out(store, content):
    with owner(store).open("w") as file:
        file.write(content)
    assert_free(as_path(str(store)))


def wait_until(holds):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
