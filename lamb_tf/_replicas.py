"""Differences between Keras' backends in a step: replicas, devices, layouts, state.

`_layerwise.py` states the order of a step once, in terms of the functions below. On TensorFlow they
use `tf.distribute` (a gradient has one value on each replica, and so has a variable); on JAX
state is threaded through `keras.StatelessScope`; on torch all is eager.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
from keras import ops

from lamb_tf._selection import path_of
from lamb_tf._types import Tensor, Variables

BACKEND = keras.backend.backend()

if BACKEND == "tensorflow":
    import tensorflow as tf
elif BACKEND == "torch":
    import torch
elif BACKEND == "jax":
    import jax

PRIVATE_HOOKS = {  # private parts of Keras that are used, and why
    "_record_training_state_sharding_spec": "on JAX, where older versions note what lies where",
    "_layout": "of a keras.Variable: how its slots are spread over devices follows from it",
    "_trainable_variables": "on JAX, those of a LossScaleOptimizer, which Keras 3.10 leaves out",
}

# Whether state passes through a step as an argument and a result: that of `optimizer.variables`.
THREADS_STATE = BACKEND == "jax"


def device_of(variable: keras.Variable) -> str | None:
    """The device of a variable; None where a strategy or the backend decides what lies where."""
    if BACKEND != "tensorflow" or tf.distribute.has_strategy():
        return None
    return native(variable).device


def on(device: str | None) -> AbstractContextManager:
    """The context in which variables are made, and operations run, on what `device_of` gave."""
    return contextlib.nullcontext() if device is None else tf.device(device)


def strategy_of(variables: Variables) -> AbstractContextManager:
    """The scope of the strategy under which the variables were made, where it has been left."""
    if BACKEND != "tensorflow" or tf.distribute.has_strategy() or not variables:
        return contextlib.nullcontext()
    strategy = getattr(native(variables[0]), "distribute_strategy", None)
    return strategy.scope() if strategy else contextlib.nullcontext()


def layout_of_slot(variable: keras.Variable, axis: str | None, is_restored: bool) -> Any:
    """The layout of a variable's slots: that of the variable, divided along one more axis.

    Replicas that hold the same weights need not hold the same moments: each may keep, and compute,
    a part of them (arXiv 2004.13336; the first stage of ZeRO, arXiv 1910.02054). XLA divides the
    computation as the state is divided; a norm is then the root of the sum over all parts.

    Args:
        variable: What is trained.
        axis: Name of an axis of the mesh, `shard_state` of an optimizer; None divides no further.
        is_restored: Whether the name comes from a saved config, which may be read where there is
            no such mesh: the slots then lie as their variable does.

    Returns:
        A `keras.distribution.TensorLayout`, or None without a distribution. No dimension is divided
        that is not a multiple of the devices along the axis.
    """
    layout = getattr(variable, "_layout", None)  # private: Keras has no public way to ask
    if axis is None:
        return layout
    problem = _problem_of_layout(layout, axis)
    if problem is None:
        return _divided(layout, variable.shape, axis)
    if not is_restored:
        raise ValueError(
            "`shard_state` must be an axis of the mesh of the distribution under which the "
            f"variables were made; got {axis!r}, but {problem} (variable "
            f"{path_of(variable)!r}). Pass `shard_state=None`; or, on the JAX backend, "
            "call `keras.distribution.set_distribution(keras.distribution.DataParallel())`, "
            "whose axis is 'batch', before the model is made."
        )
    return layout


def _problem_of_layout(layout, axis):
    if BACKEND != "jax":
        return f"the backend {BACKEND} cannot divide the state"
    if not isinstance(layout, keras.distribution.TensorLayout) or layout.device_mesh is None:
        return "there was no distribution"
    names = layout.device_mesh.axis_names
    return None if axis in names else f"the mesh has only {', '.join(map(repr, names))}"


def _divided(layout, shape, axis):
    mesh, axes = layout.device_mesh, list(layout.axes)
    devices = mesh.shape[mesh.axis_names.index(axis)]
    free = [i for i, size in enumerate(shape) if axes[i] is None and size % devices == 0]
    if axis in axes or not free:
        return layout
    axes[free[0]] = axis
    return keras.distribution.TensorLayout(axes, mesh)


def check_scope(variables: Variables) -> None:
    """Raises ValueError where a step would move a part of a variable, or one part for each replica.

    Where there are several replicas, a variable has to be made in the scope of the strategy in
    whose `run` the step is made.
    """
    if BACKEND != "tensorflow":
        return
    here = tf.distribute.get_strategy()
    for variable in variables:
        owner = getattr(native(variable), "distribute_strategy", None)  # None on a single device
        if max(s.num_replicas_in_sync for s in (owner or here, here)) == 1:
            continue
        if not here.extended.variable_created_in_scope(native(variable)):
            made = f"the scope of a {type(owner).__name__}" if owner else "no strategy's scope"
            raise ValueError(
                f"The variable {path_of(variable)!r} must be made in the "
                f"scope of the strategy in whose `run` `apply` is called; got one made in {made}, "
                f"and `apply` called in {'another' if tf.distribute.has_strategy() else 'none'}. "
                "Make model and optimizer in `strategy.scope()` and step in `strategy.run`."
            )


def by_device(pairs: Iterable[tuple[Tensor, keras.Variable]]) -> list[tuple]:
    """(device, gradients, variables) for each device on which any of the variables lies."""
    parts = {}
    for pair in pairs:
        parts.setdefault(device_of(pair[1]), []).append(pair)
    return [(device, *map(list, zip(*pairs))) for device, pairs in parts.items()]


def note_new_variables(model: keras.Model) -> None:
    """Tells `fit` of variables that were made after it began; newer versions of Keras see them."""
    if hasattr(model, "_record_training_state_sharding_spec"):
        model._record_training_state_sharding_spec()


def note_trainable(optimizer: keras.optimizers.Optimizer, variables: Variables) -> None:
    """The variables of an optimizer that wraps another, where Keras leaves them to that one."""
    if not optimizer._trainable_variables:
        # Not by assignment, which would count them among the optimizer's own state.
        vars(optimizer)["_trainable_variables"] = [*variables]


def num_replicas(variables: Variables) -> int:
    """Replicas of the strategy under which the variables were made, each with its own gradient.

    One on JAX and torch, where a step sees the gradient of all devices.
    """
    if BACKEND != "tensorflow":
        return 1
    with strategy_of(variables):
        return tf.distribute.get_strategy().num_replicas_in_sync


def merge_replicas(function: Callable, *args: Tensor) -> Tensor:
    """Calls `function(*args)` once for all replicas.

    What differs between replicas arrives as a distributed value.
    """
    if BACKEND != "tensorflow" or not tf.distribute.has_strategy():
        return function(*args)
    return tf.__internal__.distribute.interim.maybe_merge_call(
        lambda _, *merged: function(*merged), tf.distribute.get_strategy(), *args
    )


def sum_over_replicas(gradients: Sequence[Tensor], variables: Variables) -> Sequence[Tensor]:
    """The gradients summed over all replicas and workers. (JAX's are global already.)"""
    if BACKEND != "tensorflow" or tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return gradients
    if tf.distribute.in_cross_replica_context():
        pairs = [(g, native(v)) for g, v in zip(gradients, variables)]
        return tf.distribute.get_strategy().extended.batch_reduce_to("SUM", pairs)
    return tf.distribute.get_replica_context().all_reduce("SUM", gradients)


def widen(gradients: Sequence[Tensor], variables: Variables, dtype: str) -> list[Tensor]:
    """Gradients in the type of the arithmetic, sparse ones still sparse.

    A sum of many bfloat16 gradients, or of scaled float16 ones, would lose digits or overflow.
    """
    if BACKEND == "tensorflow":
        # `merge_replicas` would take one tensor object of all replicas for a value that they share.
        own = tf.identity if tf.distribute.get_strategy().num_replicas_in_sync > 1 else lambda g: g
        wide = []
        for gradient, variable in zip(gradients, variables):
            with on(device_of(variable)):
                wide.append(own(tf.cast(gradient, dtype)))
        return wide
    if BACKEND == "torch":
        return [
            cast(g if torch.is_tensor(g) else ops.convert_to_tensor(g), dtype) for g in gradients
        ]
    return [ops.cast(ops.convert_to_tensor(g, sparse=False), dtype) for g in gradients]


def densify(gradient: Tensor, variable: keras.Variable) -> Tensor:
    """The gradient of `variable` as a dense tensor on each replica (see `dense`)."""
    if BACKEND != "tensorflow" or not isinstance(first_replica(gradient), tf.IndexedSlices):
        return gradient
    if tf.distribute.in_cross_replica_context():
        extended = tf.distribute.get_strategy().extended
        return extended.call_for_each_replica(lambda g: dense(g, variable), args=(gradient,))
    return dense(gradient, variable)


def dense(gradient: Tensor, variable: keras.Variable) -> Tensor:
    """A gradient as a dense tensor; repeated indices of a sparse one are summed."""
    if BACKEND == "tensorflow" and isinstance(gradient, tf.IndexedSlices):
        rows = variable.shape[0]
        with on(device_of(variable)):
            return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)
    return gradient


def first_replica(value: Tensor) -> Tensor:
    """The value on this host's first replica, of something that is the same on all of them."""
    if BACKEND == "tensorflow" and isinstance(value, tf.distribute.DistributedValues):
        return tf.distribute.get_strategy().experimental_local_results(value)[0]
    return value


def update_on_replicas(function: Callable, variables: Variables, *args: Tensor) -> Tensor:
    """Calls `function(variables, *args)` on each replica, with that replica's share of each.

    Returns the tensor that it returns on the first replica.
    """
    if BACKEND != "tensorflow":
        return function(variables, *args)
    variables, *args = keras.tree.map_structure(native, [variables, *args])
    if tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context():
        extended = tf.distribute.get_strategy().extended

        def update(first, *args):
            return function(*keras.tree.map_structure(lambda v: _part_on(first.device, v), args))

        return extended.update(variables[0], update, args=[variables, *args], group=False)[0]
    return function(variables, *args)


def _part_on(device, value):
    """Of a variable that has a part on each replica, that on the device; of others, the value."""
    if not isinstance(value, tf.distribute.DistributedValues):
        return value
    parts = tf.distribute.get_strategy().experimental_local_results(value)
    return next((part for part in parts if part.device == device), value)


def are_distributed(values: object) -> bool:
    """Whether any of these, of TensorFlow, in nested structures, has a part on each replica."""
    if not tf.distribute.has_strategy():
        return False
    return any(isinstance(v, tf.distribute.DistributedValues) for v in keras.tree.flatten(values))


def read(variable: keras.Variable) -> Tensor:
    """The value of a variable as a tensor; on a replica, that replica's."""
    variable = native(variable)
    return tf.convert_to_tensor(variable) if BACKEND == "tensorflow" else variable


def add_locally(accumulator: keras.Variable, value: Tensor) -> Tensor:
    """Adds to the replica's own part of a variable; returns the sum."""
    if BACKEND == "tensorflow":
        native(accumulator).assign_add(value)
        return native(accumulator).read_value()  # `merge_replicas` needs its device
    accumulator.assign_add(value)
    return accumulator.value


def local_max(accumulator: keras.Variable, value: Tensor) -> Tensor:
    """Raises the replica's own part of a variable to the value, if that is larger; returns it."""
    if BACKEND == "tensorflow":
        accumulator = native(accumulator)
        accumulator.assign(tf.maximum(accumulator.read_value(), value))
        return accumulator.read_value()
    accumulator.assign(ops.maximum(accumulator, value))
    return accumulator.value


def in_own_row(value: Tensor) -> Tensor:
    """The value in the row of this replica, zeros in those of the others.

    The sum over replicas then has the values of all.
    """
    if BACKEND != "tensorflow" or tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return value[None]
    context = tf.distribute.get_replica_context()
    row = tf.reshape(context.replica_id_in_sync_group, (1, 1))
    return tf.scatter_nd(row, value[None], [context.num_replicas_in_sync, *value.shape])


def to_numpy(variable: keras.Variable) -> np.ndarray:
    """The value of a variable as a NumPy array."""
    if BACKEND == "tensorflow":
        return native(variable).numpy()
    return ops.convert_to_numpy(native(variable))


def _set_own_part_zero(variables):
    (variable,) = variables
    zeros = tf.zeros(variable.shape, variable.dtype)
    # By its handle: in a program for TPUs `assign` would reach for the parts of all replicas.
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=zeros)
    return zeros


def set_zero(variable: keras.Variable) -> None:
    """Sets a variable, or each replica's own part of it, to zero."""
    if BACKEND == "tensorflow":
        update_on_replicas(_set_own_part_zero, [variable])
    else:
        variable.assign(ops.zeros(variable.shape, variable.dtype))


def run_if(
    condition: Tensor, then: Callable[[], object], otherwise: Callable[[], object], state: Variables
) -> None:
    """Runs `then()` or `otherwise()`; both may assign to the variables in `state`."""
    if BACKEND == "tensorflow":
        tf.cond(condition, lambda: (then(), tf.no_op())[1], lambda: (otherwise(), tf.no_op())[1])
        return
    if BACKEND == "torch":
        then() if condition else otherwise()
        return

    def values_after(branch):
        with keras.StatelessScope(state_mapping=[(v, v.value) for v in state]) as scope:
            branch()
        return [scope.get_current_value(v) for v in state]

    # A branch that assigned to variables inside lax.cond would leak its tracers: it returns values.
    new_values = ops.cond(condition, lambda: values_after(then), lambda: values_after(otherwise))
    for variable, value in zip(state, new_values):
        variable.assign(value)


def is_eager() -> bool:
    """Whether execution is eager, so that Python can branch on the value of a tensor."""
    return BACKEND == "torch" or (BACKEND == "tensorflow" and tf.executing_eagerly())


def is_known(value: Tensor) -> bool:
    """Whether this is a number, or a tensor or variable whose value is not being traced."""
    if BACKEND == "jax":
        return not isinstance(native(value), jax.core.Tracer)
    return is_eager() or not ops.is_tensor(native(value))


def not_converted(function: Callable) -> Callable:
    """The function as it is where autograph converts its caller, which takes seconds of a trace."""
    if BACKEND != "tensorflow":
        return function
    return tf.autograph.experimental.do_not_convert(function)


def native(value: Tensor) -> Tensor:
    """The `tf.Variable` in a `keras.Variable`; anything else as it is."""
    return value.value if isinstance(value, (keras.Variable, Stack)) else value


def stack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one shape as one, whose first axis counts them."""
    return torch.stack([*tensors]) if BACKEND == "torch" else ops.stack(tensors)


def cast(value: Tensor, dtype: str) -> Tensor:
    """The tensor in this type; on torch without the checks of Keras, which take longer."""
    if BACKEND == "torch":
        dtype = getattr(torch, dtype)
        return value if value.dtype == dtype else value.to(dtype)
    return ops.cast(value, dtype)


class Stack:
    """Variables of one shape, on JAX or torch, as one; its first axis counts them.

    Args:
        variables: The variables.
        positions: On JAX the numbers of its rows, or of more, as `row_positions` has them.
    """

    def __init__(self, variables: Variables, positions: Sequence[Tensor]):
        self._variables = variables
        self._positions = positions[: len(variables)]
        self._values = [variable.value for variable in variables]
        self.shape = (len(variables), *variables[0].shape)

    @functools.cached_property
    def value(self) -> Tensor:
        """The values of the variables, copied, as they were at the beginning of a step."""
        return stack(self._values)

    def assign(self, value: Tensor) -> None:
        """Assigns to each variable its row."""
        self.value = value
        if BACKEND == "torch":
            torch._foreach_copy_(self._values, value.unbind())
            return
        for variable, row in zip(self._variables, self._positions, strict=True):
            variable.assign(jax.lax.dynamic_index_in_dim(value, row, keepdims=False))


def row_positions(count: int) -> list[Tensor]:
    """0, 1, … as numbers that XLA does not know beforehand, so that all rows share a kernel."""
    if BACKEND != "jax":
        return []
    unknown = jax.lax.optimization_barrier(jax.numpy.arange(count))
    return [ops.take(unknown, [i, 0])[0] for i in range(count)]


def no_autograd() -> AbstractContextManager:
    """The context in which torch records no graph."""
    return torch.no_grad() if BACKEND == "torch" else contextlib.nullcontext()
