"""Columns of Parquet and Arrow files, and the files of a folder saved by Hugging Face's `datasets`.

Rows are read in batches of bounded size, in the order of the file. The package `pyarrow` (the extra
[parquet]) is imported only when such a file is read.
"""

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from official_bert.system import local_paths

FORMS = ("parquet", "arrow")
BATCH_BYTES, BATCH_ROWS = 2 << 20, 256  # a batch of a Parquet file has at most this much
_SAVED, _SPLITS = "state.json", "dataset_dict.json"  # the notes of `Dataset`, `DatasetDict`
_INFO = "dataset_info.json"  # of a `Dataset`, next to its list
# Of Spark and Hive, which may lie above the folders with the files.
_NOTES = ("_SUCCESS", "_metadata", "_common_metadata")
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_MEND = "The file is damaged or truncated: fetch or make it again."


class UnfitColumn(ValueError):
    """A table has no column of this `name`, several, or one of another type."""

    def __init__(self, message: str, name: str):
        super().__init__(message)
        self.name = name


def require_pyarrow(path: str) -> None:
    """Raises a ValueError at an address, or that names the extra if `pyarrow` is missing."""
    local_paths.require_local(**{"a Parquet or Arrow file": path})
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise ValueError(
            f"{path} needs the package pyarrow, which is not installed. Install it: `pip install "
            '".[parquet]"` in a clone, or `pip install pyarrow`.'
        ) from None


def names_of_data(folder: str, names: Sequence[str]) -> list[str]:
    """The names of the files with rows among the `names` of all files in a folder.

    A dataset's own list counts, because `datasets` leaves caches of other columns next to its
    files. Notes that Spark, Hive and `datasets` leave are not data.

    Raises:
        ValueError: the folder of a dataset is damaged, or lacks one of its files or splits.
    """
    if _SAVED in names and any(name.endswith((".arrow", _INFO)) for name in names):
        return _listed(folder, names)
    listed = splits(folder) if _SPLITS in names else []
    gone = [name for name in listed if not os.path.isdir(os.path.join(folder, name))]
    if gone:
        raise ValueError(
            f"{folder} must hold all splits that its {_SPLITS} lists; got none named "
            f"{', '.join(gone[:3])}{' …' * (len(gone) > 3)}. Fetch or save the dataset again, or "
            "give the folders of the splits to read, with commas between them."
        )
    if any(name.endswith(".parquet") for name in names):
        return [name for name in names if not name.startswith("_")]
    if any(name.endswith(".arrow") for name in names):
        return [name for name in names if name != _INFO]
    return [name for name in names if name not in (_SPLITS, *_NOTES)]


def _listed(folder: str, names: Sequence[str]) -> list[str]:
    path = os.path.join(folder, _SAVED)
    try:
        with open(path, "rb") as file:
            state = json.loads(file.read())
        found = [entry["filename"] for entry in state["_data_files"]]
        if not all(map(os.path.basename, found)):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{path} must list the files of a dataset that `save_to_disk` wrote; got other "
            "content. Save the dataset again, or remove the file."
        ) from None
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise ValueError(
            f"{folder} must hold the rows of a dataset; got a choice of rows from an old version "
            "of `datasets`. Load it and save it with `save_to_disk` again."
        )
    missing = sorted(set(found).difference(names))
    if missing:
        raise ValueError(
            f"{folder} must hold all {len(found)} files that its {_SAVED} lists; got none named "
            f"{', '.join(missing[:3])}{' …' * (len(missing) > 3)}. Fetch or save the dataset again."
        )
    return found


def splits(folder: str) -> list[str]:
    """The splits of a folder saved from a `DatasetDict`; none if it is another folder."""
    path = os.path.join(folder, _SPLITS)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError), open(path, "rb") as file:
        return [str(name) for name in json.loads(file.read())["splits"]]
    return []


def require_columns(path: str, form: str, names: Sequence[str], *, numbers: bool = False) -> None:
    """Refuses a file without columns of these names, or with other types, naming what it has.

    Arguments and errors are as of `rows`.
    """
    schema = _schema(path, form)
    for name in names:
        _require_column(path, schema, name, numbers)


def column_names(path: str, form: str) -> list[str]:
    """The names of a file's columns; a ValueError as of `rows`."""
    return list(_schema(path, form).names)


def rows(
    path: str,
    form: str,
    names: Sequence[str],
    *,
    numbers: bool = False,
    advance: Callable[[int], None] = lambda _: None,
) -> Iterator[tuple[int, list]]:
    """The cells of some columns, row by row, with the number of the row from 1.

    A cell is a text, a list, or None (null). A dot leads into a column of structures:
    `document.text`. Bytes that are not UTF-8 are returned as they are.

    Args:
        numbers: Accept columns of numbers and booleans and of their lists, too. A class label of
            `datasets` becomes its name, and None where it is negative (unknown).
        advance: Called with the number of bytes of the file read since the last call.

    Raises:
        ValueError: the file is damaged, with its row group or batch; a column is missing, or is
            not text; or `pyarrow` is not installed.
    """
    require_columns(path, form, names, numbers=numbers)
    schema = _schema(path, form)
    labels = {name: _class_names(schema, name) if numbers else None for name in names}
    number, size, read = 0, os.path.getsize(path), 0
    batches = _parquet_batches if form == "parquet" else _arrow_batches
    for place, batch, share in batches(path, names):
        with _reading(path, place):
            columns = [_cells(_column(batch, name), labels[name]) for name in names]
        for cells in zip(*columns):
            number += 1
            yield number, list(cells)
        advance(int(share * size) - read)
        read = int(share * size)


# Files


@contextlib.contextmanager
def _reading(path: str, place: str = ""):
    """Turns the errors of `pyarrow` into one that names the file and the place."""
    require_pyarrow(path)
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, EOFError) as error:
        if isinstance(error, OSError) and error.errno:  # of the disk
            raise ValueError(f"{path} cannot be read{place} ({error}).") from None
        _refuse_damage(path, place, " ".join(str(error).split())[:120])


def _refuse_damage(path: str, place: str, reason: str) -> NoReturn:
    raise ValueError(f"{path} cannot be read{place} ({reason}). {_MEND}") from None


def _parquet(path: str):
    import pyarrow.parquet

    # Without a buffer in advance, which would hold a column of a whole row group.
    return pyarrow.parquet.ParquetFile(
        path, pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True
    )


def _arrow(file):
    """A reader of a stream, or of a file with a footer, and the number of its batches, if known."""
    import pyarrow

    is_file = file.read(6) == b"ARROW1"
    file.seek(0)
    reader = (pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream)(file)
    return reader, reader.num_record_batches if is_file else None


def _schema(path: str, form: str):
    require_pyarrow(path)
    import pyarrow

    if not os.path.getsize(path):
        _refuse_damage(path, "", "the file is empty")
    with _reading(path):
        if form == "parquet":
            with _parquet(path) as parquet:
                return parquet.schema_arrow
        with pyarrow.memory_map(path) as file:
            return _arrow(file)[0].schema


def _parquet_batches(path: str, names: Sequence[str]) -> Iterator[tuple[str, Any, float]]:
    """(place, batch, share of the file read) of a Parquet file, one row group after another."""
    with _reading(path):
        file = _parquet(path)
    with file:
        metadata, read = file.metadata, 0
        for group in range(metadata.num_row_groups):
            place = f" in row group {group + 1} of {metadata.num_row_groups}"
            # The sizes of single columns would tell more, but pyarrow aborts the process over some
            # that are damaged.
            part = metadata.row_group(group)
            each = part.total_byte_size / max(part.num_rows, 1)
            rows = min(BATCH_ROWS, int(BATCH_BYTES / max(each, 1)) or 1)
            found = file.iter_batches(rows, row_groups=[group], columns=names, use_threads=False)
            while True:
                with _reading(path, place):
                    batch = next(found, None)
                if batch is None:
                    break
                read += len(batch)
                yield place, batch, read / metadata.num_rows


def _arrow_batches(path: str, names: Sequence[str]) -> Iterator[tuple[str, Any, float]]:
    """(place, some rows of a batch, share of the file read) of an Arrow file.

    The file is mapped: of a batch that is the whole file, only some rows come into memory.
    """
    import pyarrow

    with pyarrow.memory_map(path) as file:
        size = file.size()
        with _reading(path):
            reader, count = _arrow(file)
        number, before = 0, 0.0
        while count is None or number < count:
            place = f" in record batch {number + 1}" + (f" of {count}" if count else "")
            with _reading(path, place):
                try:
                    batch = reader.read_next_batch() if count is None else reader.get_batch(number)
                except StopIteration:
                    break
                batch.validate()
            number += 1
            share = number / count if count else file.tell() / size
            for start in range(0, len(batch), BATCH_ROWS):
                part = min(1.0, (start + BATCH_ROWS) / len(batch))
                yield place, batch.slice(start, BATCH_ROWS), before + part * (share - before)
            before = share
        if count is None:
            end = file.tell()
            file.seek(size - len(_END_OF_STREAM))
            if end < size or file.read() != _END_OF_STREAM:
                reason = "data after its end" if end < size else "its end is missing"
                _refuse_damage(path, f" after record batch {number}", reason)


# Columns


def _described(schema) -> list[str]:
    return [f"{field.name!r} ({field.type})"[:60] for field in schema]


def _require_column(path: str, schema, name: str, numbers: bool) -> None:
    if name in schema.names:
        found = schema.field(name).type if schema.names.count(name) == 1 else None
    else:
        found = _inner_type(schema, name)
    if found is None:
        raise UnfitColumn(
            f"{path} must have one column {name!r}; got "
            f"{'several' if name in schema.names else 'none'}. Its columns are "
            f"{', '.join(_described(schema)[:20]) or 'none'}.",
            name,
        )
    if not _fits(found, numbers):
        raise UnfitColumn(
            f"{path} must have text in its column {name!r}; got {str(found)[:60]}. Its columns are "
            f"{', '.join(_described(schema)[:20])}.",
            name,
        )


def _inner_type(schema, name: str):
    """The type that a path with dots leads to; None if it leads nowhere."""
    import pyarrow

    first, *parts = name.split(".")
    found = schema.field(first).type if schema.names.count(first) == 1 else None
    for part in parts:
        if found is None or not pyarrow.types.is_struct(found):
            return None
        index = found.get_field_index(part)
        found = found.field(index).type if index >= 0 else None
    return found


def _fits(kind, numbers: bool, lists: bool = True) -> bool:
    """Whether a type is text or, if they may be, numbers, or with `lists` a list of these."""
    import pyarrow
    from pyarrow import types

    if isinstance(kind, pyarrow.BaseExtensionType):  # this and a dictionary must be of text
        return _fits(kind.storage_type, False, lists)
    if types.is_dictionary(kind):
        return _fits(kind.value_type, False, lists=False)
    if _is_list(kind):
        return lists and _fits(kind.value_type, numbers, lists=False)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return numbers
    return (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_null(kind)
    )


def _is_list(kind) -> bool:
    from pyarrow import types

    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _class_names(schema, name: str) -> list[str] | None:
    """The names of a column's classes, which `datasets` keeps as JSON in the schema's metadata."""
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        noted = json.loads((schema.metadata or {})[b"huggingface"])
        feature = noted["info"]["features"][name]
        names = feature.get("feature", feature)["names"]  # of a list, of its entries
        return list(map(str, names)) if isinstance(names, list) else None
    return None


def _column(batch, name: str):
    """A column, or the part of one that a path with dots leads to."""
    import pyarrow.compute

    if name in batch.schema.names:
        return batch.column(name)
    first, *parts = name.split(".")
    array = batch.column(first)
    array.validate(full=True)
    for part in parts:
        array = pyarrow.compute.struct_field(array, part)
    return array


def _cells(array, labels: list[str] | None) -> list:
    import pyarrow
    from pyarrow import types

    if isinstance(array.type, pyarrow.BaseExtensionType):
        array = array.storage
    if types.is_dictionary(array.type):
        array.validate(full=True)
        array = array.dictionary_decode()
    views = {
        pyarrow.string(): pyarrow.binary(),
        pyarrow.large_string(): pyarrow.large_binary(),
        pyarrow.string_view(): pyarrow.binary_view(),
    }
    if array.type not in views:
        array.validate(full=True)
        found = array.to_pylist()
        if labels and types.is_integer(array.type):
            return [_label(value, labels) for value in found]
        if labels and _is_list(array.type):
            return [cell and [_label(value, labels) for value in cell] for cell in found]
        return found
    # Decoded here, so that a row that is not UTF-8 does not take the others along.
    array = array.view(views[array.type])
    array.validate(full=True)
    return [cell if cell is None else _decoded(cell) for cell in array.to_pylist()]


def _label(value: int | None, names: list[str]) -> str | int | None:
    if value is None or value < 0:
        return None
    return names[value] if value < len(names) else value


def _decoded(cell: bytes) -> str | bytes:
    try:
        return cell.decode("utf-8")
    except UnicodeDecodeError:
        return cell


def not_text(cell: Any, name: str) -> str | None:
    """What is wrong with a cell that should be a text: a predicate without a full stop, or None."""
    if isinstance(cell, bytes):
        return f"must be UTF-8 in {name!r}; got {cell[:20]!r}"
    if isinstance(cell, float) and not math.isfinite(cell):
        return f"must have text or a finite number in {name!r}; got {cell}"
    if cell is None:
        return f"must have text in {name!r}; got null"
    if isinstance(cell, list):
        return f"must have one text in {name!r}; got a list"
    return None
