"""The files of a build: its shards, their manifest, and the notes of an unfinished build.

The manifest is a JSON file next to the shards that describes them, written last.

A glob for the shards of a build also matches an earlier build's files under similar names, and
training would read both. So a build removes files that are provably an earlier build's, and refuses
to begin next to any others; a reader accepts only the set of files that their manifest lists.
"""

import base64
import contextlib
import fnmatch
import glob
import hashlib
import json
import os
import re
import stat
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from official_bert.system.places import as_path, is_remote
from official_bert.system.whole_files import write_whole

FORMAT = "pre-training records 1"
ENDING = ".manifest.json"
BUILDING = ".building"
PLAN = "build.json"  # the note of an unfinished build's settings, in its folder
_SPECIAL = ("[CLS]", "[SEP]", "[MASK]")
_NUMBERED = re.compile(r"(.*)-\d{5}-of-(\d{5})")


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
    is_manifest = is_whole = False
    with contextlib.suppress(  # of entries of another type, too
        ValueError, KeyError, TypeError, AttributeError, RecursionError
    ):
        made = json.loads(text)
        is_manifest = made["format"] == FORMAT
        is_whole = is_manifest and _is_whole(made)
    if not is_manifest:
        raise ValueError(
            f"{path} must be a manifest of the format {FORMAT!r}; got another file. Make the "
            "records again, or update lamb_tf if a later version made them."
        )
    if not is_whole:
        raise ValueError(f"{path} is damaged. Make the records again, or remove the manifest.")
    return made


def read(path: str) -> dict | None:
    """The contents of a manifest; None without one, and of a damaged one."""
    try:
        return parse(path, as_path(path).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def tokens(made: dict) -> list[str]:
    """The vocabulary of the records."""
    return made["tokens"].split("\n")


def row_filling(made: dict) -> str:
    """What the rows hold: the setting of that name, which is stored unless it is the default."""
    return made["settings"].get("row_filling", "documents")


def warnings(made: dict) -> list[str]:
    """The warnings of the build about its text; none in a manifest of an earlier version."""
    found = made.get("warnings")
    return [line for line in found if isinstance(line, str)] if isinstance(found, list) else []


def _is_whole(made):
    """Whether every entry that readers use is plausible."""
    settings, vocabulary, each = made["settings"], made["vocabulary"], made["records_per_block"]
    known = made["masking"] == "static" or (
        made["masking"] == "dynamic" and _can_mask(settings, vocabulary)
    )
    return (
        known
        and type(settings["gzip_compress"]) is bool
        and _is_count(vocabulary["size"], 1)
        and _is_count(each, 1)
        and isinstance(made["tokens"], str)
        and isinstance(made["shards"], list)
        and all(_is_shard(entry, each) for entry in made["shards"])
    )


def _is_shard(entry, records_per_block):
    offsets, size = entry["block_offsets"], entry["bytes"]
    blocks = -(-entry["records"] // records_per_block)
    return (
        os.path.basename(entry["file"]) == entry["file"] != ""
        and all(map(_is_count, (entry["records"], size, entry["crc32"], *offsets)))
        and len(offsets) == blocks
        and offsets == sorted(offsets)
        and (not offsets or offsets[-1] <= size)
    )


def _can_mask(settings, vocabulary):
    """Whether the entries for dynamic masking fit each other."""
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


def write_note(path: str, value: Any) -> None:
    """Writes a note about a finished step of a build, for the run that resumes it.

    A power failure may leave anything on the disk. So a note has a digest of itself, and contains
    the checksums of the step's files.
    """
    write_whole(path, [json.dumps({"sha256": _digest(value), "note": value}).encode()])


def read_note(path: str) -> Any:
    """The value of a note; None without one, and of a damaged one."""
    try:
        made = json.loads(as_path(path).read_bytes())
        return made["note"] if made["sha256"] == _digest(made["note"]) else None
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def checksum(path: str) -> int | None:
    """The CRC-32 of a file; None without a file."""
    crc = 0
    try:
        with as_path(path).open("rb") as file:
            while data := file.read(1 << 20):
                crc = zlib.crc32(data, crc)
    except FileNotFoundError:
        return None
    return crc


def is_intact(path: str, entry: dict) -> bool:
    """Whether a shard is the one of a manifest's entry.

    In an object store only the size is compared: an object is whole and has a checksum of its own.
    """
    if is_remote(path):
        return size_of(path) == entry["bytes"]
    return checksum(path) == entry["crc32"]


def require_free(shards: list[str]) -> None:
    """Refuses names if a glob for `shards` would also match other files.

    An earlier build of the same name with another number of shards is allowed.

    Raises:
        ValueError: names the files of unknown origin, a folder in the place of a file, or the
            manifest of another build that lists one of `shards` or would be replaced.
    """
    folder, own = os.path.dirname(shards[0]), path_for(shards)
    taken_by_folder = (p for p in (*shards, own) if not is_remote(p) and os.path.isdir(p))
    if path := next(taken_by_folder, None):
        raise ValueError(
            f"output_file must leave the name {path} for a file of the build; got a folder there. "
            "Remove it, or choose another output_file."
        )
    names = set(map(os.path.basename, shards))
    others = [name for name in _listed(own) if _whole(name) not in set(map(_whole, names))]
    if others:
        raise ValueError(
            f"output_file must not replace the manifest of another build; got {own}, which lists "
            f"{_several(others)}. Choose a name that differs before its ending, or remove that "
            "build."
        )
    for path in sorted(map(str, as_path(folder).glob(f"*{ENDING}"))):
        taken = names.intersection(_listed(path))
        if taken and os.path.basename(path) != os.path.basename(own):
            raise ValueError(
                f"output_file must not name a file of another build; got {_several(taken)}, listed "
                f"in {path}. Choose another name, or remove that manifest and its files."
            )
    known = of_last_build(shards) | of_unfinished_build(shards)
    strangers = set(_siblings(folder, names)).difference(names, map(os.path.basename, known))
    if strangers:
        raise ValueError(
            "output_file must not match other files, which a glob would read together with the new "
            f"ones; got {_several(strangers)} of an unknown build in {folder or '.'}. Remove them, "
            "or choose another name."
        )


def of_last_build(shards: list[str]) -> set[str]:
    """The files that the manifest for `shards` lists, if they still have their listed sizes."""
    return _as_made(shards, _listed(path_for(shards)))


def of_unfinished_build(shards: list[str]) -> set[str]:
    """The shards that an interrupted build of the same name had finished."""
    notes = map(read_note, map(str, as_path(building_folder(shards)).glob("shard-*.json")))
    return _as_made(shards, {note["file"]: note["bytes"] for note in notes if note})


def require_whole(
    patterns: Iterable[str], paths: list[str], manifests: dict[str, dict], building: Iterable[str]
) -> None:
    """Refuses files to read that are not exactly the sets that their manifests list.

    Args:
        patterns: The patterns that matched the files.
        manifests: The manifests of their folders, by path.
        building: The folders of unfinished builds next to them.

    Raises:
        ValueError: names the files that are stale or missing.
    """
    sets = {
        path: {os.path.join(os.path.dirname(path), entry["file"]) for entry in made["shards"]}
        for path, made in manifests.items()
    }
    known = set().union(*sets.values())
    for path, listed in sets.items():
        stale = [p for p in paths if p not in known and path_for([p]) == path]
        if stale:
            raise ValueError(
                f"Records must be those that {path} lists ({len(listed)} files); got also "
                f"{_several(stale)}, left by another build. Remove these stale files."
            )
        missing = _missing(patterns, paths, listed)
        if missing:
            raise ValueError(
                f"Records must be all {len(listed)} files that {path} lists; got all but "
                f"{_several(missing)}. Fetch or make the missing files again, or name the files to "
                "read one by one."
            )
    others = [path for path in paths if path not in known]
    for path in others:
        if building_folder([path]) in building:
            raise ValueError(
                f"{path} is part of an unfinished build. Run that command again, or remove "
                f"{building_folder([path])}."
            )
    _check_one_count(others)


def _missing(patterns: Iterable[str], paths: list[str], listed: set[str]) -> list[str]:
    """The files of a set that a glob should have matched but did not."""
    if listed.isdisjoint(paths):
        return []
    globs = [os.path.split(pattern) for pattern in patterns if glob.has_magic(pattern)]
    return [
        path
        for path in listed.difference(paths)
        if any(all(map(fnmatch.fnmatch, os.path.split(path), parts)) for parts in globs)
    ]


def _check_one_count(paths: Iterable[str]) -> None:
    """Refuses `a-00000-of-00004` next to `a-00000-of-00008` if no manifest lists them."""
    counts = {}
    for match in filter(None, map(_NUMBERED.fullmatch, paths)):
        first = counts.setdefault(match[1], match)
        if first[2] != match[2]:
            raise ValueError(
                f"{first[0]} and {match[0]} must be of one copy of the data; got copies in "
                f"{int(first[2])} and {int(match[2])} files. Remove one of them."
            )


def _listed(path: str) -> dict[str, int]:
    """The names and sizes of the files that a manifest lists, if it is one."""
    made = read(path)
    return {entry["file"]: entry["bytes"] for entry in made["shards"]} if made else {}


def _as_made(shards: list[str], sizes: dict[str, int]) -> set[str]:
    """The paths of the files that still have these sizes."""
    folder = os.path.dirname(shards[0])
    paths = {os.path.join(folder, name): size for name, size in sizes.items()}
    return {path for path, size in paths.items() if size_of(path) == size}


def size_of(path: str) -> int | None:
    """The size of a file in bytes; None without one."""
    try:
        found = as_path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _siblings(folder: str, names: set[str]) -> list[str]:
    """Files in `folder` that a glob for `names` might match."""
    whole, stems = set(map(_whole, names)), set(map(stem, names))
    place = as_path(folder or ".")
    return [
        path.name
        for path in (place.iterdir() if place.is_dir() else ())
        if stem(path.name) in stems and (path.name not in stems or path.name in whole)
        if size_of(str(path)) is not None
    ]


def _whole(name: str) -> str:
    """The name without the shard number."""
    match = _NUMBERED.fullmatch(name)
    return match[1] if match else name


def _several(names: Iterable[str]) -> str:
    """The first three names and the number of the others."""
    names = sorted(names)
    return ", ".join(names[:3]) + f" and {len(names) - 3} more" * (len(names) > 3)
