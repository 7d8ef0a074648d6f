"""Schedules against their formulas in float64 Python, on the Keras backend that is set."""

import doctest
import json
import math
import re
import runpy
from pathlib import Path

import keras
import numpy as np
import peers
import pytest
import steps

from lamb_tf import schedules
from lamb_tf.schedules import (
    JoinedSchedules,
    WarmupConstant,
    WarmupCosineDecay,
    WarmupExponentialDecay,
    WarmupMultiStepDecay,
    WarmupPolynomialDecay,
    legw,
    linear_scaling,
    sqrt_scaling,
)

DOCS = Path(__file__).parents[2] / "docs"
FLOAT32 = {"rtol": 1e-6, "atol": 1e-12}

# Keras' own conversion of TensorFlow variables to NumPy 2 arrays, when it saves a model.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def warmed(step, decayed, peak, warmup_steps=0, start_warmup_step=0):
    past = step - start_warmup_step
    if past < 0:
        return 0.0
    return peak * past / warmup_steps if past < warmup_steps else decayed


def polynomial(step, peak, total, warmup=0, end=0.0, power=1.0, decay_from="warmup_end", start=0):
    first = max(0, warmup + start) if decay_from == "warmup_end" else 0
    progress = 1.0 if step >= total else (step - first) / max(1, total - first)
    decayed = end + (peak - end) * (1 - progress) ** power if progress >= 0 else None
    return warmed(step, decayed, peak, warmup, start)


def cosine(step, peak, total, warmup=0, end=0.0, decay_from="warmup_end", start=0):
    first = max(0, warmup + start) if decay_from == "warmup_end" else 0
    progress = 1.0 if step >= total else (step - first) / max(1, total - first)
    decayed = end + (peak - end) * 0.5 * (1 + math.cos(math.pi * progress))
    return warmed(step, decayed, peak, warmup, start)


def exponential(
    step, peak, steps, rate, warmup=0, staircase=False, decay_from="warmup_end", start=0
):
    past = step - (max(0, warmup + start) if decay_from == "warmup_end" else 0)
    periods = past // steps if staircase else past / steps
    return warmed(step, peak * rate**periods, peak, warmup, start)


def multi_step(step, peak, boundaries, rate=0.1, warmup=0, start=0):
    passed = sum(step >= boundary for boundary in boundaries)
    return warmed(step, peak * rate**passed, peak, warmup, start)


def constant(step, peak, warmup=0, start=0):
    return warmed(step, peak, peak, warmup, start)


def joined(step, stages):
    """Each stage's own schedule, which has a case of its own, from the stage's first step."""
    for schedule, steps_of_stage in stages[:-1]:
        if step < steps_of_stage:
            return float(schedule(step))
        step -= steps_of_stage
    return float(stages[-1][0](step))


# The paper's mixed-batch training; and stages within a stage.
PHASES = [(WarmupPolynomialDecay(6e-3, 70, 20), 70), (WarmupPolynomialDecay(4e-3, 16, 4), 16)]
NESTED = JoinedSchedules([(WarmupConstant(1.0, 2), 4), (WarmupCosineDecay(1.0, 10), 10)])

CASES = {
    "plain": (WarmupPolynomialDecay, polynomial, (5e-3, 100)),
    "warmup": (WarmupPolynomialDecay, polynomial, (5e-3, 100, 20)),
    "end": (WarmupPolynomialDecay, polynomial, (5e-3, 100, 20, 1e-4, 2.0)),
    "sqrt": (WarmupPolynomialDecay, polynomial, (6e-3, 100, 28, 0.0, 0.5)),
    "google": (WarmupPolynomialDecay, polynomial, (1e-4, 100, 20, 0.0, 1.0, "start")),
    "late": (WarmupPolynomialDecay, polynomial, (1.0, 100, 20, 0.0, 3, "start", 7)),
    "mlperf": (WarmupPolynomialDecay, polynomial, (1, 60, 10, 0, 1, "warmup_end", -4)),
    "gone": (WarmupPolynomialDecay, polynomial, (1, 60, 10, 0, 1, "warmup_end", -40)),
    "all warm-up": (WarmupPolynomialDecay, polynomial, (1.0, 20, 20)),
    "cosine": (WarmupCosineDecay, cosine, (0.5, 100, 20, 0.01)),
    "cosine start": (WarmupCosineDecay, cosine, (0.5, 100, 20, 0.01, "start", 3)),
    "exponential": (WarmupExponentialDecay, exponential, (1.0, 10, 0.7, 15)),
    "exponential start": (WarmupExponentialDecay, exponential, (1, 10, 0.7, 15, False, "start")),
    "stairs": (WarmupExponentialDecay, exponential, (1, 10, 0.7, 15, True, "warmup_end", 2)),
    "multi-step": (WarmupMultiStepDecay, multi_step, (0.8, [30, 60, 80], 0.1, 10)),
    "multi-step early": (WarmupMultiStepDecay, multi_step, (0.8, [30, 60], 0.5, 10, -5)),
    "constant": (WarmupConstant, constant, (0.3, 10, -2)),
    "constant plain": (WarmupConstant, constant, (0.3,)),
    "stages": (JoinedSchedules, joined, (PHASES,)),
    "nested": (JoinedSchedules, joined, ([(NESTED, 14), (WarmupMultiStepDecay(1, [5, 7]), 9)],)),
}


@pytest.mark.parametrize("case", CASES)
def test_every_step_follows_the_formula_also_after_the_schedule_was_saved_as_json(case):
    schedule_class, formula, arguments = CASES[case]
    schedule = schedule_class(*arguments)
    expected = [formula(step, *arguments) for step in range(130)]
    for step in (0, 1, 9, 10, 19, 20, 60, 99, 100, 129):
        np.testing.assert_allclose(float(schedule(step)), expected[step], **FLOAT32)
    config = json.loads(json.dumps(keras.optimizers.schedules.serialize(schedule)))
    again = keras.optimizers.schedules.deserialize(config)
    assert type(again) is schedule_class
    assert again.get_config() == schedule.get_config()
    assert schedule_class.from_config(schedule.get_config()).get_config() == schedule.get_config()
    rates = keras.ops.convert_to_numpy(again(np.arange(130)))
    np.testing.assert_allclose(rates, expected, **FLOAT32)


def all_schedules(step):
    return keras.ops.stack([make(*arguments)(step) for make, _, arguments in CASES.values()])


def test_steps_may_be_any_kind_of_scalar_and_the_rate_is_float32():
    expected = [formula(33, *arguments) for _, formula, arguments in CASES.values()]
    kinds = [33, 33.0, np.int64(33), keras.Variable(33, dtype="int32", trainable=False)]
    kinds += [keras.ops.convert_to_tensor(33, "int32")]
    for step in kinds:
        rates = all_schedules(step)
        assert keras.backend.standardize_dtype(rates.dtype) == "float32"
        np.testing.assert_allclose(keras.ops.convert_to_numpy(rates), expected, **FLOAT32)


@pytest.mark.skipif(steps.BACKEND != "tensorflow", reason="a graph of TensorFlow")
@pytest.mark.parametrize("compiled", [False, True], ids=["graph", "XLA"])
def test_the_rates_are_the_same_in_a(compiled):
    import tensorflow as tf

    rates = tf.function(all_schedules, jit_compile=compiled)(tf.constant(33, tf.int64))
    expected = [formula(33, *arguments) for _, formula, arguments in CASES.values()]
    np.testing.assert_allclose(rates, expected, **FLOAT32)


def test_stages_start_again_from_zero_and_count_their_own_steps():
    longer = JoinedSchedules([(WarmupConstant(1.0), 3), (WarmupConstant(2.0, warmup_steps=2), 5)])
    assert [float(longer(step)) for step in range(7)] == [1, 1, 1, 0, 1, 2, 2]


@pytest.mark.parametrize("steps", [10**6, 2**24 + 1, 10**8, 2**31 - 1])
def test_large_step_numbers_lose_nothing_to_float32(steps):
    """Differences are taken in integers: the end of a long decay is as exact as its start."""
    warmup = steps // 5
    schedule = WarmupPolynomialDecay(1.0, steps, warmup, power=2.0)
    cosine_schedule = WarmupCosineDecay(1.0, steps, warmup)
    exponential_schedule = WarmupExponentialDecay(1.0, steps // 8, 0.5, warmup)
    stages = JoinedSchedules([(WarmupConstant(1.0), steps - 7), (WarmupConstant(1.0, 10), 10)])
    for step in (1, warmup - 1, warmup, warmup + 1, steps // 2, steps - 1000, steps - 3, steps - 1):
        remaining = (steps - step) / (steps - warmup)
        expected = [
            polynomial(step, 1.0, steps, warmup, power=2.0),
            math.sin(math.pi / 2 * remaining) ** 2 if step >= warmup else step / warmup,
            exponential(step, 1.0, steps // 8, 0.5, warmup),
        ]
        rates = [float(each(step)) for each in (schedule, cosine_schedule, exponential_schedule)]
        np.testing.assert_allclose(rates, expected, rtol=1e-6)
    found = [float(stages(steps - 7 + k)) for k in range(7)]
    np.testing.assert_allclose(found, [0.1 * k for k in range(7)], atol=1e-6)


def test_the_largest_numbers_of_steps_that_are_taken_give_the_rate():
    most = 2**31 - 1
    assert float(WarmupConstant(1.0, most)(0)) == 0.0
    assert float(WarmupPolynomialDecay(1.0, most, 5)(7)) == pytest.approx(1.0)
    assert float(WarmupMultiStepDecay(1.0, [most])(10**9)) == 1.0
    last = JoinedSchedules([(WarmupConstant(1.0), most - 1), (WarmupConstant(2.0), most)])
    assert [float(last(step)) for step in (most - 2, most - 1)] == [1.0, 2.0]


def test_sqrt_scaling_gives_the_papers_untuned_rates_and_linear_scaling_its_rule():
    """LAMB paper, untuned: 5 / (2^a · 10³) for BERT and 4 / (2^a · 10²) for ResNet-50."""
    for k, a in enumerate([3.0, 2.5, 2.0, 1.5, 1.0, 0.5, 0.0]):
        batch = 512 * 2**k
        assert sqrt_scaling(batch, 32_768, 5e-3) == pytest.approx(5 / (2**a * 1e3), rel=1e-12)
        assert sqrt_scaling(batch, 512, 5e-3 / 8) == pytest.approx(5 / (2**a * 1e3), rel=1e-12)
        assert sqrt_scaling(batch, 32_768, 4e-2) == pytest.approx(4 / (2**a * 1e2), rel=1e-12)
    assert linear_scaling(8192, 256, 0.1) == pytest.approx(3.2)


def test_legw_gives_the_papers_untuned_warmup_ratios_and_3125_steps():
    """With the run's 512 · 10⁶ examples as the epoch, warm-up ratios are LEGW's epochs."""

    def linear(peak, warmup_steps, steps_per_epoch):
        return WarmupPolynomialDecay(peak, round(steps_per_epoch), warmup_steps)

    for k, batch in enumerate([512 * 2**k for k in range(7)]):
        schedule = legw(batch, 512, 5e-3 / 8, 1 / 320, 512_000_000, decay=linear)
        assert schedule.warmup_steps == 3_125
        assert schedule.total_steps == 1_000_000 // 2**k
        assert schedule.warmup_steps / schedule.total_steps == 2**k / 320
        assert schedule.peak_learning_rate == pytest.approx(5e-3 / 2 ** ((6 - k) / 2))


@pytest.mark.parametrize("num_examples", [929_589, 60_000, 1_281_167, 3_500_001])
def test_legw_warmup_steps_are_constant_whatever_the_batch(num_examples):
    schedules_ = [legw(20 * k, 20, 1.0, 0.3, num_examples) for k in (1, 2, 3, 7, 32, 100, 1000)]
    assert {schedule.warmup_steps for schedule in schedules_} == {round(0.3 * num_examples / 20)}


def test_legw_gives_the_papers_imagenet_rows():
    """From batch 512, rate 2², warm-up 10/2⁶ epochs; the paper's table, and its rule at 32K."""
    images = 1_281_167
    for batch, power, halvings in ((1024, 2.5, 5), (4096, 3.5, 3), (8192, 4, 2), (32_768, 5, 0)):
        schedule = legw(batch, 512, 4.0, 10 / 2**6, images)
        assert schedule.peak_learning_rate == pytest.approx(2**power)
        assert schedule.warmup_steps * batch / images == pytest.approx(10 / 2**halvings, rel=2e-3)


def test_legw_keeps_the_shape_of_the_decay_in_epochs():
    def milestones(peak, warmup_steps, steps_per_epoch):
        boundaries = [round(epoch * steps_per_epoch) for epoch in (30, 60, 80)]
        return WarmupMultiStepDecay(peak, boundaries, 0.1, warmup_steps)

    small = legw(100, 100, 0.1, 1, 10_000, decay=milestones)
    large = legw(400, 100, 0.1, 1, 10_000, decay=milestones)
    assert small.boundaries == [3000, 6000, 8000]
    assert large.boundaries == [750, 1500, 2000]
    assert float(large(800)) == pytest.approx(2 * float(small(3200)))


def stages(*each):
    return JoinedSchedules(list(each))


ONE = WarmupConstant(1.0)
BAD_VALUES = [
    (WarmupPolynomialDecay, (-1.0, 10), "`peak_learning_rate` .* -1.0"),
    (WarmupPolynomialDecay, (math.nan, 10), "peak_learning_rate"),
    (WarmupPolynomialDecay, (1.0, 0), "`total_steps` must be at least 1 .*; got 0"),
    (WarmupPolynomialDecay, (1.0, 10, -1), "`warmup_steps` must be at least 0"),
    (WarmupPolynomialDecay, (1.0, 10, 11), "after total_steps=10"),
    (WarmupPolynomialDecay, (1.0, 10, 5, 0.0, 1.0, "start", 6), "step 11"),
    (WarmupPolynomialDecay, (1.0, 10, 0, 0.0, 0), "`power` must be .*WarmupConstant"),
    (WarmupPolynomialDecay, (1.0, 10, 0, 0.0, -1), "power"),
    (WarmupPolynomialDecay, (1.0, 10, 0, 0.0, 1.0, "end"), "warmup_end"),
    (WarmupCosineDecay, (1.0, 10, 0, -1), "end_learning"),
    (WarmupExponentialDecay, (1.0, 0, 0.5), "decay_steps"),
    (WarmupExponentialDecay, (1.0, 10, 1.5), "`decay_rate` .* 1.5"),
    (WarmupExponentialDecay, (1.0, 2**33, 0.5), "`decay_steps` must be .*below 2.31"),
    (WarmupMultiStepDecay, (1.0, []), "at least one"),
    (WarmupMultiStepDecay, (1.0, [5, 5]), "rising"),
    (WarmupMultiStepDecay, (1.0, [2**33]), "`boundaries` must be .*below 2.31"),
    (WarmupMultiStepDecay, (1.0, [5, 8], 0), "decay_rate"),
    (WarmupMultiStepDecay, (1.0, [5, 8], 0.1, 6), "inside the warm-up"),
    (WarmupConstant, (1.0, 2**31), "`warmup_steps` must be .*below 2.31"),
    (WarmupConstant, (1.0, 10, 2**31 - 10), r"start_.* \+ warmup_steps` "),
    (WarmupConstant, (1e39,), "finite .in float32"),
    (stages, (), "at least one"),
    (stages, ((ONE, 0),), "`steps` must be at least 1"),
    (stages, [(ONE, 2**30)] * 3, "before the last` must be .*below 2.31; got 2147483648"),
    (sqrt_scaling, (0, 256, 0.1), "`batch_size` must be positive .* got 0"),
    (sqrt_scaling, (10**400, 1, 0.1), "`batch_size` must be .* finite"),
    (sqrt_scaling, (4, 1, math.nan), "`base_learning_rate` must be finite"),
    (sqrt_scaling, (1e-300, 1e300, 1.0), "The batches' ratio .* must be finite"),
    (sqrt_scaling, (1e300, 1e-7, 1.0), "the scaled learning rate must be finite .*Check all"),
    (linear_scaling, (math.inf, 1, 0.1), "`batch_size` must be positive and"),
    (linear_scaling, (256, -1, 0.1), "base_batch_size"),
    (linear_scaling, (1e300, 1e-300, 1.0), r"The batches' ratio .*; got 1e\+300 / 1e-300"),
    (linear_scaling, (1e300, 1e-7, 1.0), "the scaled learning rate must be finite"),
    (legw, (8, 4, -1, 1, 10), "base_learning_rate"),
    (legw, (8, 4, 1, 1, math.inf), "num_examples"),
    (legw, (64, 32, 0.1, 1, 0), "num_examples"),
    (legw, (64, 32, 0.1, -1, 100), "base_warmup_epochs"),
    (legw, (8, 4, 1, 10, 10**10), "`warmup_steps` must be .*below 2.31"),
    (legw, (1, 1e-300, 1e-200, 1e10, 10), "`warmup_steps` must be .*below 2.31"),
    (legw, (1e300, 1e-300, 1.0, 1, 10), "The batches' ratio .* must be finite"),
]
BAD_TYPES = [
    (WarmupPolynomialDecay, ("fast", 10), "`peak_learning_rate` .* 'fast'"),
    (WarmupPolynomialDecay, (1.0, 1e3), "`total_steps` .* int"),
    (stages, (ONE,), "pairs of a LearningRateSch"),
    (stages, ((ONE, 1, 2),), "pairs of a LearningRateSch"),
    (stages, ((0.1, 10),), "WarmupConstant"),
    (sqrt_scaling, ("4", 1, 0.1), "^`batch_size` must be a number; got '4'"),
    (sqrt_scaling, (4, "a", 0.1), "`base_batch_size` must be a number"),
    (legw, (8, 4, 1, 1, "10"), "`num_examples` must be a number; got '10'"),
    (legw, (8, 4, 1, 1, 10, "poly"), "`decay` must be a .*'poly'.*For"),
    (legw, (8, 4, 1, 1, 10, ONE), "`decay` must be a function"),
    (legw, (8, 4, 1, 1, 10, lambda *_: None), "returned None. Return a"),
    (legw, (8, 4, 1, 1, 10, lambda *_: 0.1), "`decay` must .*returned 0.1"),
    (legw, (8, 4, 1, 1, 10, lambda *_: WarmupConstant), "returned <class"),
]


@pytest.mark.parametrize(
    ("error", "make", "arguments", "message"),
    [(ValueError, *row) for row in BAD_VALUES] + [(TypeError, *row) for row in BAD_TYPES],
)
def test_bad_values_are_refused_with_what_was_given(error, make, arguments, message):
    with pytest.raises(error, match=message):
        make(*arguments)


def test_a_schedule_is_saved_with_the_optimizer_and_the_model(tmp_path):
    schedule = JoinedSchedules(
        [(WarmupPolynomialDecay(0.1, 6, 2), 6), (WarmupExponentialDecay(0.2, 3, 0.5, 2), 9)]
    )
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(schedule), "mse")
    x, y = np.ones((8, 3), "float32"), np.zeros((8, 2), "float32")
    again = steps.train_on_from_a_file(model, tmp_path, x, y, batch_size=2)
    configs = [each.optimizer.get_config() for each in (model, again)]
    assert configs[0]["learning_rate"] == configs[1]["learning_rate"]
    assert float(again.optimizer.learning_rate) == float(schedule(8)) > 0


def test_the_examples_in_the_docstrings_run():
    assert doctest.testmod(schedules).failed == 0


def test_the_code_of_the_page_runs():
    page = (DOCS / "schedules.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, "docs/schedules.md", "exec"), {})


@pytest.mark.slow
@pytest.mark.skipif(steps.BACKEND != "tensorflow", reason="the figures are those of any backend")
def test_the_figures_of_the_page_are_drawn(tmp_path):
    peers.load("matplotlib")
    runpy.run_path(str(DOCS / "plot_schedules.py"))["main"](tmp_path)
    drawn = {path.name for path in tmp_path.iterdir()}
    shown = set(re.findall(r"\((schedules_\w+\.png)\)", (DOCS / "schedules.md").read_text()))
    assert drawn == shown == {path.name for path in DOCS.glob("schedules_*.png")}
    assert all(path.stat().st_size < 100_000 for path in tmp_path.iterdir())
