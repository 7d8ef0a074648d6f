"""Fine-tuning beside Hugging Face's, and the task on the loop: learning, resuming, replicas."""

import dataclasses
import json
import shutil
from pathlib import Path

import keras
import numpy as np
import peers
import pytest
import tensorflow as tf
from bert_checkpoints import CONFIG, make_hugging_face, make_source
from peer_sentences import by_their_names, peer_loss, peer_model
from small_runs import QUIET, final_tensors, log_lines, train, without_dropout
from small_sentences import STAGE, make_run, make_task, number_task
from two_replicas import two_replicas

from official_bert.data.row_batches import ArrayBatches
from official_bert.engines import loop_state, tf_update
from official_bert.engines.tf_distribute import TfDistribute
from official_bert.model.classifier import BertClassifier
from official_bert.stages import Optimizer
from official_bert.tasks.labels import Classes
from official_bert.tasks.tables import Columns
from official_bert.training import model_state, stage_model

OPTIONS = dataclasses.replace(QUIET, save_checkpoints_steps=20, log_steps=20, steps_per_loop=20)
UPDATES = 20


def evaluated(small_sentences):
    return dataclasses.replace(OPTIONS, eval_files=(small_sentences.dev,), eval_batch_size=16)


# Beside Hugging Face


@pytest.fixture
def peer():
    torch = peers.load("torch")
    peers.load("transformers")
    from benchmarks import hugging_face

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for matrices this small; where all cores are busy, by far
    yield hugging_face
    torch.set_num_threads(threads)


def alike(small_sentences, task):
    """A run without dropout, with its batches, model and optimizer."""
    config = dataclasses.replace(without_dropout(small_sentences.config), num_hidden_layers=2)
    stage = dataclasses.replace(STAGE, steps=UPDATES, warmup_steps=5, learning_rate=1e-3)
    run = make_run(
        small_sentences,
        config=config,
        task=task,
        stages=(stage,),
        optimizer=Optimizer(type="adamw"),
    )
    batches = task.batches(run.input_files, stage, 16, config, seed=1, shard=(0, 1))
    return run, batches, *stage_model.make_model_and_optimizer(run, stage)


TASKS = {
    "classes": make_task,
    "pairs": lambda s: make_task(s, columns=Columns("sentence", "other")),
    "three classes": lambda s: make_task(s, labels=Classes(("plain", "rare", "begun"))),
    "numbers": number_task,
}
each_task = pytest.mark.parametrize("make", TASKS.values(), ids=TASKS)


@each_task
def test_loss_and_gradients_are_those_of_hugging_face(peer, small_sentences, make):
    run, batches, model, _ = alike(small_sentences, make(small_sentences))
    theirs = peer_model(peer, run, {v.path: v.numpy() for v in model.weights})
    rows = np.arange(16)
    sums, gradients = tf_update.sums_and_gradients(run, model, batches[0], rows, 0, 1.0)
    loss = peer_loss(theirs, run.task, batches[0])
    np.testing.assert_allclose(run.task.metrics(sums)["loss"], loss.item(), rtol=1e-5)
    loss.backward()
    expected = peer.get_gradients(theirs)
    paths = [variable.path for variable in model.trainable_variables]
    ours = by_their_names(dict(zip(paths, (g.numpy() for g in gradients), strict=True)))
    assert ours.keys() == expected.keys()
    scale = max(np.abs(gradient).max() for gradient in expected.values())
    for path, gradient in expected.items():
        np.testing.assert_allclose(ours[path], gradient, atol=1e-5 * scale, err_msg=path)


@each_task
def test_twenty_updates_with_adamw_are_those_of_pytorch(peer, small_sentences, make):
    run, batches, model, optimizer = alike(small_sentences, make(small_sentences))
    theirs = peer_model(peer, run, {v.path: v.numpy() for v in model.weights})
    strategy = tf.distribute.get_strategy()
    loop = tf_update.make_training_loop(run, model, optimizer, strategy)
    iterator = TfDistribute(strategy).feed(lambda *_: batches, range(UPDATES))
    adamw, rate = peer.adamw(theirs, run.optimizer), run.learning_rate()
    ours, expected, state = [], [], loop_state.first_state(run)
    for step in range(UPDATES):
        state = loop(iterator, step, 1, state.new_window())
        ours.append(run.task.metrics(state.sums)["loss"])
        loss = peer_loss(theirs, run.task, batches[step])
        peer.update(theirs, adamw, loss, float(rate(step)), run.optimizer.global_clipnorm)
        expected.append(loss.item())
    np.testing.assert_allclose(ours, expected, rtol=1e-4)
    assert np.ptp(expected) > 0.02  # a hundred times what they may differ by


# On the loop


def test_it_learns_and_reports_beside_the_majority_class(small_sentences, tmp_path, capsys):
    train(make_run(small_sentences), tmp_path / "model", evaluated(small_sentences))
    last = [line for line in log_lines(tmp_path / "model") if line["kind"] == "eval"][-1]
    assert last["accuracy"] > 0.8 > 0.6 > last["majority_class_accuracy"] >= 0.5
    assert last["examples"] == 26
    said = capsys.readouterr().out
    assert "held out: loss" in said
    assert "(most frequent class: 50.0%)" in said
    assert "accuracy" in next(line for line in said.splitlines() if line.startswith("step 60/60"))


def test_numbers_are_learned_and_reported_beside_their_mean(small_sentences, tmp_path, capsys):
    run = make_run(small_sentences, task=number_task(small_sentences))
    train(run, tmp_path / "model", evaluated(small_sentences))
    last = [line for line in log_lines(tmp_path / "model") if line["kind"] == "eval"][-1]
    assert last["mean_label_squared_error"] == pytest.approx(np.var([0.0, 2.5]))
    assert last["loss"] == last["mean_squared_error"] < 0.5
    assert "held out: mean squared error" in capsys.readouterr().out


def test_it_resumes_exactly(small_sentences, tmp_path):
    run = make_run(small_sentences)
    train(run, tmp_path / "whole", OPTIONS)
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    for file in (tmp_path / "killed").glob("ctl_step_60*"):
        file.unlink()
    train(run, tmp_path / "killed", OPTIONS)
    assert log_lines(tmp_path / "killed") == log_lines(tmp_path / "whole")
    resumed, whole = (final_tensors(tmp_path / name) for name in ("killed", "whole"))
    assert resumed.keys() == whole.keys()
    for name in whole:
        np.testing.assert_array_equal(resumed[name], whole[name], err_msg=name)


@pytest.mark.parametrize("make", [make_task, number_task])
def test_two_replicas_and_micro_batches_train_to_the_same_weights(small_sentences, tmp_path, make):
    run = make_run(
        small_sentences,
        config=small_sentences.config,  # with dropout
        stages=(dataclasses.replace(STAGE, steps=4, warmup_steps=1),),
        task=make(small_sentences),
    )
    one = train(run, tmp_path / "one", evaluated(small_sentences))
    both = dataclasses.replace(run, gradient_accumulation_steps=2)
    two = train(both, tmp_path / "two", evaluated(small_sentences), two_replicas())
    for a, b in zip(one.model.weights, two.model.weights, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-5, err_msg=a.path)
    for ours, theirs in zip(*(log_lines(tmp_path / name) for name in ("one", "two")), strict=True):
        assert ours.get("loss") == pytest.approx(theirs.get("loss"), abs=1e-4)


CHANGES = {
    "labels": {"labels": Classes(("begun", "plain"))},
    "columns": {"columns": Columns("other")},
    "do_lower_case": {"do_lower_case": False},
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_task_is_refused_in_the_directory_of_a_run(small_sentences, tmp_path, name):
    run = make_run(small_sentences, stages=(dataclasses.replace(STAGE, steps=1, warmup_steps=0),))
    train(run, tmp_path, OPTIONS)
    described = json.loads((tmp_path / "run.json").read_text())
    assert described["task"] == "classification"
    assert described["labels"] == ["plain", "begun"]
    other = dataclasses.replace(run, task=make_task(small_sentences, **CHANGES[name]))
    with pytest.raises(ValueError, match=f"holds another run: .*{name}"):
        train(other, tmp_path, OPTIONS)


def test_another_vocabulary_is_refused_in_the_directory_of_a_run(small_sentences, tmp_path):
    run = make_run(small_sentences, stages=(dataclasses.replace(STAGE, steps=1, warmup_steps=0),))
    train(run, tmp_path / "model", OPTIONS)
    pieces = Path(small_sentences.vocab_file).read_text().splitlines()
    (tmp_path / "vocab.txt").write_text("\n".join([*pieces[:-2], pieces[-1], pieces[-2]]) + "\n")
    task = make_task(small_sentences, vocab_file=str(tmp_path / "vocab.txt"))
    with pytest.raises(ValueError, match="vocabulary was"):
        train(dataclasses.replace(run, task=task), tmp_path / "model", OPTIONS)


def test_examples_are_known_by_their_content_wherever_they_are(
    small_sentences, tmp_path, monkeypatch
):
    run = make_run(small_sentences, stages=(dataclasses.replace(STAGE, steps=1, warmup_steps=0),))
    train(run, tmp_path / "model", OPTIONS)
    moved = Path(shutil.copy(small_sentences.train, tmp_path / "moved.tsv"))
    monkeypatch.chdir(tmp_path)
    for path in ("moved.tsv", str(moved)):
        train(dataclasses.replace(run, input_files=(path,)), tmp_path / "model", OPTIONS)
    described = json.loads((tmp_path / "model" / "run.json").read_text())
    assert described["input_files"] == [str(moved)]
    assert "changes" not in described
    table = moved.read_text()
    moved.write_text(table[::-1].replace("nialp", "nugeb", 1)[::-1])  # one label, of equal length
    with pytest.raises(ValueError, match="the records of stage 1 have changed"):
        train(dataclasses.replace(run, input_files=(str(moved),)), tmp_path / "model", OPTIONS)


def test_a_vocabulary_beyond_the_models_is_refused(small_sentences, tmp_path):
    config = dataclasses.replace(small_sentences.config, vocab_size=300)
    with pytest.raises(
        ValueError, match="must have at most 300 tokens, the size of the model's embeddings"
    ):
        train(make_run(small_sentences, config=config), tmp_path, OPTIONS)


def test_an_edited_table_is_read_anew(small_sentences, tmp_path):
    table = tmp_path / "train.tsv"
    run = make_run(small_sentences, input_files=(str(table),))
    labels = []
    for label in "plain", "begun":
        table.write_text(f"sentence\tlabel\nreturn it\t{label}\nkeep it\tplain\n")
        batches = run.task.batches(run.input_files, STAGE, 2, run.config, seed=1, shard=(0, 1))
        labels.append(sorted(batches[0]["labels"].tolist()))
    assert labels == [[0, 0], [0, 1]]


def test_several_tables_are_one_set(small_sentences):
    run, files = make_run(small_sentences), (small_sentences.train, small_sentences.dev)
    batches = run.task.batches(files, STAGE, 16, run.config, seed=1, shard=(0, 1), held_out=True)
    assert batches.num_examples == 76


# The model


def test_the_model_survives_a_keras_file(small_sentences, tmp_path):
    model = BertClassifier(small_sentences.config, 3, seed=7)
    batch = {n: np.ones((2, 8), np.int32) for n in ("input_ids", "input_mask", "segment_ids")}
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(batch), model(batch))
    assert [v.path for v in loaded.weights] == [v.path for v in model.weights]
    assert [v.path for v in model.weights][-2:] == ["output_weights", "output_bias"]


@pytest.mark.parametrize("make", [make_source, make_hugging_face])
def test_it_starts_from_the_encoder_of_a_checkpoint(tmp_path, make):
    arrays = make(tmp_path / "start")
    if make is make_hugging_face:  # both of its configurations say which GELU it is
        (tmp_path / "start" / "bert_config.json").unlink()
    model = BertClassifier(CONFIG, 3, seed=7)
    before = model.head.output_weights.numpy()
    loaded = model_state.load_weights(model, str(tmp_path / "start"))
    assert loaded.fresh == ("output_weights", "output_bias")
    assert str(loaded).endswith("weights: carried 39 of 41; fresh: output_weights, output_bias")
    for variable in model.weights[:-2]:
        np.testing.assert_array_equal(variable.numpy(), arrays[variable.path])
    np.testing.assert_array_equal(model.head.output_weights.numpy(), before)


# Predictions


@pytest.mark.parametrize("strategy", [tf.distribute.get_strategy, two_replicas])
def test_outputs_come_in_the_order_of_the_examples(small_sentences, strategy):
    task, config = make_task(small_sentences), small_sentences.config
    engine = TfDistribute(strategy())
    with engine.scope():
        model = task.make_model(config, 3, "float32")
    arrays = task.labelled_arrays(small_sentences.dev, 32, config)

    def open_batches(*shard):
        return ArrayBatches(arrays, 8, shard=shard, shuffle=False)

    found = np.concatenate(list(engine.outputs(model, open_batches)))
    assert found.shape == (32, 2)  # 26, and padding
    np.testing.assert_allclose(found[:26], model(arrays), atol=1e-5)


def test_a_batch_that_replicas_cannot_share_is_refused(small_sentences):
    task = make_task(small_sentences)
    engine = TfDistribute(two_replicas())
    arrays = task.labelled_arrays(small_sentences.dev, 32, small_sentences.config)
    with pytest.raises(ValueError, match="batch size must be a multiple of the 2 replicas; got 7"):
        next(engine.outputs(None, lambda *shard: ArrayBatches(arrays, 7, shuffle=False)))


def test_several_workers_do_not_predict():
    engine = TfDistribute(tf.distribute.get_strategy())
    engine.shard = 1, 3
    with pytest.raises(ValueError, match="made by one process; got 3 workers"):
        next(engine.outputs(None, None))
