"""The flags of `run_pretraining`, and which of them, of other scripts too, are refused and why."""

from absl import flags

from official_bert import optimizer_flags
from official_bert.system.flag_definitions import (
    FlagDefinitions,
    refuse,
    require_finite,
    require_no_refused,
)

# What a recipe decides; a flag that contradicts it would be ignored, so it is refused.
STAGE = (
    "max_seq_length",
    "max_predictions_per_seq",
    "train_batch_size",
    "num_steps_per_epoch",
    "num_train_epochs",
    "learning_rate",
    "end_lr",
    "warmup_steps",
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
    "hub_module_url": "has no counterpart: the model is that of --bert_config_file, and "
    "--init_checkpoint gives it weights.",
    "hub_module_trainable": "has no counterpart: see --hub_module_url.",
    "use_keras_compile_fit": "has no counterpart: there is one loop.",
    "run_eagerly": "has no counterpart: the loop is always a graph.",
    "scale_loss": "has no counterpart: the loss is always the mean over the global batch.",
    "explicit_allreduce": "has no counterpart: gradients are always summed explicitly, once "
    "per update and before they are clipped.",
    "allreduce_bytes_per_pack": "has no counterpart: gradients travel in buckets of 16 MB.",
    "num_packs": "has no counterpart: gradients travel in buckets of 16 MB.",
    "fp16_implementation": "has no counterpart: --dtype=fp16 has one implementation.",
    "tf_gpu_thread_mode": "is the environment variable TF_GPU_THREAD_MODE.",
    "per_gpu_thread_count": "is the environment variable TF_GPU_THREAD_COUNT.",
    "datasets_num_private_threads": "has no counterpart: records are read in one thread, ahead of "
    "the updates.",
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
    text, integer, number, switch = define.text, define.integer, define.number, define.switch
    text(
        "input_files",
        None,
        "Training records: comma-separated paths or globs, each of which must match a file. "
        "{max_seq_length} in them stands for the sequence length of the stage. Required.",
    )
    text("bert_config_file", None, "Model configuration: a bert_config.json. Required.")
    text("model_dir", "/tmp", "Folder for checkpoints and logs. An existing run in it is resumed.")
    integer(
        "resume_from",
        None,
        "Step of the checkpoint to resume from, instead of the newest. The learning rate, other "
        "optimizer settings, the seed and the records may then change; run.json records it.",
        lower_bound=1,
    )
    text(
        "init_checkpoint",
        None,
        "Initial weights: a checkpoint of TensorFlow 1, tf-models or this command, a Hugging Face "
        "folder, or a .keras file. The weights of its heads are used if it has them. A resumed run "
        "no longer needs it.",
    )
    switch(
        "init_moments",
        False,
        "Also load the optimizer's moments and step count from --init_checkpoint.",
    )
    text(
        "recipe",
        None,
        "A recipe of official_bert/recipes.py, or FILE.py:FUNCTION. It sets the stages of the run "
        "(sequence length, predictions, batch size, steps, learning rate, warm-up), whose flags "
        "are then refused, and the optimizer, whose flags take precedence over the recipe.",
    )
    integer("max_seq_length", 128, "Sequence length in tokens; must be that of the records.")
    integer(
        "max_predictions_per_seq",
        20,
        "Maximum number of masked tokens per sequence; must be that of the records.",
    )
    integer(
        "train_batch_size",
        32,
        "Global batch size in sequences, over all replicas and micro-batches.",
    )
    integer(
        "num_steps_per_epoch",
        1000,
        "Steps (updates) per epoch; see --num_train_epochs.",
        lower_bound=1,
    )
    number(
        "num_train_epochs",
        3,
        "Number of epochs; total steps = steps per epoch × epochs. On resuming, a larger number "
        "extends the run.",
    )
    number("learning_rate", 5e-5, "Learning rate after warm-up.")
    number("end_lr", 0.0, "Learning rate at the end of the run.")
    number("warmup_steps", 10000, "Steps of linear warm-up from 0 to --learning_rate.")
    optimizer_flags.define(define)
    switch("use_next_sentence_label", True, "Whether the next-sentence task is trained.")
    integer(
        "gradient_accumulation_steps",
        1,
        "Number of micro-batches per step. Each replica processes its share of the batch in this "
        "many parts, which saves memory; gradients are still reduced once per step.",
        lower_bound=1,
    )
    number(
        "masked_lm_prob",
        None,
        "Fraction of the tokens to mask, for records made with --dynamic_masking. The default of "
        "this and the next two flags is what the records were made with.",
    )
    switch("do_whole_word_mask", None, "Mask whole words; for records made with --dynamic_masking.")
    integer(
        "max_ngram_size",
        None,
        "Maximum length of a masked run in words; for records made with --dynamic_masking.",
    )
    integer("seed", 12345, "Random seed of initial weights, record order, masks and dropout.")
    text(
        "dtype",
        "fp32",
        "Data type of the computation: fp32, bf16 or fp16. Weights and moments are float32.",
    )
    text(
        "reduce_dtype",
        "fp32",
        "Data type of the gradient all-reduce: fp32, bf16, or with --dtype=fp16 also fp16. 16 bits "
        "halve the traffic.",
    )
    text(
        "loss_scale",
        None,
        "Loss scale for --dtype=fp16: 'dynamic' (the default) or a number.",
    )
    switch(
        "enable_xla",
        None,
        "Compile the forward and backward pass with XLA. Default: on for GPUs and TPUs, where it "
        "is faster; off for CPUs, where it is slower. It changes rounding: a resumed run keeps it.",
    )
    integer(
        "steps_per_loop",
        None,
        "Maximum steps per compiled call. Default: on a TPU the steps of an epoch, at most 1000; "
        "elsewhere 1.",
        lower_bound=1,
    )
    text("eval_files", None, "Held-out records, given like --input_files. Default: no evaluation.")
    integer(
        "eval_batch_size",
        32,
        "Global batch size of the evaluation in sequences.",
        lower_bound=1,
    )
    integer(
        "eval_steps",
        0,
        "Steps between evaluations; 0: only at the end of each stage.",
        lower_bound=0,
    )
    integer("log_steps", 100, "Steps between lines of the log.", lower_bound=1)
    integer(
        "train_summary_interval",
        0,
        "TensorBoard summaries: 0 for one per line of the log, a negative number for none.",
    )
    text("profile_steps", None, "FIRST,LAST: write a TensorFlow profile of these steps.")
    integer("save_checkpoints_steps", 1000, "Steps between checkpoints.", lower_bound=1)
    integer(
        "keep_checkpoint_max",
        5,
        "Number of newest checkpoints to keep, beside the last one known to be good; 0: all.",
        lower_bound=0,
    )
    integer(
        "max_skipped_updates",
        20,
        "Stop after this many consecutive steps with non-finite gradients.",
        lower_bound=1,
    )
    text(
        "distribution_strategy",
        "mirrored",
        "off, one_device, mirrored, multi_worker_mirrored or tpu; case does not matter.",
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
        "All-reduce: nccl or hierarchical_copy with mirrored, nccl or ring with multi-worker.",
    )
    text(
        "tpu",
        "",
        "Name or address of a Cloud TPU, or 'local' for this host's. Used with "
        "--distribution_strategy=tpu.",
    )
    text(
        "worker_hosts",
        None,
        "host:port of every worker, comma-separated, for multi_worker_mirrored. Default: from "
        "TF_CONFIG or from Slurm's variables.",
    )
    integer("task_index", -1, "Index of this worker in --worker_hosts, from 0.")
    integer(
        "local_workers",
        None,
        "Number of local worker processes, each with its share of the cores; to try out "
        "multi_worker_mirrored on one machine.",
        lower_bound=2,
    )
    define.refused(REFUSED)


def check(values: flags.FlagValues) -> None:
    """Refuses flags of other scripts, and flags that others of this call would make void.

    Raises:
        ValueError: naming the flag, the reason, and what to do.
    """
    require_no_refused(values, REFUSED)
    for name in ("bert_config_file", "input_files", "model_dir"):
        if not values[name].value:
            raise ValueError(f"--{name} is required.")
    require_finite(values)
    steps = values.num_steps_per_epoch * values.num_train_epochs
    if not 1 <= round(steps) < 2**31:
        raise ValueError(
            f"--num_steps_per_epoch={values.num_steps_per_epoch} times --num_train_epochs="
            f"{values.num_train_epochs:g} must give 1 to {2**31 - 1:,} updates."
        )
    refuse(
        values, ("eval_steps", "eval_batch_size"), not values.eval_files, "only with --eval_files."
    )
    refuse(
        values,
        STAGE,
        values.recipe is not None,
        f"--recipe={values.recipe} already sets this; leave these flags out, or the recipe.",
    )
    optimizer_flags.check(values)
    refuse(
        values,
        ("worker_hosts", "task_index", "tpu", "distribution_strategy"),
        values.local_workers is not None,
        "--local_workers already sets this; leave these flags out.",
    )
    refuse(
        values,
        ("enable_xla",),
        values.distribution_strategy == "tpu" and values.enable_xla is False,
        "XLA compiles everything for a TPU; leave it out.",
    )
    refuse(
        values,
        ("train_summary_interval",),
        values.train_summary_interval > 0,
        "there is a summary for every line of the log; set --log_steps, and this to 0, or to a "
        "negative number for none.",
    )
    if not values.warmup_steps.is_integer():
        raise ValueError(f"--warmup_steps must be a whole number; got {values.warmup_steps:g}.")
