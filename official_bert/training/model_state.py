"""The state of a model and its optimizer as arrays under the official checkpoint names."""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import keras
import numpy as np

from official_bert.checkpoints import model_folder, names, sources
from official_bert.optimizers import optimizers
from official_bert.system.places import AnyPath, as_path, is_remote, open_stream

_COUNTERS = ("iterations", "skipped_updates")
_IN_TF1 = {  # TensorFlow 1's names of slots, for optimizers with exactly these slots
    ("m", "v"): {"m": "adam_m", "v": "adam_v"},
    ("momentum",): {"momentum": "momentum"},
}


def gather(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    to_host: Callable[[Sequence[keras.Variable]], list[np.ndarray]],
) -> dict[str, np.ndarray]:
    """Weights by path, and the optimizer's state.

    The slots of LAMB and AdamW are `<path>/adam_m` and `<path>/adam_v`, that of LARS is
    `<path>/momentum`; those of other optimizers are `optimizer/<path>/<slot>`. State that belongs
    to no variable is `optimizer/<name>`.

    Args:
        to_host: The engine's, which gathers their shards.
    """
    variables = {variable.path: variable for variable in model.weights}
    variables |= _slots(optimizer) | _others(optimizer)
    return dict(zip(variables, to_host([*variables.values()]), strict=True))


def is_slot(name: str) -> bool:
    """Whether a tensor of `gather` is the optimizer's, and no weight."""
    return name.startswith("optimizer/") or name.endswith(("/adam_m", "/adam_v", "/momentum"))


def restore(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, tensors: Mapping[str, np.ndarray]
) -> None:
    """Restores the whole result of `gather`."""
    for variable in model.weights:
        variable.assign(tensors[variable.path])
    for name, variable in (_slots(optimizer) | _others(optimizer)).items():
        variable.assign(tensors[name])


def carry_over(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    tensors: Mapping[str, np.ndarray],
    carry_moments: bool,
) -> str:
    """Puts the state of one stage into the model and optimizer of the next.

    Weights go by path. With `carry_moments` so do the slots of variables that train in both, if
    they have the variable's shape, and numbers such as the count of updates, on which the bias
    correction depends. Everything else of the optimizer starts as in a new run.

    Returns:
        A sentence that lists the variables carried over.
    """
    fresh = [variable.path for variable in model.weights if variable.path not in tensors]
    for variable in model.weights:
        if variable.path in tensors:
            variable.assign(tensors[variable.path])
    optimizer.skipped_updates.assign(tensors["optimizer/skipped_updates"])
    said = _carried(len(model.weights), fresh)
    if not carry_moments:
        optimizers.follow_weights(optimizer)
        return f"{said}; moments start at zero"
    slots, others = _slots(optimizer), _others(optimizer)
    state = slots | others
    shapes = {
        id(slot): tuple(variable.shape)
        for variable in optimizer.trainable_variables
        for slot in optimizer.slots(variable).values()
    }
    # Numbered ones may belong to a variable each, which has another number in the new model.
    numbered = {name.partition("#")[0] for name in others if "#" in name}
    unlike = [
        name
        for name, variable in state.items()
        if tuple(variable.shape) != shapes.get(id(variable), ())
        or (name in others and name.partition("#")[0] in numbered)
    ]
    known = [name for name in state if name in tensors and name not in unlike]
    for name in known:
        state[name].assign(tensors[name])
    optimizers.follow_weights(optimizer, [state[name] for name in known])
    carried = sum(name in slots for name in known)
    said = f"{said}; moments: carried {carried} of {len(slots)}"
    if not unlike:
        return said
    listed = names.listed(unlike)
    return f"{said}; start again, as they are not shaped like a variable: {listed}"


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The result of `load_weights`; `str` is a sentence on it.

    Attributes:
        path: The checkpoint.
        format: Its format, such as "TensorFlow 1".
        number: How many weights the model has.
        fresh: Paths of those that the checkpoint lacks, which are as they were.
        left_out: Names of variables of the checkpoint that the model does not have.
        labels: The classes of a classifier, as in its `labels.json`; `None` if unknown.
        moments: How many moments were loaded, all of the optimizer's; `None` if not requested.
        step: The number of updates that they have seen.
    """

    path: str
    format: str
    number: int
    fresh: tuple[str, ...]
    left_out: tuple[str, ...]
    labels: dict | None = None
    moments: int | None = None
    step: int | None = None

    def __str__(self) -> str:
        said = f"from {self.path} ({self.format}): {_carried(self.number, self.fresh)}"
        if self.left_out:
            said += f"; left out: {names.listed(self.left_out)}"
        if self.moments is not None:
            said += f"; moments: carried {self.moments} of {self.moments}, after {self.step} steps"
        return said


def load_weights(
    model: keras.Model, path: str | os.PathLike, optimizer: keras.optimizers.Optimizer | None = None
) -> Loaded:
    """Puts the weights of a checkpoint of any format into a model (`checkpoints/sources.py`).

    Args:
        optimizer: The model's optimizer, built, that takes over the checkpoint's moments and number
            of updates; by default it starts at zero.

    Returns:
        A `Loaded`.

    Raises:
        ValueError: if the checkpoint is not readable, carries no weight of this model, one of
            another shape or one that is not finite, or not the moments that are needed.
    """
    source = sources.open_as_init(model.config, path)
    weights = source.weights | _head_alone(model, source)
    fresh = [variable.path for variable in model.weights if variable.path not in weights]
    if len(fresh) == len(model.weights):
        raise ValueError(
            f"{path} ({source.format}) must hold variables of the model, such as {fresh[0]}; got "
            f"{names.listed(source.unmatched) or 'none'}. Give a checkpoint of a BERT."
        )
    pairs = [
        (variable, variable.path, weights[variable.path])
        for variable in model.weights
        if variable.path in weights
    ]
    if optimizer:
        moments, step = _moments(optimizer, source)
        pairs += moments
    values = [_values(variable, name, tensor, path) for variable, name, tensor in pairs]
    for (variable, _, _), value in zip(pairs, values, strict=True):
        variable.assign(value)
    loaded = Loaded(
        path=source.path,
        format=source.format,
        number=len(model.weights),
        fresh=tuple(fresh),
        left_out=tuple(sorted(source.unmatched.keys() - weights.keys())),
        labels=source.labels,
    )
    if not optimizer:
        return loaded
    optimizer.iterations.assign(step)
    return dataclasses.replace(loaded, moments=len(_slots(optimizer)), step=step)


def digest(path: AnyPath) -> str | None:
    """A digest of the content of a checkpoint, wherever it is; `None` if it cannot be read.

    The index of a TensorFlow checkpoint has the checksum of each of its tensors, so the index is
    enough. Files of other formats are read whole, as they are when their weights are loaded.
    """
    found = hashlib.sha256()
    try:
        for file in _files_of_content(path):
            with open_stream(file) as opened:
                hashlib.file_digest(opened, lambda: found)
    except (ValueError, OSError):  # a run that is resumed does not need it
        return None
    return found.hexdigest()


def _files_of_content(path):
    if is_remote(path):
        return [as_path(f"{path}.index")]
    kind, file = model_folder.find(Path(path))
    if kind == "bundle":
        return [Path(f"{file}.index")]
    if file.name.endswith(".index.json"):  # of a model in several files
        return [file, *sorted(file.parent.glob("*.safetensors"))]
    return [file]


def _head_alone(model, source):
    """The variables of a head that is not pre-training's, under its own names, if it fits.

    The head of another task, with another number of classes, is left out: fine-tuning may begin
    with such a checkpoint.
    """
    return {
        variable.path: source.unmatched[variable.path]
        for variable in model.weights
        if variable.path in source.unmatched
        and source.unmatched[variable.path].shape == tuple(variable.shape)
    }


def _moments(optimizer, source):
    """(variable, name, tensor) for the state of an optimizer in a checkpoint, and its steps."""
    state, found = _slots(optimizer), source.slots
    if getattr(optimizer, "slot_names", ()) not in _IN_TF1:
        _require_same(optimizer, source)
        state, found = state | _others(optimizer), source.counters
        del state["optimizer/skipped_updates"]
    elif getattr(optimizer, "slot_names", ()) == ("momentum",) and any(
        n.endswith("/adam_v") for n in found
    ):
        raise ValueError(
            "--init_checkpoint must have the momentum of LARS for --init_moments; got the moments "
            f"of LAMB or Adam in {source.path} ({source.format}), which do not convert: they "
            "average gradients without the weight decay. Leave --init_moments out, or train with "
            "--optimizer_type=lamb or adamw."
        )
    missing = [name for name in state if _official(name) not in found]
    if missing or source.step is None:
        raise ValueError(
            "--init_checkpoint must have the optimizer's moments and step for --init_moments; got "
            f"{source.path} ({source.format}) without {names.listed(missing) or 'the step'}. Leave "
            "--init_moments out."
        )
    pairs = [(variable, name, found[_official(name)]) for name, variable in state.items()]
    return pairs, int(source.step.read())


def _require_same(optimizer, source):
    """Refuses the moments of a run of another optimizer, whose slots may have the same names."""
    file = as_path(source.path).parent / "run.json"
    try:
        theirs = json.loads(file.read_text())["optimizer"]["type"]
        is_same = isinstance(optimizer, optimizers.find(theirs))
    except (OSError, ValueError, KeyError, TypeError):
        theirs, is_same = "an unknown optimizer", False
    if not is_same:
        raise ValueError(
            f"--init_checkpoint must be of the same optimizer, {type(optimizer).__name__}, next to "
            f"the run.json of its run, for --init_moments; got {source.path} of {theirs}. Leave "
            "--init_moments out."
        )


def _official(name):
    """The name of a slot in `checkpoints`: momentum is a first moment."""
    return name if name.startswith("optimizer/") else re.sub("/momentum$", "/adam_m", name)


def _values(variable, name, tensor, path):
    if tensor.shape != tuple(variable.shape):
        raise ValueError(
            f"{name} must have the model's shape, {tuple(variable.shape)}; got {tensor.shape} in "
            f"{path}. Use the bert_config.json of this checkpoint."
        )
    values = tensor.read()
    if not np.isfinite(values).all():
        raise ValueError(
            f"{name} must have finite values; got infinity or NaN in {path}, whose training "
            "diverged. Choose an earlier checkpoint."
        )
    return values.astype(variable.dtype, copy=False)


def _slots(optimizer):
    in_tf1 = _IN_TF1.get(getattr(optimizer, "slot_names", ()), {})
    return {
        f"{v.path}/{in_tf1[name]}" if name in in_tf1 else f"optimizer/{v.path}/{name}": slot
        for v in optimizer.trainable_variables
        for name, slot in optimizer.slots(v).items()
    }


def _others(optimizer):
    counters = {name: getattr(optimizer, name) for name in _COUNTERS}
    others = counters | optimizers.other_state(optimizer)
    return {f"optimizer/{name}": variable for name, variable in others.items()}


def _carried(number, fresh):
    said = f"weights: carried {number - len(fresh)} of {number}"
    return f"{said}; fresh: {', '.join(fresh)}" if fresh else said
