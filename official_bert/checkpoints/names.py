"""The name of each BERT variable in each format: one row per variable, one column per format.

Every conversion goes through the official TensorFlow 1 names; our own models and checkpoints use
them too. To add a format, add a column.
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


def _kernel(part, shape, official, hugging_face, tf_models):
    yield Row(
        part,
        shape,
        f"{official}/kernel",
        f"{hugging_face}.weight",
        f"{tf_models}/kernel",
        ("hugging_face",),
    )
    yield Row(part, shape[1], f"{official}/bias", f"{hugging_face}.bias", f"{tf_models}/bias")


def _norm(part, official, hugging_face, tf_models):
    for name, hugging_face_name in ("gamma", "weight"), ("beta", "bias"):
        yield Row(
            part,
            "H",
            f"{official}/{name}",
            f"{hugging_face}.{hugging_face_name}",
            f"{tf_models}/{name}",
        )


def _embeddings(shape, name, tf_models):
    yield Row(
        "encoder",
        shape,
        f"bert/embeddings/{name}",
        f"bert.embeddings.{name}.weight",
        f"{tf_models}/embeddings",
    )


_LAYER, _LAYER_HF, _LAYER_TFM = "bert/encoder/layer_{i}", "bert.encoder.layer.{i}", "layer_{i}"

TABLE = (
    *_embeddings("VH", "word_embeddings", "word_embeddings"),
    *_embeddings("PH", "position_embeddings", "position_embedding"),
    *_embeddings("TH", "token_type_embeddings", "type_embeddings"),
    *_norm(
        "encoder", "bert/embeddings/LayerNorm", "bert.embeddings.LayerNorm", "embeddings/layer_norm"
    ),
    *(
        row
        for name in ("query", "key", "value")
        for row in _kernel(
            "encoder",
            "HH",
            f"{_LAYER}/attention/self/{name}",
            f"{_LAYER_HF}.attention.self.{name}",
            f"{_LAYER_TFM}/self_attention/{name}",
        )
    ),
    *_kernel(
        "encoder",
        "HH",
        f"{_LAYER}/attention/output/dense",
        f"{_LAYER_HF}.attention.output.dense",
        f"{_LAYER_TFM}/self_attention/attention_output",
    ),
    *_norm(
        "encoder",
        f"{_LAYER}/attention/output/LayerNorm",
        f"{_LAYER_HF}.attention.output.LayerNorm",
        f"{_LAYER_TFM}/self_attention_layer_norm",
    ),
    *_kernel(
        "encoder",
        "HF",
        f"{_LAYER}/intermediate/dense",
        f"{_LAYER_HF}.intermediate.dense",
        f"{_LAYER_TFM}/intermediate",
    ),
    *_kernel(
        "encoder",
        "FH",
        f"{_LAYER}/output/dense",
        f"{_LAYER_HF}.output.dense",
        f"{_LAYER_TFM}/output",
    ),
    *_norm(
        "encoder",
        f"{_LAYER}/output/LayerNorm",
        f"{_LAYER_HF}.output.LayerNorm",
        f"{_LAYER_TFM}/output_layer_norm",
    ),
    *_kernel("pooler", "HH", "bert/pooler/dense", "bert.pooler.dense", "pooler_transform"),
    *_kernel(
        "masked_lm",
        "HH",
        "cls/predictions/transform/dense",
        "cls.predictions.transform.dense",
        "cls/predictions/transform/dense",
    ),
    *_norm(
        "masked_lm",
        "cls/predictions/transform/LayerNorm",
        "cls.predictions.transform.LayerNorm",
        "cls/predictions/transform/LayerNorm",
    ),
    Row(
        "masked_lm",
        "V",
        "cls/predictions/output_bias",
        "cls.predictions.bias",
        "cls/predictions/output_bias/bias",
    ),
    Row(
        "next_sentence",
        "2H",
        "cls/seq_relationship/output_weights",
        "cls.seq_relationship.weight",
        "next_sentence/logits/kernel",
        ("tf_models",),
    ),
    Row(
        "next_sentence",
        "2",
        "cls/seq_relationship/output_bias",
        "cls.seq_relationship.bias",
        "next_sentence/logits/bias",
    ),
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
    shown = ", ".join(map(_shown, sorted(others)[:_MAX_NAMES]))
    shown += f" and {more} more" if more > 0 else ""
    counted = [f"the moments ({moments} variable{'s' * (moments > 1)})"] if moments else []
    return ", ".join([*([shown] if shown else []), *counted])


def is_moment(name: str) -> bool:
    """Whether a variable is an optimizer's moment of another one."""
    return name.endswith(("/adam_m", "/adam_v", "/momentum"))


def _shown(name):
    """An untrusted name, made safe for one line of a terminal."""
    name = name if name.isprintable() else ascii(name)[1:-1]
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…{name[-20:]}"


def _numbered(row, i):
    names = {name: getattr(row, name).format(i=i) for name in row._fields[2:5]}
    return row._replace(**names)
