r"""Learns a WordPiece vocabulary from text.

    lamb-bert learn-vocabulary --input_file='wiki/*.txt.gz' \
        --vocab_file=vocab.txt --vocab_size=30522
"""

import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from absl import flags

from official_bert.commands import commands
from official_bert.data import corpus, format_detection, tokenization
from official_bert.system import local_paths, messages


def learn_vocabulary(
    input_file: str | list[str],
    vocab_file: str,
    *,
    vocab_size: int = 30522,
    do_lower_case: bool = True,
    min_frequency: int = 2,
    max_text_mb: float = 1000.0,
    input_format: str = "auto",
    json_field: str | None = None,
    skip_bad_lines: bool = False,
    report: Callable[[str], object] | None = None,
) -> int:
    """Learns a vocabulary from files of text, writes it to `vocab_file` and returns its size.

    Args:
        input_file: Files, globs or folders, as for `create_pretraining_data`.
        vocab_size: The size aimed at, special tokens included.
        min_frequency: Minimum number of occurrences of a word piece.
        max_text_mb: Maximum amount of text to read, from the start, in millions of characters; more
            changes the vocabulary little. Words of more than 40 letters are the sentences of a
            script without spaces. Of these, 15 million letters are read, because each is held in
            memory.
        skip_bad_lines: Leave out lines that are not UTF-8 or not JSON objects with text.
        report: A function that takes lines about the result; None for silence.

    Raises:
        ValueError: the input holds no text or cannot be read, `vocab_file` is one of its files, or
            `vocab_size` is too small.
    """
    if min_frequency < 1:
        raise ValueError(f"min_frequency must be at least 1; got {min_frequency}.")
    if not max_text_mb > 0:
        raise ValueError(f"max_text_mb must be above 0; got {max_text_mb:g}.")
    local_paths.require_local(vocab_file=vocab_file)
    local_paths.require_file_name(vocab_file=vocab_file)
    paths = corpus.find_files(input_file)
    local_paths.require_apart({"vocab_file": [vocab_file]}, {"input_file": paths})
    corpus.require_outside({"vocab_file": [vocab_file]}, {"input_file": input_file})
    folder = os.path.dirname(os.path.abspath(vocab_file))
    if not os.access(folder, os.W_OK):
        raise ValueError(
            f"vocab_file must be in a folder that can be written to; got {folder}. Check its "
            "permissions, or write elsewhere."
        )
    for reason in format_detection.check(paths, input_format, json_field).values():
        messages.warn(reason)
    text = _Text(paths, input_format, json_field or "text", max_text_mb * 1e6, skip_bad_lines)
    size = tokenization.learn(text, vocab_file, vocab_size, do_lower_case, min_frequency, report)
    if report:
        for warning in text.bad_lines.warnings():
            report(f"warning: {warning}")
    return size


# Some 65 bytes of memory per letter. Ideographs are words of their own.
MAX_LETTERS = 15_000_000
_LONG_WORD = re.compile(r"[^\s\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]{41,}")


@dataclass
class _Text:
    """The lines of the corpus up to a limit; can be gone through again."""

    paths: list[str]
    form: str
    json_field: str
    limit: float
    skip_bad_lines: bool = False

    def __iter__(self) -> Iterator[str]:
        size = letters = 0
        self.bad_lines = corpus.BadLines(self.skip_bad_lines)
        reading = self.paths, self.form, self.json_field
        for document in corpus.documents(*reading, bad_line=self.bad_lines):
            yield from document.lines
            size += sum(map(len, document.lines))
            letters += sum(len(w) for line in document.lines for w in _LONG_WORD.findall(line))
            if size > self.limit or letters > MAX_LETTERS:
                return


def main() -> None:
    names = (
        "vocab_file",
        "vocab_size",
        "do_lower_case",
        "min_frequency",
        "max_text_mb",
        "input_format",
        "json_field",
        "skip_bad_lines",
    )
    learn_vocabulary(
        flags.FLAGS.input_file,
        **{name: flags.FLAGS[name].value for name in names},
        report=lambda text: print(text, file=sys.stderr),
    )


if __name__ == "__main__":
    flags.DEFINE_string(
        "input_file",
        None,
        "Input text: comma-separated files, globs or folders. Files may be compressed. Required.",
    )
    flags.DEFINE_string("vocab_file", None, "Output file, such as vocab.txt. Required.")
    flags.DEFINE_integer(
        "vocab_size", 30522, "Vocabulary size in word pieces, special tokens included."
    )
    flags.DEFINE_bool("do_lower_case", True, "Learn an uncased vocabulary.")
    flags.DEFINE_integer("min_frequency", 2, "Minimum number of occurrences of a word piece.")
    flags.DEFINE_float(
        "max_text_mb",
        1000.0,
        "Maximum amount of text to read, from the start, in millions of characters.",
    )
    flags.DEFINE_enum("input_format", "auto", corpus.FORMS, "Format of the text.")
    flags.DEFINE_string("json_field", None, "Text field of JSON lines. Default: text.")
    flags.DEFINE_bool("skip_bad_lines", False, "Leave out unreadable lines, and count them.")
    flags.mark_flags_as_required(["input_file", "vocab_file"])
    commands.run(main)
