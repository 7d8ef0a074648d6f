"""`transformers.pipeline` opens each Hugging Face export, and agrees with `predict`."""

import numpy as np
import peers
import pytest
from model_kinds import CLASSES, TAGS, make_kind

import official_bert
from official_bert.convert_checkpoint import convert

TEXTS = ["The cat sat on a mat.", "Unaffable, naïve É 中é12!", "a cat"]


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


def test_transformers_answers_questions_from_an_export_as_predict_does(tmp_path):
    """Since version 5 it has no pipeline for that, so the best piece is taken from its logits."""
    transformers, torch = peers.load("transformers"), peers.load("torch")
    make_kind("answers", tmp_path / "in")
    convert(tmp_path / "in", tmp_path / "hf", "huggingface")
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    question, context = "The cat?", "Unaffable, a mat sat!"
    ids = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
    offsets, segments = ids.pop("offset_mapping")[0].tolist(), ids["token_type_ids"][0].tolist()
    with torch.no_grad():
        outputs = model(**ids)
    starts, ends = outputs.start_logits[0].numpy(), outputs.end_logits[0].numpy()
    places = [n for n, segment in enumerate(segments) if segment and offsets[n] != [0, 0]]
    pairs = [(a, b) for a in places for b in places if a <= b]
    first, last = max(pairs, key=lambda pair: starts[pair[0]] + ends[pair[1]])
    (found,) = official_bert.load(tmp_path / "in").predict([(question, context)])
    assert (found.start, found.stop) == (offsets[first][0], offsets[last][1])
