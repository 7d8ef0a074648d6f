"""A tagger loaded for use, in every format, next to the pipeline of Hugging Face."""

import json

import numpy as np
import peers
import pytest
from bert_checkpoints import CONFIG, make_source, random_tensors

import official_bert
from official_bert import convert_checkpoint
from official_bert.prediction.tagger import WordTagger
from official_bert.training import checkpoints

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
TEXTS = ["The cat sat. Un able, a mat! 中 é naive.", "", "a mat", "unaffable " * 40]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder as `run_tagger` leaves it, with a random head."""
    folder = tmp_path_factory.mktemp("tagger") / "in"
    make_source(folder)
    tensors = {n: a for n, a in random_tensors(CONFIG).items() if not n.startswith("cls/")}
    rng = np.random.default_rng(1)
    for name, shape in ("weights", (len(TAGS), CONFIG.hidden_size)), ("bias", len(TAGS)):
        tensors[f"cls/tags/output_{name}"] = rng.normal(0, 1, shape).astype("f4")
    checkpoints.write_bundle(folder / "bert_model.ckpt", tensors)
    (folder / "labels.json").write_text(json.dumps({"classes": TAGS}))
    return folder


@pytest.fixture(scope="module")
def exported(folder):
    convert_checkpoint.convert(folder, folder.parent / "hf", "huggingface")
    return folder.parent / "hf"


def test_spans_are_those_of_the_pipeline_of_hugging_face(folder, exported):
    transformers = peers.load("transformers")
    ours = official_bert.load(folder)
    assert type(ours) is WordTagger
    assert repr(ours).startswith("<WordTagger: one of 5 tags, from ")
    texts = [text for text in TEXTS if 0 < len(text) < 99]
    theirs = transformers.pipeline(
        "token-classification", str(exported), aggregation_strategy="first"
    )
    for text, spans in zip(texts, ours.predict(texts), strict=True):
        found = [(one["entity_group"], one["start"], one["end"]) for one in theirs(text)]
        assert [(span.label, span.start, span.stop) for span in spans] == found
        chances = [one["score"] for one in theirs(text)]
        assert [span.probability for span in spans] == pytest.approx(chances, abs=1e-4)


def test_every_format_gives_the_same_spans(folder, exported, tmp_path):
    asked = [*TEXTS, ["a", "cat", "."], []]
    expected = official_bert.load(folder).predict(asked)
    convert_checkpoint.convert(exported, tmp_path / "tf1", "tf1")
    convert_checkpoint.convert(tmp_path / "tf1", tmp_path / "keras", "keras")
    for other in exported, tmp_path / "tf1", tmp_path / "keras":
        found = official_bert.load(other).predict(asked, batch_size=2)
        for ours, theirs in zip(found, expected, strict=True):
            assert [span[:4] for span in ours] == [span[:4] for span in theirs]
            chances = [span.probability for span in theirs]
            assert [span.probability for span in ours] == pytest.approx(chances, abs=1e-4)


def test_spans_are_pieces_of_what_was_given(folder):
    words = ["un", "able", "\u200b", "", "cat"] * 9
    for given, spans in zip(
        [*TEXTS, words], official_bert.load(folder).predict([*TEXTS, words]), strict=True
    ):
        assert spans or len(given) < 9
        for span in spans:
            piece = given[span.start : span.stop]
            assert span.text == (piece if isinstance(given, str) else " ".join(piece))
            assert 0 < span.probability <= 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("a text", "texts must be a list, such as"),
        ([7], "text 0 must be a text or a list of words; got 7"),
        ([["a", 7]], "word 1 of text 0 must be text"),
        (["\ud800"], "must be valid Unicode"),
    ],
)
def test_what_is_no_text_is_refused(folder, given, message):
    with pytest.raises(ValueError, match=message):
        official_bert.load(folder).predict(given)


def test_a_head_for_sentences_and_one_for_words_are_told_apart(exported, tmp_path):
    values = json.loads((exported / "config.json").read_text())
    assert values["architectures"] == ["BertForTokenClassification"]
    assert list(values["id2label"].values()) == TAGS
    for file in exported.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    other = values | {"architectures": ["BertForMultipleChoice"]}
    (tmp_path / "config.json").write_text(json.dumps(other))
    with pytest.raises(ValueError, match="Its head is of an unknown task"):
        official_bert.load(tmp_path)
