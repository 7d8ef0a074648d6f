"""The arrays of sentence classification, beside the official script's loop and Hugging Face's."""

import numpy as np
import peers
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_text import SHARED, UNCASED, topics

from official_bert.data import tokenization
from official_bert.tasks import classification_features, glue
from official_bert.tasks.classification_features import make_features

NAMES = ("input_ids", "input_mask", "segment_ids")
HUGGING_FACE = ("input_ids", "attention_mask", "token_type_ids")
needs_glue = pytest.mark.skipif(not (SHARED / "glue").exists(), reason="needs ../shared/data/glue")


def taken_one_by_one(first, second, room):
    """How the official script cuts a pair."""
    first, second = list(first), list(second)
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
    return first, second


def row_by_row(sentences1, sentences2, tokenizer, length):
    """The same arrays, an example at a time."""
    rows = []
    for number, sentence in enumerate(sentences1):
        first = tokenizer.encode(sentence, add_special_tokens=False).ids
        second = []
        if sentences2 is None:
            first = first[: length - 2]
        else:
            second = tokenizer.encode(sentences2[number], add_special_tokens=False).ids
            first, second = taken_one_by_one(first, second, length - 3)
        cls, sep = map(tokenizer.token_to_id, ("[CLS]", "[SEP]"))
        ids = [cls, *first, sep] + ([] if sentences2 is None else [*second, sep])
        padding = [0] * (length - len(ids))
        segments = [0] * (len(first) + 2) + [1] * (len(ids) - len(first) - 2)
        rows.append((ids + padding, [1] * len(ids) + padding, segments + padding))
    return dict(zip(NAMES, np.array(rows, np.int32).swapaxes(0, 1)))


def assert_equal(found, expected):
    assert tuple(found) == NAMES
    for name in NAMES:
        assert found[name].dtype == np.int32
        np.testing.assert_array_equal(found[name], expected[name], name)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(2, 60))
def test_a_pair_is_cut_as_piece_by_piece(length1, length2, room):
    first, second = taken_one_by_one(range(length1), range(length2), room)
    kept = classification_features.kept_lengths(np.array([length1]), np.array([length2]), room)
    assert [int(k[0]) for k in kept] == [len(first), len(second)]


@pytest.mark.parametrize("length", [5, 16, 31, 128])
def test_a_set_equals_its_rows(small_text, length):
    tokenizer = tokenization.load(small_text.vocab_file)
    lines = [line for document in topics(30) for line in document]
    first, second = lines[: len(lines) // 2], lines[len(lines) // 2 :][::-1][: len(lines) // 2]
    for pairs in None, second:
        found = make_features(first, pairs, tokenizer, length)
        assert_equal(found, row_by_row(first, pairs, tokenizer, length))


def test_a_set_larger_than_what_is_encoded_at_once_equals_its_rows(small_text, monkeypatch):
    monkeypatch.setattr(classification_features, "_ROWS_AT_ONCE", 7)
    tokenizer = tokenization.load(small_text.vocab_file)
    lines = topics(10)[0] * 4
    found = make_features(lines, lines[::-1], tokenizer, 24)
    assert_equal(found, row_by_row(lines, lines[::-1], tokenizer, 24))
    assert_equal(make_features(lines, lines[::-1], tokenizer, 24), found)


def test_empty_sentences_and_text_that_looks_like_special_tokens(small_text):
    tokenizer = tokenization.load(small_text.vocab_file)
    cls, sep = map(tokenizer.token_to_id, ("[CLS]", "[SEP]"))
    found = make_features(["", "[SEP] a", "漢字\u2028\r\x00"], ["", "", ""], tokenizer, 12)
    assert found["input_ids"][0].tolist() == [cls, sep, sep] + [0] * 9
    assert found["input_mask"][0].tolist() == [1] * 3 + [0] * 9
    assert found["segment_ids"][0].tolist() == [0, 0, 1] + [0] * 9
    assert found["input_ids"][1].tolist().count(sep) == 2
    assert found["input_mask"][2].sum() >= 4
    single = make_features([""], None, tokenizer, 12)
    assert single["input_ids"][0].tolist() == [cls, sep] + [0] * 10
    assert make_features([], None, tokenizer, 12)["input_ids"].shape == (0, 12)


def test_a_length_without_room_for_a_piece_is_refused(small_text):
    tokenizer = tokenization.load(small_text.vocab_file)
    with pytest.raises(ValueError, match="max_seq_length must be at least 3, .*; got 2"):
        make_features(["a"], None, tokenizer, 2)
    with pytest.raises(ValueError, match="max_seq_length must be at least 5, .*; got 4"):
        make_features(["a"], ["b"], tokenizer, 4)


def hugging_face(sentences1, sentences2, length):
    tokenizer = peers.load("transformers").BertTokenizer(str(UNCASED))
    arrays = tokenizer(
        sentences1,
        sentences2,
        truncation="longest_first",
        padding="max_length",
        max_length=length,
        return_tensors="np",
    )
    return {name: arrays[theirs] for name, theirs in zip(NAMES, HUGGING_FACE)}


@needs_glue
@pytest.mark.parametrize("length", [23, 63, 127])
@pytest.mark.parametrize("name", ["CoLA", "MRPC", "RTE", "STS-B"])
def test_the_arrays_of_a_dev_set_equal_those_of_hugging_face(name, length):
    # Odd lengths leave an even number of pieces to a pair. Where both sentences are cut and the
    # number is odd, the official script gives the first the odd piece, Hugging Face the second.
    examples = glue.read(glue.task(name), str(SHARED / "glue" / name), "dev")
    sentences = examples.sentences1, examples.sentences2
    found = make_features(*sentences, tokenization.load(str(UNCASED)), length)
    assert_equal(found, hugging_face(*sentences, length))


@needs_glue
@pytest.mark.parametrize("length", [24, 128])
def test_at_even_lengths_only_pairs_of_two_long_sentences_differ_from_hugging_face(length):
    examples = glue.read(glue.task("RTE"), str(SHARED / "glue/RTE"), "dev")
    sentences = examples.sentences1, examples.sentences2
    tokenizer = tokenization.load(str(UNCASED))
    found, theirs = make_features(*sentences, tokenizer, length), hugging_face(*sentences, length)
    encode = tokenization.SentenceEncoder(tokenizer)
    pieces = np.array([list(map(len, encode(side))) for side in sentences])
    both_are_cut = (pieces > (length - 3) // 2).all(0)
    differ = (found["input_ids"] != theirs["input_ids"]).any(1)
    assert differ.any() == both_are_cut.any()
    assert not (differ & ~both_are_cut).any()
    np.testing.assert_array_equal(found["input_mask"], theirs["input_mask"])
