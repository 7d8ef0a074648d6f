"""Small real texts for tests: the language reference that comes with Python, and records of it."""

import itertools
import pydoc_data.topics
from pathlib import Path
from typing import NamedTuple

import pytest

from official_bert.create_pretraining_data import create_pretraining_data
from official_bert.data import tokenization
from official_bert.data.instances import Settings
from official_bert.demonstration import stdlib_text
from official_bert.model.config import BertConfig

SHARED = Path(__file__).parents[3] / "shared/data"
UNCASED = SHARED / "vocab/bert-base-uncased-vocab.txt"
needs_shared = pytest.mark.skipif(not UNCASED.exists(), reason="needs ../shared/data")


class SmallText(NamedTuple):
    """Paths of a text (a paragraph a line, blank lines between documents) and its vocabulary."""

    path: str
    vocab_file: str

    def build(self, output: str | Path, settings: Settings | None = None, **options) -> dict:
        """Makes records of it, by one worker if nothing else is said; their summary."""
        options = {"num_workers": 1} | options
        return create_pretraining_data(self.path, str(output), self.vocab_file, settings, **options)


def topics(count: int) -> list[list[str]]:
    """Documents, each a list of paragraphs."""
    texts = [pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)]
    documents = [[" ".join(p.split()) for p in text.split("\n\n") if p.strip()] for text in texts]
    return [document for document in documents if len(document) > 3][:count]


def make(folder: Path) -> SmallText:
    """Writes text and vocabulary into `folder`."""
    documents = topics(40)
    path, vocab_file = folder / "text.txt", folder / "vocab.txt"
    path.write_text("\n\n".join("\n".join(document) for document in documents) + "\n")
    tokenization.learn((p for document in documents for p in document), str(vocab_file), 800)
    return SmallText(str(path), str(vocab_file))


VOCAB_SIZE = 600
PREDICTIONS = {32: 5, 64: 10}


class SmallCorpus(NamedTuple):
    """Where the fixture's files are; `{max_seq_length}` in the globs is 32 or 64."""

    folder: Path
    vocab_file: str
    config: BertConfig
    train: str
    held_out: str


def make_corpus(folder: Path) -> SmallCorpus:
    """Writes text, vocabulary and records into `folder`."""
    documents = [paragraphs for _, paragraphs in itertools.islice(stdlib_text.documents(), 60)]
    texts = {"train": documents[:50], "held_out": documents[50:]}
    for split, part in texts.items():
        lines = ("\n".join(paragraphs) for paragraphs in part)
        (folder / f"{split}.txt").write_text("\n\n".join(lines) + "\n")
    vocab_file = str(folder / "vocab.txt")
    lines = (folder / "train.txt").read_text().splitlines()
    size = tokenization.learn(lines, vocab_file, VOCAB_SIZE)
    for split in texts:
        for length, predictions in PREDICTIONS.items():
            create_pretraining_data(
                str(folder / f"{split}.txt"),
                str(folder / f"{split}_{length}.tfrecord"),
                vocab_file,
                Settings(max_seq_length=length, max_predictions_per_seq=predictions, dupe_factor=1),
                num_shards=2 if split == "train" else 1,
                num_workers=1,
                input_format="paragraphs",
            )
    config = BertConfig(
        vocab_size=size,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    return SmallCorpus(
        folder,
        vocab_file,
        config,
        str(folder / "train_{max_seq_length}.tfrecord-*"),
        str(folder / "held_out_{max_seq_length}.tfrecord"),
    )
