"""Takes steps with an optimizer on whichever backend Keras runs: in a graph, jitted, or eagerly."""

import functools

import keras
import numpy as np

from lamb_tf import _replicas

BACKEND = keras.backend.backend()

SHAPES = {
    **{"embedding": (13, 7), "dense/kernel": (7, 5), "dense/bias": (5,), "scale": ()},
    "other/kernel": (7, 5),  # of one shape with another: nothing may take the one for the other
}


def weights_and_gradients(steps=20, seed=0, dtype="float32"):
    """Weights like those of a network, one without norm among them, and gradients of order 1."""
    rng = np.random.default_rng(seed)
    weights = [rng.normal(0, 0.1, shape).astype(dtype) for shape in SHAPES.values()]
    weights[2] *= 0
    gradients = [
        [rng.normal(0, 1, shape).astype(dtype) for shape in SHAPES.values()] for _ in range(steps)
    ]
    return weights, gradients


def make_variables(weights, dtype="float32", paths=SHAPES):
    """One variable an array."""
    variables = []
    for path, value in zip(paths, weights):
        *scopes, name = path.split("/")
        with keras.name_scope(scopes[0] if scopes else "model"):
            variables.append(keras.Variable(value, dtype=dtype, name=name))
    return variables


def train(optimizer, weights, gradients, dtype="float32"):
    """The weights after a step for each of `gradients`."""
    variables = make_variables(weights, dtype)
    take_steps(optimizer, variables, gradients)
    return values(variables)


def take_steps(optimizer, variables, gradients, xla=False):
    """Applies each of `gradients`, compiled as the backend compiles; on TensorFlow or by XLA."""
    optimizer.build(variables)
    step = _compiled(optimizer, xla)
    for grads in gradients:
        step([keras.ops.convert_to_tensor(g) for g in grads], variables)


def values(variables):
    """The variables as float64 NumPy arrays."""
    return [np.array(_replicas.to_numpy(v), np.float64) for v in variables]


@functools.lru_cache(maxsize=2)  # many tests take some steps, look, and take more
def _compiled(optimizer, xla):
    if BACKEND == "tensorflow":
        import tensorflow as tf

        given = []
        compiled = tf.function(
            lambda grads: optimizer.apply(grads, given), autograph=False, jit_compile=xla
        )

        def step(grads, variables):
            given[:] = variables
            compiled(grads)

        return step
    if BACKEND == "torch":
        return optimizer.apply

    import jax

    stateless = jax.jit(optimizer.stateless_apply)

    def step(grads, variables):
        state = [v.value for v in optimizer.variables]
        new_weights, new_state = stateless(state, grads, [v.value for v in variables])
        for variable, value in zip(variables + optimizer.variables, new_weights + new_state):
            variable.assign(value)

    return step


def assert_equal(ours, theirs):
    """Each array has all digits of the other."""
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def assert_close(ours, theirs, rtol, atol=0.0):
    """Each array is close to the other, element by element."""
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


def assert_follows(formula, trained, weights, gradients, *rate, rtol=1e-5, atol=1e-6, **arguments):
    """Each variable is where a formula of `reference` leads it, in float64."""
    expected = [
        formula(x, [grads[i] for grads in gradients], *rate, **arguments)
        for i, x in enumerate(weights)
    ]
    assert_close(trained, expected, rtol, atol)


def summary(optimizer):
    """{path of a variable: the words of its line in the summary that follow its shape}"""
    lines = []
    optimizer.summary(print_fn=lines.append)
    rows = [line.split() for line in lines[0].splitlines()[1:]]
    return {path: tuple(words) for path, _, *words in rows}


def train_on_from_a_file(model, path, *data, **options):
    """The model as loaded, after it and the one that was saved have made the same steps."""
    model.fit(*data, shuffle=False, verbose=0, **options)
    model.save(path / "model.keras")
    again = keras.models.load_model(path / "model.keras")
    assert type(again.optimizer) is type(model.optimizer)
    for each in (model, again):
        each.fit(*data, shuffle=False, verbose=0, **options)
    assert_equal(model.get_weights(), again.get_weights())
    return again


def apply(optimizer, variables, gradients):
    """One step, not compiled; None stands for no gradient."""
    tensors = [g if g is None else keras.ops.convert_to_tensor(g) for g in gradients]
    optimizer.apply(tensors, variables)
