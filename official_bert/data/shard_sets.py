"""Which files belong together: the shards of one build, compared with its manifest.

A glob for the shards of a build also matches the files of an earlier build under similar names.
Training would then see that text twice as often, or text of other settings. So a build removes the
files that are provably of an earlier build, and refuses to begin beside any others. And a reader
refuses files that are not the set that their manifest lists.
"""

import fnmatch
import glob
import os
import re
from collections.abc import Iterable

from official_bert.data import build_notes, manifest

_NUMBERED = re.compile(r"(.*)-\d{5}-of-(\d{5})")


def require_free(shards: list[str]) -> None:
    """Refuses names if a glob for `shards` would also match other files.

    An earlier build of the same name with another number of shards is allowed.

    Raises:
        ValueError: names the files of unknown origin, or the manifest of another build that lists
            one of `shards` or would be replaced.
    """
    folder, own = os.path.dirname(shards[0]), manifest.path_for(shards)
    names = set(map(os.path.basename, shards))
    others = [name for name in _listed(own) if _whole(name) not in set(map(_whole, names))]
    if others:
        raise ValueError(
            f"output_file must not replace the manifest of another build; got {own}, which lists "
            f"{_several(others)}. Choose a name that differs before its ending, or remove that "
            "build."
        )
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), f"*{manifest.ENDING}"))):
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
    """The files that the manifest for `shards` lists, if they still have the sizes listed there."""
    return _as_made(shards, _listed(manifest.path_for(shards)))


def of_unfinished_build(shards: list[str]) -> set[str]:
    """The shards that an interrupted build of the same name had finished."""
    made = {}
    for path in glob.glob(f"{glob.escape(manifest.building_folder(shards))}/shard-*.json"):
        entry = build_notes.read(path)
        if entry:
            made[entry["file"]] = entry["bytes"]
    return _as_made(shards, made)


def require_whole(
    patterns: Iterable[str], paths: list[str], manifests: dict[str, dict], building: Iterable[str]
) -> None:
    """Refuses files to read that are not exactly the sets that their manifests list.

    Args:
        patterns: The patterns that matched the files.
        paths: The files.
        manifests: The manifests of their folders, by path.
        building: The folders of unfinished builds beside them.

    Raises:
        ValueError: names the files that are stale or missing.
    """
    sets = {path: _entries(path, made) for path, made in manifests.items()}
    vouched = set().union(*sets.values())
    for path, listed in sets.items():
        stale = [p for p in paths if p not in vouched and manifest.path_for([p]) == path]
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
    others = [path for path in paths if path not in vouched]
    for path in others:
        if manifest.building_folder([path]) in building:
            raise ValueError(
                f"{path} is part of an unfinished build. Run that command again, or remove "
                f"{manifest.building_folder([path])}."
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
    """Refuses `a-00000-of-00004` beside `a-00000-of-00008` if no manifest lists them."""
    counts = {}
    for path in paths:
        match = _NUMBERED.fullmatch(path)
        if match:
            first = counts.setdefault(match[1], (match[2], path))
            if first[0] != match[2]:
                raise ValueError(
                    f"{first[1]} and {path} must be of one copy of the data; got copies in "
                    f"{int(first[0])} and {int(match[2])} files. Remove one of them."
                )


def _entries(path: str, made: dict) -> set[str]:
    return {os.path.join(os.path.dirname(path), entry["file"]) for entry in made["shards"]}


def _listed(path: str) -> dict[str, int]:
    """The names and sizes of the files that a manifest lists; none if it is not a manifest."""
    try:
        with open(path, "rb") as file:
            made = manifest.parse(path, file.read())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return {entry["file"]: entry["bytes"] for entry in made["shards"]}


def _as_made(shards: list[str], sizes: dict[str, int]) -> set[str]:
    folder = os.path.dirname(shards[0])
    paths = {os.path.join(folder, name): size for name, size in sizes.items()}
    return {p for p, size in paths.items() if os.path.isfile(p) and os.path.getsize(p) == size}


def _siblings(folder: str, names: set[str]) -> list[str]:
    """Files in `folder` that a glob for `names` might match."""
    whole, stems = set(map(_whole, names)), set(map(manifest.stem, names))
    return [
        name
        for name in (os.listdir(folder or ".") if os.path.isdir(folder or ".") else ())
        if manifest.stem(name) in stems and (name not in stems or name in whole)
        if os.path.isfile(os.path.join(folder, name))
    ]


def _whole(name: str) -> str:
    """The name without the shard number."""
    match = _NUMBERED.fullmatch(name)
    return match[1] if match else name


def _several(names: Iterable[str], most: int = 3) -> str:
    """Some names, for a sentence."""
    names = sorted(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
