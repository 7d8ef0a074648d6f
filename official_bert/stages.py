"""The description of a run: stages, optimizer and model; and what it logs and saves.

The training loop depends only on this. Weights, heads and moments carry over from one stage to the
next, and each stage warms up again. The fields are the flags of `run_pretraining`, too, so what
takes long to import is imported when it is used.
"""

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from official_bert.model.config import BertConfig
from official_bert.protocols import Lengths, Task
from official_bert.system import settings
from official_bert.system.settings import setting
from official_bert.tasks.pretraining import Pretraining

if TYPE_CHECKING:
    import keras

    import lamb_tf
    from lamb_tf import schedules

MAX_STEPS = 2**31 - 1  # the loop counts in 32 bits
OPTIMIZER_TYPES = ("lamb", "adamw", "lars")
DTYPE_POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}


@settings.documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """A number of updates with one batch shape and one learning-rate schedule.

    If `warmup_steps` is more than `steps`, as by the official script's defaults, the stage ends
    while the rate still rises.

    Raises:
        ValueError: if a value is out of range.
    """

    steps: int = setting("Number of steps.", minimum=1, maximum=MAX_STEPS)
    batch_size: int = setting(
        "Global batch size in sequences, over all replicas and micro-batches.", minimum=1
    )
    max_seq_length: int = setting(
        "Sequence length in tokens; must be that of the records.", minimum=1
    )
    max_predictions_per_seq: int = setting(
        "Maximum number of masked tokens per sequence; must be that of the records.", 0, minimum=0
    )
    learning_rate: float = setting("Learning rate after warm-up.", minimum=0)
    warmup_steps: int = setting(
        "Steps of linear warm-up from 0 to --learning_rate.", 0, minimum=0, maximum=MAX_STEPS
    )
    end_learning_rate: float = setting("Learning rate at the end.", 0.0, minimum=0)
    decay_power: float = setting("Power of the polynomial decay after warm-up.", 1.0)
    decay_from: str = setting(
        '"warmup_end", or "start" to count the decay from the first step of the stage, as in '
        "Google's and NVIDIA's code: the rate then drops when the warm-up ends.",
        "warmup_end",
    )
    input_files: tuple[str, ...] = setting("Records of this stage; by default, the run's.", ())
    depth: int | None = setting(
        "Number of encoder layers; by default, that of the configuration.", None
    )
    growth: str = setting(
        'How layers beyond the previous stage\'s get their values: "copy_top", "copy_stack" or '
        '"fresh"; see `stacking.grow`.',
        "copy_top",
    )
    trained_layers: tuple[int, ...] | None = setting(
        "Indices of the encoder layers to train; by default, all.", None
    )
    train_embeddings: bool = setting(
        "Whether the embeddings, and with them the tied output matrix, are trained.", True
    )
    carry_moments: bool = setting(
        "Whether the optimizer's moments and step count carry over from the previous stage; "
        "otherwise they start at zero.",
        True,
    )

    def __post_init__(self):
        settings.check(self)
        self.schedule()  # checks the rest
        if self.max_predictions_per_seq > self.max_seq_length:
            raise ValueError(
                f"max_predictions_per_seq must be at most max_seq_length, {self.max_seq_length}; "
                f"got {self.max_predictions_per_seq}."
            )

    @property
    def lengths(self) -> Lengths:
        """The shape of the stage's examples."""
        return Lengths(self.max_seq_length, self.max_predictions_per_seq)

    @property
    def tokens(self) -> int:
        """Tokens per update, padding included."""
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

    def schedule(self) -> "schedules.WarmupPolynomialDecay":
        """Linear warm-up, then polynomial decay; step 0 is the stage's first update."""
        from lamb_tf import schedules

        return schedules.WarmupPolynomialDecay(
            self.learning_rate,
            total_steps=max(self.steps, self.warmup_steps + 1),
            warmup_steps=self.warmup_steps,
            end_learning_rate=self.end_learning_rate,
            power=self.decay_power,
            decay_from=self.decay_from,
        )


@settings.documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """The optimizer of a run; the defaults are those of the LAMB paper for BERT.

    `"adamw"` is the same update with every trust ratio 1, which is Adam with decoupled decay.
    `"lars"` is the LARS of the LAMB paper: momentum averages, with `beta_1`, and there is no second
    moment, so no `beta_2`. `layer_decay` follows BEiT: the embeddings of a model with L layers have
    the rate of the head × `layer_decay` to the power L + 1. What `freeze` matches has no gradient
    and no moments.
    """

    type: str = setting("Optimizer: lamb, adamw or lars.", "lamb")
    beta_1: float = setting(
        "Decay rate of the first moment, or LARS' momentum.", 0.9, minimum=0, below=1
    )
    beta_2: float = setting(
        "Decay rate of the second moment; LARS has none.", 0.999, minimum=0, below=1
    )
    epsilon: float = setting(
        "Constant added to the square root of the second moment; with lars, to the norm of the "
        "update.",
        1e-6,
        minimum=0,
    )
    weight_decay: float = setting("Weight decay, without LayerNorms and biases.", 0.01, minimum=0)
    exclude_from_weight_decay: tuple[str, ...] = setting(
        "Regular expressions, found in the paths of variables without weight decay.",
        ("LayerNorm", "bias"),
    )
    exclude_from_layer_adaptation: tuple[str, ...] | None = setting(
        "Regular expressions, found in the paths of variables without a trust ratio, for LAMB and "
        "LARS. None: the variables without decay, as in the authors' BERT code; (): no variable, "
        "as in NVIDIA's.",
        None,
    )
    global_clipnorm: float = setting(
        "Maximum global norm of the gradient; a larger gradient is scaled down. 0: no clipping.",
        1.0,
        minimum=0,
        hint="0 is for no clipping.",
    )
    layer_decay: float = setting(
        "Factor on the learning rate from each layer to the one below, starting with "
        "--learning_rate at the head and pooler and ending with the embeddings. 1: the same rate "
        "for all.",
        1.0,
        above=0,
        maximum=1,
        hint="1 trains all layers at one rate; to leave layers as they are, freeze them.",
    )
    freeze: tuple[str, ...] = setting(
        "Variables that are not trained: comma-separated regular expressions, found in their "
        "paths. The embeddings and the first six layers: --freeze='embeddings/,layer_[0-5]/'.",
        (),
    )

    def __post_init__(self):
        for name in ("freeze", "exclude_from_weight_decay", "exclude_from_layer_adaptation"):
            if isinstance(getattr(self, name), str):
                raise ValueError(
                    f"{name} must be a sequence of regular expressions; got the text "
                    f"{getattr(self, name)!r}. Put it into a tuple."
                )
        object.__setattr__(self, "freeze", tuple(self.freeze))
        if self.type not in OPTIMIZER_TYPES:
            raise ValueError(
                f"optimizer_type must be {' or '.join(OPTIMIZER_TYPES)}; got {self.type!r}."
            )
        settings.check(self)
        for pattern in self.freeze:
            _require_expression(pattern)

    @property
    def slot_names(self) -> tuple[str, ...]:
        """What is kept of every variable that trains, each as large as the variable."""
        import lamb_tf

        return lamb_tf.LARS.slot_names if self.type == "lars" else lamb_tf.LAMB.slot_names

    def make(
        self, learning_rate_multipliers: "Sequence[tuple[keras.Variable, float]] | None" = None
    ) -> "lamb_tf.LAMB | lamb_tf.LARS":
        """The optimizer, at rate 0: the loop sets the rate of each step.

        Args:
            learning_rate_multipliers: Factors on the rate by variable, as of `lamb_tf.LAMB`;
                `training.stage_model` derives them from `layer_decay`.
        """
        import lamb_tf

        not_adapted = self.exclude_from_layer_adaptation
        if self.type == "adamw":
            not_adapted = ("",)  # the empty pattern matches every path
        shared: dict[str, Any] = {
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


@settings.documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """All that decides which weights a run ends with."""

    config: BertConfig = setting("The shape of the model.")
    stages: tuple[Stage, ...] = setting("The stages of training, in order.")
    optimizer: Optimizer = setting("The optimizer and its settings.")
    input_files: tuple[str, ...] = setting(
        "Training records: paths or globs, each of which must match a file. {max_seq_length} in "
        "them is replaced by the sequence length of the stage."
    )
    init_checkpoint: str | None = setting(
        "Initial weights: a checkpoint of TensorFlow 1, tf-models or run_pretraining, a Hugging "
        "Face folder, or a .keras file. The weights of its heads are used if it has them. A "
        "resumed run no longer needs it.",
        None,
    )
    init_moments: bool = setting(
        "Also load the optimizer's moments and step count from --init_checkpoint.", False
    )
    seed: int = setting("Random seed of initial weights, record order, masks and dropout.", 12345)
    enable_xla: bool = setting(
        "Compile the forward and backward pass with XLA, which rounds differently.", False
    )
    dtype: str = setting(
        "Data type of the computation: fp32, bf16 or fp16. Weights and moments are float32.",
        "fp32",
    )
    reduce_dtype: str = setting(
        "Data type of the gradient all-reduce: fp32, bf16, or with --dtype=fp16 also fp16. 16 bits "
        "halve the traffic.",
        "fp32",
    )
    loss_scale: str | None = setting(
        "Loss scale for --dtype=fp16: 'dynamic' (the default) or a number.", None
    )
    task: Task = setting("The task to learn; see `protocols.Task`.", default_factory=Pretraining)
    gradient_accumulation_steps: int = setting(
        "Number of micro-batches per step. Each replica processes its share of the batch in this "
        "many parts, which saves memory; gradients are still reduced once per step.",
        1,
        minimum=1,
    )
    minutes: float | None = setting(
        "The wall-clock budget, if any, for which the steps of the stages were fixed "
        "(`budget.py`).",
        None,
    )

    def __post_init__(self):
        settings.check(self)
        for stage in self.stages:
            self.task.check(stage.lengths)
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed must fit in 64 bits, with sign; got {self.seed}.")
        if self.init_moments and not self.init_checkpoint:
            raise ValueError(
                "init_moments must be off without an init_checkpoint to take them from; got True. "
                "Give init_checkpoint, too."
            )
        if self.dtype not in DTYPE_POLICIES:
            raise ValueError(f"dtype must be {' or '.join(DTYPE_POLICIES)}; got {self.dtype!r}.")
        if self.reduce_dtype not in DTYPE_POLICIES:
            raise ValueError(
                f"reduce_dtype must be {' or '.join(DTYPE_POLICIES)}; got {self.reduce_dtype!r}."
            )
        if self.reduce_dtype == "fp16" and self.dtype != "fp16":
            raise ValueError(
                f"reduce_dtype must be fp32 or bf16 with dtype={self.dtype}; got 'fp16', in which "
                "small gradients become 0 without the loss scale of dtype=fp16. Use bf16, which "
                "has the range of float32."
            )
        if self.loss_scale is not None and self.dtype != "fp16":
            raise ValueError(
                f"loss_scale must be left out with dtype={self.dtype}, which has the range of "
                f"float32; got {self.loss_scale!r}."
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

    def learning_rate(self) -> "schedules.JoinedSchedules":
        """The rate as a function of the run's step: each stage warms up again."""
        from lamb_tf import schedules

        return schedules.JoinedSchedules([(stage.schedule(), stage.steps) for stage in self.stages])

    def describe(self) -> dict:
        """The run as JSON values; runs with equal descriptions end with equal weights."""
        values = dataclasses.asdict(self)
        del values["task"]
        return json.loads(json.dumps(values | self.task.describe()))


@settings.documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """What a run logs, saves and evaluates on the way; none of it changes the weights.

    A checkpoint is also written at the end of a stage and on a signal to stop.
    """

    log_steps: int = setting("Steps between log lines.", 100, minimum=1)
    save_checkpoints_steps: int = setting(
        "Steps between checkpoints; 0: only at the end of each stage.", 1000, minimum=0
    )
    keep_checkpoint_max: int = setting(
        "Number of newest checkpoints to keep, plus the last one known to be good; 0: all.",
        5,
        minimum=0,
    )
    eval_steps: int = setting(
        "Steps between evaluations; 0: only at the end of each stage.", 0, minimum=0
    )
    eval_files: tuple[str, ...] = setting(
        "Held-out records: paths or globs, as for --input_files. Default: no evaluation.", ()
    )
    eval_batch_size: int = setting(
        "Global batch size of the evaluation in sequences.", 32, minimum=1
    )
    steps_per_loop: int = setting("Maximum steps per compiled call.", 1, minimum=1)
    max_skipped_updates: int = setting(
        "Number of consecutive steps with non-finite gradients after which the run stops.",
        20,
        minimum=1,
    )
    tensorboard: bool = setting(
        "Whether to write TensorBoard summaries, if it is installed.", False
    )
    profile_steps: tuple[int, int] | None = setting(
        "Steps of which to write a profile, as FIRST,LAST.", None
    )

    def __post_init__(self):
        settings.check(self)


def _require_expression(pattern):
    if not pattern:
        raise ValueError(
            "freeze must contain no empty expression, which would match every path; got ''. Is "
            "there a comma too many?"
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"freeze must contain regular expressions; got {pattern!r} ({error})."
        ) from None
