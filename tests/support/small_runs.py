"""Runs of seconds on `small_corpus` and on small labelled examples, for tests of the loop."""

import dataclasses
import json
import re
import shutil

import jax_training
import numpy as np
import tensorflow as tf

from official_bert.engines import loop_state, tf_update
from official_bert.engines.tf_distribute import TfDistribute
from official_bert.model.config import BertConfig
from official_bert.stages import LoopOptions, Optimizer, Run, Stage
from official_bert.training import checkpoints
from official_bert.training.run_files import step_and_count
from official_bert.training.trainer import Trainer

SHORT = dataclasses.replace(jax_training.STAGE, steps=8)
LONG = dataclasses.replace(
    SHORT, steps=4, batch_size=8, max_seq_length=64, max_predictions_per_seq=10
)
QUIET = LoopOptions(log_steps=4, save_checkpoints_steps=4, steps_per_loop=4)
# Of fine-tuning.
STAGE = Stage(steps=60, batch_size=16, max_seq_length=32, learning_rate=5e-3, warmup_steps=10)


def make_run(corpus, stages=(SHORT, LONG), **settings):
    settings.setdefault("config", corpus.config)
    settings.setdefault("optimizer", Optimizer())
    return Run(stages=tuple(stages), input_files=(corpus.train,), **settings)


def fine_tuning_config(vocab_size):
    """A BERT that learns the small questions and tags from random weights."""
    return BertConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.1,
    )


def fine_tuning_run(make_task, small, **changed):
    """A run of `make_task(small)` on the small examples, with other values of some fields."""
    settings = {
        "config": small.config,
        "stages": (STAGE,),
        "optimizer": Optimizer(type="adamw", beta_2=0.98),
        "input_files": (small.train,),
        "task": make_task(small),
    }
    return Run(**settings | changed)


def pretraining_settings(corpus, folder, **changed):
    """The flags of a small pre-training by name; its files are in `folder`."""
    path = folder / "bert_config.json"
    path.write_text(corpus.config.to_json())
    return {
        "bert_config_file": path,
        "input_files": corpus.train,
        "model_dir": folder / "model",
        "max_seq_length": SHORT.max_seq_length,
        "max_predictions_per_seq": SHORT.max_predictions_per_seq,
        "train_batch_size": SHORT.batch_size,
        "num_train_epochs": 1,
        "learning_rate": SHORT.learning_rate,
        "optimizer_type": "lamb",
        **changed,
    }


def without_dropout(config):
    return dataclasses.replace(config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def begin(run, model_dir, options=QUIET, strategy=None, resume_from=None):
    """The trainer of a run, before its first step."""
    engine = TfDistribute(strategy or tf.distribute.get_strategy())
    return Trainer(run, options, engine, model_dir, resume_from)


def train(*arguments, **settings):
    trainer = begin(*arguments, **settings)
    trainer.train()
    return trainer


def losses_of_updates(run, model, optimizer, batches, updates):
    """The loss of each update, made by the loop in a call of its own."""
    strategy = tf.distribute.get_strategy()
    loop = tf_update.make_training_loop(run, model, optimizer, strategy)
    iterator = TfDistribute(strategy).feed(lambda *_: batches, range(updates))
    losses, state = [], loop_state.first_state(run)
    for step in range(updates):
        state = loop(iterator, step, 1, state.new_window())
        losses.append(run.task.metrics(state.sums)["loss"])
    return losses


def assert_resumes_exactly(run, folder, options, last_step):
    """Trains in `folder`/whole; killed after a checkpoint and resumed, it ends with the same bits.

    Returns the trainer of the run that was not killed.
    """
    trainer = train(run, folder / "whole", options)
    shutil.copytree(folder / "whole", folder / "killed")
    forget_after(folder / "killed", last_step)
    train(run, folder / "killed", options)
    assert_same(final_tensors(folder / "killed"), final_tensors(folder / "whole"))
    assert log_lines(folder / "killed") == log_lines(folder / "whole")
    return trainer


def assert_same(a, b, **tolerance):
    """Two dictionaries of arrays are equal, bit for bit where there is no tolerance."""
    assert a.keys() == b.keys()
    for name in a:
        if tolerance:
            np.testing.assert_allclose(a[name], b[name], err_msg=name, **tolerance)
        else:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def forget_after(model_dir, step):
    """The directory as a run left it that was killed after its checkpoint of `step`."""
    for path in model_dir.glob("ctl_step_*"):
        if step_and_count(re.match(r"ctl_step_\d+\.ckpt-\d+", path.name)[0])[0] > step:
            path.unlink()


def final_tensors(model_dir):
    return checkpoints.CheckpointStore(model_dir).latest().tensors()


def log_lines(model_dir):
    lines = map(json.loads, (model_dir / "train_log.jsonl").read_text().splitlines())
    return [{name: v for name, v in line.items() if name != "timing"} for line in lines]
