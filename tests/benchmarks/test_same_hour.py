"""The study of equal time: its runs, its peer's text, its tables, and tiny trials."""

import dataclasses

import claim_studies
import peers
import pytest
import same_hour
import same_hour_search as search

from official_bert import demo, recipes
from official_bert.training import budget

TINY = {
    "training_minutes": 0.5,
    "vocab_size": 300,
    "documents": 40,
    "hidden_size": 32,
    "intermediate_size": 64,
    "tokens": 256,
    "eval_steps": 50,
}
VOCABULARY = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"


@pytest.mark.parametrize("arm", same_hour.ARMS)
def test_every_arm_is_a_run_for_the_time(arm, tmp_path):
    (tmp_path / "vocab.txt").write_text(VOCABULARY)
    settings, ingredients = same_hour.SETTINGS, same_hour.ARMS[arm]
    run = same_hour.run_of(tmp_path, settings, ingredients, 7)
    assert run.seed == 7
    assert run.optimizer.type == ingredients["optimizer"]
    assert run.minutes == settings["training_minutes"]
    shares = ingredients.get("batch_shares", (1, 1))
    assert [stage.tokens for stage in run.stages] == [s * settings["tokens"] for s in shares]
    assert run.stages[-1].end_learning_rate == 0


def test_now_is_the_recipe_of_the_demo(tmp_path):
    (tmp_path / "vocab.txt").write_text(VOCABULARY)
    run = same_hour.run_of(tmp_path, same_hour.SETTINGS, same_hour.NOW, 7)
    recipe = recipes.demo()
    assert run.optimizer == recipe.optimizer
    stages = [dataclasses.replace(stage, input_files=()) for stage in run.stages]
    assert stages == list(recipe.stages)
    config = dataclasses.asdict(run.config)
    assert config == dataclasses.asdict(demo.model_config(5))


def test_the_peers_text_is_cut_into_blocks_without_an_end_that_is_too_short():
    def tokenizer(line):
        return {"input_ids": [2, *map(int, line.split()), 3]}

    blocks = same_hour._blocks("10 11\n\n12\n13\n", tokenizer, 4)
    assert [block["input_ids"] for block in blocks] == [[2, 10, 11, 3], [2, 12, 3, 2]]
    assert all(block["attention_mask"] == [1] * 4 for block in blocks)


def test_an_arm_is_compared_with_now_seed_by_seed():
    settings = same_hour.SETTINGS | {"arms": ["before", "now"]}
    losses = {("before", 1): 4.0, ("before", 2): 4.2, ("now", 1): 3.5, ("now", 2): 3.5}
    work = [
        claim_studies.record(
            {"arm": arm, "seed": seed},
            curve=[{"step": 1000, "seconds": 60.0, "masked_lm_loss": loss}],
            report=loss,
            report_accuracy=30.0,
        )
        for (arm, seed), loss in losses.items()
    ]
    head, before, now = same_hour.tables(work, settings)["arms"]
    assert dict(zip(head, before, strict=True)) == {
        "ingredients": "before",
        "updates": "1,000",
        "runs": 2,
        "held-out loss": "4.100 ± 0.141",
        "accuracy": "30.0 ± 0.0 %",
        "less that of now": "+0.600 ± 1.271",
    }
    assert now[-1] == "–"


def test_unknown_arms_are_refused():
    assert "got after" in same_hour.problem(same_hour.SETTINGS | {"arms": ["now", "after"]})
    assert same_hour.problem(same_hour.SETTINGS) is None


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["now", same_hour.PEER])
def test_both_sides_are_scored_on_the_same_rows(arm, tmp_path, monkeypatch):
    for peer in ("torch", "transformers", "accelerate"):
        peers.load(peer)
    settings = same_hour.SETTINGS | TINY
    monkeypatch.setattr(budget, "fix", three_updates)  # no clock of a busy machine
    same_hour.make_data(tmp_path, settings)
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    same_hour.train(tmp_path, model_dir, settings, {"arm": arm, "seed": 1})
    found = same_hour.results_in(model_dir)
    assert 3 < found["report"] < 6  # 5.7: the vocabulary
    if arm == same_hour.PEER:
        assert found["report"] == found["curve"][-1]["masked_lm_loss"]


def of_search(part, method, number=1, seed=1, **values):
    return claim_studies.record(search.trial(part, method, number, seed), **values)


MEASURED = [
    of_search("speed", "muon", update=[0.1, 0.1], once=5.0),
    of_search("speed", "muon", 2, update=[0.3, 0.1], once=20.0),
    of_search("speed", "muon", 3, update=[0.1, 0.2], once=10.0),
]


def test_the_updates_of_a_search_fill_the_minutes_by_the_median_of_the_measurements():
    found = search.fitting(search.SETTINGS, MEASURED)  # 170 s of 0.1 s each, a quarter short ones
    assert found == [425, 1275]
    of_peer = [of_search("speed", search.PEER, update=[0.25], once=0.0)]
    assert search.fitting(search.SETTINGS, of_peer) == [720]


@pytest.mark.parametrize("method", [m for m in search.SETTINGS["rates"] if m != search.PEER])
def test_a_point_of_a_search_is_nows_run_with_other_values(method, tmp_path):
    (tmp_path / "vocab.txt").write_text(VOCABULARY)
    measured = [r | {"trial": r["trial"] | {"method": method}} for r in MEASURED]
    point = search.trial("search", method, 1, 1)
    values = search.values_of(search.SETTINGS, point, measured)
    low, high = search.SETTINGS["rates"][method]
    assert values["rate"] == pytest.approx((low * high) ** 0.5)
    run = search.run_of(tmp_path, search.SETTINGS, point, values)
    now = recipes.demo()
    assert [stage.steps for stage in run.stages] == values["updates"] == [425, 1275]
    assert [stage.tokens for stage in run.stages] == [stage.tokens for stage in now.stages]
    assert [stage.learning_rate for stage in run.stages] == [values["rate"]] * 2
    assert run.stages[-1].warmup_steps == 85
    assert run.minutes is None
    optimizer, momentum = run.optimizer, 1 - values["one_minus_beta_1"]
    assert optimizer.type == method
    assert optimizer.weight_decay == values["weight_decay"]
    assert optimizer.settings.get("momentum", optimizer.beta_1) == momentum


def test_a_search_waits_for_all_measurements_and_its_best_for_the_search():
    speed, point, best = (
        search.trial(part, "muon", number, 1)
        for part, number in [("speed", 1), ("search", 1), ("best", None)]
    )
    assert search.needs(point, search.trial("speed", search.PEER, 3, 1))
    assert search.needs(best, point)
    assert not search.needs(best, search.trial("search", "lamb", 1, 1))
    assert not search.needs(point, search.trial("search", "muon", 2, 1))
    assert not search.needs(speed, point)


def test_what_rests_on_an_older_measurement_or_search_is_run_again():
    settings = search.SETTINGS | {"trials": 2}
    points = [search.trial("search", "muon", number, 1) for number in (1, 2)]
    work = MEASURED + [
        claim_studies.record(
            each, values=search.values_of(settings, each, MEASURED), select=loss, report=loss
        )
        for each, loss in zip(points, (3.5, 3.4), strict=True)
    ]
    more = search.trial("best", "muon", None, 2)
    best = claim_studies.record(more, values=search.values_of(settings, more, work), report=3.4)
    assert best["values"] == work[-1]["values"]
    assert all(search.stands(settings, record, [*work, best]) for record in [*work, best])
    better = [*work[:-2], work[-2] | {"select": 3.3}, work[-1], best]
    assert not search.stands(settings, best, better)
    slower = [r | {"update": [1.0, 1.0]} if "update" in r else r for r in work]
    assert not search.stands(settings, work[-1], slower)
    assert not search.stands(settings, work[-1], work[1:])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["muon", search.PEER])
def test_a_point_is_scored_on_both_halves_of_the_held_out_rows(method, tmp_path):
    for peer in ("torch", "transformers", "accelerate"):
        peers.load(peer)
    names = TINY.keys() - {"eval_steps"}
    settings = search.SETTINGS | {name: TINY[name] for name in names}
    updates = [3] if method == search.PEER else [3, 3]
    same_hour.make_data(tmp_path, settings | {"arms": ["now"]})
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    train = search.train_peer if method == search.PEER else search.train_ours
    point = search.trial("search", method, 1, 1)
    (select, _), (report, _) = train(
        tmp_path, model_dir, settings, point, search.SOME | {"updates": updates}
    )
    assert 3 < select < 7  # 5.7: the vocabulary
    assert 0 < abs(select - report) < 0.5


def three_updates(run, *_):
    stages = [dataclasses.replace(stage, steps=3, warmup_steps=1) for stage in run.stages]
    return dataclasses.replace(run, stages=tuple(stages), minutes=None)
