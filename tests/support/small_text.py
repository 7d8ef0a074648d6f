"""A small real text for tests: topics of the language reference that comes with Python."""

import pydoc_data.topics
from pathlib import Path
from typing import NamedTuple

import pytest

from official_bert.data import tokenization

SHARED = Path(__file__).parents[3] / "shared/data"
UNCASED = SHARED / "vocab/bert-base-uncased-vocab.txt"
needs_shared = pytest.mark.skipif(not UNCASED.exists(), reason="needs ../shared/data")


class SmallText(NamedTuple):
    """Paths of a text (a paragraph a line, blank lines between documents) and its vocabulary."""

    path: str
    vocab_file: str


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
