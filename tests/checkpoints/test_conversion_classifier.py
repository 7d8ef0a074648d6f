"""A fine-tuned classifier for Hugging Face and for TensorFlow 1: its head and its classes."""

import json

import numpy as np
import peers
import pytest
from bert_checkpoints import CONFIG, assert_same_bytes, make_source, random_batch, random_tensors

from official_bert.checkpoints import source, sources
from official_bert.convert_checkpoint import convert
from official_bert.data import tokenization
from official_bert.model.fine_tuning import BertClassifier
from official_bert.training import checkpoints, model_state


@pytest.fixture
def fine_tuned(tmp_path):
    """A function that makes a folder as `run_classifier` leaves it; returns its tensors."""

    def make(outputs, labels):
        make_source(tmp_path / "in")
        rng = np.random.default_rng(5)
        tensors = {n: a for n, a in random_tensors(CONFIG).items() if not n.startswith("cls/")}
        tensors["output_weights"] = rng.normal(0, 1, (outputs, CONFIG.hidden_size)).astype("f4")
        tensors["output_bias"] = rng.normal(0, 1, outputs).astype("f4")
        slots = {f"{name}/adam_{slot}": array for name, array in tensors.items() for slot in "mv"}
        counters = {"global_step": np.int64(9), "optimizer/iterations": np.int64(9)}
        checkpoints.write_bundle(tmp_path / "in" / "bert_model.ckpt", tensors | slots | counters)
        (tmp_path / "in" / "labels.json").write_text(json.dumps(labels))
        return tensors

    return make


@pytest.mark.parametrize(
    ("labels", "outputs", "kind"),
    [
        ({"classes": ["no", "maybe", "yes"]}, 3, "single_label_classification"),
        ({"number": [0, 5]}, 1, "regression"),
        ({"labels": ["joy", "anger|fear", "猫"]}, 3, "multi_label_classification"),
        ({"labels": ["toxic"]}, 1, "multi_label_classification"),
    ],
)
def test_transformers_computes_the_same_from_an_export(fine_tuned, tmp_path, labels, outputs, kind):
    torch, transformers = peers.load("torch"), peers.load("transformers")
    fine_tuned(outputs, labels)
    said = convert(tmp_path / "in", tmp_path / "out", "huggingface")
    assert "(encoder, pooler, classifier)" in said[0]
    theirs, notes = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not notes["missing_keys"]
    assert not notes["unexpected_keys"]
    assert theirs.config.problem_type == kind
    assert list(theirs.config.id2label.values()) == (source.output_names(labels) or ["LABEL_0"])
    opened = sources.open_checkpoint(tmp_path / "out")
    assert opened.labels == ({"number": [None, None]} if kind == "regression" else labels)
    ours = BertClassifier(CONFIG, outputs)
    model_state.load_weights(ours, str(tmp_path / "in" / "bert_model.ckpt"))
    batch = random_batch(CONFIG)
    with torch.no_grad():
        logits = theirs.eval()(
            input_ids=torch.tensor(batch["input_ids"]).long(),
            attention_mask=torch.tensor(batch["input_mask"]).long(),
            token_type_ids=torch.tensor(batch["segment_ids"]).long(),
        ).logits
    np.testing.assert_allclose(ours(batch), logits.numpy(), atol=1e-4)


def test_an_export_for_tensorflow_1_has_the_same_bytes_and_moments(fine_tuned, tmp_path):
    tensors = fine_tuned(2, {"classes": ["a", "b"]})
    convert(tmp_path / "in", tmp_path / "out", "tf1")
    found = checkpoints.read_tensors(tmp_path / "out" / "bert_model.ckpt")
    slots = {f"{name}/adam_{slot}": array for name, array in tensors.items() for slot in "mv"}
    assert_same_bytes(found, tensors | slots | {"global_step": np.array(9)})


@pytest.mark.parametrize("output_format", ["huggingface", "savedmodel"])
def test_classes_of_another_model_are_refused(fine_tuned, tmp_path, output_format):
    fine_tuned(3, {"classes": ["a", "b"]})
    with pytest.raises(
        ValueError, match="labels.json must name 3 classes, one per output of the head; got 2"
    ):
        convert(tmp_path / "in", tmp_path / "out", output_format)
    assert not (tmp_path / "out").exists()


def test_the_vocabulary_and_the_case_are_those_of_the_run(fine_tuned, tmp_path):
    fine_tuned(2, {"classes": ["no", "yes"]})
    vocab_file = tmp_path / "in" / "vocab.txt"
    vocabulary = tokenization.read_vocabulary(str(vocab_file))
    run = {"stages": [], "vocabulary": tokenization.digest(vocabulary), "do_lower_case": False}
    (tmp_path / "in" / "run.json").write_text(json.dumps(run))
    said = convert(tmp_path / "in", tmp_path / "out", "huggingface")
    assert said[1].endswith("vocab.txt, cased")
    pieces = [*vocabulary]
    vocab_file.write_text("\n".join([*pieces[:-2], *pieces[:-3:-1]]) + "\n")
    with pytest.raises(ValueError, match="must be the vocabulary that the model in .* was"):
        convert(tmp_path / "in", tmp_path / "again", "tf1")
