"""Writes a vocabulary as Hugging Face's files: `vocab.txt` and two files of settings.

`tokenizer_config.json` is written with every format, because nothing else distinguishes a cased
vocabulary without upper-case letters from an uncased one.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import processors

from official_bert.data import tokenization, tokenizer_settings
from official_bert.data.tokenization import Casing
from official_bert.system.places import Place
from official_bert.system.whole_files import write_text

if TYPE_CHECKING:
    from official_bert.checkpoints.sources import Source

VOCABULARY = "vocab.txt"


def write(folder: Path, source: "Source") -> None:
    """Writes `vocab.txt`, `tokenizer.json` and `tokenizer_config.json`."""
    write_of(folder, source)
    tokenizer = tokenization.load(str(folder / VOCABULARY), source.do_lower_case or False)
    ids = tokenizer.get_vocab()
    tokenizer.add_special_tokens(list(tokenization.SPECIAL_TOKENS))
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def write_of(folder: Path, source: "Source") -> None:
    """Writes `vocab.txt` and `tokenizer_config.json` of a source, which has a vocabulary."""
    assert source.do_lower_case is not None
    assert source.max_length
    vocabulary = tokenization.read_vocabulary(str(source.vocab_file))
    write_settings(folder, vocabulary, source.do_lower_case, source.max_length)


def keep(folder: Place, vocabulary: Iterable[str], casing: Casing, max_length: int) -> None:
    """As `write_settings`, into the folder of a run, whose model is of no use without them.

    Raises:
        ValueError: another vocabulary is there.
    """
    copy, vocabulary = folder / VOCABULARY, list(vocabulary)
    if not copy.exists():
        write_settings(folder, vocabulary, casing, max_length)
    elif [*tokenization.read_vocabulary(str(copy))] != vocabulary:
        raise ValueError(
            f"{copy} is another vocabulary than the run's, and would be overwritten. Choose "
            "another folder for the run."
        )


def write_settings(
    folder: Place, vocabulary: Iterable[str], casing: Casing, max_length: int
) -> None:
    """Writes `vocab.txt` and `tokenizer_config.json`.

    Args:
        folder: Where to.
        vocabulary: The word pieces, by id.
        casing: Whether text is lower-cased for it.
        max_length: Maximum length of a sequence in tokens.
    """
    write_text(folder / VOCABULARY, "".join(f"{token}\n" for token in vocabulary))
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": bool(casing),
        "strip_accents": False if casing == "keep_accents" else None,
        "tokenize_chinese_chars": True,
        "model_max_length": max_length,
        **{f"{token[1:-1].lower()}_token": token for token in tokenization.SPECIAL_TOKENS},
    }
    write_text(folder / tokenizer_settings.CONFIG, json.dumps(settings, indent=2) + "\n")
