"""The head of a fine-tuned classifier: two variables beside the encoder's, and its classes."""

import json
import os
import pathlib
from collections.abc import Mapping

from official_bert.conversion.tensors import Tensor

# Our names, those of TensorFlow 1, and Hugging Face's; both have the shapes (K, H) and (K,).
NAMES = {"output_weights": "classifier.weight", "output_bias": "classifier.bias"}
_SLOTS = tuple(f"{name}/adam_{slot}" for name in NAMES for slot in "mv")


def take(
    left_over: dict[str, Tensor],
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Takes a head out of what belongs to no BERT.

    Args:
        left_over: {name: `Tensor`}.

    Returns:
        The tensors of the head, its moments, and what remains. Without a whole head, all of it
        remains.
    """
    if not NAMES.keys() <= left_over.keys():
        return {}, {}, left_over
    head = {name: left_over[name] for name in NAMES}
    slots = {name: left_over[name] for name in _SLOTS if name in left_over}
    remaining = {n: t for n, t in left_over.items() if n not in head and n not in slots}
    return head, slots, remaining


def hugging_face_config(head: Mapping[str, Tensor], labels_file: str | os.PathLike | None) -> dict:
    """The entries of Hugging Face's `config.json` for a head.

    Args:
        head: The tensors of the head.
        labels_file: Our `labels.json`; `None` gives the classes numbers for names.

    Raises:
        ValueError: the file does not fit the head.
    """
    (outputs,) = head["output_bias"].shape
    labels = json.loads(pathlib.Path(labels_file).read_text("utf-8")) if labels_file else {}
    names = labels.get("classes", [f"LABEL_{number}" for number in range(outputs)])
    if len(names) != outputs:
        raise ValueError(f"{labels_file} has {len(names)} classes, but the head has {outputs}.")
    return {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": "regression" if outputs == 1 else "single_label_classification",
    }
