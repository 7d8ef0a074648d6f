"""The messages of a build while it runs, and at its end."""

import time
from collections.abc import Callable

from official_bert.data import corpus, coverage


def describe(summary: dict, max_seq_length: int) -> str:
    """The closing summary in words."""
    sequences, tokens = summary["sequences"], summary["tokens"]
    seconds = summary["seconds"] or float("nan")
    unknown = summary["unknown_tokens"] / max(summary["text_tokens"], 1)
    return (
        f"{summary['documents']:,} documents ({summary['duplicate_documents']:,} duplicates), "
        f"{summary['sentences']:,} sentences, {summary['text_bytes'] / 1e6:,.1f} MB of text\n"
        f"{sequences:,} sequences of {max_seq_length}, {tokens:,} tokens, "
        f"{1 - tokens / (sequences * max_seq_length):.1%} padding, "
        f"{unknown:.2%} of the text's tokens unknown\n"
        f"{coverage.describe(summary)}\n"
        f"{seconds:,.1f} s, {summary['text_bytes'] / 1e6 / seconds:.2f} MB/s, "
        f"{sequences / seconds:,.0f} sequences/s"
    )


SECONDS_BETWEEN_LINES = 5.0


class Progress:
    """Lines with the rate and the time left, every few seconds.

    Args:
        source: The text that is read.
        report: Takes each line; None: no lines.
    """

    def __init__(self, source: corpus.Corpus, report: Callable[[str], object] | None):
        self._source, self._report = source, report
        self._started = self._last = time.monotonic()
        self._bytes = self._sequences = 0

    def __call__(self, text_bytes: int, sequences: int) -> None:
        self._bytes += text_bytes
        self._sequences += sequences
        now = time.monotonic()
        if self._report is None or now - self._last < SECONDS_BETWEEN_LINES:
            return
        self._last = now
        seconds = now - self._started
        # Text that the workers still process does not count as done.
        done = self._source.share_read * self._bytes / max(self._source.text_bytes, 1)
        left = round(max(0.0, seconds * (1 - done) / max(done, 1e-9)))
        self._report(
            f"{done:5.1%}  {self._sequences:,} sequences  {self._bytes / 1e6 / seconds:.2f} MB/s  "
            f"{left // 60} min {left % 60:02d} s left"
        )
