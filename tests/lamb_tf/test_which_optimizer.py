"""docs/which_lamb.md and docs/which_lars.md, line by line: 100 updates of each peer and of ours."""

import re
from pathlib import Path

import keras
import numpy as np
import peers
import pytest
import tensorflow as tf

import lamb_tf

# One row leaves the norms decayed, as its peer does.
pytestmark = pytest.mark.filterwarnings("ignore:.*scales of normalization layers:UserWarning")
STEPS = 100
DOCS = Path(__file__).parents[2] / "docs"
BETA_1, BETA_2 = 0.9, 0.999
PAGES = {name: (DOCS / f"which_{name.lower()}.md").read_text() for name in ("LAMB", "LARS")}
CODE = {"LAMB": lamb_tf.LAMB, "LARS": lamb_tf.LARS, "keras": keras}
for block in re.findall(r"```python\n(.*?)```", PAGES["LAMB"], re.DOTALL):
    exec(compile(block, "docs/which_lamb.md", "exec"), CODE)


def table(name):
    """{peer: (expression there or None, expression here)} from the tables of a page."""
    row = rf"^\| ([^|`]+) \|(?: `([^|]+)` \|)? `({name}\([^|]+\))` \|$"
    rows = re.findall(row, PAGES[name], re.MULTILINE)
    return {peer: (there or None, here) for peer, there, here in rows}


ROWS = {name: table(name) for name in PAGES}


# Training six tensors with an optimizer of any library.


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


def train_there(name, expression):
    """Evaluates the peer's own expression and runs it."""
    library = expression.split(".")[0]
    if library == "tfa":
        return train_tf_keras(eval(expression, {"tfa": peers.addons()}))
    if library == "tf_models":
        module = peers.module_alone(f"official.modeling.optimization.{name.lower()}")
        return train_tf_keras(eval(expression, {"tf_models": module}))
    if library == "optax":
        optax = peers.load("optax")
        decayed = {name: is_decayed(name) for name in start()}
        return train_optax(eval(expression, {"optax": optax, "decayed": decayed}))
    if library == "keras":
        return train_keras(eval(expression, {"keras": keras}))
    assert library == "timm"
    peers.load("torch")
    module = peers.module_alone(f"timm.optim.{name.lower()}")
    return train_torch(lambda groups: eval(expression, {"timm": module, "groups": groups}))


# The formulas of LAMBs that do not import on a CPU. Each gives the new x from the moments.


def ratio(weight_norm, denominator):
    return weight_norm / denominator if weight_norm > 0 and denominator > 0 else 1.0


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


LAMBS = {  # peer: (formula, clips to global norm 1)
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


# The formulas of LARSes: the new x, and v in the state.


def lars_paper(name, x, g, state, t, rate=lambda t: 0.1):
    adaptation = 0.001 * norm(x) / (norm(g) + 0.01 * norm(x)) if norm(x) > 0 else 1.0
    state["v"] = 0.9 * state.get("v", 0.0) + rate(t) * adaptation * (g + 0.01 * x)
    return x - state["v"]


def lamb_paper(name, x, g, state, t):
    state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * (g + 0.01 * x)
    return x - 0.01 * ratio(norm(x), norm(state["m"])) * state["m"]


def lightning_bolts(name, x, g, state, t, rate=lambda t: 0.1, decays=is_decayed):
    if decays(name) and norm(x) != 0 and norm(g) != 0:
        adaptation = 0.001 * norm(x) / (norm(g) + 0.01 * norm(x) + 1e-8)
        g = adaptation * (g + 0.01 * x)
    state["v"] = 0.9 * state["v"] + g if "v" in state else g
    return x - rate(t) * state["v"]


LARSES = {
    "paper, arXiv 1708.03888": lars_paper,
    "the LAMB paper's LARS": lamb_paper,
    "Lightning Bolts": lightning_bolts,
}


LIBRARIES = {
    "LAMB": {"tfa", "tf_models", "optax", "keras", "timm"},
    "LARS": {"optax", "tf_models", "timm"},
}


@pytest.mark.parametrize(("name", "peer"), [(n, peer) for n, rows in ROWS.items() for peer in rows])
def test_the_page_gives_the_numbers_of(name, peer):
    there, here = ROWS[name][peer]
    if there:
        expected = train_there(name, there)
    elif name == "LAMB":
        formula, clips = LAMBS[peer]
        expected = train_numpy(of_moments(formula), clips)
    else:
        expected = train_numpy(LARSES[peer])
    assert_close(train_keras(eval(here, CODE)), expected, 2e-5 if name == "LAMB" else 1e-5)


@pytest.mark.parametrize(("name", "formulas"), [("LAMB", LAMBS), ("LARS", LARSES)])
def test_the_page_has_all_the_peers(name, formulas):
    expressions = {peer: there for peer, (there, _) in ROWS[name].items()}
    assert {peer for peer, there in expressions.items() if there is None} == set(formulas)
    libraries = {there.split(".")[0] for there in expressions.values() if there}
    assert libraries == LIBRARIES[name]


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


def test_a_rate_outside_of_the_momentum_is_the_same_until_it_changes():
    def trained(rate):
        return train_numpy(lambda *a: lars_paper(*a, rate=rate)), train_numpy(
            lambda *a: lightning_bolts(*a, rate=rate, decays=lambda name: True)
        )

    inside, outside = trained(lambda t: 0.1)
    for name in ("dense/kernel", "large/kernel"):
        assert norm(inside[name] - outside[name]) < 1e-6 * norm(outside[name])
    inside, outside = trained(lambda t: 0.001 * t)  # a warm-up
    for name in ("dense/kernel", "large/kernel"):
        assert norm(inside[name] - outside[name]) > 1e-3 * norm(outside[name])


def test_a_momentum_that_sums_is_that_which_averages_where_tensors_are_adapted():
    tf_models = peers.module_alone("official.modeling.optimization.lars")
    sums = tf_models.LARS(
        0.1, weight_decay_rate=0.01, exclude_from_weight_decay=["Norm"], classic_momentum=False
    )
    averages = lamb_tf.LARS(
        0.1,
        weight_decay=0.01,
        exclude_from_weight_decay=["Norm"],
        ratio="after_momentum",
        trust_coefficient=0.001,
    )
    theirs, ours = train_tf_keras(sums), train_keras(averages)
    for name in ("embeddings/table", "dense/kernel", "large/kernel"):
        assert norm(ours[name] - theirs[name]) < 1e-5 * norm(theirs[name])
    name = "LayerNorm/beta"  # 0 at first, and not adapted
    np.testing.assert_allclose(10 * ours[name], theirs[name], rtol=1e-4)
