"""The manifest: a JSON file beside the shards that describes them, written last."""

import base64
import json
import re

import numpy as np

from official_bert.system.whole_files import write_whole

FORMAT = "pre-training records 1"
ENDING = ".manifest.json"
BUILDING = ".building"
# The entries that readers use.
_CONTENTS = {"masking", "settings", "vocabulary", "records_per_block", "shards"}
_ENTRY = {"file", "records", "bytes", "block_offsets"}


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
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise ValueError(f"{path}: not a manifest that this version reads ({FORMAT!r}).")
    entries = made.get("shards")
    whole = isinstance(entries, list) and all(
        isinstance(entry, dict) and entry.keys() >= _ENTRY for entry in entries
    )
    if not whole or not made.keys() >= _CONTENTS:
        raise ValueError(f"{path}: damaged; make the records again, or remove the manifest.")
    return made


def pack_flags(flags: np.ndarray) -> str:
    """Booleans (one per vocabulary entry) as a short string."""
    return base64.b64encode(np.packbits(flags).tobytes()).decode()


def unpack_flags(packed: str, count: int) -> np.ndarray:
    """The inverse of `pack_flags`."""
    return np.unpackbits(np.frombuffer(base64.b64decode(packed), np.uint8), count=count).astype(
        bool
    )
