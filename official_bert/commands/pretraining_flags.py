"""The flags of `run_pretraining`, and which of them, of other scripts too, are refused and why.

Most are fields of the dataclasses in `stages` and `tasks.pretraining`, where their words stand.
"""

from absl import flags

from official_bert.commands import optimizer_flags
from official_bert.commands.flag_definitions import (
    FlagDefinitions,
    apply,
    contradiction,
    idle,
    require_finite,
    several,
)
from official_bert.stages import LoopOptions, Run, Stage
from official_bert.system.settings import Bounds
from official_bert.tasks.pretraining import Pretraining

ENGINES = ("tensorflow", "jax")

# {flag: the field of `Stage` that it sets, the official default}. A recipe decides these; a flag
# that contradicts it would be ignored, so it is refused.
STAGE = {
    "max_seq_length": ("max_seq_length", 128),
    "max_predictions_per_seq": ("max_predictions_per_seq", 20),
    "train_batch_size": ("batch_size", 32),
    "learning_rate": ("learning_rate", 5e-5),
    "end_lr": ("end_learning_rate", 0.0),
    "warmup_steps": ("warmup_steps", 10000.0),
}
# Fields that are flags of the same name, type and default.
RUN = (
    "init_checkpoint",
    "init_moments",
    "seed",
    "dtype",
    "reduce_dtype",
    "loss_scale",
    "gradient_accumulation_steps",
)
PRETRAINING = (
    "use_next_sentence_label",
    "masked_lm_prob",
    "do_whole_word_mask",
    "max_ngram_size",
)
LOOP_OPTIONS = (
    "log_steps",
    "save_checkpoints_steps",
    "keep_checkpoint_max",
    "eval_steps",
    "eval_batch_size",
    "max_skipped_updates",
)
# Flags of the scripts of google-research/bert, tensorflow/models and NVIDIA that are not here.
REFUSED = {
    # google-research/bert
    "input_file": "is called --input_files here.",
    "output_dir": "is called --model_dir here.",
    "num_train_steps": "is --num_steps_per_epoch times --num_train_epochs here.",
    "num_warmup_steps": "is called --warmup_steps here.",
    "iterations_per_loop": "is called --steps_per_loop here.",
    "max_eval_steps": "has no counterpart: every evaluation reads all of --eval_files once.",
    "do_train": "has no counterpart: this command trains.",
    "do_eval": "has no counterpart: --eval_files makes the run evaluate.",
    "use_tpu": "is --distribution_strategy=tpu here.",
    "tpu_name": "is called --tpu here.",
    "tpu_zone": "has no counterpart: --tpu takes a name in this machine's zone, or an address.",
    "gcp_project": "has no counterpart: --tpu takes a name in this project, or an address.",
    "master": "has no counterpart: --tpu takes the address of a TPU.",
    "num_tpu_cores": "has no counterpart: all cores of --tpu are used.",
    # tensorflow/models
    "model_export_path": "has no counterpart: the weights go to pretrained/ in --model_dir.",
    "sub_model_export_name": "has no counterpart: the weights go to pretrained/ in --model_dir.",
    "hub_module_url": "has no counterpart: --bert_config_file defines the model, and "
    "--init_checkpoint its weights.",
    "hub_module_trainable": "has no counterpart: see --hub_module_url.",
    "use_keras_compile_fit": "has no counterpart: there is only one training loop.",
    "run_eagerly": "has no counterpart: the training loop is always a graph.",
    "scale_loss": "has no counterpart: the loss is always the mean over the global batch.",
    "explicit_allreduce": "has no counterpart: gradients are always summed explicitly, once "
    "per update and before they are clipped.",
    "allreduce_bytes_per_pack": "has no counterpart: gradients are reduced in buckets of 16 MB.",
    "num_packs": "has no counterpart: gradients are reduced in buckets of 16 MB.",
    "fp16_implementation": "has no counterpart: --dtype=fp16 has one implementation.",
    "tf_gpu_thread_mode": "is the environment variable TF_GPU_THREAD_MODE.",
    "per_gpu_thread_count": "is the environment variable TF_GPU_THREAD_COUNT.",
    "datasets_num_private_threads": "has no counterpart: records are read in one thread, ahead of "
    "the steps.",
    "gin_file": "has no counterpart: every setting is a flag, or a field of a recipe's stage.",
    "gin_param": "has no counterpart: every setting is a flag, or a field of a recipe's stage.",
    "md": "is --model_dir.",
    "ds": "is --distribution_strategy.",
    "ng": "is --num_gpus.",
    "dt": "is --dtype.",
    "ls": "is --loss_scale.",
    "ara": "is --all_reduce_alg.",
    "gt_mode": "is the environment variable TF_GPU_THREAD_MODE.",
    "pgtc": "is the environment variable TF_GPU_THREAD_COUNT.",
    # NVIDIA
    "use_horovod": "is --distribution_strategy=mirrored on one host, multi_worker_mirrored on "
    "several.",
    "num_accumulation_steps": "is called --gradient_accumulation_steps here, and "
    "--train_batch_size is the global batch size: theirs × GPUs × micro-batches.",
    "use_fp16": "is --dtype=fp16 here.",
    "use_xla": "is called --enable_xla here.",
    "dynamic_loss_scale": "is --loss_scale=dynamic here, the default with --dtype=fp16.",
    "save_checkpoint_steps": "is called --save_checkpoints_steps here.",
    "dllog_path": "has no counterpart: the log is train_log.jsonl in --model_dir.",
    "report_loss": "has no counterpart: losses are reported every --log_steps.",
    "benchmark": "has no counterpart: every line of the log has the examples/s.",
    "model_type": "has no counterpart: the model is BERT.",
}


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines this command's flags; their help texts are its manual."""
    define = FlagDefinitions(values)
    optimizer_flags.define(define)
    for flag, (name, default) in STAGE.items():
        define.field(Stage, name, flag, default=default, kind=type(default))
    for owner, names in ((Run, RUN), (Pretraining, PRETRAINING), (LoopOptions, LOOP_OPTIONS)):
        for name in names:
            define.field(owner, name)
    define.field(Run, "input_files", more="Comma-separated.")
    define.field(
        Run,
        "enable_xla",
        default=None,
        more="Default: on for GPUs and TPUs, where it is faster; off for CPUs, where it is slower. "
        "A resumed run keeps it. JAX compiles everything.",
    )
    define.field(
        LoopOptions,
        "steps_per_loop",
        default=None,
        more="Default: on a TPU the steps of an epoch, at most 1000; elsewhere 1.",
    )
    define.field(LoopOptions, "eval_files")
    define.field(LoopOptions, "profile_steps")
    _define_others(define)
    define.refused(REFUSED)


def _define_others(define):
    """Flags that are no fields: of files, of the official script's epochs, of the devices."""
    text, integer, number = define.text, define.integer, define.number
    text(
        "bert_config_file",
        None,
        "Model configuration: a bert_config.json or config.json. Default: from the folder of "
        "--init_checkpoint.",
    )
    text("model_dir", "/tmp", "Folder for checkpoints and logs. An existing run in it is resumed.")
    integer(
        "resume_from",
        None,
        "Step of the checkpoint to resume from, instead of the newest. The learning rate, other "
        "optimizer settings, the seed and the records may then change; run.json records it.",
        Bounds(minimum=1),
    )
    text(
        "recipe",
        None,
        "Recipe from official_bert/recipes.py, or FILE.py:FUNCTION. It sets the stages of the run "
        "(sequence length, predictions, batch size, steps, learning rate, warm-up), so their flags "
        "are refused, and the optimizer, unless its flags are given.",
    )
    integer(
        "num_steps_per_epoch",
        1000,
        "Steps per epoch; see --num_train_epochs.",
        Bounds(minimum=1),
    )
    number(
        "num_train_epochs",
        3,
        "Number of epochs; total steps = steps per epoch × epochs. On resuming, a larger number "
        "extends the run.",
    )
    integer(
        "train_summary_interval",
        0,
        "TensorBoard summaries; 0: with every line of the log; negative: none.",
    )
    text(
        "engine",
        "tensorflow",
        "Training engine: tensorflow, or jax for a mesh over all devices of all processes without "
        "TensorFlow. Each resumes the other's runs.",
    )
    text(
        "distribution_strategy",
        "mirrored",
        "Devices to train on: off, one_device, mirrored, multi_worker_mirrored or tpu; case does "
        "not matter. With --engine=jax: multi_worker_mirrored or tpu for several processes; "
        "otherwise leave it out.",
    )
    integer(
        "num_gpus",
        None,
        "Number of GPUs to use on this host; 0: train on the CPU. Default: 1 if there is one; with "
        "multi_worker_mirrored, all. Not valid with off and tpu.",
    )
    text(
        "all_reduce_alg",
        None,
        "All-reduce algorithm: nccl or hierarchical_copy with mirrored; nccl or ring with "
        "multi_worker_mirrored.",
    )
    text(
        "tpu",
        "",
        "Name or address of a Cloud TPU, or 'local' for this host's; for "
        "--distribution_strategy=tpu.",
    )
    text(
        "worker_hosts",
        None,
        "Workers for multi_worker_mirrored: host:port of each, comma-separated. Default: from "
        "TF_CONFIG or Slurm's variables.",
    )
    define.switch(
        "shard_optimizer",
        False,
        "With --engine=jax: shard the optimizer's state and arithmetic over the devices, to save "
        "memory. The weights are equal up to rounding.",
    )
    integer("task_index", -1, "Index of this worker in --worker_hosts, from 0.")
    integer(
        "local_workers",
        None,
        "Number of local worker processes, each with its share of the cores; to try out "
        "multi_worker_mirrored on one machine.",
        Bounds(minimum=2),
    )


def check(values: flags.FlagValues) -> None:
    """Refuses what cannot be meant, and warns of flags without effect, which become defaults.

    Raises:
        ValueError: naming the flag, the reason, and what to do.
    """
    for name in ("input_files", "model_dir"):
        if not values[name].value:
            raise ValueError(f"--{name} is required.")
    if not values.bert_config_file and not values.init_checkpoint:
        raise ValueError(
            "--bert_config_file is required, or --init_checkpoint with one in its folder."
        )
    require_finite(values)
    if values.engine not in ENGINES:
        raise ValueError(f"--engine must be {' or '.join(ENGINES)}; got {values.engine!r}.")
    for name in ("input_files", "eval_files"):
        several(values, name)
    steps = values.num_steps_per_epoch * values.num_train_epochs
    if not 1 <= round(steps) < 2**31:
        raise ValueError(
            f"--num_steps_per_epoch times --num_train_epochs must be 1 to {2**31 - 1:,} steps; got "
            f"{values.num_steps_per_epoch} times {values.num_train_epochs:g}."
        )
    if not values.warmup_steps.is_integer():
        raise ValueError(f"--warmup_steps must be a whole number; got {values.warmup_steps:g}.")
    apply(values, RULES)
    optimizer_flags.optimizer(values)  # checks it


def _by_jax(values):
    return values.engine == "jax"


# Those of several devices and hosts depend on the engine, and some on the devices that are there:
# see `engines.strategies`.
RULES = (
    *optimizer_flags.RULES,
    idle(("eval_steps", "eval_batch_size"), lambda v: not v.eval_files, "without --eval_files."),
    contradiction(
        ["init_moments"],
        lambda v: v.init_moments and not v.init_checkpoint,
        "the moments are those of --init_checkpoint; give that too, or leave it out.",
    ),
    contradiction(
        (*STAGE, "num_steps_per_epoch", "num_train_epochs"),
        lambda v: v.recipe is not None,
        "--recipe={recipe} already sets this; leave these flags out, or the recipe.",
    ),
    contradiction(
        ["train_summary_interval"],
        lambda v: v.train_summary_interval > 0 and v.train_summary_interval != v.log_steps,
        "TensorBoard summaries follow the log: set --log_steps, and this to 0, or to a negative "
        "number for none.",
    ),
    contradiction(
        ("worker_hosts", "task_index", "tpu"),
        lambda v: v.local_workers is not None,
        "--local_workers already sets this; leave these flags out.",
    ),
    contradiction(
        ["distribution_strategy"],
        lambda v: (
            v.local_workers is not None and v.distribution_strategy != "multi_worker_mirrored"
        ),
        "--local_workers already sets this; leave it out.",
    ),
    contradiction(
        ["shard_optimizer"],
        lambda v: v.shard_optimizer and not _by_jax(v),
        "only with --engine=jax; tf.distribute keeps the whole state on every replica.",
    ),
    contradiction(
        ["enable_xla"],
        lambda v: v.enable_xla is False and (_by_jax(v) or v.distribution_strategy == "tpu"),
        "JAX and TPUs always compile with XLA; leave it out.",
    ),
    idle(["enable_xla"], _by_jax, "with --engine=jax, where XLA compiles everything."),
    contradiction(
        ["distribution_strategy"],
        lambda v: _by_jax(v) and v.distribution_strategy in ("off", "one_device"),
        "--engine=jax trains on all devices of this machine, and of all machines with "
        "--distribution_strategy=multi_worker_mirrored or tpu; leave it out.",
    ),
    idle(
        ["distribution_strategy"],
        lambda v: _by_jax(v) and v.distribution_strategy == "mirrored",
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
        lambda v: _by_jax(v) and v.distribution_strategy == "tpu",
        "with --engine=jax and --distribution_strategy=tpu, JAX itself finds the hosts of the "
        "slice; leave these flags out.",
    ),
    idle(
        ["num_gpus"],
        lambda v: v.distribution_strategy == "tpu",
        "with --distribution_strategy=tpu, which trains on the TPU's cores.",
    ),
    idle(
        ["all_reduce_alg"],
        lambda v: v.distribution_strategy in ("off", "one_device", "tpu"),
        "with --distribution_strategy={distribution_strategy}; it is for several GPUs.",
    ),
)
