"""Small files in the form of SQuAD, with questions that a tiny model can learn: who lives where."""

import dataclasses
import functools
import json
import random
from pathlib import Path
from typing import NamedTuple

import pytest
from small_runs import STAGE, fine_tuning_config, fine_tuning_run, without_dropout
from small_text import SHARED

from official_bert.data.tokenization import SPECIAL_TOKENS
from official_bert.model.config import BertConfig
from official_bert.tasks.squad import QuestionAnswering
from official_bert.tasks.squad_data import Answer, Question, Windows

DEV = SHARED / "squad/dev-v1.1.json.xz"
needs_squad = pytest.mark.skipif(not DEV.exists(), reason="needs ../shared/data/squad")

WORDS = ("the", "river", "runs", "past", "an", "old", "mill", "and", "under", "bridges", "to")


def write_vocabulary(folder: Path, *more: str) -> str:
    """A vocabulary of whole words; returns its path."""
    path = folder / "vocab.txt"
    path.write_text("\n".join([*SPECIAL_TOKENS, *WORDS, "?", ".", *more]) + "\n", encoding="utf-8")
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


# Texts of two windows

PEOPLE = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta")
PLACES = ("Rome", "Paris", "Lima", "Oslo", "Cairo", "New Delhi")
WINDOWS = Windows(max_seq_length=32, doc_stride=10, max_query_length=8)
WHOLE = dataclasses.replace(WINDOWS, max_seq_length=48)  # one window holds all of a text


class SmallQuestions(NamedTuple):
    """Files in SQuAD's form; those of version 2 ask of people whom the text does not name, too."""

    folder: Path
    train: str
    dev: str
    train_2: str
    dev_2: str
    unlabelled: str
    config: BertConfig
    vocab_file: str


def make_questions(folder: Path) -> SmallQuestions:
    """Writes the files."""
    names = " ".join((*PEOPLE, *PLACES)).lower().split()
    vocab_file = write_vocabulary(folder, *names, "where", "does", "live", "lives", "in")
    paths = [
        write_squad(folder / "train.json", *paragraphs(range(6))),
        write_squad(folder / "dev.json", *paragraphs(range(6, 9))),
        write_squad(folder / "train_2.json", *paragraphs(range(6), version_2=True)),
        write_squad(folder / "dev_2.json", *paragraphs(range(6, 9), version_2=True)),
        write_squad(folder / "new.json", *paragraphs(range(6, 9), labelled=False)),
    ]
    config = fine_tuning_config(len(Path(vocab_file).read_text().splitlines()))
    return SmallQuestions(folder, *paths, config, vocab_file)


def paragraphs(numbers, version_2=False, labelled=True):
    """Six sentences each, and four questions on them; in version 2 a fifth without answer."""
    for number in numbers:
        rng = random.Random(number)
        people = rng.sample(PEOPLE, 6)
        homes = dict(zip(people, rng.sample(PLACES, 6), strict=True))
        context = " ".join(f"{person} lives in {home}." for person, home in homes.items())
        questions = []
        for person in people[:4]:
            answer = homes[person], context.index(homes[person])
            more = {"is_impossible": False} if version_2 else {}
            questions.append(ask(number, person, *([answer] if labelled else []), **more))
        if version_2:
            (absent,) = set(PEOPLE) - set(people)
            questions.append(ask(number, absent, is_impossible=True))
        yield context, questions


def ask(number, person, *answers, **more):
    return qa(f"{number}-{person}", *answers, question=f"Where does {person} live?", **more)


def make_task(small_questions, **changed):
    task = QuestionAnswering(vocab_file=small_questions.vocab_file, windows=WINDOWS)
    return dataclasses.replace(task, **changed)


make_run = functools.partial(fine_tuning_run, make_task)


def by_heart(small_questions, **changed):
    """A run that learns its questions by heart; a window holds the whole text.

    With two windows, scores of the one without the answer may be as high: they are compared, but
    the loss does not compare them.
    """
    run = make_run(small_questions, **changed)
    return dataclasses.replace(
        run,
        config=without_dropout(small_questions.config),
        task=dataclasses.replace(run.task, windows=WHOLE),
        stages=(
            dataclasses.replace(
                STAGE, steps=250, max_seq_length=48, learning_rate=1e-2, warmup_steps=30
            ),
        ),
    )
