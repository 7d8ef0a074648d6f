"""A small random model of every kind that `official_bert.load` knows, as its run leaves it."""

import json

import numpy as np
from bert_checkpoints import make_source, random_tensors
from bert_shapes import tiny

from official_bert.training import checkpoints

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
CLASSES = ["no", "maybe", "yes"]
# The prefix of a head's variables, the number of its outputs, and its labels.
HEADS = {
    "blanks": None,
    "classes": ("", len(CLASSES), {"classes": CLASSES}),
    "labels": ("", len(CLASSES), {"labels": CLASSES}),
    "number": ("", 1, {"number": [-1, 1]}),
    "answers": ("cls/squad/", 2, None),
    "tags": ("cls/tags/", len(TAGS), {"classes": TAGS}),
    "vectors": None,
}


CONFIG = tiny(num_hidden_layers=1, hidden_act="gelu_erf")  # as most models of the hub have it


def make_kind(kind, folder, config=CONFIG):
    """Writes a model of a kind in a new folder."""
    make_source(folder, config)
    if kind == "blanks":
        return
    tensors = {n: a for n, a in random_tensors(config).items() if not n.startswith("cls/")}
    if HEADS[kind]:
        prefix, outputs, labels = HEADS[kind]
        rng = np.random.default_rng(3)
        for name, shape in ("weights", (outputs, config.hidden_size)), ("bias", (outputs,)):
            tensors[f"{prefix}output_{name}"] = rng.normal(0, 0.4, shape).astype("f4")
        if labels:
            (folder / "labels.json").write_text(json.dumps(labels))
    checkpoints.write_bundle(folder / "bert_model.ckpt", tensors)
