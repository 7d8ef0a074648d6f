"""LARS, layerwise adaptive rate scaling, in both of its published forms and a third in use."""

from __future__ import annotations  # so that help() shows the types by their names

from collections.abc import Callable
from typing import Any, ClassVar, Unpack

import keras

from lamb_tf import _kernels
from lamb_tf._checks import (
    Dependent,
    boolean,
    bounds,
    fraction,
    not_negative,
    one_of,
    positive_or_none,
)
from lamb_tf._layerwise import LayerwiseOptimizer
from lamb_tf._types import Bounds, Exclusions, LearningRate, Options, Slots, Tensor, WeightDecay


@keras.saving.register_keras_serializable(package="lamb_tf")
class LARS(LayerwiseOptimizer):
    """The LARS optimizer.

    `ratio="before_momentum"`, arXiv 1708.03888, with trust coefficient η = 0.001 and rate γ:

        ratio = η φ(‖x‖) / (‖g‖ + λ ‖x‖ + ε)
        v ← μ v + γ ratio (g + λ x)
        x ← x − v                             (Nesterov: x ← x − μ v − γ ratio (g + λ x))

    `ratio="decayed_before_momentum"`, as optax and tf-models have it, with the norm of the sum in
    the place of the sum of norms:

        ratio = η φ(‖x‖) / (‖g + λ x‖ + ε)

    `ratio="after_momentum"`, arXiv 1904.00962, where momentum averages; η is 1 by default:

        m ← μ m + (1 − μ) (g + λ x)
        u = m                                 (Nesterov: u = μ m + (1 − μ) (g + λ x))
        x ← x − γ η φ(‖x‖) / (‖u‖ + ε) · u

    [Which LARS is mine?](../which_lars.md) has the arguments that reproduce other libraries' LARS.
    The norms are of one variable: ‖x‖ before the step; ‖g‖ after clipping, in the first form
    without the decay, for which λ ‖x‖ stands; ‖u‖ with the decay, which is in m. φ, where
    `weight_norm_bounds` gives it, applies only to the numerator, ε only to the denominator. Where
    either of the two is 0, the ratio is 1, without η. `trust_ratio_bounds` clip the ratio including
    η, before γ. Variables excluded from adaptation have ratio 1, whatever the bounds.

    Args:
        learning_rate: γ, a float, a `LearningRateSchedule` (of the updates made so far), a callable
            without arguments, or a `keras.Variable`.
        momentum: μ, in [0, 1).
        weight_decay: λ, a float or a schedule. None is 0.
        exclude_from_weight_decay: Variables without decay, as in `lamb_tf.LAMB`.
        exclude_from_layer_adaptation: Variables with ratio 1. Default: as
            `exclude_from_weight_decay`. The papers exclude biases and the parameters of
            normalisation from both.
        ratio: "before_momentum", "decayed_before_momentum" or "after_momentum", see above.
        trust_coefficient: η. None: 0.001 before the momentum, 1 after it.
        epsilon: ε, at least 0, added to the denominator of the ratio.
        nesterov: Whether the movement looks one step ahead.
        weight_norm_bounds: φ's (γ_l, γ_u), as in `lamb_tf.LAMB`.
        trust_ratio_bounds: (low, high) that the ratio, with η in it, is clipped to.
        **kwargs: The other arguments of `lamb_tf.LAMB`, from `master_weights` on.

    Raises:
        ValueError, TypeError: as `lamb_tf.LAMB`.

    Example:

    >>> optimizer = lamb_tf.LARS(
    ...     learning_rate=10.0,
    ...     weight_decay=1e-4,
    ...     exclude_from_weight_decay=lamb_tf.biases_and_norms,
    ... )

    Reference: You, Gitman and Ginsburg, Large Batch Training of Convolutional Networks,
    https://arxiv.org/abs/1708.03888
    """

    slot_names = ("momentum",)
    trust_coefficient: Any = Dependent(lambda self: 1.0 if self.moves_along_u else 0.001)
    hyperparameters: ClassVar[dict[str, Callable]] = {
        **LayerwiseOptimizer.hyperparameters,
        "momentum": fraction,
        "ratio": one_of("before_momentum", "decayed_before_momentum", "after_momentum"),
        "trust_coefficient": positive_or_none,
        "epsilon": not_negative,
        "nesterov": boolean,
        "weight_norm_bounds": bounds,
    }

    def __init__(
        self,
        learning_rate: LearningRate = 0.1,
        momentum: float = 0.9,
        weight_decay: WeightDecay = 0.0,
        exclude_from_weight_decay: Exclusions = None,
        exclude_from_layer_adaptation: Exclusions = None,
        *,
        ratio: str = "before_momentum",
        trust_coefficient: float | None = None,
        epsilon: float = 0.0,
        nesterov: bool = False,
        weight_norm_bounds: Bounds = None,
        **kwargs: Unpack[Options],
    ):
        exclusions = exclude_from_weight_decay, exclude_from_layer_adaptation
        super().__init__(learning_rate, weight_decay, exclusions, **kwargs)
        self.momentum = momentum
        self.ratio = ratio
        self.trust_coefficient = trust_coefficient
        self.epsilon = epsilon
        self.nesterov = nesterov
        self.weight_norm_bounds = weight_norm_bounds

    def _build(self, variables):
        super()._build(variables)
        plain = self.ratio == "before_momentum" and not self.nesterov
        if not plain or not self._has_equations_of(LARS):
            return
        if _kernels.MomentumOnTorch.computes(variables, self.use_ema):
            self._kernel = _kernels.MomentumOnTorch()

    def _apply_step(self, part, u, step_size, decay, scalars):
        """By the kernel, where there is one and the variable has nothing but its slot."""
        if self._kernel and part.state.keys() == {"momentum"} and not part.axes:
            self._kernel.move(part.variable, u, part.state, step_size, decay, self.momentum)
        else:
            super()._apply_step(part, u, step_size, decay, scalars)

    @property
    def moves_along_u(self) -> bool:  # type: ignore[override]  # nothing assigns it
        """Before the momentum, u is the gradient, and x moves along v."""
        return self.ratio == "after_momentum"

    def moments(self, x: Tensor, g: Tensor, slots: Slots, decay: Tensor) -> Slots:
        """m; where the ratio comes before the momentum, that moves last, in `move`."""
        if self.ratio != "after_momentum":
            return {}
        mu = self.momentum
        return {"momentum": mu * slots["momentum"] + (1 - mu) * (g + decay * x)}

    def direction(self, x: Tensor, g: Tensor, slots: Slots, decay: Tensor, _: object) -> Tensor:
        """u, whose norm is taken: g (the decay comes in `move`), g + λ x, or m."""
        if self.ratio == "before_momentum":
            return g
        if self.ratio == "decayed_before_momentum":
            return g + decay * x
        mu, m = self.momentum, slots["momentum"]
        return mu * m + (1 - mu) * (g + decay * x) if self.nesterov else m

    def trust_ratio(self, weight_norm: Tensor, update_norm: Tensor, decay: Tensor) -> Tensor:
        """η φ(‖x‖) / (‖u‖ + ε), and + λ ‖x‖ in the denominator where u is only g."""
        denominator = update_norm + self.epsilon
        if self.ratio == "before_momentum":
            denominator = denominator + decay * weight_norm
        return self.bounded_ratio(weight_norm, denominator, self.trust_coefficient)

    def move(
        self, x: Tensor, u: Tensor, slots: Slots, step_size: Tensor, decay: Tensor
    ) -> tuple[Tensor, Slots]:
        """x − v with v = μ v + γ ratio (g + λ x), or x − γ ratio m."""
        if self.moves_along_u:
            return super().move(x, u, slots, step_size, decay)
        step = step_size * (u + decay * x if self.ratio == "before_momentum" else u)
        v = self.momentum * slots["momentum"] + step
        movement = self.momentum * v + step if self.nesterov else v
        return x - movement, {"momentum": v}
