"""docs/installing.md, from the results of install_matrix.py.

python benchmarks/installs_page.py
"""

import json
import pathlib

from install_combinations import combinations

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/installs.json"
PAGE = ROOT / "docs/installing.md"

HEAD = """# Installing

In a clone of this repository, in an environment with Python 3.11 to 3.13:

```bash
pip install ".[cpu]"        # the optimizers on TensorFlow; .[gpu] or .[tpu] for these devices
pip install ".[jax]"        # the optimizers on JAX
pip install ".[torch]"      # the optimizers on PyTorch
pip install ".[cpu,bert]"   # the optimizers and BERT: the program lamb-bert
pip install ".[jax,bert]"   # pre-training without TensorFlow: lamb-bert pretrain --engine=jax
```

This needs Keras 3.10 to 3.15 on TensorFlow 2.16.2 to 2.21, JAX 0.6 or newer, or PyTorch 2.13.

[Tested versions](#tested-versions) · [the tests](#the-tests) ·
[older versions of Keras](#older-versions-of-keras)

## Tested versions

Each row is a clean environment that contains only the wheel, the packages named and pytest.
"""

KINDS = {
    "core": "all tests of the optimizers on TensorFlow",
    "short": "the tests of LAMB and LARS",
    "backend": "the tests of the optimizers that run on any backend of Keras",
    "legacy": "`lamb_tf.legacy` and TensorFlow Addons; a warning of older tf_keras is ignored",
    "older": "one step with each excluded version of Keras",
    "command": "`lamb-bert` from text to two training steps and filled blanks",
}

FOOT = """
`make test-installs` repeats all of them and writes this page; `INSTALLS="--only=NAME"` repeats one
row.

Not tested: the extras `[gpu]` and `[tpu]`, for lack of such devices. TensorFlow Addons has wheels
for Python up to 3.11.
"""


def page(entries: list[dict]) -> str:
    """The page of these entries."""
    rows = [
        "| environment | Python | packages | tests | result | date |",
        "|---|---|---|---|---|---|",
    ]
    rows += [_row(entry) for entry in entries]
    rows += _not_run(entries)
    kinds = [f"- **{k}**: {t}" for k, t in KINDS.items() if any(e["tests"] == k for e in entries)]
    tests = ["", "## The tests", "", *kinds, FOOT]
    return "\n".join([HEAD, *rows, *tests, *_older(entries)])


def _not_run(entries):
    """The environments of which there is no result."""
    run = {entry["name"] for entry in entries}
    names = [f"`{one.name}`" for one in combinations() if one.name not in run]
    return ["", f"Not run for this revision: {', '.join(names)}."] if names else []


def _older(entries):
    """The error of each excluded version of Keras, as a section."""
    older = [entry["older"] for entry in entries if "older" in entry]
    lines = [f"| {version} | `{said}` |" for found in older for version, said in found.items()]
    head = [
        "## Older versions of Keras",
        "",
        "One step with a Keras below 3.10 ends with this error:",
        "",
    ]
    return [*head, "| Keras | error |", "|---|---|", *lines, ""] if lines else []


def _row(entry):
    versions = ", ".join(f"{name} {v}" for name, v in entry.get("versions", {}).items())
    cells = [entry["name"], entry["python"], versions, entry["tests"], entry["outcome"]]
    return f"| {' | '.join([*cells, entry['date']])} |"


def write(entries: list[dict]) -> None:
    """Writes the page."""
    PAGE.write_text(page(entries), encoding="utf-8")


if __name__ == "__main__":
    write(json.loads(RESULTS.read_text()))
