"""Small files in the form of SQuAD, and where the real one lies."""

import json
from pathlib import Path

import pytest
from small_text import SHARED

from official_bert.tasks.squad_data import Answer, Question

DEV = SHARED / "squad/dev-v1.1.json.xz"
needs_squad = pytest.mark.skipif(not DEV.exists(), reason="needs ../shared/data/squad")

WORDS = ("the", "river", "runs", "past", "an", "old", "mill", "and", "under", "bridges", "to")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write_vocabulary(folder: Path, *more: str) -> str:
    """A vocabulary of whole words; returns its path."""
    path = folder / "vocab.txt"
    path.write_text("\n".join([*SPECIAL, *WORDS, "?", ".", *more]) + "\n", encoding="utf-8")
    return str(path)


def qa(id: str, *answers: tuple[str, int], question: str = "the river ?", **more) -> dict:
    """A question as it stands in a file."""
    texts = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": id, "question": question, "answers": texts, **more}


def write_squad(path: Path, *paragraphs: tuple[str, list[dict]], bom: bool = False) -> str:
    """Writes contexts with their questions, an article each; returns the path."""
    articles = [
        {"title": "", "paragraphs": [{"context": context, "qas": questions}]}
        for context, questions in paragraphs
    ]
    encoding = "utf-8-sig" if bom else "utf-8"
    path.write_text(json.dumps({"data": articles}, ensure_ascii=False), encoding=encoding)
    return str(path)


def question(
    context: str, *answers: tuple[str, int | None], text="the river ?", **more
) -> Question:
    """A question as it is read."""
    fields = {"id": "q", "is_impossible": False} | more
    return Question(
        text=text, context=context, answers=tuple(Answer(*answer) for answer in answers), **fields
    )
