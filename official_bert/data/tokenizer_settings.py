"""Reads Hugging Face's tokenizer files, as data: `tokenizer.json` and `tokenizer_config.json`.

The first holds vocabulary and settings, the second more settings, next to it or to a `vocab.txt`.
"""

import dataclasses
import json
from typing import Any

from official_bert.system.places import AnyPath, Place, as_path

CONFIG = "tokenizer_config.json"
_MAX_LENGTH = 10**9  # libraries write 10^30 where nothing limits the length
# The parts of a tokenizer.json that equal Google's tokenizer, or that this package has written.
_NORMALIZERS = ("BertNormalizer", "Sequence", "Replace", "Lowercase", "NFD", "StripAccents")
_PRE_TOKENIZERS = ("BertPreTokenizer", "Sequence", "Split")
_ALWAYS = ("clean_text", "handle_chinese_chars")
_MODEL = {"continuing_subword_prefix": "##", "unk_token": "[UNK]"}
_CLASSES = ("BertTokenizer", "BertTokenizerFast")
_CLASSES_OF_ANY = ("PreTrainedTokenizerFast", "TokenizersBackend")  # of any tokenizer.json
_SPECIAL = ("pad", "unk", "cls", "sep", "mask")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a tokenizer; None where a folder does not contain them.

    Attributes:
        lower_case: Whether text is lower-cased.
        strip_accents: Whether accents are stripped; by default as `lower_case`.
        max_length: Maximum length of a sequence in tokens.
        unsupported: Unsupported settings, as `name=value`.
        path: Their file.
    """

    lower_case: bool | None = None
    strip_accents: bool | None = None
    max_length: int | None = None
    unsupported: tuple[str, ...] = ()
    path: str = ""


def is_json(vocab_file: AnyPath) -> bool:
    """Whether a vocabulary's file is a `tokenizer.json` rather than a `vocab.txt`."""
    return as_path(vocab_file).suffix == ".json"


def vocabulary(vocab_file: AnyPath) -> dict[str, int]:
    """Token → id of a `tokenizer.json`, by id: the model's word pieces and the added tokens.

    Raises:
        ValueError: it is damaged, or not of a WordPiece model.
        OSError: it cannot be read.
    """
    tokenizer = _tokenizer(as_path(vocab_file))
    try:
        found = dict(tokenizer["model"]["vocab"])
        found |= {added["content"]: added["id"] for added in tokenizer.get("added_tokens") or ()}
        ordered = sorted(found, key=found.__getitem__)
        if [found[token] for token in ordered] != [*range(len(ordered))]:
            raise ValueError(f"its ids must be 0 to {len(ordered) - 1}, each once")
        stripped = {token.strip(): number for number, token in enumerate(ordered)}
        if len(stripped) < len(ordered) or any("\n" in token for token in stripped):
            raise ValueError("its word pieces must be different and without line breaks")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{vocab_file} must contain a vocabulary: {error}. Give the original file."
        ) from None
    return stripped  # as the lines of a vocab.txt are


def read(vocab_file: AnyPath) -> Settings:
    """The settings in a vocabulary's file and next to it.

    Raises:
        ValueError: a file is damaged, or not of a WordPiece model.
        OSError: a file cannot be read.
    """
    file = as_path(vocab_file)
    own = _own(_tokenizer(file), str(file)) if is_json(file) else Settings()
    config = file.parent / CONFIG
    if not config.exists():
        return own
    found = _of_config(_object(config), str(config), is_json(file))
    differing = [
        f"{name}={getattr(found, name)} ({file.name} has {getattr(own, name)})"
        for name in ("lower_case", "strip_accents")
        if None not in (getattr(own, name), getattr(found, name))
        and getattr(own, name) != getattr(found, name)
    ]
    return Settings(
        lower_case=own.lower_case if found.lower_case is None else found.lower_case,
        strip_accents=own.strip_accents if found.strip_accents is None else found.strip_accents,
        max_length=found.max_length,
        unsupported=(*own.unsupported, *found.unsupported, *differing),
        path=found.path,
    )


def max_length(vocab_file: AnyPath) -> int | None:
    """The `max_length` of its settings; None without, or if they cannot be read."""
    try:
        return read(vocab_file).max_length
    except (OSError, ValueError):
        return None


def _own(tokenizer: dict, path: str) -> Settings:
    """The settings in a `tokenizer.json`."""
    steps = {str(step.get("type")): step for step in _steps(tokenizer, "normalizer", "normalizers")}
    cuts = {str(step.get("type")) for step in _steps(tokenizer, "pre_tokenizer", "pretokenizers")}
    bert = steps.get("BertNormalizer")
    if bert:
        lower, strip = bert.get("lowercase"), bert.get("strip_accents")
        unsupported = [f"{n}=False" for n in _ALWAYS if bert.get(n, True) is not True]
    else:
        lower, strip = "Lowercase" in steps, not steps.keys().isdisjoint(("NFD", "StripAccents"))
        unsupported = []
    unsupported += [f"normalizer={kind!r}" for kind in steps if kind not in _NORMALIZERS]
    unsupported += [f"pre_tokenizer={kind!r}" for kind in cuts if kind not in _PRE_TOKENIZERS]
    for name, only in _MODEL.items():
        if tokenizer["model"].get(name, only) != only:
            unsupported.append(f"{name}={tokenizer['model'][name]!r}")
    return _settings(lower, strip, None, unsupported, path)


def _of_config(config: dict, path: str, of_json: bool) -> Settings:
    """The settings in a `tokenizer_config.json`."""
    expected = {
        "tokenizer_class": (None, *_CLASSES, *(_CLASSES_OF_ANY if of_json else ())),
        "tokenize_chinese_chars": (None, True),
    }
    unsupported = [f"{n}={config[n]!r}" for n in expected if config.get(n) not in expected[n]]
    for name in _SPECIAL:
        token = config.get(f"{name}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if token not in (None, f"[{name.upper()}]"):
            unsupported.append(f"{name}_token={token!r}")
    lower, strip = config.get("do_lower_case"), config.get("strip_accents")
    return _settings(lower, strip, config.get("model_max_length"), unsupported, path)


def _settings(lower, strip, length, unsupported, path):
    values = {"do_lower_case": lower, "strip_accents": strip}
    unsupported = [
        *unsupported,
        *(f"{n}={v!r}" for n, v in values.items() if v not in (None, True, False)),
    ]
    if strip is True and lower is False:
        unsupported.append("strip_accents=True without lower-casing")
    whole = type(length) is int and 0 < length < _MAX_LENGTH
    return Settings(
        lower_case=lower if isinstance(lower, bool) else None,
        strip_accents=next((value for value in (strip, lower) if isinstance(value, bool)), None),
        max_length=length if whole else None,
        unsupported=tuple(unsupported),
        path=path,
    )


def _steps(tokenizer, name, inside) -> list[dict]:
    """A step of a tokenizer and, if it is a sequence, its members."""
    step = tokenizer.get(name)
    if not isinstance(step, dict):
        return [] if step is None else [{"type": str(step)}]
    steps = [step]
    if step.get("type") == "Sequence" and isinstance(step.get(inside), list):
        steps += [each for each in step[inside] if isinstance(each, dict)]
    return steps


def _tokenizer(file: Place) -> dict[str, Any]:
    found = _object(file)
    model = found.get("model")
    if not isinstance(model, dict):
        raise ValueError(
            f"{file} must be a tokenizer.json with a model; got none. Give the original file."
        )
    # Old files do not name it; only WordPiece has a prefix and no merges.
    kind = model.get("type", "WordPiece" if "continuing_subword_prefix" in model else None)
    if kind != "WordPiece":
        raise ValueError(
            f"{file} must contain a WordPiece model, as a BERT has; got {kind!r}. Give the "
            "tokenizer of a BERT."
        )
    return found


def _object(file: Place) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise TypeError(f"got a {type(found).__name__}")
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{file} must be a JSON object of settings: {error}. Fetch or make it again."
        ) from None
    return found
