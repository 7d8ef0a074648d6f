"""Flags shared by `run_squad` and `run_classifier`, and flags of other scripts that are refused.

Flags that all training has are fields of the dataclasses in `stages`, which contain their words.
"""

from absl import flags

from official_bert.commands import optimizer_flags
from official_bert.commands.flag_definitions import (
    FlagDefinitions,
    contradiction,
    idle,
    require_finite,
)
from official_bert.stages import LoopOptions, Run
from official_bert.system.settings import Bounds

STRATEGIES = ("off", "one_device", "mirrored")
# What only training reads.
_OF_TRAINING = (
    "train_file",
    "train_batch_size",
    "learning_rate",
    "num_train_epochs",
    "warmup_proportion",
    *optimizer_flags.FIELDS,
    "gradient_accumulation_steps",
    "loss_scale",
    "enable_xla",
    "log_steps",
    "eval_steps",
    "save_checkpoints_steps",
    "keep_checkpoint_max",
    "steps_per_loop",
)
RULES = (
    idle(_OF_TRAINING, lambda v: not v.do_train, "without --do_train."),
    *optimizer_flags.RULES,
    idle(
        ["seed"],
        lambda v: not v.do_train and v.num_seeds is None,
        "without --do_train: the model is that of --output_dir or --init_checkpoint.",
    ),
    idle(("eval_batch_size", "eval_steps"), lambda v: not v.do_eval, "without --do_eval."),
    idle(["predict_batch_size"], lambda v: not v.do_predict, "without --do_predict."),
    contradiction(
        ["resume_from"],
        lambda v: not v.do_train,
        "only with --do_train; to use a certain checkpoint, give it as --init_checkpoint.",
    ),
    contradiction(
        ["num_seeds"],
        lambda v: v.init_checkpoint and not v.do_train,
        "--init_checkpoint is one model; leave one of the two out.",
    ),
    contradiction(
        ["resume_from"],
        lambda v: v.num_seeds is not None,
        "works on a single run: drop --num_seeds and set --output_dir to its folder.",
    ),
)
_ON_SEVERAL_HOSTS = (
    "has no counterpart: fine-tuning runs on one host, on one of its devices or all of them; "
    "see --distribution_strategy."
)
# Flags of the scripts of google-research/bert, tensorflow/models and Hugging Face not here.
REFUSED = {
    # google-research/bert
    "iterations_per_loop": "is called --steps_per_loop here.",
    "use_tpu": _ON_SEVERAL_HOSTS,
    "tpu_name": _ON_SEVERAL_HOSTS,
    "tpu_zone": _ON_SEVERAL_HOSTS,
    "gcp_project": _ON_SEVERAL_HOSTS,
    "master": _ON_SEVERAL_HOSTS,
    "num_tpu_cores": _ON_SEVERAL_HOSTS,
    # tensorflow/models
    "mode": "is --do_train, --do_eval and --do_predict here.",
    "model_dir": "is called --output_dir here.",
    "num_eval_per_epoch": "is --eval_steps here, in steps.",
    "train_data_size": "has no counterpart: the examples are counted.",
    "predict_checkpoint_path": "is --output_dir here, with --do_predict only.",
    "end_lr": "has no counterpart: the learning rate ends at 0.",
    "tpu": _ON_SEVERAL_HOSTS,
    "worker_hosts": _ON_SEVERAL_HOSTS,
    "task_index": _ON_SEVERAL_HOSTS,
    "hub_module_url": "has no counterpart: --bert_config_file defines the model, and "
    "--init_checkpoint its weights.",
    "hub_module_trainable": "has no counterpart: see --hub_module_url.",
    "model_export_path": "has no counterpart: the weights go to pretrained/ in --output_dir.",
    "use_keras_compile_fit": "has no counterpart: there is only one training loop.",
    "run_eagerly": "has no counterpart: the training loop is always a graph.",
    # Hugging Face
    "model_name_or_path": "is --init_checkpoint here.",
    "test_file": "is called --predict_file here.",
    "per_device_train_batch_size": "is --train_batch_size here, for all devices together.",
    "per_device_eval_batch_size": "is --eval_batch_size here, for all devices together.",
    "warmup_ratio": "is called --warmup_proportion here.",
    "fp16": "is --dtype=fp16 here.",
    "bf16": "is --dtype=bf16 here.",
}


def define(definitions: FlagDefinitions) -> None:
    """Defines the flags; their help texts are the commands' manual."""
    _define_model(definitions)
    _define_training(definitions)
    _define_where(definitions)


def _define_model(define):
    text = define.text
    text(
        "bert_config_file",
        None,
        "Model configuration: a bert_config.json or config.json. Default: from the folder of "
        "--init_checkpoint.",
    )
    text(
        "vocab_file",
        None,
        "Vocabulary of the pre-trained model: a vocab.txt or tokenizer.json, which is copied to "
        "--output_dir. Default: from the folder of --init_checkpoint.",
    )
    define.switch(
        "do_lower_case",
        None,
        "Whether the vocabulary is uncased. Default: as in tokenizer.json or "
        "tokenizer_config.json; else whether it has no upper-case letter.",
    )
    text(
        "init_checkpoint",
        None,
        "Pre-trained weights: a checkpoint of TensorFlow 1, tf-models or run_pretraining, a "
        "Hugging Face folder, or a .keras file. A resumed run no longer needs it. Without "
        "--do_train: a fine-tuned checkpoint to use instead of the newest in --output_dir.",
    )
    text("output_dir", None, "Folder for checkpoints, log, scores and predictions. Required.")
    define.switch("do_train", False, "Train. An existing run in --output_dir is resumed.")


def _define_training(define):
    integer, number = define.integer, define.number
    integer(
        "train_batch_size", 32, "Global batch size of training, in examples.", Bounds(minimum=1)
    )
    integer(
        "eval_batch_size", 8, "Global batch size of evaluation, in examples.", Bounds(minimum=1)
    )
    integer(
        "predict_batch_size", 8, "Global batch size of prediction, in examples.", Bounds(minimum=1)
    )
    number(
        "learning_rate",
        5e-5,
        "Learning rate after warm-up; it then decays linearly to 0.",
        Bounds(minimum=0),
    )
    number(
        "num_train_epochs",
        3.0,
        "Number of epochs; total steps = examples / batch × epochs.",
        Bounds(above=0),
    )
    number(
        "warmup_proportion",
        0.1,
        "Fraction of the steps with linear warm-up from 0.",
        Bounds(minimum=0, maximum=1, hint="10 % is 0.1."),
    )
    optimizer_flags.define(define)
    define.field(Run, "gradient_accumulation_steps")
    integer("seed", 12345, "Random seed of the head's initial weights, example order and dropout.")
    integer(
        "num_seeds",
        None,
        "Number of seeds to train with, from --seed up, each in seed_N of --output_dir; mean, "
        "deviation, median and best of each metric are printed.",
        Bounds(minimum=1),
    )
    integer(
        "resume_from",
        None,
        "Step of the checkpoint to resume from, instead of the newest. The learning rate and other "
        "optimizer settings may then change; run.json records it.",
        Bounds(minimum=1),
    )


def _define_where(define):
    text, integer = define.text, define.integer
    define.field(Run, "dtype")
    define.field(Run, "loss_scale")
    define.field(Run, "enable_xla", default=None, more="Default: on for GPUs, off for CPUs.")
    text(
        "distribution_strategy",
        "mirrored",
        "Devices of this host to use: off, one_device or mirrored (all).",
    )
    integer(
        "num_gpus",
        None,
        "Number of GPUs to use on this host; 0: train on the CPU. Default: 1 if there is one.",
    )
    for name in ("steps_per_loop", "log_steps", "save_checkpoints_steps", "keep_checkpoint_max"):
        define.field(LoopOptions, name)
    integer(
        "eval_steps",
        0,
        "Steps between evaluations during training, with --do_eval; 0: only at its end.",
        Bounds(minimum=0),
    )


def check_required(values: flags.FlagValues, work: str) -> None:
    """Refuses a call that lacks what every call needs.

    Args:
        values: The flags.
        work: What the command can do, for the error if nothing is to be done.

    Raises:
        ValueError: naming the flag, the reason, and what to do.
    """
    require_finite(values)
    if not (values.do_train or values.do_eval or values.do_predict):
        raise ValueError(f"nothing to do: {work}.")
    if not values.output_dir:
        raise ValueError("--output_dir is required.")
    if values.distribution_strategy.lower() not in STRATEGIES:
        raise ValueError(
            f"--distribution_strategy must be {', '.join(STRATEGIES[:-1])} or {STRATEGIES[-1]}; "
            f"got {values.distribution_strategy!r}. Fine-tuning runs on one host."
        )
