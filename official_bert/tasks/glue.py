"""The GLUE benchmark: where each task's examples lie, what is predicted, and how it is measured.

Wang et al., "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language
Understanding", ICLR 2019 (arXiv:1804.07461). The files are those of the benchmark's download.
"""

import dataclasses
import os
from collections.abc import Sequence

from official_bert.system.whole_files import write_text
from official_bert.tasks import sentence_examples
from official_bert.tasks.labels import Classes, Numbers
from official_bert.tasks.sentence_examples import Columns, Examples

_SUFFIXES = {"test": "", "test_matched": "-m", "test_mismatched": "-mm"}
_COMPRESSED = ("", ".gz", ".bz2", ".xz", ".zst")


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """One of GLUE's tasks.

    Attributes:
        name: The benchmark's name of it, and of its folder.
        columns: The names of its columns; `index` stands in the test sets only.
        labels: The classes in the order of the official script, or the bounds of a number.
        metrics: Names in `classification_metrics.METRICS`.
        synonyms: What else models from elsewhere call each of the classes.
        dev_splits: The labelled sets to evaluate on, each `SPLIT.tsv`.
        test_splits: The sets without labels, each `SPLIT.tsv`.
        header: The columns of the labelled files, where these do not name them.
        has_broken_rows: The published files hold rows with too few or too many columns.
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
        """The name of the file that the leaderboard takes predictions of a test set in."""
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
    """Reads one set of a task.

    Args:
        one: The task.
        data_dir: The task's own folder, such as `glue_data/MRPC`.
        split: `train`, one of `one.dev_splits`, or of `one.test_splits`, which come without labels.

    Raises:
        ValueError: there is no such set or file, or the file is broken (`tables.read`).
    """
    is_test = split in one.test_splits
    if not is_test and split not in ("train", *one.dev_splits):
        known = ", ".join(("train", *one.dev_splits, *one.test_splits))
        raise ValueError(f"split must be one of {known} for {one.name}; got {split!r}.")
    columns = one.columns if is_test else dataclasses.replace(one.columns, index=None)
    return sentence_examples.read(
        find_file(one, data_dir, split),
        columns,
        labelled=not is_test,
        header=None if is_test else one.header,
        skip_broken=one.has_broken_rows and not is_test,  # the leaderboard wants every row
    )


def find_file(one: GlueTask, data_dir: str, split: str) -> str:
    """The path of one set of a task, compressed or not.

    Raises:
        ValueError: there is no such file.
    """
    name = os.path.join(data_dir, f"{split}.tsv")
    for ending in _COMPRESSED:
        if os.path.isfile(name + ending):
            return name + ending
    inner = os.path.join(data_dir, one.name)
    mend = f"Did you mean {inner!r}?" if os.path.isdir(inner) else "Download the whole folder."
    raise ValueError(
        f"data_dir must be the folder of {one.name} in GLUE's download; got {data_dir!r}, without "
        f"{split}.tsv (or {split}.tsv.gz, .bz2, .xz, .zst). {mend}"
    )


def write_predictions(path: str, index: Sequence[str], predictions: Sequence[str]) -> None:
    """Writes a TSV file with the columns `index` and `prediction`, as the leaderboard takes it.

    Args:
        path: For the leaderboard, named by `GlueTask.submission`.
        index: What names each example (`Examples.index`).
        predictions: What the model says of each (`Classes.decode`, `Numbers.decode`).

    Raises:
        ValueError: not one prediction per example, or text that a TSV file cannot hold.
    """
    if len(index) != len(predictions):
        raise ValueError(
            f"{path} must get one prediction per example; got {len(predictions)} for {len(index)} "
            "examples."
        )
    for text in (*index, *predictions):
        if any(character in text for character in "\t\r\n"):
            raise ValueError(
                f"{path} must have no tab or line break in a cell; got {text[:40]!r}. Change the "
                "labels or the index of the data."
            )
    rows = (f"{number}\t{text}\n" for number, text in zip(index, predictions))
    write_text(path, "".join(("index\tprediction\n", *rows)))
