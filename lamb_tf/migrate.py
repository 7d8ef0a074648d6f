"""Migrates weights and optimizer state of older LAMBs to a Keras 3 model with `lamb_tf.LAMB`.

    from_tf_keras   a file of `tfa.optimizers.LAMB`, tf-models' `LAMB` or `lamb_tf.legacy.LAMB`
    from_keras      a model trained with `keras.optimizers.Lamb`

Training then continues as it would have there, given the arguments that make `lamb_tf.LAMB`
compute the same: `docs/which_lamb.md` lists them, `docs/migration.md` has the steps.
"""

import collections
import dataclasses
import json
import os

import keras
import numpy as np

from lamb_tf._state import moments_of_keras_lamb
from lamb_tf.lamb import LAMB

_OF_KERAS_3 = (
    "For a model of Keras 3 pass its optimizer, or the one that keras.models.load_model restores "
    "from a .keras file, to lamb_tf.migrate.from_keras."
)


def from_tf_keras(
    path: str | os.PathLike,
    model: keras.Model,
    optimizer: LAMB,
    match: str | dict[str, str] = "name",
) -> dict[str, float]:
    """Reads weights, `m`, `v` and the step count of a tf_keras model into `model` and `optimizer`.

    Weights are paired by name: `dense/kernel:0` in the file with `dense/kernel` or
    `sequential/dense/kernel` in the model. If anything does not fit, nothing is written.

    Args:
        path: An `.h5` file of a whole model, the prefix of a checkpoint (of `tf.train.Checkpoint`
            or `save_weights`), or the directory of a SavedModel.
        model: The Keras 3 model, built.
        optimizer: The `lamb_tf.LAMB` that will train it.
        match: `"name"`; `"order"`, to pair the k-th trainable weight with the k-th weight that the
            old optimizer updated; or a dictionary `{path in the model: name in the file}`, with the
            rest paired by name.

    Returns:
        The old hyperparameters that the file holds as numbers, such as `{"learning_rate": 0.01,
        "beta_1": 0.9, …}`. They are not set in `optimizer`.

    Raises:
        TypeError: `optimizer` is another optimizer, or `match` has another type.
        ValueError: `match` is another word, or has a path that is not in the model; `optimizer` was
            built for other variables; a file that is damaged, of Keras 3, or without optimizer
            state with slots `m` and `v` (a `.keras` file of tf_keras never has it); a weight with
            no counterpart, or several; shapes that differ; a model that is not built.
        FileNotFoundError: there is no file at `path`.
    """
    optimizer = _lamb(optimizer)
    if not model.trainable_variables:
        raise ValueError(
            "`model` must be built; got one without weights. To build it, call it on a batch."
        )
    if str(path).endswith(".keras"):
        raise ValueError(
            "`path` must be an .h5 file, a checkpoint or a SavedModel, since tf_keras leaves the "
            f"state of LAMB out of .keras files; got {path}. {_OF_KERAS_3}"
        )
    _check_match(match, model)
    read = _read_h5 if str(path).endswith((".h5", ".hdf5")) else _read_checkpoint
    old = read(str(path))
    trained = [weight for weight in old.weights if weight.m is not None]
    if not trained:
        raise ValueError(
            f"{path} must hold a LAMB of tf_keras; got no slots `m` and `v`. {_OF_KERAS_3}"
        )

    if match == "order":
        if len(trained) != len(model.trainable_variables):
            raise ValueError(
                f"`model` must have as many trainable weights as the optimizer in {path} updated, "
                f"{len(trained)}; got {len(model.trainable_variables)}. Pair them by name."
            )
        pairs = list(zip(model.trainable_variables, trained, strict=True))
    else:
        pairs = [(v, _partner(v, trained, match)) for v in model.trainable_variables]
    others = [weight for weight in old.weights if weight.m is None]
    pairs += [(v, _partner(v, others, match)) for v in model.non_trainable_weights]
    _check(pairs, trained)

    _build(optimizer, model.trainable_variables)
    for variable, weight in pairs:
        variable.assign(weight.value)
        if weight.m is not None:
            _set_slots(optimizer, variable, weight.m, weight.v)
    optimizer.iterations.assign(old.iterations)
    return old.hyperparameters


def from_keras(old: "keras.optimizers.Lamb", optimizer: LAMB) -> None:
    """Copies m, v and the step count of `keras.optimizers.Lamb` into `lamb_tf.LAMB`.

    Keras' LAMB with `weight_decay=None` is `lamb_tf.LAMB(epsilon=1e-7)`. With a weight decay it has
    no counterpart: its decay is outside the trust ratio, so training continues differently.

    Args:
        old: The `keras.optimizers.Lamb` that trained the model, such as the `model.optimizer` of a
            model loaded from a `.keras` file.
        optimizer: The `lamb_tf.LAMB` that continues with the same variables; compile with it.

    Raises:
        TypeError: `old` or `optimizer` is another optimizer.
        ValueError: `old` has not made a step, or `optimizer` was built for other variables.
    """
    old, optimizer = getattr(old, "inner_optimizer", old), _lamb(optimizer)
    if not isinstance(old, keras.optimizers.Lamb):
        raise TypeError(f"`old` must be a keras.optimizers.Lamb; got {type(old).__name__}.")
    if not old.built:
        raise ValueError("`old` must have made a step; got an optimizer with no state.")
    moments = list(moments_of_keras_lamb(old))
    _build(optimizer, [variable for variable, _, _ in moments])
    for variable, m, v in moments:
        if m is not None:  # a scale of float8 has no moments
            _set_slots(optimizer, variable, m, v)
    optimizer.iterations.assign(old.iterations)


def _lamb(optimizer):
    """The `lamb_tf.LAMB`, also out of the LossScaleOptimizer around it."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not isinstance(inner, LAMB):
        raise TypeError(f"`optimizer` must be a lamb_tf.LAMB; got {type(inner).__name__}.")
    return inner


def _check_match(match, model):
    if not isinstance(match, dict):
        if match not in ("name", "order"):
            error = ValueError if isinstance(match, str) else TypeError
            raise error(f'`match` must be "name", "order" or a dictionary; got {match!r}.')
        return
    paths = {weight.path for weight in model.weights}
    if unknown := [path for path in match if path not in paths]:
        raise ValueError(
            f"`match` must have paths of the model's weights; got {', '.join(map(repr, unknown))}. "
            "Use these paths:\n  " + "\n  ".join(sorted(paths))
        )


def _build(optimizer, variables):
    """Builds the optimizer, or raises ValueError where it was built without one of these."""
    optimizer.build(variables)
    for variable in variables:
        try:
            optimizer.slots(variable)
        except ValueError:
            raise ValueError(
                "`optimizer` must be new or built for this model; got one that was built without "
                f"{variable.path}. Make a new one."
            ) from None


def _set_slots(optimizer, variable, m, v):
    slots = optimizer.slots(variable)
    slots["m"].assign(m)
    slots["v"].assign(v)


@dataclasses.dataclass
class _Weight:
    """A variable of the old model; `m` and `v` are None if the optimizer did not update it."""

    name: str
    value: np.ndarray
    m: np.ndarray | None = None
    v: np.ndarray | None = None


@dataclasses.dataclass
class _State:
    """The contents of an old model's file; trained weights are in the order of their slots."""

    weights: list
    iterations: int
    hyperparameters: dict


def _read_h5(path):
    import h5py

    if not os.path.exists(path):
        raise FileNotFoundError(f"`path` must be an existing file; got {path}. Check it.")
    try:
        with h5py.File(path) as file:
            return _read_model(file, path)
    except (OSError, KeyError, RuntimeError) as error:
        raise ValueError(
            f"{path} must be an HDF5 file of a whole tf_keras model; got one that cannot be read "
            f"({' '.join(str(error).split())}). If it is cut short, save or copy it again."
        ) from None


def _read_model(file, path):
    if str(file.attrs.get("keras_version", "")).startswith("3."):
        raise ValueError(f"{path} must be a file of tf_keras; got one of Keras 3. {_OF_KERAS_3}")
    if "optimizer_weights" not in file:
        raise ValueError(
            f"{path} must hold the optimizer's state; got none. Save the whole compiled model with "
            f"`model.save(…)`, not `save_weights`. {_OF_KERAS_3}"
        )
    weights = [
        _Weight(_bare(name), group[name][()])
        for group in (file["model_weights"][n] for n in _strings(file["model_weights"], "layer"))
        for name in _strings(group, "weight")
    ]
    group, iterations, trained = file["optimizer_weights"], 0, {}
    for name in _strings(group, "weight"):
        owner, _, slot = _bare(name).rpartition("/")
        if slot == "iter":
            iterations = int(group[name][()])
        elif slot in ("m", "v"):
            # The owner's name comes after the optimizer's: LAMB/dense/kernel/m.
            weight = max(
                (w for w in weights if _ends_with(owner, w.name)), key=lambda w: len(w.name)
            )
            setattr(weight, slot, group[name][()])
            trained[id(weight)] = weight
    config = json.loads(file.attrs["training_config"])["optimizer_config"]["config"]
    config = config.get("inner_optimizer", {}).get("config", config)  # under mixed precision
    rest = [weight for weight in weights if id(weight) not in trained]
    return _State([*trained.values(), *rest], iterations, _numbers(config))


def _strings(group, kind):
    """The attribute `layer_names` or `weight_names`, which HDF5 may split into numbered pieces."""
    name = f"{kind}_names"
    pieces = [key for key in group.attrs if key.startswith(name)]
    pieces.sort(key=lambda key: int(key[len(name) :] or 0))
    items = [item for piece in pieces for item in group.attrs[piece]]
    return [item.decode() if isinstance(item, bytes) else str(item) for item in items]


def _read_checkpoint(path):
    reader = _open_checkpoint(path)
    nodes = _nodes(reader, path)
    owners = [node for node in nodes if {s.slot_name for s in node.slot_variables} >= {"m", "v"}]
    if len(owners) > 1:
        raise ValueError(
            f"{path} must hold one optimizer with slots m and v; got {len(owners)}. Save each "
            "apart."
        )

    def value(index):
        return reader.get_tensor(_saved(nodes[index]).checkpoint_key)

    slots, others, hyperparameters = {}, set(), {}  # others: neither weights nor their slots
    for owner in owners:
        for slot in owner.slot_variables:
            of_weight = slots.setdefault(slot.original_variable_node_id, {})
            of_weight[slot.slot_name] = slot.slot_variable_node_id
            others.add(slot.slot_variable_node_id)
        for child in owner.children:
            if _saved(nodes[child.node_id]):
                others.add(child.node_id)
                found = value(child.node_id)
                hyperparameters[child.local_name] = found.item() if found.ndim == 0 else found

    def weight(index):
        mine = {name: value(i) for name, i in slots.get(index, {}).items() if name in ("m", "v")}
        return _Weight(_bare(_saved(nodes[index]).full_name), value(index), **mine)

    rest = [i for i, n in enumerate(nodes) if _saved(n) and i not in others and i not in slots]
    iterations = hyperparameters.pop("iter", 0)
    return _State([weight(i) for i in [*slots, *rest]], iterations, _numbers(hyperparameters))


def _open_checkpoint(path):
    import tensorflow as tf

    from lamb_tf import bundle_index

    if os.path.isdir(path):
        folder, inside = path, os.path.join(path, "variables", "variables")  # of a SavedModel
        path = inside if os.path.exists(f"{inside}.index") else tf.train.latest_checkpoint(path)
        if path is None:
            raise FileNotFoundError(
                f"`path` must hold a checkpoint; got the folder {folder} without one."
            )
    if not os.path.exists(f"{path}.index"):
        raise FileNotFoundError(
            f"`path` must be a checkpoint's prefix; got {path}, but there is no file {path}.index."
        )
    try:
        bundle_index.entries(path)  # a damaged index would abort TensorFlow's process
        return tf.train.load_checkpoint(path)
    except (tf.errors.OpError, OSError, ValueError) as error:
        raise ValueError(f"`path` must be a readable checkpoint; got {path}: {error}") from None


def _nodes(reader, path):
    """The graph of saved objects: only it has the slots' variables."""
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    if not reader.has_tensor("_CHECKPOINTABLE_OBJECT_GRAPH"):
        raise ValueError(
            f"{path} must be a checkpoint of TensorFlow 2; got a checkpoint of TensorFlow 1 "
            "(names only). Save it with tf.train.Checkpoint, save_weights or model.save."
        )
    return TrackableObjectGraph.FromString(reader.get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH")).nodes


def _saved(node):
    """The key and name under which a variable was saved; None for other objects."""
    return next((a for a in node.attributes if a.name == "VARIABLE_VALUE"), None)


def _numbers(config):
    return {name: value for name, value in config.items() if isinstance(value, float)}


def _bare(name):
    return name.split(":")[0]


def _ends_with(long, short):
    return long == short or long.endswith("/" + short)


def _partner(variable, weights, match):
    """The one weight of the file with the variable's name."""
    wanted = match.get(variable.path) if isinstance(match, dict) else None
    if wanted is not None:
        found = [weight for weight in weights if weight.name == _bare(wanted)]
    else:
        pairs = [(variable.path, weight.name, weight) for weight in weights]
        found = [w for path, name, w in pairs if _ends_with(path, name) or _ends_with(name, path)]
        longest = max((len(weight.name) for weight in found), default=0)
        found = [weight for weight in found if len(weight.name) == longest]
    if len(found) != 1:
        names = "\n  ".join(sorted(weight.name for weight in weights))
        given = f" (given: {wanted!r})" if wanted else ""
        raise ValueError(
            f"The file must have one weight for {variable.path!r}{given}; got {len(found)} of\n  "
            f'{names}\nPass match={{path in the model: name in the file}} or match="order".'
        )
    return found[0]


def _check(pairs, trained):
    """Raises ValueError unless shapes agree and each trained weight is used once."""
    wrong = [
        f"{v.path} {tuple(v.shape)}, in the file {weight.name} {weight.value.shape}"
        for v, weight in pairs
        if tuple(v.shape) != weight.value.shape
    ]
    if wrong:
        raise ValueError(
            "Each weight must have the shape that it has in the file; got\n  "
            + "\n  ".join(wrong)
            + "\nBuild the model with the sizes of the file."
        )
    users = collections.Counter(id(weight) for _, weight in pairs)
    for weight in trained:
        if users[id(weight)] != 1:
            raise ValueError(
                f"{weight.name} in the file must have one counterpart in the model; got "
                f"{users[id(weight)]}. Make the same layers trainable in both models."
            )
