"""LAMB, the layerwise adaptive optimizer of arXiv 1904.00962, with its two Nesterov variants."""

from __future__ import annotations  # so that help() shows the types by their names

import math
from collections.abc import Callable, Iterable
from typing import ClassVar, NamedTuple, Unpack

import keras
import numpy as np
from keras import ops

from lamb_tf import _kernels
from lamb_tf._checks import boolean, bounds, fraction, not_negative, one_of
from lamb_tf._layerwise import LayerwiseOptimizer
from lamb_tf._types import Bounds, Exclusions, LearningRate, Options, Slots, Tensor, WeightDecay


class Corrections(NamedTuple):
    """1 − βᵗ, or 1 without bias correction: tensors or numbers."""

    m: object
    v: object
    next_m: object  # of the next step
    next_v: object
    kernel: object  # what the kernel makes of them, where there is one


@keras.saving.register_keras_serializable(package="lamb_tf")
class LAMB(LayerwiseOptimizer):
    """The LAMB optimizer.

    For each parameter tensor x with gradient g, at step t = 1, 2, …:

        m ← β₁ m + (1 − β₁) g                 m̂ = m / (1 − β₁ᵗ)
        v ← β₂ v + (1 − β₂) g²                v̂ = v / (1 − β₂ᵗ)
        r = m̂ / (√v̂ + ε)
        u = r + λ x
        x ← x − η · φ(‖x‖) / ‖u‖ · u          (ratio 1 where φ(‖x‖) or ‖u‖ is 0)

    This is version 5 of the paper (ICLR 2020). [Which LAMB is mine?](../which_lamb.md) has the
    arguments that reproduce other LAMBs. State and arithmetic are float32 whatever the type of the
    variables, or float64 where any of them is (Keras' own variable of a learning rate is float32
    even so). A step in which any gradient of any replica is not finite changes nothing but
    `optimizer.skipped_updates`. (So does one whose global norm overflows.) The arguments are
    attributes, settled when the optimizer is built; a `learning_rate` that is a number can be
    assigned later.

    Args:
        learning_rate: η, a float, a `LearningRateSchedule` (of the updates made so far), a callable
            without arguments, or a `keras.Variable`.
        beta_1: β₁, decay of the first moment, in [0, 1).
        beta_2: β₂, decay of the second moment, in [0, 1).
        epsilon: ε, outside the root; 0 is allowed.
        weight_decay: λ, inside the direction whose norm is taken; a float or a schedule. None is 0.
        exclude_from_weight_decay: Variables without decay: `lamb_tf.biases_and_norms`, or a list of
            regular expressions, searched for in `variable.path`, of variables, or of predicates of
            a variable. None and [] exclude nothing. A predicate is saved by the variables it named;
            before the optimizer is built these are unknown, and only a function that is registered
            with `keras.saving`, as `biases_and_norms` is, or given as one of the `custom_objects`,
            can be loaded in another process. There is a warning if exclusions leave the scales of
            normalization layers decayed.
        exclude_from_layer_adaptation: Variables with trust ratio 1. Default: as
            `exclude_from_weight_decay`; [] adapts every variable.
        bias_correction: False leaves out the divisions by 1 − βᵗ, as the authors' own code does.
        nesterov: "first" looks one step ahead in m (N-LAMB), "both" in m and v (NN-LAMB).
        weight_norm_bounds: φ's (γ_l, γ_u): φ(z) = min(max(z, γ_l), γ_u). None: φ(z) = z.
        trust_ratio_bounds: (low, high) that the ratio is clipped to, the 1 of a norm of 0 too.
        master_weights: For variables of bfloat16 and float16, which cannot hold a small step. True
            keeps a float32 copy in the state, 4 bytes per parameter, which the steps move and the
            variable is rounded from; what is assigned to the variable goes over into the copy.
            False saves the copy, and rounds the variable stochastically, right on average.
        learning_rate_multipliers: Factors on the learning rate by variable: a mapping of regular
            expressions, or a sequence of pairs, with keys as in the exclusions; the first match
            wins, other variables have factor 1. A factor multiplies the whole step, decay
            included; with 0 a variable stays as it is, though its moments move and its gradient
            counts in the global norm (freeze it, `trainable = False`, to save both). None: one rate
            for all.
        trust_ratio_axes: For variables that hold several layers, heads or experts: a mapping of
            regular expressions to the axis, or axes, that number the slices. The norms are taken
            over the other axes, and each slice has a ratio of its own, 1 where a norm of it is 0:
            `{"stack/kernel": 0}` steps (layers, in, out) as a variable (in, out) per layer, and
            `{"(query|key|value)/kernel": 1}` the heads of `keras.layers.MultiHeadAttention`.
            Negative axes count from the last. Bounds apply to each slice; `clipnorm` clips a whole
            variable. None: a ratio for each variable.
        name: The name of the optimizer. None: that of the class, numbered as Keras numbers names.
        **kwargs: The arguments of every Keras optimizer: `clipnorm`, `clipvalue`,
            `global_clipnorm`, `use_ema`, `ema_momentum`, `ema_overwrite_frequency`,
            `loss_scale_factor`, `gradient_accumulation_steps`. Clipping acts on what all replicas
            and micro-steps together give. And `shard_state`: with JAX under a
            `keras.distribution`, the name of an axis of its mesh ('batch' of `DataParallel`), over
            whose devices m, v and the rest of the state are divided, instead of being on each of
            them; the update is the same, norms included.

    Raises:
        ValueError: an unknown argument, or a value out of its range; on building, exclusions,
            multipliers or axes that name no variable (a warning where the optimizer is restored
            from a config), or axes that a variable lacks.
        TypeError: an exclusion, multiplier or variable of the wrong type.

    Example:

    >>> model.compile(
    ...     optimizer=lamb_tf.LAMB(
    ...         learning_rate=1e-3,
    ...         weight_decay=0.01,
    ...         exclude_from_weight_decay=lamb_tf.biases_and_norms,
    ...         global_clipnorm=1.0,
    ...     ),
    ...     loss="mse",
    ... )

    Reference: You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes,
    https://arxiv.org/abs/1904.00962
    """

    slot_names = ("m", "v")
    hyperparameters: ClassVar[dict[str, Callable]] = {
        **LayerwiseOptimizer.hyperparameters,
        "beta_1": fraction,
        "beta_2": fraction,
        "epsilon": not_negative,
        "bias_correction": boolean,
        "nesterov": one_of(None, "first", "both"),
        "weight_norm_bounds": bounds,
    }

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: WeightDecay = 0.0,
        exclude_from_weight_decay: Exclusions = None,
        exclude_from_layer_adaptation: Exclusions = None,
        *,
        bias_correction: bool = True,
        nesterov: str | None = None,
        weight_norm_bounds: Bounds = None,
        **kwargs: Unpack[Options],
    ):
        exclusions = exclude_from_weight_decay, exclude_from_layer_adaptation
        super().__init__(learning_rate, weight_decay, exclusions, **kwargs)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.bias_correction = bias_correction
        self.nesterov = nesterov
        self.weight_norm_bounds = weight_norm_bounds

    def _build(self, variables):
        super()._build(variables)
        self._betas = rounded((self.beta_1, self.beta_2), self._precision)
        # In a plain graph of TensorFlow, and on torch, it replaces `moments` and `direction`.
        if not self.nesterov and self._has_equations_of(LAMB):
            self._kernel = _kernels.adam_direction(
                self._betas, self.epsilon, variables, self.use_ema
            )

    def coefficients(self, step: Tensor, finite: Tensor | None) -> Corrections:
        """The bias corrections: 1 − β₁ᵗ, …, or 1 without."""
        c, kernel = (1.0,) * 4, None
        if self.bias_correction:
            c = tuple(one_minus_power(beta, t) for t in (step, step + 1) for beta in self._betas)
        if self._kernel and not _kernels.in_compiled_graph():
            now = c[0], self._scalar(c[1])
            kernel = self._kernel.scalars(self._betas, now, self.epsilon, finite)
        return Corrections(*c, kernel)

    def moments(self, x: Tensor, g: Tensor, slots: Slots, decay: Tensor) -> Slots:
        """m and v."""
        beta_1, beta_2 = self._betas
        return {
            "m": beta_1 * slots["m"] + (1 - beta_1) * g,
            "v": beta_2 * slots["v"] + (1 - beta_2) * g * g,
        }

    def direction(
        self, x: Tensor, g: Tensor, slots: Slots, decay: Tensor, corrections: Corrections
    ) -> Tensor:
        """u = m̂ / (√v̂ + ε) + λ x"""
        (beta_1, beta_2), m, v = self._betas, slots["m"], slots["v"]
        m_hat = m / corrections.m
        v_hat = v / corrections.v
        if self.nesterov:
            m_hat = beta_1 * m / corrections.next_m + (1 - beta_1) * g / corrections.m
        if self.nesterov == "both":
            v_hat = beta_2 * v / corrections.next_v + (1 - beta_2) * g * g / corrections.v
        root = _kernels.square_root(v_hat) + self.epsilon
        if self.epsilon > _kernels.TINY:
            return m_hat / root + decay * x
        # It is 0 / 0 where no gradient came yet.
        return _kernels.quotient(m_hat, root, root > 0, 0.0) + decay * x


def rounded(betas: Iterable[float], precision: str) -> tuple[float, ...]:
    """β₁, … as the arithmetic has them; 1 − 0.999 is then what is missing from 0.999 to 1.

    As float32 the two would not add up to 1, by 1e-5 of the first.
    """
    return tuple(float(np.dtype(precision).type(beta)) for beta in betas)


def one_minus_power(beta: float, step: Tensor) -> Tensor:
    """1 − βᵗ to full precision; written out, 1 − 0.999 would lose five digits in float32."""
    return -ops.expm1(step * (math.log(beta) if beta else -math.inf))
