"""Hyperparameters: validation, freezing after build, serialization.

`_checks.py` has the checks of plain values.
"""

import contextlib
import types
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Self

import keras

from lamb_tf import _replicas, _selection, _slices
from lamb_tf._checks import (
    LARGEST,
    boolean,
    bounds,
    count,
    int_at_least_2,
    name_or_none,
    not_negative,
    number,
    positive_or_none,
)
from lamb_tf._types import Exclusions, LearningRate, WeightDecay

EXCLUSIONS = "exclude_from_weight_decay", "exclude_from_layer_adaptation"
OTHER_NAMES = {  # of arguments, in other libraries or older ones
    "lr": "learning_rate",
    "weight_decay_rate": "weight_decay",
    "eps": "epsilon",
    "max_grad_norm": "global_clipnorm",
}
CLIPS = "clipnorm", "clipvalue", "global_clipnorm"
KERAS_OPTIONS = ("ema_momentum", "ema_overwrite_frequency")  # Keras checks them, in its constructor


def decay(value: Any, argument: str) -> WeightDecay:
    """A weight decay: a finite number, a schedule, or None, which means 0."""
    if isinstance(value, keras.optimizers.schedules.LearningRateSchedule):
        return value
    kinds = "0 or None for none, or a keras.optimizers.schedules.LearningRateSchedule"
    return _finite(0.0 if value is None else value, argument, kinds)


def rate(value: Any, argument: str) -> LearningRate:
    """A learning rate as Keras expects it, which wraps the number in a variable."""
    if callable(value):
        return value
    return _finite(value, argument, "a schedule, a callable without arguments or a variable")


def _finite(value, argument, kinds):
    with contextlib.suppress(ValueError):
        if not_negative(value, argument) <= LARGEST:
            return float(value)
    raise ValueError(f"`{argument}` must be a finite number of at least 0, {kinds}; got {value!r}.")


def keras_variable(value: Any, argument: str) -> None:
    """Raises TypeError for a variable that is not Keras' own, which Keras would not save."""
    if not isinstance(value, keras.Variable):
        raise TypeError(
            f"`{argument}` must be a number, schedule, callable or keras.Variable; got a "
            f"{type(value).__name__}. Write keras.Variable(value), which is saved with the "
            "optimizer."
        )


class Configured(keras.optimizers.Optimizer):
    """A Keras optimizer whose arguments are checked, fixed when it is built, and saved.

    A subclass adds its own to `hyperparameters`.
    """

    hyperparameters: ClassVar[dict[str, Callable]] = {  # the check of each
        "weight_decay": decay,
        "trust_ratio_bounds": bounds,
        "master_weights": boolean,
        "shard_state": name_or_none,
        "trust_ratio_axes": _slices.rules,
        "clipnorm": positive_or_none,
        "clipvalue": positive_or_none,
        "global_clipnorm": positive_or_none,
        "loss_scale_factor": positive_or_none,
        "gradient_accumulation_steps": int_at_least_2,
        "use_ema": boolean,
    }

    def __setattr__(self, name: str, value: object) -> None:
        """Checks a hyperparameter; refuses changes that a compiled step would not see."""
        check = self.hyperparameters.get(name)
        if check:
            value = check(value, name)
        settled = vars(self).get("_is_settled")
        if settled and (check or name in KERAS_OPTIONS) and value != getattr(self, name):
            raise AttributeError(
                f"`{name}` must stay as it is once the optimizer is built, because a compiled step "
                f"would not see a change; got {value!r}. Make a new {type(self).__name__}. For a "
                "weight decay that changes, pass a schedule."
            )
        if name in (*EXCLUSIONS, _selection.MULTIPLIERS):
            raise AttributeError(
                f"`{name}` must be passed to the constructor of {type(self).__name__}; got an "
                "assignment. Make a new optimizer."
            )
        if name == "learning_rate":
            self._check_new_rate(value)
        super().__setattr__(name, value)

    def _check_new_rate(self, value):
        if callable(value) and vars(self).get("_has_stepped"):
            raise AttributeError(
                f"`learning_rate` must be a number after the first step; got {value!r}. Assign a "
                "schedule or a callable before the first step."
            )
        old = vars(self).get("_learning_rate")  # Keras itself rejects assignment over a schedule
        is_schedule = isinstance(old, keras.optimizers.schedules.LearningRateSchedule)
        is_function = callable(old) and not is_schedule and not _selection.is_variable(old)
        if is_function and not callable(value):
            raise AttributeError(
                "`learning_rate` must stay a callable, since the optimizer was given one; got "
                f"{value!r}. Let the callable read a keras.Variable, and assign to that."
            )
        if _replicas.is_known(value):
            rate(value, "learning_rate")

    def _check_together(self):
        """Checks combinations of arguments, as Keras' constructor does: they may have changed."""
        clips = [name for name in CLIPS if getattr(self, name) is not None]
        if len(clips) > 1:
            raise ValueError(
                f"Only one of {', '.join(CLIPS)} may be set; got {', '.join(clips)}. Set the "
                "others to None."
            )
        if self.use_ema:
            if not 0 <= number(self.ema_momentum, "ema_momentum") <= 1:
                raise ValueError(
                    f"`ema_momentum` must be in [0, 1]; got {self.ema_momentum!r}. 0.99 is usual."
                )
            if self.ema_overwrite_frequency is not None:
                count(self.ema_overwrite_frequency, "ema_overwrite_frequency")

    def _set_exclusions(self, *exclusions):
        # As lists: an iterator can be read only once.
        exclusions = [None if each is None else _selection.as_list(each) for each in exclusions]
        for value, argument in zip(exclusions, EXCLUSIONS):
            _selection.check(value, argument)
        # Keras would track variables in a plain dict as optimizer state.
        self._exclusions = types.MappingProxyType(dict(zip(EXCLUSIONS, exclusions)))

    def exclude_from_weight_decay(
        self, var_list: Exclusions = None, var_names: Iterable[str] | str | None = None
    ) -> None:
        """Excludes variables and patterns, as this method of every Keras optimizer.

        It replaces the argument of the same name, and must be called before the first step.
        """
        if self.built:
            raise ValueError(
                "`exclude_from_weight_decay` must be called before the optimizer is built; got a "
                "built one. Call it earlier, or pass the exclusions to the constructor."
            )
        not_adapted = self._exclusions["exclude_from_layer_adaptation"]
        excluded = [*_selection.as_list(var_list), *_selection.as_list(var_names)]
        self._set_exclusions(excluded, not_adapted)

    def get_config(self) -> dict[str, object]:
        """The arguments as they can be saved; `_selection` describes the exclusions."""
        config = super().get_config()
        for name in self.hyperparameters:
            value = vars(self)[name]  # as given, where it is `Dependent`
            config[name] = keras.saving.serialize_keras_object(value) if callable(value) else value
        variables = self.trainable_variables if self.built else None
        for argument, exclusions in self._exclusions.items():
            config[argument] = _selection.to_be_saved(exclusions, variables)
        config[_selection.MULTIPLIERS] = self._multipliers.to_be_saved(variables)
        return config

    @classmethod
    def from_config(cls, config: dict, custom_objects: dict | None = None) -> Self:
        """The optimizer that `get_config` described.

        Exclusions that match no variable are then a warning, not an error: the variables that they
        matched may be frozen.
        """
        config = dict(config)
        for argument in ("learning_rate", "weight_decay"):
            if isinstance(config.get(argument), dict):
                config[argument] = keras.saving.deserialize_keras_object(
                    config[argument], custom_objects=custom_objects
                )
        for argument in EXCLUSIONS:
            if argument in config:
                config[argument] = _selection.restored(config[argument], argument, custom_objects)
        if _selection.MULTIPLIERS in config:  # a subclass may not have the argument
            saved = config[_selection.MULTIPLIERS]
            config[_selection.MULTIPLIERS] = _selection.restored_multipliers(saved, custom_objects)
        optimizer = cls(**config)
        optimizer._is_restored = True
        return optimizer
