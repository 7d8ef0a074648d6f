"""Pre-trains BERT: records in, checkpoints out, with the flags of the official TensorFlow script.

    python -m official_bert.run_pretraining --bert_config_file=bert_config.json \
        --input_files='records/train_*.tfrecord' --model_dir=model \
        --optimizer_type=lamb --train_batch_size=256 --learning_rate=2e-3 --warmup_steps=100

Run again with the same flags and --model_dir, it goes on where it stopped.
"""

import dataclasses
import sys

from absl import app, flags, logging

FLAGS = flags.FLAGS

flags.DEFINE_list(
    "input_files",
    None,
    "Training records: comma-separated paths or globs; each must match a file. {max_seq_length} "
    "in them stands for the sequence length of the stage.",
)
flags.DEFINE_string("bert_config_file", None, "The model's shape: a bert_config.json.")
flags.DEFINE_string(
    "model_dir", "/tmp", "Where checkpoints and logs go. A run found there is gone on with."
)
flags.DEFINE_string(
    "init_checkpoint",
    None,
    "Prefix of a checkpoint with the official TensorFlow 1 names: its weights, heads included as "
    "far as they are in it, are the starting point. Moments and step are not taken from it.",
)
flags.DEFINE_integer("max_seq_length", 128, "Tokens a sequence; must equal the records'.")
flags.DEFINE_integer(
    "max_predictions_per_seq", 20, "Masked positions a sequence; must equal the records'."
)
flags.DEFINE_integer(
    "train_batch_size", 32, "Sequences an update, summed over replicas and micro-batches."
)
flags.DEFINE_integer(
    "num_steps_per_epoch", 1000, "Updates an epoch; times num_train_epochs they are the run."
)
flags.DEFINE_float("num_train_epochs", 3, "See num_steps_per_epoch.")
flags.DEFINE_float("learning_rate", 5e-5, "Learning rate at the end of warm-up.")
flags.DEFINE_float("end_lr", 0.0, "Learning rate at the end of the run.")
flags.DEFINE_integer("warmup_steps", 10000, "Updates over which the rate rises from 0.")
flags.DEFINE_string(
    "recipe",
    None,
    "A recipe of official_bert/recipes.py, or FILE.py:FUNCTION for one of your own. It sets the "
    "stages of the run: sequence length, predictions, batch size, steps, rate and warm-up, which "
    "then cannot be given as flags; and the optimizer, whose flags replace its values if given.",
)
flags.DEFINE_string("optimizer_type", "adamw", "lamb or adamw.")
flags.DEFINE_float("weight_decay", 0.01, "Weight decay λ, not applied to LayerNorm and biases.")
flags.DEFINE_float("beta_1", 0.9, "Decay of the first moment, in [0, 1).")
flags.DEFINE_float("beta_2", 0.999, "Decay of the second moment, in [0, 1).")
flags.DEFINE_float("epsilon", 1e-6, "ε beside the root of the second moment.")
flags.DEFINE_float("global_clipnorm", 1.0, "Norm the whole gradient is clipped to; 0: no clipping.")
flags.DEFINE_bool("use_next_sentence_label", True, "Whether to train the next-sentence task.")
flags.DEFINE_integer(
    "gradient_accumulation_steps",
    1,
    "Micro-batches an update: each replica works through its share of the batch in so many parts, "
    "which saves memory and changes nothing else.",
)
flags.DEFINE_integer("seed", 12345, "Decides initial weights, order of the records and dropout.")
flags.DEFINE_string("dtype", "fp32", "fp32 or bf16; weights and moments are float32 in both.")
flags.DEFINE_bool("enable_xla", False, "Compile forward and backward pass with XLA.")
flags.DEFINE_integer(
    "steps_per_loop", None, "Most updates inside one graph call. Default: 1; on a TPU up to 1000."
)

flags.DEFINE_list(
    "eval_files", [], "Held-out records, as input_files; without them there is no evaluation."
)
flags.DEFINE_integer("eval_batch_size", 32, "Sequences a batch in the evaluation, all replicas.")
flags.DEFINE_integer("eval_steps", 0, "Updates between evaluations; 0: at the ends of stages only.")
flags.DEFINE_integer("log_steps", 100, "Updates between lines of the log.")
flags.DEFINE_integer("save_checkpoints_steps", 1000, "Updates between checkpoints.")
flags.DEFINE_integer("keep_checkpoint_max", 5, "Newest checkpoints to keep; 0 keeps all.")

flags.DEFINE_string(
    "distribution_strategy",
    "mirrored",
    "off, one_device, mirrored, multi_worker_mirrored or tpu.",
)
flags.DEFINE_integer(
    "num_gpus", None, "GPUs of this host to use; 0: train on the CPU. Default: 1 if there is one."
)
flags.DEFINE_string("tpu", "", "Name or address of a Cloud TPU, for distribution_strategy=tpu.")
flags.DEFINE_string(
    "worker_hosts",
    None,
    "Comma-separated host:port of all workers, for distribution_strategy=multi_worker_mirrored.",
)
flags.DEFINE_integer("task_index", -1, "This worker's place in worker_hosts, from 0.")

# What a recipe decides; a value that contradicts it would be ignored, so it is refused.
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


def main(arguments):
    if len(arguments) > 1:
        return _fail(f"unexpected argument {arguments[1]!r}; flags begin with --")
    logging.set_verbosity(logging.WARNING)
    # TensorFlow takes seconds to import; what can be refused before it is.
    from official_bert import distribution, training
    from official_bert.training_log import Stopped

    try:
        strategy = distribution.make_strategy(
            FLAGS.distribution_strategy,
            num_gpus=FLAGS.num_gpus,
            tpu=FLAGS.tpu,
            worker_hosts=FLAGS.worker_hosts,
            task_index=FLAGS.task_index,
        )
        trainer = training.Trainer(_run(), _reporting(), strategy, FLAGS.model_dir)
    except (ValueError, OSError) as error:
        return _fail(error)
    try:
        trainer.train()
    except Stopped as stopped:
        print(stopped)
        return stopped.code
    except OSError as error:  # the disk, in the middle of the run
        return _fail(f"{error} The checkpoints already written in {FLAGS.model_dir} are intact.")
    return 0


def _run():
    from official_bert.config import BertConfig
    from official_bert.stages import Run

    if not FLAGS.bert_config_file or not FLAGS.input_files:
        raise ValueError("--bert_config_file and --input_files are required.")
    recipe = _recipe()
    return Run(
        config=BertConfig.from_json_file(FLAGS.bert_config_file),
        stages=recipe.stages,
        optimizer=recipe.optimizer,
        input_files=tuple(FLAGS.input_files),
        init_checkpoint=FLAGS.init_checkpoint,
        seed=FLAGS.seed,
        dtype=FLAGS.dtype,
        use_next_sentence_label=FLAGS.use_next_sentence_label,
        gradient_accumulation_steps=FLAGS.gradient_accumulation_steps,
    )


def _recipe():
    """Stages and optimizer: those of --recipe, less what flags change; or those of the flags."""
    from official_bert import recipes, stages

    if FLAGS.recipe is None:
        optimizer = {field: FLAGS[name].value for name, field in _OPTIMIZER_FLAGS.items()}
        stage = stages.Stage(
            steps=int(FLAGS.num_steps_per_epoch * FLAGS.num_train_epochs),
            batch_size=FLAGS.train_batch_size,
            max_seq_length=FLAGS.max_seq_length,
            max_predictions_per_seq=FLAGS.max_predictions_per_seq,
            learning_rate=FLAGS.learning_rate,
            warmup_steps=FLAGS.warmup_steps,
            end_learning_rate=FLAGS.end_lr,
        )
        return recipes.Recipe(stages=(stage,), optimizer=stages.Optimizer(**optimizer))
    recipe = recipes.find(FLAGS.recipe)
    given = [f"--{name}" for name in _STAGE_FLAGS if FLAGS[name].present]
    if given:
        raise ValueError(
            f"--recipe={FLAGS.recipe} sets what {', '.join(given)} would set; leave them out, or "
            "leave the recipe out."
        )
    changed = {
        field: FLAGS[name].value for name, field in _OPTIMIZER_FLAGS.items() if FLAGS[name].present
    }
    optimizer = dataclasses.replace(recipe.optimizer, **changed)
    return dataclasses.replace(recipe, optimizer=optimizer)


def _reporting():
    from official_bert.stages import Reporting

    per_loop = FLAGS.steps_per_loop
    if per_loop is None:
        per_loop = 1000 if FLAGS.distribution_strategy == "tpu" else 1
    return Reporting(
        log_steps=FLAGS.log_steps,
        save_checkpoints_steps=FLAGS.save_checkpoints_steps,
        keep_checkpoint_max=FLAGS.keep_checkpoint_max,
        eval_steps=FLAGS.eval_steps,
        eval_files=tuple(FLAGS.eval_files),
        eval_batch_size=FLAGS.eval_batch_size,
        steps_per_loop=per_loop,
        enable_xla=FLAGS.enable_xla,
    )


def _fail(reason):
    print(f"run_pretraining: error: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    app.run(main)
