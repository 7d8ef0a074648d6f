"""OrScale, Muon's orthogonal direction with a trust ratio for each layer (arXiv 2605.07815)."""

from __future__ import annotations  # so that help() shows the types by their names

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Unpack

import keras
from keras import ops

from lamb_tf import _kernels, _selection, _slices
from lamb_tf._checks import Dependent, boolean, fraction, not_negative
from lamb_tf._kernels import quotient, square_root
from lamb_tf._layerwise import LayerwiseOptimizer
from lamb_tf._types import Exclusions, LearningRate, Options, Slots, Tensor, WeightDecay
from lamb_tf.lamb import one_minus_power, rounded

ADAM_UPDATE_RMS = 0.2  # root mean square of an entry of s Q, as an update of Adam has it
_USABLE = 0.25  # smallest ‖Q‖ / √min(m, n) that sets c; it is near 1 if M has full rank


class NewtonSchulz(NamedTuple):
    """An iteration X ← a X + (b X Xᵀ + c (X Xᵀ)²) X that sends all singular values towards 1.

    It begins with M / (margin ‖M‖ + epsilon).
    """

    coefficients: tuple[tuple[float, float, float], ...]  # (a, b, c) of each step
    margin: float
    epsilon: float


# Amsel et al., The Polar Express, https://arxiv.org/abs/2505.16932
POLAR_EXPRESS = NewtonSchulz(
    coefficients=(
        (8.156554524902461, -22.48329292557795, 15.878769915207462),
        (4.042929935166739, -2.808917465908714, 0.5000178451051316),
        (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
        (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
        (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
    ),
    margin=1.02,
    epsilon=1e-6,
)


ADAM_PATHS = ("embedding",)  # where a model has any


def patterns(value: object, argument: str) -> tuple[str, ...]:
    """Regular expressions, as a tuple; None gives ()."""
    given = _selection.as_list(value)
    found = tuple(item for item in given if isinstance(item, str))
    if len(found) < len(given):
        raise ValueError(f"`{argument}` must be regular expressions; got {value!r}.")
    for item in found:
        _selection.pattern(item, argument)
    return found


@keras.saving.register_keras_serializable(package="lamb_tf")
class OrScale(LayerwiseOptimizer):
    """The OrScale optimizer.

    For each matrix W of m × n with gradient G:

        M ← μ M + G
        Q = the orthogonal factor of μ M + G          (Newton–Schulz; Q = U Vᵀ of its U Σ Vᵀ)
        D = λ W + s Q
        r = ‖W‖ / (c ‖D‖ + ε), clipped to the bounds
        W ← W − η r D

    OrScale-LM, for language models, is the default: s = 0.2 √max(m, n), and c is set for each
    matrix such that its r is 1 in the first step with a usable Q, ‖Q‖ ≥ √min(m, n) / 4; c = s if W
    or D is 0. Before that step, after gradients of 0, tiny ones or a few rows, r is 1 too. A rate η
    that suits AdamW is then of the right size. `calibrated=False` is OrScale, for other models:
    s = c = 1.

    AdamW updates all other variables, with the same rate and decay: those that are not matrices,
    and those that `adam_paths` names. Name the last layer of a classifier there, too.

    A variable with two axes is a matrix. With three, its axes are divided in two such that the
    matrix is as near to a square as possible, which suits the projections of attention, (d, heads,
    size) and (heads, size, d), and kernels of Conv1D. With more, it is the kernel of a convolution,
    whose last axis holds the columns. With `trust_ratio_axes` each slice is a variable of its own,
    with Q, s, c and r, or is moved by AdamW if it has less than two axes. State and arithmetic are
    as in `lamb_tf.LAMB`.

    Args:
        learning_rate: η, a float, a `LearningRateSchedule` (of the updates made so far), a callable
            without arguments, or a `keras.Variable`.
        momentum: μ, in [0, 1).
        weight_decay: λ, a float or a schedule. None is 0.
        exclude_from_weight_decay: Variables without decay, as in `lamb_tf.LAMB`.
        exclude_from_layer_adaptation: Matrices with r = 1 (with calibration this is Muon as in
            Moonlight). Default: as `exclude_from_weight_decay`.
        calibrated: Whether this is OrScale-LM.
        adam_paths: Regular expressions, searched for in `variable.path`, of matrices that AdamW
            moves; None or [] for none. The default may match nothing.
        beta_1, beta_2, adam_epsilon: Of AdamW, as in `keras.optimizers.AdamW`; ε is outside the
            root.
        epsilon: ε of the ratio, at least 0.
        trust_ratio_bounds: (low, high) that r is clipped to. None: (0.1, 5) with calibration,
            (0.5, 1.5) without, as the authors recommend.
        **kwargs: The other arguments of `lamb_tf.LAMB`, from `master_weights` on. Without
            calibration, variables of AdamW may need multipliers.

    Raises:
        ValueError, TypeError: as `lamb_tf.LAMB`.

    Example:

    >>> optimizer = lamb_tf.OrScale(
    ...     learning_rate=2e-3,
    ...     weight_decay=0.1,
    ...     exclude_from_weight_decay=lamb_tf.biases_and_norms,
    ...     adam_paths=["embedding", "logits/"],
    ... )

    Reference: Lou and You, OrScale: Orthogonalised Optimization with Layer-Wise Trust-Ratio
    Scaling, https://arxiv.org/abs/2605.07815
    """

    slot_names = ("momentum", "v", "calibration")
    scalar_slots = ("calibration",)
    is_elementwise = False
    iteration = POLAR_EXPRESS
    trust_ratio_bounds: Any = Dependent(lambda self: (0.1, 5.0) if self.calibrated else (0.5, 1.5))
    hyperparameters: ClassVar[dict[str, Callable]] = {
        **LayerwiseOptimizer.hyperparameters,
        "momentum": fraction,
        "calibrated": boolean,
        "adam_paths": patterns,
        "beta_1": fraction,
        "beta_2": fraction,
        "adam_epsilon": not_negative,
        "epsilon": not_negative,
    }

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        momentum: float = 0.95,
        weight_decay: WeightDecay = 0.0,
        exclude_from_weight_decay: Exclusions = None,
        exclude_from_layer_adaptation: Exclusions = None,
        *,
        calibrated: bool = True,
        adam_paths: Sequence[str] | str | None = ADAM_PATHS,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        adam_epsilon: float = 1e-8,
        epsilon: float = 1e-6,
        **kwargs: Unpack[Options],
    ):
        exclusions = exclude_from_weight_decay, exclude_from_layer_adaptation
        super().__init__(learning_rate, weight_decay, exclusions, **kwargs)
        self.momentum = momentum
        self.calibrated = calibrated
        self.adam_paths = adam_paths
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.adam_epsilon = adam_epsilon
        self.epsilon = epsilon

    @property
    def moves_along_u(self) -> bool:  # type: ignore[override]  # nothing assigns it
        """With calibration u is c D, and W moves along D."""
        return not self.calibrated

    def adapts(self, variable: keras.Variable) -> bool:
        """Whether this, or a slice of it, is a matrix that is moved along Q."""
        is_named = any(
            re.search(path, _selection.path_of(variable)) for path in self.adam_paths or ()
        )
        axes = _slices.axes_of(variable, self.trust_ratio_axes)
        return len(variable.shape) - len(axes) >= 2 and not is_named

    def has_slot(self, variable: keras.Variable, name: str) -> bool:
        """All have a momentum; those of AdamW a second moment, matrices their c."""
        is_matrix = self.adapts(variable)
        needed = {"v": not is_matrix, "calibration": is_matrix and self.calibrated}
        return needed.get(name, True)

    def _build(self, variables):
        self._check_paths(variables)
        super()._build(variables)
        self._betas = rounded((self.beta_1, self.beta_2), self._precision)

    def _check_paths(self, variables):
        """Refuses, or warns of, paths that no variable has, as `exclude_from_weight_decay` does."""
        found = [_selection.path_of(variable) for variable in variables]
        items = [
            item
            for item in self.adam_paths
            if item not in ADAM_PATHS or any(re.search(item, path) for path in found)
        ]
        if items and variables:
            otherwise = "None to move every matrix along Q"
            _selection.match_matrix(items, variables, "adam_paths", otherwise, self._is_restored)

    def coefficients(self, step: Tensor, finite: Tensor | None) -> tuple:
        """1 − β₁ᵗ and 1 − β₂ᵗ."""
        return tuple(one_minus_power(beta, step) for beta in self._betas)

    def moments(self, x: Tensor, g: Tensor, slots: Slots, decay: Tensor) -> Slots:
        """AdamW's moments; or M and c, and with them D, which is not a slot."""
        if "v" in slots:
            beta_1, beta_2 = self._betas
            return {
                "momentum": beta_1 * slots["momentum"] + (1 - beta_1) * g,
                "v": beta_2 * slots["v"] + (1 - beta_2) * g * g,
            }
        momentum = self.momentum * slots["momentum"] + g
        rows, columns = _rows_and_columns(x.shape)
        scale = ADAM_UPDATE_RMS * math.sqrt(max(rows, columns)) if self.calibrated else 1.0
        ahead = ops.reshape(self.momentum * momentum + g, (rows, columns))
        q = ops.reshape(orthogonal_factor(ahead, self.iteration), x.shape)
        moved = {"momentum": momentum, "D": decay * x + scale * q}
        if self.calibrated:
            norms = _norm(x), _norm(moved["D"])
            smallest = ops.minimum(*norms)
            known = (smallest > 0) & (smallest >= self.epsilon)
            c = quotient(*norms, known, scale)
            # A zero gradient, or few rows, gives no usable c; c stays negative, and is computed
            # again in each step, until a usable one.
            c = ops.where(_norm(q) >= _USABLE * math.sqrt(min(rows, columns)), c, -c)
            moved["calibration"] = ops.where(slots["calibration"] > 0, slots["calibration"], c)
        return moved

    def direction(
        self, x: Tensor, g: Tensor, slots: Slots, decay: Tensor, corrections: tuple
    ) -> Tensor:
        """m̂ / (√v̂ + ε) + λ x; or D, times c."""
        if "v" in slots:
            m_hat, v_hat = (s / c for s, c in zip((slots["momentum"], slots["v"]), corrections))
            root = square_root(v_hat) + self.adam_epsilon
            return quotient(m_hat, root, root > 0, 0.0) + decay * x
        return slots["D"] * ops.abs(slots["calibration"]) if self.calibrated else slots["D"]

    def trust_ratio(self, weight_norm: Tensor, update_norm: Tensor, decay: Tensor) -> Tensor:
        """r, always within the bounds; where D and ε are 0, 1 before clipping."""
        denominator = update_norm + self.epsilon
        ratio = quotient(weight_norm, denominator, denominator > 0, 1.0)
        return self._clip(ratio, self.trust_ratio_bounds)

    def move(
        self, x: Tensor, u: Tensor, slots: Slots, step_size: Tensor, decay: Tensor
    ) -> tuple[Tensor, Slots]:
        """x − step_size D, where D = u / c; for AdamW, D is u."""
        if "calibration" in slots:
            u = u / ops.abs(slots["calibration"])
        return x - step_size * u, {}


def orthogonal_factor(x: Tensor, iteration: NewtonSchulz = POLAR_EXPRESS) -> Tensor:
    """U Vᵀ of x = U Σ Vᵀ, approximately.

    Singular values above ‖x‖/50 become 1 ± 0.16.

    Args:
        x: A matrix; of shape (m, n).
        iteration: The iteration, and its number of steps.
    """
    is_tall = x.shape[0] > x.shape[1]
    x = ops.transpose(x) if is_tall else x
    x = x / (_norm(x) * iteration.margin + iteration.epsilon)

    def step(x, coefficients):
        a, b, c = coefficients
        square = x @ ops.transpose(x)  # ops.matmul would be in float32 on torch
        return a * x + (b * square + c * square @ square) @ x

    x = _kernels.repeat(step, x, iteration.coefficients)
    return ops.transpose(x) if is_tall else x


def _norm(x):
    return square_root(ops.sum(ops.square(x)))


def _rows_and_columns(shape):
    """Matrix view of a variable: its numbers of rows and columns; see `OrScale`."""
    places = (1, 2) if len(shape) == 3 else (len(shape) - 1,)
    return min(((math.prod(shape[:i]), math.prod(shape[i:])) for i in places), key=max)
