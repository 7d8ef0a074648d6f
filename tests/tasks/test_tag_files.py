"""CoNLL files and JSON lines of tagged words: read, refused, written again with predictions."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tags import write_conll, write_json

from official_bert.tasks import tag_files

SENTENCES = [(["Anna", "sleeps"], ["B-PER", "O"]), (["Ça", "va", "?"], ["O", "O", "O"])]


def written(folder, text, name="a.conll"):
    path = folder / name
    path.write_bytes(text.encode())
    return str(path)


@pytest.mark.parametrize(
    "text",
    [
        "Anna B-PER\nsleeps O\n\nÇa O\nva O\n? O\n",
        "Anna\tB-PER\nsleeps\tO\n\nÇa\tO\nva\tO\n?\tO",  # no line end at the end
        "-DOCSTART- -X- O\n\nAnna NNP B-PER\nsleeps VBZ O\n\n\n\nÇa x O\nva x O\n? x O\n",
        "-DOCSTART-\n\n# id 7\nAnna  B-PER \r\nsleeps \t O\r\n \r\n# id 8\nÇa O\nva O\n? O\n\n",
        "\ufeffAnna B-PER\nsleeps O\n-DOCSTART- O\nÇa O\nva O\n? O\n",
    ],
)
def test_every_form_of_conll_gives_the_same_sentences(tmp_path, text):
    found = tag_files.read(written(tmp_path, text))
    assert [*zip(found.words, found.tags, strict=True)] == SENTENCES
    assert tag_files.read(written(tmp_path, text), labelled=False).tags is None


def test_json_lines_and_compressed_files_give_the_same_sentences(tmp_path):
    for path in write_json(tmp_path / "a.jsonl", SENTENCES), write_conll(tmp_path / "a", SENTENCES):
        packed = f"{path.removesuffix('.jsonl')}_2{'.jsonl' * path.endswith('.jsonl')}.gz"
        with open(path, "rb") as file, gzip.open(packed, "wb") as copy:
            copy.write(file.read())
        for each in path, packed:
            found = tag_files.read(each)
            assert [*zip(found.words, found.tags, strict=True)] == SENTENCES


def test_a_word_may_be_a_number_sign_or_hold_blanks_between_tabs(tmp_path):
    found = tag_files.read(written(tmp_path, "a O\n# O\n\n# O\nb O\n"))
    assert found.words == [["a", "#"], ["#", "b"]]
    found = tag_files.read(written(tmp_path, "New Delhi\tB-LOC\n\u00a0\tO\n"))
    assert found.words == [["New Delhi", "\u00a0"]]
    assert tag_files.read(written(tmp_path, "\u00a0 O\n")).words == [["\u00a0"]]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.conll", "", "must contain at least one sentence; got none"),
        ("a.conll", "\n-DOCSTART- O\n\n", "must contain at least one sentence"),
        ("a.conll", "a O\nb\n", "line 2 must have 2 columns, as the first word's; got 1"),
        ("a.conll", "a\tO\nb O\n", "line 2 must have 2 columns"),
        ("a.conll", "a\nb\n", "line 1 must have a word in its first column and a tag in its last"),
        ("a.conll", "a\tO\nb\t\n", "line 2 must have a word .* got an empty one"),
        ("a.conll", "a O\rb O\r", "line 1 must end with LF or CR LF; got a CR within it"),
        ("a.conll", "a B-X\nb X\n", "a.conll: tags must all be O or begin with B-"),
        ("a.jsonl", "[]", "line 1 must be a JSON object; got other JSON"),
        ("a.jsonl", '{"tokens": ["a"]}', "'tags' must be a list of texts; got none"),
        ("a.jsonl", '{"tokens": ["a"], "tags": [0]}', r"'tags' must be a list of texts; got \[0\]"),
        ("a.jsonl", '{"tokens": "a", "tags": ["O"]}', "'tokens' must be a list of texts"),
        ("a.jsonl", '{"tokens": ["a"], "tags": []}', "a tag for each of 1 tokens; got 0"),
        ("a.jsonl", '{"tokens": ["a"], "tags": [""]}', "'tags' must not be empty"),
        ("a.jsonl", '{"tokens": ["a"], "tags": [" O"]}', "'tags' must not .* begin or end with"),
        ("a.jsonl", '{"tokens": [], "tags": [], "tokens": []}', "one field 'tokens'; got several"),
        ("a.jsonl", '{"tokens": ["\\ud800"], "tags": ["O"]}', "valid Unicode"),
    ],
)
def test_broken_files_are_refused_with_their_line(tmp_path, name, text, message):
    with pytest.raises(ValueError, match=message):
        tag_files.read_tagged(written(tmp_path, text, name))
    with pytest.raises(ValueError, match="nowhere"):
        tag_files.read(str(tmp_path / "nowhere.conll"))


@pytest.mark.parametrize(
    ("given_tags", "wanted", "found"),
    [
        ("I-PER I-PER B-PER O", None, "B-PER I-PER B-PER O"),
        ("I-PER I-PER B-PER O", "BIOES", "B-PER E-PER S-PER O"),
        ("B-PER E-PER S-PER O", "IOB2", "B-PER I-PER B-PER O"),
        ("B-PER O I-PER I-PER", None, "B-PER O I-PER I-PER"),  # as it is
        ("O O O O", "plain", "O O O O"),
        ("NN VB O NN", None, "NN VB O NN"),
    ],
)
def test_tags_are_converted_to_the_scheme_of_the_model(tmp_path, given_tags, wanted, found):
    words = ["a", "b", "c", "d"]
    path = write_conll(tmp_path / "a.conll", [(words, given_tags.split())])
    assert tag_files.read_tagged(path, wanted)[0].tags == [found.split()]


def test_prefixed_and_plain_tags_cannot_be_converted(tmp_path):
    path = write_conll(tmp_path / "a.conll", [(["a"], ["NN"])])
    with pytest.raises(ValueError, match="must have tags of the scheme IOB2, as the model; got"):
        tag_files.read_tagged(path, "IOB2")


def test_comments_with_the_columns_of_words_are_no_words(tmp_path):
    lines = ["# id 7", "Anna NNP B-PER", "# 5 O", "", "# sent_id = 8", "# NN O", "Ben NNP B-PER"]
    path = tmp_path / "a.conll"
    path.write_text("\n".join(lines) + "\n")
    sentences, _ = tag_files.read_tagged(str(path))
    assert sentences.words == [["Anna", "#"], ["#", "Ben"]]


# Predictions


@pytest.mark.parametrize("between", [" ", "\t"])
def test_a_conll_file_gets_a_column_and_can_be_read_again(tmp_path, between):
    lines = ["-DOCSTART- O", "", "#a comment of it", "Anna B-PER", "sleeps O", "", "", "va O"]
    lines = [line if line.startswith("#") else line.replace(" ", between) for line in lines]
    text = "\n".join(lines)
    path, tags = written(tmp_path, text, "new.txt"), [["X", "O"], ["Y"]]
    out = tag_files.write_predictions(path, tmp_path, tags)
    assert out == str(tmp_path / "predictions.txt")
    with open(out, encoding="utf-8") as file:
        found = file.read().split("\n")
    expected = [*lines]
    for row, tag in (3, "X"), (4, "O"), (7, "Y"):
        expected[row] += f"{between}{tag}"
    assert found == [*expected, ""]
    assert tag_files.read(out).tags == tags


def test_json_lines_get_a_field_and_keep_the_others(tmp_path):
    text = '{"id": "\\ud800é", "tokens": ["é", "b"]}\n\n{"tokens": []}\n'
    path = written(tmp_path, text, "new.jsonl")
    assert len(tag_files.read(path, labelled=False)) == 2
    out = tag_files.write_predictions(path, tmp_path, [["X", "O"], []])
    with open(out, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    assert rows[0] == {"id": "\ud800é", "tokens": ["é", "b"], "predicted_tags": ["X", "O"]}
    assert rows[1] == {"tokens": [], "predicted_tags": []}


WORD = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@given(st.lists(st.lists(WORD, max_size=4), min_size=1, max_size=4))
def test_any_words_survive_json_lines(tmp_path_factory, words):
    folder = tmp_path_factory.mktemp("json")
    path = write_json(folder / "a.jsonl", [(row, ["O"] * len(row)) for row in words])
    assert tag_files.read(path).words == words
