"""Finds a checkpoint and the parts of its model: configuration, vocabulary and labels.

The parts are in the checkpoint's folder or named by the user; other folders may be another model's.
Only `best/`, `initial/` and `pretrained/` of a run belong to the folder above, with `run.json`.
"""

import dataclasses
import functools
import json
import os
import pathlib
import re
import shlex
from collections.abc import Iterable
from typing import Any

from official_bert.checkpoints import names
from official_bert.checkpoints.source import LABELS
from official_bert.data import tokenization, tokenizer_settings
from official_bert.data.tokenization import Casing
from official_bert.model.config import BertConfig
from official_bert.system import local_paths
from official_bert.system.places import Place
from official_bert.system.whole_files import json_object, write_text

RUN = "run.json"
PLAIN_VOCABULARY = "vocab.txt"
VOCABULARIES = ("tokenizer.json", PLAIN_VOCABULARY)
OF_SENTENCES = "sentence_bert_config.json"  # of sentence-transformers
EXPORTS = ("best", "initial", "pretrained")  # folders of weights in a run's
# In released folders with both files, "gelu" is another function in each: each format has its own.
_CONFIGS = {"hugging_face": ("config.json", "bert_config.json")}
_OFFICIAL_CONFIGS = ("bert_config.json", "config.json")
SAFETENSORS = "model.safetensors"
_SHARD = re.compile(r"-\d+-of-\d+$")
_BELOW = ("*", "snapshots/*")  # a run's checkpoints; a model in the cache of Hugging Face's hub
_WORDS = (
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


@dataclasses.dataclass(frozen=True)
class ModelFolder:
    """A model's folder; its parts are read on demand.

    Attributes:
        folder: The folder of the weights.
        kind: The kind of its checkpoint, as from `find`.
        bert_config_file: The user's configuration; None: the folder's.
        named_vocab_file: The user's vocabulary; None: the folder's.
    """

    folder: pathlib.Path
    kind: str = "bundle"
    bert_config_file: pathlib.Path | None = None
    named_vocab_file: pathlib.Path | None = None

    @functools.cached_property
    def run_folder(self) -> pathlib.Path | None:
        """The folder of the run that wrote the checkpoint; None for other checkpoints."""
        above = [self.folder.parent] if self.folder.name in EXPORTS else []
        return next((path for path in (self.folder, *above) if (path / RUN).is_file()), None)

    @functools.cached_property
    def run(self) -> dict[str, Any]:
        """The content of `run.json`; {} without a valid one."""
        return json_object(self.run_folder / RUN) if self.run_folder else {}

    @property
    def trained_length(self) -> int | None:
        """The length in tokens of the last stage of its run, or at which sentence-transformers cuts
        texts; None if unknown.
        """
        try:
            return int(self.run["stages"][-1]["max_seq_length"])
        except (KeyError, IndexError, TypeError, ValueError):
            length = json_object(self.folder / OF_SENTENCES).get("max_seq_length")
            return length if type(length) is int and length > 0 else None

    @property
    def trained_windows(self) -> dict[str, int] | None:
        """The windows of a run on questions (`squad_data.Windows`); None if unknown."""
        found = self.run.get("windows")
        return found if isinstance(found, dict) else None

    @property
    def config_file(self) -> pathlib.Path | None:
        """The user's configuration, or its own, the one of the weights' format first."""
        names = _CONFIGS.get(self.kind, _OFFICIAL_CONFIGS)
        return self.bert_config_file or self._find(*names)

    @property
    def vocab_file(self) -> pathlib.Path | None:
        """The user's vocabulary, or its own."""
        return self.named_vocab_file or self.own_vocab_file

    @functools.cached_property
    def own_vocab_file(self) -> pathlib.Path | None:
        """Its `tokenizer.json` or `vocab.txt`.

        Raises:
            ValueError: it has both, and they contradict each other.
        """
        fuller, plain = (self._find(name) for name in VOCABULARIES)
        if not (fuller and plain):
            return fuller or plain
        held, of_lines = (tokenization.read_vocabulary(str(file)) for file in (fuller, plain))
        if not of_lines.items() <= held.items():  # the first may have added tokens
            raise ValueError(
                f"{fuller} and {plain} must agree; they do not. Name the model's (vocab_file)."
            )
        return fuller

    @property
    def labels_file(self) -> pathlib.Path | None:
        """Its `labels.json`."""
        return self._find(LABELS)

    def config(self) -> BertConfig:
        """The configuration; a ValueError or OSError without a valid one of a BERT."""
        if self.config_file is None:
            raise ValueError(
                f"{self.folder} must hold a bert_config.json or config.json; got neither. Name the "
                "model's configuration (--bert_config_file)."
            )
        return BertConfig.from_json_file(self.config_file)

    def casing(self, given: Casing | None = None, strip_accents: bool | None = None) -> Casing:
        """As `tokenization.casing`; the run's own setting comes before those of its vocabulary."""
        if self.vocab_file is None:
            raise self.no_vocabulary()
        of_run = self.run.get("do_lower_case")
        known = of_run if given is None and of_run in (True, False, "keep_accents") else given
        return tokenization.casing(self.vocab_file, known, strip_accents)

    def no_vocabulary(self) -> ValueError:
        """The error for a missing vocabulary."""
        folder = self.run_folder or self.folder
        above = (folder.absolute().parent / name for name in VOCABULARIES)
        near = next((file for file in above if file.is_file()), None)
        return ValueError(
            f"{folder} must hold a {' or '.join(VOCABULARIES)}; got neither. Name the vocabulary "
            "that the model was trained with (vocab_file)"
            + (f"; if that is {near}, copy it into the folder." if near else ".")
        )

    def check_run_vocabulary(self) -> None:
        """Refuses a vocabulary that the run was not trained with, with a ValueError."""
        if self.vocab_file is None or "vocabulary" not in self.run:
            return
        found = tokenization.digest(tokenization.read_vocabulary(str(self.vocab_file)))
        if found != self.run["vocabulary"]:
            raise ValueError(
                f"vocab_file must be the vocabulary that the model in {self.run_folder} was "
                f"trained with; got another one, {self.vocab_file}."
            )

    def check_named_vocabulary(self) -> None:
        """Refuses to train with a vocabulary that gives the model's ids other meanings.

        Words in place of [unused1] and the like, and further ones at the end, are accepted.

        Raises:
            ValueError: naming both, and the first word that differs.
        """
        if not self.named_vocab_file:
            return
        named = [*tokenization.read_vocabulary(str(self.named_vocab_file))]
        try:
            own = [*tokenization.read_vocabulary(str(self.own_vocab_file or self.named_vocab_file))]
        except ValueError:  # the reason to name another
            return
        for number, token in enumerate(own):
            found = named[number] if number < len(named) else None
            if found != token and not token.startswith("[unused"):
                raise ValueError(
                    f"vocab_file must be the vocabulary of the model in {self.folder}, where word "
                    f"piece {number} is {token!r}; got {self.named_vocab_file}, where it is "
                    f"{found!r}. Leave it out to use the model's own."
                )

    def _find(self, *names):
        """The first of these files in its folder, or in that of its run."""
        folders = [self.folder, *([self.run_folder] if self.run_folder else [])]
        places = (folder / name for folder in folders for name in names)
        return next((place for place in places if place.is_file()), None)


def of(
    path: str | os.PathLike,
    *,
    bert_config_file: str | os.PathLike | None = None,
    vocab_file: str | os.PathLike | None = None,
) -> tuple[pathlib.Path, ModelFolder]:
    """A checkpoint's file or prefix, and the folder of its model.

    Args:
        path: A folder, a checkpoint's prefix, or one of its files.
        bert_config_file, vocab_file: The user's, instead of its own.

    Raises:
        ValueError: there is no checkpoint, or there are several.
    """
    kind, file = find(pathlib.Path(path))
    return file, _model_folder(file.parent, kind, bert_config_file, vocab_file)


def for_training(
    run_folder: str | os.PathLike | None,
    init_checkpoint: str | os.PathLike | None,
    vocab_file: str | os.PathLike | None = None,
) -> ModelFolder | None:
    """The folder with the defaults of a run's flags: its own, or else its initial checkpoint's.

    Returns:
        None if neither is a folder of this machine with a model.

    Raises:
        ValueError: as `of`.
    """
    local = run_folder is not None and not local_paths.is_address(run_folder)
    if run_folder and local and (pathlib.Path(run_folder) / RUN).is_file():
        return _model_folder(pathlib.Path(run_folder), "bundle", None, vocab_file)
    if not init_checkpoint or local_paths.is_address(init_checkpoint):
        return None
    return of(init_checkpoint, vocab_file=vocab_file)[1]


def _model_folder(folder, kind, bert_config_file, vocab_file):
    named = (pathlib.Path(given) if given else None for given in (bert_config_file, vocab_file))
    return ModelFolder(folder, kind, *named)


# A vocabulary's files


def keep_vocabulary(
    folder: Place, vocabulary: Iterable[str], casing: Casing, max_length: int
) -> None:
    """As `write_vocabulary` into a run's folder; a ValueError if another vocabulary is there."""
    copy, vocabulary = folder / PLAIN_VOCABULARY, list(vocabulary)
    if not copy.exists():
        write_vocabulary(folder, vocabulary, casing, max_length)
    elif [*tokenization.read_vocabulary(str(copy))] != vocabulary:
        raise ValueError(
            f"{copy} must be the run's vocabulary; got another, which would be overwritten. "
            "Choose another folder for the run."
        )


def write_vocabulary(
    folder: Place, vocabulary: Iterable[str], casing: Casing, max_length: int
) -> None:
    """Writes `vocab.txt` and Hugging Face's `tokenizer_config.json`.

    Only the second distinguishes a cased vocabulary without upper-case letters from an uncased one.
    """
    write_text(folder / PLAIN_VOCABULARY, "".join(f"{token}\n" for token in vocabulary))
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": bool(casing),
        "strip_accents": False if casing == "keep_accents" else None,
        "tokenize_chinese_chars": True,
        "model_max_length": max_length,
        **{f"{token[1:-1].lower()}_token": token for token in tokenization.SPECIAL_TOKENS},
    }
    write_text(folder / tokenizer_settings.CONFIG, json.dumps(settings, indent=2) + "\n")


# The one checkpoint of a path


def find(path: pathlib.Path) -> tuple[str, pathlib.Path]:
    """(kind, file): "bundle", "keras" or "hugging_face", and the file or prefix to read.

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
            f"{path} must be a folder with a checkpoint, a file model.safetensors or model.keras, "
            "or the prefix of a TensorFlow checkpoint, such as bert_model.ckpt; got none of these. "
            f"Check the path.{_download(path)}"
        )
    for name in SAFETENSORS, f"{SAFETENSORS}.index.json":
        if (path / name).is_file():
            return "hugging_face", path / name
    for name in "pytorch_model.bin", "pytorch_model.bin.index.json":
        if (path / name).is_file():
            raise _pickled(path / name)
    if (path / "saved_model.pb").is_file():
        raise ValueError(
            f"{path} must be a checkpoint; got a SavedModel, which is for serving. Give the "
            "checkpoint it was made from."
        )
    return _one_in(path)


def require_no_other_scope(kind: str, file: str | pathlib.Path, found: Iterable[str]) -> None:
    """Raises a ValueError if the variables `found` are a BERT's under another scope than `bert`."""
    separator, words = ("/", _WORDS[0]) if kind == "bundle" else (".", _WORDS[1])
    scopes = (words.fullmatch(name) for name in sorted(found))
    scope = next((match[1] for match in scopes if match), None)
    if scope is None:
        return
    outer, _, last = scope.rpartition(separator)
    old, new = (outer, "") if outer and last == "bert" else (scope, f"bert{separator}")
    file = pathlib.Path(file)
    command, files = _RENAME[kind != "bundle"], [file]
    renamed = file.with_name(f"{file.name.removesuffix('.ckpt')}-renamed.ckpt")
    if kind != "bundle":
        renamed = file.with_name("renamed.safetensors")
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
        raise ValueError(f"{folder} must hold one checkpoint; got {found}. Give the path of one.")
    if keras_files:
        return "keras", keras_files[0]
    if bundles:
        return "bundle", bundles[0].with_suffix("")
    kinds = "*.safetensors", "*.index", "*.keras"
    below = [p for d in _BELOW for p in folder.glob(d) if any(any(p.glob(k)) for k in kinds)]
    inside = f" Give one of the folders in it: {names.listed(sorted(map(str, below)))}."
    raise ValueError(
        f"{folder} must hold model.safetensors, *.ckpt.index or *.keras; got none of them."
        f"{inside * bool(below)}"
    )


def _download(path):
    """Advice for the name of a model on Hugging Face's hub, given as a path."""
    is_name = not path.suffix and not path.is_absolute() and len(path.parts) == 2
    if not is_name or path.parent.exists():
        return ""
    return (
        f" Download a model of the Hugging Face hub: `hf download {path} --local-dir={path.name}`."
    )


def _newest(folder):
    """The checkpoint named in TensorFlow's file `checkpoint`."""
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
        f"{path} must be safetensors; got a pickle, which can run any code when loaded. Convert it "
        f"to {path.with_name(SAFETENSORS)} first, where PyTorch is installed; run: {_UNPICKLE} "
        f"{shlex.join(map(str, files))}"
    )
