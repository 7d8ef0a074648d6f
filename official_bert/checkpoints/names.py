"""The name of each BERT variable in each format: one row per variable, one column per format.

Our own models and checkpoints have the official TensorFlow 1 names, and every conversion uses them.
"""

from collections.abc import Collection
from typing import NamedTuple

from official_bert.model.config import BertConfig


class Row(NamedTuple):
    """One variable, or one per layer if the names contain `{i}`.

    Attributes:
        part: "encoder", "pooler", "masked_lm" or "next_sentence".
        shape: Its axes in the official layout, by letter: V word pieces, P positions, T segments, H
            hidden, F feed-forward, 2 literally.
        official: Its name in TensorFlow 1 checkpoints.
        hugging_face: Its name in `model.safetensors`; kernels are transposed there.
        tf_models: The end of its name in object checkpoints of tf-models, where attention's kernels
            have an axis for the heads.
        transposed: The formats whose layout is transposed.
    """

    part: str
    shape: str
    official: str
    hugging_face: str
    tf_models: str
    transposed: tuple[str, ...] = ()


_OF_HUGGING_FACE = {  # the last part of a name, except for embeddings
    **dict.fromkeys(("kernel", "gamma", "output_weights"), "weight"),
    **dict.fromkeys(("bias", "beta", "output_bias"), "bias"),
}


def _variable(part, shape, official, tf_models, transposed=()):
    scope, _, last = official.rpartition("/")
    scope = scope.replace("/", ".").replace("layer_{i}", "layer.{i}")
    hugging_face = f"{scope}.{_OF_HUGGING_FACE.get(last, f'{last}.weight')}"
    return Row(part, shape, official, hugging_face, tf_models, transposed)


def _dense(part, shape, official, tf_models):
    yield _variable(part, shape, f"{official}/kernel", f"{tf_models}/kernel", ("hugging_face",))
    yield _variable(part, shape[1], f"{official}/bias", f"{tf_models}/bias")


def _norm(part, official, tf_models):
    for name in "gamma", "beta":
        yield _variable(part, "H", f"{official}/LayerNorm/{name}", f"{tf_models}/{name}")


_LAYER, _OF_TF_MODELS = "bert/encoder/layer_{i}", "layer_{i}"
_ATTENTION, _HEAD = f"{_LAYER}/attention", "cls/predictions/transform"
_INPUT, _NEXT = "bert/embeddings", "cls/seq_relationship"

TABLE = (
    _variable("encoder", "VH", f"{_INPUT}/word_embeddings", "word_embeddings/embeddings"),
    _variable("encoder", "PH", f"{_INPUT}/position_embeddings", "position_embedding/embeddings"),
    _variable("encoder", "TH", f"{_INPUT}/token_type_embeddings", "type_embeddings/embeddings"),
    *_norm("encoder", _INPUT, "embeddings/layer_norm"),
    *_dense("encoder", "HH", f"{_ATTENTION}/self/query", f"{_OF_TF_MODELS}/self_attention/query"),
    *_dense("encoder", "HH", f"{_ATTENTION}/self/key", f"{_OF_TF_MODELS}/self_attention/key"),
    *_dense("encoder", "HH", f"{_ATTENTION}/self/value", f"{_OF_TF_MODELS}/self_attention/value"),
    *_dense(
        "encoder",
        "HH",
        f"{_ATTENTION}/output/dense",
        f"{_OF_TF_MODELS}/self_attention/attention_output",
    ),
    *_norm("encoder", f"{_ATTENTION}/output", f"{_OF_TF_MODELS}/self_attention_layer_norm"),
    *_dense("encoder", "HF", f"{_LAYER}/intermediate/dense", f"{_OF_TF_MODELS}/intermediate"),
    *_dense("encoder", "FH", f"{_LAYER}/output/dense", f"{_OF_TF_MODELS}/output"),
    *_norm("encoder", f"{_LAYER}/output", f"{_OF_TF_MODELS}/output_layer_norm"),
    *_dense("pooler", "HH", "bert/pooler/dense", "pooler_transform"),
    *_dense("masked_lm", "HH", f"{_HEAD}/dense", f"{_HEAD}/dense"),
    *_norm("masked_lm", _HEAD, f"{_HEAD}/LayerNorm"),
    _variable("masked_lm", "V", "cls/predictions/output_bias", "cls/predictions/output_bias/bias"),
    _variable(
        "next_sentence",
        "2H",
        f"{_NEXT}/output_weights",
        "next_sentence/logits/kernel",
        ("tf_models",),
    ),
    _variable("next_sentence", "2", f"{_NEXT}/output_bias", "next_sentence/logits/bias"),
)
_MAX_NAMES, _LONGEST_NAME = 6, 150  # in an error
PARTS = ("encoder", "pooler", "masked_lm", "next_sentence")


def rows(config: BertConfig) -> list[Row]:
    """The rows of a model in the model's order, with one row per layer for variables of layers."""
    of_layers = [row for row in TABLE if "{i}" in row.official]
    first = TABLE.index(of_layers[0])
    return [
        *TABLE[:first],
        *(_numbered(row, i) for i in range(config.num_hidden_layers) for row in of_layers),
        *TABLE[first + len(of_layers) :],
    ]


def shape(row: Row, config: BertConfig) -> tuple[int, ...]:
    """The shape of a variable in the official layout."""
    sizes = {
        "V": config.vocab_size,
        "P": config.max_position_embeddings,
        "T": config.type_vocab_size,
        "H": config.hidden_size,
        "F": config.intermediate_size,
        "2": 2,
    }
    return tuple(sizes[letter] for letter in row.shape)


def listed(found: Collection[str]) -> str:
    """Some items of a list and the number of the others; moments are counted only."""
    others = [name for name in found if not is_moment(name)]
    more, moments = len(others) - _MAX_NAMES, len(found) - len(others)
    shown = ", ".join(map(printable, sorted(others)[:_MAX_NAMES]))
    shown += f" and {more} more" if more > 0 else ""
    counted = [f"the moments ({moments} variable{'s' * (moments > 1)})"] if moments else []
    return ", ".join([*([shown] if shown else []), *counted])


def is_moment(name: str) -> bool:
    """Whether a variable is an optimizer's moment of another one."""
    return name.endswith(("/adam_m", "/adam_v", "/momentum"))


def printable(name: str) -> str:
    """An untrusted name, made safe for one line of a terminal."""
    name = name if name.isprintable() else ascii(name)[1:-1]
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…{name[-20:]}"


def _numbered(row, i):
    names = {name: getattr(row, name).format(i=i) for name in row._fields[2:5]}
    return row._replace(**names)
