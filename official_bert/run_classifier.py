r"""Fine-tunes BERT to classify sentences, or to say a number of them: GLUE, or tables of your own.

    python -m official_bert.run_classifier --task_name=MRPC --data_dir=glue_data/MRPC \
        --bert_config_file=bert_config.json --vocab_file=vocab.txt \
        --init_checkpoint=bert_model.ckpt --output_dir=mrpc --do_train --do_eval --num_seeds=5

Run again with the same flags, it resumes from the last checkpoint in --output_dir.
"""

import gc
import os

from absl import flags

from official_bert import classifier_flags, optimizer_flags
from official_bert.system import commands, freed_memory, local_paths, quiet_tensorflow

LABELS = "labels.json"


def main(values: flags.FlagValues = flags.FLAGS) -> int:
    """Does what the flags say; returns the exit code."""
    try:
        return _main(values)
    except KeyboardInterrupt:  # before the first update, or for the second time
        print("Stopped at once. The same command resumes the last checkpoint, if any.")
        return 130


def _main(values):
    values.distribution_strategy = values.distribution_strategy.lower()
    classifier_flags.check(values)
    _check_paths(values)
    freed_memory.keep()
    quiet_tensorflow.import_tensorflow()  # takes seconds; what can be refused before it is
    from official_bert.engines.strategies import make_strategy
    from official_bert.engines.tf_distribute import TfDistribute

    engine = TfDistribute(make_strategy(values.distribution_strategy, num_gpus=values.num_gpus))
    sets = _sets(values)
    of_seeds = []
    for seed, folder in _runs(values):
        code, results = _run(values, sets, engine, seed, folder)
        if code:
            return code
        of_seeds.append(results)
        gc.collect()  # a model and its graphs refer to each other, and fill a GPU
    if values.do_eval:
        _report(values, of_seeds)
    return 0


def _runs(values):
    """The seed and the folder of each run."""
    if values.num_seeds is None:
        return [(values.seed, values.output_dir)]
    seeds = range(values.seed, values.seed + values.num_seeds)
    return [(seed, os.path.join(values.output_dir, f"seed_{seed}")) for seed in seeds]


def _check_paths(values):
    """What is written is on this machine, and is not what the runs start from."""
    names = ("output_dir", "bert_config_file", "vocab_file", "data_dir")
    tables = ("train_file", "dev_file", "predict_file")
    local_paths.require_local(**{name: values[name].value for name in (*names, *tables)})
    if values.init_checkpoint:
        start = {"init_checkpoint": [f"{values.init_checkpoint}.index"]}
        for _, folder in _runs(values):
            exports = [os.path.join(folder, name) for name in ("best", "pretrained")]
            local_paths.require_apart({"output_dir": exports}, start)


def _sets(values):
    """The examples that the flags name; all of them are read here for the first time."""
    from official_bert.tasks import classification_sets, glue
    from official_bert.tasks.sentence_examples import Columns

    vocabulary = values.vocab_file, values.do_lower_case
    if values.task_name:
        sets = classification_sets.of_glue(
            glue.task(values.task_name),
            values.data_dir,
            *vocabulary,
            train=values.do_train,
            dev=values.do_eval,
            test=values.do_predict,
            predict_file=values.predict_file,
        )
    else:
        columns = Columns(values.sentence1_column, values.sentence2_column, values.label_column)
        sets = classification_sets.of_tables(
            columns,
            _known_labels(values),
            *vocabulary,
            train_file=values.train_file,
            dev_file=values.dev_file,
            predict_file=values.predict_file,
        )
    sets.check(values.max_seq_length, _config(values))
    return sets


def _known_labels(values):
    """What is predicted, but for classes that training has yet to find: `None`."""
    from official_bert.tasks import labels

    if values.label_type == "number":
        return labels.Numbers()
    if values.do_train:
        return None
    return labels.load(os.path.join(_runs(values)[0][1], LABELS))


def _config(values):
    from official_bert.conversion import sources

    return sources.read_config(values.bert_config_file)


# One run


def _run(values, sets, engine, seed, folder):
    """Trains, evaluates and predicts with one seed; the exit code, and what was measured."""
    from official_bert.training import exits, fine_tuned

    if values.do_train:
        trainer = _trainer(values, sets, engine, seed, folder)
        code = exits.train(trainer)
        if code:
            return code, None
        model, step = trainer.model, trainer.step
    elif values.init_checkpoint:
        start = sets.task, _config(values), values.init_checkpoint
        model, step = fine_tuned.load_checkpoint(*start, engine, values.dtype), None
    else:
        model, step = fine_tuned.load(sets.task, folder, engine, values.dtype)
    results = {"seed": seed, "output_dir": folder, "global_step": step}
    if values.do_eval:
        results["metrics"] = _evaluate(values, sets, engine, model, step, folder)
    if values.do_predict:
        _predict(values, sets, engine, model, folder)
    return 0, results


def _trainer(values, sets, engine, seed, folder):
    from official_bert.stages import Reporting
    from official_bert.tasks import labels
    from official_bert.training.trainer import Trainer

    run = _stages_run(values, sets, engine, seed)
    reporting = Reporting(
        log_steps=values.log_steps,
        save_checkpoints_steps=values.save_checkpoints_steps,
        keep_checkpoint_max=values.keep_checkpoint_max,
        eval_steps=values.eval_steps,
        eval_files=tuple(sets.dev_files.values())[:1],
        eval_batch_size=values.eval_batch_size if values.do_eval else engine.num_replicas,
        steps_per_loop=values.steps_per_loop,
        tensorboard=True,
    )
    trainer = Trainer(run, reporting, engine, folder, values.resume_from)
    labels.save(sets.task.labels, os.path.join(folder, LABELS))
    return trainer


def _stages_run(values, sets, engine, seed):
    from official_bert.stages import Optimizer, Run

    enable_xla = values.enable_xla
    if enable_xla is None:
        enable_xla = engine.runs_on_accelerator()
    config = _config(values)
    return Run(
        config=config,
        stages=(_stage(values, sets, config),),
        optimizer=Optimizer(
            **{field: values[name].value for name, field in optimizer_flags.FIELDS.items()}
        ),
        input_files=(sets.train_file,),
        init_checkpoint=values.init_checkpoint,
        seed=seed,
        enable_xla=enable_xla,
        dtype=values.dtype,
        loss_scale=values.loss_scale,
        task=sets.task,
        gradient_accumulation_steps=values.gradient_accumulation_steps,
    )


def _stage(values, sets, config):
    """As many updates as the official script makes, and as many of them to warm up."""
    from official_bert.stages import Stage

    arrays = sets.task.labelled_arrays(sets.train_file, values.max_seq_length, config)
    examples = len(arrays["labels"])
    steps = int(examples / values.train_batch_size * values.num_train_epochs)
    if steps < 1:
        raise ValueError(
            f"--num_train_epochs={values.num_train_epochs:g} of {examples} examples in batches of "
            f"--train_batch_size={values.train_batch_size} are not one update; give more epochs or "
            f"a smaller batch."
        )
    return Stage(
        steps=steps,
        batch_size=values.train_batch_size,
        max_seq_length=values.max_seq_length,
        learning_rate=values.learning_rate,
        warmup_steps=int(steps * values.warmup_proportion),
    )


def _evaluate(values, sets, engine, model, step, folder):
    """The metrics of all dev sets, which go to `eval_results.txt`."""
    from official_bert.tasks import classification_results
    from official_bert.training import fine_tuned

    found = {}
    for name, file in sets.dev_files.items():
        arrays = sets.task.labelled_arrays(file, values.max_seq_length, model.config)
        outputs = fine_tuned.outputs(engine, model, arrays, values.eval_batch_size)
        classification_results.require_finite(outputs, file)
        scores = classification_results.scores(sets.task, sets.metrics, outputs, arrays)
        found |= {f"{name}_{metric}": value for metric, value in scores.items()}
    os.makedirs(folder, exist_ok=True)
    steps = {} if step is None else {"global_step": step}
    classification_results.write_eval_results(folder, found | steps)
    return found


def _predict(values, sets, engine, model, folder):
    from official_bert.tasks import classification_results
    from official_bert.training import fine_tuned

    os.makedirs(folder, exist_ok=True)
    for name, unlabelled in sets.unlabelled.items():
        arrays = sets.task.arrays(unlabelled.examples, values.max_seq_length, model.config)
        outputs = fine_tuned.outputs(engine, model, arrays, values.predict_batch_size)
        classification_results.require_finite(outputs, unlabelled.examples.path)
        paths = classification_results.write_predictions(
            folder, name, sets.task, unlabelled, outputs
        )
        print(f"predicted {len(unlabelled.examples):,} examples: {', '.join(paths)}")


def _report(values, of_seeds):
    """Prints the metrics over the seeds, and writes them to `results.json`."""
    from official_bert.tasks import classification_results

    summary = classification_results.summary([results["metrics"] for results in of_seeds])
    print(classification_results.table(summary))
    what = {"task": values.task_name} if values.task_name else {"dev_file": values.dev_file}
    classification_results.write_results(
        values.output_dir, what | {"runs": of_seeds, "summary": summary}
    )


if __name__ == "__main__":
    classifier_flags.define_flags()
    commands.run(main)
