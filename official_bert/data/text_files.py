"""The lines of text files: decompressed, decoded, stripped, and of bounded length."""

import bz2
import codecs
import contextlib
import functools
import gzip
import io
import lzma
import os
import types
import zlib
from collections.abc import Callable, Iterator
from typing import NoReturn

from official_bert.system.places import open_stream

FORMS = (
    *("auto", "sentences", "paragraphs", "wikiextractor", "jsonl"),
    *("csv", "tsv", "parquet", "arrow"),
)
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")  # endings of files that are unpacked

# In bytes. A longer line is cut, because some "lines" are whole files. A longer line of JSON is
# refused, because the parsed object takes many times its size.
LONGEST_LINE, LONGEST_OBJECT = 1 << 20, 32_000_000
_CHECKED_BYTES = 1 << 30  # of the text of an archive


def head(path: str, size: int) -> bytes:
    """The first bytes of a file, decompressed.

    Raises:
        ValueError: the file cannot be read; the message names it.
    """
    with _opened(path) as (_, file, _):
        return file.read(size)


def unpacked_name(path: str) -> str:
    """The path without the ending of a compressed file."""
    ending = next(filter(path.endswith, COMPRESSED), "")
    return path.removesuffix(ending)


def require_intact(path: str) -> None:
    """Refuses an archive that is damaged in its first GB of text.

    It may unpack to anything long before a checksum shows the damage.

    Raises:
        ValueError: the file is an archive and damaged.
    """
    if path.endswith(COMPRESSED):
        with _opened(path) as (_, file, place):
            for _ in range(_CHECKED_BYTES >> 20):
                chunk = file.read(1 << 20)
                place.line += chunk.count(b"\n")


def refuse(path: str, message: str) -> NoReturn:
    """Raises a ValueError about the content of a file, or about the archive if that is damaged."""
    require_intact(path)
    raise ValueError(f"{path}, {message}")


def stamp(path: str) -> tuple[int, int] | None:
    """Modification time and size; None without a file."""
    status = os.stat(path) if os.path.exists(path) else None
    return status and (status.st_mtime_ns, status.st_size)


def lines(
    path: str,
    advance: Callable[[int], None] = lambda _: None,
    *,
    whole: bool = False,
    objects: bool = False,
    bad_line: Callable[[str, str], object] = refuse,
) -> Iterator[str]:
    """The lines of a file, decompressed, decoded and stripped.

    A line longer than `LONGEST_LINE` is cut into pieces, at a blank if there is one. Lines end with
    LF or CR LF, or with CR in a file that has no LF in its first line or megabyte.

    Args:
        advance: Called with the number of bytes read from the file since the last call (before
            decompression).
        whole: Do not cut long lines.
        objects: A line is a JSON object: do not cut it, but refuse more than `LONGEST_OBJECT`.
        bad_line: Called with the path and a message for a line that is not UTF-8. If it returns,
            the line is left out, or with `objects` replaced by an empty one, to keep the numbers.

    Raises:
        ValueError: bytes that are not UTF-8, a broken archive, an object that is too long; the
            message names file and line.
    """
    position = unreported = 0
    cut_at = None if whole or objects else LONGEST_LINE
    with _opened(path) as (raw, file, place):
        for line, is_piece in _pieces(file, place, cut_at, LONGEST_OBJECT if objects else None):
            try:  # stripped first: a long line is not copied
                text = line.strip().decode("utf-8").strip()
            except UnicodeDecodeError as error:
                bad_line(path, _not_utf8(place, error))
                text, is_piece = "", not objects
            if place.line == 1:
                text = text.removeprefix("\ufeff").lstrip()
            if text or not is_piece:  # a blank piece is not a blank line
                yield text
            unreported += 1 + len(line)
            if unreported > 1 << 16:
                advance(raw.tell() - position)
                position, unreported = raw.tell(), 0
        advance(raw.tell() - position)


def numbered_lines(
    path: str,
    advance: Callable[[int], None] = lambda _: None,
    longest: int | None = None,
    errors: str = "strict",
) -> Iterator[tuple[int, str]]:
    """The unchanged lines of a table, line ends and blanks included, numbered from 1.

    Only LF ends a line: a CR or U+2028 within a line is text. A byte-order mark is left out.

    Args:
        advance: As of `lines`.
        longest: The most bytes of a line; None: any number.
        errors: As of `bytes.decode`; by default bytes that are not UTF-8 are refused.

    Raises:
        ValueError: bytes that are not UTF-8, a broken archive, a line that is too long; the message
            names file and line.
    """
    position = unreported = 0
    with _opened(path) as (raw, file, place):
        while line := file.readline(-1 if longest is None else longest + 1):
            place.line += 1
            if longest is not None and len(line) > longest:
                raise _TooLong("a row")
            text = line.decode("utf-8", errors)
            yield place.line, text.removeprefix("\ufeff") if place.line == 1 else text
            unreported += len(line)
            if unreported > 1 << 16:
                advance(raw.tell() - position)
                position, unreported = raw.tell(), 0
        advance(raw.tell() - position)


def cut(text: str) -> Iterator[str]:
    """A line as in `lines`: in pieces if it is longer than `LONGEST_LINE`."""
    line = text.encode("utf-8")
    while len(line) > LONGEST_LINE:
        at = _where_to_cut(line[:LONGEST_LINE])
        yield line[:at].decode("utf-8")
        line = line[at:]
    yield line.decode("utf-8")


class _TooLong(Exception):
    """A JSON object, or a row of a table, is longer than `LONGEST_OBJECT`."""


@contextlib.contextmanager
def _opened(path: str):
    """The file on disk, its decompressed bytes, and the number of the current line for messages."""
    place = types.SimpleNamespace(line=0)
    try:
        with open_stream(path) as raw, _decompressed(path, raw) as file:
            yield raw, file, place
    except _TooLong as error:
        raise ValueError(
            f"{path}, line {place.line} must be {error} of at most "
            f"{LONGEST_OBJECT / 1e6:.0f} MB, because it is read as a whole; got a longer one. "
            "Split long documents into several."
        ) from None
    except UnicodeDecodeError as error:
        refuse(path, _not_utf8(place, error))
    except Exception as error:
        unreadable = isinstance(error, OSError | EOFError | lzma.LZMAError | zlib.error)
        if not unreadable and type(error).__name__ != "ZstdError":  # of an optional package
            raise
        cause = (
            ": the archive is damaged or truncated, or its name has the wrong ending. Fetch or "
            "make it again"
        ) * (not getattr(error, "errno", None))  # which errors of disks and networks have
        raise ValueError(
            f"{path} cannot be read after line {place.line} ({error!r}){cause}."
        ) from None


def _not_utf8(place, error: UnicodeDecodeError) -> str:
    from_utf16 = error.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    conversion = "`iconv -f cp1252 -t utf-8` or `iconv -c -t utf-8`"
    return (
        f"line {place.line} must be UTF-8; got {error.object[error.start : error.start + 4]!r} at "
        f"byte {error.start} of the line. Convert the file first, for example with "
        f"{'`iconv -f utf-16 -t utf-8`' if from_utf16 else conversion}."
    )


def _pieces(file, place, cut_at: int | None, most: int | None) -> Iterator[tuple[bytes, bool]]:
    """Lines, or pieces of lines longer than `cut_at`; the second value is True for a piece.

    Raises:
        _TooLong: a line has more than `most` bytes.
    """
    rest, is_piece = b"", False
    for chunk, ends in _chunks(file, cut_at or (most or -2) + 1):
        if not rest and not is_piece:
            place.line += 1
        line = rest + chunk
        if most and len(line) > most + 1:  # one byte is the end of the line
            raise _TooLong("a JSON object")
        while cut_at and len(line) > cut_at:
            at = _where_to_cut(line[:cut_at])
            yield line[:at], True
            line, is_piece = line[at:], True
        if ends:
            yield line, is_piece
            rest, is_piece = b"", False
        else:
            rest = line
    if rest:
        yield rest, is_piece


def _chunks(file, size: int) -> Iterator[tuple[bytes, bool]]:
    """Bytes up to the next line end, or `size` of them; and whether they end a line."""
    chunk = file.readline(size)
    if b"\r" in chunk and not chunk.endswith(b"\n"):
        while chunk:
            *ended, last = chunk.split(b"\r")
            yield from ((line, True) for line in ended)
            yield last, False
            chunk = file.read(LONGEST_LINE)
    while chunk:
        yield chunk, chunk.endswith(b"\n")
        chunk = file.readline(size)


def _where_to_cut(line: bytes) -> int:
    """After the last blank, or else before the last character."""
    blank = line.rfind(b" ")
    if blank > 0:
        return blank + 1
    at = len(line) - 1
    while at > len(line) - 4 and line[at] & 0xC0 == 0x80:
        at -= 1
    return at


def _decompressed(path: str, file):
    if not path.endswith(COMPRESSED):
        return file
    if not file.peek(1):
        raise EOFError("the file is empty")  # to gzip, it is an empty text
    if path.endswith(".gz"):
        return gzip.open(file, "rb")
    new_stream: Callable = bz2.BZ2Decompressor
    if path.endswith(".xz"):
        new_stream = lzma.LZMADecompressor
    elif path.endswith(".zst"):
        try:
            import zstandard  # an extra: Python itself reads all the others
        except ImportError:
            raise ValueError(
                f"{path} needs the package zstandard, which is not installed. Install it: `pip "
                "install zstandard`."
            ) from None

        new_stream = functools.partial(_ZstandardFrame, zstandard)
    return io.BufferedReader(_Streams(file, new_stream), _CHUNK)


_CHUNK = 1 << 16


class _Streams(io.RawIOBase):
    """The text of all streams of a file: parallel compressors and `cat` write several.

    Python's own readers mistake a damaged stream for the end of the file, and the zstandard package
    a truncated file for a complete one. Here only zeros may come between and after streams.
    """

    def __init__(self, file, new_stream: Callable):
        self._file, self._new_stream = file, new_stream
        self._stream = new_stream()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        text = b""
        while not text:
            packed = b""
            if self._stream.eof:
                packed = self._stream.unused_data.lstrip(b"\0")
                while not packed:
                    read = self._file.read(_CHUNK)
                    if not read:
                        return 0
                    packed = read.lstrip(b"\0")
                self._stream = self._new_stream()
            elif self._stream.needs_input:
                packed = self._file.read(_CHUNK)
                if not packed:
                    raise EOFError("the last stream is truncated")
            text = self._stream.decompress(packed, len(buffer))
        buffer[: len(text)] = text
        return len(text)


class _ZstandardFrame:
    """A frame with the interface of `bz2` and `lzma`."""

    def __init__(self, zstandard):
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._left = memoryview(b"")

    @property
    def eof(self) -> bool:
        return self._frame.eof and not self._left

    @property
    def needs_input(self) -> bool:
        return not self._left

    @property
    def unused_data(self) -> bytes:
        return self._frame.unused_data

    def decompress(self, packed: bytes, limit: int) -> memoryview:
        left = self._left or memoryview(self._frame.decompress(packed))
        self._left = left[limit:]
        return left[:limit]
