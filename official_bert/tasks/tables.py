"""Reads tables of sentences to classify: TSV, CSV and JSON lines.

Quotation marks are text in TSV, as in GLUE's files; in CSV they enclose fields (RFC 4180), which
may then contain commas and line breaks. In JSON lines every line is an object whose names are the
columns. Cells are returned as text, unchanged.

Python's `csv` splits CSV, but not TSV: its limit of 131,072 characters a field, which holds for the
whole process, and its refusal of a CR within a line would lose texts that TSV can hold.
"""

import csv
import dataclasses
import functools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from official_bert.data import text_files

_COMPRESSED = re.compile(r"\.(gz|bz2|xz|zst)$")
_FORMATS = {
    ".tsv": "tsv",
    ".txt": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
_WIDTH_HINTS = {
    "tsv": "In TSV, every tab separates and quotation marks are text: write texts with tabs or "
    "line breaks as CSV or JSON lines.",
    "csv": "In CSV, put texts with commas or line breaks in quotation marks.",
}
# Stands for a CR within a line while `csv`, which would refuse it, splits the line. Text decoded
# from UTF-8 cannot contain this code point.
_HIDDEN_CR = "\udc0d"
_LONE_CR = re.compile(r"\r(?!\n)")
_Rows = Iterator[tuple[int, Sequence[str]]]  # the line on which a row begins, from 1, and its cells


@dataclasses.dataclass(frozen=True)
class Columns:
    """The names of a table's columns.

    Attributes:
        sentence1: The sentence.
        sentence2: The second sentence of a pair; None for single sentences.
        label: The class or number to predict.
        index: The name of a row in a file of predictions; None for its number, counted from 0.
    """

    sentence1: str
    sentence2: str | None = None
    label: str = "label"
    index: str | None = None

    def __post_init__(self):
        given = dataclasses.asdict(self)
        for field, name in given.items():
            others = [other for other in given if given[other] == name and other != field]
            if name is not None and others:
                raise ValueError(
                    f"{field} and {others[0]} must be different columns; got {name!r} for both."
                )


@dataclasses.dataclass(frozen=True)
class Examples:
    """The rows of a file.

    Attributes:
        path: The file, for messages.
        lines: The line on which each row begins, for messages.
        sentences1: The sentences.
        sentences2: The second sentences; None for single sentences.
        labels: Classes or numbers as text; None for a set without labels.
        index: The name of each row in a file of predictions.
        skipped: The lines of broken rows that were left out.
    """

    path: str
    lines: Sequence[int]
    sentences1: Sequence[str]
    sentences2: Sequence[str] | None
    labels: Sequence[str] | None
    index: Sequence[str]
    skipped: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.sentences1)


class Table(NamedTuple):
    """Some columns of a file: cells by the name of the column, and the lines, from 1."""

    columns: dict[str, list[str]]
    lines: list[int]  # on which each row begins
    skipped: list[int]  # of the rows that were left out


def read(
    path: str,
    columns: Columns,
    *,
    labelled: bool = True,
    header: Sequence[str] | None = None,
    skip_broken: bool = False,
) -> Examples:
    """Reads a table of examples.

    Args:
        path, header, skip_broken: As of `read_columns`.
        columns: The names of its columns.
        labelled: False leaves the labels unread, as for a test set without labels.

    Raises:
        ValueError: as `read_columns`.
    """
    label = columns.label if labelled else None
    wanted = [columns.sentence1, columns.sentence2, label, columns.index]
    names = [name for name in wanted if name is not None]
    table = read_columns(path, names, header=header, skip_broken=skip_broken)
    _report_skipped(path, len(table.lines), tuple(table.skipped))
    sentences1 = table.columns[columns.sentence1]
    sentences2, labels, index = (name and table.columns[name] for name in wanted[1:])
    index = index or [str(row) for row in range(len(sentences1))]
    return Examples(path, table.lines, sentences1, sentences2, labels, index, table.skipped)


@functools.cache  # once for a file that is read again
def _report_skipped(path: str, rows: int, skipped: tuple[int, ...]) -> None:
    """Prints the number of rows of a file that are left out, and their first lines."""
    if skipped:
        first = ", ".join(map(str, skipped[:5])) + (", …" if len(skipped) > 5 else "")
        print(
            f"{path}: left out {len(skipped):,} of {rows + len(skipped):,} rows, because they have "
            f"more or fewer columns than the header (lines {first})"
        )


def read_columns(
    path: str,
    names: Sequence[str],
    *,
    header: Sequence[str] | None = None,
    skip_broken: bool = False,
) -> Table:
    """Reads some columns of a table, whose format is given by the ending of its name.

    Empty lines are left out. Only in a table of one column are they rows, with an empty cell,
    unless they are the last lines.

    Args:
        path: A `.tsv`, `.csv` or `.jsonl` file in UTF-8, compressed or not.
        names: The names of the columns to read.
        header: The names of all columns of a file that has no line with names.
        skip_broken: Leave out rows with too few or too many columns instead of refusing them.

    Raises:
        ValueError: the file is missing, unreadable or without a row, lacks a column or has it
            twice, or a row is broken. The message names the file, the line and what to do.

    Examples:
        >>> read_columns("reviews.csv", ["text", "stars"]).columns["stars"]
        ['5', '1', '4']
    """
    form = _FORMATS.get(os.path.splitext(_COMPRESSED.sub("", path))[1].lower())
    if form is None:
        raise ValueError(
            f"{path} must have a name that ends in {', '.join(_FORMATS)}, which gives the format "
            "of the table. Rename it."
        )
    if not os.path.isfile(path):
        raise ValueError(f"{path} must be an existing file. Check the path.")
    skipped: list[int] = []
    if form == "jsonl":
        rows = list(_fields(path, names))
    else:
        rows = list(_cells(path, form, names, header, skipped if skip_broken else None))
    if not rows:
        raise ValueError(f"{path} must have at least one row; got none.")
    lines, cells = zip(*rows)
    return Table(dict(zip(names, map(list, zip(*cells)))), list(lines), skipped)


# TSV and CSV


def _cells(path, form, names, header, skipped) -> _Rows:
    """The cells of the columns `names`; lines of broken rows are refused or go to `skipped`."""
    rows = _tsv_rows(path) if form == "tsv" else _csv_rows(path)
    header = _read_header(path, rows) if header is None else header
    for name in names:
        if header.count(name) != 1:
            found = "none" if name not in header else "several"
            raise ValueError(
                f"{path} must have one column {name!r}; got {found}. Its first line names "
                f"{_listed(header)}."
            )
    places = list(map(header.index, names))
    for line, row in _without_blank_lines(rows, len(header)):
        if len(row) == len(header):
            yield line, [row[place] for place in places]
        elif skipped is not None:
            skipped.append(line)
        else:
            raise ValueError(
                f"{path}, line {line} must have {len(header)} columns ({_listed(header)}); got "
                f"{len(row)}. {_WIDTH_HINTS[form]}"
            )


def _tsv_rows(path: str) -> _Rows:
    """Lines split at tabs; an empty line is a row without cells."""
    for number, line in text_files.numbered_lines(path):
        line = line.removesuffix("\n").removesuffix("\r")
        yield number, line.split("\t") if line else []


def _csv_rows(path: str) -> _Rows:
    """Records of RFC 4180; an empty line is a row without cells."""
    lines = (_LONE_CR.sub(_HIDDEN_CR, line) for _, line in text_files.numbered_lines(path))
    reader, first_line = csv.reader(lines, strict=True), 1
    try:
        for row in reader:
            yield first_line, [cell.replace(_HIDDEN_CR, "\r") for cell in row]
            first_line = reader.line_num + 1
    except csv.Error as error:
        if "field larger" in str(error):
            raise ValueError(
                f"{path}, line {first_line} must have texts of at most {csv.field_size_limit():,} "
                "characters; got a longer one. If its quotation mark is closed, write the table as "
                "TSV or JSON lines, which hold longer texts."
            ) from None
        raise ValueError(
            f"{path}, line {first_line} must be CSV; got other text ({error}). Put a text with "
            "quotation marks in quotation marks, and double each of its own: "
            '"He said ""yes""." If quotation marks are text, write the table as TSV.'
        ) from None


def _read_header(path: str, rows: _Rows) -> list[str]:
    header = next((row for _, row in rows if row), None)
    if header is None:
        raise ValueError(f"{path} must have a line of column names, then rows; got an empty file.")
    if any("\r" in name for name in header):
        raise ValueError(
            f"{path} must have lines that end with LF or CR LF; got CR in the column names. "
            "Convert the file with `tr '\\r' '\\n'`."
        )
    return [name.strip() for name in header]


def _without_blank_lines(rows: _Rows, width: int) -> _Rows:
    blank = []
    for line, row in rows:
        if not row:
            blank.append(line)
            continue
        if width == 1:
            yield from ((number, [""]) for number in blank)
        blank.clear()
        yield line, row


# JSON lines


class _Pairs(dict):
    """A JSON object that records which of its names occurred twice."""

    def __init__(self, pairs: list[tuple]):
        super().__init__(pairs)
        names = [name for name, _ in pairs]
        self.twice = {name for name in names if len(self) < len(names) and names.count(name) > 1}


def _fields(path: str, names: Sequence[str]) -> _Rows:
    """The values of the columns `names` in each object, as text."""
    for number, line in text_files.numbered_lines(path):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            fields = json.loads(line, object_pairs_hook=_Pairs)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{place} must be a JSON object; got invalid JSON ({error}). Write one object per "
                "line, as `jq -c .` does."
            ) from None
        if not isinstance(fields, _Pairs):
            raise ValueError(
                f"{place} must be a JSON object; got other JSON. Write one object per line, as "
                "`jq -c '.[]'` does for an array."
            )
        yield number, [_field(place, fields, name) for name in names]


def _field(place: str, fields: _Pairs, name: str) -> str:
    if name not in fields or name in fields.twice:
        found = "several" if name in fields.twice else "none"
        raise ValueError(
            f"{place} must have one field {name!r}; got {found}. Its fields are {_listed(fields)}."
        )
    value = fields[name]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{place}: {name!r} must be text or a finite number; got {value}.")
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if not isinstance(value, str):
        raise ValueError(f"{place}: {name!r} must be text; got {json.dumps(value)[:40]}.")
    if not value.isascii() and re.search("[\ud800-\udfff]", value):
        raise ValueError(
            f"{place}: {name!r} must be valid Unicode; got half of a character (a lone surrogate, "
            "\\ud…)."
        )
    return value


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name[:40]) for name in list(names)[:20]) or "nothing"
