"""A file is there whole or not at all."""

import contextlib
import io
import os
import re
from pathlib import Path

import pytest

from official_bert.system import whole_files
from official_bert.system.places import RemotePath


def test_a_file_appears_when_its_block_ends(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("before")
    with whole_files.whole_file(path) as file:
        file.write(b"after")
        file.flush()
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_an_error_leaves_what_was_there_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("before")

    def chunks():
        yield b"after"
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space left"):
        whole_files.write_whole(path, chunks())
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_at_an_address_only_an_incomplete_file_is_removed(tmp_path, monkeypatch):
    path = RemotePath(f"file://{tmp_path}/a.txt")
    whole_files.write_whole(path, [])
    assert path.read_bytes() == b""
    whole_files.write_text(path, "before")

    def chunks():
        yield b"after"
        raise OSError("No space left on device")

    def open_then_fail(self, mode):
        @contextlib.contextmanager
        def file():
            yield io.BytesIO()
            raise OSError("cannot be reached")  # when it is uploaded: what was there stays

        return file()

    with monkeypatch.context() as patch:
        patch.setattr(RemotePath, "open", open_then_fail)
        with pytest.raises(OSError, match="cannot be reached"):
            whole_files.write_text(path, "after")
    assert path.read_bytes() == b"before"
    with pytest.raises(OSError, match="No space left"):
        whole_files.write_whole(path, chunks())
    assert not path.exists()


def test_a_file_is_renamed_only_once_its_data_are_on_the_disk(tmp_path, monkeypatch):
    done = []
    replace, fsync = os.replace, os.fsync
    monkeypatch.setattr("os.fsync", lambda file: done.append("sync") or fsync(file))
    monkeypatch.setattr("os.replace", lambda *paths: done.append("rename") or replace(*paths))
    whole_files.write_text(tmp_path / "a.txt", "é")
    assert done == ["sync", "rename"]
    assert (tmp_path / "a.txt").read_bytes() == "é".encode()


def test_no_other_room_renames_syncs_or_locks_files_by_itself():
    root = Path(__file__).parents[2]
    found = {
        path.name
        for folder in ("official_bert", "lamb_tf", "benchmarks")
        for path in (root / folder).rglob("*.py")
        if re.search(r"\bos\.(replace|rename|fsync)\b|\bfcntl\b", path.read_text())
    }
    assert found == {"whole_files.py", "locks.py"}
