"""Learning-rate schedules for large batches: warm-up, decay, re-warm-up, LEGW, scaling rules.

A schedule is a function of the number of updates made so far: the first update uses step 0. Each
class is a `keras.optimizers.schedules.LearningRateSchedule` written in `keras.ops`: it runs on
every backend, inside graphs and XLA, and is saved with its optimizer. `step` may also be an array,
for example to plot a schedule.

Steps are subtracted as integers, and only their differences become float32. So the rate is correct
to float32 round-off below 2^31 steps, also near the end of a long decay.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Self

import keras
from keras import ops

from lamb_tf._checks import LARGEST, number_that, one_of
from lamb_tf._types import Schedule, Tensor

_MOST = 2**31 - 1  # steps

_register = keras.saving.register_keras_serializable(package="lamb_tf")


def _steps(value, argument, least=0):
    try:
        steps = operator.index(value)
    except TypeError:
        raise TypeError(
            f"`{argument}` must be a whole number of steps; got {value!r}. Write int(...) or "
            "round(...)."
        ) from None
    if not least <= steps <= _MOST:
        raise ValueError(f"`{argument}` must be at least {least} and below 2^31; got {steps}.")
    return steps


def _boundaries(values, argument):
    steps = [_steps(value, argument, 1) for value in values]
    if not steps or steps != sorted(set(steps)):
        raise ValueError(f"`{argument}` must be rising steps, at least one; got {steps}.")
    return steps


_positive_steps = functools.partial(_steps, least=1)
_rate = number_that(lambda x: 0 <= x <= LARGEST, "finite (in float32) and ≥ 0", TypeError)
_positive = number_that(lambda x: 0 < x < math.inf, "positive and finite", TypeError)
_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "peak_learning_rate": _rate,
    "end_learning_rate": _rate,
    "warmup_steps": _steps,
    "start_warmup_step": functools.partial(_steps, least=-_MOST),
    "total_steps": _positive_steps,
    "decay_steps": _positive_steps,
    "power": number_that(
        lambda x: 0 < x <= LARGEST,
        "positive and finite (WarmupConstant has a constant rate)",
        TypeError,
    ),
    "decay_rate": number_that(lambda x: 0 < x <= 1, "in (0, 1]", TypeError),
    "decay_from": one_of("warmup_end", "start"),
    "staircase": lambda value, _: bool(value),
    "boundaries": _boundaries,
}


class _Warmup(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up; the subclass, a dataclass of its arguments, has the rate after it.

        rate(t) = peak · max(0, t - s) / warmup_steps     for t < s + warmup_steps

    with s = `start_warmup_step`.
    """

    peak_learning_rate: float
    warmup_steps: int
    start_warmup_step: int

    def __post_init__(self):
        for name, value in self.get_config().items():
            setattr(self, name, _CHECKS[name](value, name))
        _steps(self.warmup_end, "start_warmup_step + warmup_steps")

    @property
    def warmup_end(self) -> int:
        """The first step after the warm-up."""
        return max(0, self.start_warmup_step + self.warmup_steps)

    def __call__(self, step: int | Tensor) -> Tensor:
        step = ops.convert_to_tensor(step)
        decayed = self._decayed(step)
        if self.warmup_end == 0:
            return decayed
        warmed = self.peak_learning_rate * _share(
            step - self.start_warmup_step, max(1, self.warmup_steps)
        )
        return ops.where(step < self.warmup_end, warmed, decayed)

    def get_config(self) -> dict[str, object]:
        """The arguments by their names."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


class _WarmupToTotal(_Warmup):
    """A warm-up and a decay that reaches `end_learning_rate` at `total_steps`."""

    total_steps: int
    end_learning_rate: float
    decay_from: str

    def __post_init__(self):
        super().__post_init__()
        if self.warmup_end > self.total_steps:
            raise ValueError(
                f"The warm-up must end by `total_steps`; got its end at step {self.warmup_end}, "
                f"after total_steps={self.total_steps}. Shorten the warm-up or train longer."
            )

    def _decayed(self, step):
        first = self.warmup_end if self.decay_from == "warmup_end" else 0
        remaining = _share(self.total_steps - step, max(1, self.total_steps - first), most=1.0)
        span = self.peak_learning_rate - self.end_learning_rate
        return self.end_learning_rate + span * self._factor(remaining)


@_register
@dataclasses.dataclass(eq=False)
class WarmupPolynomialDecay(_WarmupToTotal):
    """Linear warm-up, then polynomial decay to `end_learning_rate` at `total_steps`.

    With W the end of the warm-up, T = `total_steps`, p = `power`, the rate after the warm-up is

        decay_from="warmup_end":  end + (peak - end) · ((T - t) / (T - W))^p
        decay_from="start":       end + (peak - end) · (1 - t / T)^p

    The first is continuous. The second is Google's BERT code: the decay runs from step 0, so the
    rate *drops* from the peak to peak · (1 - W/T)^p when the warm-up ends.

    Args:
        peak_learning_rate: The rate at which the warm-up ends.
        total_steps: The step at which the decay ends; later steps keep `end_learning_rate`.
        warmup_steps: Length of the linear warm-up, in updates. 0: none.
        end_learning_rate: The rate at `total_steps`.
        power: The exponent p > 0. 1 is linear (LAMB's paper), 2 is LARS's, 0.5 NVIDIA's.
        decay_from: `"warmup_end"` or `"start"`.
        start_warmup_step: The step at which the warm-up starts from 0. A positive value delays it,
            with a rate of 0 before. With a negative value the first update starts part of the way
            up, as in MLPerf.

    Raises:
        TypeError: a step count is not an integer, or a rate is not a number.
        ValueError: a negative rate or length, 2^31 steps or more, `power` ≤ 0, an unknown
            `decay_from`, or a warm-up that ends after `total_steps`.

    Reference: LAMB, https://arxiv.org/abs/1904.00962, section 4.

    Examples:
        >>> schedule = WarmupPolynomialDecay(5e-3, total_steps=15_625, warmup_steps=3_125)
        >>> [round(float(schedule(step)), 6) for step in (0, 1_250, 3_125, 9_375, 15_625)]
        [0.0, 0.002, 0.005, 0.0025, 0.0]
    """

    peak_learning_rate: float
    total_steps: int
    warmup_steps: int = 0
    end_learning_rate: float = 0.0
    power: float = 1.0
    decay_from: str = "warmup_end"
    start_warmup_step: int = 0

    def _factor(self, remaining):
        return remaining**self.power


@_register
@dataclasses.dataclass(eq=False)
class WarmupCosineDecay(_WarmupToTotal):
    """Linear warm-up, then half a cosine down to `end_learning_rate` at `total_steps`.

        rate(t) = end + (peak - end) · ½ (1 + cos(π (t - W) / (T - W)))

    With `decay_from="start"`, W inside the cosine is 0. The arguments and errors are those of
    `WarmupPolynomialDecay`, without `power`.

    Examples:
        >>> schedule = WarmupCosineDecay(1.0, total_steps=100, warmup_steps=20)
        >>> [round(float(schedule(step)), 4) for step in (10, 20, 60, 100)]
        [0.5, 1.0, 0.5, 0.0]
    """

    peak_learning_rate: float
    total_steps: int
    warmup_steps: int = 0
    end_learning_rate: float = 0.0
    decay_from: str = "warmup_end"
    start_warmup_step: int = 0

    def _factor(self, remaining):
        # ½ (1 + cos(π (1 - x))) = sin²(π x / 2), which is accurate near the end.
        return ops.sin(0.5 * math.pi * remaining) ** 2


@_register
@dataclasses.dataclass(eq=False)
class WarmupExponentialDecay(_Warmup):
    """Linear warm-up, then the rate falls by `decay_rate` every `decay_steps` updates.

        rate(t) = peak · decay_rate ^ ((t - W) / decay_steps)

    Args:
        peak_learning_rate: The rate at which the warm-up ends.
        decay_steps: The number of updates in which the rate falls by the factor `decay_rate`.
        decay_rate: The factor, in (0, 1].
        warmup_steps: Length of the linear warm-up, in updates.
        staircase: Round the exponent down, so that the rate falls once per `decay_steps`.
        decay_from: `"warmup_end"`, or `"start"` for an exponent of t / decay_steps; the rate then
            drops when the warm-up ends.
        start_warmup_step: As in `WarmupPolynomialDecay`.

    Raises:
        TypeError, ValueError: as in `WarmupPolynomialDecay`; `decay_rate` outside (0, 1].

    Examples:
        >>> schedule = WarmupExponentialDecay(1.0, decay_steps=100, decay_rate=0.5, warmup_steps=10)
        >>> [float(schedule(step)) for step in (5, 10, 110, 210)]
        [0.5, 1.0, 0.5, 0.25]
    """

    peak_learning_rate: float
    decay_steps: int
    decay_rate: float
    warmup_steps: int = 0
    staircase: bool = False
    decay_from: str = "warmup_end"
    start_warmup_step: int = 0

    def _decayed(self, step):
        first = self.warmup_end if self.decay_from == "warmup_end" else 0
        past = ops.maximum(step - first, 0)
        # Complete periods are counted in integers: float32 would miscount from 3 · 10⁷ steps on.
        periods = ops.cast(past // self.decay_steps, "float32")
        if not self.staircase:
            periods = periods + _share(past % self.decay_steps, self.decay_steps)
        return self.peak_learning_rate * ops.exp(math.log(self.decay_rate) * periods)


@_register
@dataclasses.dataclass(eq=False)
class WarmupMultiStepDecay(_Warmup):
    """Linear warm-up, then the rate falls by `decay_rate` at each boundary.

        rate(t) = peak · decay_rate ^ (number of boundaries ≤ t)

    Args:
        peak_learning_rate: The rate at which the warm-up ends.
        boundaries: The steps at which the rate falls, in increasing order; counted from step 0 and
            not from the end of the warm-up.
        decay_rate: The factor, in (0, 1].
        warmup_steps: Length of the linear warm-up, in updates.
        start_warmup_step: As in `WarmupPolynomialDecay`.

    Raises:
        TypeError, ValueError: as in `WarmupPolynomialDecay`; boundaries that do not increase or are
            inside the warm-up; `decay_rate` outside (0, 1].

    Examples:
        >>> schedule = WarmupMultiStepDecay(1.0, [30, 60], decay_rate=0.1, warmup_steps=10)
        >>> [round(float(schedule(step)), 4) for step in (5, 10, 29, 30, 60)]
        [0.5, 1.0, 1.0, 0.1, 0.01]
    """

    peak_learning_rate: float
    boundaries: Sequence[int]
    decay_rate: float = 0.1
    warmup_steps: int = 0
    start_warmup_step: int = 0

    def __post_init__(self):
        super().__post_init__()
        if self.boundaries[0] < self.warmup_end:
            raise ValueError(
                f"`boundaries` must begin after the warm-up; got step {self.boundaries[0]}, inside "
                f"the warm-up, which ends at step {self.warmup_end}. They count from step 0."
            )

    def _decayed(self, step):
        rate = self.peak_learning_rate * ops.ones_like(step, dtype="float32")
        for passed, boundary in enumerate(self.boundaries, start=1):
            rate = ops.where(
                step < boundary, rate, self.peak_learning_rate * self.decay_rate**passed
            )
        return rate


@_register
@dataclasses.dataclass(eq=False)
class WarmupConstant(_Warmup):
    """Linear warm-up, then constantly `peak_learning_rate`.

    The arguments and errors are those of `WarmupPolynomialDecay` with the same names.

    Examples:
        >>> schedule = WarmupConstant(1.0, warmup_steps=10)
        >>> [float(schedule(step)) for step in (0, 5, 10, 1_000)]
        [0.0, 0.5, 1.0, 1.0]
    """

    peak_learning_rate: float
    warmup_steps: int = 0
    start_warmup_step: int = 0

    def _decayed(self, step):
        return self.peak_learning_rate * ops.ones_like(step, dtype="float32")


@_register
class JoinedSchedules(keras.optimizers.schedules.LearningRateSchedule):
    """One schedule after another, each counting from the start of its own stage: re-warm-up.

        rate(t) = schedule_k(t - S_k),   S_k = steps_0 + … + steps_(k-1),   S_k ≤ t < S_(k+1)

    After the last stage, its schedule continues.

    Args:
        stages: A list of (schedule, steps): a `LearningRateSchedule` and its number of updates.

    Raises:
        TypeError: `stages` are not pairs of a schedule and an integer.
        ValueError: there is no stage, or a stage has no steps.

    Examples:
        The LAMB paper's mixed-batch run (section 4.1), with NVIDIA's rates:

        >>> schedule = JoinedSchedules([
        ...     (WarmupPolynomialDecay(6e-3, 7_038, warmup_steps=2_001, power=0.5), 7_038),
        ...     (WarmupPolynomialDecay(4e-3, 1_563, warmup_steps=200, power=0.5), 1_563),
        ... ])
        >>> [round(float(schedule(step)), 6) for step in (2_001, 7_038, 7_138, 7_238)]
        [0.006, 0.0, 0.002, 0.004]
    """

    def __init__(self, stages: Sequence[tuple[Schedule, int]]):
        self.stages = [_stage(stage) for stage in stages]
        if not self.stages:
            raise ValueError("`stages` must have at least one (schedule, steps) pair; got none.")
        _steps(sum(n for _, n in self.stages[:-1]), "steps of all stages before the last")

    def __call__(self, step: int | Tensor) -> Tensor:
        step = ops.convert_to_tensor(step)
        rate, start = None, 0
        for schedule, steps in self.stages:
            # Clamped, so that no schedule is called with a step before its own beginning.
            here = schedule(ops.maximum(step - start, 0))
            rate = here if rate is None else ops.where(step < start, rate, here)
            start += steps
        return rate

    def get_config(self) -> dict[str, object]:
        return {
            "stages": [
                [keras.optimizers.schedules.serialize(schedule), steps]
                for schedule, steps in self.stages
            ]
        }

    @classmethod
    def from_config(cls, config: dict) -> Self:
        deserialize = keras.optimizers.schedules.deserialize
        return cls([(deserialize(schedule), steps) for schedule, steps in config["stages"]])


def sqrt_scaling(batch_size: float, base_batch_size: float, base_learning_rate: float) -> float:
    """The rate for `batch_size` under the square-root rule, base · √(batch / base batch).

    LAMB and LEGW use it.

    Raises:
        TypeError: an argument is not a number.
        ValueError: a batch size is not positive, or the rate is negative; or one of them, their
            ratio or the scaled rate is not finite (in float32).

    Examples:
        The LAMB paper's untuned BERT rates, from 32K down to 512:

        >>> [round(sqrt_scaling(batch, 32_768, 5e-3), 6) for batch in (32_768, 8_192, 512)]
        [0.005, 0.0025, 0.000625]
    """
    return _scaled(math.sqrt, batch_size, base_batch_size, base_learning_rate)


def linear_scaling(batch_size: float, base_batch_size: float, base_learning_rate: float) -> float:
    """The rate for `batch_size` under the linear rule, base · batch / base batch.

    The usual rule for SGD with momentum. The errors are those of `sqrt_scaling`.

    Examples:
        >>> linear_scaling(1024, 256, 0.1)
        0.4
    """
    return _scaled(float, batch_size, base_batch_size, base_learning_rate)


def legw(
    batch_size: int,
    base_batch_size: int,
    base_learning_rate: float,
    base_warmup_epochs: float,
    num_examples: int,
    decay: Callable[[float, int, float], Schedule] | None = None,
) -> Schedule:
    """LEGW, Linear-Epoch Gradual Warm-up: a large batch's schedule, derived from a small batch's.

    With k = batch_size / base_batch_size:

        peak rate      = √k · base_learning_rate
        warm-up epochs = k · base_warmup_epochs
        warm-up steps  = base_warmup_epochs · num_examples / base_batch_size

    The number of warm-up **steps** is the same for every batch, as are the number of epochs and the
    shape of the decay.

    Args:
        batch_size: The global batch to train with.
        base_batch_size: The global batch that was tuned.
        base_learning_rate: Its peak rate.
        base_warmup_epochs: Its warm-up, in epochs; may be a fraction.
        num_examples: Examples in an epoch.
        decay: The shape after the warm-up, a function `(peak_learning_rate, warmup_steps,
            steps_per_epoch) -> schedule`, where `steps_per_epoch` is `num_examples / batch_size`,
            not rounded. `None`: constant.

    Returns:
        The schedule that `decay` made, or a `WarmupConstant`.

    Raises:
        TypeError: an argument is not a number; `decay` is not a function, or does not return a
            schedule.
        ValueError: a batch size or `num_examples` is not positive, a warm-up or rate is negative,
            one is not finite, or the warm-up has 2^31 steps or more.

    Reference: LEGW, https://arxiv.org/abs/1901.08256.

    Examples:
        ResNet-50 at batch 8,192 from the paper's 512 (90 epochs, power 2):

        >>> def polynomial(peak, warmup_steps, steps_per_epoch):
        ...     steps = round(90 * steps_per_epoch)
        ...     return WarmupPolynomialDecay(peak, steps, warmup_steps, power=2)
        >>> schedule = legw(8_192, 512, 4.0, 10 / 64, num_examples=1_281_167, decay=polynomial)
        >>> schedule.peak_learning_rate, schedule.warmup_steps, schedule.total_steps
        (16.0, 391, 14075)
    """
    peak = sqrt_scaling(batch_size, base_batch_size, base_learning_rate)
    examples = _positive(num_examples, "num_examples")
    warmup_epochs = _rate(base_warmup_epochs, "base_warmup_epochs")
    # From the base batch: so rounding cannot make the warm-up depend on batch_size.
    warmup_steps = warmup_epochs * examples / float(base_batch_size)
    if warmup_steps > _MOST:
        raise ValueError(
            f"`warmup_steps` must be below 2^31; got {warmup_steps:g}, base_warmup_epochs · "
            "num_examples / base_batch_size. Check these."
        )
    warmup_steps = round(warmup_steps)
    if decay is None:
        return WarmupConstant(peak, warmup_steps)
    expected = "a function (peak_learning_rate, warmup_steps, steps_per_epoch) -> schedule"
    if not callable(decay) or _is_schedule(decay):
        raise TypeError(
            f"`decay` must be {expected}, or None; got {decay!r}. For example: lambda peak, "
            "warmup, per_epoch: WarmupPolynomialDecay(peak, round(90 * per_epoch), warmup)."
        )
    schedule = decay(peak, warmup_steps, examples / float(batch_size))
    if not _is_schedule(schedule):
        raise TypeError(
            f"`decay` must be {expected}; got a function that returned {schedule!r}. Return a "
            "LearningRateSchedule."
        )
    return schedule


def _scaled(rule, batch_size, base_batch_size, base_learning_rate):
    rate = _rate(base_learning_rate, "base_learning_rate")
    ratio = _positive(batch_size, "batch_size") / _positive(base_batch_size, "base_batch_size")
    if not 0 < ratio < math.inf or rate * rule(ratio) > LARGEST:
        raise ValueError(
            "The batches' ratio and the scaled learning rate must be finite (in float32); got "
            f"{batch_size} / {base_batch_size} and the rate {rate:g}. Check all three."
        )
    return rate * rule(ratio)


def _is_schedule(value):
    """Whether this is a schedule, of Keras or tf_keras; no class."""
    return callable(value) and hasattr(value, "get_config") and not isinstance(value, type)


def _share(steps, of, most=None):
    """steps / of as float32, never below 0 nor above `most`."""
    share = ops.maximum(ops.cast(steps, "float32") / of, 0.0)
    return share if most is None else ops.minimum(share, most)


def _stage(stage):
    """(schedule, steps), of a tuple or a list."""
    is_pair = isinstance(stage, (tuple, list)) and len(stage) == 2
    if not is_pair or not isinstance(stage[0], keras.optimizers.schedules.LearningRateSchedule):
        raise TypeError(
            "`stages` must be pairs of a LearningRateSchedule and its number of steps; got "
            f"{stage!r}. For a constant rate use WarmupConstant."
        )
    return stage[0], _positive_steps(stage[1], "steps")
