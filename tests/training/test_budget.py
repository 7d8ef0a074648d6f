"""Wall-clock budgets: the updates that fit, and that they are fixed once and for all."""

import dataclasses
import functools
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import in_process
import numpy as np
import pytest
import small_runs
import tensorflow as tf
import warm_python

from official_bert import recipes, run_classifier, run_pretraining
from official_bert.commands import commands
from official_bert.commands.pretraining_settings import Pretrain
from official_bert.engines.tf_distribute import TfDistribute
from official_bert.model.config import BertConfig
from official_bert.stages import LoopOptions, Optimizer, Run
from official_bert.training import budget, model_directory
from official_bert.training.run_checks import RunRecords
from official_bert.training.trainer import Trainer

FIRST = dataclasses.replace(
    small_runs.SHORT, steps=900, batch_size=8, learning_rate=1e-3, warmup_steps=90
)
SECOND = dataclasses.replace(FIRST, steps=100, warmup_steps=20)
RECIPE = """
from official_bert.recipes import Recipe
from official_bert.stages import Stage

def stages(steps, warmup_steps):
    return (Stage(steps=steps, warmup_steps=warmup_steps, batch_size=8, max_seq_length=32,
                  max_predictions_per_seq=5, learning_rate=1e-3),)

def timed():
    return Recipe(stages=stages(1000, 100), minutes={minutes})

def counted():
    return Recipe(stages=stages({steps}, {warmup_steps}))
"""


def write_recipe(folder, minutes, steps=1, warmup_steps=0):
    path = folder / "recipe.py"
    path.write_text(RECIPE.format(minutes=minutes, steps=steps, warmup_steps=warmup_steps))
    return path


@pytest.fixture
def arguments(small_corpus, tmp_path):
    """The flags of a small run without its recipe and its directory."""
    (tmp_path / "bert_config.json").write_text(small_corpus.config.to_json())
    return [
        f"--bert_config_file={tmp_path / 'bert_config.json'}",
        f"--input_files={small_corpus.train}",
        f"--eval_files={small_corpus.held_out}",
        "--eval_steps=50",
        "--distribution_strategy=off",
        "--train_summary_interval=-1",
        "--save_checkpoints_steps=20",
        "--keep_checkpoint_max=0",
        "--steps_per_loop=10",
    ]


@pytest.mark.parametrize("available", [10.0, 60.0, 3600.0])
def test_the_updates_fill_the_time_in_the_proportions_and_with_the_warmup_of_the_recipe(available):
    stages = budget.fitted((FIRST, SECOND), (0.01, 0.05), available)
    steps = [stage.steps for stage in stages]
    taken = 0.01 * steps[0] + 0.05 * steps[1]
    assert available - 0.06 <= taken <= available  # less than one update more of each would fit
    assert steps[0] == pytest.approx(9 * steps[1], abs=9)
    for stage, before in zip(stages, (FIRST, SECOND)):
        share = before.warmup_steps / before.steps
        assert stage.warmup_steps == pytest.approx(share * stage.steps, abs=0.5)
        changed = {"steps": before.steps, "warmup_steps": before.warmup_steps}
        assert dataclasses.replace(stage, **changed) == before


class Slow(TfDistribute):
    """Takes a time that is known, by its own clock, so a busy machine changes nothing."""

    COMPILES, UPDATES, EVALUATES = 0.1, 0.02, 0.03

    def __init__(self):
        super().__init__(tf.distribute.get_strategy())
        self.slept, self.evaluated = 0.0, 0

    def sleep(self, seconds):
        self.slept += seconds

    def monotonic(self):
        return self.slept

    def training_loop(self, run, model, optimizer):
        compiled = []

        def loop(batches, first_step, steps, state):
            self.sleep(0 if compiled else self.COMPILES)
            compiled.append(True)
            self.sleep(steps * self.UPDATES)
            return state

        return loop

    def evaluation_step(self, task, model):
        def step(batches):
            next(batches)
            self.evaluated += 1
            self.sleep(self.EVALUATES)
            return 0.0

        return step


def three_stages(corpus, minutes, **settings):
    return small_runs.make_run(corpus, (SECOND, FIRST, SECOND), minutes=minutes, **settings)


def evaluated_options(corpus, **settings):
    return LoopOptions(eval_files=(corpus.held_out,), steps_per_loop=100, **settings)


@pytest.mark.parametrize("minutes", [0.02, 0.2])
def test_measuring_takes_a_tenth_of_the_budget_and_shows_what_it_does(
    small_corpus, tmp_path, monkeypatch, minutes
):
    engine, said = Slow(), []
    monkeypatch.setattr(budget, "time", engine)
    run = three_stages(small_corpus, minutes=minutes)
    options = evaluated_options(small_corpus, eval_batch_size=1)
    if minutes < 0.1:  # the evaluations alone take longer: that is found in time, too
        with pytest.raises(ValueError, match=r"minutes must be at least \d.* got 0.02\. .* fewer"):
            budget.fix(run, options, engine, tmp_path, log=said.append)
    else:
        options = dataclasses.replace(options, eval_batch_size=64)
        fixed = budget.fix(run, options, engine, tmp_path, log=said.append)
        seconds = Slow.UPDATES * fixed.total_steps
        assert 0.5 * 60 * minutes < seconds < 60 * minutes
    unavoidable = Slow.COMPILES + 2 * Slow.UPDATES + 2 * Slow.EVALUATES  # of the first stage
    assert engine.slept < 6 * minutes + unavoidable
    assert re.match(r"budget: measuring stage 2 of 3, for at most [\d.]+ s", said[0])
    assert any("estimated from its FLOPs" in line for line in said) or len(said) == 4


def test_more_minutes_than_steps_can_be_counted_are_refused_by_their_name(
    small_corpus, tmp_path, monkeypatch
):
    engine = Slow()
    monkeypatch.setattr(budget, "time", engine)
    run = three_stages(small_corpus, minutes=1e12)
    options = dataclasses.replace(evaluated_options(small_corpus), eval_files=())
    with pytest.raises(
        ValueError, match=r"minutes must be at most .* got 1,000,000,000,000\. Give fewer"
    ):
        budget.fix(run, options, engine, tmp_path)


def test_evaluating_is_measured_by_some_batches_and_reckoned_for_all(
    small_corpus, tmp_path, monkeypatch
):
    engine = Slow()
    monkeypatch.setattr(budget, "time", engine)
    options = evaluated_options(small_corpus, eval_batch_size=32, eval_steps=10)
    stage = dataclasses.replace(FIRST, steps=100, warmup_steps=10)
    run = small_runs.make_run(small_corpus, (stage,), minutes=0.3)
    fixed = budget.fix(run, options, engine, tmp_path, log=lambda line: None)
    batches = RunRecords(run, options, (0, 1)).held_out(stage).num_batches
    assert engine.evaluated <= 10 < batches
    each = Slow.UPDATES + batches * Slow.EVALUATES / 10
    assert 0.85 * 18 < fixed.total_steps * each + batches * Slow.EVALUATES < 18


class Unmeasured(TfDistribute):
    def training_loop(self, run, model, optimizer):
        pytest.fail("measured before all was checked")


@pytest.mark.parametrize(
    ("of_run", "of_options", "resume_from", "message"),
    [
        ({"gradient_accumulation_steps": 3}, {}, None, "multiple of 3 .*; got 8"),
        ({}, {"eval_files": ("nowhere/*",)}, None, "nowhere"),
        ({"init_checkpoint": "nowhere/bert_model.ckpt"}, {}, None, "nowhere"),
        ({"optimizer": Optimizer(freeze=("layer_9",))}, {}, None, "layer_9"),
        ({"config": BertConfig(max_position_embeddings=16)}, {}, None, "max_position_embeddings"),
        ({}, {}, 7, "resume_from .* got 7"),
    ],
)
def test_what_the_loop_would_refuse_is_refused_alike_before_anything_is_measured(
    small_corpus, tmp_path, of_run, of_options, resume_from, message
):
    run = three_stages(small_corpus, minutes=10, **of_run)
    options = LoopOptions(**{"eval_files": (small_corpus.held_out,), **of_options})
    errors = []
    for begin, engine in ((budget.fix, Unmeasured), (Trainer, TfDistribute)):
        place = engine(tf.distribute.get_strategy()), tmp_path / "model"
        with pytest.raises((ValueError, OSError), match=message) as caught:
            begin(run, options, *place, resume_from)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_workers_whose_clocks_differ_make_the_same_number_of_measured_calls():
    """Two threads as two workers: a call, like a question, needs both of them."""
    both, said, made = threading.Barrier(2, timeout=300), [[0.0], [0.0]], [0, 0]

    def work(worker):
        both.wait()
        made[worker] += 1
        time.sleep(0.02 * worker)  # the slower one leaves a call later

    def all_gather(worker, numbers):
        said[worker] = numbers
        both.wait()
        rows = np.array(said)
        both.wait()
        return rows

    def measure(worker):
        ask = functools.partial(all_gather, worker)
        return budget.seconds_of_a_call(lambda _: work(worker), ask, seconds=0.15, calls=2)

    with ThreadPoolExecutor(2) as workers:
        each = list(workers.map(measure, (0, 1)))
    assert made[0] == made[1] >= 2
    assert min(each) * made[0] >= 0.15


def test_a_run_that_has_begun_keeps_its_updates_and_refuses_another_budget(
    small_corpus, tmp_path, arguments, capsys
):
    begun = Run(
        config=small_corpus.config,
        stages=(dataclasses.replace(FIRST, steps=77, warmup_steps=8),),
        optimizer=recipes.Recipe(stages=()).optimizer,
        input_files=(small_corpus.train,),
        minutes=30,
    )
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    model_directory.check(model_dir, begun.config, begun.describe()).write(model_dir, begun.config)
    before = (model_dir / "run.json").read_text()
    asked = dataclasses.replace(begun, stages=(FIRST,))
    assert budget.fix(asked, LoopOptions(), None, model_dir) == begun
    recipe = f"--recipe={write_recipe(tmp_path, minutes=60)}:timed"
    assert call(*arguments, recipe, f"--model_dir={model_dir}") == 2
    error = capsys.readouterr().err
    assert "minutes was 30 and is 60" in error
    assert "stages" not in error  # the updates, which it has from the run, do not differ
    assert (model_dir / "run.json").read_text() == before


def call(*arguments):
    return in_process.call(run_pretraining, Pretrain, arguments)


def test_a_budget_without_a_number_of_minutes_is_refused(arguments, tmp_path, capsys):
    for text, message in {
        **{
            f"budget({text})": f"MINUTES of recipe budget(MINUTES) must be a number above 0; got "
            f"{text!r}. Give for example budget(24)."
            for text in ("", "soon", "0", "nan")
        },
        "bert_base_budget(-1)": "HOURS of recipe bert_base_budget(HOURS) must be a number above 0",
    }.items():
        recipe = f"--recipe={text}"
        assert call(*arguments, recipe, f"--model_dir={tmp_path / 'model'}") == 2
        assert message in capsys.readouterr().err


def test_the_budget_of_the_command_line_is_that_of_small_with_other_updates():
    recipe = recipes.find("budget(12.5)")
    assert recipe == dataclasses.replace(recipes.small(), minutes=12.5)
    of_hours = recipes.find("bert_base_budget(24)")
    assert of_hours.minutes == 24 * 60
    for stage in of_hours.stages:
        assert 0.3 <= stage.max_predictions_per_seq / stage.max_seq_length < 0.31


class Ticks:
    """A clock that each look moves on by a tenth of a second: measuring is always the same."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        self.now += 0.1
        return self.now


def test_minutes_are_a_flag_of_every_run_and_say_what_a_budget_does(arguments, capsys):
    def run(*flags):
        return run_pretraining.run_from_flags(commands.parse(Pretrain, [*arguments, *flags]))

    assert run("--recipe=small", "--minutes=20") == run("--recipe=budget(20)")
    assert run("--minutes=0.5").minutes == 0.5
    with pytest.raises(ValueError, match=r"--minutes: --recipe=budget\(20\) already sets this"):
        run("--recipe=budget(20)", "--minutes=20")


def test_fine_tuning_measures_once_and_gives_every_seed_the_same_schedule(
    small_sentences, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(budget, "time", Ticks())
    (tmp_path / "bert_config.json").write_text(small_sentences.config.to_json())
    flags = [
        f"--bert_config_file={tmp_path / 'bert_config.json'}",
        f"--vocab_file={small_sentences.vocab_file}",
        f"--train_file={small_sentences.train}",
        f"--output_dir={tmp_path / 'output'}",
        "--do_train",
        "--max_seq_length=32",
        "--train_batch_size=10",
        "--distribution_strategy=off",
        "--minutes=0.1",
    ]

    def train(*more):
        return in_process.call(run_classifier, run_classifier.Classify, [*flags, *more])

    assert train("--num_seeds=2") == 0
    assert capsys.readouterr().out.count("budget of 0.1 minutes: steps ") == 1
    runs = [
        json.loads((tmp_path / f"output/seed_{s}/run.json").read_text()) for s in (12345, 12346)
    ]
    stage, of_second = (run["stages"][0] for run in runs)
    assert stage == of_second
    assert stage["steps"] > 5
    assert stage["warmup_steps"] == pytest.approx(0.1 * stage["steps"], abs=0.5)
    assert [run["minutes"] for run in runs] == [0.1, 0.1]
    assert train("--num_seeds=3") == 0  # one more, of the same number of steps
    assert "budget of" not in capsys.readouterr().out
    third = json.loads((tmp_path / "output/seed_12347/run.json").read_text())
    assert third["stages"] == [stage]
    small_runs.forget_after(tmp_path / "output/seed_12345", 0)
    shutil.rmtree(tmp_path / "output/seed_12345/pretrained")
    (tmp_path / "output/seed_12345/checkpoint").unlink()
    assert train("--num_seeds=1") == 0  # killed before its first checkpoint, it begins again
    assert "budget of" not in capsys.readouterr().out
    assert train("--num_seeds=1", "--minutes=5") == 2
    assert "minutes was 0.1 and is 5.0" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_run_with_a_budget_goes_on_as_one_of_the_number_of_updates_that_it_had_fixed(
    arguments, tmp_path
):
    """Killed, resumed and killed again, beside one that was given that number to begin with."""
    timed = [f"--recipe={write_recipe(tmp_path, 10)}:timed", f"--model_dir={tmp_path / 'timed'}"]
    kill_at([*arguments, *timed], tmp_path / "timed", 20)
    described = (tmp_path / "timed" / "run.json").read_text()
    (fixed,) = json.loads(described)["stages"]
    assert fixed["steps"] > 100  # beyond the last kill, on a busy machine too
    kill_at([*arguments, *timed], tmp_path / "timed", 60)
    assert (tmp_path / "timed" / "run.json").read_text() == described

    recipe = write_recipe(tmp_path, 10, fixed["steps"], fixed["warmup_steps"])
    counted = [f"--recipe={recipe}:counted", f"--model_dir={tmp_path / 'counted'}"]
    kill_at([*arguments, *counted], tmp_path / "counted", 60)
    expected, found = (tensors_of(tmp_path / folder, 60) for folder in ("counted", "timed"))
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def kill_at(arguments, model_dir, step):
    """Runs the command until the checkpoint of `step` is whole, then kills it."""
    with warm_python.Popen(
        [sys.executable, "-m", "official_bert.run_pretraining", *arguments],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    ) as process:
        while not list(model_dir.glob(f"ctl_step_{step}.*.json")) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


def tensors_of(model_dir, step):
    import tensorflow as tf

    (index,) = model_dir.glob(f"ctl_step_{step}.*.index")
    reader = tf.train.load_checkpoint(str(index.with_suffix("")))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
