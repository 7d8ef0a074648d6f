"""BERT and its two pre-training heads, in `keras.layers` and `keras.ops`, for any backend.

Every variable's `path` is its name in the official TensorFlow 1 checkpoints, for example
`bert/encoder/layer_0/attention/output/LayerNorm/gamma`: one language for exclusions, telemetry,
checkpoints and conversion. The configuration says all shapes, so a model is built when it is made.

Inside the encoder a batch of B sequences of S tokens is one matrix of B·S rows, so that every
dense layer is one plain matrix product. Shape comments: T = B·S rows, H hidden, N heads, D = H/N,
P masked positions a sequence, V word pieces.
"""

import dataclasses

import keras
from keras import ops

from official_bert.model import fused
from official_bert.model.config import BertConfig
from official_bert.model.initial_values import truncated_normal, unset

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

LAYER_NORM_EPSILON = 1e-12
MASK_BIAS = -10000.0  # added to the attention scores of padding


@keras.saving.register_keras_serializable(package="official_bert")
class BertPretrainer(keras.Model):
    """BERT with its masked-LM and next-sentence heads (arXiv 1810.04805).

    Post-LayerNorm, ε 1e-12, truncated normal weights, zero biases; the masked-LM head reads the
    masked positions only and is tied to the word embeddings.

    Args:
        config: A `BertConfig`.
        seed: Integer from which, with each variable's path, its initial value follows: the same on
            every backend, and adding layers does not change those of the others. None leaves
            them unset, for a model whose weights are about to be loaded.
        dtype: Keras dtype policy, for example `"mixed_bfloat16"`; the global one by default.

    Call arguments:
        inputs: Dictionary of integer tensors: `input_ids`, `input_mask`, `segment_ids` of shape
            (B, S) and `masked_lm_positions` of shape (B, P). Other entries are ignored.
        training: Whether dropout is on.
        dropout_seed: Integer tensor of shape (2,): dropout becomes a function of it alone.
            By default it is drawn from the model's own generator, as Keras' layers do.

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

    def __init__(self, config, seed=0, dtype=None, name="bert_pretrainer"):
        super().__init__(name=name, dtype=dtype)
        self.config, self.seed = config, seed
        parts = _Parts(config, self.dtype_policy, seed)
        self.embeddings = Embeddings(parts)
        self.encoder_layers = [EncoderLayer(parts, i) for i in range(config.num_hidden_layers)]
        self.pooler = Dense(parts, "bert/pooler/dense", config.hidden_size)
        self.masked_lm_head = MaskedLMHead(parts)
        self.next_sentence_head = NextSentenceHead(parts)
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.built = True

    def call(self, inputs, training=False, dropout_seed=None):
        dropout = _Dropout(training, self.seed_generator, dropout_seed)
        masked = inputs["masked_lm_positions"]
        read = ops.pad(masked, ((0, 0), (1, 0)))  # what the heads read: [CLS] is at position 0
        x, word_embeddings = self.embeddings(
            inputs["input_ids"], inputs["segment_ids"], dropout=dropout
        )
        sequence = self.encode(x, inputs["input_mask"], dropout, read)
        sequence = ops.reshape(
            sequence, (-1, ops.shape(read)[1], sequence.shape[-1])
        )  # (B, 1 + P, H)
        return {
            "masked_lm_logits": self.masked_lm_head(sequence[:, 1:], word_embeddings),
            "next_sentence_logits": self.next_sentence_head(
                _activated(sequence[:, 0], self.pooler, "tanh")
            ),
        }

    def get_config(self):
        """The arguments, from which Keras makes the model again when it loads a file."""
        return {
            "config": dataclasses.asdict(self.config),
            "seed": self.seed,
            "dtype": self.dtype_policy.name,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config):
        """The model that `get_config` described."""
        return cls(**{**config, "config": BertConfig.from_values(config["config"])})

    def encode(self, x, input_mask, dropout, positions=None):
        """The last layer's output from that of the embeddings, one row a token: (T, H).

        With `positions` (B, R), the rows of these alone, (B·R, H): the last layer then leaves out
        what it would compute for the others, which no later layer reads.
        """
        mask = ops.cast(input_mask, self.compute_dtype)
        mask_bias = (1.0 - mask)[:, None, None, :] * MASK_BIAS  # (B, 1, 1, S)
        for layer in self.encoder_layers[:-1]:
            x = layer(x, mask_bias, dropout=dropout)
        return self.encoder_layers[-1](x, mask_bias, dropout=dropout, positions=positions)


class Embeddings(keras.Layer):
    """Word, position and segment embeddings, summed, normalised: (B, S) ids → (T, H), (V, H).

    The second is the table of word embeddings, in the type of the arithmetic.
    """

    def __init__(self, parts):
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

    def call(self, input_ids, segment_ids, dropout):
        length, width = ops.shape(input_ids)[1], self.word_embeddings.shape[1]
        words, table = fused.look_up(self.word_embeddings, input_ids, self.compute_dtype)
        types = ops.matmul(  # a product instead of a gather: its gradient is dense and tiny
            ops.one_hot(segment_ids, self.token_type_embeddings.shape[0], dtype=words.dtype),
            self.token_type_embeddings,
        )
        positions = ops.convert_to_tensor(self.position_embeddings)[:length]
        x = ops.reshape(words + types + positions[None], (-1, width))  # (T, H)
        return dropout(_norm(x, self.layer_norm), self.dropout_rate), table


class EncoderLayer(keras.Layer):
    """One Transformer layer: self-attention, then the feed-forward layer; (T, H) → (T, H)."""

    def __init__(self, parts, index):
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

    def call(self, x, mask_bias, dropout, positions=None):
        length = ops.shape(mask_bias)[-1]
        tokens, queries = x, length
        if positions is not None:  # of queries; keys and values are those of all tokens
            x, queries = ops.take(x, _rows(positions, length), axis=0), ops.shape(positions)[1]
        mixed = self._attend(
            self._heads(x, self.query, queries),
            self._heads(tokens, self.key, length),
            self._heads(tokens, self.value, length),
            mask_bias,
            dropout,
        )
        x = self._add_and_norm(mixed, self.attention_output, x, self.attention_norm, dropout)
        wide = _activated(x, self.intermediate, self.config.hidden_act)
        return self._add_and_norm(wide, self.output_dense, x, self.output_norm, dropout)

    def _heads(self, x, dense, length):  # (B·length, H) → (B, N, length, D)
        heads, size = self.config.num_attention_heads, self.config.head_size
        return ops.transpose(ops.reshape(dense(x), (-1, length, heads, size)), (0, 2, 1, 3))

    def _attend(self, query, key, value, mask_bias, dropout):
        """Mixtures of values, a row a query; R queries of S tokens: (B, N, R, D) → (B·R, H)."""
        scores = _matmul_transposed(query, key)  # (B, N, R, S)
        scale, rate = self.config.head_size**-0.5, self.config.attention_probs_dropout_prob
        weights = dropout.attention_weights(scores, mask_bias, scale, rate)
        mixed = ops.transpose(ops.matmul(weights, value), (0, 2, 1, 3))  # (B, R, N, D)
        return ops.reshape(mixed, (-1, self.config.hidden_size))

    def _add_and_norm(self, x, dense, residual, norm, dropout):
        rate = self.config.hidden_dropout_prob
        return dropout.add_and_norm(_product(x, dense), dense.bias, residual, norm, rate)


def _rows(positions, length):
    """Row numbers, (B·R,), of positions (B, R) in the matrix of all tokens."""
    offsets = ops.cast(ops.arange(ops.shape(positions)[0]) * length, positions.dtype)[:, None]
    return ops.reshape(positions + offsets, (-1,))


class Dense(keras.Layer):
    """A dense layer, x · kernel + bias; or its weights, for a fused kernel that adds the bias.

    The bias is float32 whatever the type of the arithmetic.
    """

    def __init__(self, parts, path, units, inputs=None):
        parent, _, name = path.rpartition("/")
        super().__init__(name=name, dtype=parts.dtype)
        with parts.scope(parent):
            self.kernel = self.add_weight(
                (inputs or parts.config.hidden_size, units),
                initializer=parts.initializer(f"{path}/kernel"),
                name="kernel",
            )
            self.bias = self.add_weight((units,), initializer="zeros", autocast=False, name="bias")
        self.built = True

    def call(self, x):
        # Not `ops.add`: TensorFlow would sum up the bias gradient of bfloat16 in bfloat16.
        return _product(x, self) + ops.cast(self.bias, x.dtype)


def _matmul_transposed(x, y):
    """x · yᵀ, the last two axes of y transposed. Through Keras a gradient would be, too."""
    if keras.backend.backend() == "tensorflow":
        return tf.linalg.matmul(x, y, transpose_b=True)
    return ops.matmul(x, ops.swapaxes(y, -1, -2))


def _product(x, dense):
    return ops.matmul(x, dense.kernel)


def _activated(x, dense, activation):
    return fused.activated(_product(x, dense), dense.bias, activation=activation)


class MaskedLMHead(keras.Layer):
    """Scores of every word piece at the masked positions: (B, P, H) → (B, P, V), float32."""

    def __init__(self, parts):
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

    def call(self, masked, word_embeddings):
        predictions, width = ops.shape(masked)[1:]
        x = _activated(ops.reshape(masked, (-1, width)), self.transform, self.activation)
        x = _norm(x, self.layer_norm)  # (B·P, H)
        scores = _matmul_transposed(x, word_embeddings) + self.output_bias
        return ops.cast(
            ops.reshape(scores, (-1, predictions, self.output_bias.shape[0])), "float32"
        )


class NextSentenceHead(keras.Layer):
    """Is the second segment the first one's continuation? (B, H) → (B, 2), float32; 0 = yes."""

    def __init__(self, parts):
        super().__init__(name="seq_relationship", dtype=parts.dtype)
        width = parts.config.hidden_size
        with parts.scope("cls"):
            self.output_weights = self.add_weight(  # (2, H), as in the official checkpoints
                (2, width),
                initializer=parts.initializer("cls/seq_relationship/output_weights"),
                name="output_weights",
            )
            self.output_bias = self.add_weight((2,), initializer="zeros", name="output_bias")
        self.built = True

    def call(self, pooled):
        scores = ops.matmul(pooled, ops.transpose(self.output_weights)) + self.output_bias
        return ops.cast(scores, "float32")


def pretraining_sums(outputs, batch):
    """Sums over a batch from which losses and accuracies follow by division; float32 scalars.

    Sums rather than means, so that micro-batches, replicas and steps simply add up.

    Args:
        outputs: What `BertPretrainer` returned.
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
        loss = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        hit = ops.cast(ops.equal(_argmax(logits), ops.cast(labels, "int32")), "float32")
        sums[f"{task}_loss"] = ops.sum(ops.multiply(weights, loss))
        sums[f"{task}_correct"] = ops.sum(ops.multiply(weights, hit))
        sums[f"{task}_weight"] = ops.sum(weights)
    return sums


def _argmax(x):
    """Where each row is largest.

    Keras' own passes over x several times on TensorFlow, to tell −0 from 0.
    """
    if keras.backend.backend() == "tensorflow":
        return tf.argmax(x, axis=-1, output_type="int32")
    return ops.argmax(x, axis=-1)


def _norm(x, layer):
    return fused.layer_norm(x, layer.gamma, layer.beta, epsilon=layer.epsilon)


class _Dropout:
    """Dropout of one call of the model.

    With a key, its seeds follow from that: Keras' own generator counts calls in a variable, which
    can neither start at any step nor differ between replicas.
    """

    def __init__(self, training, seed_generator, key):
        self._training, self._seed_generator = training, seed_generator
        self._key, self._drawn = None, 0
        if key is not None:  # shuffled, so that neighbouring keys do not count the same seeds
            key = ops.cast(key, "int32")
            self._key = ops.stack(fused.shuffled(key[0], key[1]))

    def __call__(self, x, rate):
        return fused.dropout(x, self._seed(), rate=rate) if self._training and rate else x

    def add_and_norm(self, x, bias, residual, layer, rate):
        """`layer`'s norm of the residual and of x and its bias, which are dropped."""
        rate, seed = self._rate_and_seed(rate)
        return fused.add_and_norm(
            x, bias, residual, layer.gamma, layer.beta, seed, rate=rate, epsilon=layer.epsilon
        )

    def attention_weights(self, scores, mask_bias, scale, rate):
        """The softmax of scaled scores and the mask, dropped."""
        rate, seed = self._rate_and_seed(rate)
        return fused.attention_weights(scores, mask_bias, seed, scale=scale, rate=rate)

    def _rate_and_seed(self, rate):
        rate = rate if self._training else 0.0
        return rate, self._seed() if rate else ops.zeros(2, "int32")

    def _seed(self):
        if self._key is None:
            return ops.cast(self._seed_generator.next(), "int32")
        self._drawn += 1
        return self._key + ops.convert_to_tensor([0, self._drawn], "int32")


class _Parts:
    """Makes built sub-layers with the model's dtype and initial values, at a path."""

    def __init__(self, config, dtype, seed):
        self.config, self.dtype, self._seed = config, dtype, seed

    def scope(self, path):
        parent, _, name = path.rpartition("/")
        return keras.name_scope(name, override_parent=parent)

    def initializer(self, path):
        if self._seed is None:
            return unset
        return truncated_normal(self.config.initializer_range, self._seed, path)

    def layer_norm(self, path):
        parent, _, name = path.rpartition("/")
        layer = keras.layers.LayerNormalization(
            epsilon=LAYER_NORM_EPSILON, dtype=self.dtype, name=name
        )
        with self.scope(parent):
            layer.build((None, self.config.hidden_size))
        return layer
