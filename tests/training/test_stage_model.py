"""What trains in a stage, and at which rates: layer-wise decay and freezing, beside PyTorch."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
from peer_tasks import by_their_names, peer_loss, peer_model
from small_runs import (
    QUIET,
    SHORT,
    STAGE,
    assert_resumes_exactly,
    losses_of_updates,
    without_dropout,
)
from small_runs import make_run as make_pretraining
from small_sentences import make_run

from official_bert.engines import tf_update
from official_bert.stages import LoopOptions, Optimizer
from official_bert.training import flops, run_checks, stage_model

UPDATES = 10
LOWER_HALF = ("embeddings/", "layer_0/")
# What each of PyTorch's parameters of a model of two layers has, as its name begins.
DECAYED = {
    "bert.embeddings.": 0.125,
    "bert.encoder.layer.0.": 0.25,
    "bert.encoder.layer.1.": 0.5,
    "bert.pooler.": 1.0,
    "classifier.": 1.0,
}


def two_layers(small_sentences, **settings):
    config = dataclasses.replace(without_dropout(small_sentences.config), num_hidden_layers=2)
    stage = dataclasses.replace(STAGE, steps=UPDATES, warmup_steps=2, learning_rate=1e-3)
    optimizer = Optimizer(type="adamw", **settings)
    return make_run(small_sentences, config=config, stages=(stage,), optimizer=optimizer)


def made(run):
    return stage_model.make_model_and_optimizer(run, run.stages[0])


# Beside PyTorch


def groups(theirs, run):
    """A group for each parameter that trains, with its weight decay and the factor on the rate."""
    optimizer, decays = run.optimizer, run.optimizer.layer_decay != 1
    for name, parameter in theirs.named_parameters():
        frozen = optimizer.freeze and name.startswith(("bert.embeddings.", "bert.encoder.layer.0."))
        parameter.requires_grad_(not frozen)
        factor = next(factor for prefix, factor in DECAYED.items() if name.startswith(prefix))
        plain = "LayerNorm" in name or name.endswith("bias")
        decay = 0.0 if plain else optimizer.weight_decay
        if not frozen:
            yield {"params": [parameter], "weight_decay": decay, "factor": factor if decays else 1}


def train_theirs(theirs, run, batches):
    """Losses and weights of PyTorch's AdamW with a rate of its own for each parameter."""
    import torch

    settings, rate = run.optimizer, run.learning_rate()
    betas = settings.beta_1, settings.beta_2
    adamw = torch.optim.AdamW(groups(theirs, run), lr=0.0, betas=betas, eps=settings.epsilon)
    losses = []
    for step in range(UPDATES):
        adamw.zero_grad()
        loss = peer_loss(theirs, run.task, batches[step])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), settings.global_clipnorm)
        for group in adamw.param_groups:
            group["lr"] = float(rate(step)) * group["factor"]
        adamw.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    "settings",
    [{"layer_decay": 0.5}, {"freeze": LOWER_HALF}, {"layer_decay": 0.5, "freeze": LOWER_HALF}],
    ids=str,
)
def test_updates_are_those_of_pytorch_with_a_rate_per_layer(peer, small_sentences, settings):
    run = two_layers(small_sentences, weight_decay=0.1, **settings)
    batches = run.task.batches(run.input_files, run.stages[0], 16, run.config, seed=1, shard=(0, 1))
    model, optimizer = made(run)
    before = {variable.path: variable.numpy() for variable in model.weights}
    theirs = peer_model(peer, run, before)
    losses = losses_of_updates(run, model, optimizer, batches, UPDATES)
    np.testing.assert_allclose(losses, train_theirs(theirs, run, batches), rtol=1e-4)
    after = by_their_names({variable.path: variable.numpy() for variable in model.weights})
    moved = {path: np.abs(after[path] - x).max() for path, x in by_their_names(before).items()}
    for path, value in peer.get_weights(theirs).items():
        np.testing.assert_allclose(after[path], value, rtol=0, atol=1e-5, err_msg=path)
        if "freeze" in settings and any(part in path for part in LOWER_HALF):
            assert moved[path] == 0, path
        elif "key/bias" not in path:  # which the softmax takes out again
            assert moved[path] > 1e-4, path


# Layer-wise decay


def test_rates_fall_from_the_head_by_a_factor_a_layer(small_sentences):
    model, optimizer = made(two_layers(small_sentences, layer_decay=0.5))
    lines = []
    optimizer.summary(lines.append)
    shown = {line.split()[0]: float(line.split()[-1]) for line in lines[0].splitlines()[1:]}
    assert shown.keys() == {variable.path for variable in model.weights}
    expected = {"bert/embeddings/": 0.125, "layer_0/": 0.25, "layer_1/": 0.5}
    for path, factor in shown.items():
        assert factor == next((f for part, f in expected.items() if part in path), 1.0), path


def test_without_decay_there_are_no_factors(small_sentences):
    _, optimizer = made(two_layers(small_sentences))
    assert optimizer.get_config()["learning_rate_multipliers"] is None


@pytest.mark.parametrize(
    ("frozen", "idle"), [("bert/", True), ("encoder/", False), ("embeddings/", False)]
)
def test_a_decay_without_a_layer_that_trains_is_warned_of(small_sentences, frozen, idle):
    run = two_layers(small_sentences, layer_decay=0.5, freeze=(frozen,))
    model, _ = made(run)
    said = [w for w in run_checks.warnings(run, LoopOptions(), 1, 0, model) if "layer_decay" in w]
    assert len(said) == idle
    assert all(text.startswith("layer_decay=0.5 has no effect: ") for text in said)


@pytest.mark.parametrize(("every", "patience", "idle"), [(500, 1, 1), (4, 2, 1), (3, 2, 0)])
def test_early_stopping_in_a_run_with_too_few_evaluations_is_warned_of(
    small_sentences, every, patience, idle
):
    run = two_layers(small_sentences)  # of 10 steps
    options = LoopOptions(eval_files=("a",), eval_steps=every, early_stopping=patience)
    said = [*run_checks.warnings(run, options, 1, 0, made(run)[0])]
    assert len(said) == idle
    assert all(text.startswith(f"early_stopping={patience} is unlikely to end") for text in said)


def test_a_batch_of_evaluation_need_not_fit_where_nothing_is_evaluated(small_sentences):
    run = two_layers(small_sentences)
    run_checks.check(run, LoopOptions(eval_batch_size=7), replicas=2)
    with pytest.raises(
        ValueError, match="eval_batch_size must be a multiple of the 2 replicas; got 7"
    ):
        run_checks.check(run, LoopOptions(eval_batch_size=7, eval_files=("a",)), replicas=2)


@pytest.mark.parametrize("layer_decay", [0.0, -0.5, 1.5, float("nan")])
def test_a_decay_that_is_none_is_refused(layer_decay):
    with pytest.raises(ValueError, match="layer_decay must be"):
        Optimizer(layer_decay=layer_decay)


# Freezing


@pytest.mark.parametrize("kind", ["adamw", "lamb", "lars"])
def test_what_is_frozen_does_not_train_and_has_no_slots(small_sentences, kind):
    run = two_layers(small_sentences, freeze=LOWER_HALF, layer_decay=0.9)
    run = dataclasses.replace(run, optimizer=dataclasses.replace(run.optimizer, type=kind))
    model, optimizer = made(run)
    frozen = {v.path for v in model.weights if any(part in v.path for part in LOWER_HALF)}
    assert len(frozen) == 5 + 16  # three tables and a LayerNorm; eight products and LayerNorms
    assert {v.path for v in model.trainable_variables} == {v.path for v in model.weights} - frozen
    slots = len(model.trainable_variables) * len(optimizer.slot_names)
    assert sum(v.path.endswith(("_m", "_v", "_momentum")) for v in optimizer.variables) == slots


def products(function, *arguments):
    """How many matrix products the graph of a function has."""
    graph = tf.function(function, autograph=False).get_concrete_function(*arguments).graph
    return sum("MatMul" in operation.type for operation in graph.get_operations())


def test_no_gradient_is_computed_for_what_is_frozen(small_sentences):
    run = two_layers(small_sentences, freeze=["^bert/"])
    model, _ = made(run)
    arrays = run.task.batches(run.input_files, STAGE, 16, run.config, seed=1, shard=(0, 1))[0]
    batch, zeros = {name: tf.constant(rows) for name, rows in arrays.items()}, tf.zeros(2, "int32")
    forward = products(lambda: model(batch, training=True, dropout_seed=zeros))
    update = tf_update._make_forward_backward(run, model)
    both = products(lambda: update(batch, tf.ones(1), zeros, 1.0))
    assert both - forward <= 2  # those of the head
    full = two_layers(small_sentences)
    update = tf_update._make_forward_backward(full, made(full)[0])
    assert products(lambda: update(batch, tf.ones(1), zeros, 1.0)) > 2 * forward


def test_an_expression_that_matches_nothing_is_refused_with_some_paths(small_sentences):
    message = r"got 'layer_7', which matches none.*bert/embeddings/word_embeddings.*output_bias"
    with pytest.raises(ValueError, match=message):
        made(two_layers(small_sentences, freeze=("embeddings/", "layer_7")))


def test_freezing_everything_and_a_malformed_expression_are_refused(small_sentences):
    with pytest.raises(ValueError, match=r"freeze must leave some .*; got '\.', which matches all"):
        made(two_layers(small_sentences, freeze=["."]))
    with pytest.raises(ValueError, match=r"freeze must contain regular expressions; got '\(bert'"):
        Optimizer(freeze=["(bert"])


def test_layers_that_a_later_stage_adds_can_be_frozen(small_corpus):
    stages = [dataclasses.replace(SHORT, depth=1), SHORT]
    config = dataclasses.replace(small_corpus.config, num_hidden_layers=2)
    optimizer = Optimizer(freeze=["layer_1/output"])
    run = make_pretraining(small_corpus, stages, config=config, optimizer=optimizer)
    made(run)
    model, _ = stage_model.make_model_and_optimizer(run, stages[1])
    assert not [v.path for v in model.trainable_variables if "layer_1/output" in v.path]


# On the loop


def test_a_run_with_both_resumes_exactly_and_leaves_what_is_frozen_as_it_was(
    small_sentences, tmp_path
):
    run = two_layers(small_sentences, layer_decay=0.7, freeze=LOWER_HALF)
    options = dataclasses.replace(QUIET, save_checkpoints_steps=5)
    trainer = assert_resumes_exactly(run, tmp_path, options, 5)
    before = {variable.path: variable.numpy() for variable in made(run)[0].weights}
    for variable in trainer.model.weights:
        stays = np.array_equal(variable.numpy(), before[variable.path])
        assert stays == any(part in variable.path for part in LOWER_HALF), variable.path
    log = map(json.loads, (tmp_path / "whole/train_log.jsonl").read_text().splitlines())
    timing = next(line["timing"] for line in log if line["kind"] == "train")
    updates_per_second = timing["examples_per_second"] / STAGE.batch_size
    cost = timing["model_flops_per_second"] / updates_per_second
    assert cost == pytest.approx(flops.step_flops(run.config, STAGE, LOWER_HALF))
