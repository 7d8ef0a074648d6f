"""What sentence classification learns from: one sentence or two, and what is to be predicted."""

import dataclasses
import functools
from collections.abc import Sequence

from official_bert.tasks import tables


@dataclasses.dataclass(frozen=True)
class Columns:
    """The names of a table's columns.

    Attributes:
        sentence1: The sentence.
        sentence2: The second sentence of a pair; None for single sentences.
        label: The class or number to predict.
        index: What names a row in a file of predictions; None for its number, counted from 0.
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
        labels: What is to be predicted, as text; None where the set has no labels.
        index: What names each row in a file of predictions.
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
    header: Sequence[str] | None = None,
    skip_broken: bool = False,
) -> Examples:
    """Reads a table of examples: TSV, CSV or JSON lines (`tables`).

    Args:
        path: The file.
        columns: The names of its columns.
        labelled: False leaves the labels unread, as in a test set that has none.
        header: The names of all columns of a file without a line of names.
        skip_broken: Leave out rows with too few or too many columns.

    Raises:
        ValueError: as `tables.read`.
    """
    label = columns.label if labelled else None
    wanted = [columns.sentence1, columns.sentence2, label, columns.index]
    names = [name for name in wanted if name is not None]
    table = tables.read(path, names, header=header, skip_broken=skip_broken)
    _report_skipped(path, len(table.lines), tuple(table.skipped))
    sentences1 = table.columns[columns.sentence1]
    sentences2, labels, index = (name and table.columns[name] for name in wanted[1:])
    index = index or [str(row) for row in range(len(sentences1))]
    return Examples(path, table.lines, sentences1, sentences2, labels, index, table.skipped)


@functools.cache  # a file that is read again has the same ones
def _report_skipped(path: str, rows: int, skipped: tuple[int, ...]) -> None:
    """Prints how many rows of a file are left out, and on which lines the first of them begin."""
    if skipped:
        first = ", ".join(map(str, skipped[:5])) + (", …" if len(skipped) > 5 else "")
        print(
            f"{path}: left out {len(skipped):,} of {rows + len(skipped):,} rows, because they have "
            f"more or fewer columns than the header (lines {first})"
        )
