"""Refused flags of other scripts, each with the reason or its replacement."""

from collections.abc import Mapping

from official_bert.commands.arguments import Arguments

_READ_AT_ONCE = "has no counterpart: text is read at once, from --train_file and --predict_file."
_TRAINING = {
    # google-research/bert
    "iterations_per_loop": "is called --steps_per_loop here.",
    # tensorflow/models
    "hub_module_url": "has no counterpart: --bert_config_file defines the model, and "
    "--init_checkpoint its weights.",
    "hub_module_trainable": "has no counterpart: see --hub_module_url.",
    "use_keras_compile_fit": "has no counterpart: there is only one training loop.",
    "run_eagerly": "has no counterpart: the training loop is always a graph.",
}
_MACHINE = {  # google-research/bert
    "use_tpu": "is --distribution_strategy=tpu here.",
    "tpu_name": "is called --tpu here.",
    "tpu_zone": "has no counterpart: --tpu takes a name in this machine's zone, or an address.",
    "gcp_project": "has no counterpart: --tpu takes a name in this project, or an address.",
    "master": "has no counterpart: --tpu takes the address of a TPU.",
    "num_tpu_cores": "has no counterpart: all cores of --tpu are used.",
}
_PRETRAIN = {
    # google-research/bert
    "input_file": "is called --input_files here.",
    "output_dir": "is called --model_dir here.",
    "num_train_steps": "is --num_steps_per_epoch times --num_train_epochs here.",
    "num_warmup_steps": "is called --warmup_steps here.",
    "max_eval_steps": "has no counterpart: every evaluation reads all of --eval_files once.",
    "do_train": "has no counterpart: this command trains.",
    "do_eval": "has no counterpart: --eval_files makes the run evaluate.",
    # tensorflow/models
    "model_export_path": "has no counterpart: the weights go to pretrained/ in --model_dir.",
    "sub_model_export_name": "has no counterpart: the weights go to pretrained/ in --model_dir.",
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
_FINE_TUNING = {
    # tensorflow/models
    "mode": "is --do_train, --do_eval and --do_predict here.",
    "model_dir": "is called --output_dir here.",
    "num_eval_per_epoch": "is --eval_steps here, in steps.",
    "train_data_size": "has no counterpart: the examples are counted.",
    "predict_checkpoint_path": "is --output_dir here, with --do_predict only.",
    "end_lr": "has no counterpart: the learning rate ends at 0.",
    "model_export_path": "has no counterpart: the weights go to pretrained/ in --output_dir.",
    # Hugging Face
    "model_name_or_path": "is --init_checkpoint here.",
    "test_file": "is called --predict_file here.",
    "per_device_train_batch_size": "is --train_batch_size here, for all devices together.",
    "per_device_eval_batch_size": "is --eval_batch_size here, for all devices together.",
    "warmup_ratio": "is called --warmup_proportion here.",
    "fp16": "is --dtype=fp16 here.",
    "bf16": "is --dtype=bf16 here.",
}
_CLASSIFY = {
    # tensorflow/models
    "train_data_path": "has no counterpart: text is read at once, from --data_dir or --train_file.",
    "eval_data_path": "has no counterpart: text is read at once, from --data_dir or --dev_file.",
    "test_data_path": "has no counterpart: text is read at once, from --data_dir or "
    "--predict_file.",
    "input_meta_data_path": "has no counterpart: the length is --max_seq_length, and the classes "
    "come from the data.",
    # Hugging Face
    "validation_file": "is called --dev_file here.",
}
_SQUAD = {
    # tensorflow/models
    "train_data_path": _READ_AT_ONCE,
    "eval_data_path": _READ_AT_ONCE,
    "input_meta_data_path": "has no counterpart: the length is --max_seq_length.",
    # Hugging Face
    "validation_file": "is called --predict_file here.",
    "pad_to_max_length": "has no counterpart: windows are padded to --max_seq_length.",
    "max_train_samples": "has no counterpart: give a smaller --train_file.",
}
_ONE_DEVICE = "has no counterpart: one device of this machine computes."
_EXTRACT_FEATURES = {  # google-research/bert
    "use_tpu": _ONE_DEVICE,
    "master": _ONE_DEVICE,
    "num_tpu_cores": _ONE_DEVICE,
    "use_one_hot_embeddings": "has no counterpart: it does not change the vectors.",
}
# By the name of the dataclass; its subclasses refuse them too.
REFUSED = {
    "Training": _TRAINING,
    "Machine": _MACHINE,
    "Pretrain": _PRETRAIN,
    "FineTuning": _FINE_TUNING,
    "Classify": _CLASSIFY,
    "Squad": _SQUAD,
    "ExtractFeatures": _EXTRACT_FEATURES,
}


def flags(settings: type[Arguments]) -> Mapping[str, str]:
    """{name: reason} of the flags that a command refuses."""
    found: dict[str, str] = {}
    for base in reversed(settings.__mro__):
        found |= REFUSED.get(base.__name__, {})
    return found
