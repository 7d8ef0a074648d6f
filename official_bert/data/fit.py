"""Counts that show text which would ruin a training, in bounded memory.

`SampledLines` shows whether a vocabulary fits a text: its capital letters and its accents.
`RepeatedLines` finds lines that stand in many documents, such as a website's notices.
"""

import unicodedata
from collections.abc import Iterable

from tokenizers import Tokenizer

from official_bert.data import tokenization

LINES, CHARACTERS = 500, 1000  # of a block of 2 MB: the most lines, and the most of each
KEPT, BEGINNING = 20_000, 100  # lines remembered, and characters of each
MANY = 1_000  # documents with the same line


def sampled_lines(
    lines: list[str], tokenizer: Tokenizer, do_lower_case: tokenization.Casing
) -> dict[str, int]:
    """Counts of some lines at equal distances.

    Returns:
        `sampled_lines`, `cased_lines` (with letters that have a case), `capital_lines` (with a
        capital), and `decomposed_lines`, which have fewer unknown or fewer word pieces in NFC.
    """
    some = [line[:CHARACTERS] for line in lines[:: len(lines) // LINES + 1]]
    cased = [line for line in some if line.lower() != line.upper()]
    decomposed = 0
    if do_lower_case is not True:  # which decomposes all text
        unknown = tokenizer.get_vocab()[tokenization.UNK]
        for line in some:
            if not unicodedata.is_normalized("NFC", line):
                pair = [line, unicodedata.normalize("NFC", line)]
                found = tokenizer.encode_batch_fast(pair, add_special_tokens=False)
                cost, composed = ((e.ids.count(unknown), len(e.ids)) for e in found)
                decomposed += composed < cost
    return {
        "sampled_lines": len(some),
        "cased_lines": len(cased),
        "capital_lines": sum(line.lower() != line for line in cased),
        "decomposed_lines": decomposed,
    }


class RepeatedLines:
    """Counts the documents of each line, but for rare lines, by lossy counting.

    Of N lines, a count is too small by at most N / `KEPT` (Manku and Motwani, "Approximate
    frequency counts over data streams", VLDB 2002). Lines are compared by their beginning.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._read = self._round = 0

    def add(self, lines: Iterable[str]) -> None:
        """Counts the lines of one document, each once."""
        counts = self._counts
        for line in {line[:BEGINNING]: None for line in lines}:
            counts[line] = counts.get(line, self._round) + 1
            self._read += 1
        if self._read >= (self._round + 1) * KEPT:
            self._round = self._read // KEPT
            self._counts = {line: n for line, n in counts.items() if n > self._round}

    def summary(self) -> dict:
        """The most frequent line, its documents, and the bytes of all lines in `MANY` documents."""
        many = {line: n for line, n in self._counts.items() if n >= MANY + self._round}
        most = max(many, key=many.__getitem__, default="")
        return {
            "repeated_line": most,
            "repeated_line_documents": many.get(most, 0),
            "repeated_line_bytes": sum(n * len(line.encode()) for line, n in many.items()),
        }
