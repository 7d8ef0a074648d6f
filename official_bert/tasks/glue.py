"""The sets of a sentence classification task: GLUE's, or tables of the user.

Wang et al., "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language
Understanding", ICLR 2019 (arXiv:1804.07461). The files are those of the benchmark's download.
"""

import dataclasses
import os
from collections.abc import Sequence

import numpy as np

from official_bert.data import text_files
from official_bert.data.tokenization import Casing
from official_bert.system.whole_files import write_text
from official_bert.tasks import labels, tables
from official_bert.tasks.classification import Classification
from official_bert.tasks.labels import Classes, Labels, LabelSets, Numbers
from official_bert.tasks.tables import Columns, Examples

_SUFFIXES = {"test": "", "test_matched": "-m", "test_mismatched": "-mm"}
_METRICS = {
    Classes: ("accuracy", "f1_macro", "matthews_correlation"),
    Numbers: ("pearson", "spearman"),
    LabelSets: ("f1_micro", "f1_macro", "mean_average_precision"),
}


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """One of GLUE's tasks.

    Attributes:
        name: The benchmark's name for it and for its folder.
        columns: The names of its columns; only the test sets have `index`.
        labels: The classes in the order of the official script, or the bounds of a number.
        metrics: Names in `metrics.METRICS`.
        synonyms: Other names of each class, used by models from elsewhere.
        dev_splits: The labelled sets to evaluate on, each `SPLIT.tsv`.
        test_splits: The sets without labels, each `SPLIT.tsv`.
        header: The columns of the labelled files, if these do not name them.
        has_broken_rows: The published files have rows with too few or too many columns.
    """

    name: str
    columns: Columns
    labels: Classes | Numbers
    metrics: tuple[str, ...]
    synonyms: tuple[tuple[str, ...], ...] = ()
    dev_splits: tuple[str, ...] = ("dev",)
    test_splits: tuple[str, ...] = ("test",)
    header: tuple[str, ...] | None = None
    has_broken_rows: bool = False

    def submission(self, split: str) -> str:
        """The name of the file with predictions of a test set for the leaderboard."""
        return f"{self.name}{_SUFFIXES[split]}.tsv"


_BINARY = Classes(("0", "1"))
_ENTAILMENT = Classes(("entailment", "not_entailment"))
_ENTAILS, _DOES_NOT = ("entails", "entailed"), ("no_entailment", "non_entailment")

TASKS = (
    GlueTask(
        "CoLA",
        Columns("sentence", None, "label", "index"),
        _BINARY,
        ("matthews_correlation",),
        synonyms=(("unacceptable", "ungrammatical"), ("acceptable", "grammatical")),
        header=("source", "label", "original_label", "sentence"),
    ),
    GlueTask(
        "SST-2",
        Columns("sentence", None, "label", "index"),
        _BINARY,
        ("accuracy",),
        synonyms=(("negative", "neg"), ("positive", "pos")),
    ),
    GlueTask(
        "MRPC",
        Columns("#1 String", "#2 String", "Quality", "index"),
        _BINARY,
        ("accuracy", "f1"),
        synonyms=(("not_equivalent", "not_paraphrase"), ("equivalent", "paraphrase")),
    ),
    GlueTask(
        "STS-B",
        Columns("sentence1", "sentence2", "score", "index"),
        Numbers(0.0, 5.0),
        ("pearson", "spearman"),
    ),
    GlueTask(
        "QQP",
        Columns("question1", "question2", "is_duplicate", "id"),
        _BINARY,
        ("accuracy", "f1"),
        synonyms=(("not_duplicate", "not_paraphrase"), ("duplicate", "paraphrase")),
        has_broken_rows=True,  # questions with a line break, which end in the middle
    ),
    GlueTask(
        "MNLI",
        Columns("sentence1", "sentence2", "gold_label", "index"),
        Classes(("contradiction", "entailment", "neutral")),
        ("accuracy",),
        synonyms=(("contradicts", "contradictory"), _ENTAILS, ("neither",)),
        dev_splits=("dev_matched", "dev_mismatched"),
        test_splits=("test_matched", "test_mismatched"),
    ),
    GlueTask(
        "QNLI",
        Columns("question", "sentence", "label", "index"),
        _ENTAILMENT,
        ("accuracy",),
        synonyms=(_ENTAILS, _DOES_NOT),
    ),
    GlueTask(
        "RTE",
        Columns("sentence1", "sentence2", "label", "index"),
        _ENTAILMENT,
        ("accuracy",),
        synonyms=(_ENTAILS, _DOES_NOT),
    ),
    GlueTask(
        "WNLI",
        Columns("sentence1", "sentence2", "label", "index"),
        _BINARY,
        ("accuracy",),
        synonyms=(("not_entailment", *_DOES_NOT), ("entailment", *_ENTAILS)),
    ),
)


def task(name: str) -> GlueTask:
    """The task of this name, in any case and with or without its hyphen.

    Raises:
        ValueError: there is none; the message names all.

    Examples:
        >>> task("sst2").name
        'SST-2'
    """
    for one in TASKS:
        if name.lower().replace("-", "") == one.name.lower().replace("-", ""):
            return one
    names = ", ".join(one.name for one in TASKS)
    raise ValueError(f"task_name must be one of {names}; got {name!r}.")


def read(one: GlueTask, data_dir: str, split: str) -> Examples:
    """Reads one set of a task: `train`, or one of `dev_splits` or `test_splits`.

    Raises:
        ValueError: there is no such file, or it is broken (`tables.read_columns`).
    """
    is_test = split in one.test_splits
    columns = one.columns if is_test else dataclasses.replace(one.columns, index=None)
    return tables.read(
        find_file(one, data_dir, split),
        columns,
        labelled=not is_test,
        header=None if is_test else one.header,
        skip_broken=one.has_broken_rows and not is_test,  # the leaderboard requires every row
    )


def find_file(one: GlueTask, data_dir: str, split: str) -> str:
    """The path of one set of a task, compressed or not, in the task's own folder.

    Raises:
        ValueError: there is no such file.
    """
    name = os.path.join(data_dir, f"{split}.tsv")
    for ending in ("", *text_files.COMPRESSED):
        if os.path.isfile(name + ending):
            return name + ending
    inner = os.path.join(data_dir, one.name)
    hint = f"Did you mean {inner!r}?" if os.path.isdir(inner) else "Download the whole folder."
    raise ValueError(
        f"data_dir must be the folder of {one.name} in GLUE's download; got {data_dir!r}, without "
        f"{split}.tsv (or {split}.tsv.gz, .bz2, .xz, .zst). {hint}"
    )


# The sets


@dataclasses.dataclass(frozen=True)
class Unlabelled:
    """Examples to predict, and the name of the file for the predictions."""

    examples: Examples
    predictions: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sets:
    """The files of one task.

    Attributes:
        task: The task.
        metrics: Names in `metrics.METRICS`.
        train_file: The examples to learn from, if it is trained.
        dev_files: Paths of the sets to evaluate on, by the prefix of their metrics.
        unlabelled: The sets to predict, by the prefix of their files of probabilities.
    """

    task: Classification
    metrics: tuple[str, ...]
    train_file: str | None = None
    dev_files: dict[str, str] = dataclasses.field(default_factory=dict)
    unlabelled: dict[str, Unlabelled] = dataclasses.field(default_factory=dict)


def of_glue(
    one: GlueTask,
    data_dir: str,
    vocab_file: str,
    do_lower_case: Casing,
    *,
    train: bool,
    dev: bool,
    test: bool,
    predict_file: str | None = None,
) -> Sets:
    """The sets of one of GLUE's tasks; only the requested ones have to exist.

    Args:
        one: The task.
        data_dir: Its folder.
        vocab_file, do_lower_case: As of `Classification`.
        train, dev, test: The requested sets.
        predict_file: A table of other sentences to predict, in place of the test sets.

    Raises:
        ValueError: a set is missing or, of those to predict, broken.
    """
    columns = dataclasses.replace(one.columns, index=None)
    train_file = find_file(one, data_dir, "train") if train else None
    unlabelled = {
        split: Unlabelled(read(one, data_dir, split), one.submission(split))
        for split in one.test_splits
        if test and not predict_file
    }
    dev_files = {
        split.replace("dev", "eval"): find_file(one, data_dir, split)
        for split in one.dev_splits
        if dev
    }
    return Sets(
        task=Classification(
            labels=one.labels,
            columns=columns,
            vocab_file=vocab_file,
            do_lower_case=do_lower_case,
            header=one.header,
            skip_broken=one.has_broken_rows,
            synonyms=one.synonyms,
        ),
        metrics=one.metrics,
        train_file=train_file,
        dev_files=dev_files,
        unlabelled=unlabelled or _own_unlabelled(predict_file, columns),
    )


def of_tables(
    columns: Columns,
    known_labels: Labels | None,
    vocab_file: str,
    do_lower_case: Casing,
    *,
    several_labels: bool = False,
    numbers_are_classes: bool = False,
    train_file: str | None = None,
    dev_file: str | None = None,
    predict_file: str | None = None,
) -> Sets:
    """The sets in tables of the user.

    Args:
        columns: The names of their columns.
        known_labels: The labels; `None`: those found in `train_file`.
        vocab_file, do_lower_case: As of `Classification`.
        several_labels: Whether those are sets of labels, else classes.
        numbers_are_classes: As of `labels.find_classes`.
        train_file, dev_file, predict_file: The requested tables.

    Raises:
        ValueError: a table that is read here is missing or broken.
    """
    if known_labels is None:
        assert train_file  # the commands require it to find labels
        examples = tables.read(train_file, columns, label_lists=several_labels)
        if several_labels:
            known_labels = labels.find_label_sets(examples)
        else:
            known_labels = labels.find_classes(examples, numbers_are_classes)
    return Sets(
        task=Classification(
            labels=known_labels,
            columns=columns,
            vocab_file=vocab_file,
            do_lower_case=do_lower_case,
        ),
        metrics=_METRICS[type(known_labels)],
        train_file=train_file,
        dev_files={"eval": dev_file} if dev_file else {},
        unlabelled=_own_unlabelled(predict_file, columns),
    )


def _own_unlabelled(file, columns):
    if not file:
        return {}
    return {"test": Unlabelled(tables.read(file, columns, labelled=False), "predictions.tsv")}


# Predictions


def write_predictions(
    folder: str | os.PathLike,
    name: str,
    task: Classification,
    unlabelled: Unlabelled,
    outputs: np.ndarray,
) -> list[str]:
    """Writes predictions and their probabilities.

    Args:
        folder: Where.
        name: The prefix of the second file.
        task: The task.
        unlabelled: The examples.
        outputs: The model's outputs for each, (N, K).

    Returns:
        The paths: the predictions in the form of the leaderboard, with the columns `index` and
        `prediction`; and `{name}_results.tsv` as the official script writes it, one line per
        example with the probability of each class or label, or the number.

    Raises:
        ValueError: a label or an index cannot be written to a TSV file.
    """
    predictions = os.path.join(folder, unlabelled.predictions)
    texts = task.labels.decode(task.predictions(outputs))
    write_submission(predictions, unlabelled.examples.index, texts)
    rows = ("\t".join(map(str, row)) for row in task.probabilities(outputs).tolist())
    probabilities = os.path.join(folder, f"{name}_results.tsv")
    write_text(probabilities, "".join(f"{row}\n" for row in rows))
    return [predictions, probabilities]


def write_submission(path: str, index: Sequence[str], predictions: Sequence[str]) -> None:
    """Writes a TSV file with the columns `index` and `prediction`, in the leaderboard's form.

    Raises:
        ValueError: a text cannot be written to a TSV file.
    """
    for text in (*index, *predictions):
        if any(character in text for character in "\t\r\n"):
            raise ValueError(
                f"{path} must have no tab or line break in a cell; got {text[:40]!r}. Change the "
                "labels or the index of the data."
            )
    rows = (f"{number}\t{text}\n" for number, text in zip(index, predictions, strict=True))
    write_text(path, "".join(("index\tprediction\n", *rows)))
