"""What a run is: a tuple of stages, an optimizer, a model; and what it shows on the way.

The training loop knows only this. Weights, heads and moments carry over from one stage to the
next, and each stage warms up again.
"""

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Sequence

import keras

import lamb_tf
from lamb_tf import schedules
from official_bert.model.config import BertConfig
from official_bert.tasks import Task
from official_bert.tasks.pretraining import Pretraining

MAX_STEPS = 2**31 - 1  # the loop counts in 32 bits
OPTIMIZER_TYPES = ("lamb", "adamw", "lars")
DTYPE_POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """A number of updates with one batch shape and one learning-rate schedule.

    Args:
        steps: Updates in this stage.
        batch_size: Global batch size in sequences, summed over all replicas and micro-batches.
        max_seq_length: Sequence length in tokens; must be that of the records.
        max_predictions_per_seq: Masked positions per sequence; must equal the records'. 0 for a
            task that masks nothing.
        learning_rate: Rate at the end of warm-up.
        warmup_steps: Updates of linear warm-up from zero. If more than `steps`, as by the
            official script's defaults, the stage ends while the rate still rises.
        end_learning_rate: Rate at the end of the stage.
        decay_power: Power of the polynomial decay from warm-up's end to the stage's.
        decay_from: `"warmup_end"`, or `"start"` for a decay counted from the stage's first update,
            as in Google's and NVIDIA's code: the rate drops when the warm-up ends.
        input_files: Globs of this stage's records; the run's own are used where empty.
        depth: Encoder layers of the model in this stage; `None`, the configuration's.
        growth: How layers beyond the previous stage's get their values: `"copy_top"`,
            `"copy_stack"` or `"fresh"`; see `stacking.grow`.
        trained_layers: Indices of the encoder layers that train; `None`, all of them.
        train_embeddings: Whether the embeddings, and with them the tied output matrix, train.
        carry_moments: Whether the optimizer's moments and count of updates carry over from the
            stage before; without, they start at zero.

    Raises:
        ValueError: if a value is out of range.
    """

    steps: int
    batch_size: int
    max_seq_length: int
    max_predictions_per_seq: int = 0
    learning_rate: float
    warmup_steps: int = 0
    end_learning_rate: float = 0.0
    decay_power: float = 1.0
    decay_from: str = "warmup_end"
    input_files: tuple[str, ...] = ()
    depth: int | None = None
    growth: str = "copy_top"
    trained_layers: tuple[int, ...] | None = None
    train_embeddings: bool = True
    carry_moments: bool = True

    def __post_init__(self):
        for name in ("steps", "batch_size", "max_seq_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}.")
        _require_finite(self)
        if max(self.steps, self.warmup_steps) > MAX_STEPS:
            raise ValueError(
                f"steps and warmup_steps must be at most {MAX_STEPS:,}; got {self.steps} and "
                f"{self.warmup_steps}."
            )
        self.schedule()  # checks the rest
        if not 0 <= self.max_predictions_per_seq <= self.max_seq_length:
            raise ValueError(
                f"max_predictions_per_seq must be at least 0 and not exceed max_seq_length; got "
                f"{self.max_predictions_per_seq} and {self.max_seq_length}."
            )

    @property
    def tokens(self) -> int:
        """Tokens an update, padding included."""
        return self.batch_size * self.max_seq_length

    def depth_in(self, config: BertConfig) -> int:
        """Encoder layers of the model of `config` in this stage."""
        return self.depth or config.num_hidden_layers

    def model_key(self) -> tuple:
        """Stages with equal keys train the same variables of the same model."""
        return self.depth, self.trained_layers, self.train_embeddings

    def resolve(self, patterns: Iterable[str]) -> list[str]:
        """Globs in which `{max_seq_length}` stands for this stage's."""
        return [p.replace("{max_seq_length}", str(self.max_seq_length)) for p in patterns]

    def schedule(self) -> schedules.WarmupPolynomialDecay:
        """Linear warm-up, then polynomial decay; step 0 is the stage's first update."""
        return schedules.WarmupPolynomialDecay(
            self.learning_rate,
            total_steps=max(self.steps, self.warmup_steps + 1),
            warmup_steps=self.warmup_steps,
            end_learning_rate=self.end_learning_rate,
            power=self.decay_power,
            decay_from=self.decay_from,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """The optimizer of a run; the defaults are those of the LAMB paper for BERT.

    `"adamw"` is the same update with every trust ratio 1, which is Adam with decoupled decay.
    `"lars"` is the LARS of the LAMB paper: momentum averages, with `beta_1`, and there is no second
    moment, so no `beta_2`.

    `exclude_from_layer_adaptation`, for LAMB and LARS: `None`, the variables without decay have no
    trust ratio either, as in the authors' BERT code; `()`, every variable has one, as in NVIDIA's.

    `layer_decay` is the factor on the learning rate from one encoder layer to the next below: the
    rate of the head and the pooler is the stage's, that of the top layer × `layer_decay`, and that
    of the embeddings of a model with L layers × `layer_decay` to the power L + 1, as in BEiT.

    `freeze`: regular expressions, searched for in the variables' paths as those of
    `exclude_from_weight_decay`; what matches keeps its initial values, and has no gradient and no
    moments.
    """

    type: str = "lamb"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    exclude_from_weight_decay: tuple[str, ...] = ("LayerNorm", "bias")
    exclude_from_layer_adaptation: tuple[str, ...] | None = None
    global_clipnorm: float = 1.0
    layer_decay: float = 1.0
    freeze: tuple[str, ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "freeze", tuple(self.freeze))
        if self.type not in OPTIMIZER_TYPES:
            raise ValueError(
                f"optimizer_type must be {' or '.join(OPTIMIZER_TYPES)}; got {self.type!r}."
            )
        _require_finite(self)
        if not 0 < self.layer_decay <= 1:
            raise ValueError(
                f"layer_decay must be above 0 and at most 1; got {self.layer_decay}. 1 trains all "
                "layers at one rate; to leave layers as they are, freeze them."
            )
        for pattern in self.freeze:
            _require_expression(pattern)

    @property
    def slot_names(self) -> tuple[str, ...]:
        """What is kept of every variable that trains, each as large as the variable."""
        return lamb_tf.LARS.slot_names if self.type == "lars" else lamb_tf.LAMB.slot_names

    def make(
        self, learning_rate_multipliers: Sequence[tuple[keras.Variable, float]] | None = None
    ) -> lamb_tf.LAMB | lamb_tf.LARS:
        """The optimizer, at rate 0: the loop sets the rate of each step.

        Args:
            learning_rate_multipliers: Factors on the rate by variable, as of `lamb_tf.LAMB`;
                `training.stage_model` derives them from `layer_decay`.
        """
        not_adapted = self.exclude_from_layer_adaptation
        if self.type == "adamw":
            not_adapted = ("",)  # the empty pattern matches every path
        shared = {
            "learning_rate": 0.0,
            "epsilon": self.epsilon,
            "weight_decay": self.weight_decay,
            "exclude_from_weight_decay": list(self.exclude_from_weight_decay),
            "exclude_from_layer_adaptation": None if not_adapted is None else list(not_adapted),
            "global_clipnorm": self.global_clipnorm or None,
            "learning_rate_multipliers": learning_rate_multipliers,
        }
        if self.type == "lars":
            return lamb_tf.LARS(momentum=self.beta_1, ratio="after_momentum", **shared)
        return lamb_tf.LAMB(beta_1=self.beta_1, beta_2=self.beta_2, **shared)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """All that decides which weights a run ends with.

    Args:
        config: The model.
        stages: What is trained, in order.
        optimizer: How.
        input_files: Globs of the training records; `{max_seq_length}` stands for the stage's.
        init_checkpoint: A checkpoint of any dialect (`conversion/sources.py`), whose weights the
            run starts from.
        init_moments: Whether it starts from the moments and the number of updates there, too.
        seed: Decides initial weights, order of the records and dropout.
        enable_xla: Whether forward and backward pass are compiled by XLA, which rounds otherwise.
        dtype: `"fp32"`, `"bf16"` or `"fp16"`; weights and moments are float32 in every case.
        reduce_dtype: In what gradients are summed over replicas: as `dtype`, but `"fp16"` only with
            that dtype, whose loss scale keeps small gradients in its range.
        loss_scale: For fp16: `"dynamic"`, the default, or a number.
        task: What is learned: a task of `official_bert.tasks`.
        gradient_accumulation_steps: Micro-batches per update.
        minutes: The wall-clock budget, if any, for which the updates of the stages were fixed
            (`budget.py`).
    """

    config: BertConfig
    stages: tuple[Stage, ...]
    optimizer: Optimizer
    input_files: tuple[str, ...]
    init_checkpoint: str | None = None
    init_moments: bool = False
    seed: int = 12345
    enable_xla: bool = False
    dtype: str = "fp32"
    reduce_dtype: str = "fp32"
    loss_scale: str | None = None
    task: Task = dataclasses.field(default_factory=Pretraining)
    gradient_accumulation_steps: int = 1
    minutes: float | None = None

    def __post_init__(self):
        for stage in self.stages:
            self.task.check(stage)
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed must fit in 64 bits; got {self.seed}.")
        if self.init_moments and not self.init_checkpoint:
            raise ValueError("init_moments needs an init_checkpoint to take them from.")
        if self.dtype not in DTYPE_POLICIES:
            raise ValueError(f"dtype must be {' or '.join(DTYPE_POLICIES)}; got {self.dtype!r}.")
        if self.reduce_dtype not in DTYPE_POLICIES:
            raise ValueError(
                f"reduce_dtype must be {' or '.join(DTYPE_POLICIES)}; got {self.reduce_dtype!r}."
            )
        if self.reduce_dtype == "fp16" and self.dtype != "fp16":
            raise ValueError(
                "reduce_dtype=fp16 needs the loss scale of dtype=fp16, or small gradients would "
                f"become 0; with dtype={self.dtype} use bf16, which has the range of float32."
            )
        if self.loss_scale is not None and self.dtype != "fp16":
            raise ValueError(
                f"loss_scale={self.loss_scale!r} is for dtype fp16; {self.dtype} has the range of "
                "float32 and needs none."
            )
        if self.fixed_loss_scale is not None and not 0 < self.fixed_loss_scale < math.inf:
            raise ValueError(f"loss_scale must be positive and finite; got {self.loss_scale!r}.")
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ValueError(f"minutes must be positive and finite; got {self.minutes!r}.")

    @property
    def fixed_loss_scale(self) -> float | None:
        """The loss scale as a number, or `None` where it is dynamic or of no use."""
        if self.loss_scale in (None, "dynamic"):
            return None
        try:
            return float(self.loss_scale)
        except ValueError:
            raise ValueError(
                f"loss_scale must be 'dynamic' or a number; got {self.loss_scale!r}."
            ) from None

    @property
    def total_steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    def learning_rate(self) -> schedules.Stages:
        """The rate as a function of the run's step: each stage warms up again."""
        return schedules.Stages([(stage.schedule(), stage.steps) for stage in self.stages])

    def describe(self) -> dict:
        """The run as JSON values; runs with equal descriptions end with equal weights."""
        values = dataclasses.asdict(self)
        del values["task"]
        return json.loads(json.dumps(values | self.task.describe()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reporting:
    """What a run shows and keeps on the way; none of it changes the weights.

    Args:
        log_steps: Updates between lines of the log.
        save_checkpoints_steps: Updates between checkpoints; one is always written at the end of
            a stage and when the process is asked to stop. 0: then only.
        keep_checkpoint_max: Newest checkpoints to keep; 0 keeps all.
        eval_steps: Updates between held-out evaluations; 0 evaluates at the ends of stages only.
        eval_files: Globs of held-out records; none, no evaluation. As `Run.input_files`.
        eval_batch_size: Global batch size of the evaluation.
        steps_per_loop: Maximum steps per compiled call.
        max_skipped_updates: The run gives up after so many updates in a row were skipped for
            gradients that are not finite.
        tensorboard: Whether TensorBoard summaries are written beside the log, where TensorBoard
            is installed.
        profile_steps: First and last of the updates that the TensorFlow profiler watches.
    """

    log_steps: int = 100
    save_checkpoints_steps: int = 1000
    keep_checkpoint_max: int = 5
    eval_steps: int = 0
    eval_files: tuple[str, ...] = ()
    eval_batch_size: int = 32
    steps_per_loop: int = 1
    max_skipped_updates: int = 20
    tensorboard: bool = False
    profile_steps: tuple[int, int] | None = None


def _require_expression(pattern):
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"freeze holds {pattern!r}, which is not a regular expression: {error}."
        ) from None


def _require_finite(settings):
    """Refuses infinities and NaN, which comparisons with bounds let through."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{field.name} must be a finite number; got {value}.")
