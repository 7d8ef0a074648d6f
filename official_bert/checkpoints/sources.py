"""Opens a checkpoint of any format. The format is recognised from the content, never guessed.

The result is the same for all formats: `Tensor`s with the official names and layout, the
configuration, the vocabulary, and the names of all variables that belong to no BERT.
"""

import dataclasses
import importlib.util
import json
import os
import pathlib

from official_bert.checkpoints import finding, hugging_face, keras_files, model_folder
from official_bert.checkpoints.model_folder import ModelFolder
from official_bert.checkpoints.source import CLASSIFIER, HEADS, Head, Source, Tensor
from official_bert.data import tokenization, tokenizer_settings
from official_bert.data.tokenization import Casing
from official_bert.model.config import BertConfig
from official_bert.system import local_paths, places, quiet_tensorflow

_SAME = {"gelu_new": "gelu"}  # two names of one activation


def open_checkpoint(
    path: str | os.PathLike,
    *,
    bert_config_file: str | os.PathLike | None = None,
    vocab_file: str | os.PathLike | None = None,
    do_lower_case: Casing | None = None,
) -> Source:
    """Opens a checkpoint of any format; see `Source`.

    Args:
        path: A folder, a checkpoint's prefix, or one of its files.
        bert_config_file: Its configuration; default: `bert_config.json` or `config.json` of its
            folder. For Hugging Face's format the second is preferred.
        vocab_file: Its vocabulary; default: that of its folder, if there is one.
        do_lower_case: Whether the vocabulary is uncased; default: what its run, `tokenizer.json` or
            `tokenizer_config.json` says, or else True if it has no upper-case letter.

    Raises:
        ValueError: there is no checkpoint, it is not a BERT's, or it is damaged.
        OSError: a file cannot be read.
    """
    file, model = model_folder.of(path, bert_config_file=bert_config_file, vocab_file=vocab_file)
    if model.kind == "keras" and model.config_file is None:
        config = keras_files.read_config(file)
    else:
        config = model.config()
    source = _with_head(_open(model.kind, file, config), model)
    if model.vocab_file is None:
        return source
    vocabulary = tokenization.read_vocabulary(str(model.vocab_file))
    tokenization.require_within(config.vocab_size, vocabulary, str(model.vocab_file))
    lower = model.casing(do_lower_case)
    if lower:
        tokenization.require_uncased(vocabulary, str(model.vocab_file))
    model.check_run_vocabulary()
    return dataclasses.replace(
        source,
        vocab_file=model.vocab_file,
        do_lower_case=lower,
        max_length=min(
            config.max_position_embeddings,
            tokenizer_settings.max_length(model.vocab_file) or config.max_position_embeddings,
        ),
    )


def open_as_init(config: BertConfig, path: str | os.PathLike) -> Source:
    """Opens a checkpoint of any format, as the start of a model with this configuration.

    Variables that pre-training does not have, such as a fine-tuned head, are left over. An address
    such as `gs://bucket/a.ckpt` must be of a TensorFlow checkpoint.

    Raises:
        ValueError: as `open_checkpoint`; or a configuration beside it gives the same weights
            another meaning.
        OSError: a file cannot be read.
    """
    if local_paths.is_address(path):
        return _open("bundle", str(places.as_path(path)), config)
    file, model = model_folder.of(path)
    if model.config_file:
        _check_same_meaning(config, model.config(), model.config_file)
    source = _open(model.kind, file, config)
    return dataclasses.replace(source, labels=_with_head(source, model).labels)


def _open(kind, file, config):
    format, found, counters, unmatched = _READERS[kind](file, config)
    if kind != "keras" and not any(name.startswith("bert/") for name in found):
        finding.require_no_other_scope(kind, file, unmatched)
    return Source(
        path=str(file),
        format=format,
        weights={n: t for n, t in found.items() if not n.endswith(("/adam_m", "/adam_v"))},
        slots={n: t for n, t in found.items() if n.endswith(("/adam_m", "/adam_v"))},
        counters=counters,
        unmatched=unmatched,
        config=config,
    )


def _with_head(source, model):
    """The source with the head of a fine-tuned model apart; not beside pre-training's."""
    head, tensors, slots, unmatched = _take_head(source.unmatched, source.config.hidden_size)
    if not head or "masked_lm" in source.parts:
        return source
    return dataclasses.replace(
        source,
        head=head,
        head_weights=tensors,
        slots=source.slots | slots,
        unmatched=unmatched,
        labels=_labels(model, tensors) if head is CLASSIFIER else None,
    )


def _labels(model: ModelFolder, head_weights):
    if model.kind == "hugging_face":
        (outputs,) = head_weights["output_bias"].shape
        file = model.folder / "config.json"
        return hugging_face.labels(hugging_face.values_in(file), outputs, file)
    return _read_labels(model.labels_file) if model.labels_file else None


def _take_head(
    unmatched: dict[str, Tensor], hidden_size: int
) -> tuple[Head | None, dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Takes a head out of what belongs to no BERT.

    Args:
        unmatched: {name: `Tensor`}.
        hidden_size: H.

    Returns:
        The `Head`, its tensors, its moments, and what remains. Without a whole head, or with two,
        `None`, and all of it remains.
    """
    found = [head for head in HEADS if _is_whole(head, unmatched, hidden_size)]
    if len(found) != 1:
        return None, {}, {}, unmatched
    tensors = {name: unmatched[name] for name in found[0].variables}
    slots = {f"{name}/adam_{slot}" for name in tensors for slot in "mv"} & unmatched.keys()
    remaining = {n: t for n, t in unmatched.items() if n not in tensors and n not in slots}
    return found[0], tensors, {name: unmatched[name] for name in sorted(slots)}, remaining


def _is_whole(head, unmatched, hidden_size):
    weights, bias = (unmatched.get(name) for name in head.variables)
    if weights is None or bias is None or len(bias.shape) != 1:
        return False
    outputs = bias.shape[0]
    return weights.shape == (outputs, hidden_size) and outputs == (head.outputs or outputs)


def _read_labels(file: str | os.PathLike) -> dict:
    """Reads a `labels.json`; returns a dictionary.

    Raises:
        ValueError: it is damaged.
    """
    try:
        labels = json.loads(pathlib.Path(file).read_text("utf-8"))
        names = labels.get("classes")
        if not (names is None or all(isinstance(name, str) for name in names)):
            raise ValueError(f"classes must be a list of names; got {names!r:.99}")
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        raise ValueError(f"{file} is not a file of labels: {error}.") from None
    return labels


def _check_same_meaning(config, other, file):
    """Raises ValueError if the two models differ in a way that the shapes do not show."""
    for name in "num_attention_heads", "hidden_act":
        ours, theirs = (_SAME.get(v, v) for v in (getattr(config, name), getattr(other, name)))
        if ours != theirs:
            raise ValueError(
                f"The weights beside {file} were trained with {name}={getattr(other, name)!r}, but "
                f"the model has {getattr(config, name)!r}, which gives other results. "
                f"Leave --bert_config_file out, or set {theirs!r} in it."
            )


# The readers: (file, config) → (format, weights and slots, counters, left over)


def _read_bundle(prefix, config):
    if importlib.util.find_spec("tensorflow"):  # else Keras, which the reader imports, is on JAX
        quiet_tensorflow.import_tensorflow()
    from official_bert.checkpoints import tf_checkpoints

    return tf_checkpoints.read(prefix, config)


def _read_keras(file, config):
    _check_same_meaning(config, keras_files.read_config(file), file)
    return keras_files.read(file, config)


_READERS = {"bundle": _read_bundle, "keras": _read_keras, "hugging_face": hugging_face.read}
