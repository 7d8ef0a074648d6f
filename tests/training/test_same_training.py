"""The same training as an independent implementation's: Hugging Face's BERT and torch's gradients.

Same weights to begin with, same batches of real text, no dropout, float32. Theirs are the forward
and backward pass, AdamW and the clipping, or LAMB in NumPy; ours is the loop of `run_pretraining`.
"""

import dataclasses
import itertools

import numpy as np
import pytest
import reference
from small_runs import losses_of_updates

from official_bert.data import input_pipeline
from official_bert.stages import Optimizer, Run, Stage
from official_bert.training import stage_model

UPDATES, WARMUP = 100, 20
STAGE = Stage(
    steps=UPDATES,
    batch_size=16,
    max_seq_length=32,
    max_predictions_per_seq=5,
    learning_rate=2e-3,
    warmup_steps=WARMUP,
)


def rate(step, peak):
    """Linear warm-up from 0, then linear decay to 0."""
    return peak * min(step / WARMUP, (UPDATES - step) / (UPDATES - WARMUP))


def make_run(small_corpus, optimizer, peak):
    config = dataclasses.replace(
        small_corpus.config,
        hidden_size=64,
        num_hidden_layers=2,
        intermediate_size=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.06,
    )
    stage = dataclasses.replace(STAGE, learning_rate=peak)
    return Run(
        config=config, stages=(stage,), optimizer=optimizer, input_files=(small_corpus.train,)
    )


def train_ours(run):
    """Weights before, the loss of every update, weights after, and the batches."""
    stage = run.stages[0]
    batches = input_pipeline.Batches(stage.resolve(run.input_files), 16, 32, 5, seed=1)
    model, optimizer = stage_model.make_model_and_optimizer(run, stage)
    before = {v.path: v.numpy() for v in model.weights}
    losses = losses_of_updates(run, model, optimizer, batches, UPDATES)
    return before, losses, {v.path: v.numpy() for v in model.weights}, batches


def train_with_adamw(peer, theirs, batches, optimizer, peak):
    adamw, losses = peer.adamw(theirs, optimizer), []
    for step in range(UPDATES):
        loss = sum(peer.losses(theirs, batches[step]))
        peer.update(theirs, adamw, loss, rate(step, peak), optimizer.global_clipnorm)
        losses.append(loss.item())
    return losses


def train_with_lamb(peer, theirs, batches, optimizer, peak):
    gradients, updates, losses = {}, {}, []
    for path, value in peer.get_weights(theirs).items():
        plain = any(word in path for word in optimizer.exclude_from_weight_decay)
        updates[path] = reference.lamb_updates(
            value,
            map(gradients.get, itertools.repeat(path)),
            lambda step: rate(step, peak),
            beta_1=optimizer.beta_1,
            beta_2=optimizer.beta_2,
            epsilon=optimizer.epsilon,
            weight_decay=0.0 if plain else optimizer.weight_decay,
            adapt=not plain,
        )
    for step in range(UPDATES):
        theirs.zero_grad()
        loss = sum(peer.losses(theirs, batches[step]))
        loss.backward()
        found = peer.get_gradients(theirs)
        clipped = reference.clip_by_global_norm(found.values(), optimizer.global_clipnorm)
        gradients.update(zip(found, clipped))
        peer.set_weights(theirs, {path: next(values) for path, values in updates.items()})
        losses.append(loss.item())
    return losses


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "peak", "train"),
    [
        (Optimizer(type="adamw", beta_2=0.98, weight_decay=0.1), 2e-3, train_with_adamw),
        (Optimizer(type="lamb", beta_2=0.98, weight_decay=0.1), 1e-2, train_with_lamb),
    ],
    ids=["adamw", "lamb"],
)
def test_a_hundred_updates_have_the_losses_and_weights_of_an_independent_implementation(
    small_corpus, peer, optimizer, peak, train
):
    run = make_run(small_corpus, optimizer, peak)
    before, losses, after, batches = train_ours(run)
    theirs = peer.bert_for_pretraining(run.config)
    peer.set_weights(theirs, before)
    wanted = train(peer, theirs, batches, optimizer, peak)
    np.testing.assert_allclose(losses, wanted, rtol=0, atol=1e-3)
    assert wanted[-1] < wanted[0] - 0.5
    for path, value in peer.get_weights(theirs).items():  # most values moved by more than 0.01
        np.testing.assert_allclose(after[path], value, rtol=0, atol=2e-5, err_msg=path)
