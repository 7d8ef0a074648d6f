"""Labelled sentences for tests: lines of the project's licence, some begun with a word.

Unlike the documentation of the Python that runs the tests, this text is the same everywhere.
"""

import dataclasses
import functools
from pathlib import Path
from typing import NamedTuple

from small_runs import fine_tuning_run
from small_text import SmallCorpus

from official_bert.model.config import BertConfig
from official_bert.tasks.classification import Classification
from official_bert.tasks.labels import Classes, LabelSets, Numbers
from official_bert.tasks.tables import Columns

LICENCE = Path(__file__).parents[2] / "LICENSE"


class SmallSentences(NamedTuple):
    """Tables of `sentence` and `label` ("plain" or "begun"); a number, a pair, a set of labels."""

    folder: Path
    train: str
    dev: str
    unlabelled: str
    config: BertConfig
    vocab_file: str


def make(folder: Path, corpus: SmallCorpus) -> SmallSentences:
    """Writes the tables into `folder`; vocabulary and model are those of `corpus`."""
    lines = [" ".join(line.split()) for line in LICENCE.read_text().splitlines()]
    lines = [line for line in lines if 8 < len(line.split()) < 20][:76]
    rows = [(f"{'return return ' * (i % 2)}{line}", i % 2) for i, line in enumerate(lines)]
    write_table(folder / "train.tsv", rows[:50])
    write_table(folder / "dev.tsv", rows[50:])
    texts = [sentence for sentence, _ in rows[50:]]
    (folder / "new.tsv").write_text("\n".join(("sentence", *texts)) + "\n")
    config = dataclasses.replace(corpus.config, initializer_range=0.1)
    paths = [str(folder / f"{name}.tsv") for name in ("train", "dev", "new")]
    return SmallSentences(folder, *paths, config, corpus.vocab_file)


def write_table(path, rows):
    names = ("plain", "begun")
    lines = [
        f"{text}\t{text[::-1]}\t{names[label]}\t{2.5 * label}\t{'|'.join(labels_of(text))}"
        for text, label in rows
    ]
    path.write_text("\n".join(("sentence\tother\tlabel\tscore\tlabels", *lines)) + "\n")


def labels_of(text):
    """Two labels of a begun sentence, one of a plain one; some have none."""
    if len(text) % 9 == 0:
        return []
    return ["begun", "verb"] if text.startswith("return ") else ["noun"]


def make_task(small_sentences, **changed):
    task = Classification(
        labels=Classes(("plain", "begun")),
        columns=Columns("sentence"),
        vocab_file=small_sentences.vocab_file,
    )
    return dataclasses.replace(task, **changed)


def number_task(small_sentences):
    columns = Columns("sentence", label="score")
    return make_task(small_sentences, labels=Numbers(0.0, 5.0), columns=columns)


def label_task(small_sentences):
    columns = Columns("sentence", label="labels")
    return make_task(small_sentences, labels=LabelSets(("begun", "noun", "verb")), columns=columns)


make_run = functools.partial(fine_tuning_run, make_task)
