"""docs/which_lamb.md and docs/which_lars.md, line by line: 100 updates of each peer and of ours."""

import functools
import re
from pathlib import Path

import keras
import numpy as np
import peers
import pytest
import reference
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


def train_keras(optimizer):
    """The weights by name after all updates; likewise below."""
    variables = {}
    for name, value in start().items():
        scope, short = name.split("/")
        with keras.name_scope(scope):
            variables[name] = keras.Variable(value, name=short)

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


def train_numpy(formula, of_biases_and_norms=None, clips=False):
    """The weights by a formula (x, its gradients) → x, with other settings for some tensors."""
    taken = list(gradients())
    if clips:
        norms = [reference.clip_by_global_norm(grads.values(), 1.0) for grads in taken]
        taken = [dict(zip(grads, clipped)) for grads, clipped in zip(taken, norms)]
    return {
        name: formula(
            x.astype("float64"),
            [np.asarray(grads[name], "float64") for grads in taken],
            **({} if is_decayed(name) else of_biases_and_norms or {}),
        )
        for name, x in start().items()
    }


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


# The formulas of optimizers that do not import on a CPU.


def deepspeed(x, gradients, weight_decay=0.01, bias_correction=True):
    """It corrects the size of the step, and so what is decayed by as well."""
    m = v = np.zeros_like(x)
    for t, g in enumerate(gradients, start=1):
        m = BETA_1 * m + (1 - BETA_1) * g
        v = BETA_2 * v + (1 - BETA_2) * g**2
        update = m / (np.sqrt(v) + 1e-8) + weight_decay * x
        ratio = reference.trust_ratio(norm(x), norm(update), (0.01, 10.0))
        correction = np.sqrt(1 - BETA_2**t) / (1 - BETA_1**t) if bias_correction else 1.0
        x = x - 0.01 * correction * ratio * update
    return x


def lightning_bolts(x, gradients, rate=lambda step: 0.1, adapt=True):
    """The rate is outside of the momentum; without adaptation there is no decay."""
    v = np.zeros_like(x)
    for step, g in enumerate(gradients):
        if adapt and norm(x) != 0 and norm(g) != 0:
            g = 0.001 * norm(x) / (norm(g) + 0.01 * norm(x) + 1e-8) * (g + 0.01 * x)
        v = 0.9 * v + g
        x = x - rate(step) * v
    return x


lamb = functools.partial(reference.lamb, learning_rate=0.01, weight_decay=0.01)
lars = functools.partial(reference.lars_before_momentum, weight_decay=0.01)
UNCORRECTED = {"bias_correction": False}
NOT_DECAYED = {"weight_decay": 0.0}
NOT_ADAPTED = {"weight_decay": 0.0, "adapt": False}
FORMULAS = {  # peer: the arguments of `train_numpy`
    "LAMB": {
        "paper, v1": (lamb,),
        "paper, v3": (functools.partial(lamb, **UNCORRECTED),),
        "paper, v5": (lamb,),
        "paper, v5 with bounds on φ": (functools.partial(lamb, weight_norm_bounds=(0.5, 10)),),
        "the authors' BERT code": (functools.partial(lamb, **UNCORRECTED), NOT_ADAPTED, True),
        "NVLAMB (NVIDIA's BERT for TF2)": (lamb, NOT_DECAYED, True),
        "apex FusedLAMB": (lamb, NOT_ADAPTED, True),
        "apex FusedLAMB, use_nvlamb=True": (lamb, NOT_DECAYED, True),
        "DeepSpeed FusedLamb": (deepspeed, NOT_DECAYED),
        "DeepSpeed FusedLamb, bias_correction=False": (
            functools.partial(deepspeed, **UNCORRECTED),
            NOT_DECAYED,
        ),
        "LAMBC": (functools.partial(lamb, trust_ratio_bounds=(0, 1)),),
    },
    "LARS": {
        "paper, arXiv 1708.03888": (lars,),
        "the LAMB paper's LARS": (
            functools.partial(reference.lars_after_momentum, learning_rate=0.01, weight_decay=0.01),
        ),
        "Lightning Bolts": (lightning_bolts, {"adapt": False}),
    },
}
LIBRARIES = {
    "LAMB": {"tfa", "tf_models", "optax", "keras", "timm"},
    "LARS": {"optax", "tf_models", "timm"},
}


@pytest.mark.parametrize(("name", "peer"), [(n, peer) for n, rows in ROWS.items() for peer in rows])
def test_the_page_gives_the_numbers_of(name, peer):
    there, here = ROWS[name][peer]
    expected = train_there(name, there) if there else train_numpy(*FORMULAS[name][peer])
    assert_close(train_keras(eval(here, CODE)), expected, 2e-5 if name == "LAMB" else 1e-5)


@pytest.mark.parametrize("name", FORMULAS)
def test_the_page_has_all_the_peers(name):
    expressions = {peer: there for peer, (there, _) in ROWS[name].items()}
    assert {peer for peer, there in expressions.items() if there is None} == set(FORMULAS[name])
    libraries = {there.split(".")[0] for there in expressions.values() if there}
    assert libraries == LIBRARIES[name]


def test_a_momentum_without_averaging_is_undone_by_the_ratio_where_tensors_are_adapted():
    first, *grads = np.random.default_rng(0).normal(size=(20, 20))
    x, m, v = first, 0.0, 0.0
    for t, g in enumerate(grads, start=1):
        m, v = BETA_1 * m + g, BETA_2 * v + (1 - BETA_2) * g**2
        u = m / (1 - BETA_1**t) / (np.sqrt(v / (1 - BETA_2**t)) + 1e-6) + 0.01 * x
        x = x - 0.01 * reference.trust_ratio(norm(x), norm(u)) * u
    averaged = reference.lamb(first, grads, 0.01, weight_decay=0.01 * (1 - BETA_1))
    np.testing.assert_allclose(x, averaged, rtol=1e-12)


@pytest.mark.parametrize(
    ("rate", "is_the_same"), [(lambda step: 0.1, True), (lambda step: 0.001 * (step + 1), False)]
)
def test_a_rate_outside_of_the_momentum_is_the_same_until_it_changes(rate, is_the_same):
    inside = train_numpy(functools.partial(lars, learning_rate=rate))
    outside = train_numpy(functools.partial(lightning_bolts, rate=rate))
    for name in ("dense/kernel", "large/kernel"):
        difference = norm(inside[name] - outside[name]) / norm(outside[name])
        assert difference < 1e-6 if is_the_same else difference > 1e-3


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
