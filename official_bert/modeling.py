"""BERT and its two pre-training heads, in `keras.layers` and `keras.ops` only (any backend).

Every variable's `path` is its name in the official TensorFlow 1 checkpoints, for example
`bert/encoder/layer_0/attention/output/LayerNorm/gamma`: one language for exclusions, telemetry,
checkpoints and conversion. The configuration says all shapes, so a model is built when it is made.

Inside the encoder a batch of B sequences of S tokens is one matrix of B·S rows, so that every
dense layer is one plain matrix product. Shape comments: T = B·S rows, H hidden, N heads, D = H/N,
P masked positions a sequence, V word pieces.
"""

import zlib

import keras
from keras import ops

LAYER_NORM_EPSILON = 1e-12
MASK_BIAS = -10000.0  # added to the attention scores of padding

_ACTIVATIONS = {
    "gelu": lambda x: ops.gelu(x, approximate=True),
    "relu": ops.relu,
    "tanh": ops.tanh,
    "linear": None,
}


class BertPretrainer(keras.Model):
    """BERT with its masked-LM and next-sentence heads (arXiv 1810.04805).

    Post-LayerNorm, ε 1e-12, tanh-approximated GELU, truncated normal weights, zero biases; the
    masked-LM head reads the masked positions only and is tied to the word embeddings.

    Args:
        config: A `BertConfig`.
        seed: Integer from which, with each variable's path, its initial value follows; adding
            layers does not change those of the others.
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
        self.config = config
        parts = _Parts(config, self.dtype_policy, seed)
        self.embeddings = Embeddings(parts)
        self.encoder_layers = [EncoderLayer(parts, i) for i in range(config.num_hidden_layers)]
        self.pooler = parts.dense("bert/pooler/dense", config.hidden_size, keras.ops.tanh)
        self.masked_lm_head = MaskedLMHead(parts)
        self.next_sentence_head = NextSentenceHead(parts)
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.built = True

    def call(self, inputs, training=False, dropout_seed=None):
        dropout = _Dropout(training, self.seed_generator, dropout_seed)
        sequence = self.encode(inputs, dropout)
        length = inputs["input_ids"].shape[1]
        first = ops.reshape(sequence, (-1, length, sequence.shape[-1]))[:, 0]  # [CLS]: (B, H)
        return {
            "masked_lm_logits": self.masked_lm_head(
                sequence,
                inputs["masked_lm_positions"],
                self.embeddings.word_embeddings,
                length=length,
            ),
            "next_sentence_logits": self.next_sentence_head(self.pooler(first)),
        }

    def encode(self, inputs, dropout):
        """The last layer's output, one row a token: (T, H)."""
        x = self.embeddings(inputs["input_ids"], inputs["segment_ids"], dropout=dropout)
        mask = ops.cast(inputs["input_mask"], self.compute_dtype)
        mask_bias = (1.0 - mask)[:, None, None, :] * MASK_BIAS  # (B, 1, 1, S)
        for layer in self.encoder_layers:
            x = layer(x, mask_bias, dropout=dropout)
        return x


class Embeddings(keras.Layer):
    """Word, position and segment embeddings, summed, normalised: (B, S) ids → (T, H)."""

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
                    name=name,
                )
                for name, size in sizes.items()
            ]
        self.word_embeddings, self.token_type_embeddings, self.position_embeddings = tables
        self.layer_norm = parts.layer_norm("bert/embeddings/LayerNorm")
        self.built = True

    def call(self, input_ids, segment_ids, dropout):
        length, width = input_ids.shape[1], self.word_embeddings.shape[1]
        words = ops.take(ops.convert_to_tensor(self.word_embeddings), input_ids, axis=0)
        types = ops.matmul(  # a product instead of a gather: its gradient is dense and tiny
            ops.one_hot(segment_ids, self.token_type_embeddings.shape[0], dtype=words.dtype),
            self.token_type_embeddings,
        )
        positions = ops.convert_to_tensor(self.position_embeddings)[:length]
        x = ops.reshape(words + types + positions[None], (-1, width))  # (T, H)
        return dropout(self.layer_norm(x), self.dropout_rate)


class EncoderLayer(keras.Layer):
    """One Transformer layer: self-attention, then the feed-forward layer; (T, H) → (T, H)."""

    def __init__(self, parts, index):
        super().__init__(name=f"layer_{index}", dtype=parts.dtype)
        self.config = config = parts.config
        path, width = f"bert/encoder/layer_{index}", config.hidden_size
        self.query = parts.dense(f"{path}/attention/self/query", width)
        self.key = parts.dense(f"{path}/attention/self/key", width)
        self.value = parts.dense(f"{path}/attention/self/value", width)
        self.attention_output = parts.dense(f"{path}/attention/output/dense", width)
        self.attention_norm = parts.layer_norm(f"{path}/attention/output/LayerNorm")
        self.intermediate = parts.dense(
            f"{path}/intermediate/dense",
            config.intermediate_size,
            _ACTIVATIONS[config.hidden_act],
        )
        self.output_dense = parts.dense(
            f"{path}/output/dense", width, inputs=config.intermediate_size
        )
        self.output_norm = parts.layer_norm(f"{path}/output/LayerNorm")
        self.built = True

    def call(self, x, mask_bias, dropout):
        rate = self.config.hidden_dropout_prob
        attended = self.attention_output(self._attend(x, mask_bias, dropout))
        x = self.attention_norm(x + dropout(attended, rate))
        transformed = self.output_dense(self.intermediate(x))
        return self.output_norm(x + dropout(transformed, rate))

    def _attend(self, x, mask_bias, dropout):
        length = mask_bias.shape[-1]
        heads, size = self.config.num_attention_heads, self.config.head_size

        def split(rows):  # (T, H) → (B, N, S, D)
            return ops.transpose(ops.reshape(rows, (-1, length, heads, size)), (0, 2, 1, 3))

        query = split(self.query(x) * size**-0.5)
        key, value = split(self.key(x)), split(self.value(x))
        scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))) + mask_bias  # (B, N, S, S)
        weights = dropout(ops.softmax(scores), self.config.attention_probs_dropout_prob)
        mixed = ops.transpose(ops.matmul(weights, value), (0, 2, 1, 3))  # (B, S, N, D)
        return ops.reshape(mixed, (-1, heads * size))


class MaskedLMHead(keras.Layer):
    """Scores of every word piece at the masked positions: (T, H) → (B, P, V), float32."""

    def __init__(self, parts):
        super().__init__(name="predictions", dtype=parts.dtype)
        config = parts.config
        self.transform = parts.dense(
            "cls/predictions/transform/dense",
            config.hidden_size,
            _ACTIVATIONS[config.hidden_act],
        )
        self.layer_norm = parts.layer_norm("cls/predictions/transform/LayerNorm")
        with parts.scope("cls"):
            self.output_bias = self.add_weight(
                (config.vocab_size,), initializer="zeros", name="output_bias"
            )
        self.built = True

    def call(self, sequence, positions, word_embeddings, length):
        batch, predictions = ops.shape(positions)[0], positions.shape[1]
        offsets = ops.cast(ops.arange(batch) * length, positions.dtype)[:, None]
        rows = ops.reshape(positions + offsets, (-1,))
        x = self.layer_norm(self.transform(ops.take(sequence, rows, axis=0)))  # (B·P, H)
        scores = ops.matmul(x, ops.transpose(word_embeddings)) + self.output_bias
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
        hit = ops.cast(ops.equal(ops.argmax(logits, axis=-1), ops.cast(labels, "int32")), "float32")
        sums[f"{task}_loss"] = ops.sum(ops.multiply(weights, loss))
        sums[f"{task}_correct"] = ops.sum(ops.multiply(weights, hit))
        sums[f"{task}_weight"] = ops.sum(weights)
    return sums


class _Dropout:
    """Dropout of one call of the model."""

    def __init__(self, training, seed_generator, key):
        self._training = training
        if key is not None:
            key = ops.cast(key, seed_generator.state.dtype)
        self._seeds = seed_generator if key is None else _CallSeeds(key)

    def __call__(self, x, rate):
        return keras.random.dropout(x, rate, seed=self._seeds) if self._training and rate else x


class _CallSeeds(keras.random.SeedGenerator):
    """Seeds of one call: (key[0], key[1] + 1), (key[0], key[1] + 2), …

    Keras' own generator counts calls in a variable; that can neither start at any step nor differ
    between replicas. This one is a function of its key, hence without its parent's variable.
    """

    def __init__(self, key):
        self._key, self._drawn = key, 0

    def next(self, ordered=True):
        self._drawn += 1
        return self._key + ops.convert_to_tensor([0, self._drawn], self._key.dtype)


class _Parts:
    """Makes built sub-layers with the model's dtype and initial values, at a path."""

    def __init__(self, config, dtype, seed):
        self.config, self.dtype, self._seed = config, dtype, seed

    def scope(self, path):
        parent, _, name = path.rpartition("/")
        return keras.name_scope(name, override_parent=parent)

    def initializer(self, path):
        return keras.initializers.TruncatedNormal(
            stddev=self.config.initializer_range, seed=zlib.crc32(f"{self._seed}/{path}".encode())
        )

    def dense(self, path, units, activation=None, inputs=None):
        parent, _, name = path.rpartition("/")
        layer = keras.layers.Dense(
            units,
            activation=activation,
            kernel_initializer=self.initializer(f"{path}/kernel"),
            dtype=self.dtype,
            name=name,
        )
        with self.scope(parent):
            layer.build((None, inputs or self.config.hidden_size))
        return layer

    def layer_norm(self, path):
        parent, _, name = path.rpartition("/")
        layer = keras.layers.LayerNormalization(
            epsilon=LAYER_NORM_EPSILON, dtype=self.dtype, name=name
        )
        with self.scope(parent):
            layer.build((None, self.config.hidden_size))
        return layer
