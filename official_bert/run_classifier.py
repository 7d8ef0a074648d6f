r"""Fine-tunes BERT for classification, multi-label classification or regression of sentences.

The data is a GLUE task, or your own tables.

    lamb-bert classify --task_name=MRPC --data_dir=glue_data/MRPC \
        --bert_config_file=bert_config.json --vocab_file=vocab.txt \
        --init_checkpoint=bert_model.ckpt --output_dir=mrpc --do_train --do_eval --num_seeds=5

Run again with the same flags, it resumes from the last checkpoint in --output_dir.
"""

import dataclasses
import functools
import os

from official_bert.commands import commands, fine_tuning, fine_tuning_settings
from official_bert.commands.arguments import contradiction, idle
from official_bert.commands.fine_tuning_settings import FineTuning
from official_bert.system.settings import documented, setting

LABELS = "labels.json"


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Classify(FineTuning):
    """The settings of the command, with the official names and defaults."""

    task_name: str | None = setting(
        "GLUE task: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE or WNLI; case and hyphens do "
        "not matter. For your own tables, give --train_file and so on instead.",
        None,
    )
    data_dir: str | None = setting("Folder of the task's files, such as glue_data/MRPC.", None)
    train_file: str | None = setting(
        "Your own training table with named columns: TSV, CSV, JSON lines, Parquet, or the folder "
        "of a dataset.",
        None,
    )
    dev_file: str | None = setting("Your own evaluation table.", None)
    predict_file: str | None = setting(
        "Your own table to predict; with --task_name, instead of its test set.", None
    )
    sentence1_column: str = setting("Column of the first sentence in your own tables.", "sentence")
    sentence2_column: str | None = setting(
        "Column of the second sentence of pairs in your own tables.", None
    )
    label_column: str = setting("Label column of your own tables.", "label")
    label_type: str = setting(
        "Kind of labels in your own tables.", "class", choices=("class", "number")
    )
    multi_label: bool = setting(
        "Predict any number of labels per example. A cell of the label column has them separated "
        "by |, as in anger|joy, or as a list; it may be empty. Of several seeds, the best has the "
        "highest F1 micro.",
        False,
    )
    class_weights: str | None = setting(
        "Weights of the classes in the training loss, the weighted mean over a global batch, as of "
        "PyTorch's CrossEntropyLoss(weight): balanced (rare classes count more, so that all count "
        'equally), a JSON object such as {"spam": 5, "ham": 1}, or a file with one. Held-out '
        "losses are not weighted.",
        None,
    )
    max_seq_length: int = setting(
        "Maximum sequence length in tokens; longer examples are cut.", 128, minimum=1
    )
    do_eval: bool = setting("Evaluate on the dev set, with the official metrics.", False)
    do_predict: bool = setting("Predict the test set, or --predict_file.", False)


_NAMES = ("sentence1_column", "sentence2_column", "label_column")
_COLUMNS = (*_NAMES, "label_type", "multi_label")
_GLUE = {"data_dir": (["task_name"], "Give the folder of its files.")}
_OR_GLUE = "Give it, or --task_name and --data_dir."
_TABLES = {
    "train_file": (["do_train"], _OR_GLUE),
    "dev_file": (["do_eval"], _OR_GLUE),
    "predict_file": (["do_predict"], _OR_GLUE),
}
RULES = (
    contradiction(
        ("train_file", "dev_file", *_COLUMNS),
        lambda args: args.task_name,
        "--task_name={task_name} sets these; leave them out.",
    ),
    contradiction(
        ["label_type"],
        lambda args: args.multi_label,
        "--multi_label predicts labels; leave one of the two out.",
    ),
    contradiction(
        ["class_weights"],
        lambda args: args.multi_label or args.label_type == "number",
        "only classes have weights; leave it out with --multi_label and --label_type=number.",
    ),
    idle(["class_weights"], lambda args: not args.do_train, "without --do_train."),
    idle(
        ["data_dir"],
        lambda args: not args.task_name,
        "without --task_name, whose files it contains.",
    ),
    idle(["dev_file"], lambda args: not args.do_eval, "without --do_eval."),
    idle(["predict_file"], lambda args: not args.do_predict, "without --do_predict."),
    *fine_tuning_settings.RULES,
)


def check(args: Classify) -> Classify:
    """Refuses contradictions, and warns of flags without effect; returns the settings without them.

    Raises:
        ValueError: naming the flag, the reason, and what to do.
    """
    return fine_tuning_settings.check(args, RULES, _GLUE if args.task_name else _TABLES)


def main(args: Classify) -> int:
    """Fine-tunes, evaluates and predicts; returns the exit code."""
    args = check(args)
    args = fine_tuning.resolve_paths(args, ("data_dir", *_TABLES))
    return fine_tuning.run(args, "run_classifier", _job)


def _job(args):
    from official_bert.checkpoints import source
    from official_bert.tasks import classification, classification_targets, labels

    config = fine_tuning.read_config(args)
    fine_tuning.require_head(args, config, source.CLASSIFIER)
    sets = _sets(args, config)
    if args.class_weights is not None:
        examples = sets.task.read(sets.train_file)
        weights = classification_targets.class_weights(
            args.class_weights, sets.task.labels, examples
        )
        sets = dataclasses.replace(sets, task=dataclasses.replace(sets.task, class_weights=weights))
    for file in filter(None, (sets.train_file, *sets.dev_files.values())):  # to fail early
        sets.task.labelled_arrays(file, args.max_seq_length, config)
    examples = 0
    if args.do_train:
        arrays = sets.task.labelled_arrays(sets.train_file, args.max_seq_length, config)
        examples = len(arrays["labels"])
    return fine_tuning.FineTuningJob(
        task=sets.task,
        config=config,
        arrange=sets.task.arrange,
        use=functools.partial(_use, args, sets),
        train_file=sets.train_file,
        examples=examples,
        eval_files=tuple(sets.dev_files.values())[:1],
        keep=lambda folder: labels.save(sets.task.labels, os.path.join(folder, LABELS)),
        evaluated_on=({"task": args.task_name} if args.task_name else {"dev_file": args.dev_file}),
        seed_independent=classification.SEED_INDEPENDENT,
        ranked_by="eval_f1_micro" if isinstance(sets.task.labels, labels.LabelSets) else None,
    )


def _sets(args, config):
    """The examples that the flags name; all of them are read here for the first time."""
    from official_bert.data.arrow_files import UnfitColumn

    if args.task_name:
        return _sets_of_glue(args)
    try:
        return _sets_of_tables(args, config)
    except UnfitColumn as error:
        flag = {getattr(args, name): name for name in _NAMES}[error.name]
        raise ValueError(f"{error} Name one with --{flag}.") from None


def _sets_of_glue(args):
    """Only the sets that the flags ask for have to exist."""
    from official_bert.tasks import glue

    one, folder = glue.task(args.task_name), args.data_dir
    task = one.classification(args.vocab_file, args.do_lower_case)
    train_file = glue.find_file(one, folder, "train") if args.do_train else None
    unlabelled = {
        split: glue.Unlabelled(glue.read(one, folder, split), one.submission(split))
        for split in one.test_splits
        if args.do_predict and not args.predict_file
    }
    dev_files = {
        split.replace("dev", "eval"): glue.find_file(one, folder, split)
        for split in one.dev_splits
        if args.do_eval
    }
    return glue.Sets(
        task=task,
        metrics=one.metrics,
        train_file=train_file,
        dev_files=dev_files,
        unlabelled=unlabelled or _own_unlabelled(args, task.columns),
    )


def _sets_of_tables(args, config):
    from official_bert.tasks import glue, labels, tables
    from official_bert.tasks.classification import Classification

    columns = tables.Columns(args.sentence1_column, args.sentence2_column, args.label_column)
    found = _known_labels(args, config)
    if found is None:
        examples = tables.read(args.train_file, columns, label_lists=args.multi_label)
        if args.multi_label:
            found = labels.find_label_sets(examples)
        else:
            found = labels.find_classes(examples, numbers_are_classes="label_type" in args.given)
    metrics = {
        labels.Classes: ("accuracy", "f1_macro", "matthews_correlation"),
        labels.Numbers: ("pearson", "spearman"),
        labels.LabelSets: ("f1_micro", "f1_macro", "mean_average_precision"),
    }
    vocabulary = {"vocab_file": args.vocab_file, "do_lower_case": args.do_lower_case}
    return glue.Sets(
        task=Classification(labels=found, columns=columns, **vocabulary),
        metrics=metrics[type(found)],
        train_file=args.train_file,
        dev_files={"eval": args.dev_file} if args.dev_file else {},
        unlabelled=_own_unlabelled(args, columns),
    )


def _own_unlabelled(args, columns):
    from official_bert.tasks import glue, tables

    if not args.predict_file:
        return {}
    examples = tables.read(args.predict_file, columns, labelled=False)
    return {"test": glue.Unlabelled(examples, "predictions.tsv")}


def _known_labels(args, config):
    """The labels to predict; `None`: those that training finds."""
    from official_bert.checkpoints import sources
    from official_bert.tasks import labels

    if args.do_train:
        return labels.Numbers() if args.label_type == "number" else None
    file = os.path.join(args.seeds_and_folders()[0][1], LABELS)
    if args.init_checkpoint and not os.path.exists(file):
        named = sources.open_as_init(config, args.init_checkpoint).labels
        if named:
            return _require_kind(args, labels.from_json(named), args.init_checkpoint)
    if args.label_type == "number" and not os.path.exists(file):
        return labels.Numbers()
    return _require_kind(args, labels.load(file), file)


def _require_kind(args, found, origin):
    """The labels of a model, refused if they are not of the kind that the flags name."""
    from official_bert.tasks import labels

    if args.multi_label and not isinstance(found, labels.LabelSets):
        raise ValueError(
            f"--multi_label must be left out for a model of classes or numbers; got {origin}."
        )
    if args.label_type == "number" and not isinstance(found, labels.Numbers):
        raise ValueError(
            f"--label_type=number must be left out for a model of classes or labels; got {origin}."
        )
    return labels.Numbers() if args.label_type == "number" else found  # of any scale


def _use(args, sets, engine, model, folder):
    """Evaluates and predicts; returns the metrics."""
    from official_bert.data.row_batches import Arrays
    from official_bert.prediction.forward import Forward
    from official_bert.system.whole_files import write_text
    from official_bert.tasks import classification, glue

    forward, task, metrics = Forward(model, engine), sets.task, {}

    def outputs_of(arrays, batch_size, file):
        found = forward.whole(Arrays(arrays), batch_size, (model.num_outputs,))
        classification.require_finite(found, file)
        return found

    for name, file in sets.dev_files.items() if args.do_eval else ():
        arrays = task.labelled_arrays(file, args.max_seq_length, model.config)
        scores = task.scores(sets.metrics, outputs_of(arrays, args.eval_batch_size, file), arrays)
        metrics |= {f"{name}_{metric}": value for metric, value in scores.items()}
    for name, unlabelled in sets.unlabelled.items() if args.do_predict else ():
        examples = unlabelled.examples
        arrays = task.arrays(examples, args.max_seq_length, model.config)
        outputs = outputs_of(arrays, args.predict_batch_size, examples.path)
        if engine.is_chief:
            path = os.path.join(folder, unlabelled.predictions)  # in the leaderboard's form
            texts = task.labels.decode(task.target.predictions(outputs))
            glue.write_submission(path, examples.index, texts)
            rows = ("\t".join(map(str, row)) for row in task.target.probabilities(outputs).tolist())
            results = os.path.join(folder, f"{name}_results.tsv")  # as the official script's
            write_text(results, "".join(f"{row}\n" for row in rows))
            print(f"predicted {len(examples):,} examples: {path}, {results}")
    return metrics


if __name__ == "__main__":
    commands.run(main, Classify)
