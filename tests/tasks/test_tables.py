"""Tables with named columns: what is read from TSV, CSV and JSON lines, and what is refused."""

import csv
import gzip
import json
import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st

from official_bert.data import table_files
from official_bert.tasks import tables

# Characters at which `str.splitlines` would break a line that is none.
ODD_BREAKS = "a\rb\x0bc\x0cd\x1ce\x1df\x1eg\x85h\u2028i\u2029j"
NOT_LATIN = "Ünïcödé 漢字かな Ελληνικά עברית हिन्दी \U0001f600"


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def columns_of(path, *names, **options):
    return list(table_files.read_columns(path, names, **options).columns.values())


def test_a_quotation_mark_in_tsv_is_text_and_swallows_no_lines(write):
    path = write("t.tsv", 'a\tb\n"open\tx\n1\t"whole"\n""\t"\n')
    assert columns_of(path, "a", "b") == [['"open', "1", '""'], ["x", '"whole"', '"']]


def test_quotation_marks_in_csv_enclose_commas_line_breaks_and_doubled_marks(write):
    path = write("t.csv", 'a,b\n"x, y","He said ""yes"""\n"two\r\nlines\nmore",5" pipe\n"",\n')
    assert columns_of(path, "a", "b") == [
        ["x, y", "two\r\nlines\nmore", ""],
        ['He said "yes"', '5" pipe', ""],
    ]
    assert table_files.read_columns(path, ["a"]).lines == [2, 3, 6]


cells = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(st.lists(st.lists(cells, min_size=2, max_size=2), min_size=1, max_size=5))
def test_what_python_writes_as_csv_or_json_is_read_as_it_was(tmp_path_factory, rows):
    for name in "written.csv", "written.jsonl":
        path = str(tmp_path_factory.getbasetemp() / name)
        with open(path, "w", encoding="utf-8", newline="") as file:
            if name == "written.csv":
                csv.writer(file).writerows([["a", "b"], *rows])
            else:
                lines = (json.dumps({"b": b, "a": a}, ensure_ascii=False) for a, b in rows)
                file.writelines(f"{line}\n" for line in lines)
        assert columns_of(path, "a", "b") == [list(column) for column in zip(*rows)]


@pytest.mark.parametrize("text", [ODD_BREAKS, NOT_LATIN])
def test_only_ends_of_lines_end_lines(write, text):
    tsv = write("t.tsv", f"a\tb\n{text}\t1\n{text}\t2\n")
    assert columns_of(tsv, "a", "b") == [[text, text], ["1", "2"]]
    plain = write("t.csv", f'a,b\n{text},1\n"{text}",2\n')
    assert columns_of(plain, "a", "b") == [[text, text], ["1", "2"]]
    raw = text.replace("\r", "\\r")
    for control in "\x0b\x0c\x1c\x1d\x1e":
        raw = raw.replace(control, f"\\u{ord(control):04x}")
    assert columns_of(write("t.jsonl", f'{{"a": "{raw}"}}\n'), "a") == [[text]]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.tsv", "\ufeffa\tb\r\nx\t1\r\n y \t\r\n"),
        ("t.csv", "\ufeffa,b\r\nx,1\r\n y ,\r\n"),
        ("t.csv", '\ufeff"a","b"\r\n"x","1"\r\n" y ",""'),
        ("t.jsonl", '\ufeff{"a": "x", "b": 1}\r\n{"a": " y ", "b": ""}\r\n'),
        ("t.tsv", "a\tb\nx\t1\n y \t"),
    ],
)
def test_a_byte_order_mark_windows_line_ends_and_no_last_line_end_are_no_text(write, name, text):
    assert columns_of(write(name, text), "a", "b") == [["x", " y "], ["1", ""]]


def test_columns_are_found_by_name_in_any_order_and_others_are_left(write):
    path = write("t.tsv", "c\t a \tb\n3\t1\t2\n")
    assert columns_of(path, "a", "c") == [["1"], ["3"]]


def test_a_file_without_header_is_read_with_the_names_given(write):
    path = write("t.tsv", "gj04\t1\t\tA sentence.\n")
    names = ("source", "label", "mark", "sentence")
    assert columns_of(path, "sentence", "mark", header=names) == [["A sentence."], [""]]


def test_compressed_tables_are_read(tmp_path):
    content = b"a\tb\nx\t1\n"
    for name, pack in (("t.tsv.xz", lzma.compress), ("t.TSV.gz", gzip.compress)):
        (tmp_path / name).write_bytes(pack(content))
        assert columns_of(str(tmp_path / name), "a") == [["x"]]


def test_blank_lines_are_no_rows(write):
    assert columns_of(write("t.tsv", "\na\tb\n\nx\t1\n\n\ny\t2\n\n"), "a") == [["x", "y"]]
    assert columns_of(write("t.csv", "a,b\r\n\r\nx,1\r\n\r\n"), "a") == [["x"]]
    assert columns_of(write("t.jsonl", '\n{"a": "x"}\n\n'), "a") == [["x"]]


def test_in_a_single_column_a_blank_line_between_others_is_an_empty_sentence(write):
    table = table_files.read_columns(write("t.tsv", "a\n\nx\n\ny\n\n\n"), ["a"])
    assert table.columns == {"a": ["", "x", "", "y"]}
    assert table.lines == [2, 3, 4, 5]
    assert columns_of(write("t.csv", 'a\nx\n""\n'), "a") == [["x", ""]]


def test_numbers_of_json_are_read_as_text(write):
    path = write("t.jsonl", '{"a": 1}\n{"a": 2.5}\n{"a": true}\n{"a": "1"}\n')
    assert columns_of(path, "a") == [["1", "2.5", "true", "1"]]


@pytest.mark.parametrize("ending", ["tsv", "csv"])
def test_a_row_that_is_too_short_or_too_long_is_refused_with_its_line(write, ending):
    separator = "\t" if ending == "tsv" else ","
    for row in (["x"], ["x", "1", "2"]):
        rows = [["a", "b"], ["x", "1"], row]
        path = write(f"t.{ending}", "\n".join(map(separator.join, rows)))
        message = f"t.{ending}, line 3 must have 2 columns \\('a', 'b'\\); got {len(row)}"
        with pytest.raises(ValueError, match=message):
            table_files.read_columns(path, ["a"])


def test_broken_rows_can_be_skipped_and_are_told(write):
    path = write("t.tsv", "a\tb\nx\t1\nhalf a\n question\t1\t2\ny\t2\n")
    table = table_files.read_columns(path, ["a"], skip_broken=True)
    assert table.columns["a"] == ["x", "y"]
    assert (table.lines, table.skipped) == ([2, 5], [3, 4])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.tsv", "", "t.tsv must have a line of column names, .*; got an empty file"),
        ("t.csv", "\n\n", "t.csv must have a line of column names, .*; got an empty file"),
        ("t.tsv", "a\tb\n", "t.tsv must have at least one row"),
        ("t.jsonl", "\n", "t.jsonl must have at least one row"),
        ("t.tsv", "b\tc\nx\t1\n", "t.tsv must have one column 'a'; got none. .* names 'b', 'c'"),
        ("t.csv", "a;b\nx;1\n", "names 'a;b'. Separate columns with commas in CSV, with tabs in"),
        ("t.tsv", "a\tb\ta\nx\t1\t2\n", "one column 'a'; got several"),
        ("t.tsv", "a\tb\rx\t1\r", "LF or CR LF; got CR .* `tr "),
        ("t.csv", 'a,b\nx,1\n"open,2\ny,3\n', "t.csv, line 3 must be CSV"),
        ("t.csv", 'a,b\nx,1\n"x" y,2\n', "t.csv, line 3 must be CSV"),
        (
            "t.csv",
            f'a,b\n"{"x" * 131073}",1\n',
            "line 2 .* at most 131,072 .* TSV or JSON",
        ),
        ("t.tsv", b"a\tb\nx\t1\n\xe9\t2\n", "t.tsv, line 3 must be UTF-8"),
        ("t.tsv", "a\tb\nx\t1\n".encode("utf-16"), "line 1 must be UTF-8.* `iconv -f utf-16 -t"),
        ("t.tsv.gz", b"a\tb\n", "t.tsv.gz cannot be read after line 0"),
        ("t.jsonl", '{"a": "x"}\n{"b": 1}\n', "t.jsonl, line 2 must have one field 'a'; got none"),
        ("t.jsonl", '{"a": "x", "a": 1}\n', "line 1 must have one field 'a'; got several"),
        ("t.jsonl", '{"a": null}\n', "line 1: 'a' must be text; got null"),
        ("t.jsonl", '{"a": NaN}\n', "line 1: 'a' must be text or a finite number; got nan"),
        ("t.jsonl", '{"a": ["x"]}\n', "line 1: 'a' must be text; got ..x.."),
        ("t.jsonl", '{"a": "\\ud83d"}\n', "line 1: 'a' must be valid Unicode"),
        ("t.jsonl", '{\n"a": "x"}\n', "t.jsonl, line 1 must be a JSON object; got invalid JSON"),
        ("t.jsonl", '[{"a": "x"}]\n', "line 1 must be a JSON object; got other JSON"),
        ("t.xlsx", "PK", "t.xlsx must have a name that ends in"),
    ],
)
def test_what_is_no_table_is_refused_with_file_line_and_reason(write, name, content, message):
    with pytest.raises(ValueError, match=message):
        table_files.read_columns(write(name, content), ["a"])


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="none.tsv must be an existing file"):
        table_files.read_columns(str(tmp_path / "none.tsv"), ["a"])


def test_examples_are_one_sentence_or_two_with_or_without_labels(write):
    path = write("t.csv", "id,text,reply,stars\nr7,Good,Thanks,5\nr9,,No,1\n")
    pair = tables.Columns("text", "reply", "stars", "id")
    examples = tables.read(path, pair)
    assert len(examples) == 2
    assert examples.sentences1 == ["Good", ""]
    assert examples.sentences2 == ["Thanks", "No"]
    assert examples.labels == ["5", "1"]
    assert examples.index == ["r7", "r9"]
    single = tables.Columns("text", label="absent")
    examples = tables.read(path, single, labelled=False)
    assert examples.sentences2 is None
    assert examples.labels is None
    assert examples.index == ["0", "1"]


def test_a_list_of_labels_is_returned_as_json(write):
    rows = ['{"a": ["x", "y|z", 3, true], "b": ""}', '{"a": [], "b": ""}', '{"a": "x|y", "b": ""}']
    path = write("t.jsonl", "\n".join(rows))
    table = table_files.read_columns(path, ["a"], lists=["a"]).columns["a"]
    assert [*map(json.loads, table[:2]), table[2]] == [["x", "y|z", "3", "true"], [], "x|y"]
    with pytest.raises(ValueError, match="line 1: 'a' must be text; got"):
        table_files.read_columns(path, ["a"], lists=["b"])
    for cell in "[null]", '[["x"]]', "[NaN]", '["\\ud83d"]':
        path = write("t.jsonl", f'{{"a": {cell}}}\n')
        with pytest.raises(ValueError, match="line 1: an entry of 'a' must be"):
            table_files.read_columns(path, ["a"], lists=["a"])


@pytest.mark.parametrize("cell", [None, ["x", None], [["x"]], {"x": 1}, [{"x": 1}]])
def test_a_label_that_is_no_text_is_refused_with_what_to_do(write, cell):
    path = write("t.jsonl", json.dumps({"text": "A cat.", "label": cell}) + "\n")
    columns = tables.Columns("text")
    with pytest.raises(ValueError, match=r"'label' must be .*; got .* Write \[\] for no label"):
        tables.read(path, columns, label_lists=True)
    with pytest.raises(ValueError, match=r"'label' must be text; got .* give --multi_label\.$"):
        tables.read(path, columns)
    path = write("t.jsonl", json.dumps({"text": cell, "label": "x"}) + "\n")
    with pytest.raises(ValueError, match=r"'text' must be text; got .* Fill in such rows, or"):
        tables.read(path, columns, label_lists=True)


def test_two_parts_of_an_example_cannot_be_one_column():
    with pytest.raises(ValueError, match="must be different columns; got 'text'"):
        tables.Columns("text", label="text")
