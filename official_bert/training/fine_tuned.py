"""Loads a fine-tuned model and runs it over a dataset."""

import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from official_bert.data.row_batches import RowBatches, Rows
from official_bert.model.config import BertConfig
from official_bert.stages import DTYPE_POLICIES
from official_bert.training import model_directory, model_state
from official_bert.training.checkpoints import Checkpoint, CheckpointStore

if TYPE_CHECKING:
    from official_bert.engines.tf_distribute import TfDistribute
    from official_bert.protocols import Task


def newest(folder: pathlib.Path, described: Mapping) -> Checkpoint | None:
    """The newest whole checkpoint of a run.

    Args:
        folder: The model directory.
        described: The contents of its `run.json`.
    """
    changes = tuple(described.get("changes", ()))
    abandoned = model_directory.Claim({}, changes).abandoned()
    return CheckpointStore(folder, abandoned=abandoned).latest()


def load(
    task: "Task", model_dir: str | os.PathLike, engine: "TfDistribute", dtype: str = "fp32"
) -> tuple[keras.Model, int]:
    """The model of a run from its newest whole checkpoint, and the number of its steps.

    Args:
        task: The task that it was trained for.
        model_dir: The model directory.
        engine: Where the model is to live.
        dtype: Data type of the computation: `"fp32"`, `"bf16"` or `"fp16"`.

    Raises:
        ValueError: if there is no whole checkpoint, or the run is of another task.
    """
    model_dir = pathlib.Path(model_dir)
    described = model_directory.read_run_json(model_dir)
    if described is None:
        raise ValueError(
            f"{model_dir} must hold a fine-tuned model; got none. Train one (--do_train)."
        )
    differences = [
        f"{name} was {described.get(name)!r} and is {value!r}"
        for name, value in task.describe().items()
        if described.get(name) != value
    ]
    if differences:
        raise ValueError(
            f"The model in {model_dir} was trained for another task: {'; '.join(differences)}. "
            "Use the settings that it was trained with, or another output_dir."
        )
    checkpoint = newest(model_dir, described)
    if checkpoint is None:
        raise ValueError(
            f"{model_dir} must hold a checkpoint; got none. Resume its run (--do_train)."
        )
    config = BertConfig.from_json_file(model_dir / model_directory.CONFIG)
    with engine.scope():
        model = task.make_model(config, None, DTYPE_POLICIES[dtype])
    tensors = checkpoint.tensors()
    for variable in model.weights:
        variable.assign(tensors[variable.path])
    return model, checkpoint.step


def load_checkpoint(
    task: "Task",
    config: BertConfig,
    path: str,
    engine: "TfDistribute",
    dtype: str = "fp32",
    arrange: Callable[[Any, Sequence[str], str], None] | None = None,
) -> keras.Model:
    """The model in a fine-tuned checkpoint of the official script, or of any run here.

    Args:
        task, engine, dtype: As of `load`.
        config: Its `BertConfig`.
        path: The checkpoint.
        arrange: Called with the model, the checkpoint's names of its classes, if any, and its path;
            it may reorder the model's outputs.

    Raises:
        ValueError: if the checkpoint lacks a weight that the task trains, the head's included, or
            as `model_state.load_weights`.
    """
    with engine.scope():
        model = task.make_model(config, None, DTYPE_POLICIES[dtype])
    loaded = model_state.load_weights(model, path)
    if any(task.is_trainable(name) for name in loaded.fresh):
        raise ValueError(
            "The checkpoint must be fine-tuned for this task; got one that lacks weights of it: "
            f"{loaded}. Fine-tune it first (--do_train)."
        )
    print(loaded)
    classes = (loaded.labels or {}).get("classes")
    if arrange and classes:
        arrange(model, classes, path)
    return model


def outputs(engine: "TfDistribute", model: keras.Model, rows: Rows, batch_size: int) -> np.ndarray:
    """The outputs of a model for N examples, in order: an array of N rows.

    Args:
        engine: Where the model lives.
        model: The model of a task.
        rows: The examples.
        batch_size: Number of examples computed at once, over all replicas.

    Raises:
        ValueError: as the engine's `outputs`.
    """

    def open_batches(*shard):
        return RowBatches(rows, batch_size, shard=shard, shuffle=False)

    found = np.concatenate(list(engine.outputs(model, open_batches)))
    return found[: len(rows)]  # without the padding of the last batch
