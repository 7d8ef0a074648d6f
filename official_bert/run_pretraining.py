r"""Pre-trains BERT: records in, checkpoints out, with the flags of the official TensorFlow script.

    lamb-bert pretrain --bert_config_file=bert_config.json \
        --input_files='records/train.tfrecord-*' --model_dir=model \
        --optimizer_type=lamb --train_batch_size=256 --learning_rate=2e-3 --warmup_steps=100

Run again with the same flags, it resumes from the last checkpoint in --model_dir.
"""

import dataclasses
import os

from official_bert import recipes, stages
from official_bert.checkpoints import model_folder
from official_bert.commands import commands, machine, pretraining_settings, training
from official_bert.commands.pretraining_settings import Pretrain
from official_bert.model.config import BertConfig
from official_bert.system import local_paths, messages, places
from official_bert.system.settings import values_of
from official_bert.tasks.pretraining import Pretraining


def main(args: Pretrain) -> int:
    """Trains; returns the exit code."""
    return messages.resumable(lambda: _main(args))


def _main(args):
    args = pretraining_settings.check(args)
    _check_paths(args)
    return machine.run(args, "run_pretraining", lambda: _train(args))


def _train(args):
    trainer = _trainer(args)
    return training.train(trainer) or training.publish(trainer)


def _check_paths(args):
    """The output folder is local or in an object store, and not the initial checkpoint's."""
    local_paths.require_paths(model_dir=args.model_dir, bert_config_file=args.bert_config_file)
    if args.engine == "jax" and args.profile_steps and local_paths.is_address(args.model_dir):
        raise ValueError(
            "--profile_steps must be left out with a model_dir in a bucket, because JAX writes "
            f"profiles only to this machine; got {args.model_dir!r}. Leave it out, or give a "
            "local model_dir."
        )
    if args.init_checkpoint:
        exports = [os.path.join(args.model_dir, name) for name in model_folder.EXPORTS]
        start = {"init_checkpoint": [f"{args.init_checkpoint}.index"]}
        local_paths.require_apart({"model_dir": exports}, start)


def _trainer(args):
    from official_bert.training import budget, trainer

    run = run_from_flags(args)
    engine = machine.make_engine(args)
    enable_xla = machine.enable_xla(args, args.enable_xla, engine, args.model_dir)
    run = dataclasses.replace(run, enable_xla=enable_xla)
    options, vocabulary = _options(args), _vocabulary(args, run, engine.is_chief)
    if run.minutes:
        # With its own engine: an error of reading ahead is not one of the run.
        place = args.model_dir, args.resume_from
        run = budget.fix(run, options, engine.clone(), *place)
    made = trainer.Trainer(run, options, engine, args.model_dir, args.resume_from)
    if vocabulary and engine.is_chief:  # of which a model's folder is nothing without
        folder = places.as_path(args.model_dir)
        folder.mkdir(parents=True, exist_ok=True)
        model_folder.keep_vocabulary(folder, *vocabulary, run.config.max_position_embeddings)
    return made


def _vocabulary(args, run, warn=False):
    """The vocabulary of the model, or else of its records, and the casing; None if unknown.

    Raises:
        ValueError: records were made with another one.
    """
    from official_bert.data import manifest, record_files, tokenization

    model, known, origin = _folder(args), None, ""
    if model and model.vocab_file:
        known = [*tokenization.read_vocabulary(str(model.vocab_file))], model.casing()
        origin = str(model.vocab_file)
    named = {
        "input_files": {p for s in run.stages for p in s.resolve(s.input_files or run.input_files)},
        "eval_files": {p for s in run.stages for p in s.resolve(args.eval_files)},
    }
    manifests = record_files.manifests(sorted(named["input_files"]))
    files = {line: path for path, made in manifests for line in manifest.warnings(made)}
    for line, path in files.items() if warn else ():
        messages.warn(f"{path}: {line}")
    found = [("input_files", *each) for each in manifests]
    if named["eval_files"]:
        held_out = record_files.manifests(sorted(named["eval_files"]))
        found += [("eval_files", *each) for each in held_out]
    compared: dict[tuple, tuple] = {
        (name, id(made)): (name, path, made) for name, path, made in found
    }
    for name, path, made in compared.values():  # once for all shards of a build
        casing = made["settings"].get("do_lower_case", True)
        if known is None:
            if name == "eval_files":
                break  # they never name the vocabulary of the model
            tokens = manifest.tokens(made)
            known, origin = tokens and (tokens, casing), path
        elif tokenization.digest_of(known[0]) != made["vocabulary"].get("sha256"):
            raise ValueError(
                f"{name} must be made with the vocabulary of {origin}; got {path}, which is "
                "made with another. Make the records again; or if the model was given a new "
                "vocabulary on purpose, put it into the model's folder."
            )
        elif known[1] != casing:
            raise ValueError(
                f"{name} must be made with {tokenization.as_flags(known[1])}, as for "
                f"{origin}; got {path}, which is made with {tokenization.as_flags(casing)}. Make "
                "the records again."
            )
    return known


def run_from_flags(args: Pretrain) -> stages.Run:
    """The `stages.Run` of the flags, but for `enable_xla`, whose default needs the devices."""
    recipe = _recipe(args)
    task = values_of(Pretraining, args)
    return stages.Run(
        config=_config(args),
        stages=recipe.stages,
        optimizer=recipe.optimizer,
        task=Pretraining(**task | {"use_next_sentence_label": recipe.use_next_sentence_label}),
        **values_of(stages.Run, args)
        | {
            "enable_xla": bool(args.enable_xla),
            "minutes": args.minutes if recipe.minutes is None else recipe.minutes,
        },
    )


def _folder(args):
    """The folder of the model that the run starts from, or of the run itself once it has begun."""
    return model_folder.for_training(args.model_dir, args.init_checkpoint)


def _config(args):
    """The `BertConfig` of --bert_config_file, or else of the folder of --init_checkpoint."""
    path = args.bert_config_file
    if not path:
        model = _folder(args)
        if model is None:
            raise ValueError(
                "--bert_config_file is required, because the folder of --init_checkpoint is read "
                f"only on this machine; got {args.init_checkpoint!r}. Copy its bert_config.json "
                "here."
            )
        return model.config()
    try:
        return BertConfig.from_json_file(path)
    except OSError as error:
        raise ValueError(
            f"--bert_config_file must be a readable file; got {path!r} "
            f"({error.strerror or error}). Check the path."
        ) from None


def _recipe(args):
    """The recipe of --recipe, changed by flags; or one made of the flags."""
    if args.recipe is None:
        fields = values_of(stages.Stage, args)
        steps = round(args.num_steps_per_epoch * args.num_train_epochs)
        warmup_steps = int(args.warmup_steps)  # a number in the official script
        stage = stages.Stage(**fields | {"steps": steps, "warmup_steps": warmup_steps})
        return recipes.Recipe(
            stages=(stage,),
            optimizer=args.optimizer(),
            use_next_sentence_label=args.use_next_sentence_label,
        )
    recipe = recipes.find(args.recipe)
    if args.minutes is not None and recipe.minutes is not None:
        raise ValueError(
            f"--minutes: --recipe={args.recipe} already sets this; leave one of the two out."
        )
    if "use_next_sentence_label" in args.given:
        recipe = dataclasses.replace(recipe, use_next_sentence_label=args.use_next_sentence_label)
    changed = values_of(stages.Optimizer, args, args.given)
    optimizer = dataclasses.replace(recipe.optimizer, **changed)
    return dataclasses.replace(recipe, optimizer=optimizer)


def _options(args):
    steps_per_loop = args.steps_per_loop
    if steps_per_loop is None:
        on_tpu = args.distribution_strategy == "tpu"
        steps_per_loop = min(1000, args.num_steps_per_epoch) if on_tpu else 1
    changed = {"steps_per_loop": steps_per_loop, "profile_steps": _pair(args.profile_steps)}
    return stages.LoopOptions(
        tensorboard=args.train_summary_interval >= 0,
        **values_of(stages.LoopOptions, args) | changed,
    )


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
    commands.run(main, Pretrain)
