"""Writes a folder with weights, configuration and vocabulary, in any format."""

import contextlib
import dataclasses
import glob
import importlib.util
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from tokenizers import processors

from official_bert.checkpoints import (
    hugging_face,
    keras_files,
    model_card,
    model_folder,
    names,
    safetensors_files,
)
from official_bert.checkpoints.source import LABELS, Source
from official_bert.data import tokenization
from official_bert.system import quiet_tensorflow
from official_bert.system.whole_files import sync

CARD_OF_VECTORS = "sentence-transformers"


class Target(NamedTuple):
    """A format to write.

    Attributes:
        write: Function of (folder, source) that writes all files.
        holds_slots: Whether it has the optimizer's moments and their number of updates.
        needed_parts: Function of a source: the parts that it must have.
        needs_vocabulary: Whether it needs a vocabulary.
        drops_unread: Whether it leaves out the parts that a fine-tuned head does not read.
        holds_heads: Whether it has heads; otherwise a model needs none.
        card: The library that opens it, if it is for a hub and has a `model_card`.
    """

    write: object
    holds_slots: bool = False
    needed_parts: Callable[[Source], tuple[str, ...]] = lambda source: ("encoder",)
    needs_vocabulary: bool = False
    drops_unread: bool = False
    holds_heads: bool = True
    card: str | None = None


@contextlib.contextmanager
def whole_folder(folder: str | os.PathLike) -> Iterator[pathlib.Path]:
    """A folder that appears under its name when it is complete.

    Raises:
        ValueError: a file or folder of this name exists.
    """
    folder = pathlib.Path(folder).absolute()
    there = folder.is_symlink() or folder.exists()
    if there and (folder.is_symlink() or not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(
            f"The output must be a new folder; got {folder}, which exists. Give another name."
        )
    for parent in folder.parents:
        if parent.exists() and not parent.is_dir():
            raise ValueError(
                f"The output must be in a folder; got {folder}, but {parent} is a file."
            )
    new_parents = [parent for parent in folder.parents if not parent.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    _prune_killed(folder)
    aside = folder.with_name(f".writing-{folder.name}-{os.getpid()}")
    try:
        aside.mkdir()
        yield aside
        for path in (*aside.rglob("*"), aside):
            sync(path)
        aside.rename(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        with contextlib.suppress(OSError):  # such as: not empty
            for parent in new_parents:
                parent.rmdir()


def _prune_killed(folder):
    """Removes the leftovers of killed conversions to the same folder."""
    for aside in folder.parent.glob(f".writing-{glob.escape(folder.name)}-*"):
        process = aside.name.rpartition("-")[2]
        if process.isdecimal() and not os.path.exists(f"/proc/{process}"):
            shutil.rmtree(aside, ignore_errors=True)


def _write_hugging_face(
    folder: pathlib.Path, source: Source, library: str = "transformers"
) -> None:
    tensors = [
        (row.hugging_face, tensor.transposed() if "hugging_face" in row.transposed else tensor)
        for row in names.rows(source.config)
        for tensor in [source.weights.get(row.official)]
        if tensor is not None
    ]
    if source.head:
        their = source.head.variables
        tensors += [(their[name], tensor) for name, tensor in source.head_weights.items()]
    safetensors_files.write(folder / "model.safetensors", tensors)
    _write_json(folder / "config.json", hugging_face.write_config(source))
    if source.vocab_file:
        _write_tokenizer(folder, source)
    model_card.write(folder, source, library)


def _write_sentence_transformers(folder: pathlib.Path, source: Source) -> None:
    """Writes an encoder whose vectors are those of `embed`: means of the last layer, length 1."""
    width, length = source.config.hidden_size, source.text_length
    # Not the positions, so that `official_bert.load` cuts texts as sentence-transformers does.
    _write_hugging_face(folder, dataclasses.replace(source, max_length=length), CARD_OF_VECTORS)
    modules = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    for path in modules.values():
        (folder / path).mkdir(exist_ok=True)
    entries = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(modules.items())
    ]
    _write_json(folder / "modules.json", entries)
    pooling = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True}
    _write_json(folder / "1_Pooling/config.json", pooling)
    cut = {"max_seq_length": length, "do_lower_case": False}  # the tokenizer lower-cases
    _write_json(folder / model_folder.OF_SENTENCES, cut)


def _write_tf1(folder: pathlib.Path, source: Source) -> None:
    if importlib.util.find_spec("tensorflow"):
        quiet_tensorflow.import_tensorflow()
    from official_bert.checkpoints import tensor_bundles

    tensors = {**source.weights, **source.head_weights, **source.slots}
    if source.slots and source.step is not None:  # on which Adam's bias correction depends
        tensors["global_step"] = source.step.cast(np.dtype(np.int64))
    tensor_bundles.write(folder / "bert_model.ckpt", tensors)
    _write_official_files(folder, source)


def _write_keras(folder: pathlib.Path, source: Source) -> None:
    keras_files.write(folder / "model.keras", source)
    _write_official_files(folder, source)


def _write_savedmodel(folder: pathlib.Path, source: Source) -> None:
    quiet_tensorflow.import_tensorflow()
    from official_bert.checkpoints import serving

    serving.save(folder, source)
    _write_official_files(folder, source)


def _write_onnx(folder: pathlib.Path, source: Source) -> None:
    _export(folder / "model.onnx", source, "onnx")


def _write_litert(folder: pathlib.Path, source: Source) -> None:
    _export(folder / "model.tflite", source, "litert")


def _export(file, source, format):
    quiet_tensorflow.import_tensorflow()
    from official_bert.checkpoints import serving

    with quiet_tensorflow.silence():  # of the converters, unless they fail
        serving.export(file, source, format)
    _write_official_files(file.parent, source)
    if source.vocab_file:
        _write_tokenizer(file.parent, source)


def _write_official_files(folder, source):
    (folder / "bert_config.json").write_text(source.config.to_json(), encoding="utf-8")
    if source.labels:
        _write_json(folder / LABELS, source.labels)
    if source.vocab_file:
        _write_vocabulary(folder, source)


def _write_tokenizer(folder: pathlib.Path, source: Source) -> None:
    """Writes `vocab.txt`, `tokenizer.json` and `tokenizer_config.json`."""
    _write_vocabulary(folder, source)
    tokenizer = tokenization.load(
        str(folder / model_folder.PLAIN_VOCABULARY), source.do_lower_case or False
    )
    ids = tokenizer.get_vocab()
    tokenizer.add_special_tokens(list(tokenization.SPECIAL_TOKENS))
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def _write_vocabulary(folder: pathlib.Path, source: Source) -> None:
    """Writes `vocab.txt` and `tokenizer_config.json` of a source, which has a vocabulary."""
    assert source.do_lower_case is not None
    assert source.max_length
    vocabulary = tokenization.read_vocabulary(str(source.vocab_file))
    model_folder.write_vocabulary(folder, vocabulary, source.do_lower_case, source.max_length)


def _write_json(path, content):
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _needed_to_serve(source):
    return source.kind.reads


TARGETS = {
    "huggingface": Target(
        _write_hugging_face, needs_vocabulary=True, drops_unread=True, card="transformers"
    ),
    "sentence_transformers": Target(
        _write_sentence_transformers, needs_vocabulary=True, holds_heads=False, card=CARD_OF_VECTORS
    ),
    "tf1": Target(_write_tf1, holds_slots=True),
    "keras": Target(_write_keras, needed_parts=keras_files.needed_parts),
    "savedmodel": Target(_write_savedmodel, needed_parts=_needed_to_serve, needs_vocabulary=True),
    "onnx": Target(_write_onnx, needed_parts=_needed_to_serve, needs_vocabulary=True),
    "litert": Target(_write_litert, needed_parts=_needed_to_serve, needs_vocabulary=True),
}
