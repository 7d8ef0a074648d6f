"""The formulas of the papers, written out in float64 NumPy, one tensor at a time. Independent of lamb_tf."""

import numpy as np


def trust_ratio(x, u, weight_norm_bounds=None, trust_ratio_bounds=None):
    """φ(‖x‖)/‖u‖, and 1 where either is 0 (arXiv 1904.00962, v5)."""
    weight_norm, update_norm = np.linalg.norm(x), np.linalg.norm(u)
    if weight_norm_bounds:
        weight_norm = np.clip(weight_norm, *weight_norm_bounds)
    ratio = weight_norm / update_norm if weight_norm > 0 and update_norm > 0 else 1.0
    return np.clip(ratio, *trust_ratio_bounds) if trust_ratio_bounds else ratio


def lamb(
    x,
    gradients,
    learning_rate=0.001,
    beta_1=0.9,
    beta_2=0.999,
    epsilon=1e-6,
    weight_decay=0.0,
    bias_correction=True,
    nesterov=None,
    adapt=True,
    weight_norm_bounds=None,
    trust_ratio_bounds=None,
):
    """x after one LAMB update for each of `gradients`; rate and decay may be functions of the step (from 0)."""
    x = np.asarray(x, np.float64)
    m, v = np.zeros_like(x), np.zeros_like(x)
    for step, g in enumerate(gradients):
        g = np.asarray(g, np.float64)
        t = step + 1
        rate = learning_rate(step) if callable(learning_rate) else learning_rate
        decay = weight_decay(step) if callable(weight_decay) else weight_decay
        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g**2
        c = {(beta, k): 1 - beta**k if bias_correction else 1.0
             for beta in (beta_1, beta_2) for k in (t, t + 1)}  # fmt: skip
        m_hat, v_hat = m / c[beta_1, t], v / c[beta_2, t]
        if nesterov in ("first", "both"):
            m_hat = beta_1 * m / c[beta_1, t + 1] + (1 - beta_1) * g / c[beta_1, t]
        if nesterov == "both":
            v_hat = beta_2 * v / c[beta_2, t + 1] + (1 - beta_2) * g**2 / c[beta_2, t]
        root = np.sqrt(v_hat) + epsilon
        u = np.divide(m_hat, root, out=np.zeros_like(x), where=root > 0) + decay * x
        ratio = trust_ratio(x, u, weight_norm_bounds, trust_ratio_bounds) if adapt else 1.0
        x = x - rate * ratio * u
    return x


def clip_by_global_norm(gradients, limit):
    """The gradients of one step, scaled so that their joint norm is at most `limit`."""
    norm = np.sqrt(sum(np.sum(np.square(g, dtype=np.float64)) for g in gradients))
    return [g * min(1.0, limit / norm) for g in gradients]
