"""Word pieces with the characters that they cover, in every script."""

import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_text import UNCASED, needs_shared
from tokenizers import Tokenizer

from official_bert.data import character_spans, tokenization

LETTERS = ["a", "b", "e", "o", "1", "ß", "漢", "字", "か", "한", "글", "ไ", "ท", "ก็", "я", "α", "ﬁ"]
PIECES = [
    *tokenization.SPECIAL_TOKENS,
    *(unicodedata.normalize("NFD", letter) for letter in LETTERS if letter not in ("ก็", "ไ")),
    *("##" + part for letter in "abeo1яα한글" for part in unicodedata.normalize("NFD", letter)),
    *"ᄒᄀ,.!",
    "aab",
    "##ob",
]
OTHERS = [
    "A",
    "É",
    "e\u0301",
    "ö",
    "\u0301",
    "\u200b",
    "\x00",
    "\ufeff",
    "👍🏽",
    "❤️",
    " ",
    "\xa0",
    "\n",
]
TEXTS = st.lists(st.sampled_from([*LETTERS, *OTHERS, ",", ".", " "]), max_size=30).map("".join)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory) -> list[Tokenizer]:
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(dict.fromkeys(PIECES)) + "\n", encoding="utf-8")
    return [tokenization.load(str(path), do_lower_case) for do_lower_case in (False, True)]


@settings(deadline=None)
@given(st.lists(TEXTS, max_size=4))
def test_the_characters_of_a_word_have_its_pieces(tokenizers, texts):
    for tokenizer in tokenizers:
        pieces = character_spans.encode(tokenizer, texts)
        assert len(pieces.bounds) == len(texts) + 1
        for text, first, last in zip(texts, pieces.bounds, pieces.bounds[1:]):
            ids, spans = pieces.ids[first:last].tolist(), pieces.spans[first:last]
            assert ids == tokenizer.encode(text, add_special_tokens=False).ids
            assert np.all(spans[:, 0] < spans[:, 1])
            assert np.all(np.diff(spans, axis=0) >= 0)
            begins = [n for n, i in enumerate(ids) if not tokenizer.id_to_token(i).startswith("##")]
            for begin, end in zip(begins, [*begins[1:], len(ids)]):
                word = text[spans[begin, 0] : spans[end - 1, 1]]
                assert tokenizer.encode(word, add_special_tokens=False).ids == ids[begin:end]


@settings(deadline=None)
@given(TEXTS)
def test_what_no_piece_covers_is_space_or_dropped_and_accents_stay_with_their_letter(
    tokenizers, text
):
    for tokenizer in tokenizers:
        covered = set()
        for start, stop in character_spans.encode(tokenizer, [text]).spans.tolist():
            covered.update(range(start, stop))
        for place in set(range(len(text))) - covered:
            category = unicodedata.category(text[place])
            assert category in ("Zs", "Cc", "Cf") or text[place] == "\n" or category == "Mn"
            if category == "Mn":  # at the beginning, or behind what is itself not covered
                assert place - 1 not in covered


def test_decomposed_accents_belong_to_the_piece_before_them(tokenizers):
    e = "e\u0301"
    text = f"{e}, {e}{e}\u0301 \u0301a"
    spans = character_spans.encode(tokenizers[True], [text]).spans.tolist()
    assert [text[start:stop] for start, stop in spans] == [e, ",", e, f"{e}\u0301", "a"]


def test_the_size_of_the_batches_changes_nothing(tokenizers, monkeypatch):
    texts = ["aab, ob", "", "한글 漢字", "É" * 40] * 3
    whole = character_spans.encode(tokenizers[True], texts)
    for size in (0, 5, 50):
        monkeypatch.setattr(character_spans, "_AT_ONCE", size)
        for made, expected in zip(character_spans.encode(tokenizers[True], iter(texts)), whole):
            np.testing.assert_array_equal(made, expected)


def test_no_text_has_no_pieces(tokenizers):
    for texts in ([], [""]):
        pieces = character_spans.encode(tokenizers[True], texts)
        assert pieces.ids.shape == (0,)
        assert pieces.spans.shape == (0, 2)
        assert pieces.bounds.tolist() == [0] * (len(texts) + 1)


@needs_shared
def test_pieces_of_english_words_cover_their_own_letters():
    tokenizer = tokenization.load(str(UNCASED))
    text = "Unaffable Émile's embeddings (1895–1943) weren’t cheap: $3.50!"
    pieces = character_spans.encode(tokenizer, [text])
    for i, (start, stop) in zip(pieces.ids.tolist(), pieces.spans.tolist()):
        letters = re.sub("^##", "", tokenizer.id_to_token(i))
        assert text[start:stop].lower().replace("é", "e") == letters
