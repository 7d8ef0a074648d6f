"""The table of tests of LAMB, LARS and their steps, on JAX and torch; what TensorFlow may lack."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import peers
import pytest
import warm_python

import lamb_tf

TESTS = Path(__file__).parent
ROOT = TESTS.parents[1]
TABLE = [
    "test_optimizers.py",
    "test_lamb.py",
    "test_lars.py",
    "test_orscale.py",
    "test_layerwise.py",
    "test_selection.py",
    "test_multipliers.py",
    "test_slices.py",
    "test_master_weights.py",
    "test_schedules.py",
    "test_telemetry.py",
    "test_gradient_noise.py",
    "test_loss_scale.py",
    "test_float8.py",
]


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_the_same_table_passes_on(backend):
    peers.load(backend)
    # Keras 3.15 asks NumPy for arrays in a way that NumPy 2 deprecates, on these backends.
    ignored = "ignore:__array__ implementation:DeprecationWarning"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", ignored]
    # JAX compiles thousands of programs, and no other process wants them.
    quick = {"JAX_ENABLE_COMPILATION_CACHE": "0"}
    result = subprocess.run(
        command + [str(TESTS / name) for name in TABLE],
        env={**os.environ, "KERAS_BACKEND": backend, **quick},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-1000:]


WITHOUT_PRIVATE_PARTS = """
import builtins, sys
imports, refused = builtins.__import__, []

def without_private_parts(name, globals=None, *args, **kwargs):
    asked_by = (globals or {}).get("__name__", "")
    if asked_by.startswith("lamb_tf") and name.startswith(("tensorflow.python", "tensorflow.comp")):
        refused.append(name)
        raise ImportError(f"No module named {name!r}")
    return imports(name, globals, *args, **kwargs)

builtins.__import__ = without_private_parts
sys.path.insert(0, sys.argv[1])
import numpy as np
import steps
import tensorflow as tf
import lamb_tf

assert refused
weights, gradients = steps.weights_and_gradients(steps=3)
gradients[1][0][0, 0] = np.nan
results = []
for options in (None, {}, {"jit_compile": True}):
    variables, optimizer = steps.make_variables(weights), lamb_tf.LAMB(0.1, weight_decay=0.1)
    optimizer.build(variables)
    step = lambda grads: optimizer.apply(grads, variables)
    if options is not None:
        step = tf.function(step, autograph=False, **options)
    for grads in gradients:
        step([tf.constant(g) for g in grads])
    assert optimizer.skipped_updates.numpy() == 1
    results.append(steps.values(variables))
for result in results[1:]:
    steps.assert_close(results[0], result, rtol=1e-6, atol=1e-7)
"""


def test_no_import_and_no_step_needs_the_private_parts_of_tensorflow():
    result = warm_python.run(
        [sys.executable, "-c", WITHOUT_PRIVATE_PARTS, str(TESTS.parent / "support")],
        env={**os.environ, "KERAS_BACKEND": "tensorflow"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-4000:]


def test_autograph_converts_the_step_of_a_user_and_nothing_of_the_optimizer():
    tf = peers.load("tensorflow")
    converted = set()

    class Watched(lamb_tf.LAMB):
        def coefficients(self, step, finite):
            frames = inspect.stack()
            converted.update(f.function for f in frames if "__autograph_generated" in f.filename)
            return super().coefficients(step, finite)

    variable = keras.Variable(np.ones(3, "float32"))
    for optimizer in (Watched(), lamb_tf.LossScaleOptimizer(Watched())):

        @tf.function
        def train_step(gradient, optimizer=optimizer):
            optimizer.apply([gradient], [variable])

        optimizer.build([variable])
        train_step(tf.ones(3))
    assert converted == {"tf__train_step"}
