"""Kernels: fuse the operations of a step, and bound its memory.

A plain TensorFlow graph gets one fused kernel for each operation that is worth it; XLA and JAX
fuse by themselves; torch runs one operation after the other.
"""

import contextlib
import itertools
import math
from collections import namedtuple
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from keras import ops

from lamb_tf._replicas import BACKEND, are_distributed, first_replica, on
from lamb_tf._types import Slots, Tensor, Variables
from lamb_tf.compile_target import KNOWS_XLA, compiles_for_cpu, in_xla

if BACKEND == "tensorflow":
    import tensorflow as tf

    # Private, as there is no public way: without it XLA's kernels are slower, and no less right.
    try:
        from tensorflow.compiler.tf2xla.python.xla import optimization_barrier
    except ImportError:
        optimization_barrier = None
elif BACKEND == "torch":
    import torch
elif BACKEND == "jax":
    import jax


ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"  # TensorFlow makes a new resource each time
TINY = 1e-30  # an ε this small may be 0 where it is used: subnormal numbers are flushed


def in_compiled_graph() -> bool:
    """Whether what is being run will be fused by a compiler."""
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
        return (function if are_distributed(args) else kernel)(*args)

    return call


# Tensors without axes, under the names that TensorFlow's kernel for Adam has for them.
AdamScalars = namedtuple("AdamScalars", "beta1_power beta2_power lr beta1 beta2 epsilon")


class AdamDirection:
    """`moments` and `direction` of LAMB in one pass of all cores, by TensorFlow's kernel for Adam.

    With c = 1 − βᵗ, m̂ / (√v̂ + ε) = (√c₂ / c₁) m / (√v + √c₂ ε), so that u is what Adam's step of
    the rate −√c₂ / c₁ makes of λ x:

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
        """Whether there is such a kernel here, and it has all digits.

        It has m + (g − m)(1 − β), inexact for a small β, and divides by ε where v = 0. XLA cannot
        compile the resource, so graphs for XLA must be known.
        """
        return KNOWS_XLA and min(betas) >= 0.5 and epsilon > TINY

    def scalars(
        self,
        betas: Sequence[float],
        corrections: Sequence[Tensor],
        epsilon: float,
        finite: Tensor | None,
    ) -> AdamScalars:
        """What all tensors share, of (β₁, β₂), (c₁, c₂) and ε; `finite` as in `where_finite`."""
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


def subtract(x: Tensor, step_size: Tensor, u: Tensor) -> None:
    """x ← x − step_size u."""
    if BACKEND == "tensorflow" and x.dtype == u.dtype:
        tf.raw_ops.ResourceApplyGradientDescent(var=x.handle, alpha=step_size, delta=u)
    else:
        x.assign(ops.cast(ops.cast(x, u.dtype) - step_size * u, x.dtype))


def zeros_if_nonfinite(
    finite: Tensor | None, gradients: Sequence[Tensor], variables: Variables
) -> Sequence[Tensor]:
    """The gradients, or zeros where they are not finite: what the kernels above can be given.

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
    """√x, with a derivative of 0 at 0: that of √ is ∞ there, and times 0 not a number.

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


def groups(variables: Variables) -> list[range]:
    """Ranges of consecutive variables of together at most 24 MB, or of one that is larger.

    Their scalars are computed as vectors, which keeps the graph of a step small.
    """
    ranges, start, size = [], 0, 0
    for i, variable in enumerate(variables):
        bytes_of_u = 4 * math.prod(variable.shape)
        if i > start and size + bytes_of_u > 24e6:
            ranges.append(range(start, i))
            start, size = i, 0
        size += bytes_of_u
    return [*ranges, range(start, len(variables))]


def control_dependencies(tensors: Sequence[Tensor]) -> AbstractContextManager:
    """The context in which operations wait for `tensors`: bounds what is in memory at once."""
    return tf.control_dependencies(tensors) if BACKEND == "tensorflow" else contextlib.nullcontext()


def sums_of_squares(tensors: Sequence[Tensor], dtype: str) -> Tensor:
    """Σ x² of each tensor, as a vector of this type."""
    tensors = [ops.cast(x, dtype) for x in tensors]
    if BACKEND == "tensorflow" and not in_compiled_graph():
        # In one pass of each, on all cores.
        return 2.0 * tf.stack([tf.raw_ops.L2Loss(t=x) for x in tensors])
    return ops.stack([ops.sum(square) for square in _apart([ops.square(x) for x in tensors])])


def sums_of_squares_by_device(parts: Sequence[tuple], dtype: str) -> Tensor:
    """The same of gradients that are equal on all replicas, from `_replicas.by_device`."""
    squares = []
    for device, gradients, _ in parts:
        with on(device):
            squares.append(sums_of_squares([first_replica(g) for g in gradients], dtype))
    return ops.concatenate(squares) if squares else ops.zeros((0,), dtype)


def _apart(tensors):
    """Tensors that XLA, rewriting the graph for a CPU, does not merge with what uses them.

    There it would write out a square and add it up with scalars; so the sum becomes one fast pass.
    Any other device fuses the two best by itself. (One barrier for all: each takes TensorFlow some
    milliseconds to compile.)
    """
    barred = compiles_for_cpu() and optimization_barrier
    return optimization_barrier(*tensors) if barred else tensors


def unstack(vector: Tensor) -> Sequence[Tensor]:
    """The elements of a vector as scalars.

    XLA for a CPU would merge a slice at a fixed position into the kernel that uses it, and so
    compile each of them, though all tensors of a shape could share theirs. Of a gather the
    positions remain an argument, if they are more than one.
    """
    on_jax = BACKEND == "jax" and jax.default_backend() == "cpu"
    if not (on_jax or compiles_for_cpu()):
        return ops.unstack(vector)
    return [ops.take(vector, [i, 0])[0] for i in range(vector.shape[0])]
