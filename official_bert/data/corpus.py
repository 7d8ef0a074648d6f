"""Files of text → documents → blocks of bounded size, the first step of text → records → batches.

A document is a list of lines. The format of its file decides whether a line is one sentence (the
official format) or a paragraph that is split later. A block is a run of whole documents with about
`BLOCK_BYTES` of text; one worker turns it into records, so it bounds the memory.
"""

import collections
import fnmatch
import functools
import glob
import hashlib
import itertools
import json
import math
import os
import re
import stat
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import sentencex

from official_bert.data import arrow_files, fit, format_detection, table_files, text_files
from official_bert.system import local_paths
from official_bert.system.places import as_path, is_remote, remote_matches

FORMS = text_files.FORMS
BLOCK_BYTES = 2 << 20
SAMPLED_BYTES, SAMPLED_FILES = 1 << 19, 8  # of each file, and of many, to estimate their text
MAX_DOCUMENTS = 10_000  # per block: each becomes at least one record, in every pass
LONGEST_SPLIT = 4096  # characters per call of sentencex
_WIDE_SPACES = re.compile(
    "[\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000]"
)
_SENTENCE_ENDS = re.compile("[.!?…‼⁇-⁉。．！？｡।॥؟۔։።၊။។៕]")


class BadLines:
    """Refuses lines that cannot be read, or, with `skip`, leaves them out and counts them.

    Args:
        skip: Whether to leave them out. False refuses them and names the flag that leaves them out;
            None is for commands without it.

    Attributes:
        count: Lines left out so far.
    """

    def __init__(self, skip: bool | None):
        self._skip, self._first = skip, ""
        self.count = 0

    def __call__(self, path: str, message: str) -> None:
        if not self._skip:
            hint = "" if self._skip is None else " Give --skip_bad_lines to leave such lines out."
            text_files.refuse(path, message + hint)
        self.count += 1
        self._first = self._first or f"{path}, {message}"

    def warnings(self) -> list[str]:
        """A line with the number left out and the first reason; none if all could be read."""
        if not self.count:
            return []
        lines = "1 unreadable line" if self.count == 1 else f"{self.count:,} unreadable lines"
        return [f"left out {lines}. The first: {self._first}"]


class Corpus:
    """The documents of some files, counted while they are read; see `documents`.

    Args:
        paths: The files.
        form: Format of the text.
            `sentences`: one sentence per line, a blank line between documents (the official one);
            `paragraphs`: the same with one paragraph per line, split into sentences later;
            `wikiextractor`: `<doc …>` … `</doc>`, one paragraph per line; the title is left out;
            `jsonl`: one JSON object per line, with one paragraph per line of its `text_field`;
            `csv`, `tsv`, `parquet`, `arrow`: tables; a row is a document, with one paragraph per
            line of its column `text_field`, or per member of its list;
            `auto`: the latter three by their first bytes, `csv` and `tsv` by their names; `jsonl`
            where the name ends in `.jsonl`, `.json`, `.ndjson` (before any compression's ending) or
            the text begins with `{"`, `wikiextractor` where it begins with `<doc `; markup is
            refused; `sentences` otherwise.
        text_field: The field or column with the text.
        drop_duplicates: Leave out documents whose text came before.
        whole: Do not cut long documents and lines.
        skip_bad_lines: As of `BadLines`. Bad are lines that are not UTF-8 or not a JSON object with
            text, and broken rows.

    Attributes:
        bad_lines: The `BadLines` so far.
        count: Documents yielded so far.
        duplicates: Documents whose text came before, recognised by 8 bytes of their digest. Only
            the first `_Fingerprints.MOST` documents are remembered.
        text_bytes: Size of the documents yielded, in UTF-8.
        duplicate_bytes: Size of the duplicates, left out or not.
        dropped_bytes: Size of the duplicates left out.
        repeated: The `fit.RepeatedLines` of the others.
        null_rows: Rows and objects left out because their text is null.
        share_read: Fraction of the files read so far, 0 to 1.
    """

    def __init__(
        self,
        paths: list[str],
        form: str = "auto",
        text_field: str = "text",
        drop_duplicates: bool = False,
        whole: bool = False,
        skip_bad_lines: bool | None = None,
    ):
        self.paths, self.form, self.text_field = paths, form, text_field
        self.skip_bad_lines = skip_bad_lines
        self._drop_duplicates, self._whole = drop_duplicates, whole
        self._bytes = max(1, sum(as_path(path).stat().st_size for path in paths))
        self._restart()

    def _restart(self) -> None:
        self.count = self.duplicates = self.text_bytes = self.dropped_bytes = 0
        self.share_read, self.null_rows, self.duplicate_bytes = 0.0, 0, 0
        self.repeated = fit.RepeatedLines()
        self.bad_lines = BadLines(self.skip_bad_lines)

    def documents(self) -> Iterator["Document"]:
        """Iterates over the documents, in order, without empty ones; the counts restart from 0.

        To bound the memory, a document longer than `BLOCK_BYTES` is cut into several at the end of
        a line, a line longer than `text_files.LONGEST_LINE` into several lines, and a JSON object
        of more than `text_files.LONGEST_OBJECT` is refused.

        Raises:
            ValueError: a file that is not text or not in its format, bytes that are not UTF-8, a
                broken archive or JSON line; the message names file and line.
        """
        self._restart()
        seen = _Fingerprints()
        for document in self._read():
            if not seen.add(int.from_bytes(digest(document)[:8])):
                self.duplicates += not document.continues
                self.duplicate_bytes += text_bytes(document)
                if self._drop_duplicates:
                    self.dropped_bytes += text_bytes(document)
                    continue
            else:
                self.repeated.add(document.lines)
            self.count += not document.continues
            self.text_bytes += text_bytes(document)
            yield document

    def _read(self) -> Iterator["Document"]:
        whole, bad_line, field = self._whole, self.bad_lines, self.text_field
        for path in self.paths:
            chosen = format_detection.recognise(path, self.form)
            found: Iterator[str | None]
            if chosen in format_detection.TABLES:
                cells = table_files.texts(path, chosen, field, self._advance, bad_line)
                found = _paragraphs(cells, whole, self._skip_null)
            else:
                lines = text_files.lines(
                    path, self._advance, whole=whole, objects=chosen == "jsonl", bad_line=bad_line
                )
                found = (line or None for line in lines)
                if chosen == "wikiextractor":
                    found = _wikiextractor(lines)
                elif chosen == "jsonl":
                    objects = _json_texts(path, lines, field, bad_line)
                    found = _paragraphs(objects, whole, self._skip_null)
            yield from _gathered(found, chosen != "sentences", math.inf if whole else BLOCK_BYTES)

    @functools.cached_property
    def estimated_bytes(self) -> float:
        """Bytes of text in all files, without other columns and decompressed, estimated.

        The beginnings of some files, evenly spaced, give their text per byte of file.
        """
        some = self.paths[:: math.ceil(len(self.paths) / SAMPLED_FILES)]
        text = sum(self._estimated_bytes_of(path) for path in some)
        return text * self._bytes / max(1, sum(as_path(path).stat().st_size for path in some))

    def _estimated_bytes_of(self, path: str) -> float:
        one = Corpus([path], self.form, self.text_field, skip_bad_lines=True)
        share = 0.0
        for _ in one.documents():
            # The share grows in steps; just after one, it is that of the documents so far.
            if one.share_read > share and one.share_read * one._bytes >= SAMPLED_BYTES:
                return one.text_bytes / one.share_read
            share = one.share_read
        return one.text_bytes

    def counts(self) -> dict:
        """The counts so far, for a manifest."""
        return {
            "documents": self.count,
            "duplicate_documents": self.duplicates,
            "text_bytes": self.text_bytes,
            "duplicate_bytes": self.duplicate_bytes,
            "dropped_bytes": self.dropped_bytes,
            "bad_lines": self.bad_lines.count,
            "null_rows": self.null_rows,
        } | self.repeated.summary()

    def warnings(self) -> list[str]:
        """Lines about what was left out."""
        rows = "1 row" if self.null_rows == 1 else f"{self.null_rows:,} rows"
        nulls = [f"left out {rows} whose text is null."] if self.null_rows else []
        return self.bad_lines.warnings() + nulls

    def _advance(self, count: int) -> None:
        self.share_read += count / self._bytes

    def _skip_null(self) -> None:
        self.null_rows += 1


class _Fingerprints:
    """A set of 64-bit numbers with 9 bytes per number; Python's own set takes a hundred."""

    MOST = 1 << 27

    def __init__(self):
        self._buckets = collections.defaultdict(lambda: array("Q"))
        self._count = 0

    def add(self, number: int) -> bool:
        """Whether the number is new."""
        bucket = self._buckets[number & 0xFFFF]
        if number in bucket:
            return False
        if self._count < self.MOST:
            bucket.append(number)
            self._count += 1
        return True


class Document(NamedTuple):
    """Lines of one document, or of a part of one that is too long for the memory.

    `split`: a line is a paragraph of several sentences. `continues`: the part before comes first.
    """

    lines: list[str]
    split: bool
    continues: bool = False


def find_files(patterns: str | Iterable[str], flag: str = "input_file") -> list[str]:
    """The files that `patterns` match, sorted, each once.

    Folders are searched recursively, through links too; hidden files are skipped.

    Args:
        patterns: Files, globs or folders; a list, or one string with commas.
        flag: The name of their flag, for messages.

    Raises:
        ValueError: a member matches nothing, or a file cannot be read.
    """
    patterns = _patterns(patterns, flag)
    found = []
    for pattern in patterns:
        local_paths.require_paths(**{flag: pattern})
        if is_remote(pattern):
            if not (there := remote_matches(pattern)):
                raise ValueError(
                    f"{flag} must match at least one file; got {pattern!r}, which matches nothing. "
                    "Give files, globs or folders."
                )
            found += there
            continue
        for match in sorted(local_paths.matches(pattern, recursive=True)) or [pattern]:
            inside = _walk(match) if os.path.isdir(match) else ()
            files = [os.path.join(f, n) for f, names in inside for n in _texts(f, names)]
            found.extend(sorted(files) if os.path.isdir(match) else [match])
    if not found:
        raise ValueError(
            f"{flag} must match at least one file; got {','.join(patterns)!r}, without any. Give "
            "files, globs or folders of text."
        )
    for path in found:
        if not is_remote(path):
            _require_readable(path, flag)
    unique = {}  # the same file under two names would count twice
    for path in found:
        unique.setdefault(os.path.realpath(path), path)
    return list(unique.values())


def _require_readable(path: str, flag: str) -> None:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ValueError(
                f"{flag} must be a regular file, because it is read twice; got {path}, a pipe or a "
                "device. Write the text to a file."
            )
        open(path, "rb").close()
    except OSError as error:
        if os.path.islink(path) and not isinstance(error, PermissionError):
            raise ValueError(
                f"{flag} must be a file; got {path}, a broken link to {os.readlink(path)!r}. "
                "Remove the link, or point it to the text."
            ) from None
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise ValueError(
                f"{flag} must match at least one file; got {path!r}, which matches nothing (looked "
                f"in {os.getcwd()}). Give files, globs or folders."
            ) from None
        is_denied = isinstance(error, PermissionError)
        cure = " Check its permissions and those of its folders." if is_denied else ""
        raise ValueError(f"{flag} must be readable; got {path} ({error.strerror}).{cure}") from None


def require_outside(
    outputs: Mapping[str, Iterable], inputs: Mapping[str, str | Iterable[str]]
) -> None:
    """Refuses outputs, {flag: paths}, that `find_files` would find in inputs, {flag: patterns}.

    Raises:
        ValueError: naming the output and the pattern.
    """
    given = [(f, pattern) for f, patterns in inputs.items() for pattern in _patterns(patterns, f)]
    written = [(f, path) for f, paths in outputs.items() for path in paths]
    for (other, pattern), (flag, path) in itertools.product(given, written):
        if any(fnmatch.fnmatch(_real(path), name) for name in _searched(pattern)):
            raise ValueError(  # a `*` matches folders too
                f"{flag} must not match {other}={pattern!r}, which would read it as text when the "
                f"command runs again; got {os.path.abspath(path)!r}. Write to another folder."
            )


def _real(path: str) -> str:
    """The path with links to folders resolved; its last part may be a glob, or new."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def _searched(pattern: str) -> set[str]:
    """Globs for every file that `find_files` finds for this pattern, links to folders resolved."""
    if is_remote(pattern):
        return {_real(pattern), os.path.join(_real(pattern), "*")}
    matches = glob.glob(pattern, recursive=True) or [pattern]
    folders = {os.path.realpath(f) for m in matches if os.path.isdir(m) for f, _ in _walk(m)}
    found = {os.path.join(glob.escape(folder), "*") for folder in folders}
    return found if os.path.isdir(pattern) else found | {_real(pattern)}


def _walk(folder: str) -> Iterator[tuple[str, list[str]]]:
    """All folders below a folder, through links too, with their files."""
    seen = set()
    for inner, folders, names in os.walk(
        folder, followlinks=True, onerror=local_paths.refuse_folder
    ):
        if os.path.realpath(inner) in seen:
            folders.clear()  # the links form a circle
            continue
        seen.add(os.path.realpath(inner))
        yield inner, names


def _texts(folder: str, names: Iterable[str]) -> list[str]:
    """The files to read among those in a folder, in order."""
    return arrow_files.names_of_data(folder, sorted(name for name in names if name[0] != "."))


def _patterns(given: str | Iterable[str], flag: str) -> list[str]:
    names = given.split(",") if isinstance(given, str) else list(map(str, given))
    if not all(map(str.strip, names)):
        raise ValueError(
            f"{flag} must be one or more names, separated by single commas; got "
            f"{','.join(names)!r}. Is a shell variable empty?"
        )
    return list(map(str.strip, names))


def sentences(document: Document, language: str = "en") -> list[str]:
    """A document's sentences: its lines, or its paragraphs split by Wikimedia's `sentencex`."""
    if not document.split:
        return document.lines
    return [sentence for line in document.lines for sentence in split_paragraph(line, language)]


def split_paragraph(paragraph: str, language: str = "en") -> list[str]:
    """The sentences of a paragraph; a long one is split piece by piece.

    The time of sentencex grows with the square of the length: 1 MB of Chinese takes a minute.
    """
    found, start = [], 0
    while len(paragraph) - start > LONGEST_SPLIT:
        some = paragraph[start : start + LONGEST_SPLIT]
        whole = list(_segments(some, language))[:-1]  # the last one may not end here
        taken = sum(map(len, whole)) or some.rfind(" ") + 1 or len(some)
        found += whole or [some[:taken]]
        start += taken
    found += _segments(paragraph[start:], language)
    return [sentence for sentence in map(str.strip, found) if sentence]


def looks_like_paragraph(line: str, language: str = "en") -> bool:
    """Whether the beginning of a line splits into three sentences or more.

    Tools differ about the ends of sentences, so two are too few.
    """
    start = line[:LONGEST_SPLIT]
    if start.isascii():  # the cheapest test first: it is made of every line
        ends = start.count(".") + start.count("!") + start.count("?")
    else:
        ends = len(_SENTENCE_ENDS.findall(start))
    return ends >= 3 and len(split_paragraph(start, language)) >= 3


def _segments(text: str, language: str) -> Iterator[str]:
    """The sentences found by sentencex, with the blanks between them.

    Wider spaces are replaced by blanks: one between an initial and a full stop makes it panic.
    """
    start = 0
    for sentence in sentencex.segment(language, _WIDE_SPACES.sub(" ", text)):
        yield text[start : start + len(sentence)]
        start += len(sentence)


def text_bytes(document: Document) -> int:
    """The size of its text in UTF-8."""
    return sum(len(line.encode("utf-8")) for line in document.lines)


def digest(document: Document) -> bytes:
    """A digest of 16 bytes of the document's text."""
    return hashlib.blake2b("\n".join(document.lines).encode("utf-8"), digest_size=16).digest()


def blocks(found: Iterable[Document], block_bytes: int) -> Iterator[list[Document]]:
    """Runs of documents with `block_bytes` to twice that much text each, or many short documents.

    The cuts depend only on the text and `block_bytes`. A last block of less than half the size
    joins the block before it, because random next sentences need many documents.
    """
    pending, block, size = None, [], 0
    for document in found:
        block.append(document)
        size += text_bytes(document)
        if size >= block_bytes or len(block) >= MAX_DOCUMENTS:
            if pending:
                yield pending
            pending, block, size = block, [], 0
    if pending and size < block_bytes // 2:
        yield pending + block
    else:
        yield from (b for b in (pending, block) if b)


def _gathered(lines: Iterator[str | None], split: bool, longest: float) -> Iterator[Document]:
    """Lines → documents, each ended by None or cut at `longest` bytes."""
    gathered: list[str] = []
    size, continues = 0, False
    for line in lines:
        added = len((line or "").encode())
        full = bool(gathered) and size + added > longest
        if full or (line is None and gathered):
            yield Document(gathered, split, continues)
            gathered = []
            size, continues = 0, full
        if line is None:
            continues = False
        else:
            gathered.append(line)
            size += added
    if gathered:
        yield Document(gathered, split, continues)


def _wikiextractor(lines: Iterator[str]) -> Iterator[str | None]:
    title = None
    for line in lines:
        if line.startswith("<doc "):
            match = re.search(r'title="(.*)">$', line)
            title = match and match[1]
            yield None
        elif line == "</doc>":
            yield None
        elif line == title:
            title = None
        elif line:
            yield line


def _paragraphs(
    texts: Iterator[str | list[str] | None], whole: bool, skip_null: Callable[[], object]
) -> Iterator[str | None]:
    """The lines of each text, or of each in a list, then None."""
    for text in texts:
        if text is None:
            skip_null()
            continue
        parts: Iterable[str] = (text if isinstance(text, str) else "\n".join(text)).split("\n")
        if not whole:
            parts = itertools.chain.from_iterable(map(text_files.cut, parts))
        yield from filter(None, map(str.strip, parts))
        yield None


def _json_texts(
    path: str, lines: Iterator[str], field: str, bad_line: Callable[[str, str], object]
) -> Iterator[str | None]:
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            text = _text_of(line, field)
        except ValueError as error:
            bad_line(path, f"line {number} {error}.")
            continue
        yield text


def _text_of(line: str, field: str) -> str | None:
    """The text in a JSON object, or null; a ValueError's message follows the line's number."""
    expected = f"must be a JSON object with the text in {field!r}"
    try:
        made = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{expected}; got invalid JSON ({error.msg} at character {error.pos + 1}). Fix or "
            "remove the line"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{expected}; got JSON that cannot be parsed ({error}). Remove the line"
        ) from None
    if not isinstance(made, dict):
        raise ValueError(f"{expected}; got {type(made).__name__}. Fix or remove the line")
    if field not in made:
        names = ", ".join(map(repr, itertools.islice(made, 5))) or "none"
        raise ValueError(f"{expected}; got the fields {names[:200]}. Name one with --text_field")
    text = made[field]
    # Counting the name in the line is cheap; collecting all pairs is not, and is seldom needed.
    if line.count(f'"{field}"') > 1 and (
        field in json.loads(line, object_pairs_hook=table_files.Pairs).twice
    ):
        raise ValueError(f"must have one field {field!r}; got several. Fix or remove the line")
    if text is None:
        return None
    if not isinstance(text, str):
        raise ValueError(
            f"must have a string in {field!r}; got {type(text).__name__}. Fix or remove the line, "
            "or name another field with --text_field"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"must have valid Unicode in {field!r}; got half of a surrogate pair "
            f"({text[error.start]!a} at character {error.start + 1}). Fix or remove the line"
        ) from None
    return text
