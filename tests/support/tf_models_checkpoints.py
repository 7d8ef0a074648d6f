"""Writes checkpoints with tf-models' own classes, and what those models compute, into a folder.

    python tests/support/tf_models_checkpoints.py FOLDER SEED

A program of its own, since tf-models wants tf_keras where a test process has Keras 3. Every
variable is random, biases too, so that none can be lost unnoticed.
"""

import os
import sys

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf
import tf_keras
from official.nlp.modeling import layers, models, networks

SHAPE = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_layers": 2,
    "num_attention_heads": 4,
    "inner_dim": 24,
    "max_sequence_length": 12,
    "type_vocab_size": 2,
}


def main(folder, seed):
    generator = np.random.default_rng(int(seed))
    inputs = {
        "input_word_ids": generator.integers(0, 50, (3, 12)).astype(np.int32),
        "input_mask": (np.arange(12) < [[12], [9], [5]]).astype(np.int32),
        "input_type_ids": generator.integers(0, 2, (3, 12)).astype(np.int32),
        "masked_lm_positions": generator.integers(0, 5, (3, 2)).astype(np.int32),
    }
    for name, encoder_class in (
        ("functional", networks.BertEncoder),
        ("v2", networks.BertEncoderV2),
    ):
        encoder = encoder_class(**SHAPE)
        head = layers.ClassificationHead(inner_dim=16, num_classes=2, name="next_sentence")
        model = models.BertPretrainerV2(encoder, mlm_activation=gelu, classification_heads=[head])
        model(inputs)
        optimizer = tf_keras.optimizers.Adam()
        fill(model, inputs, optimizer, generator)
        tf.train.Checkpoint(encoder=encoder).write(f"{folder}/{name}_encoder")
        tf.train.Checkpoint(model=model, optimizer=optimizer, **model.checkpoint_items).write(
            f"{folder}/{name}_pretrainer"
        )
        outputs = model(inputs)
        answers = {"masked_lm": outputs["mlm_logits"], "next_sentence": outputs["next_sentence"]}
        np.savez(f"{folder}/{name}.npz", **inputs, **answers)
        write_fine_tuned(folder, name, encoder_class, inputs, generator)

    encoder = networks.BertEncoder(**SHAPE)
    model = models.BertPretrainer(encoder, num_classes=2, num_token_predictions=2, activation=gelu)
    optimizer = tf_keras.optimizers.legacy.Adam()
    fill(model, inputs, optimizer, generator)
    tf.train.Checkpoint(model=model, optimizer=optimizer).write(f"{folder}/legacy_pretrainer")
    tf.train.Checkpoint(model=encoder).write(f"{folder}/legacy_encoder")
    outputs = model(inputs)
    np.savez(
        f"{folder}/legacy.npz",
        **inputs,
        masked_lm=outputs["masked_lm"],
        next_sentence=outputs["classification"],
    )


def write_fine_tuned(folder, name, encoder_class, inputs, generator):
    """Models with heads of their own, one encoder each, since they keep what they are made of."""
    inputs = {key: values for key, values in inputs.items() if key != "masked_lm_positions"}
    for head, make in (
        ("span", models.BertSpanLabeler),
        ("classifier", lambda encoder: models.BertClassifier(encoder, num_classes=2)),
        (
            "deep_classifier",
            lambda encoder: models.BertClassifier(
                encoder,
                num_classes=3,
                cls_head=layers.ClassificationHead(16, 3, name="sentence_prediction"),
                use_encoder_pooler=False,
            ),
        ),
        ("tokens", lambda encoder: models.BertTokenClassifier(encoder, num_classes=2)),
    ):
        model, optimizer = make(encoder_class(**SHAPE)), tf_keras.optimizers.legacy.Adam()
        fill(model, inputs, optimizer, generator)
        tf.train.Checkpoint(model=model, optimizer=optimizer).write(f"{folder}/{name}_{head}")
        outputs = model(inputs)
        outputs = np.stack(outputs, axis=-1) if head == "span" else outputs
        np.savez(f"{folder}/{name}_{head}.npz", **inputs, logits=outputs)


def gelu(x):
    """What the official configurations give to the heads, too."""
    return tf_keras.activations.gelu(x, approximate=True)


def fill(model, inputs, optimizer, generator):
    """Random values, and an update, so that the optimizer has slots."""
    for variable in model.variables:
        variable.assign(generator.normal(0, 0.5, variable.shape))
    with tf.GradientTape() as tape:
        loss = sum(tf.reduce_sum(value**2) for value in tf.nest.flatten(model(inputs)))
    variables = model.trainable_variables
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients((g, v) for g, v in zip(gradients, variables) if g is not None)


if __name__ == "__main__":
    main(*sys.argv[1:])
