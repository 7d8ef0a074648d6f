"""Vocabularies and word pieces, against Google's tokenizer written out (google_reference.py)."""

import itertools
import lzma
import re
import tracemalloc
import unicodedata
from random import Random

import google_reference
import numpy as np
import peers
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_text import SHARED, UNCASED, needs_shared, topics
from tokenizers import Tokenizer
from tokenizers.normalizers import NFD

from official_bert import learn_vocabulary
from official_bert.data import corpus, tokenization

CASED = UNCASED.with_name("bert-base-cased-vocab.txt")
SPECIAL = "\n".join(tokenization.SPECIAL_TOKENS)


def wikipedia_sentences():
    with lzma.open(SHARED / "enwiki_sample.txt.xz", "rt", encoding="utf-8") as file:
        for line in file:
            yield from corpus.sentences(corpus.Document([line.strip()], split=True))


def disagreements(sentences, vocab_file, lower) -> tuple[int, int]:
    vocabulary = tokenization.read_vocabulary(str(vocab_file))
    encode = tokenization.SentenceEncoder(tokenization.load(str(vocab_file), lower))
    total = wrong = 0
    for batch in iter(lambda: list(itertools.islice(sentences, 1000)), []):
        for sentence, ids in zip(batch, encode(batch), strict=True):
            expected = google_reference.tokenize(sentence, vocabulary, lower)
            total += 1
            wrong += ids != [vocabulary[token] for token in expected]
    return total, wrong


@needs_shared
@pytest.mark.parametrize(
    ("vocab_file", "stop", "step"),
    [
        (UNCASED, 60_000, 20),
        (CASED, 60_000, 20),
        pytest.param(UNCASED, 40_000, 1, marks=pytest.mark.slow),
    ],
)
def test_agrees_with_google_on_wikipedia(vocab_file, stop, step):
    sentences = itertools.islice(wikipedia_sentences(), 0, stop, step)
    assert disagreements(sentences, vocab_file, vocab_file == UNCASED) == (stop // step, 0)


@needs_shared
@pytest.mark.parametrize("lower", [True, False])
def test_agrees_with_google_on_difficult_text(lower):
    vocab_file = UNCASED if lower else CASED
    texts = [
        "",
        "  two  blanks ",
        "Tab\tand\xa0no-break\u2003em space",
        "controls \x00\x01\u200b\ufeff\ufffd gone",
        "Ünïcödé ÉTÉ naïve Å",
        "漢字かな交じり文 mixed 中文text",
        "«quotes» “curly” ‘single’ — dashes… ¿¡",
        "e.g. 3.14, $5 a^b `code` <tag> ~x~ a|b {c}",
        "x" * 200 + " " + "y" * 201,
        "[CLS] [MASK] ##ing",
        '"(\u0301accent after a sign)"',
        "ΟΔΟΣ ΣΑΣ, ΑΣ' 'Σ Σ ΑΣ\u0301 ΑΣ'Α Α\u0301Σ ΑΣ\x01Α ΑΣ\xa0Α",
        "bullet \uf0b7 text\uf0b7text \U0010fffd",
        "\U0002b820\U0002b91f\U0002b920a",
        "new signs \u2e43a\u2e5d \u061d",
    ]
    assert disagreements(iter(texts), vocab_file, lower) == (len(texts), 0)


@pytest.mark.slow
@pytest.mark.parametrize("lower", [True, False])
def test_every_character_is_treated_as_google_treats_it(small_text, lower):
    tokenizer = tokenization.load(small_text.vocab_file, lower)

    def words(text: str) -> list[str]:
        normal = tokenizer.normalizer.normalize_str(text)
        return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal)]

    def is_different(character: str) -> bool:
        text = f"a{character}b A{character} {character}"
        return words(text) != google_reference.basic(text, lower)

    planes = (*range(0x31400), *range(0xE0000, 0xE1000), *range(0xF0000, 0xF0100))
    assigned = [c for c in map(chr, planes) if unicodedata.category(c) not in ("Cn", "Cs")]
    different = []
    for at in range(0, len(assigned), 200):
        if is_different(" ".join(some := assigned[at : at + 200])):
            different += filter(is_different, some)
    undecomposed = NFD().normalize_str("".join(different))
    assert undecomposed == "".join(different)
    assert all(unicodedata.normalize("NFD", c) != c for c in different)
    assert different == ["\U00011938"] * lower or unicodedata.unidata_version != "14.0.0"


def test_the_encoder_equals_the_tokenizer_whatever_it_remembers(small_text):
    tokenizer = tokenization.load(small_text.vocab_file)
    encode = tokenization.SentenceEncoder(tokenizer, limit=300)
    for document in topics(10):
        expected = [e.ids for e in tokenizer.encode_batch(document, add_special_tokens=False)]
        assert encode(document) == expected
        assert encode(document) == expected


@pytest.mark.parametrize("lower", [True, False, "keep_accents"])
def test_words_of_any_characters_have_the_tokenizers_pieces(small_text, lower):
    tokenizer = tokenization.load(small_text.vocab_file, lower)
    encode = tokenization.SentenceEncoder(tokenizer)
    characters = "aAbBtThHeE09_-.,'\"$<>\t\x00\x7f\xa0é́ßİΣς中か゚\u200b"
    rng = Random(2)
    words = ["".join(rng.choices(characters, k=rng.randrange(9))) for _ in range(3000)]
    words += ["the" * 66, "the" * 67, "THE." * 60, "\n", "[MASK]", "ΑΣ.", "(ΑΣ)b"]
    words += [f"{s}{'word' * n}{s}" for n in (3, 12, 30) for s in ("", '"', "(", "''")]
    sentences = [" ".join(rng.choices(words, k=5)) for _ in range(2000)]
    encodings = tokenizer.encode_batch(words + sentences, add_special_tokens=False)
    assert encode(words + sentences) == [encoding.ids for encoding in encodings]


@pytest.mark.parametrize("length", [20, 200])
def test_sentences_without_spaces_are_encoded_and_not_remembered(small_text, length):
    tokenizer = tokenization.load(small_text.vocab_file)
    encode = tokenization.SentenceEncoder(tokenizer)
    ideographs = [chr(0x4E00 + n) for n in range(500)]
    rng = Random(1)
    sentences = ["".join(rng.choices(ideographs, k=length)) + "。" for _ in range(1000)]
    encode(["A first sentence, because the signs of punctuation are remembered."])
    expected = [e.ids for e in tokenizer.encode_batch(sentences, add_special_tokens=False)]
    tracemalloc.start()
    same = encode(sentences[:500]) + encode(sentences[500:]) == expected
    assert same
    assert tracemalloc.get_traced_memory()[0] < 200_000  # it was 2 kB a sentence
    tracemalloc.stop()


def test_learning_needs_text(tmp_path):
    with pytest.raises(ValueError, match="must contain text"):
        tokenization.learn([], str(tmp_path / "v"), 100)
    assert not (tmp_path / "v").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "must be an existing file; .* Give a vocab.txt"),
        (b"", r"without \[PAD\]"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n", r"\(5 tokens\) without \[MASK\]"),
        (f"{SPECIAL}\nthe\nthe\n".encode(), "'the' on lines 6 and 7"),
        (b"\xff\xfe", "must be readable text"),
    ],
)
def test_a_vocabulary_that_cannot_be_used_is_refused(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        tokenization.read_vocabulary(str(path))


@pytest.mark.parametrize(
    ("words", "do_lower_case", "outcome"),
    [
        (["a", "the"], True, "fits"),
        (["a", "the", "T"], True, "refused"),
        (["a", "the", "T"], False, "fits"),
        (["a", "the"], False, "warned"),
        (["a", "the", "<URL>", "THE"], True, "fits"),  # words added to an uncased one
        (["的", "é"], False, "fits"),  # no word of the Latin alphabet is known anyway
    ],
)
def test_the_case_of_a_vocabulary_is_held_against_lower_casing(
    capsys, words, do_lower_case, outcome
):
    vocabulary = {token: i for i, token in enumerate([*tokenization.SPECIAL_TOKENS, *words])}
    arguments = vocabulary, f"/{outcome}/{do_lower_case}/{len(words)}.txt", do_lower_case
    if outcome == "refused":
        with pytest.raises(ValueError, match="cased vocabulary; got .* with 'T'.*=false"):
            tokenization.check_case(*arguments)
        return
    tokenization.check_case(*arguments)
    tokenization.check_case(*arguments)  # a warning comes once per file
    assert capsys.readouterr().err.count("every word with a capital letter") == (
        outcome == "warned"
    )


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_a_vocabulary(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("\ufeff[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\n[MASK]\r\nword\r\n".encode())
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "word"]
    assert list(tokenization.read_vocabulary(str(path))) == tokens
    assert tokenization.load(str(path)).encode("Word", add_special_tokens=False).ids == [5]


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


@given(st.lists(TEXTS, max_size=4))
def test_the_characters_of_a_word_have_its_pieces(tokenizers, texts):
    for tokenizer in tokenizers:
        pieces = tokenization.encode_with_spans(tokenizer, texts)
        assert len(pieces.bounds) == len(texts) + 1
        assert pieces.spans.shape == (*pieces.ids.shape, 2)
        for text, first, last in zip(texts, pieces.bounds, pieces.bounds[1:]):
            ids, spans = pieces.ids[first:last].tolist(), pieces.spans[first:last]
            assert ids == tokenizer.encode(text, add_special_tokens=False).ids
            assert np.all(spans[:, 0] < spans[:, 1])
            assert np.all(np.diff(spans, axis=0) >= 0)
            begins = [n for n, i in enumerate(ids) if not tokenizer.id_to_token(i).startswith("##")]
            for begin, end in zip(begins, [*begins[1:], len(ids)]):
                word = text[spans[begin, 0] : spans[end - 1, 1]]
                assert tokenizer.encode(word, add_special_tokens=False).ids == ids[begin:end]


@given(TEXTS)
def test_what_no_piece_covers_is_space_or_dropped_and_accents_stay_with_their_letter(
    tokenizers, text
):
    for tokenizer in tokenizers:
        covered = set()
        for start, stop in tokenization.encode_with_spans(tokenizer, [text]).spans.tolist():
            covered.update(range(start, stop))
        for place in set(range(len(text))) - covered:
            category = unicodedata.category(text[place])
            assert category in ("Zs", "Cc", "Cf") or text[place] == "\n" or category == "Mn"
            if category == "Mn":  # at the beginning, or after an uncovered character
                assert place - 1 not in covered


def test_decomposed_accents_belong_to_the_piece_before_them(tokenizers):
    e = "e\u0301"
    text = f"{e}, {e}{e}\u0301 \u0301a"
    spans = tokenization.encode_with_spans(tokenizers[True], [text]).spans.tolist()
    assert [text[start:stop] for start, stop in spans] == [e, ",", e, f"{e}\u0301", "a"]


def test_the_size_of_the_batches_changes_nothing(tokenizers, monkeypatch):
    texts = ["aab, ob", "", "한글 漢字", "É" * 40] * 3
    whole = tokenization.encode_with_spans(tokenizers[True], texts)
    for size in (0, 5, 50):
        monkeypatch.setattr(tokenization, "_AT_ONCE", size)
        for made, expected in zip(
            tokenization.encode_with_spans(tokenizers[True], iter(texts)), whole
        ):
            np.testing.assert_array_equal(made, expected)


@needs_shared
def test_pieces_of_english_words_cover_their_own_letters():
    tokenizer = tokenization.load(str(UNCASED))
    text = "Unaffable Émile's embeddings (1895–1943) weren’t cheap: $3.50!"
    pieces = tokenization.encode_with_spans(tokenizer, [text])
    for i, (start, stop) in zip(pieces.ids.tolist(), pieces.spans.tolist()):
        letters = re.sub("^##", "", tokenizer.id_to_token(i))
        assert text[start:stop].lower().replace("é", "e") == letters


# Accents that are kept

LANGUAGES = {
    "German": "Die Straße in Köln: Müller sagte, ÜBER Äpfel – schöne Grüße!",
    "Japanese": "パンとバナナを食べる。ガラス、ハハ, ぱん",
    "Hindi": "हिन्दी में लिखा हुआ पाठ, क़लम और ज़मीन। कृपया पढ़ें।",
    "Vietnamese": "Tiếng Việt: Đường phố Hà Nội rất ĐẸP, phở ngon lắm.",
}


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_accents_are_kept_or_stripped_as_transformers_does(language, form, tmp_path):
    transformers = peers.load("transformers")
    text = unicodedata.normalize(form, LANGUAGES[language])
    vocab_file = str(tmp_path / "vocab.txt")
    learn_vocabulary.learn_vocabulary(write(tmp_path, text), vocab_file, strip_accents=False)
    vocabulary = tokenization.read_vocabulary(vocab_file)
    for strip_accents in None, False, True:
        theirs = transformers.BertTokenizerFast(
            vocab=vocabulary, do_lower_case=True, strip_accents=strip_accents
        )
        casing = tokenization.casing(vocab_file, None, strip_accents)
        ours = tokenization.load(vocab_file, casing).encode(text, add_special_tokens=False)
        assert ours.tokens == theirs.tokenize(text)
        if strip_accents is False:
            assert "".join(ours.tokens).replace("##", "") == "".join(text.lower().split())


def write(folder, text):
    path = folder / "text.txt"
    path.write_text(f"{text}\n" * 5)
    return str(path)


def test_accents_of_cased_text_cannot_be_stripped(small_text):
    assert tokenization.casing(small_text.vocab_file, False, False) is False
    with pytest.raises(ValueError, match="strip_accents must be off where text is not lower-cased"):
        tokenization.casing(small_text.vocab_file, False, True)


def test_a_vocabulary_with_accents_is_held_against_stripping_them(tmp_path, capsys):
    vocab_file = str(tmp_path / "vocab.txt")
    learn_vocabulary.learn_vocabulary(write(tmp_path, "パン"), vocab_file, strip_accents=False)
    vocabulary = tokenization.read_vocabulary(vocab_file)
    tokenization.check_case(vocabulary, vocab_file, "keep_accents")
    assert capsys.readouterr().err == ""
    tokenization.check_case(vocabulary, vocab_file, True)
    said = capsys.readouterr().err
    assert "has 1 letter with accents, such as 'パ'" in said
    assert "Give --strip_accents=False" in said
