"""Runs Python in namespaces of its own: another file /etc/hosts, and another network.

    python namespaces.py HOSTS NETWORK -m MODULE …

The process keeps its number. Needs root, and one thread.
"""

import ctypes
import os
import runpy
import sys


def _enter(hosts, network):
    """Moves this process, which has one thread, into namespaces of its own."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name, *arguments):
        if getattr(libc, name)(*arguments):
            raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")

    if network:
        with open(f"/var/run/netns/{network}") as space:
            call("setns", space.fileno(), 0x40000000)  # CLONE_NEWNET
    call("unshare", 0x00020000)  # CLONE_NEWNS
    call("mount", None, b"/", None, 0x44000, None)  # MS_REC | MS_PRIVATE
    call("mount", hosts.encode(), b"/etc/hosts", None, 0x1000, None)  # MS_BIND


def _main(hosts, network, *words):
    _enter(hosts, network)
    sys.argv = [*words]
    if words[0] == "-m":
        del sys.argv[0]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(words[0]))
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    _main(*sys.argv[1:])
