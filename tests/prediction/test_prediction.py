"""What a loaded model says of texts is what its Keras model computes of them, one by one."""

import dataclasses
import logging

import numpy as np
import pytest
import tensorflow as tf
from bert_checkpoints import CONFIG, WORDS
from model_kinds import make_kind

import official_bert
from official_bert.prediction import predictors
from official_bert.tasks.labels import Numbers

CLS, SEP, MASK = 2, 3, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for kind in "blanks", "classes", "number":
        make_kind(kind, folder / kind, CONFIG)
    return folder


@pytest.fixture(scope="module")
def filler(folder):
    return official_bert.load(folder / "blanks")


@pytest.fixture(scope="module")
def tokenizer(filler):
    return filler.tokenizer


@pytest.fixture
def make_classifier(folder):
    """A function that loads a model of a kind, with other values of some attributes."""

    def make(kind="classes", **changed):
        return dataclasses.replace(official_bert.load(folder / kind), **changed)

    return make


def batch_of(*segments):
    """A batch of one row, with the ids of one segment or two."""
    ids = [CLS, *(id for segment in segments for id in (*segment, SEP))]
    first = len(segments[0]) + 2
    return {
        "input_ids": np.array([ids], np.int32),
        "input_mask": np.ones((1, len(ids)), np.int32),
        "segment_ids": np.array([[0] * first + [1] * (len(ids) - first)], np.int32),
    }


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


# Blanks


TEXTS = [
    "The cat [MASK] on a [MASK].",
    "[MASK]",
    "中 é [MASK] Ελλάδα ☃!",
    "a mat [MASK]" + " un" * 30,
]


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_guesses_are_the_likeliest_pieces_of_each_text_alone(filler, tokenizer, batch_size):
    found = filler.predict(TEXTS, top=4, batch_size=batch_size)
    assert [len(blanks) for blanks in found] == [2, 1, 1, 1]
    for text, blanks in zip(TEXTS, found):
        ids = [id for part in text.split("[MASK]") for id in (*ids_of(tokenizer, part), MASK)][:-1]
        batch = batch_of(ids[: CONFIG.max_position_embeddings - 2])
        batch["masked_lm_positions"] = np.flatnonzero(batch["input_ids"][0] == MASK)[None]
        logits = filler.model(batch)["masked_lm_logits"][0]
        size = tokenizer.get_vocab_size()  # of 40 embeddings, those beyond have no name
        for guesses, wanted in zip(blanks, tf.nn.softmax(logits).numpy()[:, :size]):
            best = np.argsort(-wanted)[:4]
            assert [guess.token for guess in guesses] == [tokenizer.id_to_token(i) for i in best]
            probabilities = [guess.probability for guess in guesses]
            assert probabilities == pytest.approx(wanted[best], rel=1e-3)


def test_words_only_leaves_out_punctuation_and_pieces_of_words(filler, tokenizer):
    everything = filler.predict(TEXTS, top=40)
    for words, anything in zip(filler.predict(TEXTS, words_only=True), everything):
        for some, guesses in zip(words, anything):
            assert some == [guess for guess in guesses if guess.token.isalpha()][:3]


def test_texts_of_many_lengths_make_tensorflow_say_nothing(filler, caplog):
    """It warns of a function that it traces again and again."""
    logger = tf.get_logger()
    logger.addHandler(caplog.handler)
    try:
        for words in range(1, 9):
            filler.predict([f"{'a ' * words} [MASK]" + ", [MASK]" * (words % 3)] * words)
    finally:
        logger.removeHandler(caplog.handler)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_many_blanks_are_computed_a_part_at_a_time(filler, monkeypatch):
    whole = filler.predict(TEXTS)
    monkeypatch.setattr(predictors, "_BLANKS_AT_ONCE", 2)
    for found, wanted in zip(filler.predict(TEXTS), whole):
        assert [[g.token for g in blank] for blank in found] == [
            [g.token for g in blank] for blank in wanted
        ]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a [MASK]", "the cat sat"], r"text 1 must have a \[MASK\]; got 'the cat sat'"),
        ([""], r"text 0 must have a \[MASK\]; got ''"),
        (["the " * 30 + "[MASK]"], r"each \[MASK\] within its first 18 word pieces, .*, with 31"),
        ("a [MASK]", r"texts must be a list, .*; got one text, 'a \[MASK\]'"),
        (7, "texts must be a list; got int"),
        ([7], "text 0 must be text .*; got 7"),
        (["[MASK] \ud800"], "text 0 must be valid Unicode; got '.ud800', half of a character"),
    ],
)
def test_texts_that_cannot_be_filled_are_refused(filler, texts, message):
    with pytest.raises(ValueError, match=message):
        filler.predict(texts)


@pytest.mark.parametrize(("argument", "value"), [("top", 0), ("batch_size", 0)])
def test_numbers_below_one_are_refused(filler, argument, value):
    with pytest.raises(ValueError, match=f"{argument} must be at least 1; got 0"):
        filler.predict(["[MASK]"], **{argument: value})


def test_no_texts_have_no_predictions(filler, make_classifier):
    assert filler.predict([]) == make_classifier().predict(iter(())) == []


# Sentences


SENTENCES = ["The cat sat.", "", ("un able", "a mat!"), "中 é Ελλάδα", ("", ""), ("cat " * 30, "a")]


@pytest.mark.parametrize("batch_size", [1, 4, 32])
def test_classes_are_those_of_each_text_alone(make_classifier, tokenizer, batch_size):
    classifier = make_classifier()
    found = classifier.predict(SENTENCES, batch_size=batch_size)
    for text, prediction in zip(SENTENCES, found, strict=True):
        segments = [ids_of(tokenizer, part) for part in ([text] if type(text) is str else text)]
        room = 20 - 1 - len(segments) - sum(map(len, segments[1:]))
        logits = classifier.model(batch_of(segments[0][:room], *segments[1:]))
        wanted = tf.nn.softmax(logits[0]).numpy()
        assert list(prediction.probabilities) == ["no", "maybe", "yes"]
        assert list(prediction.probabilities.values()) == pytest.approx(wanted, rel=1e-4)
        assert prediction.label == ["no", "maybe", "yes"][int(np.argmax(wanted))]


def test_numbers_keep_to_the_bounds_of_their_scale(make_classifier):
    unbounded = make_classifier("number", labels=Numbers())
    free = [prediction.number for prediction in unbounded.predict(SENTENCES)]
    low, high = sorted(free)[1:3]
    bound = make_classifier("number", labels=Numbers(low, high)).predict(SENTENCES)
    assert [prediction.number for prediction in bound] == [min(max(n, low), high) for n in free]


@pytest.mark.parametrize(
    ("takes_pairs", "texts", "message"),
    [
        (True, [("a", "b"), "the cat"], "text 1 must be a pair of sentences.*; got one sentence"),
        (False, [("a", "b")], "text 0 must be a single sentence, .*; got a pair"),
        (None, [("a", "b", "c")], "text 0 must be a text or a pair of texts"),
        (None, [("a", None)], "the second sentence of text 0 must be text .*; got None"),
        (None, "the cat", "texts must be a list, .*; got one text"),
        (None, [None], "text 0 must be a text or a pair .*; got None"),
    ],
)
def test_what_is_no_sentence_for_the_model_is_refused(make_classifier, takes_pairs, texts, message):
    with pytest.raises(ValueError, match=message):
        make_classifier(takes_pairs=takes_pairs).predict(texts)


def test_outputs_that_are_no_numbers_are_refused(make_classifier):
    classifier = make_classifier()
    classifier.model.head.output_bias.assign([0.0, np.inf, 0.0])
    with pytest.raises(ValueError, match="outputs must be finite"):
        classifier.predict(["a"])


def test_a_model_says_what_it_is(filler, make_classifier):
    assert repr(filler).startswith("<BlankFiller: 2 × 16 units, 40 word pieces, from ")
    pairs = make_classifier("number", takes_pairs=True, origin="here")
    assert repr(pairs) == "<SentenceClassifier: a number, of pairs of sentences, from here>"
    assert len(WORDS.split()) + 5 == filler.tokenizer.get_vocab_size()
