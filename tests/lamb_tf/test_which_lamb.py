"""docs/which_lamb.md, line by line: each peer's 100 updates beside those of `lamb_tf.LAMB`."""

import re
from pathlib import Path

import keras
import numpy as np
import peers
import pytest
import tensorflow as tf
from peer_training import (
    assert_close,
    is_decayed,
    norm,
    start,
    train_keras,
    train_numpy,
    train_optax,
    train_tf_keras,
    train_torch,
)

import lamb_tf

# One row leaves the norms decayed, as its peer does.
pytestmark = pytest.mark.filterwarnings("ignore:.*scales of normalization layers:UserWarning")
PAGE = (Path(__file__).parents[2] / "docs" / "which_lamb.md").read_text()
BETA_1, BETA_2 = 0.9, 0.999


def tables():
    """{peer: (expression there or None, expression here)} from the page's tables."""
    rows = re.findall(
        r"^\| ([^|`]+) \|(?: `([^|]+)` \|)? `(LAMB\([^|]+\))` \|$", PAGE, re.MULTILINE
    )
    return {peer: (there or None, here) for peer, there, here in rows}


ROWS = tables()
CODE = {"LAMB": lamb_tf.LAMB}
for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
    exec(compile(block, "docs/which_lamb.md", "exec"), CODE)


def train_there(expression):
    """Evaluates the peer's own expression and runs it."""
    library = expression.split(".")[0]
    if library == "tfa":
        return train_tf_keras(eval(expression, {"tfa": peers.addons()}))
    if library == "tf_models":
        module = peers.module_alone("official.modeling.optimization.lamb")
        return train_tf_keras(eval(expression, {"tf_models": module}))
    if library == "optax":
        optax = peers.load("optax")
        decayed = {name: is_decayed(name) for name in start()}
        return train_optax(eval(expression, {"optax": optax, "decayed": decayed}))
    if library == "keras":
        return train_keras(eval(expression, {"keras": keras}))
    assert library == "timm"
    peers.load("torch")
    module = peers.module_alone("timm.optim.lamb")
    return train_torch(lambda groups: eval(expression, {"timm": module, "groups": groups}))


# The formulas of the peers that do not import on a CPU. Each gives the new x from the moments.


def ratio(weight_norm, update_norm):
    return weight_norm / update_norm if weight_norm > 0 and update_norm > 0 else 1.0


def corrected(m, v, t):
    return m / (1 - BETA_1**t), v / (1 - BETA_2**t)


def paper_v5(name, x, m, v, t, phi=lambda z: z):
    m_hat, v_hat = corrected(m, v, t)
    u = m_hat / (np.sqrt(v_hat) + 1e-6) + 0.01 * x
    return x - 0.01 * ratio(phi(norm(x)), norm(u)) * u


def paper_v3(name, x, m, v, t):
    u = m / (np.sqrt(v) + 1e-6) + 0.01 * x
    return x - 0.01 * ratio(norm(x), norm(u)) * u


def paper_v5_with_bounds(name, x, m, v, t):
    return paper_v5(name, x, m, v, t, phi=lambda z: min(max(z, 0.5), 10))


def authors(name, x, m, v, t):
    update = m / (np.sqrt(v) + 1e-6)
    if is_decayed(name):
        update += 0.01 * x
        return x - 0.01 * ratio(norm(x), norm(update)) * update
    return x - 0.01 * update


def apex(name, x, m, v, t, use_nvlamb=False):
    decay = 0.01 if is_decayed(name) else 0.0
    m_hat, v_hat = corrected(m, v, t)
    update = m_hat / (np.sqrt(v_hat) + 1e-6) + decay * x
    rate = 0.01
    if use_nvlamb or decay != 0:
        rate *= ratio(norm(x), norm(update))
    return x - rate * update


def nvlamb(name, x, m, v, t):
    return apex(name, x, m, v, t, use_nvlamb=True)


def deepspeed(name, x, m, v, t, bias_correction=True):
    step_size = 0.01
    if bias_correction:
        step_size *= np.sqrt(1 - BETA_2**t) / (1 - BETA_1**t)
    update = m / (np.sqrt(v) + 1e-8) + (0.01 if is_decayed(name) else 0.0) * x
    coefficient = 1.0
    if norm(x) != 0 and norm(update) != 0:
        coefficient = min(max(norm(x) / norm(update), 0.01), 10.0)
    return x - step_size * coefficient * update


def deepspeed_uncorrected(name, x, m, v, t):
    return deepspeed(name, x, m, v, t, bias_correction=False)


def lambc(name, x, m, v, t):
    m_hat, v_hat = corrected(m, v, t)
    u = m_hat / (np.sqrt(v_hat) + 1e-6) + 0.01 * x
    return x - 0.01 * min(ratio(norm(x), norm(u)), 1.0) * u


FORMULAS = {  # peer: (formula, clips to global norm 1)
    "paper, v1": (paper_v5, False),
    "paper, v3": (paper_v3, False),
    "paper, v5": (paper_v5, False),
    "paper, v5 with bounds on φ": (paper_v5_with_bounds, False),
    "the authors' BERT code": (authors, True),
    "NVLAMB (NVIDIA's BERT for TF2)": (nvlamb, True),
    "apex FusedLAMB": (apex, True),
    "apex FusedLAMB, use_nvlamb=True": (nvlamb, True),
    "DeepSpeed FusedLamb": (deepspeed, False),
    "DeepSpeed FusedLamb, bias_correction=False": (deepspeed_uncorrected, False),
    "LAMBC": (lambc, False),
}


def of_moments(formula):
    """The formula, in terms of m and v, as `train_numpy` wants it."""

    def step(name, x, g, state, t):
        state["m"] = BETA_1 * state.get("m", 0.0) + (1 - BETA_1) * g
        state["v"] = BETA_2 * state.get("v", 0.0) + (1 - BETA_2) * g**2
        return formula(name, x, state["m"], state["v"], t)

    return step


@pytest.mark.parametrize("peer", ROWS)
def test_the_page_gives_the_numbers_of(peer):
    there, here = ROWS[peer]
    if there:
        expected = train_there(there)
    else:
        formula, clips = FORMULAS[peer]
        expected = train_numpy(of_moments(formula), clips)
    assert_close(train_keras(eval(here, CODE)), expected, 2e-5)


def test_the_page_has_all_the_peers():
    assert {peer for peer, (there, _) in ROWS.items() if there is None} == set(FORMULAS)
    libraries = {there.split(".")[0] for there, _ in ROWS.values() if there}
    assert libraries == {"tfa", "tf_models", "optax", "keras", "timm"}


def test_keras_with_a_decay_is_not_expressible():
    """One step at rate .1 and decay .1 moves Keras' weights by less than the paper's .1 ‖x‖."""
    x = keras.Variable(np.ones(100, "float32"))
    keras.optimizers.Lamb(0.1, weight_decay=0.1).apply([np.ones(100, "float32")], [x])
    assert abs(norm(x.numpy() - 1) / 10 - 0.1) > 1e-3
    x = keras.Variable(np.ones(100, "float32"))
    lamb_tf.LAMB(0.1, weight_decay=0.1).apply([tf.ones(100)], [x])
    assert norm(x.numpy() - 1) / 10 == pytest.approx(0.1, rel=1e-5)


def test_a_momentum_without_averaging_is_undone_by_the_ratio_where_tensors_are_adapted():
    random = np.random.default_rng(0)
    x = y = random.normal(size=20)
    m, v = np.zeros(20), np.zeros(20)
    for t in range(1, 20):
        g = random.normal(size=20)
        m, v = BETA_1 * m + g, BETA_2 * v + (1 - BETA_2) * g**2
        u = m / (1 - BETA_1**t) / (np.sqrt(v / (1 - BETA_2**t)) + 1e-6) + 0.01 * x
        x = x - 0.01 * ratio(norm(x), norm(u)) * u
        averaged, v_hat = corrected((1 - BETA_1) * m, v, t)
        u = averaged / (np.sqrt(v_hat) + 1e-6) + 0.01 * (1 - BETA_1) * y
        y = y - 0.01 * ratio(norm(y), norm(u)) * u
    np.testing.assert_allclose(x, y, rtol=1e-12)
