"""Vocabularies and word pieces, against Google's tokenizer written out (google_tokenizer.py)."""

import itertools
import lzma
import tracemalloc
import unicodedata
from random import Random

import google_tokenizer
import pytest
from small_text import SHARED, UNCASED, needs_shared, topics
from tokenizers.normalizers import NFD

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
            expected = google_tokenizer.tokenize(sentence, vocabulary, lower)
            total += 1
            wrong += ids != [vocabulary[token] for token in expected]
    return total, wrong


@needs_shared
@pytest.mark.parametrize(("vocab_file", "lower"), [(UNCASED, True), (CASED, False)])
def test_agrees_with_google_on_wikipedia(vocab_file, lower):
    sentences = itertools.islice(wikipedia_sentences(), 0, 60_000, 20)
    total, wrong = disagreements(sentences, vocab_file, lower)
    assert total == 3000
    assert wrong == 0


@needs_shared
@pytest.mark.slow
def test_agrees_with_google_on_40000_sentences():
    total, wrong = disagreements(itertools.islice(wikipedia_sentences(), 40_000), UNCASED, True)
    assert (total, wrong) == (40_000, 0)


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
        return words(text) != google_tokenizer.basic(text, lower)

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


def test_a_long_word_with_and_without_signs_around_it_is_encoded(small_text):
    tokenizer = tokenization.load(small_text.vocab_file)
    words = [f"{'word' * n}" for n in (3, 12, 30)]
    sentence = " ".join(sign + word + sign for word in words for sign in ("", '"', "(", "''"))
    expected = [tokenizer.encode(sentence, add_special_tokens=False).ids]
    for _ in range(2):
        assert tokenization.SentenceEncoder(tokenizer)([sentence]) == expected


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


def test_a_learned_vocabulary_is_whole_and_the_same_every_time(tmp_path):
    lines = [line for document in topics(20) for line in document]
    files = [str(tmp_path / name) for name in "ab"]
    sizes = [tokenization.learn(iter(lines), file, vocab_size=700) for file in files]
    vocabularies = [tokenization.read_vocabulary(file) for file in files]
    assert vocabularies[0] == vocabularies[1]
    assert sizes == [len(vocabularies[0])] * 2
    assert list(vocabularies[0])[:5] == list(tokenization.SPECIAL_TOKENS)
    tokenizer = tokenization.load(files[0])
    encodings = tokenizer.encode_batch(lines, add_special_tokens=False)
    unknown = sum(e.ids.count(tokenizer.token_to_id("[UNK]")) for e in encodings)
    assert unknown < 0.001 * sum(len(e.ids) for e in encodings)


def test_learning_needs_text_and_room(tmp_path):
    with pytest.raises(ValueError, match="must contain text"):
        tokenization.learn([], str(tmp_path / "v"), 100)
    with pytest.raises(ValueError, match="vocab_size must be at least .* got 5"):
        tokenization.learn(["text"], str(tmp_path / "v"), 5)
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
    assert capsys.readouterr().out.count("every word with a capital letter") == (
        outcome == "warned"
    )


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_a_vocabulary(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("\ufeff[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\n[MASK]\r\nword\r\n".encode())
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "word"]
    assert list(tokenization.read_vocabulary(str(path))) == tokens
    assert tokenization.load(str(path)).encode("Word", add_special_tokens=False).ids == [5]
