"""Settings shared by several commands: input text, casing of a vocabulary, optimizer, precision."""

import dataclasses
import functools
import importlib.util

from official_bert.commands.arguments import Arguments, contradiction, idle
from official_bert.data import text_files
from official_bert.optimizers import optimizers
from official_bert.stages import LoopOptions, Optimizer, Run
from official_bert.system.settings import documented, like, setting, values_of


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Text(Arguments):
    """Text to read."""

    input_file: str | list[str] = setting(
        "Input text: comma-separated files, globs or folders. Files may be compressed."
    )
    input_format: str = setting("Format of the text.", "auto", choices=text_files.FORMS)
    text_field: str | None = setting(
        "Column or field with the text, in tables (Parquet, Arrow, CSV, TSV) and JSON lines. "
        "Default: text.",
        None,
    )
    json_field: str | None = setting("Another name of --text_field.", None)
    skip_bad_lines: bool = setting("Leave out unreadable lines, and count them.", False)

    def __post_init__(self):
        super().__post_init__()
        if self.json_field is not None and self.text_field not in (None, self.json_field):
            raise ValueError(
                "text_field and json_field must be equal, being two names of one setting; got "
                f"{self.text_field!r} and {self.json_field!r}. Give one of them."
            )

    def field(self) -> str | None:
        """The column or field with the text; None for the default."""
        return self.json_field if self.text_field is None else self.text_field


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Casing(Arguments):
    """The casing of a vocabulary."""

    do_lower_case: bool | None = setting(
        "Whether the vocabulary is uncased. Default: as in tokenizer.json or "
        "tokenizer_config.json; else whether it has no upper-case letter.",
        None,
    )
    strip_accents: bool | None = setting(
        "Whether text is stripped of accents; False for the uncased models of German, Japanese, "
        "Hindi or Vietnamese that keep them. Default: as in tokenizer.json or "
        "tokenizer_config.json; else as --do_lower_case.",
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
    optimizer_settings: str = like(Optimizer, "settings", "{}")
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
    minutes: float | None = like(Run, "minutes")
    early_stopping: int = like(LoopOptions, "early_stopping")
    report_to: tuple[str, ...] = like(LoopOptions, "report_to", more="Comma-separated.")

    def optimizer(self) -> Optimizer:
        """The optimizer of the flags.

        Raises:
            ValueError: a setting is out of bounds.
        """
        return Optimizer(**values_of(Optimizer, self))


def _is_missing(name, args):
    """Whether a tracker is asked for whose library is not installed."""
    return name in args.report_to and importlib.util.find_spec(name) is None


RULES = (
    idle(
        ["beta_2"],
        lambda args: optimizers.ignores(args.optimizer_type, "beta_2"),
        "with --optimizer_type={optimizer_type}, which has no second moment.",
    ),
    idle(["loss_scale"], lambda a: a.dtype != "fp16", "with --dtype={dtype}, which needs none."),
    *(
        contradiction(
            ["report_to"],
            functools.partial(_is_missing, name),
            f'{name} is not installed here: `pip install "lamb_tf[{name}]"`.',
        )
        for name in LoopOptions.__dataclass_fields__["report_to"].metadata["choices"]
    ),
)
