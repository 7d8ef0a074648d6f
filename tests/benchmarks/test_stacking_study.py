"""The study of stacking: what it computes, that it goes on, and a tiny one as a whole."""

import json
import os
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
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "batch_size": 8,
    "seconds": 12,
    "mslt_depths": [1, 2],
    "eval_steps": 4,
    "pace_steps": 3,
    "rates": [1e-3, 2e-3],
}
METHODS = ("scratch", "mslt")


@pytest.fixture
def study():
    """The module, which is also a script: its flags are defined once."""
    peers.load("matplotlib")
    import stacking_study

    return stacking_study


def record(method, seed, losses, rate=1e-3, seconds=10.0, depths=(2,), settings=None, every=10):
    """A whole run, evaluated after so many updates and seconds again; the last stage is long."""
    stages = [{"steps": every, "depth": d, "trained": d, "flops": 100 * d} for d in depths]
    stages[-1]["steps"] = 1000
    curve = [
        {
            "step": every * (i + 1),
            "seconds": seconds * (i + 1),
            "stage": min(i, len(depths) - 1),
            "masked_lm_loss": loss,
            "masked_lm_accuracy": 0.2,
        }
        for i, loss in enumerate(losses)
    ]
    return {
        "trial": {"kind": "whole", "method": method, "rate": rate, "seed": seed},
        "settings": settings,
        "wall_seconds": 1.0,
        "machine": {"cpu": "a CPU", "cores": 2, "python": "3"},
        "date": "2026-01-01",
        "stages": stages,
        "curve": curve,
    }


def pace(method, seconds, settings):
    """Seconds of the updates of each stage, as measured before."""
    trial = {"kind": "pace", "method": method, "rate": settings["rates"][0], "seed": 1}
    found = [{"seconds": value, "first_call": 0.0} for value in seconds]
    about = record(method, 1, [6.0], settings=settings)
    return about | {"trial": trial, "curve": [], "pace": found}


def test_the_rate_is_that_of_the_run_with_seed_1_that_ends_lowest_and_its_runs_are_compared():
    import stacking_study_page as page

    records = [
        record("mslt", 1, [6.0, 4.5], rate=1e-3),
        record("mslt", 1, [6.0, 4.4], rate=2e-3),
        record("mslt", 2, [6.0, 3.0], rate=1e-3),
        record("mslt", 2, [6.0, 4.6], rate=2e-3),
        record("scratch", 1, [6.0, 4.9], rate=1e-3),
    ]
    assert page.chosen_rates(records) == {"mslt": 2e-3, "scratch": 1e-3}
    groups = page.compared(records)
    assert list(groups) == ["scratch", "mslt"]
    assert [r["curve"][-1]["masked_lm_loss"] for r in groups["mslt"]] == [4.4, 4.6]


def test_the_levels_follow_from_all_runs_ends_and_from_scratch_before_its_end():
    import stacking_study_page as page

    scratch = record("scratch", 1, [6.0, 5.5, 5.0, 4.5])  # 90 % of 40 s lie at 36 s
    groups = {"scratch": [scratch], "mslt": [record("mslt", 1, [6.0, 5.0, 4.9])]}
    every, most = page.levels(groups).values()
    assert every == 4.9
    assert most == pytest.approx(4.7)


def test_a_level_counts_from_when_the_model_has_all_its_layers():
    import stacking_study_page as page

    grown = record("mslt", 1, [4.0, 5.0, 4.4], depths=(1, 2, 2))
    assert [line["step"] for line in page.full_depth(grown)] == [20, 30]
    assert page.times([grown], 4.7) == [pytest.approx(25.0)]
    assert page.flops_until(grown["stages"], 25) == 10 * 100 + 15 * 200
    assert page.arrivals([grown], 4.0, [{"first_call": 1.0}] * 3) == []
    assert page.level_row("mslt", 1, [], None) == "| MSLT | 0 of 1 | – | – | – | – | – | – |"


def test_a_level_counts_the_tracing_of_the_stages_begun_before_it():
    import stacking_study_page as page

    calls = [{"first_call": seconds} for seconds in (1.0, 2.0, 4.0)]
    grown = record("mslt", 1, [6.0, 5.0, 4.4], depths=(1, 2, 2))
    assert page.arrivals([grown], 5.0, calls) == [(20.0, 3.0, 20, pytest.approx(3e-9))]
    row = page.level_row("mslt", 1, [(20.0, 3.0, 20, 1.0)], [(35.0, 1.0, 30, 2.0)])
    assert row == "| MSLT | 1 of 1 | 20 | 3 | 20 | 1.0 | 1.75 | 2.00 |"


def test_the_page_says_who_is_sooner_and_that_levels_on_the_plateau_say_nothing():
    import stacking_study_page as page

    groups = {
        "scratch": [record("scratch", s, [6.0, 5.0, 4.0 + s / 10]) for s in (1, 2)],
        "mslt": [record("mslt", s, [6.0, 5.0, 4.0], seconds=5.0) for s in (1, 2)],
    }
    (said,) = page.findings(groups)
    assert "4.200 nats after 14 s, training from scratch after 29 s: 2.10 times as long" in said
    assert "its loss is lower by 0.150 ± 0.050 nats" in said
    early = {"scratch": [record("scratch", 1, [6.0, 5.7])], "mslt": [record("mslt", 1, [6.0])]}
    assert "on the plateau" in page.findings(early)[-1]


def test_updates_fill_the_seconds_that_are_left_after_the_first_calls(study):
    settings = study.SETTINGS | TINY
    measured = [{"seconds": s, "first_call": 1.0} for s in (0.1, 0.1, 0.2)]
    # 40 % + 40 % of the updates take 0.1 s, 20 % 0.2 s: 0.12 s each; 12 - 3 s are left.
    assert study.updates_within(settings, "mslt", measured) == 75
    stages = study.stages_of(settings, "mslt", 1e-3, 75)
    assert [stage.steps for stage in stages] == [30, 30, 15]


def test_the_seconds_of_an_update_leave_out_the_first_call(study, tmp_path):
    times = (5.0, 5.2, 5.4, 9.4, 9.8, 10.2)  # two stages of 6 updates, a line every two
    lines = [{"kind": "train", "timing": {"seconds": seconds}} for seconds in times]
    (tmp_path / "log").write_text("\n".join(map(json.dumps, lines)))
    first, second = study.seconds_of_updates(tmp_path / "log", 6)
    assert first == {"seconds": pytest.approx(0.1), "first_call": pytest.approx(4.8)}
    assert second == {"seconds": pytest.approx(0.2), "first_call": pytest.approx(3.6)}


@pytest.mark.slow
def test_a_trial_of_the_pace_measures_every_stage(study, tmp_path, monkeypatch):
    import trials as studies

    settings = study.SETTINGS | TINY
    monkeypatch.setattr(sys, "argv", [study.__file__])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    studies.make_data(tmp_path, settings)
    found = study.run_trial(tmp_path, settings, study.trial("pace", "mslt", 1e-3, 1), {})
    assert [stage["depth"] for stage in found["stages"]] == [1, 2, 2]
    assert [stage["trained"] for stage in found["stages"]] == [1, 1, 2]
    assert all(each["seconds"] > 0 < each["first_call"] for each in found["pace"])


@pytest.mark.slow
def test_a_study_goes_on_with_the_trials_that_are_missing_and_writes_its_page(study, tmp_path):
    settings = study.SETTINGS | TINY
    done = [
        *(pace(m, s, settings) for m, s in zip(METHODS, ([1.0], [0.5, 0.5, 1.0]), strict=True)),
        record("scratch", 1, [6.0, 5.9], rate=1e-3, settings=settings, every=4),
        record("scratch", 1, [6.0, 5.8], rate=2e-3, settings=settings, every=4),
        record("mslt", 1, [6.0, 1.0], settings=settings, depths=(1, 2, 2), every=4),
    ]
    results = tmp_path / "results.jsonl"
    whole = "".join(f"{json.dumps(each)}\n" for each in done)
    results.write_text(whole + '{"trial": {"kind": "whole", "method"')  # what a kill leaves
    command = [sys.executable, "benchmarks/stacking_study.py", "--seeds=2"]
    command += [f"--settings={json.dumps(TINY)}", f"--methods={','.join(METHODS)}"]
    command += [f"--data_dir={tmp_path}/data", f"--results={results}", f"--page={tmp_path}/p.md"]
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert "trial 6 of 8: mslt, rate 0.002, seed 1; about 0 min left" in ran.stdout
    assert results.read_text().startswith(whole)
    new = [json.loads(line) for line in results.read_text().splitlines()[len(done) :]]
    assert [study.name(each["trial"]) for each in new] == [
        "mslt, rate 0.002, seed 1",
        "scratch, rate 0.002, seed 2",
        "mslt, rate 0.001, seed 2",
    ]
    mslt, scratch, _ = new
    assert [stage["steps"] for stage in scratch["stages"]] == [12]
    assert [line["step"] for line in scratch["curve"]] == [4, 8, 12]
    assert sum(stage["steps"] for stage in mslt["stages"]) == 20
    assert mslt["curve"][-1]["stage"] == 2
    text = (tmp_path / "p.md").read_text()
    assert "8 of 8 trials are done" in text
    assert (tmp_path / "p.png").stat().st_size > 1000
    assert not list((tmp_path / "data").glob("whole_*"))
