"""A model's outputs for texts of any length: one graph, batches as long as their longest row."""

from collections.abc import Callable, Iterator, Mapping

import keras
import numpy as np
import tensorflow as tf

from official_bert.model import fused
from official_bert.model.configured_model import ConfiguredModel

INPUTS = ConfiguredModel.input_names


def as_graph(model: ConfiguredModel) -> Callable:
    """A function of a batch of any shape, {name: (B, S) int32}, that returns the model's outputs.

    On TensorFlow it is one graph without kernels that would be compiled anew for each new shape.
    """
    if keras.backend.backend() != "tensorflow":
        return model
    specs = {name: tf.TensorSpec((None, None), tf.int32, name=name) for name in model.input_names}

    @tf.function(input_signature=[specs], autograph=False)
    def outputs(batch):
        with fused.as_plain_operations():
            return model(batch)

    return outputs


def outputs(
    graph: Callable, arrays: Mapping[str, np.ndarray], batch_size: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The outputs of a graph for all rows of padded arrays.

    Args:
        graph: From `as_graph`.
        arrays: `INPUTS`, (N, S).
        batch_size: Rows at once.

    Yields:
        Numbers of rows, (B,), and their outputs, (B, …). Where these have an axis of positions, it
        ends with the batch's longest row.
    """
    lengths = arrays["input_mask"].sum(axis=1)
    for rows in by_length(lengths, batch_size):
        width = lengths[rows].max()
        batch = {name: np.ascontiguousarray(arrays[name][rows, :width]) for name in INPUTS}
        yield rows, keras.ops.convert_to_numpy(graph(batch))


def by_length(lengths: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Numbers of rows in batches of rows of similar length, the longest first.

    Raises:
        ValueError: if `batch_size` is below 1.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; got {batch_size}.")
    order = np.argsort(-np.asarray(lengths), kind="stable")  # too large a batch fails at once
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities over the last axis, float64."""
    logits = np.asarray(logits, np.float64)
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return odds / odds.sum(axis=-1, keepdims=True)


def require_finite(outputs: np.ndarray) -> None:
    """Raises a ValueError where a model's outputs are NaN or infinity."""
    if not np.isfinite(outputs).all():
        raise ValueError(
            "the model's outputs must be finite; got others. Its training diverged, or its numbers "
            "exceed the range of dtype='fp16'. Try dtype='fp32'."
        )
