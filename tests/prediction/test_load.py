"""`official_bert.load`: what a folder holds decides what one gets, and what is missing is named."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from bert_checkpoints import (
    CONFIG,
    as_tensors,
    make_hugging_face,
    make_source,
    random_tensors,
    write_hugging_face,
)
from model_kinds import make_kind
from small_runs import SHORT, train
from small_runs import make_run as make_pretraining

import official_bert
from official_bert import convert_checkpoint
from official_bert.model.pretrainer import BertPretrainer
from official_bert.prediction.predictors import BlankFiller
from official_bert.tasks import labels
from official_bert.training import checkpoints


def make_classifier(folder, contents=None, kind="classes"):
    """A folder as the official script leaves it, with a `labels.json` if there are contents."""
    make_kind(kind, folder)
    (folder / "labels.json").unlink()
    if contents:
        (folder / "labels.json").write_text(json.dumps(contents))


# Folders of runs


@pytest.fixture(scope="module")
def pretrained(small_corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "model"
    train(make_pretraining(small_corpus, [SHORT]), folder)
    return folder


def test_a_pretraining_run_fills_blanks(small_corpus, pretrained):
    model = official_bert.load(pretrained, small_corpus.vocab_file)
    assert type(model) is BlankFiller
    assert len(model.predict(["return the [MASK]"])[0][0]) == 3
    pieces = model.tokenizer.get_vocab_size()
    assert repr(model).startswith("<BlankFiller: 1 × 32 units, ")
    assert f"{pieces:,} word pieces, from {pretrained}/ctl_step_8.ckpt-2 (Ten" in repr(model)


def test_before_its_first_update_a_run_is_what_its_seed_makes_of_it(small_corpus, pretrained):
    found = official_bert.load(pretrained, small_corpus.vocab_file, step=0).model
    seed = make_pretraining(small_corpus).seed
    for variable, wanted in zip(found.weights, BertPretrainer(small_corpus.config, seed).weights):
        np.testing.assert_array_equal(variable.numpy(), wanted.numpy())


@pytest.mark.parametrize("step", [0, 4, 8, None])
def test_the_weights_of_every_step_that_is_kept_are_loaded(small_corpus, pretrained, step):
    (prefix,) = pretrained.glob("initial/*.index" if step == 0 else f"ctl_step_{step or 8}.*.index")
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


def test_a_folder_of_several_seeds_names_them(tmp_path):
    for seed in 1, 2:
        (tmp_path / f"seed_{seed}").mkdir()
        (tmp_path / f"seed_{seed}/run.json").write_text("{}")
    with pytest.raises(ValueError, match=r"several seeds \(seed_1, seed_2\). Give one of their"):
        official_bert.load(tmp_path)


# Checkpoints of every form


NAMES = ["нет", "maybe", "yes"]
SENTENCES = ["the cat", "sat 中", ""]
ASKED = {
    "blanks": ["The cat [MASK] on a mat.", "[MASK] [MASK]!"],
    "classes": [*SENTENCES, ("sat", "中")],
    "labels": [*SENTENCES, ("sat", "中")],
    "answers": [("the cat?", "The cat sat. Un able, a mat! 中 é naive. " * 3)],
    "tags": [*SENTENCES, ["a", "cat", "."], [], "unaffable " * 40],
}


@pytest.mark.parametrize("kind", ASKED)
def test_a_model_of_every_kind_predicts_alike_in_every_form(tmp_path, kind):
    make_kind(kind, tmp_path / "in")
    if kind in ("classes", "labels"):
        (tmp_path / "in/labels.json").write_text(json.dumps({kind: NAMES}))
    wanted, folder = official_bert.load(tmp_path / "in").predict(ASKED[kind]), "in"
    for form in "huggingface", "keras", "tf1":
        convert_checkpoint.convert(tmp_path / folder, tmp_path / form, form)
        assert official_bert.load(tmp_path / form).predict(ASKED[kind]) == wanted
        folder = form
    if kind in ("classes", "labels"):
        assert [*wanted[0].probabilities] == NAMES


def test_a_model_of_several_labels_has_those_above_a_threshold(tmp_path):
    names = ["joy", "anger", "fear"]
    make_classifier(tmp_path / "in", {"labels": names})
    model = official_bert.load(tmp_path / "in")
    assert repr(model).startswith("<SentenceClassifier: any of 3 labels, of sentences or pairs,")
    texts = ["the cat", ("sat", "中"), ""]
    for text, one in zip(texts, model.predict(texts)):
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
    make_classifier(tmp_path / "in", kind="number")
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
    make_classifier(tmp_path / "in", contents)
    with pytest.raises(ValueError, match=message):
        official_bert.load(tmp_path / "in")


def test_what_cannot_be_a_model_in_use_is_named(tmp_path):
    make_source(tmp_path / "in")
    whole = random_tensors(CONFIG)
    bare = {n: a for n, a in whole.items() if n[:4] != "cls/"}
    tags = {"tags/kernel": np.zeros((16, 5), "f4")}
    more = {"bert/encoder/layer_2/x": np.zeros(3, "f4")}
    bias = "bert/encoder/layer_1/output/dense/bias"
    for tensors, message in (
        (bare | tags, "got encoder, pooler, tags/kernel .* of an unknown task: .* --allow_missing"),
        (bare | more, r"left over: bert/encoder/layer_2/x \(3,\)"),
        (whole | more, r"left over: bert/encoder/layer_2/x \(3,\)"),
        ({n: a for n, a in whole.items() if n != bias}, f"missing: {bias}"),
    ):
        checkpoints.write_bundle(tmp_path / "in/bert_model.ckpt", tensors)
        with pytest.raises(ValueError, match=message):
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
