"""Recipes: every number against the papers' arithmetic, every schedule against its formula."""

import functools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from bert_shapes import BASE, LARGE, SMALL

from lamb_tf import schedules
from official_bert import recipes, stacking
from official_bert.stages import Optimizer, Stage
from official_bert.training import flops

TABLE = {  # batch: updates of the LAMB paper's table 1; a in its rate 5 / (2^a · 10³); ratio
    512: (1_000_000, 3.0, 1 / 320),
    1_024: (500_000, 2.5, 1 / 160),
    2_048: (250_000, 2.0, 1 / 80),
    4_096: (125_000, 1.5, 1 / 40),
    8_192: (62_500, 1.0, 1 / 20),
    16_384: (31_250, 0.5, 1 / 10),
    32_768: (15_625, 0.0, 1 / 5),
}


DOCS = Path(__file__).parents[2] / "docs"


def config_of(name):
    if name.startswith("small"):
        return SMALL
    return LARGE if name.startswith("bert_large") else BASE


def steps_of(stages):
    return sum(stage.steps for stage in stages)


def sequences_of(stages):
    return sum(stage.steps * stage.batch_size for stage in stages)


def rates(stages):
    """The rate of some updates over the whole run."""
    schedule = schedules.JoinedSchedules([(stage.schedule(), stage.steps) for stage in stages])
    steps = np.unique(np.linspace(0, steps_of(stages) - 1, 2_001).astype("int64"))
    return steps, np.asarray(schedule(steps))


def run_flops(config, stages):
    return sum(stage.steps * flops.step_flops(config, stage) for stage in stages)


@pytest.mark.parametrize("batch_size", TABLE)
def test_the_batch_table_is_the_papers(batch_size):
    steps, a, warmup_ratio = TABLE[batch_size]
    stages = recipes.bert_large(batch_size).stages
    assert steps_of(stages) == steps
    assert stages[0].learning_rate == pytest.approx(5 / (2**a * 1e3), rel=1e-12)
    assert stages[0].warmup_steps == 3_125 == round(warmup_ratio * steps)
    assert sequences_of(stages) == 512 * 1_000_000  # the same at every batch size
    assert [stage.batch_size for stage in stages] == [batch_size] * 2
    assert stages[0].steps == math.ceil(0.9 * steps)


def test_the_32k_run_has_the_papers_steps_at_each_length():
    first, second = recipes.find("bert_large_32k").stages
    assert (first.steps, first.max_seq_length) == (14_063, 128)
    assert (second.steps, second.max_seq_length) == (1_562, 512)
    assert recipes.find("bert_large") == recipes.find("bert_large_32k")


@pytest.mark.parametrize(
    ("name", "peak", "total", "warmup"),
    [
        ("bert_large_512", 5e-3 / 8, 1_000_000, 3_125),
        ("bert_large_32k", 5e-3, 15_625, 3_125),
        ("bert_base", 5e-3 / 2**1.5, 62_500, 3_125),
        ("bert_base_adamw", 1e-4, 1_000_000, 10_000),
        ("bert_large_adamw", 1e-4, 1_000_000, 10_000),
    ],
)
def test_both_phases_share_one_linear_schedule(name, peak, total, warmup):
    recipe = recipes.find(name)
    steps, rate = rates(recipe.stages)
    whole = schedules.WarmupPolynomialDecay(peak, total_steps=total, warmup_steps=warmup)
    np.testing.assert_allclose(rate, whole(steps), rtol=2e-5, atol=1e-9 * peak)
    assert all(stage.carry_moments for stage in recipe.stages)


def test_bert_bases_recipes_train_on_the_original_number_of_sequences():
    for name in recipes.RECIPES:
        if name.startswith("bert_base"):
            stages = recipes.find(name).stages
            assert sequences_of(stages) == 256 * 1_000_000
            at_128 = [stage for stage in stages if stage.max_seq_length == 128]
            assert sequences_of(at_128) == 0.9 * 256 * 1_000_000


def test_the_mixed_batch_takes_8599_updates_nine_tenths_of_the_sequences_in_the_first_phase():
    first, second = recipes.bert_large_mixed_batch().stages
    assert (first.steps, first.batch_size, first.max_seq_length) == (7_038, 65_536, 128)
    assert (second.steps, second.batch_size, second.max_seq_length) == (1_561, 32_768, 512)
    assert first.steps + second.steps == 8_599
    assert sequences_of([first]) == pytest.approx(0.9 * 512e6, rel=1e-3)
    assert sequences_of([second]) == pytest.approx(0.1 * 512e6, rel=1e-3)


def test_the_mixed_batch_warms_up_again_from_zero():
    stages = recipes.bert_large_mixed_batch().stages
    schedule = schedules.JoinedSchedules([(stage.schedule(), stage.steps) for stage in stages])
    rate = [float(schedule(step)) for step in (7_037, 7_038, 7_138, 7_238, 8_598)]
    decayed = (6e-3 / 5_038, 4e-3 / 1_361)  # one update before the end of each phase
    assert rate == pytest.approx([decayed[0], 0, 2e-3, 4e-3, decayed[1]], rel=1e-5)


def test_nvidias_schedule_is_its_formula():
    # In their code: progress = t / T; progress < warmup: base · progress / warmup, else
    # base · (1 - progress)^0.5.
    stages = recipes.bert_large_nvidia().stages
    expected = []
    for total, base, warmup in ((7_038, 6e-3, 0.2843), (1_563, 4e-3, 0.128)):
        progress = np.arange(total) / total
        expected.append(
            np.where(progress < warmup, base * progress / warmup, base * (1 - progress) ** 0.5)
        )
    steps, rate = rates(stages)
    np.testing.assert_allclose(rate, np.concatenate(expected)[steps], rtol=1e-3)


def test_page_and_docstring_on_schedules_show_the_stages_of_nvidias_recipe():
    wanted = [
        (stage.learning_rate, stage.steps, stage.warmup_steps)
        for stage in recipes.bert_large_nvidia().stages
    ]
    page = Path(__file__).parents[2] / "docs/schedules.md"
    call = r"WarmupPolynomialDecay\((.+), (.+), warmup_steps=(.+), power=0.5\), "
    for text in (page.read_text(), schedules.JoinedSchedules.__doc__):
        shown = re.findall(call, text)
        assert [(float(rate), int(steps), int(warmup)) for rate, steps, warmup in shown] == wanted


def test_nvidias_recipe_adapts_every_tensor_decays_few_and_keeps_moments():
    recipe = recipes.bert_large_nvidia()
    assert recipe.optimizer.exclude_from_layer_adaptation == ()
    assert recipe.optimizer.exclude_from_weight_decay == ("LayerNorm", "bias")
    assert recipe.optimizer.global_clipnorm == 1.0
    assert all(stage.carry_moments for stage in recipe.stages)
    assert [s.max_predictions_per_seq for s in recipe.stages] == [20, 80]


MLPERF = {  # batch: steps, warm-up, rate, β₁, β₂, decay of the result logs
    768: (3_680, 0, 9.6e-4, 0.60466, 0.85437, 0.1),
    8_192: (600, 0, 3.44e-3, 0.7206, 0.78921, 0.1),
    13_888: (480, 290, 3.6e-3, 0.75, 0.9, 0.0167),
}


@pytest.mark.parametrize("batch_size", MLPERF)
def test_the_recipes_of_mlperf_have_the_rates_and_steps_of_its_table(batch_size):
    steps, warmup_steps, rate, *of_optimizer = MLPERF[batch_size]
    recipe = recipes.find(f"bert_large_mlperf_{batch_size}")
    (stage,) = recipe.stages
    assert (stage.steps, stage.batch_size, stage.warmup_steps) == (steps, batch_size, warmup_steps)
    assert (stage.learning_rate, stage.end_learning_rate, stage.decay_power) == (rate, 0.0, 1.0)
    assert (stage.max_seq_length, stage.max_predictions_per_seq) == (512, 76)
    optimizer = recipe.optimizer
    assert [optimizer.beta_1, optimizer.beta_2, optimizer.weight_decay] == of_optimizer
    assert not recipe.use_next_sentence_label
    assert f"{batch_size:,} " in recipes.bert_large_mlperf.__doc__


def test_only_the_adamw_recipes_use_adamw_all_with_the_papers_hyper_parameters():
    for name in recipes.RECIPES:
        optimizer = recipes.find(name).optimizer
        kind = "muon" if name == "demo" else "adamw" if name.endswith("adamw") else "lamb"
        assert optimizer.type == kind
        if "mlperf" in name or name == "demo":  # a log's own values, and those of a study
            continue
        fields = (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon, optimizer.weight_decay)
        # In minutes there is no time for a second moment over thousands of updates.
        assert fields == (0.9, 0.98 if name == "small" else 0.999, 1e-6, 0.01)


# Stacking


@pytest.mark.parametrize(
    ("name", "scratch", "depths"),
    [
        ("bert_base_mslt", "bert_base", (3, 6, 9, 12, 12, 12)),
        ("bert_large_mslt", "bert_large_4k", (6, 12, 18, 24, 24, 24)),
        ("bert_base_progressive_stacking", "bert_base", (3, 6, 12, 12)),
    ],
)
def test_stacked_runs_have_the_updates_and_batches_of_the_run_from_scratch(name, scratch, depths):
    stacked, plain = recipes.find(name).stages, recipes.find(scratch).stages
    assert tuple(stage.depth for stage in stacked) == depths
    for length in (128, 512):
        of_length = [
            [stage for stage in stages if stage.max_seq_length == length]
            for stages in (stacked, plain)
        ]
        assert steps_of(of_length[0]) == steps_of(of_length[1])
        assert sequences_of(of_length[0]) == sequences_of(of_length[1])
    stacking.check(config_of(name), stacked)


def test_mslt_phases_are_equal_and_the_last_fifth_trains_all_layers():
    *partial, at_128, at_512 = recipes.find("bert_base_mslt").stages
    total = 62_500
    assert [stage.steps for stage in partial] == [total / 5] * 4
    assert at_128.steps + at_512.steps == total / 5
    for stage, fields in zip([*partial, at_128], stacking.mslt_plan((3, 6, 9, 12)), strict=True):
        assert (stage.depth, stage.trained_layers, stage.train_embeddings) == (
            fields["depth"],
            fields["trained_layers"],
            fields["train_embeddings"],
        )
        assert stage.warmup_steps / stage.steps == pytest.approx(3_125 / 56_250, rel=1e-2)
        assert not stage.carry_moments
    assert at_512.model_key() == at_128.model_key()
    assert at_512.carry_moments


def test_doubling_trains_all_layers_copies_the_stack_and_resets_the_optimizer():
    *growing, at_512 = recipes.find("bert_base_progressive_stacking").stages
    for stage in growing:
        assert stage.trained_layers is None
        assert stage.train_embeddings
        assert not stage.carry_moments
        assert stage.growth == "copy_stack"
    assert at_512.carry_moments
    shares = [stage.steps / 62_500 for stage in growing]
    assert shares[:2] == pytest.approx([50 / 400, 70 / 400], abs=1e-4)


SHAPE = {"batch_size": 8, "max_predictions_per_seq": 5, "learning_rate": 1.0}


def plan_of(stages):
    return [(stage.steps, stage.warmup_steps, stage.depth) for stage in stages]


def test_any_plan_can_be_made_of_any_run():
    scratch = (Stage(steps=100, warmup_steps=10, max_seq_length=32, **SHAPE),)
    stages = stacking.mslt(scratch, (1, 4), last_share=0.5, growth="fresh")
    assert plan_of(stages) == [(25, 2, 1), (25, 2, 4), (50, 5, 4)]
    assert [stage.growth for stage in stages[:2]] == ["fresh", "fresh"]
    with pytest.raises(ValueError, match="fewer steps than .* 100; got 100"):
        stacking.mslt(scratch, (1, 4), last_share=0.0)
    with pytest.raises(ValueError, match="must leave steps .* got 0.5 and 0.5 of 100 steps"):
        stacking.mslt(scratch, (1, 4), last_share=0.5, first_share=0.5)


def test_a_longer_first_stage_leaves_the_other_partial_stages_the_rest_in_equal_parts():
    scratch = (
        Stage(steps=900, warmup_steps=90, max_seq_length=32, **SHAPE),
        Stage(steps=100, max_seq_length=64, **SHAPE),
    )
    stages = stacking.mslt(scratch, (1, 2, 4), last_share=0.4, first_share=0.3)
    partial = [(300, 30, 1), (150, 15, 2), (150, 15, 4)]
    assert plan_of(stages) == [*partial, (300, 30, 4), (100, 0, 4)]


def test_the_fewer_flops_in_the_docstrings_are_those_of_the_stages():
    base = run_flops(BASE, recipes.find("bert_base").stages)
    assert base == pytest.approx(2.4e19, rel=0.02)
    assert base / 100e12 / 3600 == pytest.approx(67, rel=0.02)  # hours at 100 TFLOP/s
    for name, config, scratch in (
        ("bert_base_mslt", BASE, "bert_base"),
        ("bert_large_mslt", LARGE, "bert_large_4k"),
        ("bert_base_progressive_stacking", BASE, "bert_base"),
    ):
        ratio = run_flops(config, recipes.find(scratch).stages) / run_flops(
            config, recipes.find(name).stages
        )
        assert f"{ratio:.2f}× fewer model FLOPs" in recipes.RECIPES[name].__doc__
        rows = re.findall(rf"^\| `{name}`.*$", (DOCS / "recipes.md").read_text(), re.MULTILINE)
        assert f"{ratio:.2f}× fewer" in rows[-1]


# The table of recipes


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_a_recipe_can_be_trained_and_says_what_it_needs_and_reaches(name):
    stages = recipes.find(name).stages
    stacking.check(config_of(name), stages)
    rates(stages)  # no schedule contradicts itself
    function = recipes.RECIPES[name]
    text = getattr(function, "func", function).__doc__
    if name != "demo":  # whose figures are in the README
        for label in ("Hardware:", "Time:", "Reports:", "Measured here:"):
            assert label in text


def test_the_documents_table_has_every_recipe_with_its_updates_and_batch():
    text = (DOCS / "recipes.md").read_text()
    for name in recipes.RECIPES:
        assert f"`{name}`" in text
        if name.startswith("bert"):
            stages = recipes.find(name).stages
            row = re.search(rf"^\|.*`{name}`.*$", text, re.MULTILINE)[0]
            steps = steps_of([s for s in stages if s.batch_size == stages[0].batch_size])
            assert f"{steps:,} of {stages[0].batch_size:,}" in row


@pytest.mark.parametrize(("config", "depths"), [(BASE, (3, 6, 9, 12)), (LARGE, (6, 12, 18, 24))])
def test_the_documents_figures_of_mslt_are_those_of_its_stages(config, depths):
    text = (DOCS / "stacking.md").read_text()
    for fields in stacking.mslt_plan(depths):
        stage = Stage(
            steps=1,
            batch_size=1,
            max_seq_length=128,
            max_predictions_per_seq=20,
            learning_rate=1.0,
            **fields,
        )
        cells = (
            flops.encoder_flops(config, stage) // flops.layer_flops(config, 128),
            f"{flops.step_flops(config, stage) / 1e9:.1f}",
            f"{flops.reduced_bytes(config, stage) / 1e6:,.1f}",
        )
        assert f"| {' | '.join(map(str, cells))} |" in text


def test_the_names_of_the_batch_table_say_its_batches():
    for name, function in recipes.RECIPES.items():
        if isinstance(function, functools.partial):
            size = name.rpartition("_")[2]
            batch_size = int(size.removesuffix("k")) * (1024 if size.endswith("k") else 1)
            assert {stage.batch_size for stage in function().stages} == {batch_size}


def test_a_recipe_of_ones_own_is_a_function_in_a_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from official_bert import recipes, stacking\n"
        "def shallow():\n"
        "    stages = stacking.mslt(recipes.small().stages, (1, 2), last_share=0.9)\n"
        "    return recipes.Recipe(stages=stages)\n"
        "def wrong():\n"
        "    return ()\n"
    )
    recipe = recipes.find(f"{path}:shallow")
    assert recipe.optimizer == Optimizer()
    assert [stage.depth for stage in recipe.stages] == [1, 2, 2, 2]
    with pytest.raises(ValueError, match=r"must return a recipes\.Recipe; got \(\)"):
        recipes.find(f"{path}:wrong")
    with pytest.raises(ValueError, match=r"a function in .*mine\.py"):
        recipes.find(f"{path}:other")
    with pytest.raises(ValueError, match=r"one of demo, small, .*bert_large_32k"):
        recipes.find("bert")
    with pytest.raises(ValueError, match=r"an existing file; got .*none\.py"):
        recipes.find(f"{tmp_path}/none.py:shallow")


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([{"depth": 12}, {"depth": 6}], "stage 2: depth must be at least .*, 12; got 6"),
        ([{"depth": 6}], "last stage must have 12 encoder layers, .*; got 6"),
        ([{"depth": 3, "trained_layers": (2, 3)}, {}], r"trained_layers of stage 1 .*; got \[3\]"),
        ([{"depth": 3}, {"growth": "copy"}], "stage 2: growth must be one of"),
        ([{"depth": 0}, {}], "stage 1: "),
    ],
)
def test_stages_that_the_model_cannot_go_through_are_refused(stages, message):
    shape = {"steps": 1, "batch_size": 1, "max_seq_length": 8, "max_predictions_per_seq": 1}
    stages = [Stage(learning_rate=1.0, **shape, **fields) for fields in stages]
    with pytest.raises(ValueError, match=message):
        stacking.check(BASE, stages)
