"""The state of a model and its optimizer as arrays under the official checkpoint names."""

from official_bert import checkpoints

_COUNTERS = ("iterations", "skipped_updates")


def gather(model, optimizer):
    """Weights by path, moments as `<path>/adam_m` and `<path>/adam_v`, and the counters."""
    tensors = {variable.path: variable.numpy() for variable in model.weights}
    for name, slot in _slots(model, optimizer).items():
        tensors[name] = slot.numpy()
    for counter in _COUNTERS:
        tensors[f"optimizer/{counter}"] = getattr(optimizer, counter).numpy()
    return tensors


def restore(model, optimizer, tensors):
    """Puts back what `gather` gave, all of it."""
    for variable in model.weights:
        variable.assign(tensors[variable.path])
    for name, slot in _slots(model, optimizer).items():
        slot.assign(tensors[name])
    for counter in _COUNTERS:
        getattr(optimizer, counter).assign(tensors[f"optimizer/{counter}"])


def carry_over(model, optimizer, tensors, carry_moments):
    """Puts the state of one stage into the model and optimizer of the next.

    Weights go by path. With `carry_moments` so do the moments of variables that train in both, and
    the count of updates, on which the bias correction depends; without, both start anew.

    Returns:
        A sentence that says what was carried.
    """
    fresh = [variable.path for variable in model.weights if variable.path not in tensors]
    for variable in model.weights:
        if variable.path in tensors:
            variable.assign(tensors[variable.path])
    optimizer.skipped_updates.assign(tensors["optimizer/skipped_updates"])
    said = _carried(model, fresh)
    slots = _slots(model, optimizer)
    if not carry_moments:
        return f"{said}; moments start at zero"
    optimizer.iterations.assign(tensors["optimizer/iterations"])
    known = [name for name in slots if name in tensors]
    for name in known:
        slots[name].assign(tensors[name])
    return f"{said}; moments: carried {len(known)} of {len(slots)}"


def load_weights(model, prefix):
    """Puts the weights of a checkpoint with official names into a model.

    Moments, rate and step are not taken over: that is what going on in a model directory does.

    Returns:
        A sentence that says what was carried over and what was not.

    Raises:
        ValueError: if the checkpoint is not readable, carries no weight of this model, or one of
            another shape.
    """
    tensors = checkpoints.read_tensors(prefix)
    fresh = [variable.path for variable in model.weights if variable.path not in tensors]
    if len(fresh) == len(model.weights):
        raise ValueError(
            f"{prefix} carries none of the model's variables; expected names like {fresh[0]}, "
            f"found names like {min(tensors)}."
        )
    for variable in model.weights:
        found = tensors.get(variable.path)
        if found is not None and found.shape != tuple(variable.shape):
            raise ValueError(
                f"{prefix} has {variable.path} of shape {found.shape}, but the model's is "
                f"{tuple(variable.shape)}; is it another bert_config.json's?"
            )
    for variable in model.weights:
        if variable.path in tensors:
            variable.assign(tensors[variable.path])
    return f"from {prefix}: {_carried(model, fresh)}"


def _slots(model, optimizer):
    return {
        f"{variable.path}/adam_{name}": slot
        for variable in model.trainable_variables
        for name, slot in optimizer.slots(variable).items()
    }


def _carried(model, fresh):
    said = f"weights: carried {len(model.weights) - len(fresh)} of {len(model.weights)}"
    return f"{said}; fresh: {', '.join(fresh)}" if fresh else said
