"""The windows of tagged words: pieces, places and tags, next to Hugging Face's tokenizer."""

import itertools

import numpy as np
import peers
import pytest
from hypothesis import given
from hypothesis import strategies as st

from official_bert.data import tokenization
from official_bert.tasks import tagging_features
from official_bert.tasks.tagging_features import UNKNOWN, from_texts, from_words, make_features

PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "un", "##aff", "##able", "cat", ".")
PIECES += ("#", "中", "e", "##e")


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def tokenizer(vocab_file):
    return tokenization.load(vocab_file)


WORDS = st.sampled_from(["the", "unaffable", "Cat.", "#", "x", "\u200b", "", "中中", "éé"])
SENTENCES = st.lists(st.lists(WORDS, max_size=12), min_size=1, max_size=4)


@given(sentences=SENTENCES, length=st.integers(3, 12))
def test_every_word_is_predicted_once_at_its_first_piece(tokenizer, sentences, length):
    words = from_words(tokenizer, sentences)
    tags = np.arange(len(words.starts) - 1)
    features = make_features(words, tokenizer, length, tags)
    of_words = [
        tokenizer.encode(word, add_special_tokens=False).ids or [1] for s in sentences for word in s
    ]
    seen = {}
    if len(features):
        batch = features.batch(range(len(features)))
        for row, position in zip(*np.nonzero(batch["tag_weights"]), strict=True):
            word = int(batch["tag_ids"][row, position])
            assert word not in seen
            seen[word] = batch["input_ids"][row, position]
            assert (features.rows[word], features.positions[word]) == (row, position)
    assert seen == {number: ids[0] for number, ids in enumerate(of_words)}
    assert words.without_piece == sum(word in ("", "\u200b") for s in sentences for word in s)


@given(sentences=SENTENCES, length=st.integers(3, 12))
def test_windows_hold_a_sentence_s_pieces_in_order(tokenizer, sentences, length):
    features = make_features(from_words(tokenizer, sentences), tokenizer, length)
    whole = [
        [i for w in words for i in tokenizer.encode(w, add_special_tokens=False).ids or [1]]
        for words in sentences
    ]
    sizes = [-(-max(0, len(ids) - length + 2) // max(1, (length - 2) // 2)) + 1 for ids in whole]
    assert len(features) == sum(size for size, ids in zip(sizes, whole, strict=True) if ids)
    assert features.cut_sentences == sum(len(ids) > length - 2 for ids in whole)
    texts = ["".join(map(chr, ids)) for ids in whole]
    for row in range(len(features)):
        batch = features.batch([row])
        used = batch["input_ids"][0][batch["input_mask"][0] == 1].tolist()
        assert (used[0], used[-1]) == (2, 3)
        assert not batch["segment_ids"].any()
        assert any("".join(map(chr, used[1:-1])) in text for text in texts)


def test_pieces_and_first_pieces_are_those_of_hugging_face(tokenizer, vocab_file):
    transformers = peers.load("transformers")
    theirs = transformers.BertTokenizerFast(vocab_file)
    sentences = [["The", "unaffable", "cat", "sat.", "éé"], ["中中", "#the", "."]]
    features = make_features(from_words(tokenizer, sentences), tokenizer, 24, np.zeros(8, np.int64))
    found = theirs(sentences, is_split_into_words=True, padding="max_length", max_length=24)
    batch = features.batch([0, 1])
    assert batch["input_ids"].tolist() == found["input_ids"]
    assert batch["input_mask"].tolist() == found["attention_mask"]
    for row in range(2):
        numbers = found.word_ids(row)
        first = [n is not None and n != b for b, n in itertools.pairwise([None, *numbers])]
        assert (batch["tag_weights"][row] > 0).tolist() == first


@pytest.mark.parametrize(
    "text", ["", "  ", "The unaffable\u200b cat, ##x.", "中é \U0001f600 Thé cat.", "\u200b the"]
)
def test_words_of_a_text_are_those_of_hugging_face_with_their_characters(
    tokenizer, vocab_file, text
):
    transformers = peers.load("transformers")
    theirs = transformers.BertTokenizerFast(vocab_file)(text, add_special_tokens=False)
    words, spans = from_texts(tokenizer, [text])
    numbers = theirs.word_ids(0)
    assert words.ids.tolist() == theirs["input_ids"]
    assert words.bounds.tolist() == [0, len({*numbers})]
    for number, (start, stop) in enumerate(spans.tolist()):
        found = theirs.word_to_chars(0, number)
        assert start == found.start
        # accents after a letter belong to the word here
        assert text[found.end : stop].strip("\u0301") == ""


def test_tags_that_are_no_class_have_no_weight(tokenizer):
    words = from_words(tokenizer, [["the", "cat"]])
    batch = make_features(words, tokenizer, 8, np.array([UNKNOWN, 3])).batch([0])
    assert batch["tag_ids"][0, :4].tolist() == [0, 0, 3, 0]
    assert batch["tag_weights"][0, :4].tolist() == [0, 0, 1, 0]


def test_other_windows_have_another_fingerprint(tokenizer):
    def fingerprint(words, tags, length=8):
        made = make_features(from_words(tokenizer, words), tokenizer, length, np.array(tags))
        return made.fingerprint()

    base = ([["the", "cat"]], [0, 1])
    others = [([["cat", "the"]], [0, 1]), ([["the", "cat"]], [0, 0]), ([["the"], ["cat"]], [0, 1])]
    found = [fingerprint(*base), fingerprint(*base, 9), *(fingerprint(*one) for one in others)]
    assert len({*found}) == len(found)
    assert fingerprint(*base) == found[0]


def test_a_length_without_room_is_refused(tokenizer):
    with pytest.raises(ValueError, match="must be at least 3, for"):
        tagging_features.make_features(from_words(tokenizer, [["the"]]), tokenizer, 2)
