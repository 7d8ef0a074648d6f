"""The state of a model and its optimizer as arrays under the official checkpoint names."""

import dataclasses
import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import keras
import numpy as np

from official_bert.checkpoints import finding, names
from official_bert.system.places import AnyPath, as_path, is_remote

_BYTES_AT_ONCE = 1 << 24  # when a digest is computed
_COUNTERS = ("iterations", "skipped_updates")
_SLOTS = {"m": "adam_m", "v": "adam_v"}  # by the optimizer's name; others are saved under that


def gather(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    to_host: Callable[[Sequence[keras.Variable]], list[np.ndarray]],
) -> dict[str, np.ndarray]:
    """Weights by path, slots as `<path>/adam_m`, `<path>/adam_v`, `<path>/momentum`; counters.

    Args:
        model: The model of a stage.
        optimizer: Its optimizer, built.
        to_host: The engine's, which gathers their shards.
    """
    variables = {variable.path: variable for variable in model.weights}
    variables |= _slots(model, optimizer)
    variables |= {f"optimizer/{counter}": getattr(optimizer, counter) for counter in _COUNTERS}
    return dict(zip(variables, to_host([*variables.values()]), strict=True))


def is_slot(name: str) -> bool:
    """Whether a tensor of `gather` is the optimizer's, and no weight and no counter."""
    return name.endswith(("/adam_m", "/adam_v", "/momentum"))


def restore(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, tensors: Mapping[str, np.ndarray]
) -> None:
    """Puts back what `gather` gave, all of it."""
    for variable in model.weights:
        variable.assign(tensors[variable.path])
    for name, slot in _slots(model, optimizer).items():
        slot.assign(tensors[name])
    for counter in _COUNTERS:
        getattr(optimizer, counter).assign(tensors[f"optimizer/{counter}"])


def carry_over(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    tensors: Mapping[str, np.ndarray],
    carry_moments: bool,
) -> str:
    """Puts the state of one stage into the model and optimizer of the next.

    Weights go by path. With `carry_moments` so do the moments of variables that train in both, and
    the count of updates, on which the bias correction depends; without, both start at zero.

    Returns:
        A sentence on what was carried over.
    """
    fresh = [variable.path for variable in model.weights if variable.path not in tensors]
    for variable in model.weights:
        if variable.path in tensors:
            variable.assign(tensors[variable.path])
    optimizer.skipped_updates.assign(tensors["optimizer/skipped_updates"])
    said = _carried(len(model.weights), fresh)
    slots = _slots(model, optimizer)
    if not carry_moments:
        return f"{said}; moments start at zero"
    optimizer.iterations.assign(tensors["optimizer/iterations"])
    known = [name for name in slots if name in tensors]
    for name in known:
        slots[name].assign(tensors[name])
    return f"{said}; moments: carried {len(known)} of {len(slots)}"


@dataclasses.dataclass(frozen=True)
class Loaded:
    """What `load_weights` has put into a model; `str` is a sentence on it.

    Attributes:
        path: The checkpoint.
        format: Its format, such as "TensorFlow 1".
        number: How many weights the model has.
        fresh: Paths of those that the checkpoint lacks, which are as they were.
        left_out: Names of variables of the checkpoint that the model does not have.
        labels: What a classifier in the checkpoint predicts, as its `labels.json` holds it; `None`
            if unknown.
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
        model: The model, built.
        path: The checkpoint.
        optimizer: The model's optimizer, built, that takes over the checkpoint's moments and number
            of updates; by default it starts at zero.

    Returns:
        A `Loaded`: what was carried over and what was not.

    Raises:
        ValueError: if the checkpoint is not readable, carries no weight of this model, one of
            another shape or one that is not finite, or not the moments that are needed.
    """
    from official_bert.checkpoints import sources

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
        slots, step = _slots(model, optimizer), _step_with_moments(model, optimizer, source)
        pairs += [(slot, name, source.slots[_official(name)]) for name, slot in slots.items()]
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
    return dataclasses.replace(loaded, moments=len(slots), step=step)


def digest(path: AnyPath) -> str | None:
    """A digest of the content of a checkpoint, wherever it is; `None` if it cannot be read.

    The index of a TensorFlow checkpoint has the checksum of each of its tensors, so the index is
    enough. Files of other formats are read whole, as they are when their weights are loaded.
    """
    found = hashlib.sha256()
    try:
        for file in _files_of_content(path):
            with file.open("rb") as opened:
                while some := opened.read(_BYTES_AT_ONCE):
                    found.update(some)
    except (ValueError, OSError):  # a run that is resumed does not need it
        return None
    return found.hexdigest()


def _files_of_content(path):
    if is_remote(path):
        return [as_path(f"{path}.index")]
    kind, file = finding.find(Path(path))
    if kind == "bundle":
        return [Path(f"{file}.index")]
    if file.name.endswith(".index.json"):  # of a model in several files
        return [file, *sorted(file.parent.glob("*.safetensors"))]
    return [file]


def _head_alone(model, source):
    """The variables of a head that is not pre-training's, under its own names, if it fits.

    That of another task, with more classes or fewer, is no mistake: fine-tuning may begin with one.
    """
    return {
        variable.path: source.unmatched[variable.path]
        for variable in model.weights
        if variable.path in source.unmatched
        and source.unmatched[variable.path].shape == tuple(variable.shape)
    }


def _step_with_moments(model, optimizer, source):
    """The number of updates that the source's moments have seen; they are all there."""
    if optimizer.slot_names == ("momentum",) and any(n.endswith("/adam_v") for n in source.slots):
        raise ValueError(
            "--init_moments needs the momentum of LARS for --optimizer_type=lars; got the moments "
            f"of LAMB or Adam in {source.path} ({source.format}), which do not convert: they "
            "average gradients without the weight decay. Leave --init_moments out, or train with "
            "--optimizer_type=lamb or adamw."
        )
    missing = [name for name in _slots(model, optimizer) if _official(name) not in source.slots]
    if missing or source.step is None:
        raise ValueError(
            "--init_moments needs a checkpoint with the optimizer's moments and step; "
            f"{source.path} ({source.format}) lacks {names.listed(missing) or 'the step'}. Leave "
            "--init_moments out."
        )
    return int(source.step.read())


def _official(name):
    """What `checkpoints` calls a slot: momentum is a first moment."""
    return re.sub("/momentum$", "/adam_m", name)


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


def _slots(model, optimizer):
    return {
        f"{variable.path}/{_SLOTS.get(name, name)}": slot
        for variable in model.trainable_variables
        for name, slot in optimizer.slots(variable).items()
    }


def _carried(number, fresh):
    said = f"weights: carried {number - len(fresh)} of {number}"
    return f"{said}; fresh: {', '.join(fresh)}" if fresh else said
