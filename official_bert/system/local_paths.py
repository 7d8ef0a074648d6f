"""Checks of a command's paths: on this machine, found by their pattern, outputs not inputs."""

import glob
import os
import re
from collections.abc import Iterable, Mapping
from typing import NoReturn

from official_bert.system.places import as_path, is_remote

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # gs://, s3://, hdfs://, file:///, also gs:/
_SCHEME_ALONE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/{2,}")


def is_address(path: str | os.PathLike) -> bool:
    """Whether the path is on another machine, such as `gs://bucket/a`."""
    return bool(_ADDRESS.match(os.fspath(path)))


def require_local(**paths: str | os.PathLike | Iterable | None) -> None:
    """Refuses addresses such as `gs://bucket/a`, which would create folders of that name.

    Args:
        paths: {name of the flag: a path, several in a list or separated by commas, or None}.

    Raises:
        ValueError: names the flag, the address and what to do.
    """
    for flag, given in paths.items():
        for path in _several(given):
            if is_address(path):
                raise ValueError(
                    f"{flag} must be a path on this machine; got the address {path!r}. Copy the "
                    "files (`gcloud storage cp`, `aws s3 cp`, `hdfs dfs -get`) or mount them, and "
                    "give their path."
                )


def require_paths(**paths: str | os.PathLike | None) -> None:
    """Refuses what is neither a path of this machine nor an address of an object store.

    Args:
        paths: {name of the flag: a path such as `model`, an address such as `gs://bucket/a`, or
            None}.

    Raises:
        ValueError: names the flag and the path.
    """
    for flag, given in paths.items():
        if given and is_address(given) and not is_remote(given):
            raise ValueError(
                f"{flag} must be a path on this machine or an address with two slashes, such as "
                f"gs://bucket/folder; got {os.fspath(given)!r}."
            )
        if given and _SCHEME_ALONE.fullmatch(os.fspath(given)):
            raise ValueError(
                f"{flag} must name a bucket, as in gs://bucket/folder; got "
                f"{os.fspath(given)!r}. Is a variable of the shell empty?"
            )


def require_apart(outputs: Mapping[str, Iterable], inputs: Mapping[str, Iterable]) -> None:
    """Refuses an output that is also an input, under any name: writing would destroy it.

    Names that lead to one file through symbolic or hard links count as one name. A folder among the
    outputs includes everything in it.

    Args:
        outputs: {name of the flag: the paths that will be written or removed}.
        inputs: {name of the flag: the paths that will be read}.

    Raises:
        ValueError: names both flags and both paths.
    """
    read = [(flag, path) for flag, paths in inputs.items() for path in paths]
    numbers = {_number(path): (flag, os.fspath(path)) for flag, path in read}
    for flag, paths in outputs.items():
        _require_apart_in_stores(flag, filter(is_remote, paths), read)
        for path in filter(os.path.exists, map(os.fspath, paths)):
            if _number(path) in numbers:
                other, name = numbers[_number(path)]
                also = "" if name == path else f" ({other} as {name!r})"
                raise ValueError(
                    f"{flag} and {other} name the same file, {path!r}{also}. Give another path, so "
                    "that nothing is overwritten."
                )
            folder = os.path.join(os.path.realpath(path), "")
            for other, name in read if os.path.isdir(path) else ():
                if os.path.realpath(name).startswith(folder):
                    raise ValueError(
                        f"{flag}: the folder {path!r} would be overwritten, and {other} names "
                        f"{os.fspath(name)!r} in it. Give another path."
                    )


def _require_apart_in_stores(flag, outputs, read):
    for path in map(os.fspath, outputs):
        for other, name in read:
            if f"{as_path(name)}/".startswith(f"{as_path(path)}/"):
                raise ValueError(
                    f"{flag}: {path!r} would be overwritten, and {other} names "
                    f"{os.fspath(name)!r} in it. Give another path."
                )


def require_file_name(**paths: str | os.PathLike) -> None:
    """Refuses an output file's path that is empty or a folder.

    Raises:
        ValueError: names the flag and the path.
    """
    for flag, path in paths.items():
        if not os.path.basename(path) or os.path.isdir(path):
            raise ValueError(
                f"{flag} must be the path of a file to write; got {os.fspath(path)!r}."
            )


def matches(pattern: str, recursive: bool = False) -> list[str]:
    """What a glob matches, as `glob.glob`, which leaves out what is in a folder it cannot list.

    Raises:
        ValueError: names such a folder.
    """
    parts = pattern.split(os.sep)
    for number, part in enumerate(parts):
        folder = os.sep.join(parts[:number]) or (os.sep if number else os.curdir)
        if not glob.has_magic(os.path.join(folder, part)):
            continue
        for found in glob.glob(os.path.join(folder, ""), recursive=recursive):
            inside = os.path.join(found, os.curdir)
            try:
                if glob.has_magic(part):
                    os.scandir(inside).close()
                else:
                    os.stat(inside)
            except OSError as error:
                refuse_folder(error)
    return glob.glob(pattern, recursive=recursive)


def refuse_folder(error: OSError) -> NoReturn:
    """Refuses a folder whose files cannot be listed; `os.walk` would leave it out.

    Raises:
        ValueError: names the folder.
    """
    raise ValueError(
        f"{os.path.normpath(error.filename)} is a folder that cannot be listed "
        f"({error.strerror}). Make it readable, or name the files to read one by one."
    ) from error


def _several(given: str | os.PathLike | Iterable | None) -> list[str]:
    if given is None:
        return []
    names = str(given).split(",") if isinstance(given, str | os.PathLike) else map(str, given)
    return [name.strip() for name in names]


def _number(path: str | os.PathLike) -> tuple[int, int] | None:
    """The number that all names of one file share; None if there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
