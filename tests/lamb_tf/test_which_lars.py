"""docs/which_lars.md, line by line: each peer's 100 updates beside those of `lamb_tf.LARS`."""

import re
from pathlib import Path

import keras
import numpy as np
import peers
import pytest
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
PAGE = (Path(__file__).parents[2] / "docs" / "which_lars.md").read_text()
CODE = {"LARS": lamb_tf.LARS, "keras": keras}


def tables():
    """{peer: (expression there or None, expression here)} from the page's tables."""
    rows = re.findall(
        r"^\| ([^|`]+) \|(?: `([^|]+)` \|)? `(LARS\([^|]+\))` \|$", PAGE, re.MULTILINE
    )
    return {peer: (there or None, here) for peer, there, here in rows}


ROWS = tables()


def train_there(expression):
    """Evaluates the peer's own expression and runs it."""
    library = expression.split(".")[0]
    if library == "tf_models":
        module = peers.module_alone("official.modeling.optimization.lars")
        return train_tf_keras(eval(expression, {"tf_models": module}))
    if library == "optax":
        optax = peers.load("optax")
        decayed = {name: is_decayed(name) for name in start()}
        return train_optax(eval(expression, {"optax": optax, "decayed": decayed}))
    assert library == "timm"
    peers.load("torch")
    module = peers.module_alone("timm.optim.lars")
    return train_torch(lambda groups: eval(expression, {"timm": module, "groups": groups}))


# The formulas of the others: the new x, and v in the state.


def ratio(weight_norm, denominator):
    return weight_norm / denominator if weight_norm > 0 and denominator > 0 else 1.0


def paper(name, x, g, state, t, rate=lambda t: 0.1):
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


FORMULAS = {
    "paper, arXiv 1708.03888": paper,
    "the LAMB paper's LARS": lamb_paper,
    "Lightning Bolts": lightning_bolts,
}


@pytest.mark.parametrize("peer", ROWS)
def test_the_page_gives_the_numbers_of(peer):
    there, here = ROWS[peer]
    expected = train_there(there) if there else train_numpy(FORMULAS[peer])
    assert_close(train_keras(eval(here, CODE)), expected, 1e-5)


def test_the_page_has_all_the_peers():
    assert {peer for peer, (there, _) in ROWS.items() if there is None} == set(FORMULAS)
    libraries = {there.split(".")[0] for there, _ in ROWS.values() if there}
    assert libraries == {"optax", "tf_models", "timm"}


def test_a_rate_outside_of_the_momentum_is_the_same_until_it_changes():
    def trained(rate):
        return train_numpy(lambda *a: paper(*a, rate=rate)), train_numpy(
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
