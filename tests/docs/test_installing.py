"""What pyproject.toml and docs/installing.md say is what was installed and tested."""

import json
import re
import tomllib
from pathlib import Path

import install_matrix
import pytest

ROOT = Path(__file__).parents[2]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENTRIES = json.loads(install_matrix.RESULTS.read_text())


def test_every_classifier_of_a_python_is_one_that_passed_and_the_other_way_round():
    named = {c.rpartition(" ")[2] for c in PROJECT["classifiers"] if "Python :: 3." in c}
    passed = {".".join(e["python"].split(".")[:2]) for e in ENTRIES if "passed" in e["outcome"]}
    assert named == passed
    assert PROJECT["requires-python"] == ">=" + min(named, key=lambda v: int(v.split(".")[1]))


def test_no_environment_of_the_page_has_failed():
    tried = [entry for entry in ENTRIES if entry["tests"] != "older"]
    failed = [e["name"] for e in tried if not re.match(r"\d+ (commands )?passed", e["outcome"])]
    assert not failed


def test_versions_of_keras_below_the_lower_bound_do_not_work():
    older = [entry["older"] for entry in ENTRIES if "older" in entry]
    assert not [v for found in older for v, said in found.items() if said == "works"]


def test_the_names_of_the_combinations_are_different():
    names = [combination.name for combination in install_matrix.combinations()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("output", "code", "outcome"),
    [
        (
            "...\n591 passed, 2 skipped, 3 deselected in 391.77s (0:06:31)\n",
            0,
            "591 passed, 2 skipped",
        ),
        ("== 3 failed, 7 passed, 1 warning in 2.0s ==", 1, "failed: 3 failed, 7 passed"),
        ("2 passed in 0.1s\nno\n3 errors in 2.67s", 2, "failed: 3 errors"),
        ("no tests ran in 0.01s", 5, "failed: no tests ran in 0.01s"),
        ("2 skipped in 1.2s", 0, "failed: 2 skipped"),
    ],
)
def test_how_tests_ended_is_read_from_their_last_line(output, code, outcome):
    assert install_matrix.outcome_of(output, code) == outcome


def test_a_python_that_is_not_there_is_told():
    assert install_matrix.interpreter("3.99") is None
    assert install_matrix.interpreter("3.11")
