"""A vocabulary in Hugging Face's files: `vocab.txt` and two files of settings.

`tokenizer_config.json` is written with every format, because nothing else distinguishes a cased
vocabulary without upper-case letters from an uncased one.
"""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import processors

from official_bert.data import tokenization

if TYPE_CHECKING:
    from official_bert.conversion.sources import Source

SETTINGS = "tokenizer_config.json"
_CLASSES = ("BertTokenizer", "BertTokenizerFast")


def do_lower_case(folder: Path) -> bool | None:
    """The value in the settings of a folder; None if there is none.

    Raises:
        ValueError: they are damaged, or need a tokenizer that is not supported here.
    """
    file = folder / SETTINGS
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
        lower = settings.get("do_lower_case")
        expected = {
            "do_lower_case": (lower,) if isinstance(lower, bool) else (None, True, False),
            "tokenizer_class": (None, *_CLASSES),
            "strip_accents": (None, lower),
            "tokenize_chinese_chars": (None, True),
        }
        others = [f"{n}={settings[n]!r}" for n in expected if settings.get(n) not in expected[n]]
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError, AttributeError) as error:
        raise ValueError(f"{file} is not a JSON object of settings: {error}.") from None
    if others:
        raise ValueError(
            f"{file} has {', '.join(others)}, which BERT's tokenizer does not support. Give "
            "--do_lower_case to ignore these settings."
        )
    return lower


def write(folder: Path, source: "Source") -> None:
    """Writes `vocab.txt`, `tokenizer.json` and `tokenizer_config.json`."""
    write_settings(folder, source)
    tokenizer = tokenization.load(str(source.vocab_file), bool(source.do_lower_case))
    ids = tokenizer.get_vocab()
    tokenizer.add_special_tokens(list(tokenization.SPECIAL_TOKENS))
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def write_settings(folder: Path, source: "Source") -> None:
    """Writes `vocab.txt` and `tokenizer_config.json`."""
    assert source.vocab_file  # who has none writes no tokenizer
    shutil.copyfile(source.vocab_file, folder / "vocab.txt")
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": source.do_lower_case,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "model_max_length": source.config.max_position_embeddings,
        **{f"{token[1:-1].lower()}_token": token for token in tokenization.SPECIAL_TOKENS},
    }
    text = json.dumps(settings, indent=2) + "\n"
    (folder / SETTINGS).write_text(text, encoding="utf-8")
