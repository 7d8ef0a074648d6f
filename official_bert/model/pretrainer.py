"""BERT with its two pre-training heads, and the sums for their losses and accuracies."""

import keras
from keras import ops

from official_bert.model import Tensor, Tensors, fused
from official_bert.model.config import BertConfig
from official_bert.model.configured_model import ConfiguredModel
from official_bert.model.encoder import BertEncoder
from official_bert.model.layers import (
    Dense,
    LayerFactory,
    OutputHead,
    activated,
    matmul_transposed,
    norm,
)


@keras.saving.register_keras_serializable(package="official_bert")
class BertPretrainer(ConfiguredModel):
    """BERT with its masked-LM and next-sentence heads (arXiv 1810.04805).

    The masked-LM head reads the masked positions only and is tied to the word embeddings.

    Args:
        config, seed, dtype: As of `BertEncoder`.

    Call arguments:
        inputs: Dictionary of integer tensors: `input_ids`, `input_mask`, `segment_ids` of shape
            (B, S) and `masked_lm_positions` of shape (B, P). Other entries are ignored.
        training, dropout_seed: As of `BertEncoder`.

    Returns:
        Dictionary of float32 logits: `masked_lm_logits` (B, P, V) and `next_sentence_logits`
        (B, 2).

    Example:

    >>> config = BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1,
    ...                     num_attention_heads=2, intermediate_size=64)
    >>> model = BertPretrainer(config)
    >>> model.variables[0].path
    'bert/embeddings/word_embeddings'
    """

    input_names = (*ConfiguredModel.input_names, "masked_lm_positions")  # the last: (B, P)

    def __init__(
        self,
        config: BertConfig,
        seed: int | None = 0,
        dtype: str | keras.DTypePolicy | None = None,
        name: str = "bert_pretrainer",
    ):
        super().__init__(config, seed, dtype, name)
        self.encoder = BertEncoder(config, seed, self.dtype_policy)
        parts = LayerFactory(config, self.dtype_policy, seed)
        self.masked_lm_head = MaskedLMHead(parts)
        # Is the second segment the first one's continuation? Output 0: yes.
        self.next_sentence_head = OutputHead(parts, "seq_relationship", "cls/seq_relationship", 2)
        self.built = True

    def call(
        self, inputs: Tensors, training: bool = False, dropout_seed: Tensor | None = None
    ) -> dict[str, Tensor]:
        masked = inputs["masked_lm_positions"]
        read = ops.pad(masked, ((0, 0), (1, 0)))  # by the heads: [CLS] is at position 0
        dropout = self.encoder.dropout(training, dropout_seed)
        sequence, word_embeddings = self.encoder.encode(inputs, dropout, read)  # (B, 1 + P, H)
        return {
            "masked_lm_logits": self.masked_lm_head(sequence[:, 1:], word_embeddings),
            "next_sentence_logits": self.next_sentence_head(self.encoder.pool(sequence[:, 0])),
        }


class MaskedLMHead(keras.Layer):
    """Scores of every word piece at the masked positions: (B, P, H) → (B, P, V), float32."""

    def __init__(self, parts: LayerFactory):
        super().__init__(name="predictions", dtype=parts.dtype)
        config = parts.config
        self.activation = config.hidden_act
        self.transform = Dense(parts, "cls/predictions/transform/dense", config.hidden_size)
        self.layer_norm = parts.layer_norm("cls/predictions/transform/LayerNorm")
        with parts.scope("cls"):
            self.output_bias = self.add_weight(
                (config.vocab_size,), initializer="zeros", name="output_bias"
            )
        self.built = True

    def call(self, masked: Tensor, word_embeddings: Tensor) -> Tensor:
        predictions, width = ops.shape(masked)[1:]
        x = activated(ops.reshape(masked, (-1, width)), self.transform, self.activation)
        x = norm(x, self.layer_norm)  # (B·P, H)
        scores = matmul_transposed(x, word_embeddings) + self.output_bias
        return ops.cast(
            ops.reshape(scores, (-1, predictions, self.output_bias.shape[0])), "float32"
        )


def pretraining_sums(outputs: Tensors, batch: Tensors) -> dict[str, Tensor]:
    """Sums over a batch, float32 scalars; losses and accuracies are their quotients.

    Sums rather than means, so that micro-batches, replicas and steps simply add up.

    Args:
        outputs: The output of `BertPretrainer`.
        batch: The batch, with `masked_lm_ids` (B, P), `masked_lm_weights` (B, P),
            `next_sentence_labels` (B,) and `example_weights` (B,).

    Returns:
        Dictionary with `masked_lm_loss` (Σ w · cross-entropy, in nats), `masked_lm_correct`,
        `masked_lm_weight` (Σ w), and the same three of `next_sentence_`.
    """
    sums = {}
    tasks = {
        "masked_lm": ("masked_lm_ids", "masked_lm_weights"),
        "next_sentence": ("next_sentence_labels", "example_weights"),
    }
    for task, (labels, weights) in tasks.items():
        logits, labels, weights = outputs[f"{task}_logits"], batch[labels], batch[weights]
        loss, best = fused.cross_entropy(logits, labels)
        hit = ops.cast(ops.equal(best, ops.cast(labels, "int32")), "float32")
        sums[f"{task}_loss"] = ops.sum(ops.multiply(weights, loss))
        sums[f"{task}_correct"] = ops.sum(ops.multiply(weights, hit))
        sums[f"{task}_weight"] = ops.sum(weights)
    return sums
