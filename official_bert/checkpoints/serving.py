"""Writes a model as a SavedModel, to be served without this package."""

import re
import shutil
from pathlib import Path

import numpy as np
import tensorflow as tf

from official_bert.checkpoints import tensor_bundles
from official_bert.checkpoints.sources import Source
from official_bert.checkpoints.text_graph import TextToIds
from official_bert.checkpoints.tf_checkpoints import OBJECT_GRAPH
from official_bert.data import tokenization
from official_bert.model import fused
from official_bert.model.pretrainer import BertPretrainer


def save(folder: Path, source: Source) -> None:
    """Writes a SavedModel with the signatures `serving_default`, of ids, and `text`.

    serving_default: `input_ids`, `input_mask`, `segment_ids` (B, S) and `masked_lm_positions`
    (B, P), int32 → `masked_lm_logits` (B, P, V) and `next_sentence_logits` (B, 2).

    text: `sentences` (B,), strings in which `[MASK]` marks a blank → the same logits, and
    `input_ids` (B, S) and `masked_lm_positions` (B, P), padded with 0. Only if the source has a
    vocabulary.
    """
    model = BertPretrainer(source.config, seed=None, dtype="float32")
    module = tf.Module()
    module.variables_of_model = [variable.value for variable in model.weights]
    for variable in module.variables_of_model:  # graphs need only its shape; see `_fill`
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.zeros(()))
    integers = tf.TensorSpec((None, None), tf.int32)
    names = "input_ids", "input_mask", "segment_ids", "masked_lm_positions"
    specs = {name: tf.TensorSpec(integers.shape, tf.int32, name=name) for name in names}

    @tf.function(input_signature=[specs], autograph=False)
    def of_ids(inputs):
        return model(inputs)

    signatures = {"serving_default": of_ids}
    if source.vocab_file:
        length = source.config.max_position_embeddings
        module.text_to_ids = TextToIds(source.vocab_file, source.do_lower_case or False, length)
        mask_id = tokenization.read_vocabulary(str(source.vocab_file))[tokenization.MASK]
        sentences = tf.TensorSpec((None,), tf.string, name="sentences")

        @tf.function(input_signature=[sentences], autograph=False)
        def of_text(sentences):
            ids = module.text_to_ids(sentences)
            blanks = tf.ragged.boolean_mask(
                tf.ragged.range(ids.row_lengths()), ids.with_values(ids.values == mask_id)
            )
            inputs = {
                "input_ids": ids.to_tensor(),
                "input_mask": tf.ones_like(ids).to_tensor(),
                "segment_ids": tf.zeros_like(ids).to_tensor(),
                "masked_lm_positions": tf.cast(blanks.to_tensor(), tf.int32),
            }
            shown = {name: inputs[name] for name in ("input_ids", "masked_lm_positions")}
            return {**of_ids(inputs), **shown}  # the same graph of the model

        signatures["text"] = of_text
    with fused.as_plain_operations():
        try:
            tf.saved_model.save(module, str(folder), signatures)
        except tf.errors.OpError as error:
            first = str(error).partition("\n")[0]
            reason = re.sub(r"^\{\{.*?\}\} | \[Op:\w+\].*$", "", first)  # no place in the graph
            raise OSError(f"Cannot write {folder}: {reason}") from None
    _fill(folder, model, source)


def _fill(folder, model, source):
    """Inserts the weights, one tensor at a time; the model was saved without them."""
    variables, filled = folder / "variables", folder / "variables_filled"
    graph = {OBJECT_GRAPH: tensor_bundles.read(variables / "variables")[OBJECT_GRAPH]}
    tensors = {
        f"variables_of_model/{number}/.ATTRIBUTES/VARIABLE_VALUE": source.weights[variable.path]
        for number, variable in enumerate(model.weights)
    }
    tensors = {key: tensor.cast(np.float32) for key, tensor in tensors.items()}
    filled.mkdir()
    tensor_bundles.write(filled / "variables", tensors | graph)
    shutil.rmtree(variables)
    filled.rename(variables)
    (folder / "fingerprint.pb").unlink(missing_ok=True)  # it was of the empty variables
