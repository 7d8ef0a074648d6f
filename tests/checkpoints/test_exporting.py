"""Exported models run elsewhere, and give what the loaded model predicts."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import peers
import pytest
from model_kinds import CONFIG, HEADS, TAGS, make_kind

import official_bert
from official_bert.checkpoints import serving
from official_bert.convert_checkpoint import convert
from official_bert.tasks import tag_schemes
from official_bert.tasks.metrics import softmax

TEXTS = ["The cat sat on a mat.", "", "Unaffable, naïve É 中é12!", "a [mask] un"]
SECONDS = ["a mat", "the cat. " * 9, "", "É"]
QUESTIONS = ["The cat?", "", "un able, naive, a mat. " * 4, "sat"]
CONTEXTS = ["The cat sat on e\u0301 mat.", "naïve 中 cat", "", "Unaffable É, a mat!"]
BLANKS = ["The cat [MASK] on a mat.", "[MASK] [MASK]", "naïve [MASK]", "un [MASK], [MASK] mat!"]

# A process that knows nothing of this package: a JSON file of {folder: [[signature, inputs]]}.
SERVE = """
import json, sys, tensorflow as tf
answers = {}
for folder, calls in json.load(open("calls.json")).items():
    served = tf.saved_model.load(folder).signatures
    answers[folder] = [
        {n: t.numpy().tolist() for n, t in served[s](**{
            n: tf.constant(v, tf.string if isinstance(v[0], str) else tf.int32)
            for n, v in inputs.items()
        }).items()}
        for s, inputs in calls
    ]
assert not any("official_bert" in name for name in sys.modules)
json.dump(answers, open("answers.json", "w"), default=bytes.decode)
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """{kind: folder of a model}."""
    folder = tmp_path_factory.mktemp("kinds")
    for kind in HEADS:
        make_kind(kind, folder / kind)
    # Trained on less than the model's 20 positions.
    trained = {"stages": [{"steps": 1, "warmup_steps": 0, "max_seq_length": 18}]}
    (folder / "tags/run.json").write_text(json.dumps(trained))
    windows = {"max_seq_length": 18, "doc_stride": 6, "max_query_length": 5}
    (folder / "answers/run.json").write_text(json.dumps(trained | {"windows": windows}))
    return {kind: folder / kind for kind in HEADS}


def export(folders, tmp_path, output_format):
    """{kind: folder of its export}."""
    for kind, folder in folders.items():
        bare = kind == "vectors"
        convert(folder, tmp_path / kind, output_format, allow_missing_heads=bare)
    return {kind: tmp_path / kind for kind in folders}


def batches(model):
    """Two batches that differ in rows and length."""
    rng = np.random.default_rng(0)
    for rows, length in (3, CONFIG.max_position_embeddings), (2, 7):
        ids = rng.integers(0, CONFIG.vocab_size, (rows, length)).astype(np.int32)
        lengths = rng.integers(1, length + 1, (rows, 1))
        batch = {
            "input_ids": ids,
            "input_mask": (np.arange(length) < lengths).astype(np.int32),
            "segment_ids": (np.arange(length) > lengths // 2).astype(np.int32),
            "masked_lm_positions": rng.integers(0, length, (rows, rows)).astype(np.int32),
        }
        yield {name: batch[name] for name in model.input_names}


def named_outputs(model, batch):
    named = model.named_outputs(model(batch))
    return {name: keras.ops.convert_to_numpy(one) for name, one in named.items()}


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-4, err_msg=name)


@pytest.mark.slow
def test_a_saved_model_of_every_kind_takes_ids_and_raw_text_without_this_package(folders, tmp_path):
    export(folders, tmp_path, "savedmodel")
    loaded = {kind: official_bert.load(folder) for kind, folder in folders.items()}
    of_ids = {kind: [*batches(one.model)] for kind, one in loaded.items()}
    singles = "text", {"sentences": TEXTS}
    pairs = "pairs", {"sentences": TEXTS, "seconds": SECONDS}
    of_text = {
        "blanks": [("text", {"sentences": BLANKS})],
        "answers": [("text", {"questions": QUESTIONS, "contexts": CONTEXTS})],
        "tags": [singles],
    }
    calls = {
        kind: [
            *(["serving_default", {n: a.tolist() for n, a in b.items()}] for b in of_ids[kind]),
            *of_text.get(kind, [singles, pairs]),
        ]
        for kind in folders
    }
    (tmp_path / "calls.json").write_text(json.dumps(calls))
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-c", SERVE]
    subprocess.run(command, check=True, cwd=tmp_path, env=environment)
    answers = json.loads((tmp_path / "answers.json").read_text())
    for kind, one in loaded.items():
        for batch, found in zip(of_ids[kind], answers[kind]):
            assert_close(found, named_outputs(one.model, batch))
        CHECKS[kind](one, *answers[kind][2:])
        for found in answers[kind][2:]:
            assert {*found} == outputs_on_the_page(kind)


def outputs_on_the_page(kind):
    """The outputs of the signatures for text in the table of docs/exporting.md."""
    page = (Path(__file__).parents[2] / "docs/exporting.md").read_text()
    names = {"number": "numbers", "labels": "several labels", "vectors": "an encoder"}
    name = names.get(kind, kind)
    (outputs,) = re.findall(rf"^\| {name} \| [^|]+ \| ([^|]+) \|$", page, re.M)
    return {*re.findall(r"`(\w+)`", outputs)}


def check_blanks(filler, found):
    for row, of_blanks in zip(found["masked_lm_logits"], filler.predict(BLANKS, top=1)):
        for logits, (guess,) in zip(row, of_blanks):
            assert guess.probability == pytest.approx(softmax(np.array(logits)).max(), abs=1e-4)


def check_classes(classifier, *answers):
    for texts, found in zip((TEXTS, zip(TEXTS, SECONDS)), answers, strict=True):
        predicted = classifier.predict(texts)
        assert found["label"] == [one.label for one in predicted]
        expected = [[*one.probabilities.values()] for one in predicted]
        np.testing.assert_allclose(found["probabilities"], expected, atol=1e-4)


def check_labels(classifier, *answers):
    for texts, found in zip((TEXTS, zip(TEXTS, SECONDS)), answers, strict=True):
        predicted = classifier.predict(texts)
        assert found["labels"] == [[*one.probabilities] for one in predicted]
        expected = [[*one.probabilities.values()] for one in predicted]
        np.testing.assert_allclose(found["probabilities"], expected, atol=1e-4)


def check_number(classifier, *answers):
    for texts, found in zip((TEXTS, zip(TEXTS, SECONDS)), answers, strict=True):
        expected = [one.number for one in classifier.predict(texts)]
        assert found["number"] == pytest.approx(expected, abs=1e-4)
        assert found["number"] != [one for (one,) in found["logits"]]  # some are clipped


def check_vectors(encoder, *answers):
    for texts, found in zip((TEXTS, zip(TEXTS, SECONDS)), answers, strict=True):
        for row, one in enumerate(encoder.predict(texts)):
            length = len(one.tokens)
            assert sum(found["input_mask"][row]) == length
            vectors = np.array(found["sequence"][row])[:length]
            np.testing.assert_allclose(vectors, one.vectors, atol=1e-4)
            np.testing.assert_allclose(found["pooled"][row], one.pooled, atol=1e-4)
            mean = one.vectors.mean(axis=0)
            expected = mean / np.linalg.norm(mean)
            np.testing.assert_allclose(found["embedding"][row], expected, atol=1e-4)


def check_tags(tagger, found):
    for row, (text, expected) in enumerate(zip(TEXTS, tagger.predict(TEXTS), strict=True)):
        words = np.flatnonzero(found["begins_word"][row])
        ends = [*words[1:], np.count_nonzero(found["stops"][row]) + 1]
        tags = [found["tags"][row][place] for place in words]
        spans = [
            (label, found["starts"][row][words[first]], found["stops"][row][ends[stop - 1] - 1])
            for label, first, stop in tag_schemes.entities(tags, prefixed=True)
        ]
        assert spans == [(span.label, span.start, span.stop) for span in expected]
        assert set(tags) <= {*TAGS}
        assert text or not tags


def check_answers(answerer, found):
    predicted = answerer.predict(zip(QUESTIONS, CONTEXTS))
    assert any(one.text for one in predicted)
    assert found["answer"] == [one.text for one in predicted]
    assert found["start"] == [one.start for one in predicted]
    assert found["stop"] == [one.stop for one in predicted]
    judged = answerer.predict(zip(QUESTIONS, CONTEXTS), version_2_with_negative=True)
    rows = [n for n, one in enumerate(predicted) if one.text]
    margins = np.subtract(found["null_score"], found["score"])
    odds = np.array([one.null_odds for one in judged], float)
    np.testing.assert_allclose(margins[rows], odds[rows], atol=1e-4)


CHECKS = {
    "blanks": check_blanks,
    "classes": check_classes,
    "labels": check_labels,
    "number": check_number,
    "vectors": check_vectors,
    "tags": check_tags,
    "answers": check_answers,
}


def run_onnx(folder, batches):
    session = peers.load("onnxruntime").InferenceSession(str(folder / "model.onnx"))
    names = [one.name for one in session.get_outputs()]
    return [dict(zip(names, session.run(None, batch), strict=True)) for batch in batches]


def run_litert(folder, batches):
    interpreter = peers.load("ai_edge_litert.interpreter").Interpreter(str(folder / "model.tflite"))
    return [interpreter.get_signature_runner()(**batch) for batch in batches]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output_format", "package", "run"),
    [("onnx", "tf2onnx", run_onnx), ("litert", "tensorflow", run_litert)],
)
def test_a_file_of_every_kind_takes_ids_of_any_number_and_length(
    folders, tmp_path, output_format, package, run
):
    peers.load(package)
    kinds = {kind: folder for kind, folder in folders.items() if kind not in ("labels", "number")}
    for kind, folder in export(kinds, tmp_path, output_format).items():
        model = official_bert.load(folders[kind]).model
        given = [*batches(model)]
        for batch, found in zip(given, run(folder, given), strict=True):
            assert_close(found, named_outputs(model, batch))
        written = {path.name for path in folder.iterdir()}
        assert {"vocab.txt", "tokenizer.json", "tokenizer_config.json"} <= written
        assert ("labels.json" in written) == (kind in ("classes", "number", "tags"))


# What cannot be exported


def test_a_fault_of_an_exporter_is_one_line(folders, tmp_path, monkeypatch):
    def fail(*_):
        raise NotImplementedError("no such operation\nat …")

    monkeypatch.setattr(serving, "_export", fail)
    with pytest.raises(ValueError, match=r"for --output_format=litert; .*operation\. Use saved"):
        convert(folders["classes"], tmp_path / "out", "litert")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("output_format", "patch", "message"),
    [
        ("savedmodel", (keras.backend, "backend", lambda: "jax"), "Set KERAS_BACKEND=tensorflow"),
        ("onnx", (serving, "_EXPORTERS", {"onnx": "no_such"}), r"no_such must .*\[export\]"),
        ("litert", (keras, "__version__", "3.12.4"), "at least version 3.13 for .*; got 3.12.4"),
        ("litert", (serving, "_LARGEST", 10_000), "at most 1e-05 GB of .* got .* Use savedmodel"),
    ],
)
def test_what_cannot_be_exported_is_refused_with_its_cure(
    folders, tmp_path, monkeypatch, output_format, patch, message
):
    monkeypatch.setattr(*patch)
    with pytest.raises(ValueError, match=message):
        convert(folders["classes"], tmp_path / "out", output_format)
    assert not (tmp_path / "out").exists()
