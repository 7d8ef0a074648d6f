"""Fine-tuning next to Hugging Face's, and the tasks on the loop: learning, replicas."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import small_sentences as sentences
import small_squad as questions
import small_tags as tags
import tensorflow as tf
from bert_checkpoints import CONFIG, make_hugging_face, make_source
from peer_tasks import by_their_names, peer_loss, peer_model
from small_runs import QUIET, STAGE, final_tensors, log_lines, train, without_dropout
from small_squad import qa, write_squad
from two_replicas import two_replicas

from official_bert.data.row_batches import Arrays, RowBatches
from official_bert.engines import loop_state, tf_update
from official_bert.engines.tf_distribute import TfDistribute
from official_bert.model.fine_tuning import BertClassifier, BertQuestionAnswering, BertTagger
from official_bert.prediction.forward import Forward
from official_bert.stages import Optimizer
from official_bert.tasks import squad_data, squad_decoding
from official_bert.tasks.labels import Classes
from official_bert.tasks.tables import Columns
from official_bert.training import model_state, stage_model

OPTIONS = dataclasses.replace(QUIET, save_checkpoints_steps=20, log_steps=20, steps_per_loop=20)
UPDATES = 20
WINDOWS = questions.WINDOWS
CLASSES = sentences.make_task
TASKS = {
    "classes": CLASSES,
    "pairs": lambda s: CLASSES(s, columns=Columns("sentence", "other")),
    "three classes": lambda s: CLASSES(s, labels=Classes(("plain", "rare", "begun"))),
    "weighted classes": lambda s: CLASSES(s, class_weights=(0.25, 3.0)),
    "numbers": sentences.number_task,
    "labels": sentences.label_task,
    "questions": questions.make_task,
    "tags": tags.make_task,
}
KINDS = {"questions": (questions, "small_questions"), "tags": (tags, "small_tags")}


def examples_of(request, name):
    """The small examples of a task of `TASKS`, and a function that makes a run of it."""
    kind, fixture = KINDS.get(name, (sentences, "small_sentences"))
    small = request.getfixturevalue(fixture)
    task = TASKS[name](small)

    def make(**changed):
        return kind.make_run(small, **{"task": task} | changed)

    return small, make


def evaluated(small):
    return dataclasses.replace(OPTIONS, eval_files=(small.dev,), eval_batch_size=16)


def short(steps):
    return (dataclasses.replace(STAGE, steps=steps, warmup_steps=steps // 4),)


# Next to Hugging Face


@pytest.fixture(params=TASKS)
def alike(request):
    """A run without dropout, with its batches, model and optimizer."""
    small, make = examples_of(request, request.param)
    config = dataclasses.replace(without_dropout(small.config), num_hidden_layers=2)
    stage = dataclasses.replace(STAGE, steps=UPDATES, warmup_steps=5, learning_rate=1e-3)
    run = make(config=config, stages=(stage,), optimizer=Optimizer(type="adamw"))
    batches = run.task.batches(run.input_files, stage, 16, config, seed=1, shard=(0, 1))
    return run, batches, *stage_model.make_model_and_optimizer(run, stage)


def test_loss_and_gradients_are_those_of_hugging_face(peer, alike):
    run, batches, model, _ = alike
    theirs = peer_model(peer, run, {v.path: v.numpy() for v in model.weights})
    sums, gradients = tf_update.sums_and_gradients(run, model, batches[0], np.arange(16), 0, 1.0)
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


@pytest.mark.parametrize("alike", ["numbers", "pairs", "questions", "tags"], indirect=True)
def test_twenty_updates_with_adamw_are_those_of_pytorch(peer, alike):
    run, batches, model, optimizer = alike
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
    weights = by_their_names({v.path: v.numpy() for v in model.weights})
    for path, weight in peer.get_weights(theirs).items():
        np.testing.assert_allclose(weights[path], weight, atol=2e-4, err_msg=path)


# On the loop


def test_it_learns_and_reports_beside_the_majority_class(small_sentences, tmp_path, capsys):
    train(sentences.make_run(small_sentences), tmp_path / "model", evaluated(small_sentences))
    last = [line for line in log_lines(tmp_path / "model") if line["kind"] == "eval"][-1]
    assert last["accuracy"] > 0.8 > 0.6 > last["majority_class_accuracy"] >= 0.5
    assert last["examples"] == 26
    said = capsys.readouterr().out
    assert "held out: loss" in said
    assert "(most frequent class: 50.0%)" in said
    assert "accuracy" in next(line for line in said.splitlines() if line.startswith("step 60/60"))


def test_numbers_are_learned_and_reported_beside_their_mean(small_sentences, tmp_path, capsys):
    run = sentences.make_run(small_sentences, task=sentences.number_task(small_sentences))
    train(run, tmp_path / "model", evaluated(small_sentences))
    last = [line for line in log_lines(tmp_path / "model") if line["kind"] == "eval"][-1]
    assert last["mean_label_squared_error"] == pytest.approx(np.var([0.0, 2.5]))
    assert last["loss"] == last["mean_squared_error"] < 0.5
    assert "held out: mean squared error" in capsys.readouterr().out


def test_labels_are_learned_and_reported_beside_the_most_frequent(
    small_sentences, tmp_path, capsys
):
    run = sentences.make_run(small_sentences, task=sentences.label_task(small_sentences))
    train(run, tmp_path / "model", evaluated(small_sentences))
    last = [line for line in log_lines(tmp_path / "model") if line["kind"] == "eval"][-1]
    assert last["f1_micro"] > 0.65 > 0.5 > last["most_frequent_label_f1_micro"]
    rows = [line.split("\t") for line in Path(small_sentences.dev).read_text().splitlines()[1:]]
    sets = [cell.split("|") if cell else [] for *_, cell in rows]
    hits = max(sum(name in labels for labels in sets) for name in ("begun", "noun", "verb"))
    expected = 2 * hits / (len(sets) + sum(map(len, sets)))
    assert last["most_frequent_label_f1_micro"] == pytest.approx(expected)
    said = capsys.readouterr().out
    assert re.search(r"held out: loss .*, F1 micro .* \(most frequent label: ", said)
    assert "F1 micro" in next(line for line in said.splitlines() if line.startswith("step 60/60"))


def test_weights_of_classes_are_of_training_alone(small_sentences):
    task = CLASSES(small_sentences, class_weights=(0.25, 3.0))
    arguments = [small_sentences.dev], STAGE, 8, small_sentences.config
    training = task.batches(*arguments, seed=1, shard=(0, 1))[0]
    expected = np.array([0.25, 3.0], np.float32)[training["labels"]]
    np.testing.assert_array_equal(training["loss_weights"], expected)
    held_out = task.batches(*arguments, seed=1, shard=(0, 1), held_out=True)[3]  # padded
    outputs, plain = np.random.default_rng(0).normal(size=(8, 2)), CLASSES(small_sentences)
    losses = []
    for each in task, plain:
        sums = each.batch_sums(outputs, held_out)
        losses.append(each.metrics([float(sums[name]) for name in each.sums])["loss"])
    assert losses[0] == losses[1]


def answers(task, model, file):
    """The scores of a model's answers to the questions of a file, in percent."""
    dataset = squad_data.read(file)
    features = task.features(dataset.questions, model.config)
    logits = Forward(model).whole(features, 8, (task.windows.max_seq_length, 2))
    found = squad_decoding.decode(features, logits[..., 0], logits[..., 1])
    return squad_decoding.scores(dataset, found)


def test_a_tiny_model_learns_a_handful_of_questions_by_heart(small_questions, tmp_path, capsys):
    run = questions.by_heart(small_questions)
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


def test_it_resumes_exactly(small_sentences, tmp_path):
    run = sentences.make_run(small_sentences)
    train(run, tmp_path / "whole", OPTIONS)
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    for file in (tmp_path / "killed").glob("ctl_step_60*"):
        file.unlink()
    train(run, tmp_path / "killed", OPTIONS)
    assert log_lines(tmp_path / "killed") == log_lines(tmp_path / "whole")
    resumed, whole = (final_tensors(tmp_path / name) for name in ("killed", "whole"))
    assert resumed.keys() == whole.keys()
    for path in whole:
        np.testing.assert_array_equal(resumed[path], whole[path], err_msg=path)


def test_the_pooler_has_no_moments_and_keeps_its_weights(small_questions, tmp_path):
    run = questions.make_run(small_questions, stages=short(2))
    before = run.task.make_model(run.config, run.seed, "float32").encoder.pooler.kernel.numpy()
    train(run, tmp_path, OPTIONS)
    tensors = final_tensors(tmp_path)
    np.testing.assert_array_equal(tensors["bert/pooler/dense/kernel"], before)
    assert "cls/squad/output_weights/adam_m" in tensors
    assert "bert/pooler/dense/kernel/adam_m" not in tensors


@pytest.mark.parametrize("name", ["weighted classes", "labels", "questions", "tags"])
def test_two_replicas_and_micro_batches_train_to_the_same_weights(request, tmp_path, name):
    small, make = examples_of(request, name)
    run = make(stages=short(4))  # with dropout
    one = train(run, tmp_path / "one", evaluated(small))
    both = dataclasses.replace(run, gradient_accumulation_steps=2)
    two = train(both, tmp_path / "two", evaluated(small), two_replicas())
    for a, b in zip(one.model.weights, two.model.weights, strict=True):
        # A softmax over positions does not see a bias: its gradient is only round-off.
        atol = 1e-3 if a.path.endswith("squad/output_bias") else 1e-5
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=atol, err_msg=a.path)
    for ours, theirs in zip(*(log_lines(tmp_path / name) for name in ("one", "two")), strict=True):
        assert ours.get("loss") == pytest.approx(theirs.get("loss"), abs=1e-4)


CHANGES = {
    "classes": {
        "labels": {"labels": Classes(("begun", "plain"))},
        "columns": {"columns": Columns("other")},
        "do_lower_case": {"do_lower_case": False},
        "class_weights": {"class_weights": (1.0, 2.0)},
    },
    "questions": {
        "version_2_with_negative": {"version_2_with_negative": True},
        "windows.doc_stride": {"windows": dataclasses.replace(WINDOWS, doc_stride=9)},
        "do_lower_case": {"do_lower_case": False},
    },
    "tags": {
        "labels": {"classes": Classes(("O", "B-PER", "I-PER", "B-LOC", "I-LOC"))},
        "do_lower_case": {"do_lower_case": False},
    },
}
NAMES = {"classes": "classification", "questions": "question answering", "tags": "tagging"}


@pytest.mark.parametrize("kind", CHANGES)
def test_another_task_is_refused_in_the_directory_of_a_run(request, tmp_path, kind):
    small, make = examples_of(request, kind)
    run = make(stages=short(1))
    train(run, tmp_path / "model", OPTIONS)
    described = json.loads((tmp_path / "model/run.json").read_text())
    assert described["task"] == NAMES[kind]
    labels = {"classes": ["plain", "begun"], "tags": ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]}
    assert described.get("labels") == labels.get(kind)
    pieces = Path(small.vocab_file).read_text().splitlines()
    (tmp_path / "vocab.txt").write_text("\n".join([*pieces[:-2], pieces[-1], pieces[-2]]) + "\n")
    changes = CHANGES[kind] | {"vocabulary": {"vocab_file": str(tmp_path / "vocab.txt")}}
    for name, changed in changes.items():
        other = dataclasses.replace(run, task=dataclasses.replace(run.task, **changed))
        with pytest.raises(ValueError, match=f"must hold this run; got another: .*{name}"):
            train(other, tmp_path / "model", OPTIONS)


def test_examples_are_known_by_their_content_wherever_they_are(
    small_sentences, tmp_path, monkeypatch
):
    run = sentences.make_run(small_sentences, stages=short(1))
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


@pytest.mark.parametrize("name", ["classes", "questions", "tags"])
def test_a_vocabulary_beyond_the_models_is_refused(request, tmp_path, name):
    small, make = examples_of(request, name)
    config = dataclasses.replace(small.config, vocab_size=15)
    with pytest.raises(
        ValueError, match="must have at most 15 tokens, the size of the model's embeddings"
    ):
        train(make(config=config), tmp_path, OPTIONS)


# Batches


def test_an_edited_table_is_read_anew(small_sentences, tmp_path):
    table = tmp_path / "train.tsv"
    run = sentences.make_run(small_sentences, input_files=(str(table),))
    labels = []
    for label in "plain", "begun":
        table.write_text(f"sentence\tlabel\nreturn it\t{label}\nkeep it\tplain\n")
        batches = run.task.batches(run.input_files, STAGE, 2, run.config, seed=1, shard=(0, 1))
        labels.append(sorted(batches[0]["labels"].tolist()))
    assert labels == [[0, 0], [0, 1]]


def test_an_edited_file_is_read_anew(small_questions, tmp_path):
    task, positions = questions.make_task(small_questions), []
    for answer in ("mill", 4), ("the", 0):
        file = write_squad(tmp_path / "a.json", ("the mill", [qa("1", answer)]))
        positions.append(task.labelled_features([file], small_questions.config).positions[0, 0])
    assert positions[0] == positions[1] + 1


def test_rows_without_text_are_warned_of(small_sentences, tmp_path, capsys):
    task, table = sentences.make_task(small_sentences), tmp_path / "some.tsv"
    table.write_text("sentence\tlabel\nreturn it\tbegun\n\u200b\tplain\n \tplain\n")
    arrays = task.labelled_arrays(str(table), 32, small_sentences.config)
    warned = f"warning: {table}: 2 of 3 rows have no text, first on line 3; their predictions "
    assert capsys.readouterr().err.startswith(warned)
    assert arrays["input_mask"].sum(axis=1).tolist()[1:] == [2, 2]
    task.labelled_arrays(small_sentences.dev, 32, small_sentences.config)
    assert not capsys.readouterr().err


def test_several_tables_are_one_set(small_sentences):
    run, files = sentences.make_run(small_sentences), (small_sentences.train, small_sentences.dev)
    batches = run.task.batches(files, STAGE, 16, run.config, seed=1, shard=(0, 1), held_out=True)
    assert batches.num_examples == 76


def test_windows_come_in_the_order_of_arrays(small_questions):
    """The order is that of every fine-tuning task, whatever form the examples are kept in."""
    task, config = questions.make_task(small_questions), small_questions.config
    features = task.labelled_features([small_questions.train], config)
    arrays = Arrays(features.batch(range(len(features))))
    for settings in {"seed": 5, "shard": (1, 2)}, {"shuffle": False}:
        kept, whole = (RowBatches(rows, 4, **settings) for rows in (features, arrays))
        assert kept.element_spec == whole.element_spec
        for step in 0, 3, whole.num_batches - 1:
            ours, theirs = kept[step], whole[step]
            assert ours.keys() == theirs.keys()
            for name in ours:
                np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
                assert ours[name].dtype == theirs[name].dtype


def test_other_windows_have_another_fingerprint(small_questions, tmp_path):
    def fingerprint(file, **changed):
        task = questions.make_task(small_questions, **changed)
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


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            [qa("1", is_impossible=True), qa("2", ("mill", 4))],
            "unanswerable question .*; got 1 of 2",
        ),
        ([qa("1", ("bridge", 4))], "an answer that occurs in its context; got none in 1"),
        ([qa("1")], "got none in 1 questions"),
    ],
)
def test_questions_that_cannot_be_trained_on_are_refused(small_questions, tmp_path, asked, message):
    file = write_squad(tmp_path / "a.json", ("the mill", asked))
    with pytest.raises(ValueError, match=message):
        questions.make_task(small_questions).labelled_features([file], small_questions.config)


def test_a_stage_that_does_not_fit_the_task_is_refused(small_questions):
    for changed, message in (
        ({"max_predictions_per_seq": 3}, "must be 0 but for pre-training; got 3"),
        ({"max_seq_length": 33}, "must be 32, that of the windows; got 33"),
    ):
        stage = dataclasses.replace(STAGE, **changed)
        with pytest.raises(ValueError, match=message):
            questions.make_run(small_questions, stages=(stage,))


# The model


HEADS = {
    "classes": (lambda config, **more: BertClassifier(config, 3, seed=7, **more), "output"),
    "questions": (
        lambda config, **more: BertQuestionAnswering(config, seed=7, **more),
        "cls/squad/output",
    ),
    "tags": (lambda config, **more: BertTagger(config, 5, seed=7, **more), "cls/tags/output"),
}
each_head = pytest.mark.parametrize(("make", "head"), HEADS.values(), ids=HEADS)
BATCH = {n: np.ones((2, 8), np.int32) for n in ("input_ids", "input_mask", "segment_ids")}


@each_head
def test_the_model_survives_a_keras_file(tmp_path, make, head):
    model = make(CONFIG)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(BATCH), model(BATCH))
    assert [v.path for v in loaded.weights] == [v.path for v in model.weights]
    assert [v.path for v in model.weights][-2:] == [f"{head}_weights", f"{head}_bias"]


@each_head
@pytest.mark.parametrize("save", [make_source, make_hugging_face])
def test_it_starts_from_the_encoder_of_a_checkpoint(tmp_path, make, head, save):
    arrays = save(tmp_path / "start")
    if save is make_hugging_face:  # both of its configurations say which GELU it is
        (tmp_path / "start" / "bert_config.json").unlink()
    model = make(CONFIG)
    before = model.weights[-2].numpy()
    loaded = model_state.load_weights(model, str(tmp_path / "start"))
    assert loaded.fresh == (f"{head}_weights", f"{head}_bias")
    assert str(loaded).endswith(f"carried 39 of 41; fresh: {head}_weights, {head}_bias")
    for variable in model.weights[:-2]:
        np.testing.assert_array_equal(variable.numpy(), arrays[variable.path])
    np.testing.assert_array_equal(model.weights[-2].numpy(), before)


def test_logits_are_float32_in_every_type_of_arithmetic():
    expected = BertQuestionAnswering(CONFIG, seed=7)(BATCH)
    for dtype in "mixed_bfloat16", "mixed_float16":
        logits = BertQuestionAnswering(CONFIG, seed=7, dtype=dtype)(BATCH)
        assert logits.dtype == tf.float32
        assert not np.array_equal(logits, tf.cast(logits, dtype.removeprefix("mixed_")))
        np.testing.assert_allclose(logits, expected, atol=0.05)


# Predictions


@pytest.mark.parametrize("strategy", [tf.distribute.get_strategy, two_replicas])
def test_outputs_come_in_the_order_of_the_examples(small_sentences, strategy):
    task, config = CLASSES(small_sentences), small_sentences.config
    engine = TfDistribute(strategy())
    with engine.scope():
        model = task.make_model(config, 3, "float32")
    arrays = task.labelled_arrays(small_sentences.dev, 32, config)
    for batch_size in 8, 7:
        found = Forward(model, engine).whole(Arrays(arrays), batch_size, (2,))
        np.testing.assert_allclose(found, model(arrays), atol=1e-5)
