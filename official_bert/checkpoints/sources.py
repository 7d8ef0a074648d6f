"""Opens a checkpoint of any format, recognised from its content, as a `Source`."""

import dataclasses
import json
import os
import pathlib

from official_bert.checkpoints import hugging_face, keras_files, model_folder
from official_bert.checkpoints.model_folder import ModelFolder
from official_bert.checkpoints.source import HEADS, Head, Source, Tensor
from official_bert.data import tokenization, tokenizer_settings
from official_bert.data.tokenization import Casing
from official_bert.model.config import BertConfig
from official_bert.system import local_paths, places, quiet_tensorflow
from official_bert.system.whole_files import json_object

_SAME = {"gelu_new": "gelu"}  # two names of one activation


def open_checkpoint(
    path: str | os.PathLike,
    *,
    bert_config_file: str | os.PathLike | None = None,
    vocab_file: str | os.PathLike | None = None,
    do_lower_case: Casing | None = None,
    strip_accents: bool | None = None,
) -> Source:
    """Opens a checkpoint of any format; see `Source`.

    Args:
        path: A folder, a checkpoint's prefix, or one of its files.
        bert_config_file: Its configuration. Default: `bert_config.json` or `config.json` in its
            folder, for Hugging Face's format the second first.
        vocab_file: Its vocabulary. Default: the one in its folder, if any.
        do_lower_case: Whether the vocabulary is uncased. Default: as in its run, `tokenizer.json`
            or `tokenizer_config.json`, or else True if it has no upper-case letter.
        strip_accents: Whether lower-cased text loses its accents. Default: as in the same files, or
            else True.

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
    source = dataclasses.replace(source, run_folder=model.run_folder)
    if model.vocab_file is None:
        return source
    vocabulary = tokenization.read_vocabulary(str(model.vocab_file))
    tokenization.require_within(config.vocab_size, vocabulary, str(model.vocab_file))
    lower = model.casing(do_lower_case, strip_accents)
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
        trained_length=model.trained_length,
        trained_windows=model.trained_windows,
    )


def open_as_init(config: BertConfig, path: str | os.PathLike) -> Source:
    """Opens a checkpoint of any format to initialize a model with this configuration.

    A fine-tuned head is left over. A URL such as `gs://bucket/a.ckpt` must be of a TensorFlow
    checkpoint.

    Raises:
        ValueError: as `open_checkpoint`; or the checkpoint's configuration gives the same weights
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
        model_folder.require_no_other_scope(kind, file, unmatched)
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
    """The source with a fine-tuned head recognised, unless it has pre-training's heads."""
    head, tensors, slots, unmatched = _take_head(source.unmatched, source.config.hidden_size)
    if not head or "masked_lm" in source.parts:
        return source
    return dataclasses.replace(
        source,
        head=head,
        head_weights=tensors,
        slots=source.slots | slots,
        unmatched=unmatched,
        labels=None if head.outputs else _labels(model, head.num_outputs(tensors)),
    )


def _labels(model: ModelFolder, outputs):
    if model.kind == "hugging_face":
        file = model.folder / "config.json"
        return hugging_face.labels(json_object(file), outputs, file)
    return _read_labels(model.labels_file) if model.labels_file else None


def _take_head(
    unmatched: dict[str, Tensor], hidden_size: int
) -> tuple[Head | None, dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """The one whole `Head` in `unmatched` or None, its tensors, its moments, and the rest."""
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
    """The content of a `labels.json`; a ValueError if it is damaged."""
    try:
        labels = json.loads(pathlib.Path(file).read_text("utf-8"))
        for kind in "classes", "labels":
            names = labels.get(kind, [])
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise ValueError(f"{kind} must be a list of names; got {names!r:.99}")
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{file} must hold the labels of a model; got a damaged file ({error}). Restore it."
        ) from None
    return labels


def _check_same_meaning(config, other, file):
    """Raises ValueError if the two models differ in a way that the shapes do not show."""
    for name in "num_attention_heads", "hidden_act":
        own, found = getattr(config, name), getattr(other, name)
        if _SAME.get(own, own) != _SAME.get(found, found):
            raise ValueError(
                f"{name} must be {found!r}, with which the weights next to {file} were trained; "
                f"got {own!r}, which gives other results. Leave --bert_config_file out, or set "
                f"{_SAME.get(found, found)!r} in it."
            )


# The readers: (file, config) → (format, weights and slots, counters, left over)


def _read_bundle(prefix, config):
    quiet_tensorflow.import_keras()  # which the reader imports
    from official_bert.checkpoints import tensor_bundles

    return tensor_bundles.read_bert(prefix, config)


def _read_keras(file, config):
    _check_same_meaning(config, keras_files.read_config(file), file)
    return keras_files.read(file, config)


_READERS = {"bundle": _read_bundle, "keras": _read_keras, "hugging_face": hugging_face.read}
