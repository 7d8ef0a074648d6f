"""The study of learning curves: what it computes, and a tiny one as a whole."""

import json

import claim
import claim_studies
import learning_curves
import peers
import pytest
import stats

TINY = claim_studies.TINY | {"max_seq_length": 16, "max_predictions_per_seq": 3}
TINY |= {"batch_size": 8, "updates": 6, "warmup_steps": 2, "eval_steps": 4}


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
    losses = curve([6.0, 5.0, 4.0, 4.8, 4.2])
    assert stats.first_at(losses, 4.5, "step") == 250
    assert stats.first_at(losses, 4.5, "seconds") == pytest.approx(2.5)
    assert stats.first_at(losses, 6.5, "step") == 100
    assert stats.first_at(losses, 3.0, "step") is None


def test_the_page_says_how_much_longer_the_peer_takes_and_where_the_bands_overlap():
    ours = [curve([6.0, 5.0, 4.0]), curve([5.8, 5.2, 4.2])]
    theirs = [curve([5.9, 4.9, 3.9], 0.03), curve([6.1, 5.1, 3.8], 0.03)]
    assert learning_curves.comparison(ours, theirs) == ("2.80", "2 of 3", "+0.250 ± 0.112")
    missed = learning_curves.comparison(ours, [curve([6.0, 5.5, 5.0])])
    assert missed == ("not reached by 1", "1 of 3", "-0.900")


@pytest.mark.slow
def test_a_study_goes_on_with_the_side_that_is_missing_and_writes_its_page(tmp_path):
    for peer in ("torch", "transformers", "matplotlib"):
        peers.load(peer)
    settings, results = learning_curves.SETTINGS | TINY, tmp_path / "results.jsonl"
    trial = {"side": "ours", "dropout": 0.1, "seed": 2}
    done = claim_studies.record(trial, settings=settings, curve=curve([6.0, 5.9]))
    results.write_text(json.dumps(done) + "\n")

    def study(*flags):
        flags = ["--dropout=0.1", f"--settings={json.dumps(TINY)}", *flags]
        flags += [f"--data_dir={tmp_path}/data", f"--results={results}", f"--page={tmp_path}/p.md"]
        options = claim.parser(learning_curves.CLAIM, "").parse_args(flags)
        return claim.main(learning_curves.CLAIM, options)

    assert study("--seeds=1") == 0
    first, *new = map(json.loads, results.read_text().splitlines())
    assert first["trial"]["seed"] == 2  # of a study with more seeds
    assert [record["trial"]["side"] for record in new] == ["ours", "peer"]
    for record in new:
        assert record["settings"].items() > TINY.items()
        assert [point["step"] for point in record["curve"]] == [4, 6]
        assert all(point["masked_lm_loss"] < 6 for point in record["curve"])
        assert 0 < record["curve"][0]["seconds"] < record["curve"][1]["seconds"]
    assert "| trials | 2 of 2 done |" in (tmp_path / "p.md").read_text()
    assert (tmp_path / "p.png").stat().st_size > 1000
    assert not list((tmp_path / "data").glob("*_1"))
