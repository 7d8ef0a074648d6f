"""The command that learns a vocabulary: its input, limits and refusals."""

import json
import random
from itertools import islice
from pathlib import Path

import pytest

from official_bert import learn_vocabulary as command
from official_bert.data import corpus, tokenization
from official_bert.learn_vocabulary import learn_vocabulary


def test_cased_and_uncased_and_no_more_text_than_asked_for(small_text, tmp_path):
    def learn(name, **options):
        file = str(tmp_path / name)
        learn_vocabulary(small_text.path, file, vocab_size=600, **options)
        return tokenization.read_vocabulary(file)

    uncased, cased = learn("uncased"), learn("cased", do_lower_case=False)
    assert not any(t.lower() != t for t in uncased if t not in tokenization.SPECIAL_TOKENS)
    assert any(t.lower() != t for t in cased if t not in tokenization.SPECIAL_TOKENS)
    assert list(uncased)[:5] == list(tokenization.SPECIAL_TOKENS)
    assert learn("again") == uncased
    assert learn("of_less", max_text_mb=0.01) != uncased


def written_in(characters: list[str], blanks: bool) -> list[str]:
    """Lines whose characters have the frequencies of a language (Zipf's law)."""
    rng = random.Random(1)
    rng.shuffle(characters)
    weights = [1 / (rank + 3) for rank in range(len(characters))]
    drawn = iter(rng.choices(characters, weights, k=100_000))
    words = ["".join(islice(drawn, rng.randint(1, 4))) for _ in range(40_000)]
    return [(" " if blanks else "").join(words[at : at + 12]) for at in range(0, len(words), 12)]


def span(first: str, last: str, step: int = 1) -> list[str]:
    return list(map(chr, range(ord(first), ord(last) + 1, step)))


SCRIPTS = {
    "chinese": (span("一", "龥", 3), False),  # 6,967 ideographs
    "japanese": (span("ぁ", "ゖ") + span("ァ", "ヺ") + span("一", "龥", 7), False),
    "korean": (span("가", "힣", 4), True),  # 2,793 syllables
    "thai": ([f"{c}{v}" for c in span("ก", "ฮ") for v in ["", *"ะัาิีืุู่้"]], True),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_vocabulary_of_any_script_knows_the_text_it_was_learned_from(script, tmp_path):
    lines, file, said = written_in(*SCRIPTS[script]), str(tmp_path / "vocab.txt"), []
    size = tokenization.learn(lines, file, 21_128, do_lower_case=False, report=said.append)
    encoded = tokenization.load(file, do_lower_case=False).encode_batch_fast(lines)
    known = tokenization.read_vocabulary(file)
    ids = [i for encoding in encoded for i in encoding.ids]
    assert ids.count(known["[UNK]"]) < 0.002 * len(ids)
    text = "".join(lines).replace(" ", "")
    assert sum(map(known.__contains__, text)) >= 0.9995 * len(text)
    assert "different characters, which cover " in said[0]
    if script == "chinese":  # an ideograph is a word by itself
        assert size < 21_128
        assert said[1].startswith("This is less than vocab_size=21,128: no other piece of a word ")
    assert len(said) == 1 + (size < 21_128)


@pytest.mark.parametrize("script", ["chinese", "korean"])
def test_a_vocabulary_too_small_for_the_characters_says_how_large_it_must_be(script, tmp_path):
    lines, file, said = written_in(*SCRIPTS[script]), str(tmp_path / "vocab.txt"), []
    assert tokenization.learn(lines, file, 600, do_lower_case=False, report=said.append) <= 600
    assert said[-1].startswith("warning: vocab_size must be ")
    needed = int(said[-1].split()[4].replace(",", ""))
    for size, is_enough in (needed, True), (needed - 1, False):
        said.clear()
        tokenization.learn(lines, file, size, do_lower_case=False, report=said.append)
        assert is_enough != any(line.startswith("warning") for line in said)


def test_rows_without_text_are_counted(small_text, tmp_path):
    lines = Path(small_text.path).read_text().splitlines()
    rows = [json.dumps({"text": line or None}) for line in lines]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    said = []
    learn_vocabulary(
        str(tmp_path / "a.jsonl"), str(tmp_path / "v.txt"), vocab_size=300, report=said.append
    )
    assert f"warning: left out {lines.count('')} rows whose text is null." in said


def test_all_the_text_can_be_asked_for(small_text, tmp_path):
    file = str(tmp_path / "v.txt")
    assert learn_vocabulary(small_text.path, file, vocab_size=300, max_text_mb=float("inf")) == 300


@pytest.mark.parametrize(("letters", "documents"), [("ก" * 50, 3), ("中" * 50, 9), ("ก " * 50, 9)])
def test_words_without_end_are_read_as_far_as_the_memory_holds_them(
    tmp_path, monkeypatch, letters, documents
):
    monkeypatch.setattr(command, "MAX_LETTERS", 120)
    (tmp_path / "a.txt").write_text(f"{letters}\n\n" * 9, encoding="utf-8")
    text = command._Text(corpus.Corpus([str(tmp_path / "a.txt")]), limit=1e9)
    assert len(list(text)) == documents


def test_what_cannot_be_used_is_refused(small_text, tmp_path):
    with pytest.raises(ValueError, match="input_file must match at least one file"):
        learn_vocabulary("nowhere.txt", str(tmp_path / "v.txt"))
    (tmp_path / "file").write_bytes(b"")
    for path in "/proc/none/v.txt", str(tmp_path / "file/v.txt"):
        with pytest.raises(ValueError, match="vocab_file must be in a folder that can be written"):
            learn_vocabulary(small_text.path, path)
    with pytest.raises(ValueError, match="must be the path of a file to write"):
        learn_vocabulary(small_text.path, str(tmp_path))
    with pytest.raises(ValueError, match="vocab_file must be the path of a file to write; got ''"):
        learn_vocabulary(small_text.path, "")
    for size in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=r"max_text_mb must be above 0; got"):
            learn_vocabulary(small_text.path, str(tmp_path / "v.txt"), max_text_mb=size)
    with pytest.raises(ValueError, match="min_frequency must be at least 1; got 0"):
        learn_vocabulary(small_text.path, str(tmp_path / "v.txt"), min_frequency=0)
    with pytest.raises(ValueError, match="vocab_size must be at least 50; got 7"):
        learn_vocabulary(small_text.path, str(tmp_path / "v.txt"), vocab_size=7)
