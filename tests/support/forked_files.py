"""Runs the tests of each file in a process of their own, forked from the one that collected them.

TensorFlow never frees a program that it has compiled, so a process of many files would grow to
gigabytes. A fork begins with everything imported, and its memory ends with it.
"""

import contextlib
import gc
import multiprocessing
import os
import sys
import warnings
from pathlib import Path

import pytest
import warm_python
from _pytest.runner import runtestprotocol


class ForkedFiles:
    """A pytest plugin for a process that is not to run a test itself.

    Args:
        config: The configuration of pytest.
        most_bytes: Memory of a child after which the next test gets a new one.
    """

    def __init__(self, config, most_bytes=5 << 29):
        self._config, self._most_bytes = config, most_bytes
        self._path = self._pid = self._pipe = None
        config.pluginmanager.register(_Protocol(self))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        # Outside of all other wrappers: a fork does not have the threads that they start.
        if self._pid != 0 and (self._path != item.path or self._is_large()):
            self._end()
            self._begin(item)
        return (yield)

    def pytest_sessionfinish(self):
        self._end()

    def _begin(self, item):
        if "tensorflow" in sys.modules:
            from tensorflow.python.eager import context

            assert not context.context()._initialized, "an imported file ran TensorFlow"
            warm_python.server()
        self._config._tmp_path_factory.getbasetemp()  # made once, for all children
        gc.collect()
        gc.freeze()  # pages that the collector leaves alone stay shared
        ours, theirs = multiprocessing.Pipe()
        with warnings.catch_warnings(action="ignore"):  # from JAX, which has no threads yet
            self._pid = os.fork()
        self._path, self._pipe = item.path, ours if self._pid else theirs
        (theirs if self._pid else ours).close()
        if not self._pid:
            try:
                self._serve(item.session)
            finally:
                os._exit(1)

    def _serve(self, session):
        """In the child: runs the tests that the parent names, until it closes the pipe."""
        while True:
            try:
                index, following = self._pipe.recv()
            except EOFError:
                session._setupstate.teardown_exact(None)
                os._exit(0)
            nextitem = None if following is None else session.items[following]
            item = session.items[index]
            item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)

    def run(self, item, nextitem):
        """Runs a test; in the parent, by way of the child."""
        if self._pid == 0:
            to_data = self._config.hook.pytest_report_to_serializable
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
            self._pipe.send([to_data(config=self._config, report=one) for one in reports])
            return
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports_of_child(item, nextitem):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _reports_of_child(self, item, nextitem):
        items, from_data = item.session.items, self._config.hook.pytest_report_from_serializable
        last = nextitem is None or nextitem.path != item.path
        try:
            self._pipe.send((items.index(item), None if last else items.index(nextitem)))
            data = self._pipe.recv()
        except (EOFError, OSError):
            return [self._crash(item)]
        return [from_data(config=self._config, data=one) for one in data]

    def _crash(self, item):
        ending = os.waitstatus_to_exitcode(self._end())  # below 0: a signal
        return pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords={},
            outcome="failed",
            longrepr=f"the process of {item.path} ended with {ending}",
            when="call",
        )

    def _is_large(self):
        with contextlib.suppress(OSError):
            pages = int(Path(f"/proc/{self._pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE") > self._most_bytes
        return False

    def _end(self):
        """Waits until the child has torn down all fixtures; its wait status."""
        if not self._pid:
            return None
        self._pipe.close()
        _, status = os.waitpid(self._pid, 0)
        self._path = self._pid = None
        return status


class _Protocol:
    """The innermost part of `ForkedFiles`, in the place of pytest's own."""

    def __init__(self, files):
        self._files = files

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem):
        self._files.run(item, nextitem)
        return True
