r"""Pre-trains BERT: records in, checkpoints out, with the flags of the official TensorFlow script.

    lamb-bert pretrain --bert_config_file=bert_config.json \
        --input_files='records/train.tfrecord-*' --model_dir=model \
        --optimizer_type=lamb --train_batch_size=256 --learning_rate=2e-3 --warmup_steps=100

Run again with the same flags, it resumes from the last checkpoint in --model_dir.
"""

import contextlib
import dataclasses
import os
import sys

from absl import flags

from official_bert import recipes, stages
from official_bert.checkpoints import model_folder, tokenizer_files
from official_bert.commands import commands, flag_definitions, optimizer_flags, pretraining_flags
from official_bert.engines import local_workers
from official_bert.model.config import BertConfig
from official_bert.system import (
    local_paths,
    memory,
    messages,
    places,
    quiet_tensorflow,
)
from official_bert.tasks.pretraining import Pretraining

WORKER_LOST = 4  # exit code


def main(values: flags.FlagValues = flags.FLAGS) -> int:
    """Trains what the flags say; returns the exit code."""
    return messages.resumable(lambda: _main(values))


def _main(values):
    values.distribution_strategy = values.distribution_strategy.lower()
    pretraining_flags.check(values)
    _check_paths(values)
    if values.local_workers:
        return _run_local_workers(values)
    if values.distribution_strategy == "tpu" and values.tpu:
        quiet_tensorflow.prepare_tpu(values.tpu, os.environ)
    memory.tune_malloc()
    _import_engine(values)  # takes seconds; what can be refused before it is
    with _leaving_others(values.engine), _lost_workers_named(values.engine):
        from official_bert.commands import exits

        trainer = _trainer(values)
        return exits.train(trainer)


def _import_engine(values):
    """Imports the engine's library, in silence, and Keras with it as the backend."""
    if "keras" in sys.modules and sys.modules["keras"].backend.backend() != values.engine:
        raise ValueError(
            "--engine must match the Keras backend of this process, "
            f"{sys.modules['keras'].backend.backend()}; got {values.engine}. Start the command in "
            "a process of its own."
        )
    os.environ["KERAS_BACKEND"] = values.engine
    if values.engine == "tensorflow":
        quiet_tensorflow.import_tensorflow()
        return
    from official_bert.engines import jax_processes

    jax_processes.start(
        values.distribution_strategy if values["distribution_strategy"].present else None,
        values.worker_hosts,
        values.task_index,
        os.environ,
        WORKER_LOST,
    )
    with quiet_tensorflow.blocked_imports("matplotlib"):
        import keras  # noqa: F401


def _run_local_workers(values):
    present = [name for name in values if values[name].present and name != "local_workers"]
    arguments = [values[name].serialize() for name in present if values[name].value is not None]
    arguments.append("--distribution_strategy=multi_worker_mirrored")
    return local_workers.run(values.local_workers, "official_bert.run_pretraining", arguments)


def _check_paths(values):
    """What a run writes is on this machine or in an object store, and not what it starts from."""
    local_paths.require_paths(model_dir=values.model_dir, bert_config_file=values.bert_config_file)
    if values.engine == "jax" and values.profile_steps and local_paths.is_address(values.model_dir):
        raise ValueError(
            "--profile_steps must be left out with a model_dir in a bucket, because JAX writes "
            f"profiles only to this machine; got {values.model_dir!r}. Leave it out, or give a "
            "local model_dir."
        )
    if values.init_checkpoint:
        exports = [os.path.join(values.model_dir, name) for name in ("best", "pretrained")]
        start = {"init_checkpoint": [f"{values.init_checkpoint}.index"]}
        local_paths.require_apart({"model_dir": exports}, start)


def _trainer(values):
    from official_bert.training import budget, trainer

    run = run_from_flags(values)
    make_engine = _jax_engine if values.engine == "jax" else _tensorflow_engine
    engine = make_engine(values)
    run = dataclasses.replace(run, enable_xla=_enable_xla(values, engine))
    options, vocabulary = _options(values), _vocabulary(values, run)
    if run.minutes:
        # With an engine of its own: what it reads ahead and cannot read is no error of the run.
        place = values.model_dir, values.resume_from
        run = budget.fix(run, options, engine.clone(), *place)
    made = trainer.Trainer(run, options, engine, values.model_dir, values.resume_from)
    if vocabulary and engine.is_chief:  # of which a model's folder is nothing without
        folder = places.as_path(values.model_dir)
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer_files.keep(folder, *vocabulary, run.config.max_position_embeddings)
    return made


def _vocabulary(values, run):
    """The vocabulary of the model, or else of its records, and the casing; None if unknown.

    Raises:
        ValueError: records were made with another one.
    """
    from official_bert.data import manifest, record_files, tokenization

    model, known, origin = _folder(values), None, ""
    if model and model.vocab_file:
        known = [*tokenization.read_vocabulary(str(model.vocab_file))], model.casing()
        origin = str(model.vocab_file)
    patterns = {p for s in run.stages for p in s.resolve(s.input_files or run.input_files)}
    for path, made in record_files.manifests(sorted(patterns)):
        tokens, casing = manifest.tokens(made), made["settings"].get("do_lower_case", True)
        if known is None:
            known, origin = tokens and (tokens, casing), path
        elif tokenization.digest_of(known[0]) != made["vocabulary"].get("sha256"):
            raise ValueError(
                f"input_files must be made with the vocabulary of {origin}; got {path}, which is "
                "made with another. Make the records again; or if the model was given a new "
                "vocabulary on purpose, put it into the model's folder."
            )
        elif known[1] != casing:
            raise ValueError(
                f"input_files must be made with do_lower_case={known[1]}, as for {origin}; got "
                f"{path}, which is made with {casing}. Make the records again."
            )
    return known


def _tensorflow_engine(values):
    from official_bert.engines.strategies import make_strategy
    from official_bert.engines.tf_distribute import TfDistribute

    strategy = make_strategy(
        values.distribution_strategy,
        num_gpus=values.num_gpus,
        tpu=values.tpu,
        worker_hosts=values.worker_hosts,
        task_index=values.task_index,
        all_reduce_alg=values.all_reduce_alg,
    )
    return TfDistribute(strategy)


def _jax_engine(values):
    from official_bert.engines.jax_mesh import JaxMesh

    return JaxMesh(shards_optimizer=values.shard_optimizer)


def _enable_xla(values, engine):
    """As the flag says, or else the devices; with JAX, a run keeps it and nothing depends on it."""
    if values.engine == "jax":
        from official_bert.training import model_directory

        begun = model_directory.read_run_json(places.as_path(values.model_dir)) or {}
        return bool(begun.get("enable_xla", engine.runs_on_accelerator()))
    return engine.runs_on_accelerator() if values.enable_xla is None else values.enable_xla


def run_from_flags(values: flags.FlagValues) -> stages.Run:
    """The `stages.Run` of the flags, but for `enable_xla`, whose default needs the devices."""
    recipe = _recipe(values)
    task = {name: values[name].value for name in pretraining_flags.PRETRAINING}
    return stages.Run(
        config=_config(values),
        stages=recipe.stages,
        optimizer=recipe.optimizer,
        input_files=flag_definitions.several(values, "input_files"),
        task=Pretraining(**task | {"use_next_sentence_label": recipe.use_next_sentence_label}),
        minutes=recipe.minutes,
        **{name: values[name].value for name in pretraining_flags.RUN},
    )


def _folder(values):
    """The folder of the model that the run starts from, or of the run itself once it has begun."""
    return model_folder.for_training(
        values.model_dir, values.init_checkpoint, bert_config_file=values.bert_config_file
    )


def _config(values):
    """The `BertConfig` of --bert_config_file, or else of the folder of --init_checkpoint."""
    path = values.bert_config_file
    if not path:
        model = _folder(values)
        if model is None:
            raise ValueError("--bert_config_file is required: --init_checkpoint is in no folder.")
        return model.config()
    try:
        return BertConfig.from_json_file(path)
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"--bert_config_file={path} cannot be read: {reason}.") from None


def _recipe(values):
    """The recipe of --recipe, less what flags change; or that of the flags."""
    if values.recipe is None:
        fields = {name: values[flag].value for flag, (name, _) in pretraining_flags.STAGE.items()}
        steps = round(values.num_steps_per_epoch * values.num_train_epochs)
        warmup_steps = int(values.warmup_steps)  # a number in the official script
        stage = stages.Stage(**fields | {"steps": steps, "warmup_steps": warmup_steps})
        return recipes.Recipe(
            stages=(stage,),
            optimizer=optimizer_flags.optimizer(values),
            use_next_sentence_label=values.use_next_sentence_label,
        )
    recipe = recipes.find(values.recipe)
    if values["use_next_sentence_label"].present:
        recipe = dataclasses.replace(recipe, use_next_sentence_label=values.use_next_sentence_label)
    changed = {
        field: values[name].value
        for name, field in optimizer_flags.FIELDS.items()
        if values[name].present
    }
    optimizer = dataclasses.replace(recipe.optimizer, **changed)
    return dataclasses.replace(recipe, optimizer=optimizer)


def _options(values):
    steps_per_loop = values.steps_per_loop
    if steps_per_loop is None:
        on_tpu = values.distribution_strategy == "tpu"
        steps_per_loop = min(1000, values.num_steps_per_epoch) if on_tpu else 1
    return stages.LoopOptions(
        eval_files=flag_definitions.several(values, "eval_files"),
        steps_per_loop=steps_per_loop,
        tensorboard=values.train_summary_interval >= 0,
        profile_steps=_pair(values.profile_steps),
        **{name: values[name].value for name in pretraining_flags.LOOP_OPTIONS},
    )


def _leaving_others(engine):
    """With JAX an error does not wait for the other processes."""
    if engine != "jax":
        return contextlib.nullcontext()
    from official_bert.engines.jax_processes import leaving_others_on_errors

    return leaving_others_on_errors(messages.program or "run_pretraining")


@contextlib.contextmanager
def _lost_workers_named(engine):
    """Says which worker is lost, where that is what an error of the engine means."""
    if engine == "jax":
        from official_bert.engines.jax_processes import lost_worker
    else:
        from official_bert.engines.strategies import lost_worker

    try:
        yield
    except (ValueError, OSError, messages.Failed):
        raise
    except Exception as error:
        reason = lost_worker(error)
        if reason is None:
            raise
        raise messages.Failed(reason, WORKER_LOST) from error


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


if __name__ == "__main__":
    pretraining_flags.define_flags()
    commands.run(main)
