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

Python 3.11 to 3.13; Keras 3.10 to 3.15 on TensorFlow 2.16.2 to 2.21, JAX 0.6 or newer, or PyTorch
2.13. With which versions the wheel of `lamb_tf` was installed and tested, the table below says.

```bash
pip install ".[cpu]"        # the optimizers on TensorFlow, in a clone of this repository
pip install ".[jax]"        # … or on JAX; .[torch] on PyTorch
pip install ".[cpu,bert]"   # … and BERT: the program lamb-bert
pip install ".[jax,bert]"   # BERT's pre-training without TensorFlow: run_pretraining --engine=jax
```

Each line below is a clean environment with nothing but the wheel, what the line names, and pytest.
The extras `[gpu]` and `[tpu]` (TensorFlow for these devices) have no line: no such device was at
hand.
"""

KINDS = {
    "core": "all tests of the optimizers on TensorFlow",
    "short": "the tests of LAMB and LARS, where all of them would take over three minutes",
    "backend": "the tests of the optimizers that any backend of Keras runs",
    "legacy": "`lamb_tf.legacy` beside TensorFlow Addons; a warning of older tf_keras is ignored",
    "older": "one update with each version of Keras that is excluded",
    "command": "`lamb-bert` from text to two updates and filled blanks",
}

FOOT = """
`make test-installs` runs all of it again and writes this page; with `INSTALLS="--only=NAME"`, one
line of it. TensorFlow Addons has wheels for Python up to 3.11.
"""


def page(entries: list[dict]) -> str:
    """The page of these entries."""
    rows = [
        "| environment | Python | packages | tests | result | date |",
        "|---|---|---|---|---|---|",
    ]
    rows += [_row(entry) for entry in entries]
    rows += _not_run(entries) + _older(entries)
    kinds = [f"- **{k}**: {t}" for k, t in KINDS.items() if any(e["tests"] == k for e in entries)]
    return "\n".join([HEAD, *rows, "", "Tests:", "", *kinds, FOOT])


def _not_run(entries):
    """The environments of which there is no result."""
    run = {entry["name"] for entry in entries}
    names = [f"`{one.name}`" for one in combinations() if one.name not in run]
    return ["", f"Not run for this revision: {', '.join(names)}."] if names else []


def _older(entries):
    """What each excluded version of Keras says, as further lines."""
    older = [entry["older"] for entry in entries if "older" in entry]
    lines = [f"| {version} | `{said}` |" for found in older for version, said in found.items()]
    head = ["", "Versions of Keras below the lower bound, and what one update says there:", ""]
    return [*head, "| Keras | |", "|---|---|", *lines] if lines else []


def _row(entry):
    versions = ", ".join(f"{name} {v}" for name, v in entry.get("versions", {}).items())
    cells = [entry["name"], entry["python"], versions, entry["tests"], entry["outcome"]]
    return f"| {' | '.join([*cells, entry['date']])} |"


def write(entries: list[dict]) -> None:
    """Writes the page."""
    PAGE.write_text(page(entries), encoding="utf-8")


if __name__ == "__main__":
    write(json.loads(RESULTS.read_text()))
