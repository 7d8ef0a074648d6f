"""Settings shared by the commands that train: optimizer, precision; casing of a vocabulary."""

import dataclasses

from official_bert.commands.arguments import Arguments, idle
from official_bert.stages import LoopOptions, Optimizer, Run
from official_bert.system.settings import documented, like, setting, values_of


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Casing(Arguments):
    """The casing of a vocabulary."""

    do_lower_case: bool | None = setting(
        "Whether the vocabulary is uncased. Default: as in tokenizer.json or "
        "tokenizer_config.json; else whether it has no upper-case letter.",
        None,
    )


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Training(Arguments):
    """Settings of all training; by default the optimizer is the official scripts', AdamW."""

    bert_config_file: str | None = setting(
        "Model configuration: a bert_config.json or config.json. Default: from the folder of "
        "--init_checkpoint.",
        None,
    )
    optimizer_type: str = like(Optimizer, "type", "adamw")
    weight_decay: float = like(Optimizer, "weight_decay")
    beta_1: float = like(Optimizer, "beta_1")
    beta_2: float = like(Optimizer, "beta_2")
    epsilon: float = like(Optimizer, "epsilon")
    global_clipnorm: float = like(Optimizer, "global_clipnorm")
    layer_decay: float = like(Optimizer, "layer_decay")
    freeze: tuple[str, ...] = like(Optimizer, "freeze")
    gradient_accumulation_steps: int = like(Run, "gradient_accumulation_steps")
    dtype: str = like(Run, "dtype")
    loss_scale: str | None = like(Run, "loss_scale")
    log_steps: int = like(LoopOptions, "log_steps")
    save_checkpoints_steps: int = like(LoopOptions, "save_checkpoints_steps")
    keep_checkpoint_max: int = like(LoopOptions, "keep_checkpoint_max")

    def optimizer(self) -> Optimizer:
        """The optimizer of the flags.

        Raises:
            ValueError: naming what is out of bounds.
        """
        return Optimizer(**values_of(Optimizer, self))


RULES = (
    idle(
        ["beta_2"],
        lambda args: args.optimizer_type == "lars",
        "with --optimizer_type=lars, which has no second moment.",
    ),
    idle(["loss_scale"], lambda a: a.dtype != "fp16", "with --dtype={dtype}, which needs none."),
)
