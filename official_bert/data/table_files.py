"""Rows of tables, from TSV, CSV, JSON lines, Parquet and Arrow files.

Quotation marks are text in TSV, as in GLUE's files; in CSV they enclose fields (RFC 4180), which
may then contain commas and line breaks. In JSON lines every line is an object whose names are the
columns.

Python's `csv` splits CSV, but not TSV: its limit of 131,072 characters a field, which holds for the
whole process, and its refusal of a CR within a line would lose texts that TSV can hold.
"""

import csv
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from official_bert.data import arrow_files, text_files
from official_bert.data.arrow_files import UnfitColumn

_FORMATS = {
    ".tsv": "tsv",
    ".txt": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
_WIDTH_HINTS = {
    "tsv": "In TSV, every tab separates and quotation marks are text: write texts with tabs or "
    "line breaks as CSV or JSON lines.",
    "csv": "In CSV, put texts with commas or line breaks in quotation marks.",
}
REMEDY = "Fill in such rows, or remove them."
_SEPARATE = "Separate columns with commas in CSV, with tabs in TSV."
# Stands for a CR within a line while `csv`, which would refuse it, splits the line. Text decoded
# from UTF-8 cannot contain this code point.
_HIDDEN_CR = "\udc0d"
_LONE_CR = re.compile(r"\r(?!\n)")
_SURROGATES = re.compile("[\ud800-\udfff]+")
_Rows = Iterator[tuple[int, Sequence[str]]]  # the line on which a row begins, from 1, and its cells


def format_of(path: str) -> str:
    """The format of a table, by the ending of its name.

    Raises:
        ValueError: the ending is unknown.
    """
    form = _FORMATS.get(os.path.splitext(text_files.unpacked_name(path))[1].lower())
    if form is None:
        raise ValueError(
            f"{path} must have a name that ends in {', '.join(_FORMATS)}, which gives the format "
            "of the table. Rename it."
        )
    return form


def files_in(folder: str) -> list[str]:
    """The Parquet or Arrow files of a folder that holds one table, in the order of its rows.

    Raises:
        ValueError: there are none, or the folder holds several splits of a dataset.
    """
    splits = arrow_files.splits(folder)
    if splits:
        raise ValueError(
            f"{folder} must be one table; got a dataset with the splits {', '.join(splits[:9])}. "
            f"Give the folder of one, such as {os.path.join(folder, splits[0])}."
        )
    names = arrow_files.names_of_data(
        folder, sorted(name for name in os.listdir(folder) if name[0] != ".")
    )
    found = [name for name in names if name.endswith((".parquet", ".arrow"))]
    if not found or len({os.path.splitext(name)[1] for name in found}) > 1:
        raise ValueError(
            f"{folder} must be a file, or a folder of Parquet files or of a dataset; got a folder "
            f"with {'both kinds' if found else 'neither'}. Give the file."
        )
    return [os.path.join(folder, name) for name in found]


def require_column(path: str, form: str, name: str) -> None:
    """Refuses a table without a column of text of this name, naming the columns that it has.

    Raises:
        ValueError: as `read_columns` and `texts`.
    """
    if form in arrow_files.FORMS:
        arrow_files.require_columns(path, form, [name])
    elif form in ("csv", "tsv"):
        _places(path, _read_header(path, _split(path, form)), [name])


def texts(
    path: str,
    form: str,
    name: str,
    advance: Callable[[int], None],
    bad_line: Callable[[str, str], object],
) -> Iterator[str | list[str] | None]:
    """The cells of one column of CSV, TSV, Parquet or Arrow; None is a null value.

    Args:
        name: The column. In Parquet and Arrow it may hold lists of texts, too.
        advance: Called with the number of bytes read from the file since the last call.
        bad_line: Called with the path and a message for a row that cannot be read. If it returns,
            the row is left out.
    """
    if form in arrow_files.FORMS:
        for number, (cell,) in arrow_files.rows(path, form, [name], advance=advance):
            parts = [part for part in cell if part] if isinstance(cell, list) else cell
            if isinstance(parts, bytes):
                bad_line(path, f"row {number} {arrow_files.not_text(parts, name)}.")
            else:
                yield parts
        return

    def broken(line: int, message: str) -> None:
        bad_line(path, f"line {line} {message}")

    found = cells(
        path,
        form,
        [name],
        None,
        broken,
        advance=advance,
        longest=text_files.LONGEST_OBJECT,
        errors="surrogateescape",  # a row that is not UTF-8 does not take the others along
    )
    for line, (cell,) in found:
        escaped = None if cell.isascii() else _SURROGATES.search(cell)
        if not escaped:
            yield cell
            continue
        got = escaped[0][:4].encode("utf-8", "surrogateescape")
        broken(
            line,
            f"must be UTF-8 in {name!r}; got {got!r}. Convert the file first, for example with "
            "`iconv -f cp1252 -t utf-8`.",
        )


class Table(NamedTuple):
    """Some columns of a file: cells by the name of the column, and the lines, from 1."""

    columns: dict[str, list[str]]
    lines: list[int]  # on which each row begins
    skipped: list[int]  # of the rows that were left out


def read_columns(
    path: str,
    names: Sequence[str],
    *,
    lists: Sequence[str] = (),
    remedies: Mapping[str, str] | None = None,
    header: Sequence[str] | None = None,
    skip_broken: bool = False,
) -> Table:
    """Reads some columns of a table as text; its format is given by the ending of its name.

    Empty lines are left out. Only in a table of one column are they rows, with an empty cell,
    unless they are the last lines.

    Args:
        path: A `.tsv`, `.csv` or `.jsonl` file in UTF-8, compressed or not; a `.parquet` or
            `.arrow` file; or a folder of Parquet files or of a dataset (`files_in`).
        lists: Columns of JSON lines, Parquet and Arrow that may hold lists of texts and numbers,
            which become JSON.
        remedies: By column, what to do about a value that is no text or number, for the message.
        header: The names of all columns of a TSV or CSV file that has no line with names.
        skip_broken: Leave out rows with too few or too many columns instead of refusing them.

    Raises:
        ValueError: the file is missing, unreadable or without a row, lacks a column or has it
            twice, or a row is broken. The message names the file, the line and what to do.

    Examples:
        >>> read_columns("reviews.csv", ["text", "stars"]).columns["stars"]
        ['5', '1', '4']
    """
    form = None if os.path.isdir(path) else format_of(path)  # before a file is missed
    if not os.path.exists(path):
        raise ValueError(f"{path} must be an existing file; got none. Check the path.")
    remedies = dict.fromkeys(names, REMEDY) | dict(remedies or {})
    rows: list[tuple[int, Sequence[str]]] = []
    skipped: list[int] = []

    def broken(line: int, message: str) -> None:
        if not skip_broken:
            raise ValueError(f"{path}, line {line} {message}")
        skipped.append(line)

    if form in ("tsv", "csv"):
        rows += cells(path, form, names, header, broken)
    elif form == "jsonl":
        rows += _fields(path, names, lists, remedies)
    else:
        for file in [path] if form else files_in(path):
            first = rows[-1][0] if rows else 0
            found = _arrow_rows(file, names, lists, remedies)
            rows += [(first + number, row) for number, row in found]
    if not rows:
        raise ValueError(f"{path} must have at least one row; got none.")
    lines, columns = zip(*rows)
    return Table(dict(zip(names, map(list, zip(*columns)))), list(lines), skipped)


def _arrow_rows(
    path: str, names: Sequence[str], lists: Sequence[str], remedies: Mapping[str, str]
) -> _Rows:
    form = format_of(path)
    for number, row in arrow_files.rows(path, form, names, numbers=True):
        for cell, name in zip(row, names):
            is_list = name in lists and isinstance(cell, list)
            faults = (arrow_files.not_text(one, name) for one in (cell if is_list else [cell]))
            fault = next(filter(None, faults), None)
            if fault:
                raise ValueError(f"{path}, row {number} {fault}. {remedies[name]}")
        yield number, [cell if isinstance(cell, str) else json.dumps(cell) for cell in row]


# TSV and CSV


def cells(
    path: str,
    form: str,
    names: Sequence[str],
    header: Sequence[str] | None,
    broken: Callable[[int, str], object],
    **reading: Any,
) -> _Rows:
    """The cells of the columns `names` of TSV or CSV.

    Args:
        header: The names of all columns of a file without a line of names.
        broken: Called with the line and a message for a row with too few or too many cells. If it
            returns, the row is left out.
        reading: Further arguments of the reader: `advance`, `longest`, `errors`.
    """
    rows = _split(path, form, **reading)
    header = _read_header(path, rows) if header is None else header
    places = _places(path, header, names)
    for line, row in _without_blank_lines(rows, len(header)):
        if len(row) == len(header):
            yield line, [row[place] for place in places]
        else:
            message = (
                f"must have {len(header)} column{'s' * (len(header) > 1)} ({_listed(header)}); "
                f"got {len(row)}. "
                f"{_WIDTH_HINTS[form]}"
            )
            broken(line, message)


def _places(path: str, header: Sequence[str], names: Sequence[str]) -> list[int]:
    for name in names:
        if header.count(name) != 1:
            found = "none" if name not in header else "several"
            message = (
                f"{path} must have one column {name!r}; got {found}. Its first line names "
                f"{_listed(header)}."
            )
            if len(header) == 1 and re.search(r"[,;|\t]", header[0]):
                raise ValueError(f"{message} {_SEPARATE}")
            raise UnfitColumn(message, name)
    return list(map(header.index, names))


def _split(
    path: str,
    form: str,
    advance: Callable[[int], None] = lambda _: None,
    longest: int | None = None,
    errors: str = "strict",
) -> _Rows:
    """The rows of a file, that of its names included; an empty line is a row without cells.

    Args:
        advance: As of `texts`.
        longest: The most characters of a cell of CSV, and of bytes of a line; None: the limit of
            the module `csv`, and lines of any length.
        errors: As of `text_files.numbered_lines`.
    """
    lines = text_files.numbered_lines(path, advance, longest, errors)
    return _tsv_rows(lines) if form == "tsv" else _csv_rows(path, lines, longest)


def _tsv_rows(lines: Iterable[tuple[int, str]]) -> _Rows:
    for number, line in lines:
        line = line.removesuffix("\n").removesuffix("\r")
        yield number, line.split("\t") if line else []


def _csv_rows(path: str, numbered: Iterable[tuple[int, str]], longest: int | None) -> _Rows:
    """Records of RFC 4180."""
    lines = (_LONE_CR.sub(_HIDDEN_CR, line) for _, line in numbered)
    reader, first_line = csv.reader(lines, strict=True), 1
    try:
        while (row := _next(reader, longest)) is not None:
            yield first_line, [cell.replace(_HIDDEN_CR, "\r") for cell in row]
            first_line = reader.line_num + 1
    except csv.Error as error:
        if "field larger" in str(error):
            cure = "write the table as TSV or JSON lines, which hold longer texts"
            raise ValueError(
                f"{path}, line {first_line} must have texts of at most "
                f"{longest or csv.field_size_limit():,} characters; got a longer one. If its "
                f"quotation mark is closed, {cure if longest is None else 'split the text'}."
            ) from None
        raise ValueError(
            f"{path}, line {first_line} must be CSV; got other text ({error}). Put a text with "
            "quotation marks in quotation marks, and double each of its own: "
            '"He said ""yes""." If quotation marks are text, write the table as TSV.'
        ) from None


def _next(reader, longest: int | None) -> list[str] | None:
    """The next record, read with a limit that then is again that of the process."""
    if longest is None:
        return next(reader, None)
    before = csv.field_size_limit(longest)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(before)


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


_NO_NAMES: frozenset[str] = frozenset()


class Pairs(dict):
    """A JSON object that records which of its names occurred twice."""

    __slots__ = ("twice",)  # a file of questions has hundreds of thousands of objects

    def __init__(self, pairs: list[tuple]):
        super().__init__(pairs)
        self.twice = _NO_NAMES
        if len(self) < len(pairs):
            names = [name for name, _ in pairs]
            self.twice = frozenset(name for name in names if names.count(name) > 1)


def json_objects(path: str) -> Iterator[tuple[int, "Pairs"]]:
    """The objects of a file of JSON lines, with their lines from 1; empty lines are left out.

    Raises:
        ValueError: a line is not an object; the message names it.
    """
    for number, line in text_files.numbered_lines(path):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            fields = json.loads(line, object_pairs_hook=Pairs)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{place} must be a JSON object; got invalid JSON ({error}). Write one object per "
                "line, as `jq -c .` does."
            ) from None
        if not isinstance(fields, Pairs):
            raise ValueError(
                f"{place} must be a JSON object; got other JSON. Write one object per line, as "
                "`jq -c '.[]'` does for an array."
            )
        yield number, fields


def _fields(
    path: str, names: Sequence[str], lists: Sequence[str], remedies: Mapping[str, str]
) -> _Rows:
    """The values of the columns `names` in each object, as text."""
    for number, fields in json_objects(path):
        place = f"{path}, line {number}"
        yield number, [_field(place, fields, n, n in lists, remedies[n]) for n in names]


def _field(place: str, fields: Pairs, name: str, may_be_list: bool, remedy: str) -> str:
    if name not in fields or name in fields.twice:
        found = "several" if name in fields.twice else "none"
        raise ValueError(
            f"{place} must have one field {name!r}; got {found}. Its fields are {_listed(fields)}."
        )
    value = fields[name]
    if may_be_list and isinstance(value, list):
        entry = f"{place}: an entry of {name!r}"
        return json.dumps([_as_text(entry, one, remedy) for one in value])
    return _as_text(f"{place}: {name!r}", value, remedy, " or a list of texts" * may_be_list)


def _as_text(named: str, value: Any, remedy: str, also: str = "") -> str:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{named} must be text or a finite number; got {value}. {remedy}")
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if not isinstance(value, str):
        raise ValueError(f"{named} must be text{also}; got {json.dumps(value)[:40]}. {remedy}")
    if not value.isascii() and _SURROGATES.search(value):
        raise ValueError(
            f"{named} must be valid Unicode; got half of a character (a lone surrogate, "
            "\\ud…). Remove it."
        )
    return value


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name[:40]) for name in list(names)[:20]) or "nothing"
