"""Hugging Face's format of a BERT: its names, old and new, and its `config.json`."""

import json
import os
import pathlib
import re
from collections.abc import Mapping
from pathlib import Path

from official_bert.checkpoints import names, safetensors_files
from official_bert.checkpoints.source import (
    CLASSIFIER,
    LABELS,
    QUESTION_ANSWERING,
    TAGGER,
    Source,
    Tensor,
    output_names,
)
from official_bert.data import tokenization
from official_bert.model.config import BertConfig
from official_bert.system.whole_files import json_object

_TO_HF = {"gelu": "gelu_new", "gelu_erf": "gelu"}  # "gelu" is the exact one there
_ARCHITECTURES = {
    ("encoder",): "BertModel",
    ("encoder", "pooler"): "BertModel",
    ("encoder", "masked_lm"): "BertForMaskedLM",
    ("encoder", "pooler", "next_sentence"): "BertForNextSentencePrediction",
}  # of others: BertForPreTraining
_SEVERAL_LABELS = "multi_label_classification"
_COPIES = {  # variables that old files contain twice
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
    "bert.embeddings.position_ids": None,
}


def read(
    file: Path, config: BertConfig
) -> tuple[str, dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """("Hugging Face", weights by official name, {}, leftovers by their own name).

    The head of a fine-tuned model is among the leftovers, under our names.

    Raises:
        ValueError: a file is damaged, or holds two versions of a tied variable.
    """
    found, unmatched = {}, {}
    rows = {row.hugging_face: row for row in names.rows(config)}
    held = _safetensors(file)
    tensors = {_modern(name): tensor for name, tensor in held.items()}
    if len(tensors) < len(held):
        raise ValueError(f"{file} must hold each variable once; got one by its old and new name.")
    for copy, original in _COPIES.items():
        _take_out_copy(file, tensors, copy, original)
    for name, tensor in tensors.items():
        row = rows.get(name)
        if row is None:
            unmatched[name] = tensor
        elif "hugging_face" in row.transposed and len(tensor.shape) == 2:
            found[row.official] = tensor.transposed()
        else:
            found[row.official] = tensor
    left_over = _with_our_names(unmatched, json_object(file.parent / "config.json"))
    return "Hugging Face", found, {}, left_over


def write_config(source: Source) -> dict:
    """The content of `config.json`."""
    config = json.loads(source.config.to_json())
    file = source.vocab_file
    vocabulary = tokenization.read_vocabulary(str(file)) if file else {}
    kinds = {str(t.dtype) for t in (*source.weights.values(), *source.head_weights.values())}
    return {
        "architectures": [_ARCHITECTURES.get(source.parts, "BertForPreTraining")],
        "model_type": "bert",
        **config,
        "hidden_act": _TO_HF.get(config["hidden_act"], config["hidden_act"]),
        "layer_norm_eps": 1e-12,
        "pad_token_id": vocabulary.get(tokenization.PAD, 0),
        "position_embedding_type": "absolute",
        "dtype": kinds.pop() if len(kinds) == 1 else "float32",
    } | (_config_of_head(source) if source.head else {})


def _safetensors(file):
    """The tensors of one file, or of all files in an index."""
    if file.suffix != ".json":
        return safetensors_files.read(file)
    try:
        places = json.loads(file.read_text(encoding="utf-8"))["weight_map"]
        shards = {str(name) for name in places.values()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} is damaged: its weight_map is not readable ({error}).") from None
    for shard in shards:
        shown = names.printable(shard)
        if pathlib.PurePath(shard).name != shard or "\\" in shard:
            raise ValueError(f"{file} must name files in its own folder; got {shown!r}.")
        if not os.path.isfile(file.parent / shard):  # False of names that no system takes, too
            raise ValueError(f"{file} names {shown}, which is missing. Copy it to the same folder.")
    held = {shard: safetensors_files.read(file.parent / shard) for shard in sorted(shards)}
    missing = [name for name, shard in places.items() if name not in held[shard]]
    if missing:
        raise ValueError(
            f"{file} lists weights that are missing from their files: {names.listed(missing)}. "
            "Copy all files of the model again."
        )
    return {name: held[shard][name] for name, shard in places.items()}


def _modern(name):
    """Today's name of a variable of older files or files without heads."""
    name = re.sub(r"(?<=\.LayerNorm\.)gamma$", "weight", name)
    name = re.sub(r"(?<=\.LayerNorm\.)beta$", "bias", name)
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name


def _take_out_copy(file, tensors, copy, original):
    if copy not in tensors:
        return
    tensor = tensors.pop(copy)
    if original is None:
        return
    if original not in tensors:
        tensors[original] = tensor
    elif tensor.read().tobytes() != tensors[original].read().tobytes():  # NaN is unlike itself
        raise ValueError(
            f"{copy} must equal {original} in {file}, since BERT ties them; got other values."
        )


# Heads of fine-tuned models


def _with_our_names(unmatched: Mapping[str, Tensor], values: dict) -> dict[str, Tensor]:
    """The same tensors, with a head under our names.

    Heads for sentences, words and multiple choice are all called `classifier`, with the same
    shapes: only the configuration distinguishes them.
    """
    heads = [QUESTION_ANSWERING]
    heads += [CLASSIFIER] if _classifies_sentences(values, unmatched) else []
    heads += [TAGGER] if _is_for(TAGGER, values) else []
    ours = {theirs: name for head in heads for name, theirs in head.variables.items()}
    return {ours.get(name, name): tensor for name, tensor in unmatched.items()}


def _is_for(head, values):
    architectures = values.get("architectures")
    return isinstance(architectures, list) and head.architecture in architectures


def _classifies_sentences(values, unmatched):
    if not _is_for(CLASSIFIER, values):
        return False
    kind = values.get("problem_type")
    bias = unmatched.get("classifier.bias")
    is_number = bias is not None and bias.shape == (1,)
    own = "regression" if is_number else "single_label_classification"
    return kind in (None, own, _SEVERAL_LABELS)


def _config_of_head(source: Source) -> dict:
    """The entries of `config.json` for a head; a ValueError if the labels do not fit it."""
    assert source.head
    entries: dict = {"architectures": [source.head.architecture]}
    names = classes(source)
    if not names:
        return entries
    entries |= {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }
    if source.head is CLASSIFIER:
        kind = "regression" if len(names) == 1 else "single_label_classification"
        entries["problem_type"] = _SEVERAL_LABELS if source.predicts_labels else kind
    return entries


def classes(source: Source) -> list[str]:
    """The names of the outputs of a head; none where they are not classes.

    Raises:
        ValueError: the labels do not fit the head.
    """
    outputs = source.model_arguments.get("num_outputs", 0)
    names = output_names(source.labels) or default_classes(outputs)
    if outputs and len(names) != outputs:
        raise ValueError(
            f"{LABELS} must name {outputs} classes, one per output of the head; got {len(names)}."
        )
    return names if outputs else []


def default_classes(outputs: int) -> list[str]:
    """Hugging Face's names of unnamed classes."""
    return [f"LABEL_{number}" for number in range(outputs)]


def labels(values: dict, outputs: int, file: str | os.PathLike) -> dict:
    """The content of `labels.json` for a classifier or tagger, from that of `config.json`.

    Raises:
        ValueError: it does not name each class.
    """
    several = _is_for(CLASSIFIER, values) and values.get("problem_type") == _SEVERAL_LABELS
    if outputs == 1 and not several:
        return {"number": [None, None]}
    names = values.get("id2label", dict(enumerate(default_classes(outputs))))
    try:
        found = {int(number): str(name) for number, name in names.items()}
        kind = "labels" if several else "classes"
        return {kind: [found[number] for number in range(outputs)]}
    except (KeyError, ValueError, AttributeError):
        raise ValueError(
            f"id2label in {file} must name each of {outputs} classes; got {names!r:.99}."
        ) from None
