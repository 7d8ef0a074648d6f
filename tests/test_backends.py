"""The table of tests of LAMB, LARS and their steps, on the Keras backends JAX and torch."""

import os
import subprocess
import sys
from pathlib import Path

import peers
import pytest

TESTS = Path(__file__).parent
TABLE = [
    "test_lamb.py",
    "test_lars.py",
    "test_layerwise.py",
    "test_telemetry.py",
    "test_loss_scale.py",
]


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_the_same_table_passes_on(backend):
    peers.load(backend)
    # Keras 3.15 asks NumPy for arrays in a way that NumPy 2 deprecates, on these backends.
    ignored = "ignore:__array__ implementation:DeprecationWarning"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", ignored]
    result = subprocess.run(
        command + [str(TESTS / name) for name in TABLE],
        env={**os.environ, "KERAS_BACKEND": backend},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-1000:]
