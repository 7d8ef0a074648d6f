"""A few hundred inputs of each kind that `fuzzing` damages; it reads 10,000 of each by hand."""

import json

import fuzzing
import pytest
from fuzz_inputs import KINDS


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_inputs_are_read_or_refused_within_bounds(kind):
    report = fuzzing.fuzz(kind, 300)
    assert not report.problems
    assert report.count == 300
    assert report.refused > 30


def test_the_page_states_the_results_of_the_last_run_which_found_nothing_open():
    results = json.loads(fuzzing.RESULTS.read_text())
    assert fuzzing.table(results["kinds"]) in fuzzing.SECURITY.read_text()
    assert results["kinds"].keys() <= KINDS.keys()
    assert not [kind for kind, entry in results["kinds"].items() if entry["problems"]]
