"""Text in: from files on disk to documents, and from documents to blocks of bounded size.

The first room of the flow text → records → batches. A document is a list of lines. The form of its
file decides whether a line is one sentence (the official form) or a paragraph that is split later.
A block is a run of whole documents with about `BLOCK_BYTES` of text. One worker turns it into
records, and its size bounds the memory.
"""

import fnmatch
import glob
import hashlib
import json
import math
import os
import re
import stat
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import NamedTuple

import sentencex

from official_bert.data import format_detection, text_files
from official_bert.system import local_paths

FORMS = format_detection.FORMS
BLOCK_BYTES = 2 << 20
MAX_DOCUMENTS = 10_000  # of a block: each becomes a record at least, in every pass
LONGEST_SPLIT = 4096  # characters per call of the library for sentences
_WIDE_SPACES = (
    "\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_SENTENCE_ENDS = re.compile("[.!?…‼⁇-⁉。．！？｡।॥؟۔։።၊။។៕]")
_BLANKS = str.maketrans(dict.fromkeys(_WIDE_SPACES, " "))


class BadLines:
    """What to do with lines that cannot be read: refuse them, or leave them out and count them.

    Args:
        skip: Leave them out.

    Attributes:
        count: Lines left out so far.
    """

    def __init__(self, skip: bool):
        self._skip, self._first = skip, ""
        self.count = 0

    def __call__(self, path: str, message: str) -> None:
        if not self._skip:
            text_files.refuse(path, f"{message} Give --skip_bad_lines to leave such lines out.")
        self.count += 1
        self._first = self._first or f"{path}, {message}"

    def warnings(self) -> list[str]:
        """How many were left out and why, in a line; nothing if all could be read."""
        if not self.count:
            return []
        lines = "1 unreadable line" if self.count == 1 else f"{self.count:,} unreadable lines"
        return [f"left out {lines}. The first: {self._first}"]


class Corpus:
    """The documents of some files, and counts of what was read.

    Args:
        whole: Do not cut long documents and lines; see `documents`.
        skip_bad_lines: Leave out lines that cannot be read.

    Attributes:
        bad_lines: Those left out so far.
        count: Documents handed out so far.
        duplicates: Documents whose text came before, recognised by 8 bytes of their digest. Only
            the first `_Fingerprints.MOST` documents are remembered.
        text_bytes: Size of the documents handed out, in UTF-8.
        dropped_bytes: Size of the duplicates that were left out.
        share_read: Fraction of the files that is read, 0 to 1.
    """

    def __init__(
        self,
        paths: list[str],
        form: str = "auto",
        json_field: str = "text",
        drop_duplicates: bool = False,
        whole: bool = False,
        skip_bad_lines: bool = False,
    ):
        self.paths, self.form, self.json_field = paths, form, json_field
        self.skip_bad_lines, self.bad_lines = skip_bad_lines, BadLines(skip_bad_lines)
        self._drop_duplicates, self._whole = drop_duplicates, whole
        self._bytes = max(1, sum(map(os.path.getsize, paths)))
        self.count = self.duplicates = self.text_bytes = self.dropped_bytes = 0
        self.share_read = 0.0

    def documents(self) -> Iterator["Document"]:
        """Iterates over the documents, with the counts starting again from 0."""
        self.count = self.duplicates = self.text_bytes = self.dropped_bytes = 0
        self.share_read, self.bad_lines = 0.0, BadLines(self.skip_bad_lines)
        seen = _Fingerprints()
        reading = self.paths, self.form, self.json_field, self._advance, self._whole
        found = documents(*reading, self.bad_lines)
        for document in found:
            if not seen.add(int.from_bytes(digest(document)[:8])):
                self.duplicates += not document.continues
                if self._drop_duplicates:
                    self.dropped_bytes += text_bytes(document)
                    continue
            self.count += not document.continues
            self.text_bytes += text_bytes(document)
            yield document

    def _advance(self, count: int) -> None:
        self.share_read += count / self._bytes


class _Fingerprints:
    """A set of 64-bit numbers with 9 bytes per number; Python's own set takes a hundred."""

    MOST = 1 << 27

    def __init__(self):
        self._buckets = [array("Q") for _ in range(1 << 16)]
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
    """Lines of one document.

    `split`: a line is a paragraph of several sentences. `continues`: the lines before these are a
    separate document, because together they would be too long for the memory.
    """

    lines: list[str]
    split: bool
    continues: bool = False


def find_files(patterns: str | Iterable[str], flag: str = "input_file") -> list[str]:
    """The files that `patterns` name: files, globs, folders; sorted, each once.

    Folders are searched recursively, through links too; hidden files are skipped.

    Args:
        patterns: A list, or one string with commas between its members.
        flag: The name of their flag, for messages.

    Raises:
        ValueError: a member matches nothing or is an address (`gs://…`), or a file cannot be read.
    """
    patterns = _patterns(patterns, flag)
    local_paths.require_local(**{flag: patterns})
    found = []
    for pattern in patterns:
        for match in sorted(local_paths.matches(pattern, recursive=True)) or [pattern]:
            found.extend(sorted(_inside(match)) if os.path.isdir(match) else [match])
    if not found:
        raise ValueError(
            f"{flag} must match at least one file; got {','.join(patterns)!r}, without any. Give "
            "files, globs or folders of text."
        )
    for path in found:
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
    """Refuses outputs that `find_files` would read as text at the next start.

    Args:
        outputs: {name of the flag: the paths that will be written}.
        inputs: {name of the flag: the patterns of the text}.

    Raises:
        ValueError: naming the output and the pattern.
    """
    given = [(f, pattern) for f, patterns in inputs.items() for pattern in _patterns(patterns, f)]
    for other, pattern in given:
        searched = _searched(pattern)
        for flag, paths in outputs.items():
            for path in paths:
                if any(fnmatch.fnmatch(_real(path), name) for name in searched):
                    raise ValueError(  # a `*` matches folders too
                        f"{flag} must not match {other}={pattern!r}, which would read it as text "
                        f"when the command runs again; got {os.path.abspath(path)!r}. Write to "
                        "another folder."
                    )


def _real(path: str) -> str:
    """The path with all links to folders resolved; its last part may be a glob, or new."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def _searched(pattern: str) -> set[str]:
    """Globs for every file that `find_files` finds for this pattern, links to folders resolved."""
    matches = glob.glob(pattern, recursive=True) or [pattern]
    folders = {os.path.realpath(f) for m in matches if os.path.isdir(m) for f, _ in _walk(m)}
    found = {os.path.join(glob.escape(folder), "*") for folder in folders}
    return found if os.path.isdir(pattern) else found | {_real(pattern)}


def _inside(folder: str) -> Iterator[str]:
    """All files below a folder, through links to folders too, without hidden ones."""
    for inner, names in _walk(folder):
        yield from (os.path.join(inner, name) for name in names if not name.startswith("."))


def _walk(folder: str) -> Iterator[tuple[str, list[str]]]:
    """All folders below a folder, through links to folders too, with their files."""
    seen = set()
    for inner, folders, names in os.walk(
        folder, followlinks=True, onerror=local_paths.refuse_folder
    ):
        if os.path.realpath(inner) in seen:
            folders.clear()  # the links form a circle
            continue
        seen.add(os.path.realpath(inner))
        yield inner, names


def _patterns(given: str | Iterable[str], flag: str) -> list[str]:
    names = given.split(",") if isinstance(given, str) else list(map(str, given))
    if not all(map(str.strip, names)):
        raise ValueError(
            f"{flag} must be one or more names, separated by single commas; got "
            f"{','.join(names)!r}. Is a shell variable empty?"
        )
    return list(map(str.strip, names))


def documents(
    paths: Iterable[str],
    form: str = "auto",
    json_field: str = "text",
    advance: Callable[[int], None] = lambda _: None,
    whole: bool = False,
    bad_line: Callable[[str, str], object] = text_files.refuse,
) -> Iterator[Document]:
    """The documents of the files in `paths`, in order, without empty ones.

    A document longer than `BLOCK_BYTES` is cut into several at the end of a line, and a line longer
    than `text_files.LONGEST_LINE` into several lines. A JSON object of more than
    `text_files.LONGEST_OBJECT` is refused. So memory is bounded for any input.

    Args:
        form: How the text is laid out.
            `sentences`: one sentence per line, a blank line between documents (the official form);
            `paragraphs`: the same with one paragraph per line, split into sentences later;
            `wikiextractor`: `<doc …>` … `</doc>`, one paragraph per line, without the title line;
            `jsonl`: one JSON object per line, with one paragraph per line of its `json_field`;
            `auto`: `jsonl` where the name ends in `.jsonl`, `.json`, `.ndjson` (before any
            compression's ending) or the text begins with `{"`, `wikiextractor` where it begins
            with `<doc `; what looks like markup or a table is refused; `sentences` otherwise.
        advance: Called during reading with the number of bytes read from the files since the last
            call (before decompression).
        whole: Do not cut long documents and lines.
        bad_line: Called with the path and a message for a line that is not UTF-8 or not a JSON
            object with text. If it returns, the line is left out.

    Raises:
        ValueError: a file that is not text or not in such a form, bytes that are not UTF-8, a
            broken archive or JSON line; the message names file and line.
    """
    for path in paths:
        chosen = format_detection.recognise(path, form)
        lines = text_files.lines(
            path, advance, whole=whole, objects=chosen == "jsonl", bad_line=bad_line
        )
        if chosen == "wikiextractor":
            found = _wikiextractor(lines)
        elif chosen == "jsonl":
            found = _json_lines(path, lines, json_field, whole, bad_line)
        else:
            found = _blank_separated(lines)
        yield from _gathered(found, chosen != "sentences", math.inf if whole else BLOCK_BYTES)


def sentences(document: Document, language: str = "en") -> list[str]:
    """A document's sentences: its lines, or its paragraphs split by Wikimedia's `sentencex`."""
    if not document.split:
        return document.lines
    return [sentence for line in document.lines for sentence in split_paragraph(line, language)]


def split_paragraph(paragraph: str, language: str = "en") -> list[str]:
    """The sentences of a paragraph; a long one is split piece by piece.

    The library's time grows with the square of the length: 1 MB of Chinese would take a minute.
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

    Two are too few, because tools differ in where they see the end of a sentence.
    """
    start = line[:LONGEST_SPLIT]
    may_be = len(_SENTENCE_ENDS.findall(start)) >= 3  # much faster than the library
    return may_be and len(split_paragraph(start, language)) >= 3


def _segments(text: str, language: str) -> Iterator[str]:
    """The sentences that the library finds, with the blanks between them.

    Wider spaces are replaced by blanks for it: it panics at one between an initial and a full stop.
    """
    start = 0
    for sentence in sentencex.segment(language, text.translate(_BLANKS)):
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
    joins the block before it. Otherwise random next sentences would be drawn from very few
    documents.
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
    """Lines → documents; None ends one, and one that would be longer than `longest` is cut."""
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


def _blank_separated(lines: Iterator[str]) -> Iterator[str | None]:
    return (line or None for line in lines)


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


def _json_lines(
    path: str,
    lines: Iterator[str],
    field: str,
    whole: bool,
    bad_line: Callable[[str, str], object],
) -> Iterator[str | None]:
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            text = _text_of(line, field)
        except ValueError as error:
            bad_line(path, f"line {number} {error}.")
            continue
        parts: Iterable[str] = text.split("\n")
        if not whole:
            parts = chain.from_iterable(map(text_files.cut, parts))
        yield from filter(None, map(str.strip, parts))
        yield None


def _text_of(line: str, field: str) -> str:
    """The text in a JSON object.

    Raises:
        ValueError: there is none; the message states what was expected, what was found and the
            cure. It follows the number of the line.
    """
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
        names = ", ".join(map(repr, islice(made, 5))) or "none"
        raise ValueError(f"{expected}; got the fields {names[:200]}. Name one with --json_field")
    text = made[field]
    if not isinstance(text, str):
        raise ValueError(
            f"must have a string in {field!r}; got {type(text).__name__}. Fix or remove the line, "
            "or name another field with --json_field"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"must have valid Unicode in {field!r}; got half of a surrogate pair "
            f"({text[error.start]!a} at character {error.start + 1}). Fix or remove the line"
        ) from None
    return text
