"""Names of the types that several modules take: what users give, and tensors of any backend."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import keras

# `tf.Tensor`, `jax.Array` or `torch.Tensor`, which share no class; or what becomes one.
Tensor: TypeAlias = Any
Variables: TypeAlias = Sequence[keras.Variable]
Slots: TypeAlias = dict[str, Tensor]

Schedule: TypeAlias = keras.optimizers.schedules.LearningRateSchedule
LearningRate: TypeAlias = float | Schedule | Callable[[], float] | keras.Variable
WeightDecay: TypeAlias = float | Schedule | None
Bounds: TypeAlias = tuple[float, float] | None
Exclusion: TypeAlias = str | keras.Variable | Callable[[keras.Variable], bool]
Exclusions: TypeAlias = Exclusion | Iterable[Exclusion] | None
# What names variables, and the factor on their learning rate.
Rules: TypeAlias = Mapping[Exclusion, float] | Sequence[tuple[Exclusion, float]] | None
