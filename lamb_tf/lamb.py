"""LAMB, the layerwise adaptive optimizer of arXiv 1904.00962, with its two Nesterov variants."""

import math

import keras
from keras import ops

from lamb_tf.layerwise import LayerwiseOptimizer


@keras.saving.register_keras_serializable(package="lamb_tf")
class LAMB(LayerwiseOptimizer):
    """LAMB."""

    slot_names = ("m", "v")

    def __init__(
        self,
        learning_rate=0.001,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        weight_decay=0.0,
        exclude_from_weight_decay=None,
        exclude_from_layer_adaptation=None,
        *,
        bias_correction=True,
        nesterov=None,
        weight_norm_bounds=None,
        trust_ratio_bounds=None,
        name="lamb",
        **kwargs,
    ):
        super().__init__(
            learning_rate,
            weight_decay,
            exclude_from_weight_decay,
            exclude_from_layer_adaptation,
            weight_norm_bounds,
            trust_ratio_bounds,
            name,
            **kwargs,
        )
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.bias_correction = bias_correction
        self.nesterov = nesterov

    def coefficients(self, step):
        """1 − β₁ᵗ, 1 − β₁ᵗ⁺¹, 1 − β₂ᵗ, 1 − β₂ᵗ⁺¹, or ones without bias correction."""
        if not self.bias_correction:
            return dict.fromkeys(("m", "m_next", "v", "v_next"), 1.0)
        return {
            "m": one_minus_power(self.beta_1, step),
            "m_next": one_minus_power(self.beta_1, step + 1),
            "v": one_minus_power(self.beta_2, step),
            "v_next": one_minus_power(self.beta_2, step + 1),
        }

    def direction(self, x, g, slots, decay, correction):
        """u = r + λ x, where r = m̂ / (√v̂ + ε)."""
        beta_1, beta_2 = self.beta_1, self.beta_2
        m = beta_1 * slots["m"] + (1 - beta_1) * g
        v = beta_2 * slots["v"] + (1 - beta_2) * ops.square(g)
        m_hat = m / correction["m"]
        v_hat = v / correction["v"]
        if self.nesterov:  # the momentum that the next step would use
            m_hat = beta_1 * m / correction["m_next"] + (1 - beta_1) * g / correction["m"]
        if self.nesterov == "both":
            v_hat = (
                beta_2 * v / correction["v_next"] + (1 - beta_2) * ops.square(g) / correction["v"]
            )
        r = ops.divide_no_nan(m_hat, ops.sqrt(v_hat) + self.epsilon)
        return r + decay * x, {"m": m, "v": v}


def one_minus_power(beta, step):
    """1 − βᵗ, exact to float32: written out, 1 − 0.999 alone would lose five digits."""
    return -ops.expm1(step * (math.log(beta) if beta else -math.inf))
