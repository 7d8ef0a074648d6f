"""BERT's encoder, in `keras.layers` and `keras.ops`, for any backend.

Inside the encoder a batch of B sequences of S tokens is one matrix of B·S rows, so that every
dense layer is one plain matrix product. Shape comments: T = B·S rows, H hidden, N heads, D = H/N,
R positions read by a head, V word pieces.
"""

from collections.abc import Sequence

import keras
from keras import ops

from official_bert.model import Tensor, Tensors, fused
from official_bert.model.config import BertConfig
from official_bert.model.configured_model import ConfiguredModel
from official_bert.model.layers import (
    Dense,
    Dropout,
    LayerFactory,
    activated,
    matmul_transposed,
    norm,
    product,
)

MASK_BIAS = -10000.0  # added to the attention scores of padding


@keras.saving.register_keras_serializable(package="official_bert")
class BertEncoder(ConfiguredModel):
    """BERT without its pre-training heads: token vectors and the pooled one (arXiv 1810.04805).

    Post-LayerNorm, ε 1e-12, truncated normal weights, zero biases.

    Args:
        config: A `BertConfig`.
        seed: Integer. A variable's initial value follows from it and the variable's path, the same
            on every backend. None leaves values unset, for weights that are about to be loaded.
        dtype: Keras dtype policy, for example `"mixed_bfloat16"`; the global one by default.

    Call arguments:
        inputs: Dictionary of integer tensors `input_ids`, `input_mask`, `segment_ids` of shape
            (B, S), and for packed rows `sequence_ids` (B, S), the number of each token's sequence:
            a token attends to its own sequence, in which positions count from 0. Other entries are
            ignored.
        training: Whether dropout is on.
        dropout_seed: Integer tensor, (2,) for all examples or (B, 2), one per example, that
            determines dropout. Default: the model's own generator, as in Keras' layers.

    Returns:
        Dictionary of `sequence` (B, S, H) and `pooled` (B, H), in the type of the arithmetic.

    Example:

    >>> config = BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1,
    ...                     num_attention_heads=2, intermediate_size=64)
    >>> BertEncoder(config).variables[0].path
    'bert/embeddings/word_embeddings'
    """

    def __init__(
        self,
        config: BertConfig,
        seed: int | None = 0,
        dtype: str | keras.DTypePolicy | None = None,
        name: str = "bert",
    ):
        super().__init__(config, seed, dtype, name)
        parts = LayerFactory(config, self.dtype_policy, seed)
        self.embeddings = Embeddings(parts)
        self.encoder_layers = [EncoderLayer(parts, i) for i in range(config.num_hidden_layers)]
        self.pooler = Dense(parts, "bert/pooler/dense", config.hidden_size)
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.built = True

    def call(
        self, inputs: Tensors, training: bool = False, dropout_seed: Tensor | None = None
    ) -> dict[str, Tensor]:
        sequence, _ = self.encode(inputs, self.dropout(training, dropout_seed))
        return {"sequence": sequence, "pooled": self.pool(sequence[:, 0])}

    def dropout(self, training: bool, dropout_seed: Tensor | None = None) -> Dropout:
        """The `Dropout` of one call, for `encode` and for the head."""
        return Dropout(training, self.seed_generator, dropout_seed)

    def encode(
        self, inputs: Tensors, dropout: Dropout, positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The last layer's output, for a head on top, which calls this from its own `call`.

        Args:
            inputs: As of a call.
            dropout: From `dropout`.
            positions: (B, R): the last layer computes only the vectors of these tokens.

        Returns:
            (B, S, H), or (B, R, H); and the table of word embeddings (V, H).
        """
        ids, segments = inputs["input_ids"], inputs["segment_ids"]
        sequences = inputs.get("sequence_ids")
        if sequences is None:
            x, table = self.embeddings(ids, segments, dropout=dropout)
            mask_bias = last_bias = _padding_bias(inputs, self.compute_dtype)
        else:
            same = _same_sequence(sequences, sequences)  # (B, S, S)
            x, table = self.embeddings(ids, segments, dropout=dropout, same=same)
            read = sequences if positions is None else _picked(sequences, positions)
            mask_bias, last_bias = (
                (1.0 - ops.cast(mask, self.compute_dtype))[:, None] * MASK_BIAS
                for mask in (same, _same_sequence(read, sequences))  # (B, 1, S or R, S)
            )
        for layer in self.encoder_layers[:-1]:
            x = layer(x, mask_bias, dropout=dropout)
        x = self.encoder_layers[-1](x, last_bias, dropout=dropout, positions=positions)
        read = inputs["input_ids"] if positions is None else positions
        return ops.reshape(x, (-1, ops.shape(read)[1], x.shape[-1])), table

    def pool(self, first: Tensor) -> Tensor:
        """The pooled vector (B, H) from the first token's, [CLS]."""
        return activated(first, self.pooler, "tanh")


class LayerOutputs(keras.Model):
    """The outputs of some layers of an encoder, whose weights it shares; for vectors.

    Args:
        encoder: The encoder.
        numbers: Numbers of its layers, from 0. The layers after the last of them are not computed.

    Call arguments:
        inputs, training: As of `BertEncoder`, without packed rows.

    Returns:
        A list of (B, S, H), one for each of `numbers`, in the type of the arithmetic.
    """

    def __init__(self, encoder: BertEncoder, numbers: Sequence[int]):
        super().__init__(name="layer_outputs", dtype=encoder.dtype_policy)
        self.encoder, self.config, self._numbers = encoder, encoder.config, tuple(numbers)
        self.built = True

    def call(self, inputs: Tensors, training: bool = False) -> list[Tensor]:
        ids, dropout = inputs["input_ids"], self.encoder.dropout(training)
        x, _ = self.encoder.embeddings(ids, inputs["segment_ids"], dropout=dropout)
        mask_bias, found = _padding_bias(inputs, self.compute_dtype), {}
        for number in range(max(self._numbers) + 1):
            x = self.encoder.encoder_layers[number](x, mask_bias, dropout=dropout)
            found[number] = ops.reshape(x, (-1, ops.shape(ids)[1], x.shape[-1]))
        return [found[number] for number in self._numbers]


class Embeddings(keras.Layer):
    """Word, position and segment embeddings, summed and normalized: (B, S) ids → (T, H).

    Also returns the table of word embeddings (V, H), in the type of the arithmetic.
    """

    def __init__(self, parts: LayerFactory):
        super().__init__(name="embeddings", dtype=parts.dtype)
        config = parts.config
        self.dropout_rate = config.hidden_dropout_prob
        sizes = {
            "word_embeddings": config.vocab_size,
            "token_type_embeddings": config.type_vocab_size,
            "position_embeddings": config.max_position_embeddings,
        }
        with parts.scope("bert"):
            tables = [
                self.add_weight(
                    (size, config.hidden_size),
                    initializer=parts.initializer(f"bert/embeddings/{name}"),
                    autocast=name != "word_embeddings",  # see `fused.look_up`
                    name=name,
                )
                for name, size in sizes.items()
            ]
        self.word_embeddings, self.token_type_embeddings, self.position_embeddings = tables
        self.layer_norm = parts.layer_norm("bert/embeddings/LayerNorm")
        self.built = True

    def call(
        self,
        input_ids: Tensor,
        segment_ids: Tensor,
        dropout: Dropout,
        same: Tensor | None = None,  # (B, S, S): which tokens are of one sequence
    ) -> tuple[Tensor, Tensor]:
        length, width = ops.shape(input_ids)[1], self.word_embeddings.shape[1]
        words, table = fused.look_up(self.word_embeddings, input_ids, self.compute_dtype)
        types = ops.matmul(  # a product instead of a gather: its gradient is dense and tiny
            ops.one_hot(segment_ids, self.token_type_embeddings.shape[0], dtype=words.dtype),
            self.token_type_embeddings,
        )
        positions = ops.convert_to_tensor(self.position_embeddings)[:length][None]
        if same is not None:  # a product, as of types
            place = ops.sum(ops.tril(ops.cast(same, "int32"), -1), -1)  # (B, S), from 0
            positions = ops.matmul(ops.one_hot(place, length, dtype=words.dtype), positions[0])
        x = ops.reshape(words + types + positions, (-1, width))  # (T, H)
        return dropout(norm(x, self.layer_norm), self.dropout_rate), table


class EncoderLayer(keras.Layer):
    """One Transformer layer: self-attention, then the feed-forward layer; (T, H) → (T, H)."""

    def __init__(self, parts: LayerFactory, index: int):
        super().__init__(name=f"layer_{index}", dtype=parts.dtype)
        self.config = config = parts.config
        path, width = f"bert/encoder/layer_{index}", config.hidden_size
        self.query = Dense(parts, f"{path}/attention/self/query", width)
        self.key = Dense(parts, f"{path}/attention/self/key", width)
        self.value = Dense(parts, f"{path}/attention/self/value", width)
        self.attention_output = Dense(parts, f"{path}/attention/output/dense", width)
        self.attention_norm = parts.layer_norm(f"{path}/attention/output/LayerNorm")
        self.intermediate = Dense(parts, f"{path}/intermediate/dense", config.intermediate_size)
        self.output_dense = Dense(parts, f"{path}/output/dense", width, config.intermediate_size)
        self.output_norm = parts.layer_norm(f"{path}/output/LayerNorm")
        self.built = True

    def call(
        self, x: Tensor, mask_bias: Tensor, dropout: Dropout, positions: Tensor | None = None
    ) -> Tensor:
        length = ops.shape(mask_bias)[-1]
        tokens, queries = x, length
        if positions is not None:  # queries only: keys and values are of all tokens
            x, queries = ops.take(x, _rows(positions, length), axis=0), ops.shape(positions)[1]
        mixed = self._attend(
            self._heads(x, self.query, queries),
            self._heads(tokens, self.key, length),
            self._heads(tokens, self.value, length),
            mask_bias,
            dropout,
        )
        x = self._add_and_norm(mixed, self.attention_output, x, self.attention_norm, dropout)
        wide = activated(x, self.intermediate, self.config.hidden_act)
        return self._add_and_norm(wide, self.output_dense, x, self.output_norm, dropout)

    def _heads(self, x, dense, length):  # (B·length, H) → (B, N, length, D)
        heads, size = self.config.num_attention_heads, self.config.head_size
        return ops.transpose(ops.reshape(dense(x), (-1, length, heads, size)), (0, 2, 1, 3))

    def _attend(self, query, key, value, mask_bias, dropout):
        """Attention of R queries to S tokens: (B, N, R, D) → (B·R, H)."""
        scores = matmul_transposed(query, key)  # (B, N, R, S)
        scale, rate = self.config.head_size**-0.5, self.config.attention_probs_dropout_prob
        weights = dropout.attention_weights(scores, mask_bias, scale, rate)
        mixed = ops.transpose(ops.matmul(weights, value), (0, 2, 1, 3))  # (B, R, N, D)
        return ops.reshape(mixed, (-1, self.config.hidden_size))

    def _add_and_norm(self, x, dense, residual, norm, dropout):
        rate = self.config.hidden_dropout_prob
        return dropout.add_and_norm(product(x, dense), dense.bias, residual, norm, rate)


def _padding_bias(inputs, dtype):
    """(B, 1, 1, S), added to attention scores: no token attends to padding."""
    outside = 1.0 - ops.cast(inputs["input_mask"], dtype)
    return ops.expand_dims(outside, (1, 2)) * MASK_BIAS  # LiteRT knows no index with None


def _same_sequence(queries, keys):
    """(B, R, S), booleans: which keys are of the sequence of a query, numbers (B, R) and (B, S)."""
    return ops.equal(queries[:, :, None], keys[:, None, :])


def _picked(values, positions):
    """values (B, S) at positions (B, R)."""
    return ops.take_along_axis(values, positions, axis=1)


def _rows(positions, length):
    """Row numbers, (B·R,), of positions (B, R) in the matrix of all tokens."""
    offsets = ops.cast(ops.arange(ops.shape(positions)[0]) * length, positions.dtype)[:, None]
    return ops.reshape(positions + offsets, (-1,))
