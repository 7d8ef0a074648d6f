"""Reads tables of sentences to classify. Cells are returned as text, unchanged."""

import dataclasses
from collections.abc import Sequence

from official_bert.data import table_files
from official_bert.system import messages

# What to do about a label that is no text.
_OF_LABELS = (
    f"{table_files.REMEDY} If an example may have any number of labels, give --multi_label."
)
_OF_LISTS = 'Write [] for no label, ["a"] for one and ["a", "b"] for two.'


@dataclasses.dataclass(frozen=True)
class Columns:
    """The names of a table's columns.

    Attributes:
        sentence1: The sentence.
        sentence2: The second sentence of a pair; None for single sentences.
        label: The class or number to predict.
        index: The name of a row in a file of predictions; None for its number, counted from 0.
    """

    sentence1: str
    sentence2: str | None = None
    label: str = "label"
    index: str | None = None

    def __post_init__(self):
        given = dataclasses.asdict(self)
        for field, name in given.items():
            others = [other for other in given if given[other] == name and other != field]
            if name is not None and others:
                raise ValueError(
                    f"{field} and {others[0]} must be different columns; got {name!r} for both."
                )


@dataclasses.dataclass(frozen=True)
class Examples:
    """The rows of a file.

    Attributes:
        path: The file, for messages.
        lines: The line on which each row begins, for messages.
        sentences1: The sentences.
        sentences2: The second sentences; None for single sentences.
        labels: Classes, numbers or sets of labels as text; None for a set without labels.
        index: The name of each row in a file of predictions.
        skipped: The lines of broken rows that were left out.
    """

    path: str
    lines: Sequence[int]
    sentences1: Sequence[str]
    sentences2: Sequence[str] | None
    labels: Sequence[str] | None
    index: Sequence[str]
    skipped: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.sentences1)


def read(
    path: str,
    columns: Columns,
    *,
    labelled: bool = True,
    label_lists: bool = False,
    header: Sequence[str] | None = None,
    skip_broken: bool = False,
) -> Examples:
    """Reads a table of examples.

    Args:
        path, header, skip_broken: As of `table_files.read_columns`.
        labelled: False leaves the labels unread, as for a test set without labels.
        label_lists: The column of labels may hold lists, which are returned as JSON.

    Raises:
        ValueError: as `table_files.read_columns`.
    """
    label = columns.label if labelled else None
    wanted = [columns.sentence1, columns.sentence2, label, columns.index]
    names = [name for name in wanted if name is not None]
    lists = [columns.label] if label_lists else []
    remedies = {columns.label: _OF_LISTS if label_lists else _OF_LABELS}
    table = table_files.read_columns(
        path, names, lists=lists, remedies=remedies, header=header, skip_broken=skip_broken
    )
    if table.skipped:
        first = ", ".join(map(str, table.skipped[:5])) + ", …" * (len(table.skipped) > 5)
        rows = len(table.lines) + len(table.skipped)
        messages.once(
            print,
            f"{path}: left out {len(table.skipped):,} of {rows:,} rows, because they have more or "
            f"fewer columns than the header (lines {first})",
        )
    sentences1 = table.columns[columns.sentence1]
    sentences2, labels, index = (name and table.columns[name] for name in wanted[1:])
    index = index or [str(row) for row in range(len(sentences1))]
    return Examples(path, table.lines, sentences1, sentences2, labels, index, table.skipped)
