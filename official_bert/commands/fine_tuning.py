"""Fine-tuning driver: for each seed, train or load a model, then evaluate and predict.

flags → `run` → engine → the command's `Work` → for each seed: train or load → `Work.use`
"""

import dataclasses
import gc
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from official_bert.commands import optimizer_flags
from official_bert.system import local_paths, memory, messages, quiet_tensorflow

if TYPE_CHECKING:
    import keras

    from official_bert.engines.tf_distribute import TfDistribute
    from official_bert.model.config import BertConfig
    from official_bert.protocols import Task

_INSTEAD = ", or --init_checkpoint, whose folder has one"
RUN = "run.json"  # in the folder of each run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """What a command fine-tunes, and what it does with the model then.

    Args:
        task: A `protocols.Task`.
        use: Function of (engine, model, folder) that evaluates and predicts what the flags ask for,
            and returns the metrics, {name: number}.
        arrange: Function of (model, names of a checkpoint's classes, path of the checkpoint) that
            puts its outputs into the task's order.
        train_file: The examples to learn from; None if it is not trained.
        examples: Their number, by which epochs are counted.
        eval_files: What is evaluated on during training.
        keep: Function of a run's folder that writes there what using the model needs later.
        evaluated_on: What `results.json` says of the examples that were evaluated on.
        not_of_the_seed: Suffixes of metrics that do not depend on the seed.
    """

    task: "Task"
    use: "Callable[[TfDistribute, keras.Model, str], dict[str, float]]"
    arrange: "Callable[[Any, Sequence[str], str], None]" = lambda model, classes, path: None
    train_file: str | None = None
    examples: int = 0
    eval_files: tuple[str, ...] = ()
    keep: Callable[[str], None] = lambda folder: None
    evaluated_on: Mapping[str, str] = dataclasses.field(default_factory=dict)
    not_of_the_seed: tuple[str, ...] = ()


def run(values: flags.FlagValues, make_work: Callable[[flags.FlagValues], Work]) -> int:
    """Runs the command; running it again resumes. Returns the exit code.

    Args:
        values: The flags, checked.
        make_work: Reads what the flags name; called when TensorFlow is there.

    Raises:
        ValueError, OSError, messages.Failed: for the user.
    """
    return messages.resumable(lambda: _run(values, make_work))


def seeds_and_folders(values: flags.FlagValues) -> list[tuple[int, str]]:
    """The seed and the folder of each run."""
    if values.num_seeds is None:
        return [(values.seed, values.output_dir)]
    seeds = range(values.seed, values.seed + values.num_seeds)
    return [(seed, os.path.join(values.output_dir, f"seed_{seed}")) for seed in seeds]


def config(values: flags.FlagValues) -> "BertConfig":
    """The `BertConfig` of the flags.

    Raises:
        ValueError: it cannot be read, or its model takes no sequences of `max_seq_length`.
    """
    from official_bert.model.config import BertConfig

    found = BertConfig.from_json_file(values.bert_config_file)
    if values.max_seq_length > found.max_position_embeddings:
        raise ValueError(
            f"--max_seq_length must be at most {found.max_position_embeddings}, the model's "
            f"max_position_embeddings; got {values.max_seq_length}. Give a shorter one."
        )
    return found


def check_paths(values: flags.FlagValues, names: tuple[str, ...]) -> None:
    """What is written is on this machine, and is not what the runs start from.

    Args:
        values: The flags.
        names: The command's own flags that are paths.

    Raises:
        ValueError: naming the flag and the path; or a model is to be used, and there is none; or a
            part of it is missing, or contradicts its folder.
    """
    names = ("output_dir", "bert_config_file", "vocab_file", *names)
    local_paths.require_local(**{name: values[name].value for name in names})
    if values.init_checkpoint:
        start = {"init_checkpoint": [f"{values.init_checkpoint}.index"]}
        for _, folder in seeds_and_folders(values):
            exports = [os.path.join(folder, name) for name in ("best", "pretrained")]
            local_paths.require_apart({"output_dir": exports}, start)
    elif not values.do_train:
        _require_models(values)
    _take_from_folder(values)


def _require_models(values):
    """A run in each folder, one with seeds or one without, as the flags say."""
    output = pathlib.Path(values.output_dir)
    folders = [pathlib.Path(folder) for _, folder in seeds_and_folders(values)]
    missing = next((folder for folder in folders if not (folder / RUN).is_file()), None)
    if missing is None:
        return
    mend = "Train one there (--do_train)."
    seeds = ", ".join(sorted(file.parent.name for file in output.glob(f"seed_*/{RUN}")))
    if seeds:
        mend = f"But {output} holds {seeds}: set --seed and --num_seeds to these, or give the "
        mend += "folder of one as --output_dir and leave --num_seeds out."
    elif (output / RUN).is_file():
        mend = f"But {output} holds a run of one seed: leave --num_seeds out."
    raise ValueError(f"{missing} must contain a fine-tuned model; got none. {mend}")


def _take_from_folder(values):
    """Sets the flags of the model that are left out to the parts of its folder.

    That is the folder of the run in --output_dir once it is there, else of --init_checkpoint.
    """
    from official_bert.checkpoints import model_folder
    from official_bert.data import tokenization

    named = {name: values[name].value for name in ("bert_config_file", "vocab_file")}
    uses_other = values.init_checkpoint and not values.do_train
    folder = None if uses_other else seeds_and_folders(values)[0][1]
    model = model_folder.for_training(folder, values.init_checkpoint, **named)
    if model:
        model.check_named_vocabulary()
        values.bert_config_file = named["bert_config_file"] or model.config_file
        values.vocab_file = named["vocab_file"] or model.vocab_file
    for name in named:
        if not values[name].value:
            instead = f", because {model.folder} has none" if model else _INSTEAD
            raise ValueError(f"--{name} is required{instead}.")
        values[name].value = str(values[name].value)
    given = values.do_lower_case
    values.do_lower_case = (
        model.casing(given) if model else tokenization.casing(values.vocab_file, given)
    )


def _run(values, make_work):
    memory.tune_malloc()
    quiet_tensorflow.import_tensorflow()  # takes seconds; what can be refused before it is
    from official_bert.engines.strategies import make_strategy
    from official_bert.engines.tf_distribute import TfDistribute

    strategy = make_strategy(values.distribution_strategy.lower(), num_gpus=values.num_gpus)
    engine, work, of_seeds = TfDistribute(strategy), make_work(values), []
    if values.do_train and not values.init_checkpoint and _begins(values):
        messages.warn(
            "training starts from random weights, because --init_checkpoint is not given. Give the "
            "folder of a pre-trained model, unless this is intended."
        )
    for seed, folder in seeds_and_folders(values):
        code, results = _run_seed(values, work, engine, seed, folder)
        if code:
            return code
        of_seeds.append(results)
        gc.collect()  # a model and its graphs refer to each other, and fill a GPU
    if values.do_eval:
        _report(values, work, of_seeds)
    return 0


def _begins(values):
    """Whether a run is still to begin."""
    return not all(
        (pathlib.Path(folder) / RUN).is_file() for _, folder in seeds_and_folders(values)
    )


def _run_seed(values, work, engine, seed, folder):
    """Trains or loads a model and puts it to use; the exit code, and what was measured."""
    from official_bert.commands import exits
    from official_bert.training import fine_tuned, model_directory

    if values.do_train:
        trainer = _trainer(values, work, engine, seed, folder)
        code = exits.train(trainer)
        if code:
            return code, None
        model, step = trainer.model, trainer.step
    elif values.init_checkpoint:
        start = work.task, config(values), values.init_checkpoint
        model, step = fine_tuned.load_checkpoint(*start, engine, values.dtype, work.arrange), None
        seed = None  # of its training, which is unknown
    else:
        model, step = fine_tuned.load(work.task, folder, engine, values.dtype)
        seed = (model_directory.read_run_json(pathlib.Path(folder)) or {}).get("seed")
    os.makedirs(folder, exist_ok=True)
    metrics = work.use(engine, model, folder)
    return 0, _results(values, seed, folder, step, metrics)


def _results(values, seed, folder, step, metrics):
    """One run's entry in `results.json`; its metrics go to `eval_results.txt`, too."""
    from official_bert.tasks import seed_results

    results = {"seed": seed, "output_dir": folder, "global_step": step}
    if not values.do_eval:
        return results
    steps = {} if step is None else {"global_step": step}
    seed_results.write_eval_results(folder, metrics | steps)
    return results | {"metrics": metrics}


def _trainer(values, work, engine, seed, folder):
    from official_bert.checkpoints import tokenizer_files
    from official_bert.data import tokenization
    from official_bert.stages import LoopOptions
    from official_bert.training.trainer import Trainer

    options = LoopOptions(
        log_steps=values.log_steps,
        save_checkpoints_steps=values.save_checkpoints_steps,
        keep_checkpoint_max=values.keep_checkpoint_max,
        eval_steps=values.eval_steps,
        eval_files=work.eval_files,
        eval_batch_size=values.eval_batch_size,
        steps_per_loop=values.steps_per_loop,
        tensorboard=True,
    )
    run = _stages_run(values, work, engine, seed)
    trainer = Trainer(run, options, engine, folder, values.resume_from)
    os.makedirs(folder, exist_ok=True)
    tokenizer_files.keep(
        pathlib.Path(folder),
        tokenization.read_vocabulary(values.vocab_file),
        values.do_lower_case,
        run.config.max_position_embeddings,
    )
    work.keep(folder)
    return trainer


def _stages_run(values, work, engine, seed):
    from official_bert.stages import Run

    enable_xla = values.enable_xla
    if enable_xla is None:
        enable_xla = engine.runs_on_accelerator()
    return Run(
        config=config(values),
        stages=(_stage(values, work.examples),),
        optimizer=optimizer_flags.optimizer(values),
        input_files=(work.train_file,),
        init_checkpoint=values.init_checkpoint,
        seed=seed,
        enable_xla=enable_xla,
        dtype=values.dtype,
        loss_scale=values.loss_scale,
        task=work.task,
        gradient_accumulation_steps=values.gradient_accumulation_steps,
    )


def _stage(values, examples):
    """As many updates as the official scripts make, and as many of them to warm up."""
    from official_bert.stages import Stage

    steps = int(examples / values.train_batch_size * values.num_train_epochs)
    if steps < 1:
        raise ValueError(
            f"--num_train_epochs must give at least one step; got {values.num_train_epochs:g} of "
            f"{examples} examples in batches of --train_batch_size={values.train_batch_size}. Give "
            "more epochs, or a smaller batch."
        )
    return Stage(
        steps=steps,
        batch_size=values.train_batch_size,
        max_seq_length=values.max_seq_length,
        learning_rate=values.learning_rate,
        warmup_steps=int(steps * values.warmup_proportion),
    )


def _report(values, work, of_seeds):
    """Prints the metrics over the seeds, and writes them to `results.json`."""
    from official_bert.tasks import seed_results

    of_runs = [results["metrics"] for results in of_seeds]
    summary = seed_results.summary(of_runs, work.not_of_the_seed)
    print(seed_results.table(summary))
    results = {**work.evaluated_on, "runs": of_seeds, "summary": summary}
    seed_results.write_results(values.output_dir, results)
