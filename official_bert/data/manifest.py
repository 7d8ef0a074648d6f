"""The manifest: a JSON file beside the shards that describes them, written last."""

import base64
import json
import os
import re

import numpy as np

from official_bert.system.whole_files import write_whole

FORMAT = "pre-training records 1"
ENDING = ".manifest.json"
BUILDING = ".building"
_SPECIAL = ("[CLS]", "[SEP]", "[MASK]")


def stem(shard: str) -> str:
    """The common part of a build's file names: `/d/wiki` for `/d/wiki.tfrecord-00003-of-00010`."""
    return re.sub(r"(\.tfrecords?|\.tf_record)?(\.gz)?(-\d{5}-of-\d{5})?$", "", shard)


def path_for(shards: list[str]) -> str:
    """The path of the manifest of `shards`; a glob for the shards does not match it."""
    return stem(shards[0]) + ENDING


def building_folder(shards: list[str]) -> str:
    """The folder of the unfinished build, until the manifest of `shards` is written."""
    return stem(shards[0]) + BUILDING


def write(shards: list[str], contents: dict) -> None:
    """Writes the manifest of `shards` under a temporary name and renames it."""
    write_whole(path_for(shards), [json.dumps(contents, indent=1).encode()])


def parse(path: str, text: bytes) -> dict:
    """The contents of a manifest.

    Raises:
        ValueError: the file is not a manifest, is damaged, or has a later version.
    """
    try:
        made = json.loads(text)
        known = made["format"] == FORMAT
    except (ValueError, KeyError, TypeError, RecursionError):
        known = False
    if not known:
        raise ValueError(
            f"{path} must be a manifest of the format {FORMAT!r}; got another file. Make the "
            "records again, or update lamb_tf if a later version made them."
        )
    try:
        whole = _is_whole(made)
    except (KeyError, TypeError, AttributeError, ValueError):  # an entry is of another type
        whole = False
    if not whole:
        raise ValueError(f"{path} is damaged. Make the records again, or remove the manifest.")
    return made


def tokens(made: dict) -> list[str] | None:
    """The vocabulary that records were made with; None of a manifest of earlier versions."""
    return made["tokens"].split("\n") if isinstance(made.get("tokens"), str) else None


def _is_whole(made):
    """Whether every entry that readers use is there and can be what a build has written."""
    settings, vocabulary, each = made["settings"], made["vocabulary"], made["records_per_block"]
    known = made["masking"] == "static" or (
        made["masking"] == "dynamic" and _can_mask(settings, vocabulary)
    )
    return (
        known
        and type(settings["gzip_compress"]) is bool
        and _is_count(vocabulary["size"], 1)
        and _is_count(each, 1)
        and isinstance(made["shards"], list)
        and all(_is_shard(entry, each) for entry in made["shards"])
    )


def _is_shard(entry, records_per_block):
    offsets, size = entry["block_offsets"], entry["bytes"]
    blocks = -(-entry["records"] // records_per_block)
    return (
        os.path.basename(entry["file"]) == entry["file"] != ""
        and all(map(_is_count, (entry["records"], size, *offsets)))
        and len(offsets) == blocks
        and offsets == sorted(offsets)
        and (not offsets or offsets[-1] <= size)
    )


def _can_mask(settings, vocabulary):
    """Whether the entries of dynamic masking are there, and fit each other."""
    size, special = vocabulary["size"], vocabulary["special_tokens"]
    return (
        _is_count(settings["max_seq_length"], 4)
        and _is_count(settings["max_ngram_size"], 1)
        and type(settings["do_whole_word_mask"]) is bool
        and type(settings["masked_lm_prob"]) in (int, float)
        and 0 < settings["masked_lm_prob"] <= 1
        and all(_is_count(special[name]) and special[name] < size for name in _SPECIAL)
        and len(base64.b64decode(vocabulary["continues_a_word"])) == -(-size // 8)
    )


def _is_count(value, least=0):
    return type(value) is int and least <= value < 2**63


def pack_flags(flags: np.ndarray) -> str:
    """Booleans (one per vocabulary entry) as a short string."""
    return base64.b64encode(np.packbits(flags).tobytes()).decode()


def unpack_flags(packed: str, count: int) -> np.ndarray:
    """The inverse of `pack_flags`."""
    return np.unpackbits(np.frombuffer(base64.b64decode(packed), np.uint8), count=count).astype(
        bool
    )
