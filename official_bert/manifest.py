"""The manifest: a JSON file beside the shards that says what they are, written last."""

import base64
import json
import re

import numpy as np

from official_bert.whole_files import write_whole

FORMAT = "pre-training records 1"
ENDING = ".manifest.json"


def stem(shard: str) -> str:
    """What the files of a build have in common: `/d/wiki` for `/d/wiki.tfrecord-00003-of-00010`."""
    return re.sub(r"(\.tfrecords?|\.tf_record)?(\.gz)?(-\d{5}-of-\d{5})?$", "", shard)


def path_for(shards: list[str]) -> str:
    """Where the manifest of `shards` lies; a glob like `…tfrecord*` for the shards misses it."""
    return stem(shards[0]) + ENDING


def write(shards: list[str], contents: dict) -> None:
    """Writes the manifest of `shards` under a temporary name and renames it."""
    write_whole(path_for(shards), [json.dumps(contents, indent=1).encode()])


def parse(path: str, text: bytes) -> dict:
    """The contents of a manifest.

    Raises:
        ValueError: the file is something else, or of a later version.
    """
    try:
        made = json.loads(text)
        if made["format"] == FORMAT:
            return made
    except (json.JSONDecodeError, KeyError, TypeError):
        pass
    raise ValueError(f"{path}: not a manifest that this version reads ({FORMAT!r}).")


def pack_flags(flags: np.ndarray) -> str:
    """Booleans (one a vocabulary entry) as a short string."""
    return base64.b64encode(np.packbits(flags).tobytes()).decode()


def unpack_flags(packed: str, count: int) -> np.ndarray:
    """The inverse of `pack_flags`."""
    return np.unpackbits(np.frombuffer(base64.b64decode(packed), np.uint8), count=count).astype(
        bool
    )
