"""A file that says who works in a folder of an object store keeps other processes out."""

import json
import signal
import subprocess
import sys
import time

import pytest

from official_bert.system import owner_files
from official_bert.system.places import RemotePath
from official_bert.training import model_directory

HOLDER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
from official_bert.system import owner_files
from official_bert.system.places import RemotePath
owner_files.SETTLE_SECONDS, owner_files.REFRESH_SECONDS = map(float, sys.argv[2:])
try:
    with owner_files.hold(RemotePath(sys.argv[1])) as require_mine:
        print("held", flush=True)
        sys.stdin.readline()
        require_mine()
    print("ended", flush=True)
except BlockingIOError as error:
    print("refused", error.strerror, flush=True)
"""


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(owner_files, "SETTLE_SECONDS", 0.0)
    return RemotePath(f"file://{tmp_path}/.owner.json")


@pytest.fixture
def begin(path):
    """A function that starts a process that holds the file until it reads a line."""
    started = []

    def start(settle=0.0, refresh=0.1):
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", HOLDER, str(path), str(settle), str(refresh)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def held(begin):
    """A function that starts such a process, and returns when it holds the file."""

    def start(**seconds):
        process = begin(**seconds)
        assert process.stdout.readline() == "held\n"
        return process

    return start


def end(process):
    """What the process says at the end."""
    return process.communicate("\n", timeout=300)[0]


def change(path, **values):
    """Changes what the file says, as another machine would have written it."""
    theirs = json.loads(path.read_text()) | values
    with path.open("w") as file:
        file.write(json.dumps(theirs).ljust(512))


def refreshed(path):
    return json.loads(path.read_text())["refreshed"]


def test_a_second_process_is_told_who_is_there_until_the_first_ends(held, path):
    process = held()
    with pytest.raises(BlockingIOError) as raised, owner_files.hold(path):
        raise AssertionError
    assert f"process {process.pid} of " in raised.value.strerror
    assert end(process) == "ended\n"
    assert not path.exists()
    with owner_files.hold(path) as require_mine:
        require_mine()
        assert path.exists()


def test_a_process_of_this_machine_that_was_killed_keeps_nobody_out(held, path):
    process = held()
    process.kill()
    process.wait()
    assert path.exists()
    with owner_files.hold(path):
        pass


def test_that_of_another_machine_counts_as_long_as_it_is_refreshed(held, path):
    process = held(refresh=1000.0)
    process.kill()
    process.wait()
    for age, message in ((100.0, "last seen 10. s ago"), (-90.0, "last seen -.. s ago")):
        change(path, machine="another", refreshed=time.time() - age)
        with pytest.raises(BlockingIOError, match=message), owner_files.hold(path):
            raise AssertionError
    change(path, refreshed=time.time() - owner_files.STALE_SECONDS - 1)
    with owner_files.hold(path):
        pass


def test_who_is_interrupted_before_the_work_begins_leaves_no_file(begin, path):
    process = begin(settle=300.0)
    wait_until(path.exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) != 0
    assert not path.exists()


def test_it_is_refreshed_and_written_again_where_it_was_removed(held, path):
    held()
    before = refreshed(path)
    wait_until(lambda: refreshed(path) > before)
    path.unlink()
    wait_until(path.exists)


def test_who_was_taken_for_gone_finds_that_out_and_leaves_the_file_to_the_other(held, path):
    process = held()
    change(path, refreshed=0.0, machine="another")  # as if it had been stopped for long
    with owner_files.hold(path) as require_mine:
        assert "refused process" in end(process)
        require_mine()
        assert path.exists()


def test_of_two_that_start_at_the_same_moment_one_is_refused(begin, path):
    processes = [begin(settle=2.0), begin(settle=2.0)]
    said = sorted(process.stdout.readline()[:7] for process in processes)
    assert said in (["held\n", "refused"],), said


@pytest.mark.parametrize("content", ["", "[]", '{"token": "a"}', '{"started": "x"}', "\0" * 9])
def test_a_damaged_file_keeps_nobody_out(path, content):
    with path.open("w") as file:
        file.write(content)
    with owner_files.hold(path):
        pass


def test_the_message_says_how_to_override(held, path):
    process = held()
    directory = path.parent
    refused = pytest.raises(ValueError, match="Another process trains in")
    with refused as raised, model_directory.alone_in(directory):
        raise AssertionError
    said = str(raised.value)
    assert f"trains in {directory} (process {process.pid} of " in said
    assert said.endswith(f"another folder. If it no longer runs, remove {path}, or wait 3 minutes.")


def wait_until(holds):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
