"""The study of equal time: its runs, its peer's text, its tables, and tiny trials."""

import dataclasses

import claim_studies
import peers
import pytest
import same_hour

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


def three_updates(run, *_):
    stages = [dataclasses.replace(stage, steps=3, warmup_steps=1) for stage in run.stages]
    return dataclasses.replace(run, stages=tuple(stages), minutes=None)
