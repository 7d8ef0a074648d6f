r"""Learns a WordPiece vocabulary from text.

    lamb-bert learn-vocabulary --input_file='wiki/*.txt.gz' \
        --vocab_file=vocab.txt --vocab_size=30522
"""

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from official_bert.commands import commands
from official_bert.commands.training_settings import Text
from official_bert.data import corpus, coverage, format_detection, tokenization
from official_bert.system import local_paths, messages
from official_bert.system.settings import documented, setting


@documented
@dataclass(frozen=True, kw_only=True)
class LearnVocabulary(Text):
    """The settings of the command."""

    vocab_file: str = setting("Output file, such as vocab.txt.")
    vocab_size: int = setting("Vocabulary size in word pieces, special tokens included.", 30522)
    do_lower_case: bool = setting("Learn an uncased vocabulary.", True)
    strip_accents: bool | None = setting(
        "Strip accents. False: keep those of German, Japanese, Hindi or Vietnamese; then give "
        "--strip_accents=False to create_pretraining_data too. Default: as --do_lower_case.",
        None,
    )
    min_frequency: int = setting("Minimum number of occurrences of a word piece.", 2, minimum=1)
    # Also, at most MAX_LETTERS in words of over 40 letters: sentences without spaces.
    max_text_mb: float = setting(
        "Maximum amount of text to read, from the start, in millions of characters.",
        1000.0,
        above=0,
        finite=False,
    )


def learn_vocabulary(
    input_file: str | list[str],
    vocab_file: str,
    *,
    report: Callable[[str], object] | None = None,
    **settings: Any,
) -> int:
    """Learns a vocabulary from files of text, writes it to `vocab_file` and returns its size.

    Args:
        input_file: Files, globs or folders; a list, or one string with commas.
        vocab_file: The file to write.
        report: A function that takes lines about the result; None for silence.
        settings: Further settings of `LearnVocabulary`.

    Raises:
        ValueError: the input has no text or cannot be read, `vocab_file` is one of its files, or
            `vocab_size` is too small.
    """
    args = LearnVocabulary(input_file=input_file, vocab_file=vocab_file, **settings)
    local_paths.require_local(vocab_file=vocab_file)
    local_paths.require_file_name(vocab_file=vocab_file)
    paths = corpus.find_files(input_file)
    local_paths.require_apart({"vocab_file": [vocab_file]}, {"input_file": paths})
    corpus.require_outside({"vocab_file": [vocab_file]}, {"input_file": input_file})
    unread = format_detection.check(
        paths, args.input_format, args.field(), skip_bad_lines=args.skip_bad_lines
    )
    for reason in unread.values():
        messages.warn(reason)
    coverage.make_folder("vocab_file", vocab_file)
    source = corpus.Corpus(
        paths, args.input_format, args.field() or "text", skip_bad_lines=args.skip_bad_lines
    )
    text = _Text(source, args.max_text_mb * 1e6)
    casing = tokenization.with_accents(args.do_lower_case, args.strip_accents)
    how = args.vocab_size, casing, args.min_frequency
    size = tokenization.learn(text, vocab_file, *how, report)
    if report:
        for warning in source.warnings():
            report(f"warning: {warning}")
    return size


MAX_LETTERS = 15_000_000  # 65 bytes of memory each, but for ideographs, which are words
_LONG_WORD = re.compile(r"[^\s\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]{41,}")


@dataclass
class _Text:
    """The lines of the corpus up to a limit."""

    source: corpus.Corpus
    limit: float

    def __iter__(self) -> Iterator[str]:
        size = letters = 0
        for document in self.source.documents():
            yield from document.lines
            size += sum(map(len, document.lines))
            letters += sum(len(w) for line in document.lines for w in _LONG_WORD.findall(line))
            if size > self.limit or letters > MAX_LETTERS:
                return


def main(args: LearnVocabulary) -> None:
    settings = {name: getattr(args, name) for name in args.given}
    learn_vocabulary(**settings, report=lambda text: print(text, file=sys.stderr))


if __name__ == "__main__":
    commands.run(main, LearnVocabulary)
