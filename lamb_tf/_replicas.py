"""What differs between Keras' backends when an optimizer takes a step, and nothing else.

`_layerwise.py` states the order of a step once, in terms of the functions below. On TensorFlow they
speak to `tf.distribute` (a gradient has one value on each replica, and so has a variable); on JAX
state is threaded through `keras.StatelessScope`; on torch all is eager.
"""

import contextlib
import types

import keras
from keras import ops

BACKEND = keras.backend.backend()

if BACKEND == "tensorflow":
    import tensorflow as tf

    # Private, as there is no public way: without them XLA's kernels are slower, and no less right.
    try:
        from tensorflow.compiler.tf2xla.python.xla import optimization_barrier
        from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
    except ImportError:
        optimization_barrier = GraphOrParentsInXlaContext = None
elif BACKEND == "torch":
    import torch
elif BACKEND == "jax":
    import jax

# Whether state passes through a step as an argument and a result: that of `optimizer.variables`.
THREADS_STATE = BACKEND == "jax"


def device_of(variable):
    """The device of a variable; None where a strategy or the backend decides what lies where."""
    if BACKEND != "tensorflow" or tf.distribute.has_strategy():
        return None
    return native(variable).device


def on(device):
    """The context in which variables are made, and operations run, on what `device_of` gave."""
    return contextlib.nullcontext() if device is None else tf.device(device)


def strategy_of(variables):
    """The scope of the strategy under which the variables were made, where it has been left."""
    if BACKEND != "tensorflow" or tf.distribute.has_strategy() or not variables:
        return contextlib.nullcontext()
    strategy = getattr(native(variables[0]), "distribute_strategy", None)
    return strategy.scope() if strategy else contextlib.nullcontext()


def can_copy():
    """Whether a variable can be made now with the values of another."""
    return BACKEND != "tensorflow" or tf.executing_eagerly()


def by_device(gradients, variables):
    """(device, gradients, variables) for each device on which any of the variables lies."""
    parts = {}
    for gradient, variable in zip(gradients, variables):
        device = device_of(variable)
        _, its_gradients, its_variables = parts.setdefault(device, (device, [], []))
        its_gradients.append(gradient)
        its_variables.append(variable)
    return list(parts.values())


def merge_replicas(function, *args):
    """Calls `function(*args)` once for all replicas.

    What differs between replicas arrives as a distributed value.
    """
    if BACKEND == "tensorflow":
        strategy = tf.distribute.get_strategy()
        return tf.__internal__.distribute.interim.maybe_merge_call(
            lambda _, *merged: function(*merged), strategy, *args
        )
    return function(*args)


def sum_over_replicas(gradients, variables):
    """The gradients summed over all replicas and workers. (JAX's are global already.)"""
    if BACKEND != "tensorflow" or tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return gradients
    if tf.distribute.in_cross_replica_context():
        pairs = [(g, native(v)) for g, v in zip(gradients, variables)]
        return tf.distribute.get_strategy().extended.batch_reduce_to("SUM", pairs)
    return tf.distribute.get_replica_context().all_reduce("SUM", gradients)


def widen(gradients, variables, dtype):
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
    return [ops.cast(ops.convert_to_tensor(g, sparse=False), dtype) for g in gradients]


def densify(gradient, variable):
    """The gradient of `variable` as a dense tensor on each replica (see `dense`)."""
    if BACKEND != "tensorflow" or not isinstance(first_replica(gradient), tf.IndexedSlices):
        return gradient
    if tf.distribute.in_cross_replica_context():
        extended = tf.distribute.get_strategy().extended
        return extended.call_for_each_replica(lambda g: dense(g, variable), args=(gradient,))
    return dense(gradient, variable)


def dense(gradient, variable):
    """A gradient as a dense tensor; repeated indices of a sparse one are summed."""
    if BACKEND == "tensorflow" and isinstance(gradient, tf.IndexedSlices):
        rows = variable.shape[0]
        with on(device_of(variable)):
            return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)
    return gradient


def first_replica(value):
    """The value on this host's first replica, of something that is the same on all of them."""
    if BACKEND == "tensorflow" and isinstance(value, tf.distribute.DistributedValues):
        return tf.distribute.get_strategy().experimental_local_results(value)[0]
    return value


def update_on_replicas(function, variables, *args):
    """Calls `function(variables, *args)` on each replica, with that replica's share of each.

    Returns the tensor that it returns on the first replica.
    """
    if BACKEND != "tensorflow":
        return function(variables, *args)
    variables, *args = keras.tree.map_structure(native, [variables, *args])
    if tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context():
        extended = tf.distribute.get_strategy().extended
        return extended.update(
            variables[0], lambda _, *args: function(*args), args=[variables, *args], group=False
        )[0]
    return function(variables, *args)


def read(variable):
    """The value of a variable as a tensor; on a replica, that replica's."""
    variable = native(variable)
    return tf.convert_to_tensor(variable) if BACKEND == "tensorflow" else variable


def add_locally(accumulator, value):
    """Adds to the replica's own part of a variable; returns the sum."""
    if BACKEND == "tensorflow":
        native(accumulator).assign_add(value)
        return native(accumulator).read_value()  # `merge_replicas` needs its device
    accumulator.assign_add(value)
    return accumulator.value


def raise_locally(accumulator, value):
    """Raises the replica's own part of a variable to the value, if that is larger; returns it."""
    if BACKEND == "tensorflow":
        accumulator = native(accumulator)
        accumulator.assign(tf.maximum(accumulator.read_value(), value))
        return accumulator.read_value()
    accumulator.assign(ops.maximum(accumulator, value))
    return accumulator.value


def in_own_row(value):
    """The value in the row of this replica, zeros in those of the others.

    The sum over replicas then has the values of all.
    """
    if BACKEND != "tensorflow" or tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return value[None]
    context = tf.distribute.get_replica_context()
    row = tf.reshape(context.replica_id_in_sync_group, (1, 1))
    return tf.scatter_nd(row, value[None], [context.num_replicas_in_sync, *value.shape])


def to_numpy(variable):
    """The value of a variable as a NumPy array."""
    if BACKEND == "tensorflow":
        return native(variable).numpy()
    return ops.convert_to_numpy(native(variable))


def set_zero(variable):
    """Sets a variable, or each replica's own part of it, to zero."""
    if BACKEND == "tensorflow":
        for part in tf.distribute.get_strategy().experimental_local_results(native(variable)):
            part.assign(tf.zeros_like(part))
    else:
        variable.assign(ops.zeros(variable.shape, variable.dtype))


def run_if(condition, then, otherwise, state):
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


def is_eager():
    """Whether what is being run runs now, so that Python can branch on the value of a tensor."""
    return BACKEND == "torch" or (BACKEND == "tensorflow" and tf.executing_eagerly())


def is_known(tensor):
    """Whether the value of a tensor or variable can be read now: it is not being traced."""
    if BACKEND == "jax":
        return not isinstance(native(tensor), jax.core.Tracer)
    return is_eager()


def zero_unless(finite, gradients, variables):
    """The gradients, or zeros where they are not finite: what the kernels below can be given.

    XLA's kernels select by themselves. The gradients are passed on, not copied.
    """
    if BACKEND != "tensorflow" or finite is None or fuses():
        return gradients

    def zeros():
        zero = tf.cast(finite, gradients[0].dtype)  # a constant would be held in memory
        shapes = [tuple(variable.shape) for variable in variables]
        of_shape = {shape: tf.fill(shape, zero) for shape in set(shapes)}
        return [of_shape[shape] for shape in shapes]

    return tf.cond(finite, lambda: gradients, zeros)


def fuses():
    """Whether what is being run will be fused by a compiler."""
    return BACKEND == "jax" or (BACKEND == "tensorflow" and _in_xla())


def _in_xla():
    """Whether TensorFlow is tracing something that XLA will compile; False if it cannot be told."""
    if tf.executing_eagerly() or GraphOrParentsInXlaContext is None:
        return False
    return GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def not_converted(function):
    """The function as it is where autograph converts its caller, which takes seconds of a trace."""
    if BACKEND != "tensorflow":
        return function
    return tf.autograph.experimental.do_not_convert(function)


def native(value):
    """The `tf.Variable` in a `keras.Variable`; anything else as it is."""
    return value.value if isinstance(value, keras.Variable) else value


def compiled(function):
    """The function as one fused kernel per shape, where nothing else would fuse it."""
    if BACKEND != "tensorflow":
        return function
    kernel = tf.function(function, jit_compile=True, autograph=False)
    return lambda *args: kernel(*args)  # TensorFlow would save a tf.function with the optimizer


def subtract(x, step_size, u):
    """x ← x − step_size u."""
    if BACKEND == "tensorflow" and x.dtype == u.dtype:
        tf.raw_ops.ResourceApplyGradientDescent(var=x.handle, alpha=step_size, delta=u)
    else:
        x.assign(ops.cast(ops.cast(x, u.dtype) - step_size * u, x.dtype))


def bitcast(x, dtype):
    """The bits of x taken for numbers of another type of the same width."""
    if BACKEND == "tensorflow":
        return tf.bitcast(x, dtype)
    return x.view(getattr(torch, dtype) if BACKEND == "torch" else dtype)


def uniform(shape, seed):
    """Random float32 numbers in [0, 1), which two integers in a tensor determine."""
    if BACKEND == "tensorflow":
        return tf.random.stateless_uniform(shape, seed, alg="philox")
    if BACKEND == "torch":
        generator = torch.Generator(seed.device).manual_seed((int(seed[0]) << 24) + int(seed[1]))
        return torch.rand(tuple(shape), generator=generator, device=seed.device)
    key = jax.random.fold_in(jax.random.key(seed[0]), seed[1])
    return jax.random.uniform(key, shape, "float32")


def adam_scratch(variables, dtype):
    """For each variable one to form u in by `add_adam_step`, on its device.

    Variables of one shape share one. None where the backend has no such kernel. They belong to no
    checkpoint.
    """
    if BACKEND != "tensorflow":
        return None
    shared, of_variable = {}, []
    for variable in variables:
        key = tuple(variable.shape), device_of(variable)
        if key not in shared:
            with on(key[1]):
                shared[key] = tf.Variable(tf.zeros(key[0], dtype), trainable=False, name="scratch")
        of_variable.append(shared[key])
    return types.SimpleNamespace(of_variable=of_variable)


def adam_coefficients(beta_1, beta_2, step_size, epsilon, finite):
    """The scalars of `add_adam_step`, made once a step."""
    dtype = step_size.dtype
    beta_1, beta_2 = tf.constant(beta_1, dtype), tf.constant(beta_2, dtype)
    if finite is not None:
        beta_1, beta_2 = tf.where(finite, beta_1, 1.0), tf.where(finite, beta_2, 1.0)
    zero = tf.zeros((), dtype)  # for β's powers: the kernel's own bias correction loses digits
    return {
        "beta1_power": zero,
        "beta2_power": zero,
        "lr": -step_size,
        "beta1": beta_1,
        "beta2": beta_2,
        "epsilon": epsilon,
    }


def add_adam_step(scratch, start, m, v, g, coefficients):
    """start + step_size m / (√v + ε) with new m and v, in one pass that uses all cores."""
    scratch.assign(start)
    tf.raw_ops.ResourceApplyAdam(var=scratch.handle, m=m.handle, v=v.handle, grad=g, **coefficients)
    return read(scratch)


def after(tensors):
    """The context in which operations wait for `tensors`: bounds what is in memory at once."""
    return tf.control_dependencies(tensors) if BACKEND == "tensorflow" else contextlib.nullcontext()


def sums_of_squares(tensors, dtype):
    """Σ x² of each tensor, as a vector of this type."""
    tensors = [ops.cast(x, dtype) for x in tensors]
    if BACKEND == "tensorflow" and not fuses():
        # In one pass of each, on all cores.
        return 2.0 * tf.stack([tf.raw_ops.L2Loss(t=x) for x in tensors])
    return ops.stack([ops.sum(square) for square in _apart([ops.square(x) for x in tensors])])


def elements(vector):
    """The elements of a vector as scalars.

    XLA for a CPU would merge a slice at a fixed position into the kernel that uses it, and so
    compile each of them, though all tensors of a shape could share theirs. Of a gather the
    positions remain an argument, if they are more than one.
    """
    if not compiles_for_cpu():
        return ops.unstack(vector)
    return [tf.gather(vector, [i, 0])[0] for i in range(vector.shape[0])]


def _apart(tensors):
    """Tensors that XLA, rewriting the graph for a CPU, does not merge with what uses them.

    There it would write out a square and add it up with scalars; so the sum becomes one fast pass.
    Any other device fuses the two best by itself. (One barrier for all: each takes TensorFlow some
    milliseconds to compile.)
    """
    return optimization_barrier(*tensors) if compiles_for_cpu() else tensors


@contextlib.contextmanager
def compiling_for(device_type):
    """What is traced inside runs on devices of this type, which this machine need not have."""
    global _target
    before, _target = _target, device_type
    try:
        yield
    finally:
        _target = before


_target = None  # what `compiling_for` says; else the devices of this machine are meant


def target():
    """The type of device that is compiled for, where `compiling_for` names one; else None."""
    return _target


def compiles_for_cpu():
    """Whether TensorFlow is tracing something that XLA will compile for CPUs alone."""
    if BACKEND != "tensorflow" or not _in_xla():
        return False
    types = [_target] if _target else [d.device_type for d in tf.config.list_logical_devices()]
    return set(types) == {"CPU"}


def no_autograd():
    """The context in which torch records no graph."""
    return torch.no_grad() if BACKEND == "torch" else contextlib.nullcontext()
