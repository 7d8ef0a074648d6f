"""The sets of a sentence classification task: GLUE's, or tables of the user.

Wang et al., "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language
Understanding", ICLR 2019 (arXiv:1804.07461). The files are those of the benchmark's download.
"""

import dataclasses
import os
from collections.abc import Sequence

from official_bert.data import text_files
from official_bert.data.tokenization import Casing
from official_bert.system.whole_files import write_text
from official_bert.tasks import tables
from official_bert.tasks.classification import Classification
from official_bert.tasks.labels import Classes, Numbers
from official_bert.tasks.tables import Columns, Examples

_SUFFIXES = {"test": "", "test_matched": "-m", "test_mismatched": "-mm"}


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

    def classification(self, vocab_file: str, do_lower_case: Casing) -> Classification:
        """The task of its labelled sets, with a vocabulary as of `Classification`."""
        return Classification(
            labels=self.labels,
            columns=dataclasses.replace(self.columns, index=None),
            vocab_file=vocab_file,
            do_lower_case=do_lower_case,
            header=self.header,
            skip_broken=self.has_broken_rows,
            synonyms=self.synonyms,
        )


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
        ValueError: there is no such file, or it is broken (`table_files.read_columns`).
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
