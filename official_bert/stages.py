"""The description of a run: stages, optimizer and model; its logs and checkpoints.

The training loop depends only on this. Weights, heads and moments carry over from one stage to the
next, and each stage warms up again. The fields are the flags of `run_pretraining`, too, so what
takes long to import is imported when it is used.
"""

import dataclasses
import json
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from official_bert.model.config import BertConfig
from official_bert.optimizers.optimizers import Optimizer
from official_bert.protocols import Lengths, Task
from official_bert.system import settings
from official_bert.system.settings import setting
from official_bert.tasks.pretraining import Pretraining

if TYPE_CHECKING:
    from lamb_tf import schedules

MAX_STEPS = 2**31 - 1  # the loop counts in 32 bits
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
    max_seq_length: int = setting("Sequence length in tokens; must equal the records'.", minimum=1)
    max_predictions_per_seq: int = setting(
        "Maximum number of masked tokens per sequence; must equal the records'.", 0, minimum=0
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
    depth: int | None = setting("Number of encoder layers; default: as in the configuration.", None)
    growth: str = setting(
        'How layers beyond the previous stage\'s get their values: "copy_top", "copy_stack" or '
        '"fresh"; see `stacking.grow`.',
        "copy_top",
    )
    new_positions: str = setting(
        'Values of positions beyond all earlier stages: "fresh", as they are, or "repeat", with '
        "the trained positions added cyclically; only without init_checkpoint.",
        "fresh",
        choices=("fresh", "repeat"),
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
        """Globs in which `{max_seq_length}` is replaced by this stage's."""
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
        "Data type of the computation: fp32, bf16 or fp16. Weights and moments are float32. bf16 "
        "is faster on GPUs, TPUs and processors with instructions for it.",
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
        "Wall-clock minutes that training takes on this machine: its first start measures some "
        "steps and makes the schedule shorter or longer to fit; a resumed run keeps that schedule.",
        None,
        above=0,
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
        for number, stage in enumerate(self.stages, 1):
            if self.init_checkpoint and stage.new_positions != "fresh":
                raise ValueError(
                    'new_positions must be "fresh" with an init_checkpoint, whose positions may '
                    f'all be trained; got "{stage.new_positions}" in stage {number}. Take other '
                    "stages or another recipe, or leave init_checkpoint out."
                )
        for name in ("dtype", "reduce_dtype"):
            if (given := getattr(self, name)) not in DTYPE_POLICIES:
                raise ValueError(f"{name} must be {' or '.join(DTYPE_POLICIES)}; got {given!r}.")
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
        if not values["optimizer"]["settings"]:  # as in runs from before there were any
            del values["optimizer"]["settings"]
        for stage in values["stages"]:
            if stage["new_positions"] == "fresh":  # likewise
                del stage["new_positions"]
        return json.loads(json.dumps(values | self.task.describe()))


@settings.documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """Logs, checkpoints and evaluations of a run; they do not change the weights of a step.

    A checkpoint is also written at the end of a stage, where a run stops early, and on a signal to
    stop.
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
    early_stopping: int = setting(
        "End the run after this many evaluations in a row, in its last stage, without a lower "
        "held-out loss; 0: never.",
        0,
        minimum=0,
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
    report_to: tuple[str, ...] = setting(
        "Experiment trackers to send the log, the settings, the report and the final weights to.",
        (),
        choices=("wandb", "mlflow"),
    )
    noise_scale: bool = setting(
        "Whether to measure the gradient noise scale, which estimates how large a batch is of use "
        "(arXiv 1812.06162); it needs replicas or --gradient_accumulation_steps.",
        False,
    )
    profile_steps: tuple[int, int] | None = setting(
        "Steps of which to write a profile, as FIRST,LAST.", None
    )

    def __post_init__(self):
        settings.check(self)
        if self.early_stopping and not (self.eval_files and self.eval_steps):
            raise ValueError(
                "early_stopping must be 0 without evaluations during training; got "
                f"{self.early_stopping}. Give eval_files and eval_steps."
            )
