"""The gradient noise scale: the batch above which more examples per step save few steps.

The simple noise scale of McCandlish et al. (arXiv 1812.06162, section 2.2) is B = tr(Σ) / |G|²: G
is the gradient over all examples, Σ the covariance of that of one example. A step over N
micro-batches has the squared norms of N small gradients and of their mean, so appendix A.1 of the
paper gives estimates without bias of |G|² and of tr(Σ), here of a micro-batch:

    |G|² ≈ N / (N − 1) (t − s)        tr(Σ) ≈ N / (N − 1) (N s − t)

where the gradient of the step is the sum of the micro-batches' shares of it, s the sum of their
squared norms and t its own. Both are averaged over the steps before they are divided, since a
quotient of noisy numbers is biased. They add up over variables, so those of any group follow.

`telemetry.record(optimizer, noise_scale=True)` measures it in a lamb_tf optimizer. A loop that sums
gradients itself calls `squared_norms` and `next_averages`.
"""

from collections.abc import Sequence

import numpy as np
from keras import ops

from lamb_tf import _kernels
from lamb_tf._types import Tensor

DECAY = 0.99  # of the averages: they look back about 100 steps


def squared_norms(tensors: Sequence[Tensor]) -> Tensor:
    """Σ x² of each tensor, as a float32 vector."""
    return _kernels.sums_of_squares(tensors, "float32", [()] * len(tensors))


def next_averages(
    averages: Tensor, small: Tensor, whole: Tensor, count: int, finite: Tensor | None = None
) -> Tensor:
    """The averages of |G|² and tr(Σ) after a step.

    Args:
        averages: Those before, of shape (2, variables); zeros before the first step. Both begin
            at 0 and move alike, so the bias correction 1 − 0.99ᵗ cancels in their quotient.
        small: For each variable, the sum over the micro-batches of the squared norms of their
            shares of the gradient.
        whole: For each variable, the squared norm of the gradient, which is the sum of the shares.
        count: N, the number of micro-batches on all replicas together; at least 2.
        finite: Whether the update takes place, a boolean tensor; None if it is known to. A skipped
            one adds nothing.
    """
    estimates = ops.stack([whole - small, count * small - whole]) * (count / (count - 1.0))
    moved = averages + (1.0 - DECAY) * (estimates - averages)
    return _kernels.where_finite(finite, moved, averages)


def scale(averages: np.ndarray | Sequence[Sequence[float]]) -> float:
    """tr(Σ) / |G|² in micro-batches, of all variables in these averages together.

    NaN before the first step, and infinite where the estimate of |G|² is not positive: the noise
    hides the gradient.
    """
    squared_gradient, noise = np.asarray(averages, np.float64).reshape(2, -1).sum(axis=1)
    if squared_gradient > 0:
        return float(noise / squared_gradient)
    return np.inf if noise > 0 else np.nan


def require_micro_batches(count: int, remedy: str) -> None:
    """Raises ValueError for a step of one micro-batch on one replica, which shows no noise."""
    if count < 2:
        raise ValueError(
            "noise_scale must be off where a step has one micro-batch on one replica, whose "
            f"gradient does not show its noise; got True. {remedy}"
        )
