"""The settings of `run_pretraining`, which `rehearse` takes, too; and rules about them.

Most are fields of the dataclasses in `stages` and `tasks.pretraining`, which define their words.
"""

import dataclasses
from typing import TypeVar

from official_bert.commands import machine, training_settings
from official_bert.commands.arguments import apply, contradiction, idle
from official_bert.stages import LoopOptions, Run, Stage
from official_bert.system.settings import documented, like, names_like, setting
from official_bert.tasks.pretraining import Pretraining


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Pretrain(training_settings.Training, machine.Machine):
    """The settings of the command, with the official names and defaults."""

    input_files: tuple[str, ...] = like(Run, "input_files", more="Comma-separated.")
    model_dir: str = setting(
        "Folder for checkpoints and logs. An existing run in it is resumed.", "/tmp"
    )
    resume_from: int | None = setting(
        "Step of the checkpoint to resume from, instead of the newest. The learning rate, other "
        "optimizer settings, the seed and the records may then change; run.json records it.",
        None,
        minimum=1,
    )
    # A recipe sets the fields of its stages; a flag that contradicts it is refused.
    recipe: str | None = setting(
        "Recipe from official_bert/recipes.py, or FILE.py:FUNCTION. It sets the stages of the run "
        "(sequence length, predictions, batch size, steps, learning rate, warm-up), so their flags "
        "are refused, and the optimizer, unless its flags are given.",
        None,
    )
    max_seq_length: int = like(Stage, "max_seq_length", 128)
    max_predictions_per_seq: int = like(Stage, "max_predictions_per_seq", 20)
    train_batch_size: int = like(Stage, "batch_size", 32)
    learning_rate: float = like(Stage, "learning_rate", 5e-5)
    end_lr: float = like(Stage, "end_learning_rate", 0.0)
    warmup_steps: float = like(Stage, "warmup_steps", 10000.0)  # as in the official script
    num_steps_per_epoch: int = setting("Steps per epoch; see --num_train_epochs.", 1000, minimum=1)
    num_train_epochs: float = setting(
        "Number of epochs; total steps = steps per epoch × epochs. On resuming, a larger number "
        "extends the run.",
        3.0,
    )
    init_checkpoint: str | None = like(Run, "init_checkpoint")
    init_moments: bool = like(Run, "init_moments")
    seed: int = like(Run, "seed")
    reduce_dtype: str = like(Run, "reduce_dtype")
    enable_xla: bool | None = like(
        Run,
        "enable_xla",
        None,
        more="Default: on for GPUs and TPUs, where it is faster; off for CPUs, where it is slower. "
        "A resumed run keeps it. JAX compiles everything.",
    )
    use_next_sentence_label: bool = like(Pretraining, "use_next_sentence_label")
    masked_lm_prob: float | None = like(Pretraining, "masked_lm_prob")
    do_whole_word_mask: bool | None = like(Pretraining, "do_whole_word_mask")
    max_ngram_size: int | None = like(Pretraining, "max_ngram_size")
    eval_files: tuple[str, ...] = like(LoopOptions, "eval_files")
    eval_steps: int = like(LoopOptions, "eval_steps")
    eval_batch_size: int = like(LoopOptions, "eval_batch_size")
    max_skipped_updates: int = like(LoopOptions, "max_skipped_updates")
    steps_per_loop: int | None = like(
        LoopOptions,
        "steps_per_loop",
        None,
        more="Default: on a TPU the steps of an epoch, at most 1000; elsewhere 1.",
    )
    noise_scale: bool = like(LoopOptions, "noise_scale")
    profile_steps: str | None = like(LoopOptions, "profile_steps")
    train_summary_interval: int = setting(
        "TensorBoard summaries; 0: with every line of the log; negative: none.", 0
    )


Settings = TypeVar("Settings", bound=Pretrain)


def check(args: Settings) -> Settings:
    """Refuses contradictions, and warns of flags without effect; returns the settings without them.

    Raises:
        ValueError: naming the flag, the reason, and what to do.
    """
    for name in ("input_files", "model_dir"):
        if not getattr(args, name):
            raise ValueError(f"--{name} is required.")
    if not args.bert_config_file and not args.init_checkpoint:
        raise ValueError(
            "--bert_config_file is required, or --init_checkpoint with one in its folder."
        )
    for name in ("input_files", "eval_files"):
        if not all(getattr(args, name)):
            raise ValueError(
                f"--{name} must be one or more names with single commas between them; got "
                f"{','.join(getattr(args, name))!r}. Is a variable of the shell empty?"
            )
    steps = args.num_steps_per_epoch * args.num_train_epochs
    if not 1 <= round(steps) < 2**31:
        raise ValueError(
            f"--num_steps_per_epoch times --num_train_epochs must be 1 to {2**31 - 1:,} steps; got "
            f"{args.num_steps_per_epoch} times {args.num_train_epochs:g}."
        )
    if not args.warmup_steps.is_integer():
        raise ValueError(f"--warmup_steps must be a whole number; got {args.warmup_steps:g}.")
    args = apply(args, RULES)
    args.optimizer()  # checks it
    return args


RULES = (
    *training_settings.RULES,
    idle(
        ("eval_steps", "eval_batch_size"), lambda args: not args.eval_files, "without --eval_files."
    ),
    contradiction(
        ["early_stopping"],
        lambda args: args.early_stopping and not (args.eval_files and args.eval_steps),
        "it needs evaluations during training; give --eval_files and --eval_steps.",
    ),
    contradiction(
        ["init_moments"],
        lambda args: args.init_moments and not args.init_checkpoint,
        "the moments are those of --init_checkpoint; give that too, or leave it out.",
    ),
    contradiction(
        (*names_like(Stage, Pretrain), "num_steps_per_epoch", "num_train_epochs"),
        lambda args: args.recipe is not None,
        "--recipe={recipe} already sets this; leave these flags out, or the recipe.",
    ),
    contradiction(
        ["train_summary_interval"],
        lambda args: (
            args.train_summary_interval > 0 and args.train_summary_interval != args.log_steps
        ),
        "TensorBoard summaries follow the log: set --log_steps, and this to 0, or to a negative "
        "number for none.",
    ),
    *machine.RULES,
)
