r"""Fine-tunes BERT to classify sentences or predict a number: GLUE, or tables of your own.

    lamb-bert classify --task_name=MRPC --data_dir=glue_data/MRPC \
        --bert_config_file=bert_config.json --vocab_file=vocab.txt \
        --init_checkpoint=bert_model.ckpt --output_dir=mrpc --do_train --do_eval --num_seeds=5

Run again with the same flags, it resumes from the last checkpoint in --output_dir.
"""

import functools
import os

from absl import flags

from official_bert.commands import classifier_flags, commands, fine_tuning

LABELS = "labels.json"
_PATHS = ("data_dir", "train_file", "dev_file", "predict_file")


def main(values: flags.FlagValues = flags.FLAGS) -> int:
    """Does what the flags say; returns the exit code."""
    classifier_flags.check(values)
    fine_tuning.check_paths(values, _PATHS)
    return fine_tuning.run(values, _work)


def _work(values):
    from official_bert.tasks import classification_results, labels

    sets, config = _sets(values), fine_tuning.config(values)
    sets.check(values.max_seq_length, config)
    examples = 0
    if values.do_train:
        arrays = sets.task.labelled_arrays(sets.train_file, values.max_seq_length, config)
        examples = len(arrays["labels"])
    return fine_tuning.Work(
        task=sets.task,
        arrange=sets.task.arrange,
        use=functools.partial(_use, values, sets),
        train_file=sets.train_file,
        examples=examples,
        eval_files=tuple(sets.dev_files.values())[:1],
        keep=lambda folder: labels.save(sets.task.labels, os.path.join(folder, LABELS)),
        evaluated_on=(
            {"task": values.task_name} if values.task_name else {"dev_file": values.dev_file}
        ),
        not_of_the_seed=classification_results.NOT_OF_THE_SEED,
    )


def _sets(values):
    """The examples that the flags name; all of them are read here for the first time."""
    from official_bert.tasks import classification_sets, glue
    from official_bert.tasks.sentence_examples import Columns

    vocabulary = values.vocab_file, values.do_lower_case
    if values.task_name:
        return classification_sets.of_glue(
            glue.task(values.task_name),
            values.data_dir,
            *vocabulary,
            train=values.do_train,
            dev=values.do_eval,
            test=values.do_predict,
            predict_file=values.predict_file,
        )
    columns = Columns(values.sentence1_column, values.sentence2_column, values.label_column)
    return classification_sets.of_tables(
        columns,
        _known_labels(values),
        *vocabulary,
        numbers_are_classes=values["label_type"].present,
        train_file=values.train_file,
        dev_file=values.dev_file,
        predict_file=values.predict_file,
    )


def _known_labels(values):
    """What is predicted, but for classes that training has yet to find: `None`."""
    from official_bert.tasks import labels

    if values.label_type == "number":
        return labels.Numbers()
    if values.do_train:
        return None
    file = os.path.join(fine_tuning.seeds_and_folders(values)[0][1], LABELS)
    beside = values.init_checkpoint and not os.path.exists(file) and _labels_beside(values)
    return labels.from_json(beside) if beside else labels.load(file)


def _labels_beside(values):
    """What a checkpoint that is not a run's own says of its classes; None if it says nothing."""
    from official_bert.checkpoints import sources

    return sources.open_for(fine_tuning.config(values), values.init_checkpoint).labels


def _use(values, sets, engine, model, folder):
    """Evaluates and predicts; returns the metrics."""
    metrics = _evaluate(values, sets, engine, model) if values.do_eval else {}
    if values.do_predict:
        _predict(values, sets, engine, model, folder)
    return metrics


def _evaluate(values, sets, engine, model):
    """The metrics of all dev sets."""
    from official_bert.tasks import classification_results
    from official_bert.training import fine_tuned

    found = {}
    for name, file in sets.dev_files.items():
        arrays = sets.task.labelled_arrays(file, values.max_seq_length, model.config)
        outputs = fine_tuned.outputs(engine, model, arrays, values.eval_batch_size)
        classification_results.require_finite(outputs, file)
        scores = classification_results.scores(sets.task, sets.metrics, outputs, arrays)
        found |= {f"{name}_{metric}": value for metric, value in scores.items()}
    return found


def _predict(values, sets, engine, model, folder):
    from official_bert.tasks import classification_results
    from official_bert.training import fine_tuned

    for name, unlabelled in sets.unlabelled.items():
        arrays = sets.task.arrays(unlabelled.examples, values.max_seq_length, model.config)
        outputs = fine_tuned.outputs(engine, model, arrays, values.predict_batch_size)
        classification_results.require_finite(outputs, unlabelled.examples.path)
        paths = classification_results.write_predictions(
            folder, name, sets.task, unlabelled, outputs
        )
        print(f"predicted {len(unlabelled.examples):,} examples: {', '.join(paths)}")


if __name__ == "__main__":
    classifier_flags.define_flags()
    commands.run(main)
