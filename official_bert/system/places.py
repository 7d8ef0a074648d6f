"""Paths on this machine or in an object store such as Google Cloud Storage.

`as_path` gives a `pathlib.Path`, or a `RemotePath` for an address such as `gs://bucket/model`: the
same methods, through TensorFlow's file systems. `etils.epath` is not used: its paths are
`os.PathLike`, so that code for local files would make a folder named `gs:`; its errors are
TensorFlow's, of many lines; and it would add three packages (etils, fsspec, zipp).
"""

import contextlib
import functools
import glob
import importlib
import importlib.util
import io
import os
import pathlib
import re
import stat
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, TypeAlias

from official_bert.system import quiet_tensorflow

_AT_ONCE = 16  # requests
_BUFFER = 1 << 20
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


@functools.total_ordering
class RemotePath:
    """A file or folder in TensorFlow's file systems, with the methods of `pathlib.Path` used here.

    It is not an `os.PathLike`, so that functions for local files fail instead of making a folder
    named `gs:`. Nothing is renamed: a file appears whole when it is closed.

    Args:
        address: For example `gs://bucket/folder/file`. Repeated and trailing slashes are removed.

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

    def stat(self) -> types.SimpleNamespace:
        """Its size, time of change and kind, as `os.stat` has them."""
        with remote_files(self._address) as gfile:
            found = gfile.stat(self._address)
        return types.SimpleNamespace(
            st_size=found.length,
            st_mtime_ns=int(found.mtime_nsec),
            st_mode=stat.S_IFDIR if found.is_directory else stat.S_IFREG,
        )

    def iterdir(self) -> Iterator["RemotePath"]:
        """The files and folders in the folder; none if it does not exist."""
        with contextlib.suppress(FileNotFoundError), remote_files(self._address) as gfile:
            yield from (self / name.rstrip("/") for name in sorted(gfile.listdir(self._address)))

    def exists(self) -> bool:
        with remote_files(self._address) as gfile:
            return gfile.exists(self._address)

    def is_dir(self) -> bool:
        with remote_files(self._address) as gfile:
            return gfile.isdir(self._address)

    def mkdir(self, parents: bool = True, exist_ok: bool = True) -> None:
        """Makes the folder and its parents; an existing folder stays."""
        with remote_files(self._address) as gfile:
            gfile.makedirs(self._address)

    def glob(self, pattern: str) -> Iterator["RemotePath"]:
        """The folder's files whose names match a pattern."""
        found: list[str] = []
        with contextlib.suppress(FileNotFoundError), remote_files(self._address) as gfile:
            found = gfile.glob(f"{glob.escape(self._address)}/{pattern}")
        return map(RemotePath, sorted(found))

    @contextlib.contextmanager
    def open(self, mode: str = "r", encoding: str = "utf-8") -> Iterator[IO[Any]]:
        """The open file; written data appear when the block ends."""
        with remote_files(self._address) as gfile, gfile.GFile(self._address, mode) as file:
            yield file

    def read_bytes(self) -> bytes:
        with self.open("rb") as file:
            return file.read()

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self.read_bytes().decode(encoding, errors)

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            with remote_files(self._address) as gfile:
                gfile.remove(self._address)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def files(self) -> list["RemotePath"]:
        """All files in the folder and the folders in it, sorted."""
        with remote_files(self._address) as gfile:
            found = [
                RemotePath(f"{folder}/{name}")
                for folder, _, names in gfile.walk(self._address)
                for name in names
            ]
        return sorted(found)

    def rmtree(self) -> None:
        """Removes the folder with everything in it, some files at a time."""
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(lambda file: file.unlink(missing_ok=True), self.files()))
        with contextlib.suppress(FileNotFoundError), remote_files(self._address) as gfile:
            gfile.rmtree(self._address)


Place: TypeAlias = pathlib.Path | RemotePath
AnyPath: TypeAlias = str | os.PathLike | RemotePath


def as_path(path: AnyPath) -> Place:
    """A local path, or a `RemotePath` if it is an address."""
    if isinstance(path, RemotePath):
        return path
    return RemotePath(str(path)) if is_remote(path) else pathlib.Path(path)


def is_remote(path: AnyPath) -> bool:
    """Whether it is an address such as `gs://bucket/a`."""
    return isinstance(path, RemotePath) or bool(_SCHEME.match(os.fspath(path)))


def open_stream(path: AnyPath) -> io.BufferedReader:
    """A file to read in pieces, with all methods of Python's own files."""
    place = as_path(path)
    if isinstance(place, RemotePath):
        return io.BufferedReader(_RemoteStream(str(place)), _BUFFER)
    return open(place, "rb")


class _RemoteStream(io.RawIOBase):
    """A file in TensorFlow's file systems, read in order."""

    def __init__(self, address: str):
        self._address = address
        with remote_files(address) as gfile:
            self._file = gfile.GFile(address, "rb")
            self._file.size()  # which fails now if the file does not exist

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        with remote_files(self._address):
            self._file.seek(offset, whence)
            return self._file.tell()

    def tell(self) -> int:
        with remote_files(self._address):
            return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        with remote_files(self._address):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def remote_matches(pattern: str) -> list[str]:
    """The files that an address, a glob or a folder in an object store matches, in order.

    Files whose names begin with a dot are left out of folders and globs.
    """
    place = RemotePath(pattern)
    matched = [place]
    if glob.has_magic(pattern):
        with remote_files(str(place)) as gfile:
            matched = sorted(map(RemotePath, gfile.glob(str(place))))
        matched = [path for path in matched if path.name[0] != "." or place.name[0] == "."]
    found: list[RemotePath] = []
    for path in matched:
        if path.is_dir():
            found += [file for file in path.files() if file.name[0] != "."]
        elif path.exists():
            found.append(path)
    return list(map(str, found))


@contextlib.contextmanager
def remote_files(address: str) -> Iterator[Any]:
    """`tf.io.gfile`, whose errors become `OSError`s that name the address.

    Raises:
        FileNotFoundError: if the file does not exist.
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

    _require_scheme(tf, address)
    try:
        yield tf.io.gfile
    except tf.errors.NotFoundError:
        raise FileNotFoundError(f"{address} does not exist.") from None
    except tf.errors.OpError as error:
        reason = str(error.message).strip().splitlines()
        text = reason[0] if reason else type(error).__name__
        raise OSError(f"{address} cannot be reached: {text}") from None


def _require_scheme(tf, address: str) -> None:
    """Loads the file system of `s3://` and others, which TensorFlow itself does not have."""
    scheme = address.partition("://")[0]
    if scheme in tf.io.gfile.get_registered_schemes():
        return
    if importlib.util.find_spec("tensorflow_io"):
        importlib.import_module("tensorflow_io")
    if scheme not in tf.io.gfile.get_registered_schemes():
        raise ValueError(
            f"{address} needs the package tensorflow-io, which adds {scheme}:// to TensorFlow; it "
            "is not installed or does not have it. `pip install tensorflow-io`, or copy the files."
        )
