"""Blanks in held-out sentences: a fair rule, and always the same blanks."""

import collections

import pytest

from official_bert.demonstration import held_out_blanks
from official_bert.demonstration.held_out_blanks import Blank
from official_bert.prediction.predictors import Guess

WORDS = ["the", "file", "is", "not", "empty", "list", "of", "names", "and", "numbers"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, ".", ",", "##s"]


@pytest.fixture
def vocab_file(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(VOCABULARY) + "\n")
    return str(path)


def write(tmp_path, documents):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join("\n".join(document) for document in documents) + "\n")
    return str(path)


def test_the_blanks_come_from_documents_spread_evenly_over_the_text(tmp_path, vocab_file):
    sentence = "The {} file is not {} empty, list of unknown{} names."
    documents = [[sentence.format(n, n, n)] for n in range(40)]
    text = write(tmp_path, documents)
    blanks = held_out_blanks.choose(text, vocab_file, 20)
    for number, blank in enumerate(blanks):
        capitalised = blank.sentence.startswith("[MASK]")
        word = blank.word.title() if capitalised else blank.word
        assert blank.sentence.replace("[MASK]", word) == documents[2 * number][0]
        assert blank.word in WORDS
    assert blanks == held_out_blanks.choose(text, vocab_file, 20)


def test_every_word_of_the_vocabulary_is_as_likely_to_be_hidden(tmp_path, vocab_file):
    text = write(tmp_path, [[" ".join(WORDS).capitalize() + "."]] * 2000)
    counts = collections.Counter(b.word for b in held_out_blanks.choose(text, vocab_file, 2000))
    assert counts.keys() == set(WORDS)
    assert all(abs(count - 200) < 4 * (2000 * 0.1 * 0.9) ** 0.5 for count in counts.values())


def test_no_sentence_is_asked_twice_and_those_too_short_or_without_a_word_are_left_out(
    tmp_path, vocab_file
):
    good = [f"Number {n} of the 9 list,s is: not_empty {n}." for n in range(5)]
    text = write(tmp_path, [["The file.", *good], ["Nothing that anybody could ever guess here."]])
    blanks = held_out_blanks.choose(text, vocab_file, 20)
    assert sorted(b.sentence.replace("[MASK]", b.word) for b in blanks) == good
    assert {blank.word for blank in blanks} <= {"of", "the", "is"}
    short = write(tmp_path, [["The file."]])
    with pytest.raises(ValueError, match="must have sentences of 8 to 24 words"):
        held_out_blanks.choose(short, vocab_file)


def test_the_table_marks_the_right_words_and_hits_counts_them():
    blanks = [Blank("The [MASK] | is.", "file"), Blank("A [MASK].", "list")]
    after = [[Guess("list", 0.5), Guess("file", 0.25)], [Guess("name", 0.9), Guess("of", 0.05)]]
    before = [[Guess("of", 0.01)], [Guess("list", 0.01)]]
    assert held_out_blanks.hits(blanks, after) == 1
    assert held_out_blanks.hits(blanks, before) == 1
    rows = held_out_blanks.table(blanks, before, after).splitlines()
    assert rows[2] == r"| The [MASK] \| is. | file | list 50%, **file** 25% | of 1% |"
    assert rows[3] == "| A [MASK]. | list | name 90%, of 5% | **list** 1% |"
