"""Builds run in this process, except in tests of the worker processes."""

import contextlib

import pytest

from official_bert.data import build_worker, record_builder

PROCESSES = record_builder.Workers._new, record_builder._ask


def start(workers):
    return build_worker.Worker(workers._plan)


def answer(worker, task):
    return worker.part(task) if isinstance(task, build_worker.Part) else worker.shard(task)


def patch_workers(patch, start, answer):
    patch.setattr(record_builder.Workers, "_new", start)
    patch.setattr(record_builder, "_ask", answer)


@pytest.fixture(scope="module", autouse=True)
def workers_in_this_process():
    with pytest.MonkeyPatch.context() as patch:
        patch_workers(patch, start, answer)
        yield


@pytest.fixture
def worker_processes(monkeypatch):
    patch_workers(monkeypatch, *PROCESSES)


@pytest.fixture(scope="session")
def stopped():
    """A context in which a build is interrupted before a task of a kind, after some of them."""

    @contextlib.contextmanager
    def stopped(kind, after=0):
        ask, left = record_builder._ask, after

        def ask_until(worker, task):
            nonlocal left
            left -= isinstance(task, kind)
            if left < 0:
                raise KeyboardInterrupt
            return ask(worker, task)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(record_builder, "_ask", ask_until)
            yield

    return stopped
