"""Reads and writes `.keras` files of our models a tensor at a time, without the model.

Such a file is a ZIP archive of a configuration and an HDF5 file, whose paths Keras derives from the
attributes of the layers. To find the variable of each path, Keras saves a tiny model with the same
number of layers, in which each variable holds its own number. Nothing in a file is trusted or
executed: Keras itself would create any object that a file names.
"""

import contextlib
import dataclasses
import functools
import io
import json
import os
import pathlib
import tempfile
import zipfile
from collections.abc import Callable
from typing import Any

import h5py
import ml_dtypes
import numpy as np

from official_bert.checkpoints import names
from official_bert.checkpoints.source import KINDS, Source, Tensor
from official_bert.model.config import BertConfig
from official_bert.system import quiet_tensorflow
from official_bert.system.whole_files import start_writing_out

_CONFIG, _METADATA, _WEIGHTS = "config.json", "metadata.json", "model.weights.h5"
_MAX_CONFIG = 1_000_000  # bytes of a configuration; some 1,000 are usual


_KINDS = {kind.model: kind for kind in KINDS}


def needed_parts(source: Source) -> tuple[str, ...]:
    """The parts that a source must have to be written, because the model's outputs need them."""
    return source.kind.reads if source.head else source.kind.parts


def read_config(file: str | os.PathLike) -> BertConfig:
    """The `BertConfig` in a `.keras` file.

    Raises:
        ValueError: it is damaged, or does not hold a model of ours.
    """
    return _read_config(file)[1]


def _read_config(file):
    """The class of the model in a file, and its configuration."""
    with _archive(file) as archive:
        try:
            if archive.getinfo(_CONFIG).file_size > _MAX_CONFIG:
                raise ValueError(f"its {_CONFIG} is larger than {_MAX_CONFIG:,} bytes")
            content = json.loads(archive.read(_CONFIG))
            kind, values = content["class_name"], content["config"]
            is_ours = isinstance(kind, str) and kind in _KINDS
            values = values["config"] if is_ours else None
        except _DAMAGE as error:
            raise _damaged(file, error) from None
    if not is_ours:
        raise ValueError(f"{file} must hold one of {', '.join(_KINDS)}; got {kind!r:.99}.")
    return kind, BertConfig.from_values(values, file)


def read(
    file: str | os.PathLike, config: BertConfig
) -> tuple[str, dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """("Keras", weights by official name, {}, leftovers by their own name).

    The head of a fine-tuned model is among the leftovers, under our names.

    Raises:
        ValueError: as `read_config`; or it holds fewer variables than such a model has.
    """
    kind, _ = _read_config(file)
    held = _held(file)
    rows = {row.official for row in names.rows(config) if row.part in _KINDS[kind].parts}
    head = _KINDS[kind].head
    needed = len(rows) + (len(head.variables) if head else 0)
    if len(held) < needed:
        raise ValueError(f"{file} must hold at least {needed:,} variables; got {len(held):,}.")
    official = _official_names(kind, config.num_hidden_layers)
    named = {official.get(path, path): tensor for path, tensor in held.items()}
    found = {name: tensor for name, tensor in named.items() if name in rows}
    unmatched = {name: tensor for name, tensor in named.items() if name not in rows}
    return "Keras", found, {}, unmatched


def write(path: str | os.PathLike, source: Source) -> None:
    """Writes a float32 model of ours with the weights of a source.

    A missing pooler, which a model for questions or tags does not need, is 0.

    Raises:
        OSError: it cannot be written.
    """
    try:
        _write(path, source)
    except RuntimeError as error:  # HDF5 raises it for every problem
        raise OSError(f"Cannot write {path}: {str(error).splitlines()[0]}") from None


def _write(path, source):
    # HDF5 does not write from the first byte to the last, as an archive needs it. So it writes a
    # file with holes; the values are inserted while that is copied into the archive.
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path, "w") as target:
        small, form = pathlib.Path(folder, "model.keras"), pathlib.Path(folder, "form.h5")
        official = _save_small(small, source.kind.model, source.config.num_hidden_layers)
        shapes = {
            row.official: names.shape(row, source.config) for row in names.rows(source.config)
        }
        shapes |= {name: tensor.shape for name, tensor in source.head_weights.items()}
        tensors = source.weights | source.head_weights
        with zipfile.ZipFile(small) as archive:
            content = json.loads(archive.read(_CONFIG))
            content["config"]["config"] = dataclasses.asdict(source.config)
            content["config"] |= source.model_arguments
            target.writestr(_METADATA, archive.read(_METADATA))
            target.writestr(_CONFIG, json.dumps(content))
            with archive.open(_WEIGHTS) as weights, h5py.File(weights) as hdf5:
                places = _write_form(form, hdf5, official, shapes)
        entry = zipfile.ZipInfo(_WEIGHTS)
        entry.file_size = form.stat().st_size
        with target.open(entry, "w") as stream, open(form, "rb") as empty:
            for start, name in sorted(places):
                stream.write(empty.read(start - empty.tell()))
                values = _values(tensors.get(name), shapes[name])
                stream.write(values.reshape(-1).view(np.uint8))
                empty.seek(values.nbytes, io.SEEK_CUR)
                start_writing_out(path)
            stream.write(empty.read())


def _values(tensor, shape):
    if tensor is None:
        return np.zeros(shape, np.float32)
    return np.ascontiguousarray(tensor.cast(np.float32).read())


def _write_form(path, small, official, shapes):
    """Writes an HDF5 file as the small model's, with holes; returns their (byte, official name)."""
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    settings.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    places = []

    def copy(place, item):
        if isinstance(item, h5py.Group):
            form.require_group(place).attrs.update(item.attrs)
        else:
            name = official[place]
            held = form.create_dataset(place, shapes[name], np.float32, dcpl=settings)
            places.append((held.id.get_offset(), name))

    with h5py.File(path, "w") as form:
        small.visititems(copy)
    return places


def model_class(name: str) -> Callable[..., Any]:
    """The class of a `Kind.model`. Imports Keras."""
    quiet_tensorflow.import_keras()
    from official_bert.model.encoder import BertEncoder
    from official_bert.model.fine_tuning import BertClassifier, BertQuestionAnswering, BertTagger
    from official_bert.model.pretrainer import BertPretrainer

    classes = (BertPretrainer, BertClassifier, BertQuestionAnswering, BertTagger, BertEncoder)
    return next(found for found in classes if found.__name__ == name)


# Keras' names of the variables


@functools.lru_cache(maxsize=len(_KINDS))
def _official_names(kind, num_hidden_layers):
    """Path in the HDF5 file → official name, for all variables of such a model."""
    with tempfile.TemporaryDirectory() as folder:
        return _save_small(pathlib.Path(folder, "model.keras"), kind, num_hidden_layers)


def _save_small(file, kind, num_hidden_layers):
    """Saves a small model with the same number of layers; returns path → official name."""
    head = _KINDS[kind].head
    settings = {"num_outputs": 1} if head and not head.outputs else {}
    small = BertConfig(
        vocab_size=1,
        hidden_size=1,
        num_hidden_layers=num_hidden_layers,
        num_attention_heads=1,
        intermediate_size=1,
        max_position_embeddings=1,
        type_vocab_size=1,
    )
    model = model_class(kind)(small, **settings, seed=None, dtype="float32")
    for number, variable in enumerate(model.weights):
        variable.assign(np.full(variable.shape, number))
    model.save(file)
    paths = [variable.path for variable in model.weights]
    return {place: paths[int(tensor.read().flat[0])] for place, tensor in _held(file).items()}


# Reading untrusted files


def _held(file):
    """The variables in a file by path; their values are read on demand."""
    with _archive(file) as archive:
        try:
            _check_sum(archive)
            window = _Window(file, *_place(archive, file))
            # This walk does not follow links that lead out of the file.
            held, hdf5 = {}, h5py.File(window, "r")
            hdf5.visititems(lambda path, item: held.update(_entry(file, path, item)))
        except _DAMAGE as error:
            raise _damaged(file, error) from None
    return held


def _entry(file, path, item):
    if not isinstance(item, h5py.Dataset):
        return {}
    if item.external or item.is_virtual:
        raise ValueError(f"the values of {path} are in another file")
    if item.shape is None or item.id.get_storage_size() != item.size * item.dtype.itemsize:
        raise ValueError(f"the values of {path} are compressed or incomplete")
    bfloat16 = item.attrs.get("dtype") == "bfloat16"

    def read_values():
        try:
            return item[()].view(ml_dtypes.bfloat16) if bfloat16 else item[()]
        except _DAMAGE as error:
            raise _damaged(file, error) from None

    dtype = np.dtype(ml_dtypes.bfloat16) if bfloat16 else item.dtype
    return {path: Tensor(item.shape, dtype, read_values)}


_DAMAGE = (  # errors of the libraries for a damaged file; a RuntimeError is also a RecursionError
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    OSError,
    RuntimeError,
    EOFError,
    NotImplementedError,
    zipfile.BadZipFile,
)


def _damaged(file, error):
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return ValueError(f"{file} is not a readable .keras file: {reason}")


@contextlib.contextmanager
def _archive(file):
    try:
        archive = zipfile.ZipFile(file)
    except (ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile) as error:
        raise _damaged(file, error) from None
    with archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ValueError(f"{file} must not be compressed. Load it in Keras and save it again.")
        yield archive


def _check_sum(archive):
    """Makes `zipfile` compare the checksum of the weights, by reading to their end."""
    with archive.open(_WEIGHTS) as weights:
        while weights.read(1 << 20):
            pass


def _place(archive, file):
    """First byte and size of the HDF5 file in the archive."""
    entry = archive.getinfo(_WEIGHTS)
    with open(file, "rb") as opened:
        opened.seek(entry.header_offset)
        header = opened.read(30)  # of fixed length; a name and an extra field follow
    lengths = (int.from_bytes(header[start : start + 2], "little") for start in (26, 28))
    return entry.header_offset + 30 + sum(lengths), entry.file_size


class _Window(io.RawIOBase):
    """A part of a file as a file: `zipfile` would read from the start for each step back."""

    def __init__(self, path, start, size):
        super().__init__()
        self._file = io.BufferedReader(io.FileIO(path))
        self._start, self._size = start, size
        self.seek(0)

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=io.SEEK_SET):
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self._size}[whence]
        return self._file.seek(self._start + base + offset) - self._start

    def tell(self):
        return self._file.tell() - self._start

    def readinto(self, buffer):
        room = max(0, self._size - self.tell())
        return self._file.readinto(memoryview(buffer)[:room])

    def close(self):
        self._file.close()
        super().close()
