"""Finds the checkpoints of a run for use; loads a fine-tuned model from one, or from any other.

`described` is the content of a run's `run.json`.
"""

import itertools
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras

from official_bert.checkpoints.source import output_names
from official_bert.model.config import BertConfig
from official_bert.stages import DTYPE_POLICIES
from official_bert.training import model_directory, model_state, run_files
from official_bert.training.checkpoints import Checkpoint, CheckpointStore

if TYPE_CHECKING:
    from official_bert.protocols import Engine, Task


def newest(folder: pathlib.Path, described: Mapping) -> Checkpoint | None:
    """The newest whole checkpoint of a run."""
    return _store(folder, described).latest()


def prefix_at(folder: pathlib.Path, described: Mapping, step: int) -> str:
    """The prefix of a run's weights at a step; 0 is before the first.

    Raises:
        ValueError: if there are none; it lists the steps that have some.
    """
    initial = folder / run_files.INITIAL
    has_initial = os.path.exists(f"{initial}.index")
    if step == 0 and has_initial:
        return str(initial)
    found = _store(folder, described).at(step, setting="step", others=[0] * has_initial)
    return found.prefix


def depth_at(described: Mapping, step: int) -> int | None:
    """The encoder layers of a run at a step; `None`: as many as in its configuration."""
    stages = described.get("stages", ())
    ends = itertools.accumulate(stage["steps"] for stage in stages)
    return next((stage.get("depth") for stage, end in zip(stages, ends) if step <= end), None)


def _store(folder, described):
    changes = tuple(described.get("changes", ()))
    abandoned = model_directory.Claim({}, changes).abandoned()
    return CheckpointStore(folder, abandoned=abandoned)


def load(
    task: "Task", model_dir: str | os.PathLike, engine: "Engine", dtype: str = "fp32"
) -> tuple[keras.Model, int]:
    """The model of a run from its newest whole checkpoint, and the number of its steps.

    Args:
        task: The task that it was trained for.
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
            f"{model_dir} must hold a model of this task; got another's: {'; '.join(differences)}. "
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
    engine: "Engine",
    dtype: str = "fp32",
    arrange: Callable[[Any, Sequence[str], str], None] | None = None,
) -> keras.Model:
    """The model in a fine-tuned checkpoint of the official script, or of any run here.

    Args:
        task, engine, dtype: As of `load`.
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
            f"{path} must be fine-tuned for this task and have its number of outputs; got weights "
            f"that lack some: {loaded}. Give the folder of such a model, or fine-tune it first "
            "(--do_train)."
        )
    print(loaded)
    names = output_names(loaded.labels)
    if arrange and names:
        arrange(model, names, path)
    return model
