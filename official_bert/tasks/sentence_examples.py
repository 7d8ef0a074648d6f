"""What sentence classification learns from: one sentence or two, and what is to be predicted."""

import dataclasses
from collections.abc import Sequence

from official_bert.tasks import tables


@dataclasses.dataclass(frozen=True)
class Columns:
    """The names of a table's columns.

    Attributes:
        sentence1: the sentence.
        sentence2: the second sentence of a pair; None for single sentences.
        label: the class or number to predict.
        index: what names a row in a file of predictions; None for its number, counted from 0.
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
                    f"{field} and {others[0]} both name the column {name!r}; expected different "
                    f"columns."
                )


@dataclasses.dataclass(frozen=True)
class Examples:
    """The rows of a file.

    Attributes:
        path: the file, for messages.
        lines: the line on which each row begins, for messages.
        sentences1: the sentences.
        sentences2: the second sentences; None for single sentences.
        labels: what is to be predicted, as text; None where the set has no labels.
        index: what names each row in a file of predictions.
        skipped: the lines of broken rows that were left out.
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
    header: Sequence[str] | None = None,
    skip_broken: bool = False,
) -> Examples:
    """Reads a table of examples: TSV, CSV or JSON lines (`tables`).

    Args:
        path: the file.
        columns: the names of its columns.
        labelled: False leaves the labels unread, as in a test set that has none.
        header: the names of all columns of a file without a line of names.
        skip_broken: leave out rows with too few or too many columns.

    Raises:
        ValueError: as `tables.read`.
    """
    label = columns.label if labelled else None
    wanted = [columns.sentence1, columns.sentence2, label, columns.index]
    names = [name for name in wanted if name is not None]
    table = tables.read(path, names, header=header, skip_broken=skip_broken)
    sentences1, sentences2, labels, index = map(table.columns.get, wanted)
    rows = range(len(sentences1))
    index = list(map(str, rows)) if index is None else index
    return Examples(path, table.lines, sentences1, sentences2, labels, index, table.skipped)
