"""BERT with a head for fine-tuning: classification or regression, answers, and tags of words."""

from collections.abc import Sequence

import keras
from keras import ops

from official_bert.model import Tensor, Tensors
from official_bert.model.config import BertConfig
from official_bert.model.configured_model import ConfiguredModel
from official_bert.model.encoder import BertEncoder
from official_bert.model.layers import LayerFactory, OutputHead


@keras.saving.register_keras_serializable(package="official_bert")
class BertClassifier(ConfiguredModel):
    """BERT with a dense layer on the pooled vector, for fine-tuning (arXiv 1810.04805, section 4).

    Outputs = dropout(pooled) · output_weightsᵀ + output_bias. The head's variables have the names
    of the official fine-tuned checkpoints: `output_weights` and `output_bias`, without a folder.

    Args:
        config, seed, dtype: As of `BertEncoder`.
        num_outputs: K, the number of classes; 1 for regression.

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
        parts = LayerFactory(config, self.dtype_policy, seed)
        self.head = OutputHead(parts, "classifier", "", num_outputs)
        self.built = True

    def call(
        self, inputs: Tensors, training: bool = False, dropout_seed: Tensor | None = None
    ) -> Tensor:
        dropout = self.encoder.dropout(training, dropout_seed)
        first = ops.zeros_like(inputs["input_ids"][:, :1])  # all that the head reads: [CLS]
        sequence, _ = self.encoder.encode(inputs, dropout, first)  # (B, 1, H)
        pooled = self.encoder.pool(sequence[:, 0])
        return self.head(dropout(pooled, self.config.hidden_dropout_prob))

    def arrange(self, order: Sequence[int]) -> None:
        """Makes output `order[i]` the i-th."""
        for variable in (self.head.output_weights, self.head.output_bias):
            variable.assign(ops.take(variable, order, axis=0))

    def get_config(self) -> dict[str, object]:
        """The arguments, from which Keras makes the model again when it loads a file."""
        return super().get_config() | {"num_outputs": self.num_outputs}


@keras.saving.register_keras_serializable(package="official_bert")
class BertQuestionAnswering(ConfiguredModel):
    """BERT with a dense layer on every token's vector (arXiv 1810.04805, section 4.2).

    Outputs = sequence · output_weightsᵀ + output_bias: for each token, the logits of being the
    answer's first and its last. The head's variables have the names of the official fine-tuned
    checkpoints, `cls/squad/output_weights` and `cls/squad/output_bias`. The head always computes in
    float32, to tell apart answers with close scores. The pooler is kept for exports, but not
    computed.

    Args:
        config, seed, dtype: As of `BertEncoder`.

    Call arguments:
        inputs: Dictionary of integer tensors `input_ids`, `input_mask`, `segment_ids` of shape
            (B, S). Other entries are ignored.
        training, dropout_seed: As of `BertEncoder`.

    Returns:
        (B, S, 2) in float32: start and end logits, also of padding.

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
        self.head = OutputHead(LayerFactory(config, "float32", seed), "squad", "cls/squad", 2)
        self.built = True

    def call(
        self, inputs: Tensors, training: bool = False, dropout_seed: Tensor | None = None
    ) -> Tensor:
        sequence, _ = self.encoder.encode(inputs, self.encoder.dropout(training, dropout_seed))
        return _of_every_token(self.head, sequence)

    def named_outputs(self, outputs: Tensor) -> Tensors:
        """(B, S, 2) as `start_logits` and `end_logits`, each (B, S)."""
        return {"start_logits": outputs[..., 0], "end_logits": outputs[..., 1]}


@keras.saving.register_keras_serializable(package="official_bert")
class BertTagger(ConfiguredModel):
    """BERT with a dense layer on every token's vector, for tags (arXiv 1810.04805, section 5.3).

    Outputs = dropout(sequence) · output_weightsᵀ + output_bias. Google published no checkpoint of
    this kind; the head's variables are named after the others: `cls/tags/output_weights` and
    `cls/tags/output_bias`. The head computes in float32. The pooler is kept for exports, but not
    computed.

    Args:
        config, seed, dtype: As of `BertEncoder`.
        num_outputs: K, the number of tags.

    Call arguments:
        inputs: Dictionary of integer tensors `input_ids`, `input_mask`, `segment_ids` of shape
            (B, S). Other entries are ignored.
        training, dropout_seed: As of `BertEncoder`.

    Returns:
        (B, S, K) in float32: logits, also of padding.

    Example:

    >>> config = BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1,
    ...                     num_attention_heads=2, intermediate_size=64)
    >>> BertTagger(config, num_outputs=3).variables[-2].path
    'cls/tags/output_weights'
    """

    def __init__(
        self,
        config: BertConfig,
        num_outputs: int,
        seed: int | None = 0,
        dtype: str | keras.DTypePolicy | None = None,
        name: str = "bert_tagger",
    ):
        super().__init__(config, seed, dtype, name)
        self.num_outputs = num_outputs
        self.encoder = BertEncoder(config, seed, self.dtype_policy)
        parts = LayerFactory(config, "float32", seed)
        self.head = OutputHead(parts, "tagger", "cls/tags", num_outputs)
        self.built = True

    def call(
        self, inputs: Tensors, training: bool = False, dropout_seed: Tensor | None = None
    ) -> Tensor:
        dropout = self.encoder.dropout(training, dropout_seed)
        sequence, _ = self.encoder.encode(inputs, dropout)
        return _of_every_token(self.head, dropout(sequence, self.config.hidden_dropout_prob))

    def get_config(self) -> dict[str, object]:
        """The arguments, from which Keras makes the model again when it loads a file."""
        return super().get_config() | {"num_outputs": self.num_outputs}


def _of_every_token(head: OutputHead, sequence: Tensor) -> Tensor:
    """The outputs of a head for every token, (B, S, H) → (B, S, K)."""
    batch, length, width = ops.shape(sequence)
    outputs = head(ops.reshape(ops.cast(sequence, "float32"), (-1, width)))
    return ops.reshape(outputs, (batch, length, head.output_bias.shape[0]))
