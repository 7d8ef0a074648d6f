"""Any optimizer trains any task on any engine, from the same state to the same weights."""

import dataclasses
import pathlib
import re
import signal

import jax_training
import keras
import numpy as np
import optimizer_runs
import pytest
import small_sentences as sentences
import small_squad as questions
import tensorflow as tf
from small_runs import (
    LONG,
    SHORT,
    assert_same,
    begin,
    final_tensors,
    log_lines,
    make_run,
    train,
    without_dropout,
)
from two_replicas import two_replicas

from official_bert import report
from official_bert.engines.tf_distribute import TfDistribute
from official_bert.stages import Optimizer
from official_bert.training import model_state, run_checks

SCALED = f"{__name__}:Scaled"
KINDS = ("lamb", "adamw", "lars", "orscale", "muon", "keras.optimizers:Adam")
# Keras' Adam is compared on sentences below.
TABLE = [
    *((kind, "pre-training") for kind in KINDS),
    *((kind, "classification") for kind in ("lamb", "adamw", "orscale", "muon")),
    *((kind, "questions") for kind in ("adamw", "lars", "orscale", "muon")),
]
CLIPPED = {"type": "keras.optimizers:Adam", "global_clipnorm": 0.01}
DIVIDED = [(1, CLIPPED), (2, CLIPPED)]


def run_of(request, task, optimizer, **changed):
    stage = {"steps": 3, "batch_size": 8, "learning_rate": 1e-3, "warmup_steps": 0}
    if task == "pre-training":
        corpus = request.getfixturevalue("small_corpus")
        run = make_run(corpus, [SHORT])
    elif task == "classification":
        run = sentences.make_run(request.getfixturevalue("small_sentences"))
    else:
        run = questions.make_run(request.getfixturevalue("small_questions"))
    stages = (dataclasses.replace(run.stages[0], **stage),)
    optimizer = Optimizer(**optimizer)
    config = without_dropout(run.config)
    return dataclasses.replace(run, config=config, stages=stages, optimizer=optimizer, **changed)


def overflowing(request):
    """A run whose scaled gradients are infinite."""
    changed = {"dtype": "fp16", "loss_scale": "1e30"}
    return run_of(request, "classification", {"type": "muon"}, **changed)


@pytest.fixture(scope="module")
def table_on_jax(request, tmp_path_factory):
    """Results of `optimizer_runs.three_updates` on JAX, all from one process."""
    runs = {(kind, task): (run_of(request, task, {"type": kind}), 1) for kind, task in TABLE}
    return optimizer_runs.on_jax(runs, tmp_path_factory.mktemp("table_on_jax"))


@pytest.fixture(scope="module")
def on_jax(request, tmp_path_factory):
    """The same of some other runs."""
    runs = {n: (run_of(request, "classification", kind), n) for n, kind in DIVIDED}
    runs |= {"overflow": (overflowing(request), 1)}
    return optimizer_runs.on_jax(runs, tmp_path_factory.mktemp("on_jax"))


def on_tensorflow(run, folder, strategy=None):
    engine = TfDistribute(strategy or tf.distribute.get_strategy())
    return optimizer_runs.three_updates(run, engine, folder / "checkpoints")


def weights(tensors):
    """All but biases that a softmax takes out again: their gradients are round-off."""
    idle = "attention/self/key/bias", "cls/squad/output_bias"
    return {n: v for n, v in tensors.items() if not model_state.is_slot(n) and not n.endswith(idle)}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "task"), TABLE)
def test_a_resumed_run_has_the_same_bits_and_the_engines_agree(
    request, table_on_jax, tmp_path, kind, task
):
    before, one_go, resumed = on_tensorflow(run_of(request, task, {"type": kind}), tmp_path)
    assert_same(one_go, resumed)
    before_on_jax, on_jax, resumed_on_jax = table_on_jax[kind, task]
    assert_same(on_jax, resumed_on_jax)
    assert_same(weights(before), weights(before_on_jax))
    assert on_jax.keys() == one_go.keys()
    assert_same(weights(one_go), weights(on_jax), rtol=1e-4, atol=1e-5)
    assert one_go["optimizer/iterations"] == on_jax["optimizer/iterations"] == 3
    moved = [n for n, v in weights(one_go).items() if not np.array_equal(v, before[n])]
    assert len(moved) > len(weights(one_go)) / 2


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "kinds"), [("tensorflow", KINDS[3:]), ("jax", KINDS)])
def test_a_killed_run_of_any_optimizer_resumes_to_the_same_bits(
    small_corpus, tmp_path, backend, kinds
):
    jobs = [
        jax_training.job(
            small_corpus,
            tmp_path / f"{number}",
            stages=[{"steps": 12}],
            optimizer={"type": kind},
            options={"steps_per_loop": 1},
        )
        for number, kind in enumerate(kinds)
    ]
    for job in jobs:
        killed = jax_training.run_process([job | {"killed_at": 8}], tmp_path, backend=backend)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    in_one_go = [job | {"model_dir": f"{job['model_dir']}_in_one_go"} for job in jobs]
    done = jax_training.run_process(jobs + in_one_go, tmp_path, backend=backend)
    assert done.returncode == 0, done.stderr
    for resumed, whole in zip(jobs, in_one_go):
        folders = [pathlib.Path(job["model_dir"]) for job in (resumed, whole)]
        assert_same(*map(final_tensors, folders))
        assert log_lines(folders[0]) == log_lines(folders[1])


def test_two_replicas_clip_the_summed_gradient_as_one_does(request, on_jax, tmp_path):
    run = run_of(request, "classification", CLIPPED)
    ends = [
        on_tensorflow(run, tmp_path / "one")[1],
        on_tensorflow(run, tmp_path / "two", two_replicas())[1],
        *(on_jax[devices][1] for devices, _ in DIVIDED),
    ]
    beta = 0.999
    norms = (1 - beta) * CLIPPED["global_clipnorm"] ** 2 * (1 + beta + beta**2)
    for end in ends:
        velocities = [v for n, v in end.items() if n.endswith("/velocity")]
        assert sum(v.sum() for v in velocities) == pytest.approx(norms, rel=1e-3)
        assert_same(weights(ends[0]), weights(end), rtol=1e-4, atol=1e-5)


def test_a_gradient_that_is_not_finite_changes_nothing(request, on_jax, tmp_path):
    for strategy in None, two_replicas():
        name = "two" if strategy else "one"
        before, after, _ = on_tensorflow(overflowing(request), tmp_path / name, strategy)
        assert after.pop("optimizer/skipped_updates") == 3
        assert_same(before | after, before)
    before, after, _ = on_jax["overflow"]
    assert after.pop("optimizer/skipped_updates") == 3
    assert_same(before | after, before)


# State


def test_slots_are_carried_to_a_larger_model_and_others_start_again(small_corpus, tmp_path, capsys):
    config = dataclasses.replace(small_corpus.config, num_hidden_layers=2)
    stages = [dataclasses.replace(SHORT, steps=2, depth=1), dataclasses.replace(SHORT, steps=2)]
    said = {}
    for kind in "keras.optimizers:Nadam", "orscale", SCALED:
        run = make_run(small_corpus, stages, config=config, optimizer=Optimizer(type=kind))
        trained = train(run, tmp_path / kind)
        said[kind] = capsys.readouterr().out
    for kind, scalar_slots in [("keras.optimizers:Nadam", 0), ("orscale", 2 * 6 + 2)]:
        found = re.search(r"moments: carried (\d+) of (\d+)", said[kind]).groups()
        carried, slots = map(int, found)
        assert slots - carried == scalar_slots
    again = "start again, as they are not shaped like a variable: optimizer/"
    assert again not in said["keras.optimizers:Nadam"]
    assert f"{again}bert/" in said["orscale"]
    assert f"{again}scale" in said[SCALED]  # 1, and the steps of the last stage
    assert {float(scale.value) for scale in trained.optimizer.scales} == {3.0}


def test_slots_that_begin_as_the_weights_follow_an_initial_checkpoint(small_corpus, tmp_path):
    optimizer = Optimizer(type="keras.optimizers:ScheduleFreeAdamW")
    train(make_run(small_corpus, [SHORT]), tmp_path / "first")
    start = str(tmp_path / "first")
    run = make_run(small_corpus, [SHORT], optimizer=optimizer, init_checkpoint=start)
    begun = begin(run, tmp_path / "second")
    for variable in begun.model.trainable_variables:
        slot = begun.optimizer.slots(variable)["momentum"]
        np.testing.assert_array_equal(slot.numpy(), variable.numpy())


def test_slots_that_are_copies_of_the_weights_follow_repeated_positions(small_corpus, tmp_path):
    stages = [SHORT, dataclasses.replace(LONG, new_positions="repeat")]
    optimizer = Optimizer(type="keras.optimizers:ScheduleFreeAdamW")
    begun = begin(make_run(small_corpus, stages, optimizer=optimizer), tmp_path)
    (table,) = (v for v in begun.model.weights if v.path.endswith("position_embeddings"))
    both = [table, begun.optimizer.slots(table)["momentum"]]
    before = [variable.numpy() for variable in both]
    begun._change_stage(1)
    for variable, values in zip(both, before, strict=True):
        expected = np.concatenate([values[:32], values[32:] + values[:32]])
        np.testing.assert_array_equal(variable.numpy(), expected)


def test_moments_come_from_a_run_of_the_same_optimizer_only(small_corpus, tmp_path):
    muon, stage = Optimizer(type="muon"), dataclasses.replace(SHORT, steps=2)
    run = make_run(small_corpus, [stage], optimizer=muon)
    trained = train(run, tmp_path / "muon")
    (data,) = (tmp_path / "muon").glob("ctl_step_2*.data-*")
    size = run_checks.checkpoint_bytes(run, stage, trained.optimizer)
    assert size == pytest.approx(data.stat().st_size, rel=0.01)
    start = {"init_checkpoint": str(tmp_path / "muon"), "init_moments": True}
    begun = begin(make_run(small_corpus, [stage], optimizer=muon, **start), tmp_path / "again")
    states = [model_state.gather(t.model, t.optimizer, t.engine.to_host) for t in (trained, begun)]
    assert_same(*states)
    for kind, message in [
        ("keras.optimizers:Adam", "of the same optimizer, Adam, .* of muon. Leave"),
        ("lamb", "without the moments"),
    ]:
        run = make_run(small_corpus, [stage], optimizer=Optimizer(type=kind), **start)
        with pytest.raises(ValueError, match=message):
            begin(run, tmp_path / "refused")


# Settings


ADAM = "keras.optimizers:Adam"
AXES = {"trust_ratio_axes": {"query/kernel": 1}}


class Plain(keras.optimizers.Optimizer):
    """Takes no weight decay."""

    def __init__(self, learning_rate=0.1):
        super().__init__(learning_rate)

    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, learning_rate * gradient)


class Decaying(keras.optimizers.SGD):
    """Decays all variables by itself."""

    def __init__(self, learning_rate=0.1, weight_decay=0.0):
        super().__init__(learning_rate)


class Broken(keras.optimizers.SGD):
    def __init__(self, learning_rate=0.1, milestones=None):
        assert milestones, "no milestones"


class Scheduled(keras.optimizers.SGD):
    def __init__(self, learning_rate=0.1):
        super().__init__(keras.optimizers.schedules.CosineDecay(0.1, 10))


class Wrapping(Plain):
    def __init__(self, learning_rate=0.1):
        super().__init__(learning_rate)
        self.inner = keras.optimizers.SGD(learning_rate, momentum=0.9)


class Noisy(Plain):
    def __init__(self, learning_rate=0.1):
        super().__init__(learning_rate)
        self.seeds = [keras.random.SeedGenerator(1)]


class Scaled(keras.optimizers.SGD):
    """Has a scalar for each variable."""

    def build(self, variables):
        super().build(variables)
        self.scales = [self.add_variable((), "ones", name="scale") for _ in variables]

    def update_step(self, gradient, variable, learning_rate):
        self.assign_add(self.scales[self._get_variable_index(variable)], 1.0)
        super().update_step(gradient, variable, learning_rate)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"type": "sgd"}, "optimizer_type must be lamb, .* or MODULE:CLASS, .*; got 'sgd'"),
        ({"type": "no_such:Thing"}, "can be imported; got 'no_such:Thing': No module named"),
        ({"type": "keras.optimizers:Thing"}, "Thing is not in keras.optimizers"),
        ({"type": "keras.layers:Dense"}, "Dense is no Keras optimizer"),
        ({"settings": "{"}, "optimizer_settings must be JSON; got '{'"),
        ({"settings": "[1]"}, "optimizer_settings must be a JSON object"),
        ({"settings": '{"epsilon": NaN}'}, "optimizer_settings must be JSON; .* NaN is no number"),
        ({"settings": {"epsilon": float("inf")}}, "optimizer_settings must be JSON"),
        ({"settings": {"exclusions": [[], []]}}, r"lamb_tf:LAMB\(.*\); got 'exclusions'"),
        ({"settings": {"ema_momentum": 0.9}}, "must not contain ema_momentum: averages"),
        ({"exclude_from_weight_decay": ("(",)}, "exclude_from_weight_decay must contain regular"),
        ({"type": ADAM, "settings": {"beta_2": "x"}}, "beta_2 must be a number; got 'x'"),
        ({"type": ADAM, "settings": {"beta_2": 1.5}}, "beta_2 must be at least 0 and below 1; got"),
        ({"type": ADAM, "settings": {"amsgrad": 1}}, "amsgrad must be true or false; got 1"),
        ({"type": "muon", "settings": '{"momentum": 0.9, "momentum": 0.5}'}, "given twice"),
        ({"type": "muon", "settings": {"exclude_layers": "x"}}, "exclude_layers must be a list"),
        ({"type": "keras.optimizers:Optimizer"}, "with an update_step; got"),
        ({"type": ADAM, "settings": {"clipnorm": "1"}}, "clipnorm must be a number; got '1'"),
        ({"settings": {"nestrov": True}}, r"lamb_tf:LAMB\(.*nesterov=None.*\); got 'nestrov'"),
        ({"settings": {"nesterov": "up"}}, "`nesterov` must be"),
        ({"settings": {"trust_ratio_axes": 1}}, "`trust_ratio_axes` must be a mapping"),
        ({"type": "muon", "settings": AXES}, "got 'trust_ratio_axes'"),
        ({"type": ADAM, "settings": AXES}, "got 'trust_ratio_axes'"),
        ({"settings": {"learning_rate": 0.1}}, "must not contain learning_rate: the stages set"),
        ({"type": "muon", "settings": {"use_ema": True}}, "must not contain use_ema"),
        ({"settings": {"beta_2": 0.9}, "beta_2": 0.98}, "beta_2 must be given once; got 0.98"),
        (
            {"type": "muon", "settings": {"adam_beta_2": 0.9}, "beta_2": 0.98},
            "beta_2 must be given once; got 0.98, and adam_beta_2 in",
        ),
        ({"type": "keras.optimizers:SGD", "beta_1": 0.8}, "beta_1 must be left out .*momentum"),
        ({"type": "muon", "layer_decay": 0.9}, "layer_decay must be left out .* got 0.9"),
        (
            {"type": "muon", "exclude_from_layer_adaptation": ()},
            "exclude_from_layer_adaptation must be left out with optimizer_type=muon",
        ),
        ({"type": f"{__name__}:Plain", "weight_decay": 0.1}, "weight_decay must be left out"),
        (
            {"type": f"{__name__}:Plain", "exclude_from_weight_decay": ("bias",)},
            "exclude_from_weight_decay must be left out with .*:Plain, which has no weight_decay",
        ),
        ({"type": f"{__name__}:Decaying"}, "must be empty with .* decays all variables by itself"),
        ({"type": f"{__name__}:Broken"}, r"arguments of .*:Broken\(.*no milestones"),
        ({"type": f"{__name__}:Scheduled"}, "which the stages set; got .*a schedule of its own"),
        (
            {"type": "keras.optimizers:LossScaleOptimizer"},
            "must not wrap another optimizer; got .*--dtype=fp16",
        ),
        ({"type": "lamb_tf:LossScaleOptimizer"}, "must not wrap another optimizer; got"),
        ({"type": ADAM, "settings": {"clipnorm": -1}}, "clipnorm must be above 0; got -1"),
        ({"settings": {"name": "mine"}}, "must not contain name: state is saved without it"),
        ({"settings": {"global_clipnorm": 1.0}}, "global_clipnorm: it has a flag of its own"),
        (
            {"type": ADAM, "settings": {"gradient_accumulation_steps": 2}},
            "gradient_accumulation_steps: it has a flag of its own",
        ),
        ({"type": ADAM, "settings": {"loss_scale_factor": 2.0}}, "the training loop scales the"),
        ({"settings": {"shard_state": True}}, "shard_state: --shard_optimizer does this"),
    ],
    ids=str,
)
def test_what_an_optimizer_cannot_do_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Optimizer(**given).make()


@pytest.mark.parametrize(
    ("kind", "holds"),
    [("Wrapping", "whose inner holds a SGD"), ("Noisy", "whose seeds holds a SeedGenerator")],
)
def test_state_that_would_not_be_saved_is_refused(kind, holds):
    kernel = keras.Variable([1.0], name="kernel")
    made = Optimizer(type=f"{__name__}:{kind}", exclude_from_weight_decay=()).make([kernel])
    with pytest.raises(ValueError, match=f"makes its state with add_variable .*{holds}"):
        made.build([kernel])


def test_what_the_loop_does_for_keras_optimizers_it_does_together(request, tmp_path):
    kind = {"type": ADAM, "freeze": ("embeddings/", "layer_0/"), "global_clipnorm": 0.5}
    changes = {}, {"gradient_accumulation_steps": 2}, {"dtype": "fp16", "loss_scale": "1024"}
    runs = [run_of(request, "classification", kind, **changed) for changed in changes]
    ends = [on_tensorflow(run, tmp_path / f"{n}") for n, run in enumerate(runs)]
    for (_, after, _), tolerance in zip(ends, (0, 1e-5, 2e-3), strict=True):
        assert_same(weights(ends[0][1]), weights(after), rtol=tolerance, atol=tolerance)
        assert after["optimizer/skipped_updates"] == 0
    before, after, _ = map(weights, ends[1])
    moved = {name for name in after if not np.array_equal(after[name], before[name])}
    assert moved
    is_frozen = re.compile("embeddings/|layer_0/").search
    assert any(map(is_frozen, after))
    assert not any(map(is_frozen, moved))
    assert not any(is_frozen(n) for n in ends[1][1] if n.endswith("velocity"))


def test_where_keras_lacks_muon_one_line_names_the_version_that_has_it(monkeypatch):
    monkeypatch.delattr(keras.optimizers, "Muon")  # as in Keras 3.9
    with pytest.raises(
        ValueError, match=r"Muon is not in keras.optimizers .* Keras 3\.10 or newer"
    ):
        Optimizer(type="muon").make()


def test_settings_reach_the_optimizer_and_replace_its_defaults():
    made = Optimizer(type="muon", settings={"momentum": 0.9}, beta_2=0.98, weight_decay=0.1).make()
    assert (made.momentum, made.adam_beta_2, made.adam_weight_decay) == (0.9, 0.98, 0.1)
    assert Optimizer(settings='{"beta_2": 0.98}').make().beta_2 == 0.98
    assert Optimizer(type="orscale", epsilon=1e-5).make().adam_epsilon == 1e-5
    assert Optimizer(type="lars", beta_1=0.8, beta_2=0.5).make().momentum == 0.8


@pytest.mark.parametrize("kind", ["lamb", "lars", "orscale"])
def test_ratios_of_slices_are_settings_of_optimizers_that_have_ratios(kind):
    for given in (AXES, '{"trust_ratio_axes": {"query/kernel": [1]}}'):
        made = Optimizer(type=kind, settings=given).make()
        assert made.trust_ratio_axes == (("query/kernel", (1,)),)
    kernel = keras.Variable(np.ones((2, 3)), name="kernel")
    with pytest.raises(
        ValueError, match="`trust_ratio_axes` must match variables that have a trus"
    ):
        Optimizer(type="adamw", settings=AXES, exclude_from_weight_decay=()).make([kernel]).build(
            [kernel]
        )


def test_ratios_of_slices_are_in_the_log_and_the_report(small_corpus, tmp_path):
    stage = dataclasses.replace(SHORT, steps=4)
    train(make_run(small_corpus, [stage], optimizer=Optimizer(settings=AXES)), tmp_path)
    ratios = log_lines(tmp_path)[-1]["trust_ratios"]
    path = "bert/encoder/layer_0/attention/self/query/kernel"
    units = small_corpus.config.hidden_size
    assert [p for p in ratios if p.startswith(path)] == [f"{path}[{i}]" for i in range(units)]
    assert len({ratios[f"{path}[{i}]"] for i in range(units)}) == units
    assert f"query/kernel[{units - 1}]" in report.write_report(tmp_path).read_text()


def test_factors_of_layers_and_of_settings_are_not_given_together():
    kernel = keras.Variable([1.0], name="kernel")
    rules = {"learning_rate_multipliers": [["kernel", 0.5]]}
    with pytest.raises(ValueError, match="layer_decay must be left out with learning_rate_mult"):
        Optimizer(settings=rules, layer_decay=0.5).make([kernel], [(kernel, 1.0)])


def test_an_exclusion_that_matches_nothing_is_warned_of():
    kernel, bias = (keras.Variable([1.0], name=name) for name in ("kernel", "bias"))
    made = Optimizer(type=ADAM, exclude_from_weight_decay=("bias", "bais")).make([kernel, bias])
    with pytest.warns(UserWarning, match="'bais' .* matches no variable"):
        made.build([kernel, bias])


def test_optimizers_of_equal_settings_hash_alike():
    assert len({Optimizer(settings={"nesterov": "first"}) for _ in range(2)}) == 1


def test_a_run_without_settings_is_described_as_before_there_were_any(small_corpus):
    run = make_run(small_corpus)
    assert "settings" not in run.describe()["optimizer"]
    set_ = dataclasses.replace(run, optimizer=Optimizer(settings={"nesterov": "first"}))
    assert set_.describe()["optimizer"]["settings"] == {"nesterov": "first"}
