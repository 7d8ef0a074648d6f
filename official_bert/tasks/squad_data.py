"""Reads SQuAD's questions about paragraphs, versions 1.1 and 2.0, in the two layouts in use.

The official JSON holds articles with paragraphs with questions. In the flat layout, of Hugging
Face's `datasets`, a row is a question: `id`, `context`, `question` and `answers`, an object of the
lists `text` and `answer_start`.

file → `read` → questions → (`for_training`) → `squad_features` → … → `squad_decoding`
                     └──────────────────────────────────────────→ `squad_evaluation`
"""

import bisect
import dataclasses
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from official_bert.data import arrow_files, table_files, text_files
from official_bert.system import messages, settings
from official_bert.system.settings import setting


@settings.documented
@dataclasses.dataclass(frozen=True)
class Windows:
    """Lengths of the windows of long contexts; names and defaults are the official flags'.

    Raises:
        ValueError: a setting is too small, or the longest question leaves no room for a context.
    """

    max_seq_length: int = setting(
        "Length of a window in tokens, question included.", 384, minimum=1
    )
    doc_stride: int = setting(
        "Stride between the windows of a long text, in tokens.", 128, minimum=1
    )
    max_query_length: int = setting(
        "Maximum length of a question in tokens; longer ones are cut.", 64, minimum=1
    )

    def __post_init__(self):
        settings.check(self)
        if self.max_seq_length < self.max_query_length + 4:
            raise ValueError(
                f"max_seq_length must be at least {self.max_query_length + 4}, for "
                f"max_query_length ({self.max_query_length}), [CLS], two [SEP] and a word piece of "
                f"the context; got {self.max_seq_length}. Raise it, or lower max_query_length."
            )


class Answer(NamedTuple):
    """A piece of a context, and the number of its first character there; None if not given."""

    text: str
    start: int | None


_ANSWER = ("text", "answer_start")  # the fields of an answer in a file


class Question(NamedTuple):
    """A question, the text that it is about, and the answers that annotators gave."""

    id: str
    text: str
    context: str
    answers: tuple[Answer, ...]
    is_impossible: bool  # the context does not answer it; always False in version 1.1


class Dataset(NamedTuple):
    """The questions of a file in its order; `version_2` if it marks unanswerable ones."""

    questions: list[Question]
    version_2: bool


class Counts(NamedTuple):
    """Numbers of questions of a file, from `for_training`."""

    kept: int
    moved: int  # of those kept: the answer was not at its stated position
    left_out: int  # no answer is found in the context


def read(path: str) -> Dataset:
    """Reads a file of questions; `.gz`, `.bz2`, `.xz` and `.zst` are unpacked.

    In the flat layout, a question whose answers are empty, blank or null is unanswerable, unless
    those of all questions are.

    Offsets count UTF-16 units, as in JavaScript and Java, if more of the file's answers then match
    the context than when counting characters.

    Args:
        path: JSON in the form of SQuAD 1.1 or 2.0, with or without a byte order mark; or the flat
            layout, as JSON lines, a JSON list, a Parquet or Arrow file, or a folder that
            `save_to_disk` of `datasets` wrote.

    Raises:
        ValueError: the file cannot be read, is not of that form, holds no question, or holds two
            with the same id; the message names the place.
    """
    questions, places, version_2 = [], {}, False
    for place, context, record in _records(path):
        question = _question(place, context, record)
        if question.id in places:
            raise ValueError(
                f"{place}: the id of a question must be unique; got {question.id!r}, as for "
                f"{places[question.id]}. Rename or remove one of them."
            )
        places[question.id] = place.removeprefix(f"{path}: ")
        questions.append(question)
        version_2 = version_2 or "is_impossible" in record
    if not questions:
        raise ValueError(f"{path} must contain questions; got none. {_REMEDY}")
    return Dataset(_in_characters(path, questions), version_2)


def read_json(path: str) -> Any:
    """The contents of a JSON file, compressed or not, with or without a byte order mark.

    Objects are `table_files.Pairs`.

    Raises:
        ValueError: the file cannot be read or is not JSON.
    """
    text = "\n".join(text_files.lines(path, whole=True))
    try:
        return json.loads(text, object_pairs_hook=table_files.Pairs)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be JSON; got invalid JSON ({error}).") from error


def for_training(questions: Sequence[Question]) -> tuple[list[Question], Counts]:
    """The questions that can be trained on, with one answer each at its position in the context.

    The answer is the first that `locate` finds. Answerable questions without such an answer are
    left out; unanswerable ones are kept, without answers.
    """
    kept, moved = [], 0
    for question in questions:
        answer = locate(question)
        if answer:
            moved += answer not in question.answers
            kept.append(question._replace(answers=(answer,)))
        elif question.is_impossible:
            kept.append(question._replace(answers=()))
    return kept, Counts(len(kept), moved, len(questions) - len(kept))


def _in_characters(path: str, questions: list[Question]) -> list[Question]:
    """The questions with offsets in characters, converted if the file counts UTF-16 units."""
    converted = [_from_utf16(question) for question in questions]
    fits = [
        sum(_is_in_place(q, a) for q in some for a in q.answers) for some in (questions, converted)
    ]
    if fits[1] <= fits[0]:
        return questions
    messages.once(
        print,
        f"{path}: counting the positions of answers in UTF-16 units, as JavaScript does: "
        f"{fits[1]:,} answers then match the context, compared with {fits[0]:,} when counting "
        "characters",
    )
    for number, (by_characters, by_units) in enumerate(zip(questions, converted, strict=True)):
        pairs = zip(by_characters.answers, by_units.answers, strict=True)
        answers = [
            a if _is_in_place(by_characters, a) and not _is_in_place(by_units, b) else b
            for a, b in pairs
        ]
        converted[number] = by_units._replace(answers=tuple(answers))
    return converted


def _from_utf16(question: Question) -> Question:
    """The same question, its offsets read as numbers of UTF-16 units."""
    context = question.context
    if context.isascii() or max(context) <= "\uffff":
        return question
    units = [0, *itertools.accumulate(1 + (character > "\uffff") for character in context)]

    def moved(answer):
        if answer.start is None or not 0 <= answer.start <= units[-1]:
            return answer
        return answer._replace(start=bisect.bisect_left(units, answer.start))

    return question._replace(answers=tuple(map(moved, question.answers)))


def _is_in_place(question: Question, answer: Answer) -> bool:
    """Whether an answer is at its offset."""
    text, start = answer
    in_text = text.strip() and start is not None and start >= 0
    return bool(in_text and question.context.startswith(text, start))


def locate(question: Question) -> Answer | None:
    """The first of a question's answers that is in the context, in the context's spelling.

    If it is not at its offset (counted in bytes, or in another version of the text), the occurrence
    nearest to it is taken; any white space matches any other.
    """
    if question.is_impossible:
        return None
    found = (_found(answer, question) for answer in question.answers)
    return next(filter(None, found), None)


def _found(answer: Answer, question: Question) -> Answer | None:
    if _is_in_place(question, answer):
        return answer
    text, start, context = *answer, question.context
    words = map(re.escape, text.split())
    matches = re.finditer(r"\s+".join(words), context) if text.strip() else ()
    nearest = min(matches, key=lambda match: abs(match.start() - (start or 0)), default=None)
    return Answer(nearest.group(), nearest.start()) if nearest else None


def _records(path: str) -> Iterator[tuple[str, str, dict]]:
    """The place, the context and the JSON object of every question."""
    if os.path.isdir(path) or os.path.splitext(path)[1].lower()[1:] in arrow_files.FORMS:
        return _flat_records(_arrow_rows(path))
    try:
        data = read_json(path)
    except ValueError as error:
        cause = error.__cause__
        if not isinstance(cause, json.JSONDecodeError) or cause.msg != "Extra data":
            raise
        rows = table_files.json_objects(path)
        return _flat_records((f"{path}, line {number}", row) for number, row in rows)
    if _is_row(data):  # the only line of JSON lines
        data = [data]
    is_list = isinstance(data, list)
    articles = data if is_list else _field(path, data, "data", list)
    if is_list or any(map(_is_row, articles)):
        name = "" if is_list else "data"
        return _flat_records((f"{path}: {name}[{n}]", row) for n, row in enumerate(articles))
    return _official_records(path, articles)


def _official_records(path, articles):
    for i, article in enumerate(articles):
        in_article = f"{path}: data[{i}]"
        for j, paragraph in enumerate(_field(in_article, article, "paragraphs", list)):
            in_paragraph = f"{in_article}.paragraphs[{j}]"
            context = _text(in_paragraph, paragraph, "context")
            for k, record in enumerate(_field(in_paragraph, paragraph, "qas", list)):
                yield f"{in_paragraph}.qas[{k}]", context, record


# The flat layout


def _is_row(value: Any) -> bool:
    return isinstance(value, dict) and "context" in value and "paragraphs" not in value


def _flat_records(rows: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, str, dict]]:
    """As `_records`; of places and rows, whose answers become those of the official layout."""
    found = []
    for place, row in rows:
        context, answers = _text(place, row, "context"), row.get("answers")
        for name in row:
            _require_single(place, row, name)
        record = {name: value for name, value in row.items() if name != "answers"}
        if type(record.get("id")) is int:
            record["id"] = str(record["id"])
        if isinstance(answers, dict):
            columns = {n: _field(f"{place}.answers", answers, n, list) for n in _ANSWER}
            if len({*map(len, columns.values())}) > 1:
                raise ValueError(
                    f"{place}.answers must have an answer_start for each text; got "
                    f"{len(columns['text'])} texts and {len(columns['answer_start'])}."
                )
            answers = [dict(zip(columns, values)) for values in zip(*columns.values())]
        if "answers" in row:
            record["answers"] = [] if answers is None or _are_blank(answers) else answers
        found.append((place, context, record))
    is_labelled = any(record.get("answers") for _, _, record in found)
    for place, context, record in found:
        if is_labelled and record.get("answers") == []:
            record.setdefault("is_impossible", True)
        yield place, context, record


def _are_blank(answers: Any) -> bool:
    """Whether a list of answers has only empty ones, which some files have for none."""
    return isinstance(answers, list) and all(
        isinstance(answer, dict)
        and isinstance(answer.get("text"), str)
        and not answer["text"].strip()
        for answer in answers
    )


def _arrow_rows(path: str) -> Iterator[tuple[str, dict]]:
    """The rows of Parquet and Arrow as those of JSON, with their places."""
    if not os.path.exists(path):
        raise ValueError(f"{path} must be an existing file; got none. Check the path.")
    texts, columns = ("id", "question", "context"), [f"answers.{n}" for n in _ANSWER]
    number = 0
    for file in table_files.files_in(path) if os.path.isdir(path) else [path]:
        form = table_files.format_of(file)
        held = arrow_files.column_names(file, form)
        optional = columns * ("answers" in held) + ["is_impossible"] * ("is_impossible" in held)
        for _, cells in arrow_files.rows(file, form, [*texts, *optional], numbers=True):
            number += 1
            place, row = f"{path}, row {number}", dict(zip([*texts, *optional], cells))
            fault = next(filter(None, (arrow_files.not_text(row[n], n) for n in texts)), None)
            if fault:
                raise ValueError(f"{place} {fault}. {table_files.REMEDY}")
            answers = dict(zip(_ANSWER, (row.pop(name, None) for name in columns)))
            if "answers" in held:
                is_null = all(values is None for values in answers.values())
                row["answers"] = None if is_null else answers
            yield place, row


def _question(place: str, context: str, record: dict) -> Question:
    return Question(
        id=_text(place, record, "id"),
        text=_text(place, record, "question"),
        context=context,
        answers=tuple(
            _answer(f"{place}.answers[{number}]", answer)
            for number, answer in enumerate(_field(place, record, "answers", list, []))
        ),
        is_impossible=_field(place, record, "is_impossible", bool, False),
    )


def _answer(place: str, record: dict) -> Answer:
    start = _field(place, record, "answer_start", int, None)
    return Answer(_text(place, record, "text"), start)


_KINDS = {list: "a list", str: "a text", bool: "true or false", int: "a whole number"}
_REQUIRED = object()
_REMEDY = "Give SQuAD's JSON, or rows of questions with id, context, question and answers."


def _field(place: str, record: Any, name: str, kind: type, default: Any = _REQUIRED) -> Any:
    """A value of a JSON object, checked."""
    if not isinstance(record, dict):
        got = _short(record)
        raise ValueError(f"{place} must be an object with {name!r}; got {got}. {_REMEDY}")
    if name not in record and default is not _REQUIRED:
        return default
    _require_single(place, record, name)
    value = record.get(name)
    if type(value) is not kind:
        got, remedy = _short(value), "Correct it, or remove the question."
        if name not in record:
            got, remedy = f"none among the fields {_short([*record])}", _REMEDY
        raise ValueError(f"{place}: {name!r} must be {_KINDS[kind]}; got {got}. {remedy}")
    return value


def _require_single(place: str, record: dict, name: str) -> None:
    """Refuses a field that a JSON object has several times; rows of Arrow have each once."""
    if name in getattr(record, "twice", ()):
        raise ValueError(f"{place} must have one field {name!r}; got several. Remove all but one.")


def _text(place: str, record: Any, name: str) -> str:
    text = _field(place, record, name, str)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{place}: {name!r} must be valid Unicode; got half of a character at {error.start} "
            f"({text[error.start]!r}). Remove it."
        ) from None
    return text


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
