"""BERT with a classification or regression head, for one sentence or two."""

from collections.abc import Sequence

import keras
from keras import ops

from official_bert.model.config import BertConfig
from official_bert.model.configured_model import ConfiguredModel
from official_bert.model.encoder import BertEncoder
from official_bert.model.layers import LayerFactory, matmul_transposed
from official_bert.model.tensor_types import Tensor, Tensors


@keras.saving.register_keras_serializable(package="official_bert")
class BertClassifier(ConfiguredModel):
    """BERT with a dense layer on the pooled vector, for fine-tuning (arXiv 1810.04805, section 4).

    Outputs = dropout(pooled) · output_weightsᵀ + output_bias. The head's two variables are called
    as in the official fine-tuned checkpoints, `output_weights` and `output_bias`, without a folder.

    Args:
        config, seed, dtype: As of `BertEncoder`.
        num_outputs: K, the number of classes; 1 for a number.

    Call arguments:
        inputs: Dictionary of integer tensors `input_ids`, `input_mask`, `segment_ids` of shape
            (B, S). Other entries are ignored.
        training, dropout_seed: As of `BertEncoder`.

    Returns:
        (B, K) in float32: logits, or numbers.

    Example:

    >>> config = BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1,
    ...                     num_attention_heads=2, intermediate_size=64)
    >>> BertClassifier(config, num_outputs=3).variables[-2].path
    'output_weights'
    """

    def __init__(
        self,
        config: BertConfig,
        num_outputs: int,
        seed: int | None = 0,
        dtype: str | keras.DTypePolicy | None = None,
        name: str = "bert_classifier",
    ):
        super().__init__(config, seed, dtype, name)
        self.num_outputs = num_outputs
        self.encoder = BertEncoder(config, seed, self.dtype_policy)
        self.head = ClassifierHead(LayerFactory(config, self.dtype_policy, seed), num_outputs)
        self.built = True

    def call(
        self, inputs: Tensors, training: bool = False, dropout_seed: Tensor | None = None
    ) -> Tensor:
        dropout = self.encoder.dropout(training, dropout_seed)
        first = ops.zeros_like(inputs["input_ids"][:, :1])  # all that the head reads: [CLS]
        sequence, _ = self.encoder.encode(inputs, dropout, first)  # (B, 1, H)
        pooled = self.encoder.pool(sequence[:, 0])
        return self.head(dropout(pooled, self.config.hidden_dropout_prob))

    def get_config(self) -> dict[str, object]:
        """The arguments, from which Keras makes the model again when it loads a file."""
        return super().get_config() | {"num_outputs": self.num_outputs}


class ClassifierHead(keras.Layer):
    """One dense layer, (B, H) → (B, K), float32."""

    def __init__(self, parts: LayerFactory, num_outputs: int):
        super().__init__(name="classifier", dtype=parts.dtype)
        # Not `add_weight`, which would put the name of the layer before those of the variables.
        self.output_weights = keras.Variable(  # (K, H), as in the official checkpoints
            parts.initializer("output_weights"),
            shape=(num_outputs, parts.config.hidden_size),
            dtype=self.variable_dtype,
            name="output_weights",
        )
        self.output_bias = keras.Variable(
            "zeros", shape=(num_outputs,), dtype=self.variable_dtype, name="output_bias"
        )
        self.built = True

    def call(self, pooled: Tensor) -> Tensor:
        scores = matmul_transposed(pooled, self.output_weights) + self.output_bias
        return ops.cast(scores, "float32")

    def arrange(self, order: Sequence[int]) -> None:
        """Makes output `order[i]` the i-th."""
        for variable in (self.output_weights, self.output_bias):
            variable.assign(ops.take(variable, order, axis=0))
