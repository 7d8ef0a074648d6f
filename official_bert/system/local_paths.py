"""Checks a command's paths: local or remote, matched by a pattern, outputs apart from inputs."""

import glob
import os
import re
from collections.abc import Iterable, Mapping
from typing import NoReturn

from official_bert.system.places import as_path, is_remote

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # gs://, s3://, hdfs://, file:///, also gs:/
_SCHEME_ALONE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/{2,}")


def is_address(path: str | os.PathLike) -> bool:
    """Whether the path is an address on another machine, such as `gs://bucket/a`."""
    return bool(_ADDRESS.match(os.fspath(path)))


def require_local(**paths: str | os.PathLike | Iterable | None) -> None:
    """Refuses addresses such as `gs://bucket/a`, which would create folders of that name.

    Args:
        paths: {flag: a path, several in a list or separated by commas, or None}.

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
    """Refuses names that are neither a local path nor an address in an object store.

    Args:
        paths: {flag: a path such as `model`, an address such as `gs://bucket/a`, or None}.

    Raises:
        ValueError: names the flag and the path.
    """
    for flag, given in paths.items():
        if given and is_address(given) and not is_remote(given):
            raise ValueError(
                f"{flag} must be a local path or an address with two slashes, such as "
                f"gs://bucket/folder; got {os.fspath(given)!r}."
            )
        if given and _SCHEME_ALONE.fullmatch(os.fspath(given)):
            raise ValueError(
                f"{flag} must name a bucket, as in gs://bucket/folder; got "
                f"{os.fspath(given)!r}. Is a variable of the shell empty?"
            )


def require_apart(outputs: Mapping[str, Iterable], inputs: Mapping[str, Iterable]) -> None:
    """Refuses an output that is also an input, under any name: writing would destroy it.

    Symbolic and hard links are followed. An output folder includes everything in it.

    Args:
        outputs: {flag: the paths that will be written or removed}.
        inputs: {flag: the paths that will be read}.

    Raises:
        ValueError: names both flags and both paths.
    """
    read = [(flag, os.fspath(path)) for flag, paths in inputs.items() for path in paths]
    numbers = {_number(name): (flag, name) for flag, name in read}
    for flag, paths in outputs.items():
        for path in map(os.fspath, paths):
            for other, name in _within(path, read, numbers):
                raise ValueError(
                    f"{flag} must not overwrite an input; got {path!r}, which is or contains "
                    f"{name!r} of {other}. Give another path."
                )


def _within(path, read, numbers):
    """The (flag, name) of inputs that the path is or contains."""
    if is_remote(path):
        folder = f"{as_path(path)}/"
        return [pair for pair in read if f"{as_path(pair[1])}/".startswith(folder)]
    if os.path.isdir(path):
        folder = os.path.join(os.path.realpath(path), "")
        return [pair for pair in read if f"{os.path.realpath(pair[1])}/".startswith(folder)]
    return [numbers[_number(path)]] if os.path.exists(path) and _number(path) in numbers else []


def require_file_name(**paths: str | os.PathLike) -> None:
    """Refuses an output file without a name, or that is a folder.

    Raises:
        ValueError: names the flag and the path.
    """
    for flag, path in paths.items():
        is_bucket = is_remote(path) and os.fspath(path).rstrip("/").count("/") < 3
        if not os.path.basename(path) or os.path.isdir(path) or is_bucket:
            raise ValueError(
                f"{flag} must be the path of a file to write; got {os.fspath(path)!r}."
            )


def matches(pattern: str, recursive: bool = False) -> list[str]:
    """`glob.glob`, which however skips folders that it cannot list, in silence.

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
    """Refuses a folder that cannot be listed; `os.walk` would skip it.

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
    """A key that all names of one file share; None without a file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
