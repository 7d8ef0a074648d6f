"""The processes of benchmarks that take turns."""

from pathlib import Path

import turns

SCRIPT = """
import os, sys
sys.path.append({benchmarks!r})
import turns

calls = iter(range(100))

def fails_in_the_fourth_turn():
    print("no answer")
    if next(calls) == 3:
        raise MemoryError()
    return {{"seconds": 1.0}}

turns.take(lambda: turns.offer({{
    "good": lambda: {{"seconds": float(os.environ["SECONDS_OF_IT"])}},
    "late": fails_in_the_fourth_turn,
}}, {{"absent": "why"}}, lambda: {{"good": {{"known": 3}}}}))
"""


def test_a_way_that_fails_in_a_later_turn_leaves_the_others_their_rounds(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(benchmarks=str(Path(turns.__file__).parent)))
    with turns.Worker(str(script), environment={"SECONDS_OF_IT": "2"}) as worker:
        offer = worker.ask("ways")
        result = turns.measure("it", dict.fromkeys(offer["ways"], worker), rounds=3)
        assert worker.ask("after")["good"] == {"known": 3}
    assert offer["left_out"] == {"absent": "why"}
    assert result["seconds"] == {"good": [2.0, 2.0, 2.0]}
    assert result["errors"] == {"late": "MemoryError"}
