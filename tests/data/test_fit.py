"""Counts of a text: repeated lines are found in bounded memory."""

import random
from collections import Counter

from official_bert.data import fit


def test_counts_of_repeated_lines_are_exact_to_the_stated_error_in_bounded_memory(monkeypatch):
    monkeypatch.setattr(fit, "KEPT", 200)
    monkeypatch.setattr(fit, "MANY", 500)
    draw, repeated, true = random.Random(0), fit.RepeatedLines(), Counter()
    for n in range(4000):
        lines = [f"own {n} {k}" for k in range(3)] + ["notice"] * 2
        lines += ["menu"] * (draw.random() < 0.5) + ["rare"] * (draw.random() < 0.02)
        true.update(set(lines))
        repeated.add(lines)
        assert len(repeated._counts) < 20 * fit.KEPT
    found = repeated.summary()
    assert found["repeated_line"] == "notice"
    error = true.total() / fit.KEPT
    assert true["notice"] <= found["repeated_line_documents"] <= true["notice"] + error
    expected = 6 * true["notice"] + 4 * true["menu"]
    assert expected <= found["repeated_line_bytes"] <= expected + 10 * error
