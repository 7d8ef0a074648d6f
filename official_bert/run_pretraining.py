r"""Pre-trains BERT: records in, checkpoints out, with the flags of the official TensorFlow script.

    python -m official_bert.run_pretraining --bert_config_file=bert_config.json \
        --input_files='records/train_*.tfrecord' --model_dir=model \
        --optimizer_type=lamb --train_batch_size=256 --learning_rate=2e-3 --warmup_steps=100

Run again with the same flags and --model_dir, it goes on where it stopped.
"""

import dataclasses
import sys

from absl import app, flags

from official_bert import local_workers, quiet_tensorflow

# What a recipe decides; a flag that contradicts it would be ignored, so it is refused.
_STAGE_FLAGS = (
    "max_seq_length",
    "max_predictions_per_seq",
    "train_batch_size",
    "num_steps_per_epoch",
    "num_train_epochs",
    "learning_rate",
    "end_lr",
    "warmup_steps",
)
_OPTIMIZER_FLAGS = {  # the field of `stages.Optimizer` that each one sets
    "optimizer_type": "type",
    "weight_decay": "weight_decay",
    "beta_1": "beta_1",
    "beta_2": "beta_2",
    "epsilon": "epsilon",
    "global_clipnorm": "global_clipnorm",
}
# Flags of the official scripts, of 2018 and of TensorFlow 2, that are not here, with the reason.
_REFUSED = {
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
    "scale_loss": "has no counterpart: the loss is always the mean over the global batch.",
    "explicit_allreduce": "has no counterpart: gradients are always summed explicitly, once an "
    "update and before they are clipped.",
    "run_eagerly": "has no counterpart: the loop is always a graph.",
    "fp16_implementation": "has no counterpart: --dtype=fp16 has one implementation.",
}


def define_flags(values=flags.FLAGS):
    """Defines this command's flags; their help texts are its manual."""
    arguments = {"flag_values": values, "module_name": sys.argv[0]}

    def text(name, default, words):
        flags.DEFINE_string(name, default, words, **arguments)

    def integer(name, default, words, **bounds):
        flags.DEFINE_integer(name, default, words, **bounds, **arguments)

    def number(name, default, words, **bounds):
        flags.DEFINE_float(name, default, words, **bounds, **arguments)

    def switch(name, default, words):
        flags.DEFINE_bool(name, default, words, **arguments)

    text(
        "input_files",
        None,
        "Training records: comma-separated paths or globs, each of which must match a file. "
        "{max_seq_length} in them stands for the sequence length of the stage. Required.",
    )
    text("bert_config_file", None, "The model's shape: a bert_config.json. Required.")
    text("model_dir", "/tmp", "Where checkpoints and logs go. A run found there is gone on with.")
    text(
        "init_checkpoint",
        None,
        "Prefix of a checkpoint with the official TensorFlow 1 names. Its weights, the heads' too "
        "as far as it has them, are the starting point; its moments and step are not.",
    )
    text(
        "recipe",
        None,
        "A recipe of official_bert/recipes.py, or FILE.py:FUNCTION. It sets the stages of the run "
        "(sequence length, predictions, batch size, steps, rate, warm-up), which then cannot be "
        "flags, and the optimizer, whose flags, if given, replace the recipe's.",
    )
    integer("max_seq_length", 128, "Tokens a sequence; must equal the records'.")
    integer("max_predictions_per_seq", 20, "Masked tokens a sequence; must equal the records'.")
    integer("train_batch_size", 32, "Sequences an update, over all replicas and micro-batches.")
    integer("num_steps_per_epoch", 1000, "Updates an epoch; see --num_train_epochs.", lower_bound=1)
    number("num_train_epochs", 3, "The run has num_steps_per_epoch times so many updates.")
    number("learning_rate", 5e-5, "Learning rate at the end of warm-up.")
    number("end_lr", 0.0, "Learning rate at the end of the run.")
    integer("warmup_steps", 10000, "Updates over which the rate rises from 0.")
    text("optimizer_type", "adamw", "The optimizer: lamb or adamw.")
    number("weight_decay", 0.01, "Weight decay; LayerNorms and biases are exempt.")
    number("beta_1", 0.9, "Decay of the first moment, in [0, 1).")
    number("beta_2", 0.999, "Decay of the second moment, in [0, 1).")
    number("epsilon", 1e-6, "Epsilon beside the root of the second moment.")
    number("global_clipnorm", 1.0, "Norm the whole gradient is clipped to; 0: no clipping.")
    switch("use_next_sentence_label", True, "Whether the next-sentence task is trained.")
    integer(
        "gradient_accumulation_steps",
        1,
        "Micro-batches an update: each replica works through its share of the batch in so many "
        "parts, which saves memory; gradients are still reduced once an update.",
        lower_bound=1,
    )
    number(
        "masked_lm_prob",
        None,
        "Share of the tokens to mask, for records made with --dynamic_masking. Default of this and "
        "the next two: what the records were made with.",
    )
    switch("do_whole_word_mask", None, "Mask whole words, for records made as above.")
    integer("max_ngram_size", None, "Mask runs of so many words at most, for records as above.")
    integer("seed", 12345, "Decides initial weights, the order of the records and dropout.")
    text("dtype", "fp32", "fp32, bf16 or fp16; weights and moments are float32 in all three.")
    text(
        "reduce_dtype",
        "fp32",
        "In what gradients are summed over replicas and workers: fp32, bf16, or with --dtype=fp16 "
        "also fp16; 16 bits halve what travels.",
    )
    text(
        "loss_scale",
        None,
        "With --dtype=fp16: 'dynamic' (the default) or a number the loss is multiplied with.",
    )
    switch(
        "enable_xla",
        None,
        "Compile forward and backward pass with XLA. Default: on GPUs and TPUs, where it is the "
        "faster choice; not on a CPU, where it is the slower one.",
    )
    integer(
        "steps_per_loop",
        None,
        "Most updates inside one graph call. Default: on a TPU the updates of an epoch, 1000 at "
        "most; else 1.",
        lower_bound=1,
    )
    text("eval_files", None, "Held-out records, as --input_files. Without: no evaluation.")
    integer("eval_batch_size", 32, "Sequences a batch in the evaluation, over all replicas.")
    integer("eval_steps", 0, "Updates between evaluations; 0: at the ends of stages only.")
    integer("log_steps", 100, "Updates between lines of the log.", lower_bound=1)
    integer("train_summary_interval", 0, "TensorBoard summaries beside the log: negative, none.")
    text("profile_steps", None, "FIRST,LAST: a TensorFlow profile of these updates.")
    integer("save_checkpoints_steps", 1000, "Updates between checkpoints.", lower_bound=1)
    integer("keep_checkpoint_max", 5, "Newest checkpoints to keep; 0: all.", lower_bound=0)
    integer(
        "max_skipped_updates",
        20,
        "Give up after so many updates in a row whose gradients are not finite.",
        lower_bound=1,
    )
    text(
        "distribution_strategy",
        "mirrored",
        "off, one_device, mirrored, multi_worker_mirrored or tpu.",
    )
    integer(
        "num_gpus",
        None,
        "GPUs of this host; 0: train on the CPU. Default: 1, if it has one; multi_worker_mirrored: "
        "all.",
    )
    text("all_reduce_alg", None, "mirrored: nccl or hierarchical_copy; multi-worker: nccl or ring.")
    text("tpu", "", "Name or address of a Cloud TPU, for --distribution_strategy=tpu.")
    text(
        "worker_hosts",
        None,
        "multi_worker_mirrored: comma-separated host:port of all workers. Without, TF_CONFIG or "
        "Slurm's variables say who they are.",
    )
    integer("task_index", -1, "This worker's place in --worker_hosts, from 0.")
    integer(
        "local_workers",
        None,
        "Train on so many worker processes of this machine, each with its share of the cores: a "
        "trial of multi_worker_mirrored.",
        lower_bound=2,
    )
    for name, reason in _REFUSED.items():
        flags.DEFINE_string(name, None, f"Refused: --{name} {reason}", **arguments)


def main(arguments, values=flags.FLAGS):
    """Trains what the flags say; returns the exit code."""
    try:
        _check_arguments(arguments, values)
        if values.local_workers:
            return _run_local_workers(values)
        quiet_tensorflow.import_tensorflow()  # takes seconds; what can be refused before it is
        trainer = _trainer(values)
    except (ValueError, OSError) as error:
        return _fail(error)
    except Exception as error:
        return _fail_without_worker(error)
    return _train(trainer, values.model_dir)


def _run_local_workers(values):
    own = ("worker_hosts", "task_index", "tpu", "distribution_strategy")
    given = [f"--{name}" for name in own if values[name].present]
    if given:
        raise ValueError(f"--local_workers sets what {', '.join(given)} would set; leave them out.")
    present = [name for name in values if values[name].present and name != "local_workers"]
    arguments = [values[name].serialize() for name in present if values[name].value is not None]
    return local_workers.run(values.local_workers, "official_bert.run_pretraining", arguments)


def _train(trainer, model_dir):
    from official_bert.training import Diverged
    from official_bert.training_log import Stopped

    try:
        trainer.train()
    except Stopped as stopped:
        print(stopped)
        return stopped.code
    except Diverged as error:
        return _fail(error, code=3)
    except ValueError as error:  # a record, or checkpoints that are all damaged
        return _fail(error)
    except OSError as error:  # the disk, in the middle of the run
        return _fail(f"{error} The checkpoints already written in {model_dir} are intact.")
    except Exception as error:
        return _fail_without_worker(error)
    return 0


def _check_arguments(arguments, values):
    if len(arguments) > 1:
        raise ValueError(f"unexpected argument {arguments[1]!r}; flags begin with --")
    for name, reason in _REFUSED.items():
        if values[name].present:
            raise ValueError(f"--{name} {reason}")
    for name in ("bert_config_file", "input_files"):
        if not values[name].value:
            raise ValueError(f"--{name} is required.")


def _trainer(values):
    from official_bert import distribution, training

    run = _run(values)
    strategy = distribution.make_strategy(
        values.distribution_strategy,
        num_gpus=values.num_gpus,
        tpu=values.tpu,
        worker_hosts=values.worker_hosts,
        task_index=values.task_index,
        all_reduce_alg=values.all_reduce_alg,
    )
    return training.Trainer(run, _reporting(values, strategy), strategy, values.model_dir)


def _run(values):
    from official_bert.config import BertConfig
    from official_bert.stages import Run

    recipe = _recipe(values)
    return Run(
        config=BertConfig.from_json_file(values.bert_config_file),
        stages=recipe.stages,
        optimizer=recipe.optimizer,
        input_files=tuple(values.input_files.split(",")),
        init_checkpoint=values.init_checkpoint,
        seed=values.seed,
        dtype=values.dtype,
        reduce_dtype=values.reduce_dtype,
        loss_scale=values.loss_scale,
        use_next_sentence_label=values.use_next_sentence_label,
        gradient_accumulation_steps=values.gradient_accumulation_steps,
        masked_lm_prob=values.masked_lm_prob,
        do_whole_word_mask=values.do_whole_word_mask,
        max_ngram_size=values.max_ngram_size,
    )


def _recipe(values):
    """Stages and optimizer: those of --recipe, less what flags change; or those of the flags."""
    from official_bert import recipes, stages

    if values.recipe is None:
        optimizer = {field: values[name].value for name, field in _OPTIMIZER_FLAGS.items()}
        stage = stages.Stage(
            steps=round(values.num_steps_per_epoch * values.num_train_epochs),
            batch_size=values.train_batch_size,
            max_seq_length=values.max_seq_length,
            max_predictions_per_seq=values.max_predictions_per_seq,
            learning_rate=values.learning_rate,
            warmup_steps=values.warmup_steps,
            end_learning_rate=values.end_lr,
        )
        return recipes.Recipe(stages=(stage,), optimizer=stages.Optimizer(**optimizer))
    recipe = recipes.find(values.recipe)
    given = [f"--{name}" for name in _STAGE_FLAGS if values[name].present]
    if given:
        raise ValueError(
            f"--recipe={values.recipe} sets what {', '.join(given)} would set; leave them out, or "
            "leave the recipe out."
        )
    changed = {
        field: values[name].value
        for name, field in _OPTIMIZER_FLAGS.items()
        if values[name].present
    }
    optimizer = dataclasses.replace(recipe.optimizer, **changed)
    return dataclasses.replace(recipe, optimizer=optimizer)


def _reporting(values, strategy):
    from official_bert import distribution
    from official_bert.stages import Reporting

    on_accelerator = distribution.runs_on_accelerator(strategy)
    steps_per_loop = values.steps_per_loop
    if steps_per_loop is None:
        on_tpu = values.distribution_strategy == "tpu"
        steps_per_loop = min(1000, values.num_steps_per_epoch) if on_tpu else 1
    return Reporting(
        log_steps=values.log_steps,
        save_checkpoints_steps=values.save_checkpoints_steps,
        keep_checkpoint_max=values.keep_checkpoint_max,
        eval_steps=values.eval_steps,
        eval_files=tuple(values.eval_files.split(",")) if values.eval_files else (),
        eval_batch_size=values.eval_batch_size,
        steps_per_loop=steps_per_loop,
        enable_xla=on_accelerator if values.enable_xla is None else values.enable_xla,
        max_skipped_updates=values.max_skipped_updates,
        tensorboard=values.train_summary_interval >= 0,
        profile_steps=_pair(values.profile_steps),
    )


def _fail_without_worker(error):
    from official_bert import distribution

    reason = distribution.lost_worker(error)
    if reason is None:
        raise error
    return _fail(reason, code=4)


def _pair(text):
    if text is None:
        return None
    try:
        first, last = map(int, text.split(","))
    except ValueError:
        first, last = 1, 0
    if not 0 < first <= last:
        raise ValueError(f"profile_steps must be FIRST,LAST with 0 < FIRST <= LAST; got {text!r}.")
    return first, last


def _fail(reason, code=2):
    print(f"run_pretraining: error: {reason}", file=sys.stderr)
    return code


if __name__ == "__main__":
    define_flags()
    app.run(main)
