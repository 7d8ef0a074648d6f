"""The work of a stage in numbers: model FLOPs per update, and bytes that the replicas reduce.

Model FLOPs are the multiplications and additions of the matrix products that the mathematics needs:
no recomputation, no padding of shapes, no element-wise operations (some 1 % in BERT-Base). The
"share of the device's peak" is computed from them. Shapes: S tokens per sequence, H hidden,
F feed-forward, V word pieces, P masked positions.

A product's backward pass is two products of the same size, one for the gradient of its inputs and
one for that of its weights. So, in units of the forward pass, a layer costs

    3   if it trains,
    2   if it is frozen above something that trains, which its inputs' gradient must reach,
    1   if it and everything below it are frozen.

By this convention MSLT's five equal phases of a 12-layer encoder cost 9, 12, 15, 18 and 36 layers
per sequence, 90 against the 180 of training all layers throughout: 2.0× less. The lowest trained
layer above frozen ones is counted in full, although its query, key and value need no gradient of
their inputs: 3 H² of its 3 · (4 H² + 2 H F) products, 1/12 of that layer, are never done. The last
layer is counted in full as well, for all S tokens: the model computes queries, mixtures and what
follows them only for the 1 + P tokens that the heads read.
"""

from typing import TYPE_CHECKING

from official_bert.model.config import BertConfig

if TYPE_CHECKING:
    from official_bert.stages import Stage

BYTES_OF_GRADIENT = 4  # gradients are summed over the replicas in float32


def step_flops(config: BertConfig, stage: "Stage") -> int:
    """Model FLOPs of one update: forward and backward pass over the global batch.

    Args:
        config: The run's `BertConfig`; its depth counts where the stage has none.
        stage: A `Stage`.

    Returns:
        An integer. The next-sentence head is counted as trained.
    """
    return stage.batch_size * (encoder_flops(config, stage) + head_flops(config, stage))


def describe(config: BertConfig, stage: "Stage") -> str:
    """A line that says what a stage trains and what its updates cost."""
    depth = stage.depth_in(config)
    trained = depth if stage.trained_layers is None else len(stage.trained_layers)
    embeddings = "" if stage.train_embeddings else ", embeddings frozen"
    return (
        f"{stage.steps:,} updates of {stage.batch_size:,} × {stage.max_seq_length} tokens; "
        f"{depth} layers, {trained} of them trained{embeddings}; per update: "
        f"{step_flops(config, stage) / 1e12:,.3g} TFLOP, "
        f"{reduced_bytes(config, stage) / 1e6:,.3g} MB of gradients"
    )


def encoder_flops(config: BertConfig, stage: "Stage") -> int:
    """Model FLOPs of the encoder layers, forward and backward, for one sequence."""
    depth = stage.depth_in(config)
    trained = range(depth) if stage.trained_layers is None else stage.trained_layers
    cost, gradient_flows = 0, stage.train_embeddings
    for layer in range(depth):
        trains = layer in trained
        cost += 1 + (2 if trains else gradient_flows)
        gradient_flows = gradient_flows or trains
    return cost * layer_flops(config, stage.max_seq_length)


def layer_flops(config: BertConfig, length: int) -> int:
    """Model FLOPs of one encoder layer's forward pass for one sequence of `length` tokens.

    2 S (4 H² + 2 H F) for the six dense products, 2 · 2 S² H for scores and mixture.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    dense = 2 * length * (4 * hidden**2 + 2 * hidden * inner)
    return dense + 2 * 2 * length**2 * hidden


def head_flops(config: BertConfig, stage: "Stage") -> int:
    """Model FLOPs of pooler and heads, forward and backward, for one sequence.

    2 P H (H + V) for the masked-LM head at its P positions, 2 H (H + 2) for pooler and
    next-sentence head. All train; where the embeddings are frozen, the tied output matrix gets no
    gradient.
    """
    hidden, positions = config.hidden_size, stage.max_predictions_per_seq
    dense = 2 * positions * hidden**2 + 2 * hidden * (hidden + 2)
    tied = 2 * positions * hidden * config.vocab_size
    return 3 * dense + (3 if stage.train_embeddings else 2) * tied


def reduced_bytes(config: BertConfig, stage: "Stage") -> int:
    """Bytes of gradient that one update sums over the replicas: 4 for each trained parameter.

    A ring moves 2 (n - 1) / n times as many in and out of each of n members. The pooler and the
    next-sentence head are counted as trained.
    """
    depth = stage.depth_in(config)
    layers = depth if stage.trained_layers is None else len(stage.trained_layers)
    parameters = layers * layer_parameters(config) + head_parameters(config)
    if stage.train_embeddings:
        parameters += embedding_parameters(config)
    return BYTES_OF_GRADIENT * parameters


def layer_parameters(config: BertConfig) -> int:
    """Parameters of one encoder layer: kernels, biases and two LayerNorms."""
    hidden, inner = config.hidden_size, config.intermediate_size
    attention = 4 * (hidden**2 + hidden)
    feed_forward = hidden * inner + inner + inner * hidden + hidden
    return attention + feed_forward + 2 * 2 * hidden


def embedding_parameters(config: BertConfig) -> int:
    """Parameters of the three embedding tables and their LayerNorm."""
    rows = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    return (rows + 2) * config.hidden_size


def head_parameters(config: BertConfig) -> int:
    """Parameters of pooler, masked-LM transform, LayerNorm and bias, and next-sentence head."""
    hidden = config.hidden_size
    pooler = transform = hidden**2 + hidden
    return pooler + transform + 2 * hidden + config.vocab_size + 2 * hidden + 2
