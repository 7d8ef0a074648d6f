"""LAMB and LARS for tf_keras, which is Keras 2 next to Keras 3 (`TF_USE_LEGACY_KERAS=1`).

`LAMB` replaces `tfa.optimizers.LAMB`, with the same arguments, slots and names of state: its
checkpoints, `.h5` files and SavedModels load, and training continues as with TensorFlow Addons. It
needs TensorFlow and tf_keras, but not Keras 3. [Migration](../migration.md) has the steps.

Intended differences from Addons: state and arithmetic are float32 (float64 for float64 variables);
a step in which any gradient is not finite changes nothing; `epsilon=0` means zero, and
`exclude_from_layer_adaptation=[]` excludes nothing; patterns are matched against names without
`:0`, and a list that matches no variable is an error.
"""

from __future__ import annotations

import numbers
import os
import warnings
from typing import TYPE_CHECKING, Any, ClassVar

import tensorflow as tf

try:
    import tf_keras
except ImportError as error:
    raise ImportError(
        'lamb_tf.legacy needs tf_keras: `pip install "lamb_tf[legacy]"`, or, with your own '
        "TensorFlow, `pip install --no-deps tf-keras`."
    ) from error
from tf_keras.src.optimizers.legacy.optimizer_v2 import _var_key

from lamb_tf import _selection
from lamb_tf._checks import Dependent, boolean, fraction, not_negative, one_of, optional
from lamb_tf._selection import biases_and_norms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lamb_tf._types import LearningRate, WeightDecay

    _Item = str | Callable[[tf.Variable], bool]  # of functions, only `biases_and_norms`

PRIVATE_HOOKS = {  # private parts of tf_keras' optimizers that are used, and why
    "_slots": "slots by variable and name: `add_slot` adds those wider than their variable",
    "_slot_names": "likewise",
    "_weights": "likewise: the content of `get_weights` and of the files",
    "_restore_slot_variable": "likewise: a checkpoint that was read before the slot was made",
    "_distribution_strategy_scope": "likewise: the slot is made under the strategy of its variable",
    "_distributed_apply": "the update of all variables, gradients being summed and clipped",
    "_decayed_lr": "the rate after a schedule or Keras 2's `decay`",
    "_initial_decay": "the argument `decay`",
    "_fallback_apply_state": "coefficients for a variable on a device that `_prepare` did not see",
    "_hyper": "the numbers, variables or schedules that `_set_hyper` was given, by name",
    "_use_locking": "passed by Keras 2 to each assignment",
}

_EXCLUSIONS = "exclude_from_weight_decay", "exclude_from_layer_adaptation"
_CLIPS = "clipnorm", "clipvalue", "global_clipnorm"
_BY_NAME = {"predicate": biases_and_norms.__name__}  # in a config
_register = tf_keras.utils.register_keras_serializable(package="lamb_tf")
_Schedule = tf_keras.optimizers.schedules.LearningRateSchedule


class _Layerwise(tf_keras.optimizers.legacy.Optimizer):
    """A tf_keras optimizer that scales the step of each variable by that variable's trust ratio.

    A subclass names its slots and has its equations in `_step`.
    """

    _slot_order: tuple[str, ...] = ()
    _checks: ClassVar[dict[str, Callable]] = {}  # of attributes that a traced step reads once

    def __init__(self, learning_rate, weight_decay, exclusions, name, **kwargs):
        if "weight_decay_rate" in kwargs:
            weight_decay = kwargs.pop("weight_decay_rate")
            warnings.warn(
                f"`weight_decay_rate` is an old name: write `weight_decay={weight_decay!r}`.",
                DeprecationWarning,
                stacklevel=3,
            )
        learning_rate = kwargs.get("lr", learning_rate)  # an old name; tf_keras warns of it
        weight_decay = 0.0 if weight_decay is None else weight_decay
        super().__init__(name, **kwargs)
        self._set_hyper("learning_rate", _schedule(_checked(learning_rate, "learning_rate")))
        self._set_hyper("decay", self._initial_decay)
        self._set_hyper("weight_decay", _schedule(_checked(weight_decay, "weight_decay")))
        self._decays = not (isinstance(weight_decay, numbers.Real) and weight_decay == 0)
        self._exclusions = tuple(map(_patterns, exclusions, _EXCLUSIONS))
        self._exclusions_were_checked = False
        self._is_restored = False  # from a config

    def __setattr__(self, name, value):
        """Refuses, after the first step, changes that a traced step would not see.

        It does see a new number for `learning_rate`, `weight_decay` or a β, which are variables.
        """
        name = "learning_rate" if name == "lr" else name  # as in the base class
        if name in self._checks:
            value = self._checks[name](value, name)
        stepped = vars(self).get("_exclusions_were_checked")
        if stepped and (
            name in (*_CLIPS, *self._checks) or (name in self._hyper and callable(value))
        ):
            raise AttributeError(
                f"`{name}` must stay as it is after the first step, because the traced step would "
                f"not use a change; got {value!r}. Make a new {type(self).__name__} and restore a "
                "checkpoint."
            )
        super().__setattr__(name, value)

    @property
    def exclude_from_weight_decay(self):
        """The given list, or None; read-only, as a traced step would not see a change."""
        return self._exclusions[0]

    @property
    def exclude_from_layer_adaptation(self):
        """The given list; None: as for the decay. Read-only."""
        return self._exclusions[1]

    def get_config(self) -> dict[str, object]:
        names = ("learning_rate", "decay", "weight_decay")
        return {
            **super().get_config(),
            **{name: self._serialize_hyperparameter(name) for name in names},
            **{name: vars(self)[name] for name in self._checks},  # as given: see `Dependent`
            **dict(zip(_EXCLUSIONS, map(_to_be_saved, self._exclusions))),
        }

    @classmethod
    def from_config(cls, config: dict, custom_objects: dict | None = None):
        """The optimizer of a saved config, including those of older Addons and of tf-models."""
        config = dict(config)
        if "weight_decay_rate" in config:
            config["weight_decay"] = config.pop("weight_decay_rate")
        for name in ("learning_rate", "weight_decay"):
            if isinstance(config.get(name), dict):
                config[name] = _restored_schedule(config[name], custom_objects)
        for name in _EXCLUSIONS:
            if name in config:
                config[name] = _restored(config[name])
        optimizer = super().from_config(config, custom_objects)
        optimizer._is_restored = True
        return optimizer

    def _create_slots(self, var_list):
        _selection.check_types(var_list)
        if not self._exclusions_were_checked:
            undecayed, _ = (
                _selection.excluded(var_list, exclusions, argument, self._is_restored)
                for exclusions, argument in zip(self._exclusions, _EXCLUSIONS)
            )
            if self._decays and not self._is_restored:
                decayed = [not is_excluded for is_excluded in undecayed]
                _selection.warn_of_norms(var_list, decayed, self._exclusions[0])
            self._exclusions_were_checked = True
        for slot_name in self._slot_order:  # slot by slot, as in Addons
            for var in var_list:
                self.add_slot(var, slot_name)

    def add_slot(self, var, slot_name, initializer="zeros", shape=None):
        """As in tf_keras, but float32 for float16 and bfloat16 variables."""
        if getattr(var, "true_dtype", var.dtype) not in (tf.float16, tf.bfloat16):
            return super().add_slot(var, slot_name, initializer, shape)
        slots = self._slots.setdefault(_var_key(var), {})
        if slot_name not in slots:
            strategy = tf.distribute.get_strategy()
            with self._distribution_strategy_scope(), strategy.extended.colocate_vars_with(var):
                slot = tf.Variable(
                    tf.zeros(var.shape),
                    trainable=False,
                    name=f"{_selection.path_of(var)}/{slot_name}",
                )
            slots[slot_name] = slot
            self._weights.append(slot)
            if slot_name not in self._slot_names:
                self._slot_names.append(slot_name)
            self._restore_slot_variable(slot_name, var, slot)
        return slots[slot_name]

    def _prepare_local(self, var_device, var_dtype, apply_state):
        dtype = _precise(var_dtype)
        weight_decay = self._get_hyper("weight_decay")
        if isinstance(weight_decay, _Schedule):
            weight_decay = weight_decay(self.iterations)
        apply_state[(var_device, var_dtype)] = {
            "learning_rate": tf.cast(self._decayed_lr(dtype), dtype),
            "weight_decay": tf.cast(weight_decay, dtype),
        }

    def _distributed_apply(self, distribution, grads_and_vars, apply_state, name):
        """Updates all variables and the step count; nothing if a gradient is not finite."""
        update = super()._distributed_apply
        finite = [
            tf.reduce_all(tf.math.is_finite(getattr(local, "values", local)))
            for gradient, _ in grads_and_vars
            for local in distribution.experimental_local_results(gradient)
        ]
        return tf.cond(
            tf.reduce_all(tf.stack(finite)),
            lambda: update(distribution, grads_and_vars, apply_state, name),
            lambda: self.iterations.assign_add(0, read_value=False),
        )

    def _resource_apply_dense(self, grad, var, apply_state=None):
        key = (var.device, var.dtype.base_dtype)
        coefficients = (apply_state or {}).get(key) or self._fallback_apply_state(*key)
        dtype = _precise(key[1])
        x, g = tf.cast(var, dtype), tf.cast(grad, dtype)
        slots = {name: self.get_slot(var, name) for name in self._slot_order}
        no_decay, no_adaptation = self._exclusions
        weight_decay = 0.0 if _found(no_decay, var) else coefficients["weight_decay"]
        adapted = not _found(no_decay if no_adaptation is None else no_adaptation, var)
        new_x = self._step(x, g, slots, coefficients, weight_decay, adapted)
        return var.assign(tf.cast(new_x, var.dtype), use_locking=self._use_locking)

    def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
        grad = tf.cast(grad, _precise(var.dtype.base_dtype))
        # scatter_nd sums repeated indices. Moments, norms and decay need every row in any case.
        dense = tf.scatter_nd(indices[:, tf.newaxis], grad, tf.shape(var, out_type=indices.dtype))
        return self._resource_apply_dense(dense, var, apply_state)

    _resource_apply_sparse_duplicate_indices = _resource_apply_sparse


@_register
class LAMB(_Layerwise):
    """LAMB as a tf_keras optimizer, with slots `m` and `v`.

        m ← β₁ m + (1 - β₁) g         m̂ = m / (1 - β₁ᵗ)
        v ← β₂ v + (1 - β₂) g²        v̂ = v / (1 - β₂ᵗ)
        u = m̂ / (√v̂ + ε) + λ x
        x ← x - η · ‖x‖/‖u‖ · u       (ratio 1 where a norm is 0 or the variable is excluded)

    Gradients may be dense or `tf.IndexedSlices`, whose repeated indices are summed; both give the
    same result. Under a `tf.distribute` strategy, gradients are summed over replicas, then clipped,
    then applied, as in every tf_keras optimizer.

    Args:
        learning_rate: η: a float, a tensor, a function without arguments, a schedule of tf_keras,
            or one of `lamb_tf.schedules`.
        beta_1: β₁ in [0, 1).
        beta_2: β₂ in [0, 1).
        epsilon: ε ≥ 0, outside the root.
        weight_decay: λ ≥ 0, inside the direction u, so that it is part of the norm: a float, a
            function without arguments or a schedule. None is 0. (The old names `weight_decay_rate`
            and `lr` are accepted with a warning.)
        exclude_from_weight_decay: `lamb_tf.biases_and_norms`, or a list of regular expressions,
            searched for in the names of variables; λ = 0 for each variable that matches.
        exclude_from_layer_adaptation: Likewise; the ratio is 1 for each variable that matches.
            `None`: as for the decay. `[]`: no variable.
        name: Prefix of the names of the state.
        **kwargs: `clipnorm`, `clipvalue`, `global_clipnorm`, `decay`, as in every tf_keras
            optimizer.

    Raises:
        TypeError: an exclusion is neither a pattern nor `lamb_tf.biases_and_norms`.
        ValueError: a value is out of range; on the first step, if a list of exclusions matches no
            variable (a warning if the optimizer is restored from a config).

    Reference: LAMB, https://arxiv.org/abs/1904.00962.

    >>> from lamb_tf import biases_and_norms
    >>> model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(3,))])
    >>> optimizer = LAMB(0.01, weight_decay=0.01, exclude_from_weight_decay=biases_and_norms)
    >>> model.compile(optimizer, "mse")
    """

    _slot_order = ("m", "v")
    _checks: ClassVar = {"epsilon": not_negative}

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: WeightDecay = 0.0,
        exclude_from_weight_decay: _Item | Sequence[_Item] | None = None,
        exclude_from_layer_adaptation: _Item | Sequence[_Item] | None = None,
        name: str = "LAMB",
        **kwargs: object,
    ):
        exclusions = exclude_from_weight_decay, exclude_from_layer_adaptation
        super().__init__(learning_rate, weight_decay, exclusions, name, **kwargs)
        self._set_hyper("beta_1", _checked(beta_1, "beta_1", fraction))
        self._set_hyper("beta_2", _checked(beta_2, "beta_2", fraction))
        self.epsilon = epsilon

    def _prepare_local(self, var_device, var_dtype, apply_state):
        super()._prepare_local(var_device, var_dtype, apply_state)
        coefficients = apply_state[(var_device, var_dtype)]
        step = tf.cast(self.iterations + 1, _precise(var_dtype))
        for name in ("beta_1", "beta_2"):
            beta = self._get_hyper(name, step.dtype)
            coefficients[name] = beta
            coefficients[f"one_minus_{name}_power"] = 1 - tf.pow(beta, step)

    def _step(self, x, g, slots, c, weight_decay, adapted):
        beta_1, beta_2 = c["beta_1"], c["beta_2"]
        m = _assign(slots["m"], beta_1 * slots["m"] + (1 - beta_1) * g)
        v = _assign(slots["v"], beta_2 * slots["v"] + (1 - beta_2) * tf.square(g))
        m_hat = m / c["one_minus_beta_1_power"]
        v_hat = v / c["one_minus_beta_2_power"]
        u = tf.math.divide_no_nan(m_hat, tf.sqrt(v_hat) + self.epsilon) + weight_decay * x
        ratio = _trust_ratio(tf.norm(x), tf.norm(u)) if adapted else 1.0
        return x - c["learning_rate"] * ratio * u

    def get_config(self) -> dict[str, object]:
        return {
            **super().get_config(),
            "beta_1": self._serialize_hyperparameter("beta_1"),
            "beta_2": self._serialize_hyperparameter("beta_2"),
        }


@_register
class LARS(_Layerwise):
    """LARS as a tf_keras optimizer, with the slot `momentum`.

    Equations and arguments are those of `lamb_tf.LARS`, with φ(z) = z; rate, decay, exclusions and
    errors are those of `LAMB` above.

    Args:
        momentum: μ in [0, 1).
        ratio: "before_momentum", "decayed_before_momentum" or "after_momentum".
        trust_coefficient: η. None: 0.001 before the momentum, 1 after it.
        epsilon: ε ≥ 0.
        nesterov: Whether to use Nesterov's momentum.

    Reference: LARS, https://arxiv.org/abs/1708.03888.

    >>> from lamb_tf import biases_and_norms
    >>> optimizer = LARS(
    ...     10.0, weight_decay=1e-4, exclude_from_weight_decay=biases_and_norms
    ... )
    """

    _slot_order = ("momentum",)
    _checks: ClassVar = {
        "momentum": fraction,
        "ratio": one_of("before_momentum", "decayed_before_momentum", "after_momentum"),
        "trust_coefficient": optional(not_negative),
        "epsilon": not_negative,
        "nesterov": boolean,
    }
    trust_coefficient: Any = Dependent(lambda self: 1.0 if self._averages else 0.001)

    def __init__(
        self,
        learning_rate: LearningRate = 0.1,
        momentum: float = 0.9,
        weight_decay: WeightDecay = 0.0,
        exclude_from_weight_decay: _Item | Sequence[_Item] | None = None,
        exclude_from_layer_adaptation: _Item | Sequence[_Item] | None = None,
        *,
        ratio: str = "before_momentum",
        trust_coefficient: float | None = None,
        epsilon: float = 0.0,
        nesterov: bool = False,
        name: str = "LARS",
        **kwargs: object,
    ):
        exclusions = exclude_from_weight_decay, exclude_from_layer_adaptation
        super().__init__(learning_rate, weight_decay, exclusions, name, **kwargs)
        self.momentum = momentum
        self.ratio = ratio
        self.trust_coefficient = trust_coefficient
        self.epsilon = epsilon
        self.nesterov = nesterov

    @property
    def _averages(self):
        return self.ratio == "after_momentum"

    def _step(self, x, g, slots, c, weight_decay, adapted):
        mu, slot = self.momentum, slots["momentum"]
        decayed = g + weight_decay * x
        if not self._averages:
            sum_of_norms = tf.norm(g) + weight_decay * tf.norm(x)
            norm = sum_of_norms if self.ratio == "before_momentum" else tf.norm(decayed)
            ratio = self._ratio(x, norm, adapted)
            step = c["learning_rate"] * ratio * decayed
            v = _assign(slot, mu * slot + step)
            return x - (mu * v + step if self.nesterov else v)
        m = _assign(slot, mu * slot + (1 - mu) * decayed)
        u = mu * m + (1 - mu) * decayed if self.nesterov else m
        return x - c["learning_rate"] * self._ratio(x, tf.norm(u), adapted) * u

    def _ratio(self, x, update_norm, adapted):
        if not adapted:
            return 1.0
        return _trust_ratio(tf.norm(x), update_norm + self.epsilon, self.trust_coefficient)


def load_model(path: str | os.PathLike, custom_objects: dict | None = None) -> tf_keras.Model:
    """Loads a tf_keras model saved with Addons' `LAMB` or this one, ready to continue training.

    It adds to `tf_keras.models.load_model`: `Addons>LAMB` becomes this `LAMB`, whether Addons is
    installed or not; `.h5` files of mixed_float16, in which tf_keras saves the optimizer's class
    without its package, are read; and the optimizer's slots are restored from a SavedModel too.

    Args:
        path: An `.h5` file or the directory of a SavedModel.
        custom_objects: Names and classes of other custom objects in the model.

    Returns:
        The compiled model, whose optimizer has its step count and slots.

    Raises:
        OSError: there is no model at `path`.
        ValueError: a `.keras` file, in which tf_keras does not save the state of LAMB.
    """
    if str(path).endswith(".keras"):
        raise ValueError(
            "`path` must be an .h5 file or a SavedModel, since tf_keras leaves the state of LAMB "
            f"out of .keras files; got {path}. tf_keras.models.load_model reads the weights."
        )
    registered = tf_keras.utils.get_custom_objects()
    before = dict(registered)
    registered["Addons>LAMB"] = LAMB  # here: it has precedence over custom_objects
    for optimizer_class in (LAMB, LARS):
        if optimizer_class.__name__ not in (custom_objects or {}):
            registered.setdefault(optimizer_class.__name__, optimizer_class)
    try:
        model = tf_keras.models.load_model(path, custom_objects=custom_objects)
    finally:
        registered.clear()
        registered.update(before)
    if os.path.isdir(path):  # a checkpoint of the whole model, which may hold metrics too
        model.load_weights(os.path.join(path, "variables", "variables")).expect_partial()
    return model


@_register
class _Keras3Schedule(tf_keras.optimizers.schedules.LearningRateSchedule):
    """A schedule of Keras 3, such as those of `lamb_tf.schedules`, wrapped for tf_keras."""

    def __init__(self, schedule):
        self.schedule = schedule

    def __call__(self, step):
        return self.schedule(step)

    def get_config(self):
        import keras  # Keras 3: only needed for its schedules

        return {"schedule": keras.optimizers.schedules.serialize(self.schedule)}

    @classmethod
    def from_config(cls, config):
        import keras

        return cls(keras.optimizers.schedules.deserialize(config["schedule"]))


def _schedule(value):
    """`value`; a schedule of Keras 3 is wrapped for tf_keras."""
    if isinstance(value, _Schedule) or not hasattr(value, "get_config"):
        return value
    return _Keras3Schedule(value)


def _restored_schedule(config, custom_objects):
    # tf_keras reads an .h5 file with its older loader, which does not know registered names.
    if config["class_name"].endswith(_Keras3Schedule.__name__):
        return _Keras3Schedule.from_config(config["config"])
    return tf_keras.optimizers.schedules.deserialize(config, custom_objects)


def _precise(dtype):
    """The type to compute in for a variable of this type."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def _assign(slot, value):
    return tf.convert_to_tensor(slot.assign(value))


def _trust_ratio(weight_norm, update_norm, trust_coefficient=1.0):
    both = tf.logical_and(weight_norm > 0, update_norm > 0)
    ratio = trust_coefficient * weight_norm / update_norm
    return tf.where(both, ratio, tf.ones_like(weight_norm))


def _found(exclusions, variable):
    return any(_selection.matches(item, variable) for item in exclusions or ())


def _patterns(value, argument):
    """The exclusions as a list, checked; None stays None."""
    items = None if value is None else _selection.as_list(value)
    for item in items or ():
        if isinstance(item, str):
            _selection.pattern(item, argument)
        elif item is not biases_and_norms:
            raise TypeError(
                f"`{argument}` must hold lamb_tf.biases_and_norms or regular expressions; got "
                f"{item!r} of type {type(item).__name__}."
            )
    return items


def _to_be_saved(exclusions):
    """The exclusions as JSON: `biases_and_norms` by its name."""
    return exclusions and [_BY_NAME if e is biases_and_norms else e for e in exclusions]


def _restored(exclusions):
    if not isinstance(exclusions, (list, tuple)):
        return exclusions
    return [biases_and_norms if item == _BY_NAME else item for item in exclusions]


def _checked(value, argument, check=not_negative):
    """The value, checked unless it is a tensor, function or schedule."""
    is_plain = value is None or isinstance(value, (str, numbers.Real))
    return check(value, argument) if is_plain else value
