"""Settings shared by `run_classifier`, `run_squad` and `run_tagger`, and rules about them."""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from official_bert.commands import machine, training_settings
from official_bert.commands.arguments import Rule, apply, contradiction, idle
from official_bert.stages import LoopOptions, Optimizer, Run
from official_bert.system.settings import documented, like, names_like, setting


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuning(training_settings.Training, training_settings.Casing, machine.Machine):
    """The settings of fine-tuning; the commands describe the first, and add theirs."""

    train_file: str | None = None
    predict_file: str | None = None
    max_seq_length: int = 0
    do_eval: bool = False
    do_predict: bool = False
    vocab_file: str | None = setting(
        "Vocabulary of the pre-trained model: a vocab.txt or tokenizer.json, which is copied to "
        "--output_dir. Default: from the folder of --init_checkpoint.",
        None,
    )
    init_checkpoint: str | None = setting(
        "Pre-trained weights: a checkpoint of TensorFlow 1, tf-models or run_pretraining, a "
        "Hugging Face folder, or a .keras file. A resumed run no longer needs it. Without "
        "--do_train: a fine-tuned checkpoint to use instead of the newest in --output_dir.",
        None,
    )
    output_dir: str = setting("Folder for checkpoints, log, scores and predictions. Required.", "")
    do_train: bool = setting("Train. An existing run in --output_dir is resumed.", False)
    train_batch_size: int = setting("Global batch size of training, in examples.", 32, minimum=1)
    eval_batch_size: int = setting("Global batch size of evaluation, in examples.", 8, minimum=1)
    predict_batch_size: int = setting("Global batch size of prediction, in examples.", 8, minimum=1)
    learning_rate: float = setting(
        "Learning rate after warm-up; it then decays linearly to 0.", 5e-5, minimum=0
    )
    num_train_epochs: float = setting(
        "Number of epochs; total steps = examples / batch × epochs.", 3.0, above=0
    )
    warmup_proportion: float = setting(
        "Fraction of the steps with linear warm-up from 0.",
        0.1,
        minimum=0,
        maximum=1,
        hint="10 % is 0.1.",
    )
    seed: int = setting(
        "Random seed of the head's initial weights, example order and dropout.", 12345
    )
    num_seeds: int | None = setting(
        "Number of seeds to train with, from --seed up, each in seed_N of --output_dir; mean, "
        "deviation, median and best of each metric are printed.",
        None,
        minimum=1,
    )
    resume_from: int | None = setting(
        "Step of the checkpoint to resume from, instead of the newest. The learning rate and other "
        "optimizer settings may then change; run.json records it.",
        None,
        minimum=1,
    )
    enable_xla: bool | None = like(
        Run, "enable_xla", None, more="Default: on for GPUs, off for CPUs."
    )
    steps_per_loop: int = like(LoopOptions, "steps_per_loop")
    eval_steps: int = setting(
        "Steps between evaluations during training, with --do_eval; 0: only at its end.",
        0,
        minimum=0,
    )

    def seeds_and_folders(self) -> list[tuple[int, str]]:
        """The seed and the folder of each run."""
        if self.num_seeds is None:
            return [(self.seed, self.output_dir)]
        seeds = range(self.seed, self.seed + self.num_seeds)
        return [(seed, os.path.join(self.output_dir, f"seed_{seed}")) for seed in seeds]


Settings = TypeVar("Settings", bound=FineTuning)

# Only training reads these.
_OF_TRAINING = (
    "train_file",
    "train_batch_size",
    "learning_rate",
    "num_train_epochs",
    "warmup_proportion",
    *names_like(Optimizer, FineTuning),
    "gradient_accumulation_steps",
    "loss_scale",
    "minutes",
    "enable_xla",
    "eval_steps",
    *names_like(LoopOptions, FineTuning),
)
RULES = (
    idle(_OF_TRAINING, lambda args: not args.do_train, "without --do_train."),
    *training_settings.RULES,
    idle(
        ["seed"],
        lambda args: not args.do_train and args.num_seeds is None,
        "without --do_train: the model is that of --output_dir or --init_checkpoint.",
    ),
    idle(("eval_batch_size", "eval_steps"), lambda args: not args.do_eval, "without --do_eval."),
    idle(["predict_batch_size"], lambda args: not args.do_predict, "without --do_predict."),
    contradiction(
        ["early_stopping"],
        lambda args: (
            args.do_train and args.early_stopping and not (args.do_eval and args.eval_steps)
        ),
        "it needs evaluations during training; give --do_eval and --eval_steps.",
    ),
    contradiction(
        ["num_train_epochs"],
        lambda args: args.do_train and args.minutes is not None,
        "--minutes sets the number of steps; leave one of the two out.",
    ),
    contradiction(
        ["resume_from"],
        lambda args: not args.do_train,
        "only with --do_train; to use a certain checkpoint, give it as --init_checkpoint.",
    ),
    contradiction(
        ["num_seeds"],
        lambda args: args.init_checkpoint and not args.do_train,
        "--init_checkpoint is one model; leave one of the two out.",
    ),
    contradiction(
        ["resume_from"],
        lambda args: args.num_seeds is not None,
        "works on a single run: drop --num_seeds and set --output_dir to its folder.",
    ),
    *machine.RULES,
)


def check(
    args: Settings,
    rules: Iterable[Rule],
    files: Mapping[str, tuple[Sequence[str], str]],
    work: str = "give --do_train, --do_eval or --do_predict",
) -> Settings:
    """Refuses contradictions, and warns of flags without effect; returns the settings without them.

    Args:
        rules: The command's.
        files: {flag: (the flags that it is required with, what to do)}.
        work: The command's choices, for the error if none is given.

    Raises:
        ValueError: naming the flag, the reason, and what to do.
    """
    if not (args.do_train or args.do_eval or args.do_predict):
        raise ValueError(f"nothing to do: {work}.")
    if not args.output_dir:
        raise ValueError("--output_dir is required.")
    args = apply(args, rules)
    args.optimizer()  # checks it
    for name, (flags, remedy) in files.items():
        given = [flag for flag in flags if getattr(args, flag)]
        if given and not getattr(args, name):
            raise ValueError(f"--{name} is required with --{given[0]}. {remedy}")
    return args
