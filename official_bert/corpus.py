"""Text in: from files on disk to documents, and from documents to blocks of bounded size.

The first room of the flow text → records → batches. A document is a list of lines; whether a line
is one sentence (the official form) or a paragraph that has yet to be split follows from the form of
its file. A block is a run of whole documents with about `BLOCK_BYTES` of text: the unit that one
worker turns into records, and what bounds the memory.
"""

import bz2
import glob
import gzip
import hashlib
import io
import json
import lzma
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import sentencex

FORMS = ("auto", "sentences", "paragraphs", "wikiextractor", "jsonl")
BLOCK_BYTES = 2 << 20


class Corpus:
    """The documents of some files, with what is counted on the way.

    Attributes:
        count: documents handed out so far.
        duplicates: documents whose text came before. Known by 8 bytes of their digest.
        text_bytes: their size.
        share_read: how much of the files is read, 0 to 1.
    """

    def __init__(
        self,
        paths: list[str],
        form: str = "auto",
        json_field: str = "text",
        drop_duplicates: bool = False,
    ):
        self.paths, self.form, self.json_field = paths, form, json_field
        self._drop_duplicates = drop_duplicates
        self._bytes = max(1, sum(map(os.path.getsize, paths)))
        self.count = self.duplicates = self.text_bytes = 0
        self.share_read = 0.0

    def documents(self) -> Iterator["Document"]:
        """Iterates over the documents, and counts anew."""
        self.count = self.duplicates = self.text_bytes = 0
        self.share_read = 0.0
        seen = set()
        for document in documents(self.paths, self.form, self.json_field, self._advance):
            key = int.from_bytes(digest(document)[:8])
            if key in seen:
                self.duplicates += 1
                if self._drop_duplicates:
                    continue
            seen.add(key)
            self.count += 1
            self.text_bytes += text_bytes(document)
            yield document

    def _advance(self, count: int) -> None:
        self.share_read += count / self._bytes


class Document(NamedTuple):
    """Lines of one document; `split` says that a line is a paragraph of several sentences."""

    lines: list[str]
    split: bool


def find_files(patterns: str | Iterable[str]) -> list[str]:
    """The files that `patterns` name: files, globs, folders (searched to the bottom); sorted.

    Args:
        patterns: a list, or one string with commas between its members.

    Raises:
        ValueError: a member matches nothing, or a file cannot be read.
    """
    if isinstance(patterns, str):
        patterns = patterns.split(",")
    found = []
    for pattern in filter(None, (str(p).strip() for p in patterns)):
        matches = sorted(glob.glob(pattern, recursive=True)) or [pattern]
        for match in matches:
            if os.path.isdir(match):
                inside = [os.path.join(d, f) for d, _, names in os.walk(match) for f in names]
                found.extend(sorted(f for f in inside if not os.path.basename(f).startswith(".")))
            elif os.path.exists(match):
                found.append(match)
            else:
                raise ValueError(
                    f"input_file: nothing matches {pattern!r} (looked in {os.getcwd()}); give "
                    f"files, globs or folders."
                )
    if not found:
        raise ValueError(f"input_file: {','.join(map(str, patterns))!r} names no file.")
    for path in found:
        if not os.access(path, os.R_OK):
            raise ValueError(f"input_file: {path} cannot be read; check its permissions.")
    return list(dict.fromkeys(found))


def documents(
    paths: Iterable[str],
    form: str = "auto",
    json_field: str = "text",
    advance: Callable[[int], None] = lambda _: None,
) -> Iterator[Document]:
    """The documents of the files in `paths`, one after the other, without empty ones.

    Args:
        form: how the text is laid out.
            `sentences`: one sentence a line, a blank line between documents (the official form);
            `paragraphs`: the same with a paragraph a line, which is split into sentences later;
            `wikiextractor`: `<doc …>` … `</doc>`, a paragraph a line, the title line left out;
            `jsonl`: one JSON object a line, its text in `json_field`, a paragraph a line of it;
            `auto`: `jsonl` where the name ends in `.jsonl`, `.json`, `.ndjson` (before any
            compression's ending) or the file starts with `{"`, `wikiextractor` where it starts
            with `<doc `, `sentences` otherwise.
        advance: called with numbers of bytes read from the files (before decompression) as the
            reading goes on.

    Raises:
        ValueError: bytes that are not UTF-8, a broken archive or JSON line; the message names file
            and line.
    """
    if form not in FORMS:
        raise ValueError(f"input_format: got {form!r}, expected one of {', '.join(FORMS)}.")
    for path in paths:
        lines = _lines(path, advance)
        first = next(lines, None)
        if first is None:
            continue
        lines = _chain(first, lines)
        chosen = _guess_form(path, first) if form == "auto" else form
        if chosen == "wikiextractor":
            found = _wikiextractor(lines)
        elif chosen == "jsonl":
            found = _json_lines(path, lines, json_field)
        else:
            found = _blank_separated(lines)
        for document in found:
            if document:
                yield Document(document, split=chosen != "sentences")


def sentences(document: Document, language: str = "en") -> list[str]:
    """A document's sentences: its lines, or its paragraphs split by Wikimedia's `sentencex`."""
    if not document.split:
        return document.lines
    split = (s.strip() for line in document.lines for s in sentencex.segment(language, line))
    return [sentence for sentence in split if sentence]


def text_bytes(document: Document) -> int:
    """The size of its text in UTF-8."""
    return sum(len(line.encode("utf-8")) for line in document.lines)


def digest(document: Document) -> bytes:
    """16 bytes that stand for the document's text."""
    return hashlib.blake2b("\n".join(document.lines).encode("utf-8"), digest_size=16).digest()


def blocks(found: Iterable[Document], block_bytes: int) -> Iterator[list[Document]]:
    """Runs of whole documents with `block_bytes` to twice that much text each.

    Where the cuts fall depends on the text and `block_bytes` alone. A last block of less than half
    the size joins the one before it, so that the draw of random next sentences never faces a
    handful of documents (unless that is all there is). A document longer than a block is cut at a
    line into several: memory stays bounded whatever comes in.
    """
    pending, block, size = None, [], 0
    for document in found:
        for piece in _cut(document, block_bytes):
            block.append(piece)
            size += sum(map(len, piece.lines))
            if size >= block_bytes:
                if pending:
                    yield pending
                pending, block, size = block, [], 0
    if pending and size < block_bytes // 2:
        yield pending + block
    else:
        yield from (b for b in (pending, block) if b)


def _cut(document: Document, limit: int) -> Iterator[Document]:
    lines, size = [], 0
    for line in document.lines:
        if lines and size + len(line) > limit:
            yield Document(lines, document.split)
            lines, size = [], 0
        lines.append(line)
        size += len(line)
    yield Document(lines, document.split)


def _open(path: str, file):
    if path.endswith(".gz"):
        return gzip.open(file, "rb")
    if path.endswith(".bz2"):
        return bz2.open(file, "rb")
    if path.endswith(".xz"):
        return lzma.open(file, "rb")
    if path.endswith(".zst"):
        return _zstandard_reader(path, file)
    return file


def _zstandard_reader(path: str, file):
    try:
        import zstandard  # an extra: Python reads all the others by itself
    except ImportError:
        raise ValueError(f"{path}: reading Zstandard needs `pip install zstandard`.") from None
    return io.BufferedReader(_ZstandardFile(file, zstandard.ZstdDecompressor().decompressobj))


class _ZstandardFile(io.RawIOBase):
    """Reads Zstandard frames; the library's own reader takes a truncated file for a whole one."""

    def __init__(self, file, new_frame: Callable):
        self._file, self._new_frame = file, new_frame
        self._frame, self._left = new_frame(), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while not self._left:
            if self._frame.eof:
                packed = self._frame.unused_data or self._file.read(1 << 16)
                if not packed:
                    return 0
                self._frame = self._new_frame()
            else:
                packed = self._file.read(1 << 16)
                if not packed:
                    raise EOFError("the last frame is cut off")
            self._left = self._frame.decompress(packed)
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count


def _lines(path: str, advance: Callable[[int], None]) -> Iterator[str]:
    """The lines of a file, decompressed, decoded and stripped."""
    number = position = 0
    try:
        with open(path, "rb") as raw, _open(path, raw) as file:
            for number, line in enumerate(file, 1):
                yield line.decode("utf-8").strip()
                if number % 1000 == 0:
                    advance(raw.tell() - position)
                    position = raw.tell()
            advance(raw.tell() - position)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}, line {number}: not UTF-8 ({error.object[error.start : error.start + 4]!r} at "
            f"byte {error.start} of the line); convert the file first, for example with `iconv -f "
            f"latin1 -t utf-8` or `iconv -c -t utf-8`."
        ) from None
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise ValueError(f"{path}, after line {number}: cannot be read ({error!r}).") from None
    except (
        Exception
    ) as error:  # zstandard is imported only where it is needed, so its error has no name here
        if type(error).__name__ != "ZstdError":
            raise
        raise ValueError(f"{path}, after line {number}: cannot be read ({error!r}).") from None


def _chain(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first.removeprefix("\ufeff")
    yield from rest


def _guess_form(path: str, first_line: str) -> str:
    name = re.sub(r"\.(gz|bz2|xz|zst)$", "", path)
    if name.endswith((".jsonl", ".json", ".ndjson")) or first_line.startswith('{"'):
        return "jsonl"
    return "wikiextractor" if first_line.startswith("<doc ") else "sentences"


def _blank_separated(lines: Iterator[str]) -> Iterator[list[str]]:
    document = []
    for line in lines:
        if line:
            document.append(line)
        elif document:
            yield document
            document = []
    yield document


def _wikiextractor(lines: Iterator[str]) -> Iterator[list[str]]:
    document, title = [], None
    for line in lines:
        if line.startswith("<doc "):
            match = re.search(r'title="(.*)">$', line)
            document, title = [], match and match[1]
        elif line == "</doc>":
            yield document
            document = []
        elif line == title:
            title = None
        elif line:
            document.append(line)
    yield document


def _json_lines(path: str, lines: Iterator[str], field: str) -> Iterator[list[str]]:
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            text = json.loads(line)[field]
            if isinstance(text, str):
                text.encode()  # JSON can hold halves of surrogate pairs, which are no text
        except (json.JSONDecodeError, KeyError, TypeError, UnicodeEncodeError) as error:
            raise ValueError(
                f"{path}, line {number}: expected a JSON object with the text in {field!r} "
                f"({error!r}); --json_field names another field."
            ) from None
        if not isinstance(text, str):
            raise ValueError(
                f"{path}, line {number}: {field!r} holds {type(text).__name__}, expected a string."
            )
        yield [stripped for part in text.split("\n") if (stripped := part.strip())]
