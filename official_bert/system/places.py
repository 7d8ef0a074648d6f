"""Where a user's files are: on this machine, or in an object store such as Google Cloud Storage.

A run asks `as_path` for its files and folders. On this machine it gets a `pathlib.Path`. Of an
address such as `gs://bucket/model` it gets a `RemotePath`, which has the same methods and works
through TensorFlow's file systems. `etils.epath` is not used: its paths are `os.PathLike`, so that
code for this machine's files would make a folder named `gs:`; its errors are TensorFlow's, which
commands do not report in one line; and it would add three packages (etils, fsspec, zipp).
"""

import contextlib
import functools
import glob
import importlib.util
import os
import pathlib
import re
from collections.abc import Iterator
from typing import IO, Any, TypeAlias

from official_bert.system import quiet_tensorflow

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


@functools.total_ordering
class RemotePath:
    """A file or folder that TensorFlow's file systems reach: the part of `pathlib.Path` we need.

    It is no `os.PathLike`. What knows this machine's files alone fails on it, rather than makes a
    folder named `gs:`. Nothing is renamed there: a file appears whole when it is closed.

    Args:
        address: For example `gs://bucket/folder/file`. As in a path, slashes that are repeated or
            at the end mean nothing, so each file has one name.

    Example:

    >>> RemotePath("gs://bucket//model/") / "best" / "best.json"
    RemotePath('gs://bucket/model/best/best.json')
    """

    def __init__(self, address: str):
        scheme = _SCHEME.match(address)
        start = scheme.end() if scheme else 0
        self._address = address[:start] + re.sub("/+", "/", address[start:]).rstrip("/")

    def __str__(self) -> str:
        return self._address

    def __repr__(self) -> str:
        return f"RemotePath({self._address!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and other._address == self._address

    def __lt__(self, other: "RemotePath") -> bool:
        return self._address < other._address

    def __hash__(self) -> int:
        return hash(self._address)

    def __truediv__(self, name: str) -> "RemotePath":
        return RemotePath(f"{self._address}/{name}")

    @property
    def name(self) -> str:
        return self._address.rpartition("/")[2]

    @property
    def parent(self) -> "RemotePath":
        return RemotePath(self._address.rpartition("/")[0])

    @property
    def stem(self) -> str:
        return pathlib.PurePosixPath(self.name).stem

    @property
    def suffix(self) -> str:
        return pathlib.PurePosixPath(self.name).suffix

    def with_suffix(self, suffix: str) -> "RemotePath":
        return self.parent / f"{self.stem}{suffix}"

    def exists(self) -> bool:
        with remote_files(self._address) as gfile:
            return gfile.exists(self._address)

    def is_dir(self) -> bool:
        with remote_files(self._address) as gfile:
            return gfile.isdir(self._address)

    def mkdir(self, parents: bool = True, exist_ok: bool = True) -> None:
        """Makes the folder, with those above it; a folder that is there stays."""
        with remote_files(self._address) as gfile:
            gfile.makedirs(self._address)

    def glob(self, pattern: str) -> Iterator["RemotePath"]:
        """Files of the folder, by a pattern of their names."""
        with remote_files(self._address) as gfile:
            found = gfile.glob(f"{glob.escape(self._address)}/{pattern}")
        return map(RemotePath, sorted(found))

    @contextlib.contextmanager
    def open(self, mode: str = "r", encoding: str = "utf-8") -> Iterator[IO[Any]]:
        """The open file; what is written or appended is there when the block ends."""
        with remote_files(self._address) as gfile, gfile.GFile(self._address, mode) as file:
            yield file

    def read_bytes(self) -> bytes:
        with self.open("rb") as file:
            return file.read()

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self.read_bytes().decode(encoding, errors)

    def unlink(self) -> None:
        with remote_files(self._address) as gfile:
            gfile.remove(self._address)


Place: TypeAlias = pathlib.Path | RemotePath
AnyPath: TypeAlias = str | os.PathLike | RemotePath


def as_path(path: AnyPath) -> Place:
    """A path of this machine, or a `RemotePath` if it is an address."""
    if isinstance(path, RemotePath):
        return path
    return RemotePath(str(path)) if is_remote(path) else pathlib.Path(path)


def is_remote(path: AnyPath) -> bool:
    """Whether it is an address such as `gs://bucket/a`."""
    return isinstance(path, RemotePath) or bool(_SCHEME.match(os.fspath(path)))


@contextlib.contextmanager
def remote_files(address: str) -> Iterator[Any]:
    """`tf.io.gfile`, whose errors become `OSError`s that name the address.

    Raises:
        FileNotFoundError: if there is no such file.
        OSError: if it cannot be read or written for another reason.
        ValueError: if TensorFlow is not installed.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise ValueError(
            f"{address} can be read only with TensorFlow, even on JAX: "
            '`pip install "lamb_tf[bert,cpu]"`, or give a path on this machine.'
        )
    quiet_tensorflow.import_tensorflow()
    import tensorflow as tf

    try:
        yield tf.io.gfile
    except tf.errors.NotFoundError:
        raise FileNotFoundError(f"{address}: there is no such file.") from None
    except tf.errors.OpError as error:
        reason = str(error.message).strip().splitlines()
        said = reason[0] if reason else type(error).__name__
        raise OSError(f"{address} cannot be reached: {said}") from None
