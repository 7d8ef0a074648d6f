"""README.md keeps its word: its Python runs, and its commands are those that .ci/run runs."""

import re
import shlex
from pathlib import Path

import keras

import lamb_tf

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
TARGETS = ("browser", "lint", "test", "test-oldest", "test-beam", "docs", "demo")


def code_blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands(script):
    """The commands of a shell script, one list of words each, without comments."""
    return [words for line in script.splitlines() if (words := shlex.split(line, comments=True))]


def test_the_line_of_use_compiles_a_model():
    line = code_blocks("python")[0]
    assert line.count("\n") == 1
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    exec(line, {"model": model, "lamb_tf": lamb_tf})
    assert isinstance(model.optimizer, lamb_tf.LAMB)


def test_lamb_learns_in_the_example():
    _, example = code_blocks("python")
    assert len([line for line in example.splitlines() if line]) <= 11
    namespace = {}
    exec(compile(example, "README.md", "exec"), namespace)
    accuracy = namespace["history"].history["accuracy"]
    assert accuracy[0] < 0.8 < 0.9 < accuracy[-1]


def test_the_readme_is_read_in_a_minute():
    """At most 250 lines, and 25 numbers to the end of the example (addresses do not count)."""
    assert len(README.splitlines()) <= 250
    first = re.sub(r"\]\([^)]*\)", "]", README[: README.index("history = model.fit")])
    assert len(re.findall(r"\d[\d.,]*(?:e-?\d+)?", first)) <= 25


def test_ci_runs_the_commands_of_the_readme():
    (checks,) = [c for b in code_blocks("bash") if ["make", "lint"] in (c := commands(b))]
    in_ci = [c[:2] for c in commands((ROOT / ".ci/run").read_text()) if c[0] == "make"]
    assert in_ci == checks == [["make", target] for target in TARGETS]


def test_every_make_command_of_the_documents_is_a_target():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for document in (README, (ROOT / "CONTRIBUTING.md").read_text()):
        for block in re.findall(r"^```bash\n(.*?)^```", document, re.MULTILINE | re.DOTALL):
            assert {c[1] for c in commands(block) if c[0] == "make"} <= targets
