"""The formulas of the papers, written out in float64 NumPy, one tensor at a time.

Independent of lamb_tf. `learning_rate` and `weight_decay` may be functions of the updates made;
`multiplier` is the factor on the learning rate of this tensor.
"""

import numpy as np


def lamb(x, gradients, *args, **kwargs):
    """x after a LAMB update for each of `gradients`; the other arguments are `lamb_updates`'."""
    x = np.asarray(x, np.float64)
    for after in lamb_updates(x, gradients, *args, **kwargs):
        x = after
    return x


def lamb_updates(
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
    multiplier=1.0,
):
    """Yields x after each LAMB update (arXiv 1904.00962, v5), taking gradients one by one."""
    x = np.asarray(x, np.float64)
    m, v = np.zeros_like(x), np.zeros_like(x)
    for t, g in enumerate(gradients, start=1):
        g = np.asarray(g, np.float64)
        decay = _at(weight_decay, t - 1)
        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g**2

        def corrected(beta, power):
            return 1 - beta**power if bias_correction else 1.0

        m_hat, v_hat = m / corrected(beta_1, t), v / corrected(beta_2, t)
        if nesterov in ("first", "both"):
            m_hat = beta_1 * m / corrected(beta_1, t + 1) + (1 - beta_1) * g / corrected(beta_1, t)
        if nesterov == "both":
            v_hat = beta_2 * v / corrected(beta_2, t + 1)
            v_hat = v_hat + (1 - beta_2) * g**2 / corrected(beta_2, t)
        root = np.sqrt(v_hat) + epsilon
        r = np.divide(m_hat, root, out=np.zeros_like(x), where=root > 0)
        u = r + decay * x
        norm_x = _phi(x, weight_norm_bounds)
        ratio = trust_ratio(norm_x, np.linalg.norm(u), trust_ratio_bounds) if adapt else 1.0
        x = x - multiplier * _at(learning_rate, t - 1) * ratio * u
        yield x


def lars_before_momentum(
    x,
    gradients,
    learning_rate=0.1,
    momentum=0.9,
    weight_decay=0.0,
    trust_coefficient=0.001,
    epsilon=0.0,
    nesterov=False,
    adapt=True,
    weight_norm_bounds=None,
    trust_ratio_bounds=None,
    norm_of_sum=False,
    multiplier=1.0,
):
    """x after a LARS update for each of `gradients` (arXiv 1708.03888; `norm_of_sum`: optax)."""
    x = np.asarray(x, np.float64)
    v = np.zeros_like(x)
    for step, g in enumerate(gradients):
        decay = _at(weight_decay, step)
        sum_of_norms = np.linalg.norm(g) + decay * np.linalg.norm(x)
        norm = np.linalg.norm(g + decay * x) if norm_of_sum else sum_of_norms
        denominator = norm + epsilon
        numerator = trust_coefficient * _phi(x, weight_norm_bounds)
        ratio = trust_ratio(numerator, denominator, trust_ratio_bounds) if adapt else 1.0
        push = multiplier * _at(learning_rate, step) * ratio * (g + decay * x)
        v = momentum * v + push
        x = x - (momentum * v + push if nesterov else v)
    return x


def lars_after_momentum(
    x,
    gradients,
    learning_rate=0.1,
    momentum=0.9,
    weight_decay=0.0,
    trust_coefficient=1.0,
    epsilon=0.0,
    nesterov=False,
    adapt=True,
    weight_norm_bounds=None,
    trust_ratio_bounds=None,
    multiplier=1.0,
):
    """x after a LARS update for each of `gradients`, as the LAMB paper writes it."""
    x = np.asarray(x, np.float64)
    m = np.zeros_like(x)
    for step, g in enumerate(gradients):
        decayed = g + _at(weight_decay, step) * x
        m = momentum * m + (1 - momentum) * decayed
        u = momentum * m + (1 - momentum) * decayed if nesterov else m
        numerator = trust_coefficient * _phi(x, weight_norm_bounds)
        denominator = np.linalg.norm(u) + epsilon
        ratio = trust_ratio(numerator, denominator, trust_ratio_bounds) if adapt else 1.0
        x = x - multiplier * _at(learning_rate, step) * ratio * u
    return x


_POLAR_EXPRESS = np.array(  # arXiv 2505.16932
    [
        [8.156554524902461, -22.48329292557795, 15.878769915207462],
        [4.042929935166739, -2.808917465908714, 0.5000178451051316],
        [3.8916678022926607, -2.772484153217685, 0.5060648178503393],
        [3.285753657755655, -2.3681294933425376, 0.46449024233003106],
        [2.3465413258596377, -1.7097828382687081, 0.42323551169305323],
    ]
)


def polar_express(matrix):
    """The orthogonal factor as the iteration gives it, by the singular values that it makes."""
    u, sigma, vh = np.linalg.svd(matrix, full_matrices=False)
    sigma = sigma / (1.02 * np.linalg.norm(matrix) + 1e-6)
    for a, b, c in _POLAR_EXPRESS:
        sigma = a * sigma + b * sigma**3 + c * sigma**5
    return u * sigma @ vh


def orscale(
    x,
    gradients,
    learning_rate=0.001,
    momentum=0.95,
    weight_decay=0.0,
    calibrated=True,
    epsilon=1e-6,
    adapt=True,
    trust_ratio_bounds=None,
    multiplier=1.0,
):
    """A matrix after an OrScale or OrScale-LM update for each gradient (arXiv 2605.07815).

    c is of the first step whose Q has a quarter of the norm that it has at full rank.
    """
    x = np.asarray(x, np.float64)
    m, c = np.zeros_like(x), None
    scale = 0.2 * np.sqrt(max(x.shape)) if calibrated else 1.0
    bounds = trust_ratio_bounds or ((0.1, 5.0) if calibrated else (0.5, 1.5))
    for step, g in enumerate(gradients):
        m = momentum * m + np.asarray(g, np.float64)
        q = polar_express(momentum * m + g)
        d = _at(weight_decay, step) * x + scale * q
        norm_x, norm_d = np.linalg.norm(x), np.linalg.norm(d)
        c_now = c
        if c is None:
            c_now = 1.0
            if calibrated:
                known = min(norm_x, norm_d) >= epsilon and min(norm_x, norm_d) > 0
                c_now = norm_x / norm_d if known else scale
            if np.linalg.norm(q) >= np.sqrt(min(x.shape)) / 4:
                c = c_now
        divisor = c_now * norm_d + epsilon
        ratio = np.clip(norm_x / divisor if divisor else 1.0, *bounds) if adapt else 1.0
        x = x - multiplier * _at(learning_rate, step) * ratio * d
    return x


def orscale_or_adamw(x, gradients, *rate, **arguments):
    """OrScale's formula for matrices, AdamW's for the rest."""
    if np.ndim(x) >= 2:
        return orscale(x, gradients, *rate, **arguments)
    shared = {n: arguments[n] for n in ("weight_decay", "multiplier") if n in arguments}
    return lamb(x, gradients, *rate, epsilon=1e-8, adapt=False, **shared)


def trust_ratio(numerator, denominator, bounds=None):
    """The quotient, 1 where either is 0, within the bounds."""
    ratio = numerator / denominator if numerator > 0 and denominator > 0 else 1.0
    return np.clip(ratio, *bounds) if bounds else ratio


def clip_by_global_norm(gradients, limit):
    """The gradients of one step, scaled so that their joint norm is at most `limit`."""
    norm = np.sqrt(sum(np.sum(np.square(g, dtype=np.float64)) for g in gradients))
    return [g * min(1.0, limit / norm) for g in gradients]


def _phi(x, bounds):
    norm = np.linalg.norm(x)
    return np.clip(norm, *bounds) if bounds else norm


def _at(value, step):
    return value(step) if callable(value) else value


def per_slice(formula, x, gradients, axes, *args, **kwargs):
    """`formula` of each slice by itself, put back where it was; `axes` number the slices."""
    axes = [axis % np.ndim(x) for axis in np.atleast_1d(np.asarray(axes, int))]
    result = np.zeros(np.shape(x))
    for position in np.ndindex(*(np.shape(x)[axis] for axis in axes)):
        at = [slice(None)] * np.ndim(x)
        for axis, i in zip(axes, position):
            at[axis] = i
        at = tuple(at)
        result[at] = formula(x[at], [g[at] for g in gradients], *args, **kwargs)
    return result


def noise_averages(micro_batches, decay=0.99):
    """The averages of |G|² and tr(Σ), of one micro-batch, over steps; with bias correction.

    Args:
        micro_batches: For each step, the gradients of its N micro-batches: shape (N, …).
    """
    averages = np.zeros(2)
    for gradients in micro_batches:
        rows = np.reshape(np.asarray(gradients, np.float64), (len(gradients), -1))
        count, mean = len(rows), rows.mean(axis=0)
        small, big = np.mean(np.sum(rows**2, axis=1)), np.sum(mean**2)
        # Equations A.2 of arXiv 1812.06162, with batches of 1 and N micro-batches.
        squared_gradient = (count * big - small) / (count - 1)
        noise = (small - big) / (1 - 1 / count)
        averages = decay * averages + (1 - decay) * np.array([squared_gradient, noise])
    return averages / (1 - decay ** len(micro_batches))
