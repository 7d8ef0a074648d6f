"""Dynamic loss scaling for float16, with the same result on any number of replicas."""

from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING

import keras
from keras import ops

from lamb_tf import _hyperparameters, _replicas
from lamb_tf._layerwise import LayerwiseOptimizer
from lamb_tf._selection import is_overwritten
from lamb_tf._types import Tensor, Variables

INITIAL_SCALE, GROWTH_STEPS = 2.0**15, 2000
BOUNDS = 1.0, 2.0**24  # of the scale
_SAVED = "step_counter", "dynamic_scale"
_SUCCESSORS = {
    "get_scaled_loss": "Use `scale_loss(loss)`.",
    "get_unscaled_gradients": "Pass the gradients of the scaled loss to `apply`: it unscales them.",
    "loss_scale": "Read the variable `dynamic_scale`.",
}


def next_scale(
    scale: Tensor,
    good_steps: Tensor,
    skipped: Tensor,
    growth_steps: int = GROWTH_STEPS,
    bounds: tuple[float, float] = BOUNDS,
) -> tuple[Tensor, Tensor]:
    """The loss scale after an update: halved if it was skipped, doubled after many good ones.

    Args:
        scale: The scale of this update, a float32 scalar.
        good_steps: Number of good updates in a row, this one included; an integer scalar.
        skipped: Whether this update was skipped, a boolean scalar.
        growth_steps: Number of good updates in a row after which the scale is doubled.
        bounds: The least and the largest scale.

    Returns:
        The next scale, and the new count of consecutive finite steps.
    """
    good = ops.where(skipped, 0, good_steps)
    doubles = ops.greater_equal(good, growth_steps)
    grown = ops.where(doubles, 2.0 * scale, scale)
    scale = ops.where(skipped, 0.5 * scale, grown)
    return ops.clip(scale, *bounds), ops.where(doubles, 0, good)


@keras.saving.register_keras_serializable(package="lamb_tf")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """Wraps `lamb_tf.LAMB` or `LARS` and adapts the scale of the loss.

    An update is skipped if a gradient of any replica is not finite; the scale is then halved. It is
    doubled after `dynamic_growth_steps` good updates in a row. The scale stays within [1, 2²⁴].
    `keras.optimizers.LossScaleOptimizer` differs in two ways. It checks the gradients of one
    replica only: after an overflow on another, the weights of LAMB and LARS stay unchanged too, but
    the scale is not halved. And `skipped_updates` does not count the updates that it skips.

    Under the policy `mixed_float16`, `compile` wraps the optimizer in Keras' class unless it is
    wrapped in this one.

    Args:
        inner_optimizer: A `lamb_tf.LAMB` or `LARS`, without `loss_scale_factor`.
        initial_scale: The first scale.
        dynamic_growth_steps: Number of good updates after which the scale is doubled.
        name: The name of the optimizer.

    Raises:
        TypeError: `inner_optimizer` is another optimizer.
        ValueError: `inner_optimizer` has a `loss_scale_factor`; the scale is outside [1, 2²⁴]; the
            number of steps is not a whole number of at least 1.
        AttributeError: `initial_scale` or `dynamic_growth_steps` is assigned after the optimizer is
            built.

    Example:

    >>> optimizer = lamb_tf.LossScaleOptimizer(lamb_tf.LAMB(1e-3))
    >>> model.compile(optimizer, loss="mse")
    """

    def __init__(
        self,
        inner_optimizer: LayerwiseOptimizer,
        initial_scale: float = INITIAL_SCALE,
        dynamic_growth_steps: int = GROWTH_STEPS,
        name: str | None = None,
        **kwargs: object,
    ):
        if not isinstance(inner_optimizer, LayerwiseOptimizer):
            raise TypeError(
                "`inner_optimizer` must be an optimizer of lamb_tf; got "
                f"{type(inner_optimizer).__name__}. Use keras.optimizers.LossScaleOptimizer for it."
            )
        _check_unscaled(inner_optimizer)
        super().__init__(inner_optimizer, initial_scale, dynamic_growth_steps, name=name, **kwargs)

    if not TYPE_CHECKING:  # a type checker would believe that every attribute exists

        def __getattr__(self, name):
            """Names the successors of the methods that tf_keras' LossScaleOptimizer has."""
            if name in _SUCCESSORS:
                raise AttributeError(
                    f"`{name}` is of tf_keras' LossScaleOptimizer. {_SUCCESSORS[name]}"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        """Checks the arguments; refuses changes that a compiled step would not see."""
        check = {"initial_scale": _scale, "dynamic_growth_steps": _hyperparameters.count}.get(name)
        if check:
            value = check(value, name)
            if vars(self).get("built") and value != getattr(self, name):
                raise AttributeError(
                    f"`{name}` must stay as it is once the optimizer is built, because a compiled "
                    f"step would not see a change; got {value!r}. Make a new LossScaleOptimizer."
                )
        super().__setattr__(name, value)

    def build(self, var_list: Variables | None) -> None:
        """Creates the scale and the state of the inner optimizer."""
        if not self.built:
            _check_unscaled(self.inner_optimizer)  # it may have been assigned since
            with _replicas.strategy_of(var_list or []):
                # First, because it may refuse: Keras would have added the scale by then.
                self.inner_optimizer.build(var_list)
                super().build(var_list)
            _replicas.note_trainable(self, self.inner_optimizer.trainable_variables)

    def save_own_variables(self, store: MutableMapping) -> None:
        """Writes the scale, if the optimizer is built; Keras saves the inner optimizer."""
        if self.built:
            for name in _SAVED:
                store[name] = _replicas.to_numpy(getattr(self, name))

    def load_own_variables(self, store: MutableMapping) -> None:
        """Reads the scale; if it was saved before the first step, the arguments' scale is used."""
        if self.built and "dynamic_scale" in store.keys():  # noqa: SIM118, Keras' store has no `in`
            for name in _SAVED:
                getattr(self, name).assign(store[name])

    @_replicas.not_converted
    def apply(
        self,
        grads: Sequence[Tensor | None],
        trainable_variables: Variables | None = None,
        skip_gradients_aggregation: bool = False,
    ) -> None:
        """Applies the gradients of the scaled loss; as `lamb_tf.LAMB.apply`."""
        if not self.built and trainable_variables is None:
            raise ValueError(
                "`trainable_variables` must be given in the first call of `apply`; got None. Call "
                "`apply(grads, variables)`."
            )
        self.build(trainable_variables)
        inner = self.inner_optimizer
        before = inner.iterations + 0, inner.skipped_updates + 0
        variables = trainable_variables or inner.trainable_variables
        # The gradient that overwrites a scale of float8 is not scaled with the loss.
        kept = [is_overwritten(v) for v in variables] + [False] * len(grads)
        unscaled = [
            g if g is None or is_kept else ops.divide(g, self.dynamic_scale)
            for g, is_kept in zip(grads, kept)
        ]
        inner.apply(unscaled, trainable_variables, skip_gradients_aggregation)
        _replicas.merge_replicas(self._adapt, *before)

    # Keras' class separates the branches of its `apply` for JAX; ours has none.
    stateless_apply = keras.optimizers.Optimizer.stateless_apply

    def _adapt(self, made_before, skipped_before):
        """Halves or doubles the scale, once for all replicas."""
        inner, counter = self.inner_optimizer, self.step_counter
        made = ops.greater(inner.iterations, _replicas.first_replica(made_before))
        skipped = ops.greater(inner.skipped_updates, _replicas.first_replica(skipped_before))
        good_steps = counter + ops.cast(made, counter.dtype)
        scale = ops.convert_to_tensor(self.dynamic_scale)
        scale, good_steps = next_scale(scale, good_steps, skipped, self.dynamic_growth_steps)
        counter.assign(good_steps)
        self.dynamic_scale.assign(scale)


def _check_unscaled(inner):
    if inner.loss_scale_factor is not None:
        raise ValueError(
            "`loss_scale_factor` of `inner_optimizer` must be None; got "
            f"{inner.loss_scale_factor}. Leave it out: the gradients would be unscaled twice."
        )


def _scale(value, argument):
    low, high = BOUNDS
    if not low <= _hyperparameters.number(value, argument) <= high:
        raise ValueError(f"`{argument}` must be in [{low:g}, {high:g}]; got {value!r}.")
    return float(value)
