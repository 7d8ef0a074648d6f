"""The sets of one classification task: what is learned from, evaluated on, and predicted.

They are those of a task of GLUE, in its folder, or tables of one's own.
"""

import dataclasses

from official_bert.data.tokenization import Casing
from official_bert.model.config import BertConfig
from official_bert.tasks import glue, labels, sentence_examples
from official_bert.tasks.classification import Classification
from official_bert.tasks.labels import Classes, Numbers
from official_bert.tasks.sentence_examples import Columns, Examples

_METRICS_OF_CLASSES = ("accuracy", "f1_macro", "matthews_correlation")
_METRICS_OF_NUMBERS = ("pearson", "spearman")


@dataclasses.dataclass(frozen=True)
class Unlabelled:
    """Examples to predict.

    Attributes:
        examples: The sentences.
        predictions: The name of the file that what is predicted goes to.
    """

    examples: Examples
    predictions: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassificationSets:
    """The files of one task.

    Attributes:
        task: What is learned.
        metrics: Names in `classification_metrics.METRICS`.
        train_file: The examples to learn from, if it is trained.
        dev_files: Paths of the sets to evaluate on, by what their metrics' names begin with.
        unlabelled: The sets to predict, by what the names of their files of probabilities begin
            with.
    """

    task: Classification
    metrics: tuple[str, ...]
    train_file: str | None = None
    dev_files: dict[str, str] = dataclasses.field(default_factory=dict)
    unlabelled: dict[str, Unlabelled] = dataclasses.field(default_factory=dict)

    def check(self, max_seq_length: int, config: BertConfig) -> None:
        """Reads all labelled sets, so that what is wrong with them shows before the work.

        Raises:
            ValueError: a table is missing or broken, or has unknown labels.
        """
        for file in filter(None, (self.train_file, *self.dev_files.values())):
            self.task.labelled_arrays(file, max_seq_length, config)


def of_glue(
    one: glue.GlueTask,
    data_dir: str,
    vocab_file: str,
    do_lower_case: Casing,
    *,
    train: bool,
    dev: bool,
    test: bool,
    predict_file: str | None = None,
) -> ClassificationSets:
    """The sets of one of GLUE's tasks, of which only those that are wanted have to be there.

    Args:
        one: The task.
        data_dir: Its folder.
        vocab_file, do_lower_case: As of `Classification`.
        train, dev, test: Which sets are wanted.
        predict_file: A table of other sentences to predict, in place of the test sets.

    Raises:
        ValueError: a set is missing or, of those to predict, broken.
    """
    task = Classification(
        labels=one.labels,
        columns=dataclasses.replace(one.columns, index=None),
        vocab_file=vocab_file,
        do_lower_case=do_lower_case,
        header=one.header,
        skip_broken=one.has_broken_rows,
        synonyms=one.synonyms,
    )
    if predict_file:
        unlabelled = _own_unlabelled(predict_file, task.columns)
    else:
        unlabelled = {
            split: Unlabelled(glue.read(one, data_dir, split), one.submission(split))
            for split in one.test_splits
            if test
        }
    return ClassificationSets(
        task=task,
        metrics=one.metrics,
        train_file=glue.find_file(one, data_dir, "train") if train else None,
        dev_files={
            split.replace("dev", "eval"): glue.find_file(one, data_dir, split)
            for split in one.dev_splits
            if dev
        },
        unlabelled=unlabelled,
    )


def of_tables(
    columns: Columns,
    known_labels: Classes | Numbers | None,
    vocab_file: str,
    do_lower_case: Casing,
    *,
    numbers_are_classes: bool = False,
    train_file: str | None = None,
    dev_file: str | None = None,
    predict_file: str | None = None,
) -> ClassificationSets:
    """The sets of tables of one's own.

    Args:
        columns: The names of their columns.
        known_labels: What is predicted; `None`, the classes that are found in `train_file`.
        vocab_file, do_lower_case: As of `Classification`.
        numbers_are_classes: As of `labels.find_classes`.
        train_file, dev_file, predict_file: The tables that are wanted.

    Raises:
        ValueError: a table that is read here is missing or broken.
    """
    if known_labels is None:
        assert train_file  # the commands ask for one, where labels are to be found
        known_labels = labels.find_classes(
            sentence_examples.read(train_file, columns), numbers_are_classes
        )
    return ClassificationSets(
        task=Classification(
            labels=known_labels,
            columns=columns,
            vocab_file=vocab_file,
            do_lower_case=do_lower_case,
        ),
        metrics=_METRICS_OF_CLASSES if isinstance(known_labels, Classes) else _METRICS_OF_NUMBERS,
        train_file=train_file,
        dev_files={"eval": dev_file} if dev_file else {},
        unlabelled=_own_unlabelled(predict_file, columns) if predict_file else {},
    )


def _own_unlabelled(file, columns):
    examples = sentence_examples.read(file, columns, labelled=False)
    return {"test": Unlabelled(examples, "predictions.tsv")}
