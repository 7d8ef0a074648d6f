"""A tagger loaded for use: its spans, and what is refused."""

import json

import pytest
from model_kinds import TAGS, make_kind

import official_bert
from official_bert import convert_checkpoint
from official_bert.prediction.tagger import WordTagger

TEXTS = ["The cat sat. Un able, a mat! 中 é naive.", "", "a mat", "unaffable " * 40]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder as `run_tagger` leaves it, with a random head."""
    folder = tmp_path_factory.mktemp("tagger") / "in"
    make_kind("tags", folder)
    return folder


def test_spans_are_pieces_of_what_was_given(folder):
    asked = [*TEXTS, ["un", "able", "\u200b", "", "cat"] * 9, []]
    tagger = official_bert.load(folder)
    assert type(tagger) is WordTagger
    assert repr(tagger).startswith("<WordTagger: one of 5 tags, from ")
    found = tagger.predict(asked)
    for given, spans in zip(asked, found, strict=True):
        assert spans or len(given) < 9
        for span in spans:
            piece = given[span.start : span.stop]
            assert span.text == (piece if isinstance(given, str) else " ".join(piece))
            assert 0 < span.probability <= 1
    for one, other in zip(tagger.predict(asked, batch_size=2), found, strict=True):
        assert [span[:4] for span in one] == [span[:4] for span in other]


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


def test_a_head_for_sentences_and_one_for_words_are_told_apart(folder, tmp_path):
    convert_checkpoint.convert(folder, tmp_path / "hf", "huggingface")
    values = json.loads((tmp_path / "hf/config.json").read_text())
    assert values["architectures"] == ["BertForTokenClassification"]
    assert list(values["id2label"].values()) == TAGS
    other = values | {"architectures": ["BertForMultipleChoice"]}
    (tmp_path / "hf/config.json").write_text(json.dumps(other))
    with pytest.raises(ValueError, match="Its head is of an unknown task"):
        official_bert.load(tmp_path / "hf")
