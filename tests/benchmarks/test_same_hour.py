"""The study of equal time: its runs, its peer's text, its tables, and tiny trials."""

import dataclasses

import claim_studies
import numpy as np
import peers
import pytest
import same_hour
import same_hour_search as search

from official_bert import demo, recipes

TINY = claim_studies.TINY | {"training_minutes": 0.5, "tokens": 256, "evaluations": 2}
VALUES = {"rate": 4e-3, "one_minus_beta_1": 0.05, "weight_decay": 0.1, "updates": None}
GROWING, MASKS = "now with a growing depth", "now with [MASK] only"


@pytest.fixture
def folder(tmp_path):
    """Where the vocabulary is, which is all that a run needs to be made."""
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    return tmp_path


def test_every_arm_is_a_run_with_its_ingredients(folder):
    for arm, ingredients in same_hour.ARMS.items():
        run = same_hour.run_of(folder, search.SETTINGS, {"arm": arm, "seed": 7}, VALUES)
        assert run.seed == 7, arm
        assert run.optimizer.type == ingredients["optimizer"], arm
        shares = ingredients.get("batch_shares", [1] * len(run.stages))
        tokens = [share * search.SETTINGS["tokens"] for share in shares]
        assert [stage.tokens for stage in run.stages] == tokens, arm
        assert run.stages[-1].end_learning_rate == 0, arm


def test_now_has_the_ingredients_of_the_demo(folder):
    run = same_hour.run_of(folder, search.SETTINGS, {"arm": "now", "seed": 7}, VALUES)
    recipe = recipes.demo()
    momentum = run.optimizer.settings["momentum"]
    assert momentum == 0.95
    assert (
        dataclasses.replace(run.optimizer, settings=recipe.optimizer.settings) == recipe.optimizer
    )
    assert [stage.lengths for stage in run.stages] == [stage.lengths for stage in recipe.stages]
    assert [s.warmup_steps for s in run.stages] == [s.warmup_steps for s in recipe.stages]
    config = dataclasses.asdict(run.config)
    assert config == dataclasses.asdict(demo.model_config(5))


def test_the_peers_text_is_cut_into_blocks_without_an_end_that_is_too_short():
    def tokenizer(line):
        return {"input_ids": [2, *map(int, line.split()), 3]}

    blocks = same_hour._blocks("10 11\n\n12\n13\n", tokenizer, 4)
    assert [block["input_ids"] for block in blocks] == [[2, 10, 11, 3], [2, 12, 3, 2]]
    assert all(block["attention_mask"] == [1] * 4 for block in blocks)


def of_search(part, arm, number=1, seed=1, **values):
    return claim_studies.record(search.trial(part, arm, number, seed), **values)


def measured(arm, stages=2):
    """Records of three measurements: 0.1 s an update, 10 s once; the machine is slow in the second.

    An update of "now" takes 0.1 s, 0.3 s on the slow machine.
    """
    of_rounds = [(1, 1.0), (2, 3.0), (3, 1.0)]
    return [
        of_search(
            "speed",
            arm,
            number,
            update=[0.1 * slow] * stages,
            update_of_now=[0.07 * slow, 0.11 * slow],
            once=10.0 * slow,
        )
        for number, slow in of_rounds
    ]


def searched(arm, losses, work):
    """Records of the points of a search with these losses."""
    settings, found = search.SETTINGS, []
    for number, loss in enumerate(losses, 1):
        point = search.trial("search", arm, number, 1)
        values = search.values_of(settings, point, work)
        found.append(claim_studies.record(point, values=values, select=loss, report=loss))
    return found


def test_the_updates_of_a_search_fill_the_minutes_by_the_median_of_the_measurements():
    found = search.fitting(search.SETTINGS, "now", measured("now"))  # 170 s, a quarter short rows
    assert found == {"updates": [425, 1275], "each": [0.1, 0.1], "once": 10.0}
    assert search.minutes_at(found, 425 + 1275) == 3


def test_a_slow_moment_of_the_machine_takes_no_updates_from_an_arm():
    slow = of_search("speed", search.PEER, update=[0.5], update_of_now=[0.2, 0.2], once=0.0)
    work = [*measured("now"), *measured("before"), slow]
    assert search.fitting(search.SETTINGS, search.PEER, work)["updates"] == [720]


def test_a_point_of_a_search_is_nows_run_with_other_values(folder):
    for arm, (low, high) in search.RATES.items():
        if arm == search.PEER:
            continue
        point = search.trial("search", arm, 1, 1)
        values = search.values_of(search.SETTINGS, point, measured(arm))
        assert values["rate"] == pytest.approx((low * high) ** 0.5), arm
        run = same_hour.run_of(folder, search.SETTINGS, point, values)
        assert [stage.steps for stage in run.stages] == values["updates"] == [425, 1275], arm
        assert {stage.tokens for stage in run.stages} == {search.SETTINGS["tokens"]}, arm
        assert [stage.learning_rate for stage in run.stages] == [values["rate"]] * 2, arm
        assert run.stages[-1].warmup_steps == 85, arm
        assert run.minutes is None
        optimizer, momentum = run.optimizer, 1 - values["one_minus_beta_1"]
        assert optimizer.type == same_hour.ARMS[arm]["optimizer"]
        assert optimizer.weight_decay == values["weight_decay"], arm
        assert optimizer.settings.get("momentum", optimizer.beta_1) == momentum, arm


def test_an_ingredient_changes_nows_best_run_in_one_respect(folder):
    for arm in search.SETTINGS["arms"]:
        if arm in search.RATES:
            continue
        work = measured("now") + measured(arm, len(same_hour.ARMS[arm]["stages"]))
        work += searched("now", [3.5, 3.4, 3.6], work)
        point = search.trial("arm", arm, None, 2)
        values = search.values_of(search.SETTINGS, point, work)
        best = search.OF_BEFORE if arm == "before" else work[-2]["values"]
        assert {name: values[name] for name in search.SOME} == {n: best[n] for n in search.SOME}
        run = same_hour.run_of(folder, search.SETTINGS, point, values)
        seconds = sum(0.1 * stage.steps for stage in run.stages)
        assert seconds == pytest.approx(170, abs=0.3), arm
        of_now = search.trial("arm", "now", None, 2)
        assert run != same_hour.run_of(folder, search.SETTINGS, of_now, work[-2]["values"]), arm


def test_a_search_waits_for_all_measurements_and_its_best_for_the_search():
    speed, point, best, ingredient, before = (
        search.trial(part, arm, number, 1)
        for part, arm, number in [
            ("speed", "now", 1),
            ("search", "now", 1),
            ("arm", "now", None),
            ("arm", "now with dropout", None),
            ("arm", "before", None),
        ]
    )
    assert search.needs(point, search.trial("speed", search.PEER, 3, 1))
    assert search.needs(best, point)
    assert search.needs(ingredient, point)
    assert not search.needs(before, point)
    assert not search.needs(best, search.trial("search", search.PEER, 1, 1))
    assert not search.needs(point, search.trial("search", "now", 2, 1))
    assert not search.needs(speed, point)


@pytest.mark.parametrize("arm", ["now", "now with dropout"])
def test_what_rests_on_an_older_measurement_or_search_is_run_again(arm):
    settings = search.SETTINGS | {"trials": 2, "rounds": 3, "arms": list({"now": 0, arm: 1})}
    speeds = measured("now") + (measured(arm) if arm != "now" else [])
    points = searched("now", [3.5, 3.4], speeds)
    more = search.trial("arm", arm, None, 2)
    values = search.values_of(settings, more, speeds + points)
    assert values == points[-1]["values"]
    last = claim_studies.record(more, values=values, report=3.4)
    work = [*speeds, *points, last]
    assert all(search.stands(settings, record, work) for record in work)
    better = [*speeds, points[0] | {"select": 3.3}, points[1], last]
    assert not search.stands(settings, last, better)
    assert not search.stands(settings, last, [*speeds, points[1], last])
    slower = [r | {"update": [1.0, 1.0]} if "update" in r else r for r in work]
    assert not search.stands(settings, last, slower)
    assert not search.stands(settings, points[0], work[1:])


def test_the_tables_of_a_search_begin_with_its_best():
    work = measured("now") + searched("now", [3.5, 3.4, None], measured("now"))
    work = [r | {"report_accuracy": 30.0} for r in work]
    head, now = search.tables(work, search.SETTINGS)["arms"]
    assert dict(zip(head, now, strict=True)) == {
        "ingredients": "now",
        "ms of an update": "100 and 100",
        "updates": "1,700",
        "runs": 1,
        "held-out loss": "3.400",
        "accuracy": "30.0 %",
        "less that of now": "–",
    }
    assert search.tables(work, search.SETTINGS)["best"][1][-1] == "3.40, 3.50, 1 diverged"


def test_a_search_refuses_arms_that_it_cannot_set():
    settings = search.SETTINGS
    assert search.problem(settings) is None
    assert "got before + Muon." in search.problem(settings | {"arms": ["now", "before + Muon"]})
    assert search.problem(settings | {"arms": ["before"]}).endswith("got none.")
    assert "got now." in search.problem(settings | {"rates": {"now": [1e-3, 1e-2]}})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The folder of little text, with the records of the arms that are run here."""
    path = tmp_path_factory.mktemp("data")
    same_hour.make_data(path, search.SETTINGS | TINY | {"arms": [GROWING, MASKS]})
    return path


def test_only_mask_tokens_replace_what_is_predicted(data):
    run = same_hour.run_of(data, search.SETTINGS | TINY, {"arm": MASKS, "seed": 7}, VALUES)
    stage = run.stages[0]
    for held_out in (False, True):
        batch = run.task.batches(
            list(stage.input_files),
            stage.lengths,
            stage.batch_size,
            run.config,
            seed=1,
            shard=(0, 1),
            held_out=held_out,
        )[0]
        there = batch["masked_lm_weights"] > 0
        read = np.take_along_axis(batch["input_ids"], batch["masked_lm_positions"], 1)[there]
        assert np.all(read == 4) != held_out
        assert np.mean(read == 4) > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("arm", [GROWING, search.PEER])
def test_a_point_is_scored_on_both_halves_of_the_held_out_rows(arm, data, tmp_path):
    for peer in ("torch", "transformers", "accelerate"):
        peers.load(peer)
    of_peer = arm == search.PEER
    train = search.train_peer if of_peer else search.train_ours
    updates = {"updates": [3] if of_peer else [3, 3]}
    point = search.trial("search", arm, 1, 1)
    found = train(data, tmp_path, search.SETTINGS | TINY, point, search.SOME | updates)
    assert 3 < found["select"] < 7  # 5.7: the vocabulary
    assert 0 < abs(found["select"] - found["report"]) < 0.5
    assert [point["step"] for point in found["curve"]] == ([1, 2, 3] if of_peer else [2, 3, 4, 6])
