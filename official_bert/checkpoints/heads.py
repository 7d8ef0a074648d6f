"""Heads of fine-tuned models: two variables beside the encoder's, and a classifier's labels."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import NamedTuple

from official_bert.checkpoints.tensors import Tensor


class Head(NamedTuple):
    """A kind of head, a dense layer with K outputs.

    Attributes:
        part: What messages call it.
        variables: Names of its weights (K, H) and bias (K,), ours and those of TensorFlow 1:
            Hugging Face's, which have the same shapes.
        architecture: Hugging Face's class.
        reads: Those of `names.PARTS` that its outputs depend on.
        outputs: K; `None` if it is the number of classes.
    """

    part: str
    variables: dict[str, str]
    architecture: str
    reads: tuple[str, ...]
    outputs: int | None = None


CLASSIFIER = Head(
    "classifier",
    {"output_weights": "classifier.weight", "output_bias": "classifier.bias"},
    "BertForSequenceClassification",
    ("encoder", "pooler"),
)
QUESTION_ANSWERING = Head(
    "question_answering",
    {
        "cls/squad/output_weights": "qa_outputs.weight",
        "cls/squad/output_bias": "qa_outputs.bias",
    },
    "BertForQuestionAnswering",
    ("encoder",),
    outputs=2,
)
HEADS = (CLASSIFIER, QUESTION_ANSWERING)
LABELS = "labels.json"


def take(
    left_over: dict[str, Tensor], hidden_size: int
) -> tuple[Head | None, dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Takes a head out of what belongs to no BERT.

    Args:
        left_over: {name: `Tensor`}.
        hidden_size: H.

    Returns:
        The `Head`, its tensors, its moments, and what remains. Without a whole head, or with two,
        `None`, and all of it remains.
    """
    found = [head for head in HEADS if _is_whole(head, left_over, hidden_size)]
    if len(found) != 1:
        return None, {}, {}, left_over
    tensors = {name: left_over[name] for name in found[0].variables}
    slots = {f"{name}/adam_{slot}" for name in tensors for slot in "mv"} & left_over.keys()
    remaining = {n: t for n, t in left_over.items() if n not in tensors and n not in slots}
    return found[0], tensors, {name: left_over[name] for name in sorted(slots)}, remaining


def _is_whole(head, left_over, hidden_size):
    weights, bias = (left_over.get(name) for name in head.variables)
    if weights is None or bias is None or len(bias.shape) != 1:
        return False
    outputs = bias.shape[0]
    return weights.shape == (outputs, hidden_size) and outputs == (head.outputs or outputs)


# Hugging Face's form


def with_our_names(left_over: Mapping[str, Tensor], values: dict) -> dict[str, Tensor]:
    """The same tensors, those of a head in Hugging Face's form under our names.

    `classifier` is also what heads for other tasks are called, of the same shapes: for tokens,
    multiple choice, or several labels at once. So it is one for sentences only where the
    configuration says so.

    Args:
        left_over: {Hugging Face's name: `Tensor`}.
        values: What `config.json` holds.
    """
    ours = {theirs: name for name, theirs in QUESTION_ANSWERING.variables.items()}
    if _classifies_sentences(values, left_over):
        ours |= {theirs: name for name, theirs in CLASSIFIER.variables.items()}
    return {ours.get(name, name): tensor for name, tensor in left_over.items()}


def _classifies_sentences(values, left_over):
    architectures, kind = values.get("architectures"), values.get("problem_type")
    if not isinstance(architectures, list) or CLASSIFIER.architecture not in architectures:
        return False
    bias = left_over.get("classifier.bias")
    is_number = bias is not None and bias.shape == (1,)
    return kind in (None, "regression" if is_number else "single_label_classification")


def hugging_face_config(head: Head, tensors: Mapping[str, Tensor], labels: dict | None) -> dict:
    """The entries of Hugging Face's `config.json` for a head.

    Args:
        head: The `Head`.
        tensors: Its tensors.
        labels: What our `labels.json` holds; `None` gives the classes numbers for names.

    Raises:
        ValueError: the labels do not fit the head.
    """
    entries = {"architectures": [head.architecture]}
    if head is not CLASSIFIER:
        return entries
    outputs = tensors["output_bias"].shape[0]
    names = (labels or {}).get("classes", default_classes(outputs))
    if len(names) != outputs:
        raise ValueError(
            f"{LABELS} must name {outputs} classes, one per output of the head; got {len(names)}."
        )
    return entries | {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": "regression" if outputs == 1 else "single_label_classification",
    }


def default_classes(outputs: int) -> list[str]:
    """Hugging Face's names of classes that nobody has named."""
    return [f"LABEL_{number}" for number in range(outputs)]


# Labels, as `labels.json` holds them


def read_labels(file: str | os.PathLike) -> dict:
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


def labels_of_hugging_face(values: dict, outputs: int, file: str | os.PathLike) -> dict:
    """The same from Hugging Face's configuration.

    Args:
        values: What `config.json` holds.
        outputs: The number of outputs of the head.
        file: The path of `config.json`, for an error.

    Raises:
        ValueError: it does not name each class.
    """
    if outputs == 1:
        return {"number": [None, None]}
    names = values.get("id2label", dict(enumerate(default_classes(outputs))))
    try:
        found = {int(number): str(name) for number, name in names.items()}
        return {"classes": [found[number] for number in range(outputs)]}
    except (KeyError, ValueError, AttributeError):
        raise ValueError(
            f"id2label in {file} must name each of {outputs} classes; got {names!r:.99}."
        ) from None
