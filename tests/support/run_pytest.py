"""Runs pytest on the files that Bazel names, as `bazel test //:test_lamb` does."""

import sys

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main(sys.argv[1:]))
