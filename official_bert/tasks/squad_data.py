"""Reads SQuAD's JSON files, versions 1.1 and 2.0: questions about paragraphs.

file → `read` → questions → (`for_training`) → `squad_features` → … → `squad_decoding`
                     └──────────────────────────────────────────→ `squad_evaluation`
"""

import bisect
import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from official_bert.data import text_files
from official_bert.system import settings
from official_bert.system.settings import setting


@settings.documented
@dataclasses.dataclass(frozen=True)
class Windows:
    """How long contexts are cut into windows; names and defaults are the official flags'.

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

    Offsets count UTF-16 units, as in JavaScript and Java, if more of the file's answers then match
    the context than when counting characters.

    Args:
        path: JSON in the form of SQuAD 1.1 or 2.0, with or without a byte order mark.

    Raises:
        ValueError: the file cannot be read, is not of that form, holds no question, or holds two
            with the same id; the message names the place.
    """
    questions, places, version_2 = [], {}, False
    for place, context, record in _records(path, read_json(path)):
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
        raise ValueError(f"{path} must contain questions in SQuAD's JSON; got none.")
    return Dataset(_in_characters(path, questions), version_2)


def read_json(path: str) -> Any:
    """The contents of a JSON file, compressed or not, with or without a byte order mark.

    Raises:
        ValueError: the file cannot be read or is not JSON.
    """
    text = "\n".join(text_files.lines(path, whole=True))
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be JSON; got invalid JSON ({error}).") from None


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
    _report_utf16(path, *fits)
    for number, (by_characters, by_units) in enumerate(zip(questions, converted, strict=True)):
        pairs = zip(by_characters.answers, by_units.answers, strict=True)
        answers = [
            a if _is_in_place(by_characters, a) and not _is_in_place(by_units, b) else b
            for a, b in pairs
        ]
        converted[number] = by_units._replace(answers=tuple(answers))
    return converted


@functools.cache  # once for a file that is read again
def _report_utf16(path: str, by_characters: int, by_units: int) -> None:
    print(
        f"{path}: counting the positions of answers in UTF-16 units, as JavaScript does: "
        f"{by_units:,} answers then match the context, compared with {by_characters:,} when "
        "counting characters",
        flush=True,
    )


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


def _records(path: str, data: Any) -> Iterator[tuple[str, str, dict]]:
    """The place, the context and the JSON object of every question."""
    for i, article in enumerate(_field(path, data, "data", list)):
        in_article = f"{path}: data[{i}]"
        for j, paragraph in enumerate(_field(in_article, article, "paragraphs", list)):
            in_paragraph = f"{in_article}.paragraphs[{j}]"
            context = _text(in_paragraph, paragraph, "context")
            for k, record in enumerate(_field(in_paragraph, paragraph, "qas", list)):
                yield f"{in_paragraph}.qas[{k}]", context, record


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


def _field(place: str, record: Any, name: str, kind: type, default: Any = _REQUIRED) -> Any:
    """A value of a JSON object, checked."""
    if not isinstance(record, dict):
        raise ValueError(f"{place} must be an object with {name!r}; got {_short(record)}.")
    if name not in record and default is not _REQUIRED:
        return default
    value = record.get(name)
    if type(value) is not kind:
        got = _short(value) if name in record else "none"
        raise ValueError(f"{place}: {name!r} must be {_KINDS[kind]}; got {got}.")
    return value


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
    return json.dumps(value)[:40]
