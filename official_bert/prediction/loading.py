"""Loads a model for use from a folder: finds the checkpoint, its kind, and fills the model.

Keras takes seconds to import, so it is imported when a model is loaded.
"""

import dataclasses
import os
import pathlib
from typing import TYPE_CHECKING

from official_bert.system import local_paths, quiet_tensorflow

if TYPE_CHECKING:
    from official_bert.prediction.predictors import (
        BlankFiller,
        QuestionAnswerer,
        SentenceClassifier,
        TextEncoder,
    )
    from official_bert.prediction.tagger import WordTagger

_MOST_PADDING = 63  # embeddings beyond the vocabulary: tables are padded to multiples of 8 or 64


def load(
    folder: str | os.PathLike,
    vocab_file: str | os.PathLike | None = None,
    do_lower_case: bool | None = None,
    dtype: str = "fp32",
    strip_accents: bool | None = None,
    bert_config_file: str | os.PathLike | None = None,
    step: int | None = None,
) -> "BlankFiller | SentenceClassifier | QuestionAnswerer | WordTagger | TextEncoder":
    """The function that `official_bert.load` calls; see there.

    Args:
        bert_config_file: The model's configuration; default: the one in its folder.
    """
    source, run, policy = _open(
        folder, vocab_file, do_lower_case, dtype, strip_accents, bert_config_file, step
    )
    from official_bert.data import tokenization
    from official_bert.prediction import predictors, tagger

    head, model = _head(source), _model(source, policy)
    vocabulary = str(source.vocab_file), source.do_lower_case
    common = {
        "model": model,
        "tokenizer": tokenization.load(*vocabulary),
        "max_seq_length": source.text_length,
        "origin": f"{source.path} ({source.format})",
    }
    if head == "masked_lm":
        return predictors.BlankFiller(**common)
    if head == "classifier":
        return predictors.SentenceClassifier(
            **common,
            labels=_labels(source, model.num_outputs),
            takes_pairs=run["columns"]["sentence2"] is not None if "columns" in run else None,
        )
    if head == "question_answering":
        del common["max_seq_length"]  # the windows' own
        return predictors.QuestionAnswerer(
            **common,
            vocab_file=vocabulary[0],
            do_lower_case=source.do_lower_case,
            windows=predictors.Windows(**source.windows),
            version_2_with_negative=run.get("version_2_with_negative", False),
        )
    if head == "tagger":
        return tagger.WordTagger(**common, classes=_labels(source, model.num_outputs))
    return predictors.TextEncoder(**common, has_pooler="pooler" in source.parts)


def _head(source):
    """The name of the part that predicts; None for a bare encoder."""
    if source.head:
        return source.head.part
    return "masked_lm" if "masked_lm" in source.parts else None


def _open(folder, vocab_file, do_lower_case, dtype, strip_accents, bert_config_file, step):
    """The checkpoint, checked, the contents of `run.json` ({} without one), and a Keras policy."""
    named = {"bert_config_file": bert_config_file, "vocab_file": vocab_file}
    local_paths.require_local(folder=folder, **named)
    quiet_tensorflow.import_keras()  # takes seconds, so not before it is needed
    from official_bert.checkpoints import model_folder, sources
    from official_bert.stages import DTYPE_POLICIES
    from official_bert.training import fine_tuned, model_directory

    if dtype not in DTYPE_POLICIES:
        raise ValueError(f"dtype must be {' or '.join(DTYPE_POLICIES)}; got {dtype!r}.")
    path = pathlib.Path(folder)
    model = model_folder.ModelFolder(path if path.is_dir() else path.parent)
    run = (model.run_folder and model_directory.read_run_json(model.run_folder)) or {}
    source = sources.open_checkpoint(
        _newest(path, run) if step is None else _at(path, run, step),
        do_lower_case=do_lower_case,
        strip_accents=strip_accents,
        **named,
    )
    if source.vocab_file is None:
        raise model.no_vocabulary()
    if depth := fine_tuned.depth_at(run, step) if step is not None else None:
        config = dataclasses.replace(source.config, num_hidden_layers=depth)
        source = dataclasses.replace(source, config=config)
    _check(source, folder)
    return source, run, DTYPE_POLICIES[dtype]


def _newest(path, run):
    """The newest whole checkpoint of a run's folder; for other folders and files, the path."""
    if not path.is_dir():
        return path
    if any(path.glob("ctl_step_*.json")):
        from official_bert.training import fine_tuned

        checkpoint = fine_tuned.newest(path, run)
        return checkpoint.prefix if checkpoint else path
    _require_one_run(path)
    return path


def _at(path, run, step):
    """The weights of a run at a step."""
    from official_bert.training import fine_tuned

    _require_one_run(path)
    if not (path / "run.json").is_file():
        raise ValueError(
            f"step must be left out except for the folder of a run; got {step!r} for {path}. Leave "
            "it out, or give the folder with the run.json."
        )
    return fine_tuned.prefix_at(path, run, step)


def _require_one_run(path):
    seeds = sorted(file.parent.name for file in path.glob("seed_*/run.json"))
    if seeds:
        raise ValueError(
            f"{path} must be the folder of one run; got the runs of several seeds "
            f"({', '.join(seeds)}). Give one of their folders, such as {path / seeds[0]}."
        )


def _check(source, folder):
    from official_bert.checkpoints import names
    from official_bert.data import tokenization

    has_unknown_head = not _head(source) and source.unmatched and not source.is_larger
    if "encoder" not in source.parts or has_unknown_head:
        held = names.listed([*source.parts, *source.unmatched]) or "nothing"
        raise ValueError(
            f"{folder} must contain an encoder, bare or with a head for masked words, for sentence "
            f"classes, for answers or for tags; got {held} ({source.path}, {source.format}). "
            + (
                "Its head is of an unknown task: to use only its encoder, convert it with "
                "--allow_missing_heads."
                if "encoder" in source.parts
                else "Give the folder of another model."
            )
        )
    bare = [part for part in source.parts if part in ("encoder", "pooler")]
    needed = {"masked_lm": ("encoder", "masked_lm"), None: bare}.get(_head(source))
    needed = needed or source.head.reads
    source.check(needed, ignore_unmatched=not source.is_larger)
    vocabulary = tokenization.read_vocabulary(str(source.vocab_file))
    tokenization.check_case(vocabulary, str(source.vocab_file), source.do_lower_case)
    if source.config.vocab_size - len(vocabulary) > _MOST_PADDING:
        raise ValueError(
            f"{source.vocab_file} must have the {source.config.vocab_size:,} tokens of the model "
            f"in {folder}; got {len(vocabulary):,}. Give the model's own vocabulary (vocab_file=…)."
        )


# The kinds of models


def _model(source, policy):
    """The model of a source with its weights; unused heads that it lacks are 0."""
    import numpy as np

    from official_bert.checkpoints import keras_files
    from official_bert.checkpoints.source import ENCODER
    from official_bert.training import model_state

    kind = source.kind if _head(source) else ENCODER  # also of a next-sentence head alone
    make = keras_files.model_class(kind.model)
    model = make(source.config, **source.model_arguments, seed=None, dtype=policy)
    fresh = model_state.load_weights(model, source.path).fresh
    for variable in model.weights:
        if variable.path in fresh:
            variable.assign(np.zeros(variable.shape, np.float32))
    return model


def _labels(source, outputs):
    from official_bert.checkpoints import hugging_face
    from official_bert.tasks import labels

    unnamed = {"number": [None, None]} if outputs == 1 else None
    contents = source.labels or unnamed or {"classes": hugging_face.default_classes(outputs)}
    try:
        found = labels.from_json(contents)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the labels next to {source.path} are damaged: {error}") from None
    number = 1 if isinstance(found, labels.Numbers) else len(found.names)
    if number != outputs:
        raise ValueError(
            f"the labels next to {source.path} must be {outputs}, as the outputs of the model; got "
            f"{number}. Correct them in its folder."
        )
    return found
