"""Blanks in held-out sentences, chosen independently of any model.

`choose` takes documents spread evenly over a text, draws a sentence from each (from a capital to a
full stop, 8 to 24 words), and from it a word to hide that is a single word piece. The seed is
fixed, so a text always has the same blanks. The model predicts whole words: the most probable ones,
with their probabilities among all word pieces.
"""

import os
import random
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from official_bert.data import tokenization

if TYPE_CHECKING:
    from official_bert.prediction.predictors import Guess

SEED = 12345
MIN_WORDS, MAX_WORDS = 8, 24  # of a sentence

_SENTENCE = re.compile(r"[A-Z].*[.!?]")

_WORD = re.compile(r"(?<!\S)[\"'(]*([A-Za-z]+)[\"'),.;:!?]*(?!\S)")  # letters only


class Blank(NamedTuple):
    """A sentence with one word replaced by [MASK], and that word."""

    sentence: str
    word: str


def choose(text_file: str | os.PathLike, vocab_file: str, count: int = 20) -> list[Blank]:
    """`count` blanks in the order of the text, or fewer if it lacks suitable sentences.

    Args:
        text_file: One sentence per line, blank lines between documents.
        vocab_file: An uncased vocabulary.
        count: Number of blanks.

    Raises:
        ValueError: if no sentence of the text is suitable.
    """
    vocabulary = tokenization.read_vocabulary(vocab_file)
    with open(text_file, encoding="utf-8") as file:
        documents = [document.split("\n") for document in file.read().strip().split("\n\n")]
    found = [[s for s in document if _words(s, vocabulary)] for document in documents]
    found = [sentences for sentences in found if sentences]
    if not found:
        raise ValueError(
            f"{text_file} must have sentences of {MIN_WORDS} to {MAX_WORDS} words to make blanks "
            "in; got none. Hold out more text."
        )
    draws = random.Random(SEED)
    blanks = []
    for number in range(count):
        sentences = found[number * len(found) // count]
        if sentences:  # a document that is used again may have no more
            sentence = sentences.pop(int(draws.random() * len(sentences)))
            words = _words(sentence, vocabulary)
            start, stop = words[int(draws.random() * len(words))]
            hidden = f"{sentence[:start]}[MASK]{sentence[stop:]}"
            blanks.append(Blank(hidden, sentence[start:stop].lower()))
    return blanks


def _words(sentence, vocabulary):
    """Spans of words that can be hidden; none without a sentence of suitable length."""
    length = len(sentence.split())
    if not MIN_WORDS <= length <= MAX_WORDS or not _SENTENCE.fullmatch(sentence):
        return []
    found = _WORD.finditer(sentence)
    return [match.span(1) for match in found if match[1].lower() in vocabulary]


def hits(blanks: Sequence[Blank], answers: "Sequence[Sequence[Guess]]") -> int:
    """The number of blanks with the right word among their `fill_blanks.Guess`es."""
    return sum(
        blank.word in [guess.token for guess in guesses]
        for blank, guesses in zip(blanks, answers, strict=True)
    )


def table(
    blanks: Sequence[Blank], before: "Sequence[Sequence[Guess]]", after: "Sequence[Sequence[Guess]]"
) -> str:
    """The blanks as a Markdown table: sentence, right word, guesses after and before training."""
    rows = ["| held-out sentence | right word | after training | before |", "|---|---|---|---|"]
    for blank, *answers in zip(blanks, after, before, strict=True):
        cells = [blank.sentence, blank.word, *(_listed(blank, guesses) for guesses in answers)]
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows) + "\n"


def describe(
    blanks: Sequence[Blank], before: "Sequence[Sequence[Guess]]", after: "Sequence[Sequence[Guess]]"
) -> str:
    """The same table as plain text."""
    lines = []
    for blank, *answers in zip(blanks, after, before, strict=True):
        now, then = (_listed(blank, guesses).replace("**", "") for guesses in answers)
        mark = "✓" if hits([blank], answers[:1]) else " "
        lines += [f"  {blank.sentence}", f"    {mark} {blank.word}: {now}   (before: {then})"]
    return "\n".join(lines)


def _listed(blank, guesses):
    return ", ".join(
        f"**{guess.token}** {guess.probability:.0%}"
        if guess.token == blank.word
        else f"{guess.token} {guess.probability:.0%}"
        for guess in guesses
    )
