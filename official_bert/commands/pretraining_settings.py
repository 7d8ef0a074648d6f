"""The settings of `run_pretraining`, which `rehearse` takes, too; and rules about them.

Most are fields of the dataclasses in `stages` and `tasks.pretraining`, which define their words.
"""

import dataclasses
from typing import TypeVar

from official_bert.commands import training_settings
from official_bert.commands.arguments import apply, contradiction, idle
from official_bert.stages import LoopOptions, Run, Stage
from official_bert.system.settings import documented, like, names_like, setting
from official_bert.tasks.pretraining import Pretraining


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Pretrain(training_settings.Training):
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
    # A recipe decides what is like a stage's; a flag that contradicts it is refused.
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
    profile_steps: str | None = like(LoopOptions, "profile_steps")
    train_summary_interval: int = setting(
        "TensorBoard summaries; 0: with every line of the log; negative: none.", 0
    )
    engine: str = setting(
        "Training engine; jax trains on a mesh over all devices of all processes, without "
        "TensorFlow. Each resumes the other's runs.",
        "tensorflow",
        choices=("tensorflow", "jax"),
    )
    distribution_strategy: str = setting(
        "Devices to train on: off, one_device, mirrored, multi_worker_mirrored or tpu; case does "
        "not matter. With --engine=jax: multi_worker_mirrored or tpu for several processes; "
        "otherwise leave it out.",
        "mirrored",
    )
    num_gpus: int | None = setting(
        "Number of GPUs to use on this host; 0: train on the CPU. Default: 1 if there is one; with "
        "multi_worker_mirrored, all. Not valid with off and tpu.",
        None,
    )
    all_reduce_alg: str | None = setting(
        "All-reduce algorithm: nccl or hierarchical_copy with mirrored; nccl or ring with "
        "multi_worker_mirrored.",
        None,
    )
    tpu: str = setting(
        "Name or address of a Cloud TPU, or 'local' for this host's; for "
        "--distribution_strategy=tpu.",
        "",
    )
    worker_hosts: str | None = setting(
        "Workers for multi_worker_mirrored: host:port of each, comma-separated. Default: from "
        "TF_CONFIG or Slurm's variables.",
        None,
    )
    shard_optimizer: bool = setting(
        "With --engine=jax: shard the optimizer's state and arithmetic over the devices, to save "
        "memory. The weights are equal up to rounding.",
        False,
    )
    task_index: int = setting("Index of this worker in --worker_hosts, from 0.", -1)
    local_workers: int | None = setting(
        "Number of local worker processes, each with its share of the cores; to try out "
        "multi_worker_mirrored on one machine.",
        None,
        minimum=2,
    )


Settings = TypeVar("Settings", bound=Pretrain)


def check(args: Settings) -> Settings:
    """Refuses what cannot be meant, and warns of flags without effect; the settings without them.

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
    if "distribution_strategy" in args.given:
        args = args.replaced(distribution_strategy=args.distribution_strategy.lower())
    args = apply(args, RULES)
    args.optimizer()  # checks it
    return args


def _by_jax(args):
    return args.engine == "jax"


# Those of several devices and hosts depend on the engine, and some on the devices that are there:
# see `engines.strategies`.
RULES = (
    *training_settings.RULES,
    idle(
        ("eval_steps", "eval_batch_size"), lambda args: not args.eval_files, "without --eval_files."
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
    contradiction(
        ("worker_hosts", "task_index", "tpu"),
        lambda args: args.local_workers is not None,
        "--local_workers already sets this; leave these flags out.",
    ),
    contradiction(
        ["distribution_strategy"],
        lambda args: (
            args.local_workers is not None and args.distribution_strategy != "multi_worker_mirrored"
        ),
        "--local_workers already sets this; leave it out.",
    ),
    contradiction(
        ["shard_optimizer"],
        lambda args: args.shard_optimizer and not _by_jax(args),
        "only with --engine=jax; tf.distribute keeps the whole state on every replica.",
    ),
    contradiction(
        ["enable_xla"],
        lambda args: (
            args.enable_xla is False and (_by_jax(args) or args.distribution_strategy == "tpu")
        ),
        "JAX and TPUs always compile with XLA; leave it out.",
    ),
    idle(["enable_xla"], _by_jax, "with --engine=jax, where XLA compiles everything."),
    contradiction(
        ["distribution_strategy"],
        lambda args: _by_jax(args) and args.distribution_strategy in ("off", "one_device"),
        "--engine=jax trains on all devices of this machine, and of all machines with "
        "--distribution_strategy=multi_worker_mirrored or tpu; leave it out.",
    ),
    idle(
        ["distribution_strategy"],
        lambda args: _by_jax(args) and args.distribution_strategy == "mirrored",
        "with --engine=jax, which always trains on all devices of this machine.",
    ),
    contradiction(
        ["num_gpus"],
        _by_jax,
        "with --engine=jax, CUDA_VISIBLE_DEVICES names the GPUs, and JAX_PLATFORMS=cpu trains on "
        "the CPU.",
    ),
    idle(["all_reduce_alg"], _by_jax, "with --engine=jax, where the compiler chooses it."),
    contradiction(
        ["tpu"],
        _by_jax,
        "with --engine=jax, start the command on every host of the slice, with "
        "--distribution_strategy=tpu and without --tpu.",
    ),
    contradiction(
        ("worker_hosts", "task_index"),
        lambda args: _by_jax(args) and args.distribution_strategy == "tpu",
        "with --engine=jax and --distribution_strategy=tpu, JAX itself finds the hosts of the "
        "slice; leave these flags out.",
    ),
    idle(
        ["num_gpus"],
        lambda args: args.distribution_strategy == "tpu",
        "with --distribution_strategy=tpu, which trains on the TPU's cores.",
    ),
    idle(
        ["all_reduce_alg"],
        lambda args: args.distribution_strategy in ("off", "one_device", "tpu"),
        "with --distribution_strategy={distribution_strategy}; it is for several GPUs.",
    ),
)
