"""Answering questions beside Hugging Face's model, and the task on the loop."""

import dataclasses
import json
import shutil

import keras
import numpy as np
import peers
import pytest
import tensorflow as tf
from bert_checkpoints import CONFIG, make_hugging_face, make_source
from small_questions import STAGE, WINDOWS, by_heart, make_run, make_task
from small_runs import QUIET, final_tensors, log_lines, train, without_dropout
from small_squad import qa, write_squad
from two_replicas import two_replicas

from official_bert.data.row_batches import ArrayBatches, RowBatches
from official_bert.engines import loop_state, tf_update
from official_bert.engines.tf_distribute import TfDistribute
from official_bert.model.question_answering import BertQuestionAnswering
from official_bert.stages import Optimizer
from official_bert.tasks import squad_data, squad_decoding, squad_evaluation
from official_bert.training import fine_tuned, model_state, stage_model

OPTIONS = dataclasses.replace(QUIET, save_checkpoints_steps=20, log_steps=20, steps_per_loop=20)
UPDATES = 20
HEAD = ["cls/squad/output_weights", "cls/squad/output_bias"]


def evaluated(small_questions):
    return dataclasses.replace(OPTIONS, eval_files=(small_questions.dev,), eval_batch_size=16)


def answers(task, model, file, **settings):
    """The scores of a model's answers to the questions of a file, in percent."""
    dataset = squad_data.read(file)
    features = task.features(dataset.questions, model.config)
    engine = TfDistribute(tf.distribute.get_strategy())
    logits = fine_tuned.outputs(engine, model, features, 8)
    settings = squad_decoding.Decoding(**settings)
    found = squad_decoding.decode(features, logits[..., 0], logits[..., 1], settings)
    return squad_evaluation.evaluate(dataset, {p.id: p.text for p in found})


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


def peer_model(peer, config, weights):
    transformers = peers.load("transformers")
    theirs = transformers.BertForQuestionAnswering(peer.bert_for_pretraining(config).config)
    theirs.bert.embeddings.word_embeddings.padding_idx = None
    peer.set_weights(theirs, by_their_names(weights))
    return theirs


def by_their_names(values):
    """Our names → those that `benchmarks.hugging_face` makes of theirs, which has no pooler."""
    renamed = {path: x for path, x in values.items() if not path.startswith("bert/pooler")}
    renamed["qa_outputs/kernel"] = renamed.pop("cls/squad/output_weights").T
    renamed["qa_outputs/bias"] = renamed.pop("cls/squad/output_bias")
    return renamed


def peer_loss(theirs, batch):
    import torch

    batch = {name: torch.from_numpy(rows) for name, rows in batch.items()}
    outputs = theirs(
        input_ids=batch["input_ids"],
        attention_mask=batch["input_mask"],
        token_type_ids=batch["segment_ids"],
        start_positions=batch["start_positions"].long(),
        end_positions=batch["end_positions"].long(),
    )
    return outputs.loss


@pytest.fixture
def alike(small_questions):
    """A run without dropout, with its batches, model and optimizer."""
    config = dataclasses.replace(without_dropout(small_questions.config), num_hidden_layers=2)
    stage = dataclasses.replace(STAGE, steps=UPDATES, warmup_steps=5, learning_rate=1e-3)
    optimizer = Optimizer(type="adamw")
    run = make_run(small_questions, config=config, stages=(stage,), optimizer=optimizer)
    batches = run.task.batches(run.input_files, stage, 16, config, seed=1, shard=(0, 1))
    return run, batches, *stage_model.make_model_and_optimizer(run, stage)


def test_loss_and_gradients_are_those_of_hugging_face(peer, alike):
    run, batches, model, _ = alike
    theirs = peer_model(peer, run.config, {v.path: v.numpy() for v in model.weights})
    assert 0 in batches[0]["start_positions"]  # windows without the answer are among them
    sums, gradients = tf_update.sums_and_gradients(run, model, batches[0], range(16), 0, 1.0)
    loss = peer_loss(theirs, batches[0])
    np.testing.assert_allclose(run.task.metrics(sums)["loss"], loss.item(), rtol=1e-5)
    loss.backward()
    expected = peer.get_gradients(theirs)
    paths = [variable.path for variable in model.trainable_variables]
    ours = by_their_names(dict(zip(paths, (g.numpy() for g in gradients), strict=True)))
    assert ours.keys() == expected.keys()
    scale = max(np.abs(gradient).max() for gradient in expected.values())
    for path, gradient in expected.items():
        np.testing.assert_allclose(ours[path], gradient, atol=1e-5 * scale, err_msg=path)


def test_twenty_updates_with_adamw_are_those_of_pytorch(peer, alike):
    run, batches, model, optimizer = alike
    theirs = peer_model(peer, run.config, {v.path: v.numpy() for v in model.weights})
    strategy = tf.distribute.get_strategy()
    loop = tf_update.make_training_loop(run, model, optimizer, strategy)
    iterator = TfDistribute(strategy).feed(lambda *_: batches, range(UPDATES))
    adamw, rate = peer.adamw(theirs, run.optimizer), run.learning_rate()
    ours, expected, state = [], [], loop_state.first_state(run)
    for step in range(UPDATES):
        state = loop(iterator, step, 1, state.new_window())
        ours.append(run.task.metrics(state.sums)["loss"])
        loss = peer_loss(theirs, batches[step])
        peer.update(theirs, adamw, loss, float(rate(step)), run.optimizer.global_clipnorm)
        expected.append(loss.item())
    np.testing.assert_allclose(ours, expected, rtol=1e-4)
    assert np.ptp(expected) > 0.02  # a hundred times what they may differ by
    weights = by_their_names({v.path: v.numpy() for v in model.weights})
    for path, weight in peer.get_weights(theirs).items():
        np.testing.assert_allclose(weights[path], weight, atol=2e-4, err_msg=path)


# On the loop


def test_a_tiny_model_learns_a_handful_of_questions_by_heart(small_questions, tmp_path, capsys):
    run = by_heart(small_questions)
    trainer = train(run, tmp_path / "model", evaluated(small_questions))
    scores = answers(run.task, trainer.model, small_questions.train)
    assert (scores["exact_match"], scores["f1"]) == (100, 100)
    last = [line for line in log_lines(tmp_path / "model") if line["kind"] == "eval"][-1]
    features = run.task.labelled_features([small_questions.dev], run.config)
    assert last["examples"] == len(features)
    spans = [tuple(row) for row in features.positions.tolist()]
    assert last["most_frequent_span_accuracy"] == pytest.approx(
        max(map(spans.count, spans)) / len(spans)
    )
    logits = trainer.model(features.batch(range(len(features)))).numpy()
    hits = [tuple(row) == span for row, span in zip(logits.argmax(1).tolist(), spans)]
    assert last["span_accuracy"] == pytest.approx(np.mean(hits), abs=1e-6)
    said = capsys.readouterr().out
    assert "(most frequent span: " in said
    assert "spans " in next(line for line in said.splitlines() if line.startswith("step 250/250"))


def test_questions_without_answer_are_learned_too(small_questions, tmp_path):
    task = make_task(small_questions, version_2_with_negative=True)
    run = by_heart(small_questions, task=task, input_files=(small_questions.train_2,))
    model = train(run, tmp_path / "model", OPTIONS).model
    scores = answers(run.task, model, small_questions.train_2, version_2_with_negative=True)
    assert scores["HasAns_exact_match"] == scores["NoAns_exact_match"] == 100


def test_it_resumes_exactly(small_questions, tmp_path):
    run = make_run(small_questions)
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


def test_the_pooler_has_no_moments_and_keeps_its_weights(small_questions, tmp_path):
    stage = dataclasses.replace(STAGE, steps=2, warmup_steps=0)
    run = make_run(small_questions, stages=(stage,))
    before = run.task.make_model(run.config, run.seed, "float32").encoder.pooler.kernel.numpy()
    train(run, tmp_path, OPTIONS)
    tensors = final_tensors(tmp_path)
    np.testing.assert_array_equal(tensors["bert/pooler/dense/kernel"], before)
    assert "cls/squad/output_weights/adam_m" in tensors
    assert "bert/pooler/dense/kernel/adam_m" not in tensors


def test_two_replicas_and_micro_batches_train_to_the_same_weights(small_questions, tmp_path):
    run = make_run(
        small_questions,
        config=small_questions.config,  # with dropout
        stages=(dataclasses.replace(STAGE, steps=4, warmup_steps=1),),
    )
    one = train(run, tmp_path / "one", evaluated(small_questions))
    both = dataclasses.replace(run, gradient_accumulation_steps=2)
    two = train(both, tmp_path / "two", evaluated(small_questions), two_replicas())
    for a, b in zip(one.model.weights, two.model.weights, strict=True):
        # A softmax over positions does not see a bias: its gradient is round-off alone.
        atol = 1e-3 if a.path.endswith("squad/output_bias") else 1e-5
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=atol, err_msg=a.path)
    for ours, theirs in zip(*(log_lines(tmp_path / name) for name in ("one", "two")), strict=True):
        assert ours.get("loss") == pytest.approx(theirs.get("loss"), abs=1e-4)


CHANGES = {
    "version_2_with_negative": {"version_2_with_negative": True},
    "windows.doc_stride": {"windows": dataclasses.replace(WINDOWS, doc_stride=9)},
    "do_lower_case": {"do_lower_case": False},
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_task_is_refused_in_the_directory_of_a_run(small_questions, tmp_path, name):
    run = make_run(small_questions, stages=(dataclasses.replace(STAGE, steps=1, warmup_steps=0),))
    train(run, tmp_path, OPTIONS)
    assert json.loads((tmp_path / "run.json").read_text())["task"] == "question answering"
    other = dataclasses.replace(run, task=make_task(small_questions, **CHANGES[name]))
    with pytest.raises(ValueError, match=f"holds another run: .*{name}"):
        train(other, tmp_path, OPTIONS)


# Batches


def test_windows_come_in_the_order_of_arrays(small_questions):
    """The order is that of every fine-tuning task, whatever form the examples are kept in."""
    task, config = make_task(small_questions), small_questions.config
    features = task.labelled_features([small_questions.train], config)
    arrays = features.batch(range(len(features)))
    for settings in {"seed": 5, "shard": (1, 2)}, {"shuffle": False}:
        kept, whole = RowBatches(features, 4, **settings), ArrayBatches(arrays, 4, **settings)
        assert kept.element_spec == whole.element_spec
        for step in 0, 3, whole.num_batches - 1:
            ours, theirs = kept[step], whole[step]
            assert ours.keys() == theirs.keys()
            for name in ours:
                np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
                assert ours[name].dtype == theirs[name].dtype


def test_other_windows_have_another_fingerprint(small_questions, tmp_path):
    def fingerprint(file, **changed):
        task = make_task(small_questions, **changed)
        return task.labelled_features([file], small_questions.config).fingerprint()

    fingerprints = [
        fingerprint(small_questions.train),
        fingerprint(small_questions.dev),
        fingerprint(small_questions.train, windows=dataclasses.replace(WINDOWS, doc_stride=9)),
        fingerprint(small_questions.train, windows=dataclasses.replace(WINDOWS, max_seq_length=40)),
        fingerprint(small_questions.train, do_lower_case=False),
        fingerprint(write_squad(tmp_path / "a.json", ("the mill", [qa("1", ("mill", 4))]))),
        fingerprint(write_squad(tmp_path / "b.json", ("the mill", [qa("1", ("the", 0))]))),
    ]
    assert len(set(fingerprints)) == len(fingerprints)
    again = write_squad(tmp_path / "c.json", ("the mill", [qa("other id", ("the", 0))]))
    assert fingerprint(again) == fingerprints[-1]


def test_an_edited_file_is_read_anew(small_questions, tmp_path):
    task, positions = make_task(small_questions), []
    for answer in ("mill", 4), ("the", 0):
        file = write_squad(tmp_path / "a.json", ("the mill", [qa("1", answer)]))
        positions.append(task.labelled_features([file], small_questions.config).positions[0, 0])
    assert positions[0] == positions[1] + 1


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ([qa("1", is_impossible=True), qa("2", ("mill", 4))], "marked is_impossible; got 1 of 2"),
        ([qa("1", ("bridge", 4))], "an answer that occurs in its context; got none in 1"),
        ([qa("1")], "got none in 1 questions"),
    ],
)
def test_questions_that_cannot_be_trained_on_are_refused(
    small_questions, tmp_path, questions, message
):
    file = write_squad(tmp_path / "a.json", ("the mill", questions))
    with pytest.raises(ValueError, match=message):
        make_task(small_questions).labelled_features([file], small_questions.config)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"max_predictions_per_seq": 3}, "must be 0 for question answering; got 3"),
        ({"max_seq_length": 33}, "must be 32, that of the windows; got 33"),
    ],
)
def test_a_stage_that_does_not_fit_the_task_is_refused(small_questions, changed, message):
    stage = dataclasses.replace(STAGE, **changed)
    with pytest.raises(ValueError, match=message):
        make_run(small_questions, stages=(stage,))


def test_a_vocabulary_beyond_the_models_is_refused(small_questions):
    config = dataclasses.replace(small_questions.config, vocab_size=20)
    with pytest.raises(ValueError, match="must have at most 20 tokens, the size of"):
        make_task(small_questions).labelled_features([small_questions.train], config)


# The model


def test_the_model_survives_a_keras_file(small_questions, tmp_path):
    model = BertQuestionAnswering(small_questions.config, seed=7)
    batch = {n: np.ones((2, 8), np.int32) for n in ("input_ids", "input_mask", "segment_ids")}
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(batch), model(batch))
    assert [v.path for v in loaded.weights] == [v.path for v in model.weights]
    assert [v.path for v in model.weights][-2:] == HEAD


def test_logits_are_float32_in_every_type_of_arithmetic(small_questions):
    batch = {n: np.ones((2, 8), np.int32) for n in ("input_ids", "input_mask", "segment_ids")}
    expected = BertQuestionAnswering(small_questions.config, seed=7)(batch)
    for dtype in "mixed_bfloat16", "mixed_float16":
        logits = BertQuestionAnswering(small_questions.config, seed=7, dtype=dtype)(batch)
        assert logits.dtype == tf.float32
        assert not np.array_equal(logits, tf.cast(logits, dtype.removeprefix("mixed_")))
        np.testing.assert_allclose(logits, expected, atol=0.05)


@pytest.mark.parametrize("make", [make_source, make_hugging_face])
def test_it_starts_from_the_encoder_of_a_checkpoint(tmp_path, make):
    arrays = make(tmp_path / "start")
    if make is make_hugging_face:  # both of its configurations say which GELU it is
        (tmp_path / "start" / "bert_config.json").unlink()
    model = BertQuestionAnswering(CONFIG, seed=7)
    loaded = model_state.load_weights(model, str(tmp_path / "start"))
    assert loaded.fresh == tuple(HEAD)
    for variable in model.weights[:-2]:
        np.testing.assert_array_equal(variable.numpy(), arrays[variable.path])
