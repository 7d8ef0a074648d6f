"""`transformers.pipeline` opens each Hugging Face export, and agrees with `predict`.

Since version 5 it has none for questions: their logits are compared in test_load_questions.py.
"""

import numpy as np
import peers
import pytest
from model_kinds import CLASSES, TAGS, make_kind

import official_bert
from official_bert.convert_checkpoint import convert

TEXTS = ["The cat sat on a mat.", "Unaffable, naïve É 中é12!", "a cat. Un able, 中 é"]


def fill_mask(pipe, filler):
    texts = ["The cat [MASK] on a mat.", "naïve [MASK]"]
    for found, ((best, *_),) in zip(pipe(texts, top_k=1), filler.predict(texts), strict=True):
        assert found[0]["token_str"] == best.token
        assert found[0]["score"] == pytest.approx(best.probability, abs=1e-4)


def text_classification(pipe, classifier):
    for found, one in zip(pipe(TEXTS, top_k=None), classifier.predict(TEXTS), strict=True):
        scores = {label["label"]: label["score"] for label in found}
        assert scores == pytest.approx(one.probabilities, abs=1e-4)
        assert {*scores} == {*CLASSES}


def regression(pipe, classifier):
    for found, one in zip(pipe(TEXTS), classifier.predict(TEXTS), strict=True):
        assert np.clip(found["score"], -1, 1) == pytest.approx(one.number, abs=1e-4)


def token_classification(pipe, tagger):
    assert {*pipe.model.config.label2id} == {*TAGS}
    for text, spans in zip(TEXTS, tagger.predict(TEXTS), strict=True):
        found = pipe(text, aggregation_strategy="first")
        assert [(one["entity_group"], one["start"], one["end"]) for one in found] == [
            (span.label, span.start, span.stop) for span in spans
        ]
        scores = [span.probability for span in spans]
        assert [one["score"] for one in found] == pytest.approx(scores, abs=1e-4)


def feature_extraction(pipe, encoder):
    for found, one in zip(pipe(TEXTS), encoder.predict(TEXTS), strict=True):
        np.testing.assert_allclose(found[0], one.vectors, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "task", "agrees"),
    [
        ("blanks", "fill-mask", fill_mask),
        ("classes", "text-classification", text_classification),
        ("labels", "text-classification", text_classification),
        ("number", "text-classification", regression),
        ("tags", "token-classification", token_classification),
        ("vectors", "feature-extraction", feature_extraction),
    ],
)
def test_a_pipeline_opens_each_export_and_says_what_predict_says(tmp_path, kind, task, agrees):
    transformers = peers.load("transformers")
    make_kind(kind, tmp_path / "in")
    convert(tmp_path / "in", tmp_path / "hf", "huggingface", allow_missing_heads=True)
    agrees(transformers.pipeline(task, str(tmp_path / "hf")), official_bert.load(tmp_path / "in"))
