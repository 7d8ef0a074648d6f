"""Recognises the format of a file by its beginning.

Nearly any file can be cut into lines and made into records: Wikipedia's dump with its markup, a
table, an archive. Any file but text in a supported format is refused, with its kind and the remedy.
"""

import contextlib
import csv
import json
import re
from collections.abc import Iterable

from official_bert.data import arrow_files, records, table_files, text_files
from official_bert.data.arrow_files import UnfitColumn

FORMS = text_files.FORMS
TABLES = ("csv", "tsv", *arrow_files.FORMS)

# ISO 639-1 codes.
LANGUAGES = frozenset(
    """
    aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de
    dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia
    id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo
    lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl
    ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk
    tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
    """.split()  # noqa: SIM905 (a formatted list takes one line per code)
)

_HEAD_BYTES = 1 << 14
_UNPACK = "unpack it and give the folder"
_TAR = "a tar archive", f"{_UNPACK} (`tar -xf`)"
_CONVERT = "write its text as JSON lines, one object with a field `text` for each document"
# Kinds of files by their first bytes (after decompression), and what to do about each.
_BINARY = {
    b"PK\x03\x04": ("a ZIP archive, or a document packed in one (.docx, .xlsx, .epub)", _UNPACK),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", _UNPACK),
    b"Rar!\x1a\x07": ("a RAR archive", _UNPACK),
    b"\x1f\x8b": ("a GZIP-compressed file", "rename it to end in .gz"),
    b"BZh": ("a bzip2-compressed file", "rename it to end in .bz2"),
    b"\xfd7zXZ\0": ("an xz-compressed file", "rename it to end in .xz"),
    b"\x28\xb5\x2f\xfd": ("a Zstandard-compressed file", "rename it to end in .zst"),
    b"Obj\x01": ("an Avro file", _CONVERT),
    b"\x89HDF": ("an HDF5 file", _CONVERT),
    b"SQLite format 3\0": ("an SQLite database", _CONVERT),
    b"version https://git-lfs.github.com/spec/": (
        "a pointer of Git LFS instead of the file",
        "fetch the file with `git lfs pull`",
    ),
    b"%PDF": ("a PDF document", "extract its text, for example with `pdftotext`"),
    b"{\\rtf": ("an RTF document", "save it as plain text in UTF-8"),
    b"\xd0\xcf\x11\xe0": ("an old Office document", "save it as plain text in UTF-8"),
    b"\xff\xfe\0\0": ("text in UTF-32", "convert it with `iconv -f utf-32 -t utf-8`"),
    b"\xff\xfe": ("text in UTF-16", "convert it with `iconv -f utf-16 -t utf-8`"),
    b"\xfe\xff": ("text in UTF-16", "convert it with `iconv -f utf-16 -t utf-8`"),
}
# Read by pyarrow.
_ARROW = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow"}
_NAMES = {"jsonl": "JSON lines", "wikiextractor": "WikiExtractor's output"}
_HTML = re.compile(r"<(!doctype html|html|head|body|title|meta|link|script|div|p|h1)\b", re.I)
_COLUMN = re.compile(r"\s*[\w-]+([ .][\w-]+)?\s*")
_TAG = re.compile(r"<[!?/a-z][^<>]*>$", re.I)


def recognise(path: str, form: str = "auto") -> str:
    """The format of a file, one of those of `corpus.Corpus`.

    Args:
        form: The user's format, which is only checked, or `auto`.

    Raises:
        ValueError: the file has other content; the message names it and the remedy.
    """
    if form not in FORMS:
        raise ValueError(
            f"input_format must be {', '.join(FORMS[:-1])} or {FORMS[-1]}; got {form!r}."
        )
    start = text_files.head(path, _HEAD_BYTES)
    arrow = next((kind for magic, kind in _ARROW.items() if start.startswith(magic)), None)
    if arrow or form in arrow_files.FORMS:
        return _require_arrow(path, form, arrow)
    _refuse_binary(path, start)
    if form == "auto" and path.lower().endswith((".parquet", ".arrow")):
        kind = "a Parquet file" if path.lower().endswith(".parquet") else "an Arrow file"
        got = repr(start[:20]) if start else "an empty file"
        raise ValueError(
            f"{path} must be {kind}, as its name says; got {got}. Fetch or make it again; if it is "
            "text, give --input_format=sentences."
        )
    whole = len(start) < _HEAD_BYTES
    text = start.decode("utf-8", "ignore").removeprefix("\ufeff").lstrip()
    first, *more = text.splitlines() or [""]
    if form == "wikiextractor" and text and not text.startswith("<doc "):
        raise ValueError(
            f"{path} must begin with `<doc `, as WikiExtractor's output does; got {first[:40]!r}. "
            "Give --input_format=auto, or the actual format."
        )
    if form != "auto":
        return form
    if text.startswith("<doc "):
        return "wikiextractor"
    name = text_files.unpacked_name(path).lower()
    if name.endswith((".jsonl", ".json", ".ndjson")) or re.match(r'\{\s*"|\[\s*[\[{"]', text):
        _refuse_json_over_lines(path, first, whole or bool(more))
        return "jsonl"
    if re.match(r"\{\s*'\w+'\s*:", text):
        _refuse(path, "Python dictionaries instead of JSON", "write them with `json.dumps`")
    _refuse_markup(path, text, first)
    if name.endswith((".csv", ".tsv")):
        return name[-3:]
    if _is_table(text.splitlines() if whole else text.splitlines()[:-1]):
        cure = (
            "give --input_format=csv (or tsv) if its first line names the columns, or else add one"
        )
        _refuse(path, "a table (CSV)", cure)
    return "sentences"


def _require_arrow(path: str, form: str, found: str | None) -> str:
    """The format of a file that is Parquet or Arrow by its beginning, or by the user."""
    kinds: dict[str | None, str] = {
        "parquet": "a Parquet file",
        "arrow": "an Arrow file",
        None: "another kind of file",
    }
    if form not in ("auto", found):
        what = kinds.get(form, "plain text or JSON lines")
        raise ValueError(
            f"{path} must be {what}, as --input_format={form} says; got {kinds[found]}. Give "
            "--input_format=auto."
        )
    if path.endswith(text_files.COMPRESSED):
        raise ValueError(
            f"{path} must not be compressed as a whole; got {kinds[found]} in an archive. Unpack "
            "it: such files are compressed inside."
        )
    arrow_files.require_pyarrow(path)
    return str(found)


def check(
    paths: Iterable[str],
    form: str,
    text_field: str | None = None,
    language: str | None = None,
    skip_bad_lines: bool = False,
) -> dict[str, str]:
    """Checks the beginning of every file, and the user's options that need a certain format.

    Args:
        paths, form: The files, and the format that the user gives.
        text_field, language: The user's options.
        skip_bad_lines: Whether lines without the field will be left out.

    Returns:
        {option without effect on these files: reason}, and under `input_file` that some of them
        are plain text and others are not, or that one is read as plain text and is not.

    Raises:
        ValueError: as `recognise`; the language is unknown; a table lacks the column, or the first
            JSON lines the field.
    """
    if language is not None and language not in LANGUAGES:
        raise ValueError(
            f"language must be an ISO 639-1 code, such as en or de; got {language!r}. For a "
            "language without one, give the code of a language with the same punctuation."
        )
    if text_field == "":
        raise ValueError("text_field must be the name of a column or field; got ''.")
    paths, forms, idle = list(paths), {}, {}  # forms: the first file of each
    for path in paths:
        forms.setdefault(found := recognise(path, form), path)
        if found in TABLES:
            _require_column(path, found, text_field or "text")
        elif found == "jsonl" and not skip_bad_lines:
            _require_field(path, text_field or "text")
    if form in ("sentences", "paragraphs") and (other := _not_plain(paths)):
        idle["input_file"] = (
            f"{other[0]} looks like {_NAMES.get(other[1], other[1])}, but is read as plain text, "
            f"as --input_format={form} says. If its marks are not text to train on, leave the flag "
            "out, or write the text of all files in one format."
        )
    if "sentences" in forms and len(forms) > 1:
        other = next(found for found in forms if found != "sentences")
        idle["input_file"] = (
            f"{forms['sentences']} is read as plain text, next to {forms[other]}, which is "
            f"{other}. If it is a description and not text to train on, leave it out, for example "
            "by a glob."
        )
    if text_field is not None and forms.keys().isdisjoint({"jsonl", *TABLES}):
        idle["text_field"] = (
            f"--text_field={text_field} has no effect: no file holds JSON lines or a table. If one "
            "does, give --input_format=jsonl, or its other format."
        )
    if language is not None and forms.keys() == {"sentences"}:
        idle["language"] = (
            f"--language={language} has no effect: the text is read as one sentence per line. If "
            "its lines are paragraphs, give --input_format=paragraphs."
        )
    return idle


def _require_column(path: str, form: str, name: str) -> None:
    try:
        table_files.require_column(path, form, name)
    except UnfitColumn as error:
        raise ValueError(f"{error} Name one with --text_field.") from None


def _not_plain(paths: Iterable[str]) -> tuple[str, str] | None:
    """The first file that is recognised as another format than plain text, and that format."""
    for path in paths:
        with contextlib.suppress(ValueError):  # refused only without the user's format
            if (found := recognise(path)) != "sentences":
                return path, found
    return None


def _require_field(path: str, name: str) -> None:
    """Refuses JSON lines of which none of the first has the field."""
    fields: dict[str, object] = {}
    for line in text_files.head(path, _HEAD_BYTES).removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        with contextlib.suppress(ValueError, RecursionError):  # named when it is read
            made = json.loads(line)
            if isinstance(made, dict):
                fields |= made
    if fields and name not in fields:
        names = ", ".join(map(repr, list(fields)[:5]))
        raise ValueError(
            f"{path} must have JSON objects with the text in {name!r}; got the fields "
            f"{names[:200]}. Name one with --text_field, or give --skip_bad_lines to leave such "
            "lines out."
        )


def _refuse(path: str, what: str, cure: str, may_be_text: bool = True) -> None:
    cure = cure[0].upper() + cure[1:]
    override = "; if it is plain text, give --input_format=sentences" if may_be_text else ""
    raise ValueError(
        f"{path} must be plain text, JSON lines or a table; got {what}. {cure}{override}."
    )


def _refuse_binary(path: str, start: bytes) -> None:
    if path.lower().endswith((".tgz", ".tbz2", ".txz", ".tzst")):
        _refuse(path, *_TAR, may_be_text=False)
    for magic, (what, cure) in _BINARY.items():
        if start.startswith(magic):
            _refuse(path, what, cure, may_be_text=False)
    if start[257:262] == b"ustar":
        _refuse(path, *_TAR, may_be_text=False)
    if len(start) >= records.HEADER_BYTES and records.payload_length(start) is not None:
        _refuse(path, "a TFRecord file", "give the text that it was made from", may_be_text=False)
    if b"\0" in start:
        cure = "give text in UTF-8 (`iconv -f utf-16 -t utf-8` converts UTF-16)"
        text_files.require_intact(path)
        _refuse(path, "a binary file, with bytes of value 0", cure, may_be_text=False)


def _refuse_json_over_lines(path: str, first: str, is_whole_line: bool) -> None:
    """Refuses an array, and an object that does not end in its first line."""
    cure = "write one object per line, for example by `jq -c"
    if first.startswith("["):
        _refuse(path, "a JSON array", f"{cure} '.[]'`")
    if first.startswith("{") and is_whole_line and not first.rstrip().endswith("}"):
        _refuse(path, "JSON over several lines", f"{cure} .`")


def _refuse_markup(path: str, text: str, first: str) -> None:
    if re.match(r"<mediawiki\b|<\?xml[^>]*>\s*<mediawiki\b", text):
        _refuse(
            path,
            "a MediaWiki dump, XML with the wiki's markup",
            "extract its text with WikiExtractor (`wikiextractor --json -o texts FILE`) and give "
            "that folder",
        )
    if _HTML.match(text):
        _refuse(path, "HTML", "extract its text, for example with trafilatura")
    if text.startswith("<?xml") or _TAG.match(first.rstrip()):
        _refuse(path, f"text with markup, beginning with {first[:40]!r}", "extract its text")


def _is_table(lines: list[str]) -> bool:
    """Whether different lines have the same number of cells.

    With column names 5 lines suffice; otherwise 10 are needed, and 3 cells between commas.
    """
    if len(lines) < 5 or not all(lines) or len(set(lines)) < len(lines):
        return False
    for delimiter, fewest in ("\t", 2), ("|", 2), (",", 3), (";", 3):
        try:
            rows = list(csv.reader(lines, delimiter=delimiter))
        except csv.Error:
            continue
        widths = set(map(len, rows))
        named = all(map(_COLUMN.fullmatch, rows[0]))
        if len(widths) == 1 and min(widths) >= (2 if named else fewest):
            return len(rows) >= (5 if named else 10)
    return False
