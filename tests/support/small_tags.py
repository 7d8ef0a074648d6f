"""Small files of tagged words that a tiny model can learn: people, and where they live."""

import dataclasses
import functools
import json
import random
from pathlib import Path
from typing import NamedTuple

from small_runs import fine_tuning_config, fine_tuning_run

from official_bert.data.tokenization import SPECIAL_TOKENS
from official_bert.model.config import BertConfig
from official_bert.tasks import tag_files
from official_bert.tasks.labels import Classes
from official_bert.tasks.tagging import Tagging, find_classes

PEOPLE = ("Anna", "Ben", "Clara", "David", "Emma", "Felix")
PLACES = ("Rome", "Paris", "Lima", "New Delhi", "Oslo")


class SmallTags(NamedTuple):
    """CoNLL files in IOB2, and a file of words only."""

    folder: Path
    train: str
    dev: str
    unlabelled: str
    config: BertConfig
    vocab_file: str


def sentence(rng):
    """The words and tags of some people and their places: 6 to 60 words."""
    words, tags = [], []
    for _ in range(rng.randint(1, 5)):
        person = [rng.choice(PEOPLE) for _ in range(rng.randint(1, 2))]
        place = rng.choice(PLACES).split()
        for name, type in (person, "PER"), (["lives", "in"], None), (place, "LOC"), (["."], None):
            words += name
            tags += [f"{'I' if n else 'B'}-{type}" if type else "O" for n in range(len(name))]
    return words, tags


def write_conll(path, sentences):
    """Writes sentences with four columns, after the first line of a document."""
    lines = ["-DOCSTART- -X- -X- O", ""]
    for words, tags in sentences:
        lines += [*(f"{word} NN x {tag}" for word, tag in zip(words, tags, strict=True)), ""]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def write_json(path, sentences):
    rows = [{"id": n, "tokens": words, "tags": tags} for n, (words, tags) in enumerate(sentences)]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return str(path)


def make_tags(folder: Path) -> SmallTags:
    """Writes the files."""
    rng = random.Random(0)
    train, dev = ([sentence(rng) for _ in range(count)] for count in (60, 26))
    pieces = " ".join((*PEOPLE, *PLACES)).lower().split()
    pieces.remove("felix")  # a word of two pieces
    vocabulary = [*SPECIAL_TOKENS, *pieces, "fel", "##ix", "lives", "in", "."]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    unlabelled = folder / "new.txt"
    unlabelled.write_text("\n\n".join("\n".join(words) for words, _ in dev) + "\n")
    return SmallTags(
        folder,
        write_conll(folder / "train.conll", train),
        write_conll(folder / "dev.conll", dev),
        str(unlabelled),
        fine_tuning_config(len(vocabulary)),
        str(folder / "vocab.txt"),
    )


def make_task(small_tags, **changed):
    classes: Classes = find_classes(tag_files.read_tagged(small_tags.train)[0])
    return dataclasses.replace(
        Tagging(classes=classes, vocab_file=small_tags.vocab_file), **changed
    )


make_run = functools.partial(fine_tuning_run, make_task)
