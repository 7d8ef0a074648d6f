"""The study of stacking: what it computes, and a tiny one as a whole."""

import json

import claim
import claim_studies
import peers
import pytest
import stacking_study as study
import stacking_study_tables as results
import trials

TINY = claim_studies.TINY | {"num_hidden_layers": 2, "batch_size": 8, "seconds": 12}
TINY |= {"mslt_depths": [1, 2], "eval_steps": 4, "pace_steps": 3, "rates": [1e-3, 2e-3]}
METHODS = ("scratch", "mslt")


def record(method, seed, losses, rate=1e-3, seconds=10.0, depths=(2,), every=10, **more):
    """A whole run, evaluated at constant intervals of steps and seconds; the last stage is long."""
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
    trial = study.trial("whole", method, rate, seed)
    return claim_studies.record(trial, stages=stages, curve=curve, **more)


def pace(method, seconds, settings):
    """A record of the seconds of a step of each stage."""
    found = [{"seconds": value, "first_call": 0.0} for value in seconds]
    trial = study.trial("pace", method, settings["rates"][0], 1)
    about = record(method, 1, [6.0], settings=settings)
    return about | {"trial": trial, "curve": [], "pace": found}


def test_the_rate_is_that_of_the_run_with_seed_1_that_ends_lowest_and_its_runs_are_compared():
    records = [
        record("mslt", 1, [6.0, 4.5], rate=1e-3),
        record("mslt", 1, [6.0, 4.4], rate=2e-3),
        record("mslt", 2, [6.0, 3.0], rate=1e-3),
        record("mslt", 2, [6.0, 4.6], rate=2e-3),
        record("scratch", 1, [6.0, 4.9], rate=1e-3),
    ]
    assert results.chosen_rates(records) == {"mslt": 2e-3, "scratch": 1e-3}
    groups = results.compared(records)
    assert list(groups) == ["scratch", "mslt"]
    assert [r["curve"][-1]["masked_lm_loss"] for r in groups["mslt"]] == [4.4, 4.6]


def test_the_levels_follow_from_all_runs_ends_and_from_scratch_before_its_end():
    scratch = record("scratch", 1, [6.0, 5.5, 5.0, 4.5])  # 90 % of 40 s lie at 36 s
    groups = {"scratch": [scratch], "mslt": [record("mslt", 1, [6.0, 5.0, 4.9])]}
    every, most = results.levels(groups).values()
    assert every == 4.9
    assert most == pytest.approx(4.7)


def test_a_level_counts_from_when_the_model_has_all_its_layers():
    grown = record("mslt", 1, [4.0, 5.0, 4.4], depths=(1, 2, 2))
    assert [line["step"] for line in results.full_depth(grown)] == [20, 30]
    assert results.times([grown], 4.7) == [pytest.approx(25.0)]
    assert results.flops_until(grown["stages"], 25) == 10 * 100 + 15 * 200
    assert results.arrivals([grown], 4.0, [{"first_call": 1.0}] * 3) == []
    assert results.level_row("mslt", 1, [], None) == ["MSLT", "0 of 1", *"––––––"]


def test_the_tables_say_who_is_sooner_and_by_how_much_the_losses_differ():
    records = [
        *(record("scratch", s, [6.0, 5.0, 4.0 + s / 10]) for s in (1, 2)),
        *(record("mslt", s, [6.0, 5.0, 4.0], seconds=5.0) for s in (1, 2)),
        *(pace(method, [0.5], {"rates": [1e-3]}) for method in METHODS),
    ]
    tables = results.tables(records, {"rates": [1e-3]})
    assert tables["first level"][0][0] == "to 4.200 nats"
    assert tables["first level"][2] == [
        "MSLT",
        "2 of 2",
        *("14 ± 0", "0 ± 0"),
        *("28 ± 0", "0.0 ± 0.0", "2.10", "2.10"),
    ]
    assert [row[5] for row in tables["losses"][1:]] == ["–", "0.150 ± 0.050"]
    assert results.tables(records[-2:], {"rates": [1e-3]}) == {}


def test_updates_fill_the_seconds_that_are_left_after_the_first_calls():
    settings = study.SETTINGS | TINY
    measured = [{"seconds": s, "first_call": 1.0} for s in (0.1, 0.1, 0.2)]
    # 40 % + 40 % of the updates take 0.1 s, 20 % 0.2 s: 0.12 s each; 12 - 3 s are left.
    assert study.updates_within(settings, "mslt", measured) == 75
    stages = study.stages_of(settings, "mslt", 1e-3, 75)
    assert [stage.steps for stage in stages] == [30, 30, 15]


def test_the_seconds_of_an_update_leave_out_the_first_call(tmp_path):
    times = (5.0, 5.2, 5.4, 9.4, 9.8, 10.2)  # two stages of 6 updates, a line every two
    lines = [{"kind": "train", "timing": {"seconds": seconds}} for seconds in times]
    (tmp_path / "log").write_text("\n".join(map(json.dumps, lines)))
    first, second = study.seconds_of_updates(tmp_path / "log", 6)
    assert first == {"seconds": pytest.approx(0.1), "first_call": pytest.approx(4.8)}
    assert second == {"seconds": pytest.approx(0.2), "first_call": pytest.approx(3.6)}


@pytest.mark.slow
def test_a_study_measures_every_stage_runs_at_the_better_rate_and_writes_its_page(
    tmp_path, monkeypatch
):
    """Here, not in processes of their own as those of test_learning_curves.py are."""
    peers.load("matplotlib")

    def in_this_process(command):
        study.train(**json.loads(command[1].removeprefix("--trial=")))
        return 0

    monkeypatch.setattr(trials, "run_child", in_this_process)
    settings = study.SETTINGS | TINY
    done = [
        pace("mslt", [0.5, 0.5, 1.0], settings),
        record("mslt", 1, [6.0, 5.9], rate=1e-3, settings=settings, depths=(1, 2, 2), every=4),
        record("mslt", 1, [6.0, 5.8], rate=2e-3, settings=settings, depths=(1, 2, 2), every=4),
    ]
    path = tmp_path / "results.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in done))
    flags = ["--seeds=2", "--methods=mslt", f"--settings={json.dumps(TINY)}"]
    flags += [f"--data_dir={tmp_path}/data", f"--results={path}", f"--page={tmp_path}/p.md"]
    options = claim.parser(study.CLAIM, "").parse_args(flags)
    assert claim.main(study.CLAIM, options) == 0
    *kept, whole = map(json.loads, path.read_text().splitlines())
    assert kept == done
    assert whole["trial"] == {"kind": "whole", "method": "mslt", "rate": 2e-3, "seed": 2}
    assert sum(stage["steps"] for stage in whole["stages"]) == 20  # 0.6 s each
    assert whole["curve"][-1]["step"] == 20
    assert whole["curve"][-1]["stage"] == 2
    assert "| trials | 4 of 4 done |" in (tmp_path / "p.md").read_text()
    assert (tmp_path / "p.png").stat().st_size > 1000
    measured = study.run(options, settings, study.trial("pace", "mslt", 1e-3, 1), [])
    assert [stage["depth"] for stage in measured["stages"]] == [1, 2, 2]
    assert [stage["trained"] for stage in measured["stages"]] == [1, 1, 2]
    assert all(each["seconds"] > 0 < each["first_call"] for each in measured["pace"])
    assert not list((tmp_path / "data").glob("whole_*"))
