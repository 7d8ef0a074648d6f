"""`official_bert.load`: what a folder holds decides what one gets, and what is missing is named."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from bert_checkpoints import (
    CONFIG,
    as_tensors,
    make_hugging_face,
    make_source,
    random_tensors,
    write_hugging_face,
    write_vocabulary,
)
from small_runs import SHORT, final_tensors, train
from small_runs import make_run as make_pretraining
from small_sentences import STAGE, make_run, make_task, number_task

import official_bert
from official_bert import convert_checkpoint
from official_bert.engines.tf_distribute import TfDistribute
from official_bert.model.pretrainer import BertPretrainer
from official_bert.prediction.predictors import BlankFiller, SentenceClassifier
from official_bert.tasks import labels
from official_bert.tasks.tables import Columns
from official_bert.training import checkpoints, fine_tuned

TEXTS = ["The cat [MASK] on a mat.", "[MASK] [MASK]!"]


def classifier_tensors(outputs=3, seed=0):
    rng = np.random.default_rng(seed)
    tensors = {n: a for n, a in random_tensors(CONFIG, seed).items() if not n.startswith("cls/")}
    head = rng.normal(0, 1, (outputs, CONFIG.hidden_size + 1)).astype("f4")
    return tensors | {"output_weights": head[:, 1:], "output_bias": head[:, 0]}


def make_classifier(folder, outputs=3, contents=None):
    """A folder as the official script leaves it, with a `labels.json` if there are contents."""
    make_source(folder)
    checkpoints.write_bundle(folder / "bert_model.ckpt", classifier_tensors(outputs))
    if contents:
        (folder / "labels.json").write_text(json.dumps(contents))


# Folders of runs


@pytest.fixture(scope="module")
def pretrained(small_corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "model"
    train(make_pretraining(small_corpus, [SHORT]), folder)
    return folder


def test_a_pretraining_run_fills_blanks_with_its_newest_weights(small_corpus, pretrained):
    model = official_bert.load(pretrained, small_corpus.vocab_file)
    assert type(model) is BlankFiller
    tensors = final_tensors(pretrained)
    for variable in model.model.weights:
        np.testing.assert_array_equal(variable.numpy(), tensors[variable.path])
    assert len(model.predict(["return the [MASK]"])[0][0]) == 3
    pieces = model.tokenizer.get_vocab_size()
    assert repr(model).startswith("<BlankFiller: 1 × 32 units, ")
    assert f"{pieces:,} word pieces, from {pretrained}/ctl_step_8.ckpt-2 (Ten" in repr(model)


def test_before_its_first_update_a_run_is_what_its_seed_makes_of_it(small_corpus, pretrained):
    found = official_bert.load(pretrained, small_corpus.vocab_file, step=0).model
    seed = make_pretraining(small_corpus).seed
    for variable, wanted in zip(found.weights, BertPretrainer(small_corpus.config, seed).weights):
        np.testing.assert_array_equal(variable.numpy(), wanted.numpy())


@pytest.mark.parametrize("step", [0, 4, 8])
def test_the_weights_of_every_step_that_is_kept_are_loaded(small_corpus, pretrained, step):
    (prefix,) = pretrained.glob(f"ctl_step_{step}.*.index" if step else "initial/*.index")
    model = official_bert.load(pretrained, small_corpus.vocab_file, step=step)
    wanted = checkpoints.read_tensors(prefix.with_suffix(""))
    for variable in model.model.weights:
        np.testing.assert_array_equal(variable.numpy(), wanted[variable.path])


def test_a_step_that_is_not_kept_is_refused_with_those_that_are(
    small_corpus, pretrained, small_sentences, tmp_path
):
    for step in (5, -1, "4"):
        with pytest.raises(ValueError, match=f"step must .* got {step}. Steps with .*: 0, 4, 8\\."):
            official_bert.load(pretrained, small_corpus.vocab_file, step=step)
    shutil.copytree(pretrained, tmp_path / "older")
    shutil.rmtree(tmp_path / "older/initial")
    with pytest.raises(ValueError, match=r"got 0. Steps with a checkpoint: 4, 8\."):
        official_bert.load(tmp_path / "older", small_corpus.vocab_file, step=0)
    for path in ("pretrained", "ctl_step_4.ckpt-1"):
        with pytest.raises(ValueError, match=r"step must be left out except for the folder of a"):
            official_bert.load(pretrained / path, small_corpus.vocab_file, step=4)


def test_steps_at_which_a_run_had_fewer_layers_are_loaded_with_these(small_corpus, tmp_path):
    config = dataclasses.replace(small_corpus.config, num_hidden_layers=2)
    stages = [dataclasses.replace(SHORT, steps=2, warmup_steps=1, depth=depth) for depth in (1, 2)]
    train(make_pretraining(small_corpus, stages, config=config), tmp_path)
    for step, depth in {0: 1, 2: 1, 4: 2}.items():
        model = official_bert.load(tmp_path, small_corpus.vocab_file, step=step).model
        assert model.config.num_hidden_layers == depth


def test_without_a_vocabulary_an_error_says_how_to_give_it(pretrained):
    with pytest.raises(ValueError, match=r"must hold a tokenizer.json or vocab.txt; got"):
        official_bert.load(pretrained)


def test_a_damaged_newest_checkpoint_is_passed_over(small_corpus, pretrained, tmp_path, capsys):
    shutil.copytree(pretrained, tmp_path / "model")
    (tmp_path / "model/ctl_step_8.ckpt-2.data-00000-of-00001").write_bytes(b"")
    model = official_bert.load(tmp_path / "model", small_corpus.vocab_file)
    assert "ctl_step_4.ckpt-1" in repr(model)
    assert "is damaged" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["classes", "numbers", "pairs"])
def test_a_fine_tuned_run_predicts_what_its_task_does(small_sentences, tmp_path, kind):
    task = number_task(small_sentences) if kind == "numbers" else make_task(small_sentences)
    if kind == "pairs":
        task = dataclasses.replace(task, columns=Columns("sentence", "other"))
    stages = (dataclasses.replace(STAGE, steps=4, warmup_steps=1),)
    train(make_run(small_sentences, task=task, stages=stages), tmp_path)
    labels.save(task.labels, str(tmp_path / "labels.json"))
    model = official_bert.load(tmp_path, small_sentences.vocab_file)
    assert type(model) is SentenceClassifier
    assert (model.max_seq_length, model.takes_pairs) == (32, kind == "pairs")
    examples = task.read(small_sentences.dev)
    found = model.predict(
        zip(examples.sentences1, examples.sentences2) if kind == "pairs" else examples.sentences1
    )
    reference, _ = fine_tuned.load(task, tmp_path, TfDistribute(tf.distribute.get_strategy()))
    outputs = np.asarray(reference(task.arrays(examples, 32, small_sentences.config)))
    if kind == "numbers":
        wanted = [float(number) for number in task.labels.decode(outputs[:, 0])]
        assert [p.number for p in found] == pytest.approx(wanted, abs=1e-5)
    else:
        probabilities = [list(prediction.probabilities.values()) for prediction in found]
        np.testing.assert_allclose(probabilities, task.target.probabilities(outputs), atol=1e-5)
        assert [p.label for p in found] == task.labels.decode(task.target.predictions(outputs))


def test_the_weights_alone_of_a_run_know_its_settings_too(small_sentences, tmp_path):
    stages = (dataclasses.replace(STAGE, steps=1, warmup_steps=0),)
    train(make_run(small_sentences, stages=stages), tmp_path / "run")
    labels.save(make_task(small_sentences).labels, str(tmp_path / "run/labels.json"))
    shutil.copy(small_sentences.vocab_file, tmp_path / "run/vocab.txt")
    exported, whole = (official_bert.load(tmp_path / name) for name in ("run/pretrained", "run"))
    assert exported.max_seq_length == whole.max_seq_length == 32
    assert exported.predict(["return"]) == whole.predict(["return"])
    write_vocabulary(tmp_path)
    with pytest.raises(ValueError, match="must be the vocabulary that the model in .* was trained"):
        official_bert.load(tmp_path / "run", tmp_path / "vocab.txt")


def test_a_folder_of_several_seeds_names_them(tmp_path):
    for seed in 1, 2:
        (tmp_path / f"seed_{seed}").mkdir()
        (tmp_path / f"seed_{seed}/run.json").write_text("{}")
    with pytest.raises(ValueError, match=r"several seeds \(seed_1, seed_2\). Give one of their"):
        official_bert.load(tmp_path)


# Checkpoints of every form


@pytest.mark.parametrize("through", ["tf1", "huggingface", "keras"])
def test_a_pretrained_model_fills_blanks_alike_in_every_form(tmp_path, through):
    make_source(tmp_path / "in")
    convert_checkpoint.convert(tmp_path / "in", tmp_path / "out", through)
    wanted = official_bert.load(tmp_path / "in").predict(TEXTS)
    assert official_bert.load(tmp_path / "out").predict(TEXTS) == wanted


@pytest.mark.parametrize("through", ["tf1", "huggingface", "keras"])
def test_a_classifier_keeps_the_names_of_its_classes_in_every_form(tmp_path, through):
    make_classifier(tmp_path / "in", contents={"classes": ["нет", "maybe", "yes"]})
    convert_checkpoint.convert(tmp_path / "in", tmp_path / "there", through)
    convert_checkpoint.convert(tmp_path / "there", tmp_path / "back", "tf1")
    texts = ["the cat", ("sat", "中")]
    wanted = official_bert.load(tmp_path / "in").predict(texts)
    assert list(wanted[0].probabilities) == ["нет", "maybe", "yes"]
    for folder in "there", "back":
        assert official_bert.load(tmp_path / folder).predict(texts) == wanted


@pytest.mark.parametrize("through", ["tf1", "huggingface", "keras"])
def test_a_model_of_several_labels_is_one_in_every_form(tmp_path, through):
    names = ["joy", "anger", "fear"]
    make_classifier(tmp_path / "in", contents={"labels": names})
    convert_checkpoint.convert(tmp_path / "in", tmp_path / "there", through)
    convert_checkpoint.convert(tmp_path / "there", tmp_path / "back", "tf1")
    model = official_bert.load(tmp_path / "in")
    assert repr(model).startswith("<SentenceClassifier: any of 3 labels, of sentences or pairs,")
    texts = ["the cat", ("sat", "中"), ""]
    wanted = model.predict(texts)
    for folder in "there", "back":
        assert official_bert.load(tmp_path / folder).predict(texts) == wanted
    for text, one in zip(texts, wanted):
        assert [*one.probabilities] == names
        likeliest = sorted(names, key=one.probabilities.get, reverse=True)
        assert one.labels == [name for name in likeliest if one.probabilities[name] > 0.5]
        assert model.predict([text], threshold=0)[0].labels == likeliest
        assert model.predict([text], threshold=1)[0].labels == []
    with pytest.raises(ValueError, match=r"threshold must be a probability, 0 to 1; got 1\.5"):
        model.predict(texts, threshold=1.5)
    model.labels = labels.Classes(tuple(names))
    with pytest.raises(ValueError, match="threshold must be left out: .* one of 3 classes"):
        model.predict(texts, threshold=0.5)


def test_classes_without_names_have_those_of_an_export(tmp_path):
    make_classifier(tmp_path / "in")
    convert_checkpoint.convert(tmp_path / "in", tmp_path / "out", "huggingface")
    found = [official_bert.load(tmp_path / folder).predict(["a"]) for folder in ("in", "out")]
    assert found[0] == found[1]
    assert list(found[0][0].probabilities) == ["LABEL_0", "LABEL_1", "LABEL_2"]


def test_one_output_without_labels_is_a_number(tmp_path):
    make_classifier(tmp_path / "in", outputs=1)
    assert type(official_bert.load(tmp_path / "in").predict(["a"])[0].number) is float


def test_the_arithmetic_may_be_in_half_the_bits(tmp_path):
    make_classifier(tmp_path / "in")
    exact = official_bert.load(tmp_path / "in").predict(["the cat"])[0]
    model = official_bert.load(tmp_path / "in", dtype="bf16")
    assert model.model.compute_dtype == "bfloat16"
    half = list(model.predict(["the cat"])[0].probabilities.values())
    assert half == pytest.approx(list(exact.probabilities.values()), abs=0.1)


def test_a_cased_vocabulary_is_recognised_and_may_be_said_to_be(tmp_path):
    make_source(tmp_path / "in", cased=True)
    model = official_bert.load(tmp_path / "in")
    assert model.tokenizer.encode("The", add_special_tokens=False).tokens == ["The"]
    with pytest.raises(ValueError, match="must be off for a cased vocabulary"):
        official_bert.load(tmp_path / "in", do_lower_case=True)


# What is refused


def with_head(folder, architectures, head, **values):
    """A folder of Hugging Face's with a head, and without those of pre-training."""
    arrays = make_hugging_face(folder)
    encoder = {n: a for n, a in arrays.items() if not n.startswith("cls/")}
    write_hugging_face(folder, encoder, CONFIG, extra=as_tensors(head).items())
    config = {"model_type": "bert", **json.loads(CONFIG.to_json()), "hidden_act": "gelu_new"}
    (folder / "bert_config.json").unlink()
    (folder / "config.json").write_text(
        json.dumps(config | {"architectures": architectures} | values)
    )


THREE = {"classifier.weight": np.ones((3, 16), "f4"), "classifier.bias": np.ones(3, "f4")}


@pytest.mark.parametrize(
    ("architectures", "values"),
    [
        (["BertForMultipleChoice"], {}),
        (["BertForSequenceClassification"], {"problem_type": "regression"}),
        (None, {}),
    ],
)
def test_heads_of_the_same_shape_for_other_tasks_are_no_classifiers(
    tmp_path, architectures, values
):
    with_head(tmp_path / "in", architectures, THREE, **values)
    with pytest.raises(ValueError, match=r"got classifier.bias, classifier.weight, encoder, pool"):
        official_bert.load(tmp_path / "in")


@pytest.mark.parametrize(
    "names",
    [{"0": "a"}, {"0": "a", "1": "b", "x": "c"}, ["a", "b", "c"], {"0": "a", "1": "a", "2": "b"}],
)
def test_classes_that_are_not_named_whole_are_refused(tmp_path, names):
    with_head(tmp_path / "in", ["BertForSequenceClassification"], THREE, id2label=names)
    with pytest.raises(ValueError, match="id2label|two different names"):
        official_bert.load(tmp_path / "in")


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"classes": ["a", "b"]}, "the labels next to .* must be 3, as the outputs .*; got 2"),
        ({"number": [0, 1]}, "the labels next to .* must be 3, as the outputs .*; got 1"),
        ({"labels": ["a", "b"]}, "the labels next to .* must be 3, as the outputs .*; got 2"),
        ({"labels": 7}, "must hold the labels of a model"),
        ({"classes": 7}, "must hold the labels of a model"),
        ({"number": 7}, "labels next to .* are damaged"),
        (["a"], "must hold the labels of a model"),
    ],
)
def test_labels_of_another_model_are_refused(tmp_path, contents, message):
    make_classifier(tmp_path / "in", contents=contents)
    with pytest.raises(ValueError, match=message):
        official_bert.load(tmp_path / "in")


def test_what_cannot_be_a_model_in_use_is_named(tmp_path):
    make_source(tmp_path / "in")
    write = checkpoints.write_bundle
    whole = random_tensors(CONFIG)
    bare = {n: a for n, a in whole.items() if n[:4] != "cls/"}
    write(tmp_path / "in/bert_model.ckpt", bare | {"tags/kernel": np.zeros((16, 5), "f4")})
    message = (
        "got encoder, pooler, tags/kernel .* head is of an unknown task: .* --allow_missing_head"
    )
    with pytest.raises(ValueError, match=message):
        official_bert.load(tmp_path / "in")
    write(tmp_path / "in/bert_model.ckpt", bare | {"bert/encoder/layer_2/x": np.zeros(3, "f4")})
    with pytest.raises(ValueError, match=r"left over: bert/encoder/layer_2/x \(3,\)"):
        official_bert.load(tmp_path / "in")
    write(tmp_path / "in/bert_model.ckpt", whole | {"bert/encoder/layer_2/x": np.zeros(3, "f4")})
    with pytest.raises(ValueError, match=r"left over: bert/encoder/layer_2/x \(3,\)"):
        official_bert.load(tmp_path / "in")
    whole.pop("bert/encoder/layer_1/output/dense/bias")
    write(tmp_path / "in/bert_model.ckpt", whole)
    with pytest.raises(ValueError, match="missing: bert/encoder/layer_1/output/dense/bias"):
        official_bert.load(tmp_path / "in")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "float32"}, "dtype must be fp32 or bf16 or fp16; got 'float32'"),
        (
            {"folder": "gs://bucket/model"},
            "folder must be a path on this machine; got the address 'gs://bucket/model'",
        ),
        ({"folder": "nowhere"}, "nowhere must be a folder with a checkpoint"),
        ({"vocab_file": "nowhere"}, "must be an existing file; got 'nowhere'"),
    ],
)
def test_arguments_that_lead_nowhere_are_named(tmp_path, arguments, message):
    make_source(tmp_path / "in")
    with pytest.raises(ValueError, match=message):
        official_bert.load(**{"folder": tmp_path / "in"} | arguments)


def test_a_vocabulary_much_smaller_than_the_model_is_another_ones(tmp_path):
    make_source(tmp_path / "in", dataclasses.replace(CONFIG, vocab_size=200))
    with pytest.raises(ValueError, match="must have the 200 tokens of the model in .*; got 27"):
        official_bert.load(tmp_path / "in")


def test_the_package_is_imported_without_anything_heavy():
    code = "import sys, official_bert; official_bert.load; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    modules = set(done.stdout.decode().split())
    assert modules
    assert not {"tensorflow", "keras", "numpy", "tokenizers"} & modules
