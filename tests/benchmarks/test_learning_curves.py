"""The study of learning curves: what it computes, that it goes on, and a tiny one as a whole."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import peers
import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # as for a script there

TINY = {
    "vocab_size": 300,
    "documents": 40,
    "max_seq_length": 16,
    "max_predictions_per_seq": 3,
    "hidden_size": 32,
    "intermediate_size": 64,
    "batch_size": 8,
    "updates": 6,
    "warmup_steps": 2,
    "eval_steps": 4,
}


def curve(losses, seconds_an_update=0.01):
    return [
        {
            "step": 100 * (i + 1),
            "seconds": 100 * (i + 1) * seconds_an_update,
            "masked_lm_loss": loss,
            "masked_lm_accuracy": 0.2,
        }
        for i, loss in enumerate(losses)
    ]


def test_a_level_is_reached_on_the_line_between_two_evaluations_for_the_first_time():
    import curves

    losses = curve([6.0, 5.0, 4.0, 4.8, 4.2])
    assert curves.first_at(losses, 4.5, "step") == 250
    assert curves.first_at(losses, 4.5, "seconds") == pytest.approx(2.5)
    assert curves.first_at(losses, 6.5, "step") == 100
    assert curves.first_at(losses, 3.0, "step") is None


def test_the_page_says_how_much_longer_the_peer_takes_and_where_the_bands_overlap():
    import learning_curves_page as page

    ours = [curve([6.0, 5.0, 4.0]), curve([5.8, 5.2, 4.2])]
    theirs = [curve([5.9, 4.9, 3.9], 0.03), curve([6.1, 5.1, 3.8], 0.03)]
    assert page.overlap(ours, theirs) == (2, 3)
    said = page.comparison(ours, theirs, "peer")
    assert "after 3 s, Hugging Face in PyTorch after 7 s: 2.80 times as long" in said
    assert "overlap at 2 of 3 evaluations" in said
    assert "ours − theirs is +0.250 ± 0.112 nats" in said
    missed = page.comparison(ours, [curve([6.0, 5.5, 5.0])], "peer")
    assert "not every trial reaches 4.5 nats" in missed


def command(folder, *more):
    return [
        *(sys.executable, "benchmarks/learning_curves.py", "--seeds=1", "--dropout=0.1"),
        *(f"--settings={json.dumps(TINY)}", f"--data_dir={folder}/data"),
        *(f"--results={folder}/results.jsonl", f"--page={folder}/page.md", *more),
    ]


def study(folder, *more):
    return subprocess.run(
        command(folder, *more),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_a_study_goes_on_with_the_trials_that_are_missing_and_writes_its_page(tmp_path):
    peers.load("torch")
    peers.load("transformers")
    peers.load("matplotlib")
    results = tmp_path / "results.jsonl"
    ours = study(tmp_path, "--sides=ours")
    assert ours.returncode == 0, ours.stderr
    (line,) = results.read_text().splitlines()
    results.write_text(f'{line}\n{{"trial": {{"side": "peer"')  # what a kill leaves
    both = study(tmp_path)
    assert both.returncode == 0, both.stderr
    assert re.search(r"trial 2 of 2: peer, dropout 0.1, seed 1; about \d+ min left", both.stdout)
    first, second = results.read_text().splitlines()
    assert first == line
    for record, side in ((json.loads(first), "ours"), (json.loads(second), "peer")):
        assert record["trial"] == {"side": side, "dropout": 0.1, "seed": 1}
        assert record["settings"].items() > TINY.items()
        assert [point["step"] for point in record["curve"]] == [4, 6]
        assert all(point["masked_lm_loss"] < 6 for point in record["curve"])
        assert 0 < record["curve"][0]["seconds"] < record["curve"][1]["seconds"]
    page = (tmp_path / "page.md").read_text()
    assert "2 of 2 trials are done" in page
    assert (tmp_path / "page.png").stat().st_size > 1000
    assert not list((tmp_path / "data").glob("*_1"))
