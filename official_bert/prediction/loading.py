"""Loads a model for use from a folder: finds the checkpoint, its kind, and fills the model.

TensorFlow takes seconds to import, so it is imported when a model is loaded.
"""

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

_MOST_PADDING = 63  # embeddings beyond the vocabulary: tables are padded to multiples of 8 or 64


def load(
    folder: str | os.PathLike,
    vocab_file: str | os.PathLike | None = None,
    do_lower_case: bool | None = None,
    dtype: str = "fp32",
) -> "BlankFiller | SentenceClassifier | QuestionAnswerer | TextEncoder":
    """The function that `official_bert.load` calls; see there."""
    source, run, policy = _open(folder, vocab_file, do_lower_case, dtype)
    make = {
        "classifier": _sentence_classifier,
        "question_answering": _question_answerer,
        "masked_lm": _blank_filler,
    }.get(_head(source), _text_encoder)
    return make(source, run, policy)


def _head(source):
    """The name of the part that predicts; None for a bare encoder."""
    if source.head:
        return source.head.part
    return "masked_lm" if "masked_lm" in source.parts else None


def load_untrained(
    folder: str | os.PathLike,
    vocab_file: str | os.PathLike | None = None,
    do_lower_case: bool | None = None,
) -> "BlankFiller":
    """The `BlankFiller` before the first step of a pre-training run.

    Raises:
        ValueError: as `load`; or the folder is not that of such a run.
    """
    source, run, policy = _open(folder, vocab_file, do_lower_case, "fp32")
    if source.head or "seed" not in run:
        raise ValueError(f"{folder} must be the folder of a pre-training run; got another.")
    from official_bert.model.pretrainer import BertPretrainer
    from official_bert.prediction.predictors import BlankFiller
    from official_bert.training import model_state

    model = BertPretrainer(source.config, seed=run["seed"], dtype=policy)
    if run["init_checkpoint"]:
        model_state.load_weights(model, run["init_checkpoint"])
    return BlankFiller(model, _tokenizer(source), f"the start of {folder}")


def _open(folder, vocab_file, do_lower_case, dtype):
    """The checkpoint, checked, the contents of `run.json` ({} without one), and a Keras policy."""
    local_paths.require_local(folder=folder, vocab_file=vocab_file)
    quiet_tensorflow.import_tensorflow()  # takes seconds, so not before it is needed
    from official_bert.checkpoints import model_folder, sources
    from official_bert.stages import DTYPE_POLICIES
    from official_bert.training import model_directory

    if dtype not in DTYPE_POLICIES:
        raise ValueError(f"dtype must be {' or '.join(DTYPE_POLICIES)}; got {dtype!r}.")
    path = pathlib.Path(folder)
    model = model_folder.ModelFolder(path if path.is_dir() else path.parent)
    run = (model.run_folder and model_directory.read_run_json(model.run_folder)) or {}
    source = sources.open_checkpoint(
        _newest(path, run), vocab_file=vocab_file, do_lower_case=do_lower_case
    )
    if source.vocab_file is None:
        raise model.no_vocabulary()
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
    seeds = sorted(file.parent.name for file in path.glob("seed_*/run.json"))
    if seeds:
        raise ValueError(
            f"{path} must be the folder of one run; got the runs of several seeds "
            f"({', '.join(seeds)}). Give one of their folders, such as {path / seeds[0]}."
        )
    return path


def _check(source, folder):
    from official_bert.checkpoints import names
    from official_bert.data import tokenization

    has_unknown_head = not _head(source) and source.unmatched and not source.is_larger
    if "encoder" not in source.parts or has_unknown_head:
        held = names.listed([*source.parts, *source.unmatched]) or "nothing"
        raise ValueError(
            f"{folder} must contain an encoder, bare or with a head for masked words, for sentence "
            f"classes or for answers; got {held} ({source.path}, {source.format}). "
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


def _blank_filler(source, run, policy):
    from official_bert.model.pretrainer import BertPretrainer
    from official_bert.prediction.predictors import BlankFiller

    model = _filled(BertPretrainer(source.config, seed=None, dtype=policy), source)
    return BlankFiller(model, _tokenizer(source), _origin(source))


def _text_encoder(source, run, policy):
    from official_bert.model.encoder import BertEncoder
    from official_bert.prediction.predictors import TextEncoder

    return TextEncoder(
        _filled(BertEncoder(source.config, seed=None, dtype=policy), source),
        _tokenizer(source),
        max_seq_length=_max_seq_length(source, run),
        has_pooler="pooler" in source.parts,
        origin=_origin(source),
    )


def _sentence_classifier(source, run, policy):
    from official_bert.model.classifier import BertClassifier
    from official_bert.prediction.predictors import SentenceClassifier

    outputs = source.head_weights["output_bias"].shape[0]
    model = BertClassifier(source.config, outputs, seed=None, dtype=policy)
    return SentenceClassifier(
        _filled(model, source),
        _tokenizer(source),
        _labels(source, outputs),
        max_seq_length=_max_seq_length(source, run),
        takes_pairs=run["columns"]["sentence2"] is not None if "columns" in run else None,
        origin=_origin(source),
    )


def _question_answerer(source, run, policy):
    from official_bert.model.question_answering import BertQuestionAnswering
    from official_bert.prediction.predictors import QuestionAnswerer

    model = BertQuestionAnswering(source.config, seed=None, dtype=policy)
    return QuestionAnswerer(
        _filled(model, source),
        source.vocab_file,
        source.do_lower_case,
        windows=_windows(source, run),
        version_2_with_negative=run.get("version_2_with_negative", False),
        origin=_origin(source),
    )


def _windows(source, run):
    """The windows of the run; else the official script's, shortened to the model's positions."""
    from official_bert.tasks.squad_data import Windows

    if "windows" in run:
        return Windows(**run["windows"])
    longest = min(Windows.max_seq_length, source.max_length)
    return Windows(longest, doc_stride=longest // 3, max_query_length=longest // 6)


def _labels(source, outputs):
    from official_bert.checkpoints import hugging_face
    from official_bert.tasks import labels

    unnamed = {"number": [None, None]} if outputs == 1 else None
    contents = source.labels or unnamed or {"classes": hugging_face.default_classes(outputs)}
    try:
        found = labels.from_json(contents)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the labels next to {source.path} are damaged: {error}") from None
    number = len(found.names) if isinstance(found, labels.Classes) else 1
    if number != outputs:
        raise ValueError(
            f"the labels next to {source.path} must be {outputs}, as the outputs of the model; got "
            f"{number}. Correct them in its folder."
        )
    return found


def _filled(model, source):
    """The model with the weights of a source; unused heads that it lacks are 0."""
    import numpy as np

    from official_bert.training import model_state

    fresh = model_state.load_weights(model, source.path).fresh
    for variable in model.weights:
        if variable.path in fresh:
            variable.assign(np.zeros(variable.shape, np.float32))
    return model


def _tokenizer(source):
    from official_bert.data import tokenization

    return tokenization.load(str(source.vocab_file), source.do_lower_case)


def _max_seq_length(source, run):
    stages = run.get("stages")
    return stages[-1]["max_seq_length"] if stages else source.max_length


def _origin(source):
    return f"{source.path} ({source.format})"
