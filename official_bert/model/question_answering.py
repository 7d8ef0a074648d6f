"""BERT with a question-answering head: where in a text the answer begins and ends."""

import keras
from keras import ops

from official_bert.model.config import BertConfig
from official_bert.model.configured_model import ConfiguredModel
from official_bert.model.encoder import BertEncoder
from official_bert.model.layers import LayerFactory, matmul_transposed
from official_bert.model.tensor_types import Tensor, Tensors


@keras.saving.register_keras_serializable(package="official_bert")
class BertQuestionAnswering(ConfiguredModel):
    """BERT with a dense layer on every token's vector (arXiv 1810.04805, section 4.2).

    Outputs = sequence · output_weightsᵀ + output_bias, for each token the logit of being the
    answer's first and that of being its last. The head's variables are called as in the official
    fine-tuned checkpoints, `cls/squad/output_weights` and `cls/squad/output_bias`. The head is
    computed in float32 whatever the type of the arithmetic, so that answers whose scores are close
    are told apart. The pooler is kept for exports, but neither computed nor used.

    Args:
        config, seed, dtype: As of `BertEncoder`.

    Call arguments:
        inputs: Dictionary of integer tensors `input_ids`, `input_mask`, `segment_ids` of shape
            (B, S). Other entries are ignored.
        training, dropout_seed: As of `BertEncoder`.

    Returns:
        (B, S, 2) in float32: start and end logits. Padding has some too.

    Example:

    >>> config = BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1,
    ...                     num_attention_heads=2, intermediate_size=64)
    >>> BertQuestionAnswering(config).variables[-2].path
    'cls/squad/output_weights'
    """

    def __init__(
        self,
        config: BertConfig,
        seed: int | None = 0,
        dtype: str | keras.DTypePolicy | None = None,
        name: str = "bert_question_answering",
    ):
        super().__init__(config, seed, dtype, name)
        self.encoder = BertEncoder(config, seed, self.dtype_policy)
        self.head = SpanHead(LayerFactory(config, "float32", seed))
        self.built = True

    def call(
        self, inputs: Tensors, training: bool = False, dropout_seed: Tensor | None = None
    ) -> Tensor:
        sequence, _ = self.encoder.encode(inputs, self.encoder.dropout(training, dropout_seed))
        return self.head(sequence)


class SpanHead(keras.Layer):
    """One dense layer of two outputs, (B, S, H) → (B, S, 2), in float32."""

    def __init__(self, parts: LayerFactory):
        super().__init__(name="squad", dtype=parts.dtype)
        with parts.scope("cls"):
            self.output_weights = self.add_weight(  # (2, H), as in the official checkpoints
                (2, parts.config.hidden_size),
                initializer=parts.initializer("cls/squad/output_weights"),
                name="output_weights",
            )
            self.output_bias = self.add_weight((2,), initializer="zeros", name="output_bias")
        self.built = True

    def call(self, sequence: Tensor) -> Tensor:
        batch, length, width = ops.shape(sequence)
        rows = ops.reshape(ops.cast(sequence, "float32"), (-1, width))  # (T, H)
        logits = matmul_transposed(rows, self.output_weights) + self.output_bias
        return ops.reshape(logits, (batch, length, 2))
