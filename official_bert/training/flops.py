"""The work of a stage in numbers: model FLOPs per update, and bytes that the replicas reduce.

Model FLOPs are the multiplications and additions of the matrix products that the mathematics needs:
no recomputation, no padding of shapes, no element-wise operations (some 1 % in BERT-Base). The
"share of the device's peak" is computed from them. Shapes: S tokens per sequence, H hidden,
F feed-forward, V word pieces, P masked positions.

A product's backward pass is two products of the same size, one for the gradient of each operand.
The operands of a dense layer are its inputs and its kernel. In units of the forward pass, the
dense layers of an encoder layer cost

    3   if they train,
    2   if they are frozen above something that trains, which their inputs' gradient must reach,
    1   if they and everything below them are frozen;

scores and mixture of attention, which have no kernel, cost 3 wherever a gradient passes, else 1.
Variables are frozen by a stage (`trained_layers`, `train_embeddings`) or by the optimizer's
`freeze`, one by one: a frozen kernel in a layer where others train saves its own gradient.

By this convention MSLT's five equal phases of a 12-layer encoder cost 9, 12, 15, 18 and 36 layers
per sequence, 90 against the 180 of training all layers throughout: 2.0× less. The lowest trained
layer above frozen ones is counted in full, although its query, key and value need no gradient of
their inputs: 3 H² of its 3 · (4 H² + 2 H F) products, 1/12 of that layer, are never done. The last
layer is counted in full as well, for all S tokens: the model computes queries, mixtures and what
follows them only for the 1 + P tokens that the heads read. Scores of padding count, and so do those
between the sequences of a packed row: they are computed before they are masked.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from official_bert.checkpoints import names
from official_bert.model.config import BertConfig

if TYPE_CHECKING:
    from official_bert.protocols import Engine
    from official_bert.stages import Stage

BYTES_OF_GRADIENT = 4  # gradients are summed over the replicas in float32

_EMBEDDINGS = "bert/embeddings/"
_WORDS = f"{_EMBEDDINGS}word_embeddings"  # and the tied output matrix


# FLOP/s with dense float16 or bfloat16 operands, by the whole of the device's name: an RTX A1000 is
# no A100, an H100 on PCI Express runs slower than one with HBM3, a part of a GPU (MIG) has a part
# of it. A TPU device of JAX is a core of v2 and v3, a chip of the others.
_PEAKS = (
    (r"T4", 65e12),
    (r"V100-SXM[23]-(16|32)GB", 125e12),
    (r"V100-PCIE-(16|32)GB", 112e12),
    (r"V100S-PCIE-32GB", 130e12),
    (r"A100-(SXM4|PCIE)-[48]0GB|A100 80GB PCIe", 312e12),
    (r"H100 80GB HBM3|H200", 989e12),
    (r"H100 PCIe", 756e12),
    (r"(H100|H200) NVL", 835e12),
    (r"TPU v2", 22.9e12),
    (r"TPU v3", 61.6e12),
    (r"TPU v4", 275e12),
    (r"TPU v5 lite", 197e12),
    (r"TPU v5p?", 459e12),
    (r"TPU v6 lite", 918e12),
)
_MAKER = re.compile(r"^(NVIDIA|Tesla) ")


def step_flops(config: BertConfig, stage: "Stage", freeze: Sequence[str] = ()) -> int:
    """Model FLOPs of one update: forward and backward pass over the global batch.

    Args:
        config: The run's `BertConfig`; its depth counts where the stage has none.
        freeze: As of `stages.Optimizer`: expressions found in the paths of frozen variables.

    Returns:
        An integer. The next-sentence head is counted as trained, if it is not frozen.
    """
    encoder, head = encoder_flops(config, stage, freeze), head_flops(config, stage, freeze)
    return stage.batch_size * (encoder + head)


def describe(config: BertConfig, stage: "Stage", freeze: Sequence[str] = ()) -> str:
    """One line: the trained parts of a stage and the cost of its steps."""
    depth, trained = stage.depth_in(config), trained_parameters(config, stage, freeze)
    layers = sum(any(path.startswith(_layer(i)) for path in trained) for i in range(depth))
    embeddings = "" if _trains_embeddings(trained) else ", embeddings frozen"
    return (
        f"{stage.steps:,} steps of {stage.batch_size:,} × {stage.max_seq_length} tokens; "
        f"{depth} layers, {layers} of them trained{embeddings}; per step: "
        f"{step_flops(config, stage, freeze) / 1e12:,.3g} TFLOP, "
        f"{reduced_bytes(config, stage, freeze) / 1e6:,.3g} MB of gradients"
    )


def encoder_flops(config: BertConfig, stage: "Stage", freeze: Sequence[str] = ()) -> int:
    """Model FLOPs of the encoder layers, forward and backward, for one sequence."""
    length, trained = stage.max_seq_length, trained_parameters(config, stage, freeze)
    cost, gradient_flows = 0, _trains_embeddings(trained)
    for layer in range(stage.depth_in(config)):
        mine = {path: size for path, size in trained.items() if path.startswith(_layer(layer))}
        gradient_flows = gradient_flows or bool(mine)
        kernels = sum(size for path, size in mine.items() if path.endswith("/kernel"))
        cost += (1 + gradient_flows) * layer_flops(config, length)
        cost += gradient_flows * _attention_flops(config, length) + 2 * length * kernels
    return cost


def layer_flops(config: BertConfig, length: int) -> int:
    """Model FLOPs of one encoder layer's forward pass for one sequence of `length` tokens.

    2 S (4 H² + 2 H F) for the six dense products, 2 · 2 S² H for scores and mixture.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    dense = 2 * length * (4 * hidden**2 + 2 * hidden * inner)
    return dense + _attention_flops(config, length)


def _attention_flops(config, length):
    return 2 * 2 * length**2 * config.hidden_size


def head_flops(config: BertConfig, stage: "Stage", freeze: Sequence[str] = ()) -> int:
    """Model FLOPs of pooler and heads, forward and backward, for one sequence.

    2 P H (H + V) for the masked-LM head at its P positions, 2 H (H + 2) for pooler and
    next-sentence head. All train that are not frozen by `freeze`; where the word embeddings are
    frozen, the tied output matrix gets no gradient.
    """
    trained, positions = trained_parameters(config, stage, freeze), stage.max_predictions_per_seq
    sizes = parameters(config, stage.depth_in(config))
    below = any(path.startswith((_EMBEDDINGS, "bert/encoder/")) for path in trained)
    cost = 0
    for products in (
        {"bert/pooler/dense/kernel": 1, "cls/seq_relationship/output_weights": 1},
        {"cls/predictions/transform/dense/kernel": positions, _WORDS: positions},
    ):
        gradient_flows = below
        for path, rows in products.items():
            layer = path.rpartition("/")[0].removesuffix("/dense")
            if path != _WORDS:  # which is below already
                gradient_flows = gradient_flows or any(p.startswith(layer) for p in trained)
            cost += 2 * rows * sizes[path] * (1 + gradient_flows + (path in trained))
    return cost


def reduced_bytes(config: BertConfig, stage: "Stage", freeze: Sequence[str] = ()) -> int:
    """Bytes of gradient that one update sums over the replicas: 4 for each trained parameter.

    In a ring, each of n members sends and receives 2 (n - 1) / n times this number. The pooler and
    the next-sentence head are counted as trained, if they are not frozen.
    """
    return BYTES_OF_GRADIENT * sum(trained_parameters(config, stage, freeze).values())


def parameters(config: BertConfig, depth: int) -> dict[str, int]:
    """Numbers of parameters of the model that is pre-trained, by the paths of its variables."""
    config = dataclasses.replace(config, num_hidden_layers=depth)
    return {row.official: math.prod(names.shape(row, config)) for row in names.rows(config)}


def trained_parameters(
    config: BertConfig, stage: "Stage", freeze: Sequence[str] = ()
) -> dict[str, int]:
    """`parameters` less those that the stage or an expression of `freeze` leaves as they are."""
    depth = stage.depth_in(config)
    frozen = [] if stage.train_embeddings else [_EMBEDDINGS]
    if stage.trained_layers is not None:
        frozen += [_layer(layer) for layer in range(depth) if layer not in stage.trained_layers]
    return {
        path: size
        for path, size in parameters(config, depth).items()
        if not path.startswith(tuple(frozen))
        and not any(re.search(pattern, path) for pattern in freeze)
    }


def peak_flops(name: str) -> float | None:
    """FLOP/s of a device in dense 16-bit products; `None` if it is not known.

    Args:
        name: As reported by its driver, such as "NVIDIA A100-SXM4-40GB" or "TPU v6 lite".
    """
    name = _MAKER.sub("", name)
    return next((peak for pattern, peak in _PEAKS if re.fullmatch(pattern, name)), None)


def peak_of(engine: "Engine", dtype: str) -> float | None:
    """Peak FLOP/s of an engine's replicas in 16-bit products; `None` if unknown, or in float32."""
    peak = None if dtype == "fp32" else peak_flops(engine.device_name())
    return peak and engine.num_replicas * peak


def _layer(number):
    return f"bert/encoder/layer_{number}/"


def _trains_embeddings(trained):
    return any(path.startswith(_EMBEDDINGS) for path in trained)
