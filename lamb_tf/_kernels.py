"""Kernels: fuse the operations of a step, and bound its memory.

A plain TensorFlow graph gets one fused kernel for each operation that is worth it; XLA and JAX
fuse by themselves; torch runs one operation after the other.
"""

import contextlib
import functools
import itertools
import math
from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from lamb_tf._replicas import (
    BACKEND,
    Stack,
    are_distributed,
    cast,
    first_replica,
    is_known,
    on,
    read,
    row_positions,
    stack,
)
from lamb_tf._types import Slots, Tensor, Variables
from lamb_tf.compile_target import KNOWS_XLA, compiles_for_cpu, in_xla, target

if BACKEND == "tensorflow":
    import tensorflow as tf

    # Private; no public name exists. Without it XLA's kernels are slower, and just as correct.
    try:
        from tensorflow.compiler.tf2xla.python.xla import optimization_barrier
    except ImportError:
        optimization_barrier = None
elif BACKEND == "torch":
    import torch
elif BACKEND == "jax":
    import jax


ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"  # TensorFlow makes a new resource each time
STACKED_ELEMENTS = 2**14  # larger tensors are not worth a copy
GATHERED_ELEMENTS = 2**12  # of a tensor whose norm is computed with others, on JAX
BLOCK_ELEMENTS = 2**17  # of float32; with intermediate results they fit in a core's cache
TINY = 1e-30  # an ε this small may be 0 where it is used: subnormal numbers are flushed


def in_compiled_graph() -> bool:
    """Whether a compiler will fuse this program."""
    return BACKEND == "jax" or in_xla()


def compiled(function: Callable) -> Callable:
    """The function as one fused kernel per shape, where nothing else would fuse it."""
    if BACKEND != "tensorflow":
        return function
    kernel = tf.function(function, jit_compile=True, autograph=False)

    # No tf.function itself, which TensorFlow would save with the optimizer.
    def call(*args):
        # A tf.function takes distributed variables of one shape for one variable. They are here
        # where a program has all replicas, as for TPUs; XLA compiles it, this function with it.
        # Eager steps would wait for the compiler of each shape.
        return (function if tf.executing_eagerly() or are_distributed(args) else kernel)(*args)

    return call


def traced_once(function: Callable, x: Tensor) -> Callable | None:
    """The function, traced once for all tensors of a shape; None where x is not being traced."""
    if BACKEND != "jax" or is_known(x):
        return None
    return jax.jit(function)


# Tensors without axes, under the names that TensorFlow's kernel for Adam has for them.
AdamScalars = namedtuple("AdamScalars", "beta1_power beta2_power lr beta1 beta2 epsilon")


class AdamDirection:
    """`moments` and `direction` of LAMB in one pass of all cores, by TensorFlow's kernel for Adam.

    With c = 1 − βᵗ, m̂ / (√v̂ + ε) = (√c₂ / c₁) m / (√v + √c₂ ε), so that Adam's step with
    the rate −√c₂ / c₁ turns λ x into u:

        m ← β₁ m + (1 − β₁) g
        v ← β₂ v + (1 − β₂) g²
        u = λ x + (√c₂ / c₁) m / (√v + √c₂ ε)

    u is formed in a resource that lives as long as the call, so that a SavedModel of a step holds
    all that the step needs. In a graph its name is unique in the process: `tf.saved_model.load`
    would give all anonymous resources one name. Eagerly it is anonymous: TensorFlow keeps a kernel
    for each name. `tests/lamb_tf/test_kernels.py` shows that this is `LAMB.direction`.
    """

    _names = itertools.count()

    @staticmethod
    def computes(betas: Sequence[float], epsilon: float) -> bool:
        """Whether this kernel exists here and is exact.

        It computes m + (g − m)(1 − β), inexact for a small β, and divides by ε where v = 0. XLA
        cannot compile the resource, so graphs for XLA must be known.
        """
        return KNOWS_XLA and min(betas) >= 0.5 and epsilon > TINY

    def scalars(
        self,
        betas: Sequence[float],
        corrections: Sequence[Tensor],
        epsilon: float,
        finite: Tensor | None,
    ) -> AdamScalars:
        """Scalars shared by all tensors; `corrections`: (c₁, c₂); `finite`: see `where_finite`."""
        root = ops.sqrt(corrections[1])
        beta_1, beta_2 = (tf.constant(beta, root.dtype) for beta in betas)
        if finite is not None:
            beta_1, beta_2 = tf.where(finite, beta_1, 1.0), tf.where(finite, beta_2, 1.0)
        zero = tf.zeros((), root.dtype)  # for β's powers: its own bias correction loses digits
        return AdamScalars(zero, zero, -(root / corrections[0]), beta_1, beta_2, root * epsilon)

    def __call__(
        self, x: Tensor, g: Tensor, slots: Slots, decay: Tensor, scalars: AdamScalars
    ) -> Tensor:
        """u, with new m and v in `slots`."""
        m, v = slots["m"], slots["v"]
        decayed = decay * ops.cast(x, m.dtype)
        eager = tf.executing_eagerly()
        name = ANONYMOUS if eager else f"lamb_tf_direction_{next(self._names)}"
        u = tf.raw_ops.VarHandleOp(dtype=m.dtype, shape=m.shape, shared_name=name)
        tf.raw_ops.AssignVariableOp(resource=u, value=decayed)
        tf.raw_ops.ResourceApplyAdam(var=u, m=m.handle, v=v.handle, grad=g, **scalars._asdict())
        value = tf.raw_ops.ReadVariableOp(resource=u, dtype=m.dtype)
        with control_dependencies([value]):
            tf.raw_ops.DestroyResourceOp(resource=u)
        return value

    def of_all(
        self, xs: Sequence, gs: Iterable, states: Sequence, decays: Sequence, scalars: Any
    ) -> list:
        """u of each tensor; `scalars` are `coefficients` of LAMB."""
        return [self(*tensors, scalars.kernel) for tensors in zip(xs, gs, states, decays)]


class AdamDirectionOnTorch:
    """The same by torch's fused kernel for Adam, which takes many tensors of a CPU in one call."""

    @staticmethod
    def computes(epsilon: float, variables: Variables, use_ema: bool) -> bool:
        """Whether this kernel exists here; it divides by ε where v = 0.

        Not with averages: they take one operation after another, so stacked variables are faster.
        """
        exact = epsilon > TINY and not use_ema
        return exact and _are_on_cpu(variables) and hasattr(torch, "_fused_adam_")

    def scalars(
        self, betas: Sequence[float], corrections: Sequence[Tensor], epsilon: float, _: None
    ) -> dict[str, Any]:
        """Scalars shared by all tensors: the arguments of the kernel."""
        root = math.sqrt(corrections[1])
        rate, beta_1, beta_2 = -root / float(corrections[0]), *betas
        options = {"weight_decay": 0.0, "amsgrad": False, "maximize": False}
        return {"lr": rate, "beta1": beta_1, "beta2": beta_2, "eps": root * epsilon, **options}

    def of_all(
        self,
        xs: Sequence[Tensor],
        gs: Iterable[Tensor],
        states: Sequence[Slots],
        decays: Sequence[Tensor],
        scalars: Any,
    ) -> list[Tensor]:
        """u of each tensor, with new m and v in `states`; `scalars` are `coefficients` of LAMB."""
        m, v = ([read(state[name]) for state in states] for name in ("m", "v"))
        wide = [x.to(slot.dtype) for x, slot in zip(xs, m)]
        # The kernel takes the elements in memory order, and weights may be stored by columns.
        us = [u.contiguous() for u in torch._foreach_mul(wide, decays)]
        gs = [g.contiguous() for g in gs]
        steps = [torch.tensor(math.inf)] * len(us)  # 1 − βᵗ = 1: the rate has the corrections
        torch._fused_adam_(us, gs, m, v, [], steps, **scalars.kernel)
        return us


class MomentumOnTorch:
    """LARS with the ratio before the momentum, on a CPU: four torch operations per tensor.

    They write into the slot and the variable, so that small tensors need not be stacked.
    """

    @staticmethod
    def computes(variables: Variables, use_ema: bool) -> bool:
        """Whether this kernel exists here."""
        return BACKEND == "torch" and _are_on_cpu(variables) and not use_ema

    def of_all(self, xs: Sequence, gs: Iterable, *_: object) -> list:
        """u of each tensor: its gradient; a copy if that is itself a variable of this step."""
        moving = {x.data_ptr() for x in xs}
        return [g.clone() if g.data_ptr() in moving else g for g in gs]

    def move(
        self,
        x: Tensor,
        g: Tensor,
        slots: Slots,
        step_size: Tensor,
        decay: Tensor,
        momentum: float,
    ) -> None:
        """v ← μ v + γ ratio (g + λ x); x ← x − v."""
        x, v = read(x), read(slots["momentum"])
        v.mul_(momentum).add_(torch.add(g, x, alpha=float(decay)), alpha=float(step_size))
        x.sub_(v)


def _are_on_cpu(variables):
    return all(read(variable).device.type == "cpu" for variable in variables)


def adam_direction(
    betas: Sequence[float], epsilon: float, variables: Variables, use_ema: bool
) -> Any:
    """The kernel that computes `moments` and `direction` of LAMB; None if none exists here."""
    if BACKEND == "torch":
        computes = AdamDirectionOnTorch.computes(epsilon, variables, use_ema)
        return AdamDirectionOnTorch() if computes else None
    return AdamDirection() if AdamDirection.computes(betas, epsilon) else None


def subtract(x: Tensor, step_size: Tensor, u: Tensor, axes: Sequence[int] = ()) -> None:
    """x ← x − step_size u; with axes that number rows, a step size for each row."""
    step_size = per_row(step_size, u, axes)
    if BACKEND == "tensorflow" and x.dtype == u.dtype:
        if axes:  # the kernel takes only a scalar
            step_size, u = tf.ones((), u.dtype), step_size * u
        tf.raw_ops.ResourceApplyGradientDescent(var=x.handle, alpha=step_size, delta=u)
        return
    value = read(x)
    if BACKEND == "torch" and isinstance(x, keras.Variable) and value.dtype == u.dtype:
        value.addcmul_(u, step_size, value=-1)
    else:
        x.assign(ops.cast(ops.cast(value, u.dtype) - step_size * u, value.dtype))


def zeros_if_nonfinite(
    finite: Tensor | None, gradients: Sequence[Tensor], variables: Variables
) -> Sequence[Tensor]:
    """The gradients, or zeros where they are not finite, as input for the kernels above.

    XLA's kernels select by themselves. The gradients are passed on, not copied.
    """
    if BACKEND != "tensorflow" or finite is None or in_compiled_graph():
        return gradients

    def zeros():
        zero = tf.cast(finite, gradients[0].dtype)  # a constant would be held in memory
        shapes = [tuple(variable.shape) for variable in variables]
        of_shape = {shape: tf.fill(shape, zero) for shape in set(shapes)}
        return [of_shape[shape] for shape in shapes]

    return tf.cond(finite, lambda: gradients, zeros)


def where_finite(finite: Tensor | None, new: Tensor, old: Tensor) -> Tensor:
    """The new value, or the old one where the gradients were not finite (None: they are)."""
    return new if finite is None else ops.where(finite, new, old)


def square_root(x: Tensor) -> Tensor:
    """√x, with a derivative of 0 at 0; the derivative of √ is ∞ there, and ∞ · 0 is NaN.

    For XLA the value is a plain √. A selection after it costs nothing, so XLA would compute all
    norms again in the kernel of each tensor, and compile three times as long.
    """
    if BACKEND == "jax":
        return _square_root_of_jax(x)
    if in_xla() or (BACKEND == "torch" and not torch.is_grad_enabled()):
        return ops.sqrt(x)
    is_0 = ops.equal(x, 0)
    return ops.where(is_0, 0.0, ops.sqrt(ops.where(is_0, 1.0, x)))


if BACKEND == "jax":

    @jax.custom_jvp
    def _square_root_of_jax(x):
        return jax.numpy.sqrt(x)

    @_square_root_of_jax.defjvp
    def _derivative_of_square_root(primals, tangents):
        (x,), (change,) = primals, tangents
        root, is_0 = _square_root_of_jax(x), x == 0
        return root, jax.numpy.where(is_0, 0.0, change / (2 * jax.numpy.where(is_0, 1.0, root)))


def quotient(numerator: Tensor, denominator: Tensor, known: Tensor, otherwise: float) -> Tensor:
    """The quotient where it is known; elsewhere another value, with a derivative of 0."""
    return ops.where(known, numerator / ops.where(known, denominator, 1.0), otherwise)


def repeat(function: Callable, x: Tensor, arguments: Sequence[Sequence[float]]) -> Tensor:
    """`function(x, arguments[0])`, and so on; on JAX a loop, which is compiled once."""
    if BACKEND == "jax" and arguments:
        rows = jax.numpy.asarray(arguments, x.dtype)
        return jax.lax.scan(lambda x, row: (function(x, row), None), x, rows)[0]
    return functools.reduce(function, arguments, x)


def bitcast(x: Tensor, dtype: str) -> Tensor:
    """The bits of x taken for numbers of another type of the same width."""
    if BACKEND == "tensorflow":
        return tf.bitcast(x, dtype)
    return x.view(getattr(torch, dtype) if BACKEND == "torch" else dtype)


def uniform(shape: Sequence[int], seed: Tensor) -> Tensor:
    """Random float32 numbers in [0, 1), which two integers in a tensor determine."""
    if BACKEND == "tensorflow":
        return tf.random.stateless_uniform(shape, seed, alg="philox")
    if BACKEND == "torch":
        generator = torch.Generator(seed.device).manual_seed((int(seed[0]) << 24) + int(seed[1]))
        return torch.rand(tuple(shape), generator=generator, device=seed.device)
    key = jax.random.fold_in(jax.random.key(seed[0]), seed[1])
    return jax.random.uniform(key, shape, "float32")


class Part(NamedTuple):
    """A variable, or several as a `Stack`, with all inputs of its step."""

    positions: list[int]  # of the variables, among those of the step
    variable: Any
    state: Slots
    gradient: Tensor
    scale: Tensor | None
    axes: tuple[int, ...] = ()  # that number the rows: (0,) of a stack, those of slices

    @property
    def num_rows(self) -> int:
        """The number of rows, which have a trust ratio each; 0 of a plain variable."""
        return math.prod(self.variable.shape[axis] for axis in self.axes) if self.axes else 0

    @property
    def num_stacked(self) -> int:
        """The number of variables in a stack; 0 of a variable by itself, with slices or without."""
        return len(self.positions) if isinstance(self.variable, Stack) else 0


def parts(
    variables: Variables,
    states: Sequence[Slots],
    gradients: Sequence[Tensor],
    scales: Sequence[Tensor | None],
    slice_axes: Sequence[tuple[int, ...]],
    may_stack: bool,
    is_elementwise: bool,
) -> list[Part]:
    """The variables; small ones of a shape are stacked where each operation has a fixed cost.

    On torch the cost is the call, unless a kernel takes many tensors in one call; on JAX for a CPU
    it is compilation. There elementwise kernels of a shape are compiled once, and XLA joins and
    cuts tensors slowly, so those are not stacked. Neither are variables that are divided over
    devices, in slices or of 16 bits.
    """
    kinds: dict[object, list[int]] = {}
    may_stack &= BACKEND == "torch" or (_jax_gathers() and not is_elementwise)
    for i, (variable, state) in enumerate(zip(variables, states)):
        alike = (
            may_stack
            and not slice_axes[i]
            and math.prod(variable.shape) <= STACKED_ELEMENTS
            and getattr(variable, "_layout", None) is None
            and not {"master", "seed"} & state.keys()
        )
        kind = (tuple(variable.shape), variable.dtype, *state) if alike else i
        kinds.setdefault(kind, []).append(i)

    largest = max(map(len, kinds.values()), default=0)
    rows = row_positions(largest) if largest > 1 else []

    def part(positions):
        first = positions[0]
        if len(positions) == 1:
            row = variables[first], states[first], gradients[first], scales[first]
            return Part(positions, *row, slice_axes[first])
        state = {n: Stack([states[i][n] for i in positions], rows) for n in states[first]}
        scale = None if scales[first] is None else stack([scales[i] for i in positions])
        variable = Stack([variables[i] for i in positions], rows)
        gradient = stack([gradients[i] for i in positions])
        return Part(positions, variable, state, gradient, scale, axes=(0,))

    found = []
    for positions in kinds.values():
        count = len(positions)
        if BACKEND == "torch":
            size = math.prod(variables[positions[0]].shape)
            count = max(1, BLOCK_ELEMENTS // max(1, size))
        found += [part(positions[i : i + count]) for i in range(0, len(positions), count)]
    return found


def _jax_for_cpu():
    """Whether JAX traces for a CPU."""
    return BACKEND == "jax" and (target() or jax.default_backend()).lower() == "cpu"


def _jax_gathers():
    """Whether small tensors are gathered on JAX: only on a single device, a CPU."""
    return _jax_for_cpu() and jax.device_count() == 1


def over_rows(
    function: Callable, tensors: dict, scalars: dict, is_elementwise: bool, axes: Sequence[int]
) -> Any:
    """`function(**tensors, **scalars)`, or that of each row; a scalar of each row is a vector."""
    if not axes:
        return function(**tensors, **scalars)
    x = tensors["x"]
    if is_elementwise:
        return function(**tensors, **{n: per_row(s, x, axes) for n, s in scalars.items()})
    vectors = {name: scalar for name, scalar in scalars.items() if len(scalar.shape)}
    shared = {name: scalar for name, scalar in scalars.items() if name not in vectors}
    rows = keras.tree.map_structure(lambda tensor: _to_rows(tensor, axes), tensors)
    result = _for_each(lambda row: function(**row, **shared), rows | vectors)
    return keras.tree.map_structure(lambda tensor: _from_rows(tensor, x.shape, axes), result)


def _for_each(function, rows):
    """`function` of each row of nested tensors; the results stacked."""
    if BACKEND != "tensorflow" or not tf.executing_eagerly():
        return ops.vectorized_map(function, rows)
    # There it would be traced in each step.
    count = len(keras.tree.flatten(rows)[0])
    results = [function(keras.tree.map_structure(lambda t, i=i: t[i], rows)) for i in range(count)]
    return keras.tree.map_structure(lambda *each: tf.stack(each), *results)


def _to_rows(x, axes):
    """x with its rows along the first axis; numbers of the rows, a vector, as they are."""
    if len(x.shape) == 1 or tuple(axes) == (0,):
        return x
    rest = [n for axis, n in enumerate(x.shape) if axis not in axes]
    return ops.reshape(ops.moveaxis(x, axes, [*range(len(axes))]), (-1, *rest))


def _from_rows(rows, shape, axes):
    """The inverse of `_to_rows`, of a tensor of this shape."""
    if len(rows.shape) == 1 or tuple(axes) == (0,):
        return rows
    first = ops.reshape(rows, (*(shape[axis] for axis in axes), *rows.shape[1:]))
    return ops.moveaxis(first, [*range(len(axes))], axes)


def per_row(scalar: Tensor, x: Tensor, axes: Sequence[int]) -> Tensor:
    """A scalar; or a vector such that each row of x is multiplied with an element of it."""
    if not len(scalar.shape):
        return scalar
    return ops.reshape(scalar, [n if axis in axes else 1 for axis, n in enumerate(x.shape)])


def is_worth_blocks(x: Tensor) -> bool:
    """Whether `in_blocks` is faster: on torch, where each operation would pass over all memory."""
    return BACKEND == "torch" and x.device.type == "cpu" and x.numel() > 2 * BLOCK_ELEMENTS


def in_blocks(function: Callable, tensors: dict, scalars: dict) -> Tensor:
    """u of `function(**tensors, **scalars)`, which returns u and new slots, block by block.

    A block and its results stay in a core's cache. New slots overwrite the old ones.
    """
    # Weights may be stored by columns. Slots, which are written to, must not be copied: view.
    u = torch.empty_like(tensors["x"], memory_format=torch.contiguous_format)
    rows = {n: x.reshape(-1) if n in ("x", "g") else x.view(-1) for n, x in tensors.items()}
    blocks = {name: row.split(BLOCK_ELEMENTS) for name, row in rows.items()}
    for i, block_of_u in enumerate(u.view(-1).split(BLOCK_ELEMENTS)):
        own = {name: parts[i] for name, parts in blocks.items()}
        result, slots = function(**own, **scalars)
        block_of_u.copy_(result)
        for name, slot in slots.items():
            own[name].copy_(slot)
    return u


def groups(shapes: Sequence[Sequence[int]]) -> list[range]:
    """Ranges of consecutive tensors of together at most 24 MB, or of one that is larger.

    Their scalars are computed as vectors, which keeps the graph of a step small.
    """
    if BACKEND == "jax":  # where XLA orders all operations by itself
        return [range(len(shapes))]
    ranges, start, size = [], 0, 0
    for i, shape in enumerate(shapes):
        bytes_of_u = 4 * math.prod(shape)
        if i > start and size + bytes_of_u > 24e6:
            ranges.append(range(start, i))
            start, size = i, 0
        size += bytes_of_u
    return [*ranges, range(start, len(shapes))]


def control_dependencies(tensors: Sequence[Tensor]) -> AbstractContextManager:
    """The context in which operations wait for `tensors`: bounds the memory in use."""
    return tf.control_dependencies(tensors) if BACKEND == "tensorflow" else contextlib.nullcontext()


def sums_of_squares(
    tensors: Sequence[Tensor], dtype: str, axes: Sequence[tuple[int, ...]]
) -> Tensor:
    """Σ x² of each tensor, as a vector of this type; of each row where axes number rows."""
    tensors = [cast(x, dtype) for x in tensors]
    if BACKEND == "torch" and all(own in ((), (0,)) for own in axes):
        # In one call for all: a row of a stack is a tensor, too.
        rows = [x.unbind() if own else (x,) for x, own in zip(tensors, axes)]
        return torch.square(torch.stack(torch._foreach_norm([*itertools.chain(*rows)])))
    if BACKEND == "torch":
        norms = [torch.linalg.vector_norm(x, dim=_rest(x, own)) for x, own in zip(tensors, axes)]
        return torch.square(torch.cat([norm.reshape(-1) for norm in norms]))
    if BACKEND == "tensorflow" and not in_compiled_graph():
        # One pass per tensor, on all cores; no such kernel for rows.
        if not any(axes):
            return 2.0 * tf.stack([tf.raw_ops.L2Loss(t=x) for x in tensors])
        sums = [
            tf.reduce_sum(tf.square(x), _rest(x, own)) if own else 2.0 * tf.raw_ops.L2Loss(t=x)
            for x, own in zip(tensors, axes)
        ]
        return tf.concat([tf.reshape(each, (-1,)) for each in sums], axis=0)
    if not any(axes) and _jax_gathers():
        return _sums_of_squares_gathered(tensors)
    squares = _apart([ops.square(x) for x in tensors])
    if not any(axes):
        return ops.stack([ops.sum(square) for square in squares])
    sums = [ops.sum(square, axis=_rest(square, own)) for square, own in zip(squares, axes)]
    return ops.concatenate([ops.reshape(each, (-1,)) for each in sums])


def _sums_of_squares_gathered(tensors):
    """Σ x² of each tensor, small ones of a shape in one kernel.

    XLA for a CPU splits a sum into three kernels; for large tensors that is cheaper than copying.
    """
    kinds: dict[object, list[int]] = {}
    for i, x in enumerate(tensors):
        alike = math.prod(x.shape) <= GATHERED_ELEMENTS
        kinds.setdefault(tuple(x.shape) if alike else i, []).append(i)
    sums = []
    for positions in kinds.values():
        rows = ops.square(stack([tensors[i] for i in positions]))
        sums.append(ops.sum(rows, axis=range(1, len(rows.shape))))
    order = np.concatenate([*kinds.values()])
    return ops.take(ops.concatenate(sums), np.argsort(order))


def _rest(x, axes):
    """The axes of x that do not number rows."""
    return tuple(axis for axis in range(len(x.shape)) if axis not in axes)


def sums_of_squares_by_device(parts: Sequence[tuple], dtype: str) -> Tensor:
    """The same of gradients that are equal on all replicas, from `_replicas.by_device`."""
    squares = []
    for device, gradients, _ in parts:
        with on(device):
            own = [first_replica(g) for g in gradients]
            squares.append(sums_of_squares(own, dtype, [()] * len(own)))
    return ops.concatenate(squares) if squares else ops.zeros((0,), dtype)


def _apart(tensors):
    """Barrier: keeps XLA for CPUs from fusing the tensors into their users.

    Otherwise it would write out a square and add it up with scalar instructions; with the barrier,
    the sum is one fast pass. On other devices the two are best fused. (One barrier for all: each
    takes TensorFlow some milliseconds to compile.)
    """
    barred = compiles_for_cpu() and optimization_barrier
    return optimization_barrier(*tensors) if barred else tensors


def apart(x: Any) -> Any:
    """Barrier: keeps XLA from fusing x into its users; on JAX for GPUs and TPUs.

    XLA for GPUs would merge kernels of several tensors that read elements of one vector. That takes
    twice as long to compile, and moments are then copied that separate kernels overwrite in place.
    """
    return jax.lax.optimization_barrier(x) if BACKEND == "jax" and not _jax_for_cpu() else x


def unstack(vector: Tensor, counts: Sequence[int] | None = None) -> Sequence[Tensor]:
    """The elements of a vector as scalars; where a count is given, this many of them as a vector.

    XLA for a CPU would merge a slice at a fixed position into the kernel that uses it, and so
    compile each of them, though all tensors of a shape could share one. The positions of a gather
    remain an argument if there are several. For other devices see `apart`.
    """
    gathers = compiles_for_cpu() or _jax_for_cpu()
    if not gathers and not any(counts or ()):
        return apart(ops.unstack(vector))
    elements, start = [], 0
    for count in counts or [0] * vector.shape[0]:
        if count:
            elements.append(vector[start : start + count])
        else:
            elements.append(_gathered(vector, start) if gathers else vector[start])
        start += count or 1
    return elements


def _gathered(vector, position):
    """An element of a vector, by a gather of two."""
    if BACKEND == "tensorflow":
        return tf.gather(vector, [position, 0])[0]
    # Without the selection that `jax.numpy` makes where a position may be out of bounds.
    positions, numbers = np.array([[position], [0]]), jax.lax.GatherDimensionNumbers((), (0,), (0,))
    found = jax.lax.gather(vector, positions, numbers, (1,), mode="promise_in_bounds")
    return jax.lax.squeeze(jax.lax.slice(found, [0], [1]), [0])
