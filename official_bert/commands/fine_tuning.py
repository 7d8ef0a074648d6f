"""Fine-tuning driver: for each seed, train or load a model, then evaluate and predict.

flags → `run` → engine → the command's `FineTuningJob` → for each seed: train or load → `use`
"""

import dataclasses
import gc
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from official_bert.commands import machine, training
from official_bert.commands.fine_tuning_settings import FineTuning, Settings
from official_bert.model.config import BertConfig
from official_bert.stages import LoopOptions, Run, Stage
from official_bert.system import local_paths, messages
from official_bert.system.settings import values_of
from official_bert.tasks import metrics as metric_tables

if TYPE_CHECKING:
    import keras

    from official_bert.checkpoints.source import Head
    from official_bert.protocols import Engine, Task

_INSTEAD = ", or --init_checkpoint, whose folder has one"
_PARTS = {"bert_config_file": "config_file", "vocab_file": "vocab_file"}  # of a `ModelFolder`
RUN = "run.json"  # in the folder of each run
_PROPORTION = 1000  # steps of a schedule whose real number will be measured


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuningJob:
    """The task and data of a fine-tuning command, and its use of the model.

    Args:
        task: A `protocols.Task`.
        config: The shape of the model, from `read_config`: it is read once for all seeds.
        use: Function of (engine, model, folder) that evaluates and predicts as the flags require,
            and returns the metrics, {name: number}.
        arrange: Function of (model, names of a checkpoint's classes, path of the checkpoint) that
            puts its outputs into the task's order.
        train_file: Training examples; None without training.
        examples: Number of training examples, by which epochs are counted.
        eval_files: Examples to evaluate on during training.
        keep: Function that saves the files of the model's users in a run's folder.
        evaluated_on: Entries of `results.json` that name the evaluated examples.
        seed_independent: Suffixes of metrics that do not depend on the seed.
        ranked_by: The metric whose highest value makes the best of several seeds.
    """

    task: "Task"
    config: BertConfig
    use: "Callable[[Engine, keras.Model, str], dict[str, float]]"
    arrange: "Callable[[Any, Sequence[str], str], None]" = lambda model, classes, path: None
    train_file: str | None = None
    examples: int = 0
    eval_files: tuple[str, ...] = ()
    keep: Callable[[str], None] = lambda folder: None
    evaluated_on: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seed_independent: tuple[str, ...] = ()
    ranked_by: str | None = None


def run(args: FineTuning, command: str, make_job: Callable[[Any], FineTuningJob]) -> int:
    """Runs the command; running it again resumes. Returns the exit code.

    Args:
        command: The command's module.
        make_job: Reads the files; called when the engine is there.

    Raises:
        ValueError, OSError, messages.Failed: for the user.
    """
    return messages.resumable(lambda: machine.run(args, command, lambda: _run(args, make_job)))


def read_config(args: FineTuning) -> BertConfig:
    """The `BertConfig` of the flags.

    Raises:
        ValueError: it cannot be read, or its model takes no sequences of `max_seq_length`.
    """
    found = BertConfig.from_json_file(str(args.bert_config_file))  # set by `resolve_paths`
    if args.max_seq_length > found.max_position_embeddings:
        raise ValueError(
            f"--max_seq_length must be at most {found.max_position_embeddings}, the model's "
            f"max_position_embeddings; got {args.max_seq_length}. Give a shorter one."
        )
    return found


def require_head(args: FineTuning, config: BertConfig, wanted: "Head") -> None:
    """Refuses to use a checkpoint without the command's head, before its classes are looked for.

    Raises:
        ValueError: naming the checkpoint and its task.
    """
    if args.do_train or not args.init_checkpoint:
        return
    from official_bert.checkpoints import sources
    from official_bert.checkpoints.source import HEADS, KINDS

    tensors = sources.open_as_init(config, args.init_checkpoint).unmatched.keys()
    found = [head for head in HEADS if head.variables.keys() <= tensors]
    if wanted not in found:
        tasks = {kind.head.part: kind.task for kind in KINDS if kind.head}
        got, cure = "has no head of a task", "Fine-tune it first (--do_train)."
        if found:
            got = f"is for {', '.join(tasks[head.part] for head in found)}"
            cure = "Use the command of its task, or fine-tune it for this one first (--do_train)."
        raise ValueError(
            f"--init_checkpoint must be a model for {tasks[wanted.part]}; got "
            f"{args.init_checkpoint}, which {got}. {cure}"
        )


def resolve_paths(args: Settings, names: tuple[str, ...]) -> Settings:
    """Checks paths; returns the settings with the parts of the model that its folder implies.

    Outputs must be on this machine, and must not overwrite the checkpoint that runs start from.

    Args:
        names: The command's own settings that are paths.

    Raises:
        ValueError: naming the flag and the path; or a model is to be used, and there is none; or a
            part of it is missing, or contradicts its folder.
    """
    names = ("output_dir", "bert_config_file", "vocab_file", *names)
    local_paths.require_local(**{name: getattr(args, name) for name in names})
    if args.init_checkpoint:
        from official_bert.checkpoints import model_folder

        start = {"init_checkpoint": [f"{args.init_checkpoint}.index"]}
        for _, folder in args.seeds_and_folders():
            exports = [os.path.join(folder, name) for name in model_folder.EXPORTS]
            local_paths.require_apart({"output_dir": exports}, start)
    elif not args.do_train:
        _require_models(args)
    return _with_parts_of_folder(args)


def _require_models(args):
    """Refuses folders without a run, and names the runs that are there."""
    output = pathlib.Path(args.output_dir)
    folders = [pathlib.Path(folder) for _, folder in args.seeds_and_folders()]
    missing = next((folder for folder in folders if not (folder / RUN).is_file()), None)
    if missing is None:
        return
    remedy = "Train one there (--do_train)."
    seeds = ", ".join(sorted(file.parent.name for file in output.glob(f"seed_*/{RUN}")))
    if seeds:
        remedy = f"But {output} holds {seeds}: set --seed and --num_seeds to these, or give the "
        remedy += "folder of one as --output_dir and leave --num_seeds out."
    elif (output / RUN).is_file():
        remedy = f"But {output} holds a run of one seed: leave --num_seeds out."
    raise ValueError(f"{missing} must contain a fine-tuned model; got none. {remedy}")


def _with_parts_of_folder(args):
    """The settings of the model that are left out, from its folder.

    That is the folder of the run in --output_dir once it is there, else of --init_checkpoint.
    """
    from official_bert.checkpoints import model_folder
    from official_bert.data import tokenization

    named = {name: getattr(args, name) for name in ("bert_config_file", "vocab_file")}
    uses_other = args.init_checkpoint and not args.do_train
    folder = None if uses_other else args.seeds_and_folders()[0][1]
    model = model_folder.for_training(folder, args.init_checkpoint, args.vocab_file)
    if model:
        model.check_named_vocabulary()
        named = {name: path or getattr(model, _PARTS[name]) for name, path in named.items()}
    for name, path in named.items():
        if not path:
            instead = f", because {model.folder} has none" if model else _INSTEAD
            raise ValueError(f"--{name} is required{instead}.")
        named[name] = str(path)
    given = args.do_lower_case, args.strip_accents
    casing = model.casing(*given) if model else tokenization.casing(named["vocab_file"], *given)
    args = args.replaced(**named, do_lower_case=casing)
    return args if args.do_train else _with_length_of_model(args, model)


def _with_length_of_model(args, model):
    """The settings with the length that the model was trained with, unless another one is given."""
    trained = model.trained_length if model else None
    if not trained or trained == args.max_seq_length:
        return args
    if "max_seq_length" not in args.given:
        return args.replaced(max_seq_length=trained)
    messages.warn(
        f"--max_seq_length={args.max_seq_length} is not the length that the model was trained "
        f"with, {trained}. Leave it out to use that one."
    )
    return args


def _run(args, make_job):
    engine, job, of_seeds = machine.make_engine(args), make_job(args), []
    folders = [pathlib.Path(folder) for _, folder in args.seeds_and_folders()]
    begins = not all((folder / RUN).is_file() for folder in folders)
    if args.do_train and not args.init_checkpoint and begins:
        messages.warn(
            "training starts from random weights, because --init_checkpoint is not given. Give the "
            "folder of a pre-trained model, unless this is intended."
        )
    for seed, folder in args.seeds_and_folders():
        code, results = _run_seed(args, job, engine, seed, folder)
        if code:
            return code
        of_seeds.append(results)
        gc.collect()  # a model and its graphs refer to each other, and fill a GPU
    if args.do_eval and engine.is_chief:
        _report(args, job, of_seeds)
    engine.all_gather([0])  # barrier: wait for the chief
    return 0


def _run_seed(args, job, engine, seed, folder):
    """Trains or loads a model and uses it; the exit code and the results."""
    from official_bert.training import fine_tuned, model_directory

    trainer = None
    if args.do_train:
        trainer = _trainer(args, job, engine, seed, folder)
        code = training.train(trainer)
        if code:
            return code, None
        model, step = trainer.model, trainer.step
    elif args.init_checkpoint:
        start = job.task, job.config, args.init_checkpoint
        model, step = fine_tuned.load_checkpoint(*start, engine, args.dtype, job.arrange), None
        seed = None  # of its training, which is unknown
    else:
        model, step = fine_tuned.load(job.task, folder, engine, args.dtype)
        seed = (model_directory.read_run_json(pathlib.Path(folder)) or {}).get("seed")
    try:
        os.makedirs(folder, exist_ok=True)
        metrics = job.use(engine, model, folder)
        results = _results(args, job, seed, folder, step, metrics, engine.is_chief)
    except BaseException as error:
        if trainer:  # else MLflow would take the run for finished
            trainer.trackers.end(messages.code_of(error))
        raise
    if trainer:
        training.publish(trainer, metrics)  # the report shows `results.json`
    return 0, results


def _results(args, job, seed, folder, step, metrics, is_chief):
    """One run's entry in `results.json`; its metrics go to files in its folder, too."""
    results = {"seed": seed, "output_dir": folder, "global_step": step}
    if not args.do_eval:
        return results
    results["metrics"] = metrics
    steps = {} if step is None else {"global_step": step}
    if is_chief:
        metric_tables.write_eval_results(folder, metrics | steps)
        metric_tables.write_results(folder, _over_seeds(job, [results]))
    return results


def _trainer(args, job, engine, seed, folder):
    from official_bert.checkpoints import model_folder
    from official_bert.data import tokenization
    from official_bert.training.trainer import Trainer

    options = LoopOptions(
        eval_steps=args.eval_steps,
        eval_files=job.eval_files,
        eval_batch_size=args.eval_batch_size,
        tensorboard=True,
        **values_of(LoopOptions, args),
    )
    run = _stages_run(args, job, engine, seed, folder)
    if run.minutes:
        run = _within_minutes(args, run, options, engine, folder)
    trainer = Trainer(run, options, engine, folder, args.resume_from)
    if not engine.is_chief:
        return trainer
    os.makedirs(folder, exist_ok=True)
    model_folder.keep_vocabulary(
        pathlib.Path(folder),
        tokenization.read_vocabulary(args.vocab_file),
        args.do_lower_case,
        run.config.max_position_embeddings,
    )
    job.keep(folder)
    return trainer


def _within_minutes(args, run, options, engine, folder):
    """The run with the number of steps that fits: measured once, and the same for every seed."""
    from official_bert.training import budget

    folders = [folder, *(of_seed for _, of_seed in args.seeds_and_folders())]
    begun = next((one for one in folders if (pathlib.Path(one) / RUN).is_file()), folder)
    # With its own engine: an error of reading ahead is not one of the run.
    return budget.fix(run, options, engine.clone(), begun, args.resume_from)


def _stages_run(args, job, engine, seed, folder):
    enable_xla = machine.enable_xla(args, args.enable_xla, engine, folder)
    return Run(
        config=job.config,
        stages=(_stage(args, job.examples),),
        optimizer=args.optimizer(),
        input_files=(job.train_file,),
        init_checkpoint=args.init_checkpoint,
        seed=seed,
        task=job.task,
        **values_of(Run, args) | {"enable_xla": enable_xla},
    )


def _stage(args, examples):
    """The steps and warm-up steps of the official scripts."""
    steps = int(examples / args.train_batch_size * args.num_train_epochs)
    if args.minutes is not None:
        steps = _PROPORTION
    if steps < 1:
        raise ValueError(
            f"--num_train_epochs must give at least one step; got {args.num_train_epochs:g} of "
            f"{examples} examples in batches of --train_batch_size={args.train_batch_size}. Give "
            "more epochs, or a smaller batch."
        )
    return Stage(
        steps=steps,
        batch_size=args.train_batch_size,
        max_seq_length=args.max_seq_length,
        learning_rate=args.learning_rate,
        warmup_steps=int(steps * args.warmup_proportion),
    )


def _over_seeds(job, of_seeds):
    """The content of `results.json`."""
    of_runs = [results["metrics"] for results in of_seeds]
    summary = metric_tables.summary(of_runs, job.seed_independent)
    return {**job.evaluated_on, "runs": of_seeds, "summary": summary}


def _report(args, job, of_seeds):
    """Prints the metrics over the seeds, and writes them to `results.json`."""
    results = _over_seeds(job, of_seeds)
    print(metric_tables.table(results["summary"]))
    if job.ranked_by and len(of_seeds) > 1:
        best = max(of_seeds, key=lambda results: results["metrics"][job.ranked_by])
        results["best"] = {name: best[name] for name in ("seed", "output_dir")}
        print(
            f"best {job.ranked_by}: {best['metrics'][job.ranked_by]:.4f} of seed {best['seed']}, "
            f"in {best['output_dir']}"
        )
    metric_tables.write_results(args.output_dir, results)
