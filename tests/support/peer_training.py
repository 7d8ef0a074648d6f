"""Training six tensors with an optimizer of any library, to compare what they give.

`docs/which_lamb.md` and `docs/which_lars.md` are tested with it.
"""

import keras
import numpy as np
import tensorflow as tf

STEPS = 100


def start():
    """Weights by name: ordinary ones, zeros, and large ones, so that ratios span 0.001 … 30."""
    random = np.random.default_rng(0)
    return {
        "embeddings/table": random.normal(0, 0.02, (30, 8)).astype("float32"),
        "dense/kernel": random.normal(0, 0.3, (8, 6)).astype("float32"),
        "dense/bias": np.zeros(6, "float32"),
        "LayerNorm/gamma": np.ones(6, "float32"),
        "LayerNorm/beta": np.zeros(6, "float32"),
        "large/kernel": random.normal(0, 30, (6, 4)).astype("float32"),
    }


def gradients():
    """Gradients of STEPS updates; the scale grows, so that clipping sets in on the way."""
    random = np.random.default_rng(1)
    for step in range(STEPS):
        scale = 0.02 * 1.05**step
        yield {
            n: random.normal(0.2, 1, x.shape).astype("float32") * scale for n, x in start().items()
        }


def is_decayed(name):
    return not ("LayerNorm" in name or "bias" in name)


def keras_variables():
    variables = {}
    for name, value in start().items():
        scope, short = name.split("/")
        with keras.name_scope(scope):
            variables[name] = keras.Variable(value, name=short)
    return variables


def train_keras(optimizer):
    """The weights by name after all updates; likewise below."""
    variables = keras_variables()

    @tf.function
    def step(grads):
        optimizer.apply([grads[name] for name in variables], list(variables.values()))

    optimizer.build(list(variables.values()))
    for grads in gradients():
        step({name: tf.constant(g) for name, g in grads.items()})
    return {name: v.numpy() for name, v in variables.items()}


def train_tf_keras(optimizer):
    variables = {name: tf.Variable(x, name=name) for name, x in start().items()}

    @tf.function
    def step(grads):
        optimizer.apply_gradients([(grads[name], x) for name, x in variables.items()])

    for grads in gradients():
        step({name: tf.constant(g) for name, g in grads.items()})
    return {name: v.numpy() for name, v in variables.items()}


def train_optax(transformation):
    import jax
    import optax

    x = start()
    state = transformation.init(x)

    @jax.jit
    def step(x, state, grads):
        updates, state = transformation.update(grads, state, x)
        return optax.apply_updates(x, updates), state

    for grads in gradients():
        x, state = step(x, state, grads)
    return {name: np.asarray(value) for name, value in x.items()}


def train_torch(make):
    """Trains with an optimizer of PyTorch that is made of groups with decay 0.01 and without."""
    import torch

    x = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in start().items()}
    groups = [
        {"params": [p for name, p in x.items() if is_decayed(name)], "weight_decay": 0.01},
        {"params": [p for name, p in x.items() if not is_decayed(name)], "weight_decay": 0.0},
    ]
    optimizer = make(groups)
    for grads in gradients():
        for name, p in x.items():
            p.grad = torch.tensor(grads[name])
        optimizer.step()
    return {name: p.detach().numpy() for name, p in x.items()}


def train_numpy(formula, clips=False):
    """The weights by a formula (name, x, g, state, t) → x, with a dictionary of state a tensor."""
    x = {name: value.astype("float64") for name, value in start().items()}
    states = {name: {} for name in x}
    for t, grads in enumerate(gradients(), start=1):
        global_norm = np.sqrt(sum(np.sum(np.square(g, dtype="float64")) for g in grads.values()))
        for name, g in grads.items():
            g = g.astype("float64") / (max(global_norm, 1.0) if clips else 1.0)
            x[name] = formula(name, x[name], g, states[name], t)
    return x


def norm(x):
    """‖x‖"""
    return np.sqrt(np.sum(np.square(x)))


def assert_close(ours, theirs, tolerance):
    """Each tensor has moved, and is that of the other relative to its norm."""
    moved = start()
    for name, x in theirs.items():
        assert norm(x - moved[name]) > 1e-3 * norm(x), f"{name} did not move"
        assert norm(ours[name] - x) <= tolerance * norm(x), name
