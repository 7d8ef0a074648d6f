"""The one checkpoint that a path leads to, and of which kind it is."""

import json
import pathlib
import re
import shlex
from collections.abc import Iterable

from official_bert.checkpoints import names

SAFETENSORS = "model.safetensors"
_SHARD = re.compile(r"-\d+-of-\d+$")
_BELOW = ("*", "snapshots/*")  # a run's checkpoints; a model in the cache of Hugging Face's hub


def find(path: pathlib.Path) -> tuple[str, pathlib.Path]:
    """(kind, file): "bundle", "keras" or "hugging_face", and the file or prefix to read.

    Args:
        path: A `pathlib.Path`: a folder, a checkpoint's prefix, or one of its files.

    Raises:
        ValueError: there is no checkpoint, or several, or it is a pickle or a SavedModel.
    """
    path = path.parent / path.name.removesuffix(".index")
    if path.suffix == ".keras" and path.is_file():
        return "keras", path
    if path.suffix == ".safetensors" and path.is_file():
        index = path.with_name(f"{SAFETENSORS}.index.json")
        return "hugging_face", index if _SHARD.search(path.stem) and index.is_file() else path
    if path.name.endswith(".safetensors.index.json") and path.is_file():
        return "hugging_face", path
    if path.suffix in (".bin", ".pt", ".pth") and path.is_file():
        raise _pickled(path)
    if pathlib.Path(f"{path}.index").is_file():
        return "bundle", path
    if not path.is_dir():
        raise ValueError(
            f"There is no checkpoint {path}: expected a folder, a file model.safetensors or "
            "model.keras, or the prefix of a TensorFlow checkpoint, such as bert_model.ckpt."
            + _download(path)
        )
    for name in SAFETENSORS, f"{SAFETENSORS}.index.json":
        if (path / name).is_file():
            return "hugging_face", path / name
    for name in "pytorch_model.bin", "pytorch_model.bin.index.json":
        if (path / name).is_file():
            raise _pickled(path / name)
    if (path / "saved_model.pb").is_file():
        raise ValueError(
            f"{path} is a SavedModel, which is for serving. Give the checkpoint it was made from."
        )
    return _one_in(path)


def require_no_other_scope(kind: str, file: str | pathlib.Path, found: Iterable[str]) -> None:
    """Raises a ValueError if the names of variables are a BERT's under another scope than `bert`.

    Args:
        kind, file: Of `find`.
        found: The names of variables, none of which is one of the encoder.
    """
    separator, words = ("/", _WORDS[0]) if kind == "bundle" else (".", _WORDS[1])
    scopes = (words.fullmatch(name) for name in sorted(found))
    scope = next((match[1] for match in scopes if match), None)
    if scope is None:
        return
    outer, _, last = scope.rpartition(separator)
    old, new = (outer, "") if outer and last == "bert" else (scope, f"bert{separator}")
    file = pathlib.Path(file)
    if kind == "bundle":
        renamed = file.with_name(f"{file.name.removesuffix('.ckpt')}-renamed.ckpt")
        command, files = _RENAME[0], [file]
    else:
        renamed = file.with_name("renamed.safetensors")
        command, files = _RENAME[1], [file]
        if file.suffix == ".json":
            files = sorted(set(file.parent.glob("*.safetensors")) - {renamed})
    arguments = shlex.join([f"{old}{separator}", new, *map(str, [renamed, *files])])
    raise ValueError(
        f"{file} must have its encoder under 'bert'; got {scope!r}. Rename its variables and give "
        f"{renamed} instead; run: {command} {arguments}"
    )


def _one_in(folder):
    keras_files, bundles = sorted(folder.glob("*.keras")), sorted(folder.glob("*.index"))
    if len(keras_files) + len(bundles) > 1:
        newest = _newest(folder)
        if newest:
            return "bundle", newest
        found = names.listed([path.name for path in (*keras_files, *bundles)])
        raise ValueError(f"{folder} holds several checkpoints: {found}. Give the path of one.")
    if keras_files:
        return "keras", keras_files[0]
    if bundles:
        return "bundle", bundles[0].with_suffix("")
    below = [place for depth in _BELOW for place in folder.glob(depth) if _is_model(place)]
    raise ValueError(
        f"{folder} must hold model.safetensors, *.ckpt.index or *.keras; got none of them."
        + (
            f" Give one of the folders in it: {names.listed(sorted(map(str, below)))}."
            * bool(below)
        )
    )


def _is_model(folder):
    return any(any(folder.glob(name)) for name in ("*.safetensors", "*.index", "*.keras"))


def _download(path):
    """What to do if the path is no path but the name of a model on Hugging Face's hub."""
    is_name = not path.suffix and not path.is_absolute() and len(path.parts) == 2
    if not is_name or path.parent.exists():
        return ""
    return (
        f" Download a model of the Hugging Face hub: `hf download {path} --local-dir={path.name}`."
    )


def _newest(folder):
    """The checkpoint named in the file `checkpoint`, which TensorFlow and our trainer write."""
    try:
        first = (folder / "checkpoint").read_text(encoding="utf-8").splitlines()[0]
        name = json.loads(first.removeprefix("model_checkpoint_path:"))
    except (OSError, ValueError, IndexError):
        return None
    file = folder / pathlib.PurePath(str(name)).name  # the folder may have been moved
    return file if file.with_name(f"{file.name}.index").is_file() else None


def _pickled(path):
    files = [path] if path.suffix != ".json" else sorted(path.parent.glob("pytorch_model-*.bin"))
    return ValueError(
        f"{path} is a pickle, which can run any code when loaded. Convert it to "
        f"{path.with_name(SAFETENSORS)} first, where PyTorch is installed; run: {_UNPICKLE} "
        f"{shlex.join(map(str, files))}"
    )


_WORDS = (  # of another model than a BERT only its configuration knows, which TensorFlow 1 has not
    re.compile(r"((?:.+/)?bert(?:_\d+)?)/embeddings/word_embeddings"),
    re.compile(r"(.+)\.embeddings\.word_embeddings\.weight"),
)
_RENAME = (
    """python -c 'import sys, tensorflow as tf; old, new, there, here = sys.argv[1:]; """
    """r = tf.train.load_checkpoint(here); names = sorted(r.get_variable_to_shape_map()); """
    """tf.raw_ops.SaveV2(prefix=there, tensors=[r.get_tensor(n) for n in names], """
    """shape_and_slices=[""] * len(names), """
    """tensor_names=[new + n[len(old):] if n.startswith(old) else n for n in names])'""",
    """python -c 'import sys; from safetensors.torch import load_file, save_file; """
    """old, new, there, *here = sys.argv[1:]; """
    """save_file({new + n[len(old):] if n.startswith(old) else n: t """
    """for f in here for n, t in load_file(f).items()}, there, {"format": "pt"})'""",
)
_UNPICKLE = (
    """python -c 'import os, sys, torch; from safetensors.torch import save_file; """
    """w = {n: t.clone().contiguous() for p in sys.argv[1:] """
    """for n, t in torch.load(p, weights_only=True).items()}; """
    """save_file(w, os.path.join(os.path.dirname(sys.argv[1]), "model.safetensors"), """
    """{"format": "pt"})'"""
)
