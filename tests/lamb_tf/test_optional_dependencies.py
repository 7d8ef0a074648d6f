"""What is installed with the package alone, and what each extra is asked for."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import peers
import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names(requirements):
    return {re.match(r"[a-z0-9-]+", requirement).group() for requirement in requirements}


def python(*arguments, without=(), folder):
    """Runs a Python in which the modules of `without` are not installed."""
    lines = ["import sys", *(f"sys.modules[{name!r}] = None" for name in without)]
    (folder / "sitecustomize.py").write_text("\n".join(lines))
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])},
        cwd=folder,
        capture_output=True,
        text=True,
    )


def test_the_package_alone_installs_what_the_optimizers_need():
    assert names(PROJECT["dependencies"]) == {"keras", "numpy", "h5py", "ml-dtypes"}


def test_every_requirement_of_the_extra_is_looked_for():
    # As the package is checked on import, it is read here without being imported.
    tree = ast.parse((ROOT / "official_bert/__init__.py").read_text())
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    (needed,) = [node.value for node in assigned if node.targets[0].id == "NEEDED"]
    modules = {m for m, extra in ast.literal_eval(needed).items() if extra == "bert"}
    distributions = {
        "absl": "absl-py",
        "google_crc32c": "google-crc32c",
        "ml_dtypes": "ml-dtypes",
    }
    extra = names(PROJECT["optional-dependencies"]["bert"])
    assert {distributions.get(module, module) for module in modules} == extra


def test_the_optimizers_load_nothing_of_bert(tmp_path):
    script = "import sys, lamb_tf; lamb_tf.LAMB(); print(*sys.modules)"
    done = python("-c", script, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    # (Keras itself needs absl.)
    assert {"tokenizers", "sentencex", "google_crc32c"} & set(done.stdout.split()) == set()


@pytest.mark.parametrize("command", ["run_pretraining", "create_pretraining_data", "demo"])
def test_a_command_says_in_a_line_which_extra_it_lacks(tmp_path, command):
    missing = ["sentencex", "tokenizers"]
    done = python("-m", f"official_bert.{command}", "--help", without=missing, folder=tmp_path)
    (line,) = done.stderr.splitlines()
    assert 'pip install "lamb_tf[bert]"' in line
    assert all(name in line for name in missing)
    assert done.returncode == 2
    assert done.stdout == ""


def test_an_import_without_the_extra_raises_the_same_line(tmp_path):
    done = python(
        "-c", "import official_bert", without=["tensorflow", "sentencex"], folder=tmp_path
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: official_bert needs ")
    assert 'pip install "lamb_tf[bert,cpu]"' in last


def test_jax_in_a_bucket_says_that_it_needs_tensorflow_and_not_that_jax_does_without(tmp_path):
    peers.load("tokenizers")  # and with it all else of [bert]
    config = tmp_path / "bert_config.json"
    config.write_text('{"vocab_size": 9, "hidden_size": 4, "num_attention_heads": 1}')
    flags = ["--engine=jax", "--model_dir=gs://b/m", f"--bert_config_file={config}"]
    command = ["-m", "official_bert.run_pretraining", *flags, "--input_files=records"]
    done = python(*command, without=["tensorflow"], folder=tmp_path)
    assert done.stderr.splitlines()[-1] == (
        "run_pretraining: error: gs://b/m/run.json can be read only with TensorFlow, even on JAX: "
        '`pip install "lamb_tf[bert,cpu]"`, or give a path on this machine.'
    )
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("module", "line", "advice"),
    [
        ("tf_keras", "import lamb_tf.legacy", "legacy"),
        ("matplotlib", "from lamb_tf import telemetry; telemetry.plot('log.jsonl')", "plot"),
    ],
)
def test_a_missing_extra_is_named_with_its_command(module, line, advice, tmp_path):
    run = python("-c", line, without=(module,), folder=tmp_path)
    last = run.stderr.splitlines()[-1]
    assert run.returncode == 1
    assert last.startswith("ImportError: ")
    assert f'`pip install "lamb_tf[{advice}]"`' in last
