"""Keras' own tests of its optimizers, run on those of lamb_tf."""

import subprocess
import sys
from pathlib import Path

import peers
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks/peer_suites.py"


@pytest.mark.slow
def test_the_suites_of_keras_pass_but_for_the_listed_differences():
    peers.load("keras.src.optimizers.lamb_test")  # not every wheel of Keras contains its tests
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
