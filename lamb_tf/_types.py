"""Types of the arguments that users give, and of tensors of any backend."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypedDict

import keras

# `tf.Tensor`, `jax.Array` or `torch.Tensor`, which share no class, or a value to convert to one.
Tensor: TypeAlias = Any
Variables: TypeAlias = Sequence[keras.Variable]
Slots: TypeAlias = dict[str, Tensor]


class Schedule(Protocol):
    """A `keras.optimizers.schedules.LearningRateSchedule`.

    A protocol, as is `Scalar`: Keras is untyped, and a union with one of its classes, `Any` to type
    checkers, would accept text.
    """

    def __call__(self, step: Any) -> Any: ...

    def get_config(self) -> dict: ...


class Scalar(Protocol):
    """A `keras.Variable` that holds a number."""

    def assign(self, value: Any) -> Any: ...


LearningRate: TypeAlias = float | Schedule | Callable[[], float] | Scalar
WeightDecay: TypeAlias = float | Schedule | None
Bounds: TypeAlias = tuple[float, float] | None
Exclusion: TypeAlias = str | keras.Variable | Callable[[keras.Variable], bool]
Exclusions: TypeAlias = Exclusion | Iterable[Exclusion] | None
# Variables, and the factor on their learning rate.
Rules: TypeAlias = Mapping[Exclusion, float] | Sequence[tuple[Exclusion, float]] | None
# Regular expressions, and the axes that number the slices of the variables that they match.
SliceRules: TypeAlias = Mapping[str, int | Sequence[int]] | None


class Options(TypedDict, total=False):
    """Keyword arguments that all optimizers of lamb_tf take; `lamb_tf.LAMB` describes them."""

    trust_ratio_bounds: Bounds
    master_weights: bool
    learning_rate_multipliers: Rules
    shard_state: str | None
    trust_ratio_axes: SliceRules
    name: str | None
    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    use_ema: bool
    ema_momentum: float
    ema_overwrite_frequency: int | None
    loss_scale_factor: float | None
    gradient_accumulation_steps: int | None
