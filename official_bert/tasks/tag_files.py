r"""Reads sentences whose words have tags, and writes predicted tags: CoNLL files and JSON lines.

In a CoNLL file a line is a word: its columns are separated by tabs or blanks, the first is the word
and the last its tag. Empty lines end sentences. Lines of `-DOCSTART-` and comments (`# …` before a
sentence, with another number of columns than a word) are no words.

In JSON lines, a line is a sentence: {"tokens": ["Anna", "sleeps"], "tags": ["B-PER", "O"]}.
"""

import dataclasses
import functools
import json
import os
import pathlib
import re
from collections.abc import Iterator, Sequence

from official_bert.data import table_files, text_files
from official_bert.system.whole_files import write_whole
from official_bert.tasks import tag_schemes

_JSON = (".jsonl", ".ndjson", ".json")
_DOCUMENT = "-DOCSTART-"
PREDICTED = "predicted_tags"  # the field of a prediction in JSON lines


@dataclasses.dataclass(frozen=True)
class Sentences:
    """The sentences of a file.

    Attributes:
        path: The file, for messages.
        words: The words of each sentence.
        tags: Their tags; None if they were not read.
        lines: The line on which each sentence begins, for messages.
    """

    path: str
    words: list[list[str]]
    tags: list[list[str]] | None
    lines: list[int]

    def __len__(self) -> int:
        return len(self.words)


def read(path: str, labelled: bool = True) -> Sentences:
    """Reads a file of sentences, compressed or not.

    Args:
        path: A `.jsonl` file, or a CoNLL file of any other name.
        labelled: False leaves the tags unread, as for a file without tags.

    Raises:
        ValueError: the file is missing, empty or broken; the message names the line.
    """
    found = _read_json(path, labelled) if _is_json(path) else _read_conll(path, labelled)
    if not found.words:
        raise ValueError(f"{path} must contain at least one sentence; got none.")
    return found


def read_tagged(path: str, scheme: str | None = None) -> tuple[Sentences, str]:
    """The sentences of a file with tags in IOB2, BIOES or plain, and the scheme in the file.

    Args:
        path: As of `read`.
        scheme: The scheme to convert to; default: as in the file, IOB2 for IOB1.

    Raises:
        ValueError: as `read`; or the tags mix schemes, or cannot be converted.
    """
    sentences = read(path)
    assert sentences.tags is not None
    try:
        own = tag_schemes.recognise(sentences.tags)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    wanted = scheme or ("IOB2" if own == "IOB1" else own)
    has_entities = any(tag != tag_schemes.OUTSIDE for tags in sentences.tags for tag in tags)
    if has_entities and (own == "plain") != (wanted == "plain"):
        raise ValueError(
            f"{path} must have tags of the scheme {wanted}, as the model; got {own}. Give tags as "
            "in the model's training."
        )
    if own == wanted or not has_entities:
        return sentences, own
    tags = [
        tag_schemes.encode(tag_schemes.entities(tags), len(tags), wanted) for tags in sentences.tags
    ]
    return dataclasses.replace(sentences, tags=tags), own


def write_predictions(path: str, folder: str | os.PathLike, tags: Sequence[Sequence[str]]) -> str:
    """Writes a file again, with predicted tags as a last column or the field `predicted_tags`.

    Args:
        path: A file that `read` has read.
        folder: Where; see `predictions_file`.
        tags: The tags of each of its sentences.

    Returns:
        The path of the new file.
    """
    written = predictions_file(path, folder)
    lines = (_json_predictions if _is_json(path) else _conll_predictions)(path, tags)
    # JSON's own escape where a field holds half of a character
    write_whole(written, (line.encode("utf-8", "backslashreplace") for line in lines))
    return written


def predictions_file(path: str, folder: str | os.PathLike) -> str:
    """The file for the predictions of a file: `predictions`, with the same ending."""
    ending = pathlib.PurePath(text_files.unpacked_name(path)).suffix
    return os.path.join(folder, f"predictions{ending}")


def _is_json(path):
    return text_files.unpacked_name(path).lower().endswith(_JSON)


# CoNLL


def _read_conll(path, labelled):
    words, tags, lines, within = [], [], [], False
    for number, _, cells in _conll_lines(path):
        if cells is None:
            within = False
            continue
        if not within:
            words.append([])
            tags.append([])
            lines.append(number)
        within = True
        words[-1].append(cells[0])
        if labelled:
            tags[-1].append(_tag_of(path, number, cells))
    return Sentences(path, words, tags if labelled else None, lines)


def _tag_of(path, number, cells):
    if len(cells) > 1 and cells[-1]:
        return cells[-1]
    got = "an empty one" if len(cells) > 1 else "a single column"
    raise ValueError(
        f"{path}, line {number} must have a word in its first column and a tag in its last; got "
        f"{got}. Add the tags."
    )


def _conll_lines(path: str) -> Iterator[tuple[int, str, list[str] | None]]:
    """Number, text and cells of each line; cells are None for a line that is no word."""
    (split, width), within = _columns(path), False
    for number, line in text_files.numbered_lines(path):
        line = line.rstrip("\r\n")
        if "\r" in line:
            raise ValueError(
                f"{path}, line {number} must end with LF or CR LF; got a CR within it. Convert the "
                "file with `tr '\\r' '\\n'`."
            )
        cells = split(line) if line.strip(" \t") else None
        if cells and (cells[0] == _DOCUMENT or _is_comment(cells, width, within)):
            cells = None
        within = cells is not None
        if cells and len(cells) != width:
            raise ValueError(
                f"{path}, line {number} must have {width} columns, as the first word's; got "
                f"{len(cells)}. Separate all columns by tabs, or all by blanks."
            )
        yield number, line, cells


def _is_comment(cells, width, within):
    """Whether a line before a sentence is no word: other columns, or words such as `# id 7`."""
    if within or not cells[0].startswith("#"):
        return False
    return len(cells) != width or (
        width > 1 and cells[0] == "#" and ("=" in cells or cells[-1].isdecimal())
    )


def _columns(path):
    """The function that splits a line, and the number of columns: of the first line of a word."""
    first = None
    for _, line in text_files.numbered_lines(path):
        line = line.rstrip("\r\n")
        if not line.strip(" \t") or line.startswith(_DOCUMENT):
            continue
        if first is None or not line.startswith("#"):
            first = line
        if not line.startswith("#"):
            break
    split = _at_tabs if "\t" in (first or "") else _at_blanks
    return split, len(split(first or ""))


def _at_tabs(line: str) -> list[str]:
    return [cell.strip(" ") for cell in line.split("\t")]


def _at_blanks(line: str) -> list[str]:
    return re.split("[ \t]+", line.strip(" \t"))


def _conll_predictions(path, tags):
    following = (tag for of_sentence in tags for tag in of_sentence)
    between = "\t" if _columns(path)[0] is _at_tabs else " "
    for _, line, cells in _conll_lines(path):
        yield f"{line}\n" if cells is None else f"{line.rstrip(' ')}{between}{next(following)}\n"


# JSON lines


def _read_json(path, labelled):
    words, tags, lines = [], [], []
    for number, fields in table_files.json_objects(path):
        place = f"{path}, line {number}"
        words.append(_texts(place, fields, "tokens"))
        lines.append(number)
        if labelled:
            tags.append(_texts(place, fields, "tags"))
            if len(tags[-1]) != len(words[-1]):
                raise ValueError(
                    f"{place} must have a tag for each of {len(words[-1])} tokens; got "
                    f"{len(tags[-1])}."
                )
            if any(not tag or tag != tag.strip() for tag in tags[-1]):
                raise ValueError(
                    f"{place}: 'tags' must not be empty, nor begin or end with a blank; got "
                    f"{json.dumps(tags[-1])[:80]}."
                )
    return Sentences(path, words, tags if labelled else None, lines)


def _texts(place, fields, name):
    found = fields.get(name)
    if name in fields.twice:
        raise ValueError(f"{place} must have one field {name!r}; got several.")
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        got = json.dumps(found)[:40] if name in fields else "none"
        raise ValueError(f"{place}: {name!r} must be a list of texts; got {got}.")
    for text in found:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{place}: {name!r} must be valid Unicode; got {text[error.start]!r}, half of a "
                "character."
            ) from None
    return found


def _json_predictions(path, tags):
    following = iter(tags)
    dumps = functools.partial(json.dumps, ensure_ascii=False)
    for _, fields in table_files.json_objects(path):
        yield f"{dumps(fields | {PREDICTED: [*next(following)]})}\n"
