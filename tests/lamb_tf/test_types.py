"""What a type checker finds in the code of a user of `lamb_tf`."""

import os
import subprocess
import sys
from pathlib import Path

import peers
import pytest

ROOT = Path(__file__).parents[2]
peers.load("mypy")

# Without types of their own, and read by no user's checker: those that `lamb_tf` may import.
CONFIGURATION = """
[mypy]
ignore_missing_imports = true
[mypy-jax.*,torch.*,tensorflow.*]
follow_imports = skip
"""


def errors_in(code, folder):
    """{number of a line: what mypy says of it}."""
    (folder / "users.py").write_text(code)
    (folder / "mypy.ini").write_text(CONFIGURATION)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "users.py"],
        cwd=folder,
        env=os.environ | {"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert not done.stderr
    own = [line for line in done.stdout.splitlines() if line.startswith("users.py:")]
    lines = [line.split(":", 3) for line in own if ": error:" in line]
    return {int(number): text for _, number, _, text in lines}


@pytest.mark.slow
def test_right_use_has_no_errors_and_wrong_arguments_have_one_each(tmp_path):
    right = [
        "import keras",
        "import lamb_tf",
        "model = keras.Sequential([keras.layers.Dense(1)])",
        "model.compile(optimizer=lamb_tf.LAMB(learning_rate=0.01, weight_decay=0.1))",
        "schedule = lamb_tf.schedules.WarmupPolynomialDecay(0.1, 10, 100)",
        "model.compile(optimizer=lamb_tf.LARS(schedule, exclude_from_weight_decay=['bias']))",
        "lamb_tf.LAMB(keras.optimizers.schedules.CosineDecay(0.1, 100))",
        "lamb_tf.LAMB(lambda: 0.1)",
        "lamb_tf.LossScaleOptimizer(lamb_tf.LAMB(0.01))",
    ]
    wrong = [
        'lamb_tf.LAMB(learning_rate="x")',
        'lamb_tf.LAMB(0.01, beta_1="0.9")',
        "lamb_tf.LARS(0.01, momentum=None)",
        "lamb_tf.LAMBDA(0.01)",
    ]
    found = errors_in("\n".join(right + wrong), tmp_path)
    assert set(found) == set(range(len(right) + 1, len(right) + len(wrong) + 1)), found
    assert "learning_rate" in found[len(right) + 1]
