"""The parts of a model: configuration, vocabulary and labels, all from one folder.

A checkpoint's parts are in its own folder or are named by the user. Only `best/` and `pretrained/`
of a run belong to the folder above, where the `run.json` is. Nothing is looked for elsewhere: what
lies there may be another model's.
"""

import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any

from official_bert.checkpoints import finding
from official_bert.checkpoints.source import LABELS
from official_bert.data import tokenization, tokenizer_settings
from official_bert.data.tokenization import Casing
from official_bert.model.config import BertConfig
from official_bert.system import local_paths
from official_bert.system.places import Place
from official_bert.system.whole_files import write_text

RUN = "run.json"
PLAIN_VOCABULARY = "vocab.txt"
VOCABULARIES = ("tokenizer.json", PLAIN_VOCABULARY)
_EXPORTS = ("best", "pretrained")  # folders in a run's
# Released folders hold both files. "gelu" means a different function in each, so each format uses
# its own.
_CONFIGS = {"hugging_face": ("config.json", "bert_config.json")}
_OFFICIAL_CONFIGS = ("bert_config.json", "config.json")


@dataclasses.dataclass(frozen=True)
class ModelFolder:
    """A model's folder, from `of` or `of_folder`; its parts are read when they are asked for.

    Attributes:
        folder: Where the weights are.
        kind: The kind of its checkpoint, as `finding.find` names it.
        bert_config_file: The configuration that the user has named; None takes the folder's.
        named_vocab_file: Likewise the vocabulary.
    """

    folder: pathlib.Path
    kind: str = "bundle"
    bert_config_file: pathlib.Path | None = None
    named_vocab_file: pathlib.Path | None = None

    @functools.cached_property
    def run_folder(self) -> pathlib.Path | None:
        """The folder of the run that has written the checkpoint; None of other checkpoints."""
        above = [self.folder.parent] if self.folder.name in _EXPORTS else []
        return next((path for path in (self.folder, *above) if (path / RUN).is_file()), None)

    @functools.cached_property
    def run(self) -> dict[str, Any]:
        """What `run.json` contains; {} without one, and of a damaged one."""
        if self.run_folder is None:
            return {}
        try:
            found = json.loads((self.run_folder / RUN).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def config_file(self) -> pathlib.Path | None:
        """Its configuration, or the one that the user has named."""
        return self.bert_config_file or self.own_config_file

    @property
    def own_config_file(self) -> pathlib.Path | None:
        """Its `bert_config.json` or `config.json`, whichever is of the weights' format."""
        return self._find(*_CONFIGS.get(self.kind, _OFFICIAL_CONFIGS))

    @property
    def vocab_file(self) -> pathlib.Path | None:
        """Its vocabulary, or the one that the user has named."""
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
        if not of_lines.items() <= held.items():  # the first may have more: added tokens
            raise ValueError(
                f"{fuller} and {plain} must agree; they do not. Name the model's (vocab_file)."
            )
        return fuller

    @property
    def labels_file(self) -> pathlib.Path | None:
        """Its `labels.json`."""
        return self._find(LABELS)

    def config(self) -> BertConfig:
        """The configuration.

        Raises:
            ValueError: there is none, it is damaged, or another model's.
            OSError: it cannot be read.
        """
        if self.config_file is None:
            raise ValueError(
                f"{self.folder} must hold a bert_config.json or config.json; got neither. Name the "
                "model's configuration (--bert_config_file)."
            )
        return BertConfig.from_json_file(self.config_file)

    def casing(self, given: Casing | None = None) -> Casing:
        """As `tokenization.casing`; what the run was trained with comes before its settings."""
        if self.vocab_file is None:
            raise self.no_vocabulary()
        of_run = self.run.get("do_lower_case")
        known = of_run if given is None and of_run in (True, False, "keep_accents") else given
        return tokenization.casing(self.vocab_file, known)

    def no_vocabulary(self) -> ValueError:
        """The error for whoever needs a vocabulary that is not there."""
        folder = self.run_folder or self.folder
        above = (folder.absolute().parent / name for name in VOCABULARIES)
        near = next((file for file in above if file.is_file()), None)
        return ValueError(
            f"{folder} must hold a {' or '.join(VOCABULARIES)}; got neither. Name the vocabulary "
            "that the model was trained with (vocab_file)"
            + (f"; if that is {near}, copy it into the folder." if near else ".")
        )

    def check_run_vocabulary(self) -> None:
        """Refuses a vocabulary that the run was not trained with.

        Raises:
            ValueError: naming both.
        """
        if self.vocab_file is None or "vocabulary" not in self.run:
            return
        found = tokenization.digest(tokenization.read_vocabulary(str(self.vocab_file)))
        if found != self.run["vocabulary"]:
            raise ValueError(
                f"vocab_file must be the vocabulary that the model in {self.run_folder} was "
                f"trained with; got another one, {self.vocab_file}."
            )

    def check_named_vocabulary(self) -> None:
        """Refuses to train with a vocabulary in which the model's ids mean other words.

        Words in the place of [unused1] and its like, and further ones at the end, are no others.

        Raises:
            ValueError: naming both, and the first word that differs.
        """
        if not self.named_vocab_file:
            return
        named = [*tokenization.read_vocabulary(str(self.named_vocab_file))]
        try:
            own = [*tokenization.read_vocabulary(str(self.own_vocab_file or self.named_vocab_file))]
        except ValueError:  # which is why the user has named one
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
        bert_config_file, vocab_file: The parts that the user has named.

    Raises:
        ValueError: there is no checkpoint, or there are several.
    """
    kind, file = finding.find(pathlib.Path(path))
    return file, _model_folder(file.parent, kind, bert_config_file, vocab_file)


def for_training(
    run_folder: str | os.PathLike | None,
    init_checkpoint: str | os.PathLike | None,
    *,
    bert_config_file: str | os.PathLike | None = None,
    vocab_file: str | os.PathLike | None = None,
) -> ModelFolder | None:
    """The folder that implies what the flags of a run leave out.

    Args:
        run_folder: The run's own folder, which is taken once the run has begun; None for no run.
        init_checkpoint: Else the folder of the checkpoint that it starts from.
        bert_config_file, vocab_file: As of `of`.

    Returns:
        None where no folder of this machine implies anything.

    Raises:
        ValueError: as `of`.
    """
    named = {"bert_config_file": bert_config_file or None, "vocab_file": vocab_file or None}
    local = run_folder is not None and not local_paths.is_address(run_folder)
    if run_folder and local and (pathlib.Path(run_folder) / RUN).is_file():
        return _model_folder(pathlib.Path(run_folder), "bundle", **named)
    if not init_checkpoint or local_paths.is_address(init_checkpoint):
        return None
    return of(init_checkpoint, **named)[1]


def _model_folder(folder, kind, bert_config_file, vocab_file):
    named = (given and pathlib.Path(given) for given in (bert_config_file, vocab_file))
    return ModelFolder(folder, kind, *named)


# A vocabulary's files


def keep_vocabulary(
    folder: Place, vocabulary: Iterable[str], casing: Casing, max_length: int
) -> None:
    """As `write_vocabulary`, into the folder of a run, whose model is of no use without them.

    Raises:
        ValueError: another vocabulary is there.
    """
    copy, vocabulary = folder / PLAIN_VOCABULARY, list(vocabulary)
    if not copy.exists():
        write_vocabulary(folder, vocabulary, casing, max_length)
    elif [*tokenization.read_vocabulary(str(copy))] != vocabulary:
        raise ValueError(
            f"{copy} is another vocabulary than the run's, and would be overwritten. Choose "
            "another folder for the run."
        )


def write_vocabulary(
    folder: Place, vocabulary: Iterable[str], casing: Casing, max_length: int
) -> None:
    """Writes `vocab.txt` and `tokenizer_config.json`, Hugging Face's file of settings.

    The second is written with every format, because nothing else distinguishes a cased vocabulary
    without upper-case letters from an uncased one.

    Args:
        folder: Where to.
        vocabulary: The word pieces, by id.
        casing: Whether text is lower-cased for it.
        max_length: Maximum length of a sequence in tokens.
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
