"""File formats: supported ones are recognised, anything else is refused by name."""

import bz2
import gzip
import io
import json
import tarfile
import zipfile

import pytest

from official_bert.data import corpus, format_detection
from official_bert.learn_vocabulary import learn_vocabulary


def shown(value) -> str:
    """The name of a case; the contents of files would be too long."""
    return (
        value if isinstance(value, str) and len(value) < 40 and value.isprintable() else "content"
    )


def write(folder, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


PAGE = '<doc id="1" url="u" title="T">\nT\n\nSome text.\n</doc>\n'


@pytest.mark.parametrize(
    ("name", "content", "form"),
    [
        ("a", '{"text": "Some text."}\n', "jsonl"),
        ("a", '{ "text": "Some text."}\n', "jsonl"),
        ("a", '\n\n  {\t"text": "Some text."}\n', "jsonl"),
        ("a", '\ufeff{ "text": "Some text."}\n', "jsonl"),
        ("a.JSONL", '\n{"text": "Some text."}\n', "jsonl"),
        ("a", PAGE, "wikiextractor"),
        ("a", "\n \n" + PAGE, "wikiextractor"),
        ("a", "\ufeff\n" + PAGE, "wikiextractor"),
        ("a", "Some text.\n", "sentences"),
        ("a", "\n\nSome text.\n", "sentences"),
        ("a.xml.txt", "Some text.\n", "sentences"),
        ("a.csv", "id,text\n1,Some text.\n", "csv"),
        ("a.TSV.gz", gzip.compress(b"\xef\xbb\xbfid\ttext\n1\tSome text.\n"), "tsv"),
    ],
    ids=shown,
)
def test_a_form_is_found_out_whatever_blank_stands_before_it(tmp_path, name, content, form):
    path = write(tmp_path, name, content)
    assert format_detection.recognise(path) == form
    assert [document.lines for document in corpus.Corpus([path]).documents()] == [["Some text."]]


def tar(text: bytes = b"Some text.\n" * 100) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo("a.txt")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    return packed.getvalue()


def zipped() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.txt", "Some text.\n" * 100)
    return packed.getvalue()


def tfrecord() -> bytes:
    from official_bert.data.records import frame

    return frame(b"payload")


WIKIPEDIA = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="en">
  <siteinfo>
    <sitename>Wikipedia</sitename>
  </siteinfo>
  <page><title>T</title><text>'''T''' is a [[letter]].</text></page>
</mediawiki>
"""
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00ff\nsize 12345\n"
ROWS = "\n".join(f'{n},"Some text, with a comma {n}.",0.{n}' for n in range(12)) + "\n"
REVIEWS = "review,sentiment\n" + "".join(f'"Good, really {n}.",positive\n' for n in range(5))


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("enwiki-pages-articles.xml.bz2", bz2.compress(WIKIPEDIA.encode()), "a MediaWiki dump.*Wi"),
        ("a.xml", '<?xml version="1.0"?>\n' + WIKIPEDIA, "a MediaWiki dump.*WikiExtractor"),
        ("a.xml", '\n<?xml version="1.0"?>\n<corpus><s>Text</s></corpus>', "text with markup"),
        ("a.txt", "<DOC>\n<TEXT>\nSome text.\n</TEXT>\n</DOC>\n", "text with markup"),
        ("a.html", "<!DOCTYPE html>\n<html><p>Some text.</p></html>", r"HTML\. Extract its text"),
        ("a.txt", "\n  <HTML lang=en>\n<p>Some text.</p></HTML>", r"HTML\. Extract its text"),
        ("a.txt", ROWS, "a table .*--input_format=csv"),
        ("a.txt", REVIEWS, "a table .*--input_format=csv"),
        ("a.txt", ROWS.replace(",", "\t"), "a table .*--input_format=csv"),
        ("a.json", json.dumps([{"text": "Some text."}]), "a JSON array.*jq"),
        ("a", '[\n {"text": "Some text."}\n]\n', "a JSON array.*jq"),
        ("a.json", json.dumps({"text": "Some text."}, indent=1), "JSON over several lines.*jq"),
        ("a", '{\n "text": "Some text."}\n', "JSON over several lines.*jq"),
        ("a", "{'id': 1, 'text': 'Some text.'}\n", "Python dictionaries.*json.dumps"),
    ],
    ids=shown,
)
def test_what_is_no_plain_text_is_refused_by_name_with_what_to_do(tmp_path, name, content, what):
    path = write(tmp_path, name, content)
    with pytest.raises(
        ValueError,
        match=rf"{name} must be plain text.*; got {what}.*--input_format=sentences",
    ) as e:
        list(corpus.Corpus([path]).documents())
    assert "\n" not in str(e.value)
    assert format_detection.recognise(path, "sentences") == "sentences"


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.tar.gz", gzip.compress(tar()), r"a tar archive\. Unpack it"),
        ("a.tar", tar(), r"a tar archive\. Unpack it"),
        ("a.tgz", gzip.compress(tar()), r"a tar archive\. Unpack it"),
        ("a.zip", zipped(), "a ZIP archive.*Unpack it"),
        ("a.docx", zipped(), r"a ZIP archive, or .*\.docx"),
        ("a.pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", r"a PDF document\. Extract its text"),
        ("a.txt", "Some text.\n".encode("utf-16"), "text in UTF-16.*iconv -f utf-16"),
        ("a.txt", "Some text.\n".encode("utf-16-le"), "a binary file, with bytes of value 0"),
        ("a.tfrecord", tfrecord(), "a TFRecord file"),
        ("a.db", b"SQLite format 3\0" + bytes(80), "an SQLite database"),
        ("a.parquet", POINTER, r"a pointer of Git LFS .*git lfs pull"),
        ("a.txt", POINTER, r"a pointer of Git LFS .*git lfs pull"),
    ],
    ids=shown,
)
@pytest.mark.parametrize("form", ["auto", "sentences", "jsonl"])
def test_binary_files_are_refused_by_name_in_whatever_form(tmp_path, name, content, what, form):
    path = write(tmp_path, name, content)
    with pytest.raises(ValueError, match=rf"{name} must be plain text.*; got {what}") as error:
        list(corpus.Corpus([path], form).documents())
    assert "--input_format" not in str(error.value)
    assert "latin1" not in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        "Hello, world\n" * 50,
        "".join(f"Number {n}, and more.\n" for n in range(50)),
        "Apples, pears and plums.\n\nBread, milk and eggs.\n\n" * 9,
        "<b>Bold</b> is a tag, and this is a sentence.\nAnother one.\n",
        "[edit] was a link.\n",
        "{curly} braces.\n",
        "In 1905, at last.\nIt was, they say, late.\nThe end.\nAnd so, on.\nYes, no.\nA, b.\n",
    ],
    ids=shown,
)
def test_sentences_with_commas_or_brackets_are_text(tmp_path, content):
    assert format_detection.recognise(write(tmp_path, "a.txt", content)) == "sentences"


def test_the_topics_of_the_language_reference_are_text(small_text):
    assert format_detection.recognise(small_text.path) == "sentences"


def test_a_form_that_the_user_names_is_held_against_the_file(tmp_path):
    path = write(tmp_path, "a.txt", "Some text.\n")
    with pytest.raises(ValueError, match="must begin with `<doc `, as WikiExtractor.*; got 'Some"):
        list(corpus.Corpus([path], "wikiextractor").documents())
    with pytest.raises(ValueError, match="input_format must be auto, .*; got 'xml'"):
        format_detection.recognise(path, "xml")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("a.jsonl", {"text_field": ""}, "text_field must be the name of a column or field; got ''"),
        ("a.txt", {"language": "xx"}, "language must be an ISO 639-1 code, .*; got 'xx'"),
        ("a.jsonl", {"language": "german"}, "language must be an ISO 639-1 code, .*; got 'german'"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(tmp_path, name, options, message):
    path = write(tmp_path, name, '{"body": "Some text."}\n' if ".jsonl" in name else "Some text.\n")
    with pytest.raises(ValueError, match=message):
        format_detection.check([path], "auto", **options)


@pytest.mark.parametrize(
    ("name", "options", "idle"),
    [
        ("a.txt", {"text_field": "text"}, {"text_field"}),
        ("a.txt", {"language": "de"}, {"language"}),
        ("a.txt", {"language": "de", "form": "paragraphs"}, set()),
        ("a.jsonl", {"language": "de", "text_field": "body"}, set()),
    ],
)
def test_options_without_effect_on_the_files_are_named_with_what_to_do(
    tmp_path, name, options, idle
):
    path = write(tmp_path, name, '{"body": "Some text."}\n' if ".jsonl" in name else "Some text.\n")
    found = format_detection.check([path], **{"form": "auto"} | options)
    assert {*found} == idle
    for option, reason in found.items():
        assert reason.startswith(f"--{option}={options[option]} has no effect: ")
        assert "give --input_format=" in reason


def test_a_description_next_to_tables_is_named_since_it_becomes_text(tmp_path):
    paths = [
        write(tmp_path, "0.csv", "id,text\n1,Some text.\n"),
        write(tmp_path, "README.md", "# A dataset\n"),
        write(tmp_path, "2.jsonl", '{"text": "Some text."}\n'),
    ]
    found = format_detection.check(paths, "auto")
    assert [*found] == ["input_file"]
    assert "README.md is read as plain text, next to " in found["input_file"]
    assert not format_detection.check([paths[0], paths[2]], "auto")
    assert not format_detection.check([paths[1]], "auto")


@pytest.mark.parametrize("form", ["sentences", "paragraphs"])
def test_json_lines_and_tables_that_a_format_makes_plain_text_are_named(tmp_path, form):
    plain = write(tmp_path, "0.txt", "Some text.\n")
    page = write(tmp_path, "1.html", "<html>\n")  # the flag is the cure of its refusal
    lines = write(tmp_path, "2.jsonl", '{"text": "Some text."}\n')
    assert not format_detection.check([plain, page], form)
    said = format_detection.check([plain, page, lines], form)["input_file"]
    assert said.startswith(f"{lines} looks like JSON lines, but is read as plain text, as --input")
    table = write(tmp_path, "3.csv", "id,text\n1,Some text.\n")
    assert f"{table} looks like csv" in format_detection.check([table], form)["input_file"]


def test_a_table_with_other_separators_is_not_read_as_one_column(tmp_path):
    table = write(tmp_path, "0.csv", "id;text\n1;Some text.\n")
    with pytest.raises(
        ValueError, match=r"Separate columns with commas in CSV, with tabs in TSV\.$"
    ):
        format_detection.check([table], "auto")


def test_json_lines_of_other_fields_are_refused_before_the_work(tmp_path):
    table = write(tmp_path, "0.csv", "id,body\n1,Some text.\n")
    lines = '{"title": "A"}\n\n{"text": "Some text."}\n{"text": "cut'
    paths = [table, write(tmp_path, "1.jsonl", lines)]
    with pytest.raises(ValueError, match=r"1.jsonl must .* in 'body'; got the fields 'title', 'te"):
        format_detection.check(paths, "auto", "body")
    for name in "text", "title":  # a line may lack it
        assert not format_detection.check(paths[1:], "auto", name)
    assert not format_detection.check(paths, "auto", "body", skip_bad_lines=True)


def test_the_last_of_many_files_is_looked_at_before_the_work(small_text, tmp_path, capsys):
    for n in range(3):
        write(tmp_path, f"{n}.txt", "Some text.\n" * 20)
    write(tmp_path, "3.txt", zipped())
    with pytest.raises(ValueError, match=r"3\.txt must be plain text.*; got a ZIP archive"):
        learn_vocabulary(str(tmp_path), f"{tmp_path}.vocab", vocab_size=100, max_text_mb=0.0001)
    learn_vocabulary(small_text.path, str(tmp_path / "v"), vocab_size=300, json_field="body")
    assert capsys.readouterr().err.startswith("warning: --text_field=body has no effect: no file")
