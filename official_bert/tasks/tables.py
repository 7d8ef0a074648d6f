"""Tables with named columns, as fine-tuning reads them: TSV, CSV and JSON lines.

What quotation marks mean differs: in TSV, as GLUE writes it, they are text like any other; in CSV
they enclose fields (RFC 4180), which may then hold commas and line breaks. In JSON lines every line
is an object whose names are the columns. Cells come as text, exactly as they stand.
"""

import csv
import dataclasses
import json
import math
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from official_bert.data import text_files

FORMS = ("tsv", "csv", "jsonl")

_COMPRESSED = re.compile(r"\.(gz|bz2|xz|zst)$")
_ENDINGS = {
    ".tsv": "tsv",
    ".txt": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
_MEND_WIDTH = {
    "tsv": "In TSV, every tab separates and quotation marks are text: write texts with tabs or "
    "line breaks as CSV or JSON lines.",
    "csv": "In CSV, put texts with commas or line breaks in quotation marks.",
}
# Stands for a CR within a line while `csv`, which would refuse it, splits the line. Text decoded
# from UTF-8 cannot hold this code point.
_HIDDEN_CR = "\udc0d"
_LONE_CR = re.compile(r"\r(?!\n)")
_Row = tuple[int, Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Table:
    """Some columns of a file.

    Attributes:
        path: The file.
        columns: Cells by the name of the column, in the order of the rows.
        lines: The line on which each row begins, counted from 1.
        skipped: The lines of the rows that were left out.
    """

    path: str
    columns: dict[str, list[str]]
    lines: list[int]
    skipped: list[int]


def form_of(path: str) -> str:
    """One of `FORMS`, by the ending of the name; `.gz`, `.bz2`, `.xz`, `.zst` may follow it.

    Raises:
        ValueError: the ending says nothing.
    """
    ending = os.path.splitext(_COMPRESSED.sub("", path))[1].lower()
    if ending not in _ENDINGS:
        raise ValueError(
            f"{path} must have a name that ends in {', '.join(_ENDINGS)}, which gives the format "
            "of the table. Rename it."
        )
    return _ENDINGS[ending]


def read(
    path: str,
    columns: Iterable[str],
    *,
    header: Sequence[str] | None = None,
    skip_broken: bool = False,
) -> Table:
    """Reads some columns of a table, whose form its name tells (`form_of`).

    Lines without any character are left out. Only in a table of one column are they rows, with an
    empty cell, unless they are the last lines.

    Args:
        path: A `.tsv`, `.csv` or `.jsonl` file in UTF-8, compressed or not.
        columns: The names of the columns to read.
        header: The names of all columns of a file that has no line with names.
        skip_broken: Leave out rows with too few or too many columns instead of refusing them.

    Raises:
        ValueError: the file is missing, unreadable or without a row, lacks a column or holds it
            twice, or a row is broken. The message names the file, the line and what to do.

    Examples:
        >>> read("reviews.csv", ["text", "stars"]).columns["stars"]
        ['5', '1', '4']
    """
    form, columns = form_of(path), list(columns)
    if not os.path.isfile(path):
        raise ValueError(f"{path} must be an existing file. Check the path.")
    skipped = []
    if form == "jsonl":
        rows = _select_fields(path, columns)
    else:
        rows = _select_cells(path, form, columns, header, skipped.append if skip_broken else None)
    lines, cells = [], []
    for line, row in rows:
        lines.append(line)
        cells.append(row)
    if not lines:
        raise ValueError(f"{path} must have at least one row; got none.")
    read_columns = {name: [row[at] for row in cells] for at, name in enumerate(columns)}
    return Table(path, read_columns, lines, skipped)


def _select_cells(
    path: str,
    form: str,
    columns: Sequence[str],
    header: Sequence[str] | None,
    skip: Callable[[int], None] | None,
) -> Iterator[_Row]:
    """The cells of `columns` in each row of a TSV or CSV file."""
    rows = _tsv_rows(path) if form == "tsv" else _csv_rows(path)
    if header is None:
        header = _read_header(path, rows)
    cells = _cells(path, columns, header)
    for line, row in _without_blank_lines(rows, len(header)):
        if len(row) == len(header):
            yield line, cells(row)
        elif skip:
            skip(line)
        else:
            raise ValueError(
                f"{path}, line {line} must have {len(header)} columns ({_listed(header)}); got "
                f"{len(row)}. {_MEND_WIDTH[form]}"
            )


def _tsv_rows(path: str) -> Iterator[_Row]:
    """Lines split at tabs; a line without any character is a row without cells."""
    for number, line in text_files.numbered_lines(path):
        line = line.removesuffix("\n").removesuffix("\r")
        yield number, line.split("\t") if line else []


def _csv_rows(path: str) -> Iterator[_Row]:
    """Records of RFC 4180; a line without any character is a row without cells."""
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


def _read_header(path: str, rows: Iterator[_Row]) -> list[str]:
    header = next((row for _, row in rows if row), None)
    if header is None:
        raise ValueError(f"{path} must have a line of column names, then rows; got an empty file.")
    if any("\r" in name for name in header):
        raise ValueError(
            f"{path} must have lines that end with LF or CR LF; got CR in the column names. "
            "Convert the file with `tr '\\r' '\\n'`."
        )
    return [name.strip() for name in header]


def _cells(
    path: str, columns: Sequence[str], header: Sequence[str]
) -> Callable[[Sequence[str]], tuple]:
    """A function from a row to the cells of `columns`."""
    for name in columns:
        if header.count(name) != 1:
            found = "none" if name not in header else "several"
            raise ValueError(
                f"{path} must have one column {name!r}; got {found}. Its first line names "
                f"{_listed(header)}."
            )
    places = list(map(header.index, columns))
    if len(places) == 1:
        return lambda row: (row[places[0]],)
    return operator.itemgetter(*places)


def _without_blank_lines(rows: Iterator[_Row], width: int) -> Iterator[_Row]:
    blank = []
    for line, row in rows:
        if not row:
            blank.append(line)
            continue
        if width == 1:
            yield from ((number, [""]) for number in blank)
        blank.clear()
        yield line, row


def _select_fields(path: str, columns: Sequence[str]) -> Iterator[_Row]:
    """The values of `columns` in each object of a file of JSON lines, as text."""
    for number, line in text_files.numbered_lines(path):
        if line.strip():
            place = f"{path}, line {number}"
            fields = _parse_object(place, line)
            yield number, tuple(_field(place, fields, name) for name in columns)


def _parse_object(place: str, line: str) -> "_Pairs":
    try:
        fields = json.loads(line, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{place} must be a JSON object; got invalid JSON ({error}). Write one object per "
            "line, as `jq -c .` does."
        ) from None
    if not isinstance(fields, _Pairs):
        raise ValueError(
            f"{place} must be a JSON object; got other JSON. Write one object per line, as `jq -c "
            "'.[]'` does for an array."
        )
    return fields


class _Pairs(dict):
    """An object of JSON that knows which of its names came twice."""

    def __init__(self, pairs: list[tuple]):
        super().__init__(pairs)
        names = [name for name, _ in pairs]
        self.twice = {name for name in names if len(self) < len(names) and names.count(name) > 1}


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
    if not _is_unicode(value):
        raise ValueError(
            f"{place}: {name!r} must be valid Unicode; got half of a character (a lone surrogate, "
            "\\ud…)."
        )
    return value


def _is_unicode(text: str) -> bool:
    return text.isascii() or not re.search("[\ud800-\udfff]", text)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name[:40]) for name in list(names)[:20]) or "nothing"
