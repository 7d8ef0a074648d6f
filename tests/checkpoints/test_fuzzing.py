"""Some inputs of each kind that `fuzzing` damages; it reads 10,000 of each by hand."""

import json
import random

import fuzz_checkpoints
import fuzzing
import pytest
from fuzz_inputs import KINDS

MANY = [
    pytest.param(kind, 400 if kind == "safetensors" else 200, marks=pytest.mark.slow)
    for kind in fuzz_checkpoints.KINDS
]


@pytest.mark.parametrize(
    ("kind", "count"),
    [*((kind, 40) for kind in KINDS), *MANY],
)
def test_whole_inputs_are_read_and_damaged_ones_are_read_or_refused(tmp_path, kind, count):
    case, allowed = KINDS[kind](tmp_path)
    whole = [fuzzing._outcome(case, allowed, random.Random(-1 - n), warm=True) for n in range(5)]
    assert set(whole) == {"read"}
    outcomes = [fuzzing._outcome(case, allowed, random.Random(n)) for n in range(count)]
    assert set(outcomes) <= {"read", "refused"}
    assert outcomes.count("refused") > (len(outcomes) / 2 if kind in fuzz_checkpoints.KINDS else 0)


def test_the_page_states_the_results_of_the_last_run_which_found_nothing_open():
    results = json.loads(fuzzing.RESULTS.read_text())
    assert fuzzing.table(results["kinds"]) in fuzzing.SECURITY.read_text()
    assert results["kinds"].keys() <= KINDS.keys()
    assert not [kind for kind, entry in results["kinds"].items() if entry["problems"]]
