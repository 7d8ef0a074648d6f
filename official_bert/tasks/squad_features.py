"""Cuts contexts into overlapping windows of word pieces with their positions in the text.

Every context is tokenized once; a window is a question, a first piece and a length. Padded arrays
are made batch by batch, so all of SQuAD's training set takes some tens of megabytes.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from official_bert.data import row_batches, tokenization
from official_bert.data.tokenization import Casing, Pieces
from official_bert.tasks import squad_data
from official_bert.tasks.squad_data import Question, Windows
from official_bert.tasks.windows import cut, sees_best


@dataclasses.dataclass(frozen=True, eq=False)
class Features:
    """Windows over the contexts of questions, in the questions' order; made by `make_features`.

    A row of `batch` is [CLS] question [SEP] window [SEP] [PAD] …
    """

    questions: Sequence[Question]
    settings: Windows
    special_ids: dict[str, int]
    contexts: Pieces
    context_of: np.ndarray  # (questions,): number of the context in `contexts`
    queries: Pieces  # one for each question, cut to max_query_length
    question_of: np.ndarray  # (windows,): number of the question
    first_of: np.ndarray  # (questions + 1,): number of the first window
    windows: np.ndarray  # (windows, 2): first piece in its context, number of pieces
    positions: np.ndarray  # (windows, 2): first and last position of the answer, or (0, 0)

    def __len__(self) -> int:
        """Number of windows."""
        return len(self.windows)

    def batch(self, rows: Sequence[int] | np.ndarray) -> dict[str, np.ndarray]:
        """Padded arrays of the windows with these numbers.

        Returns:
            `input_ids`, `input_mask`, `segment_ids`: int32 of shape (rows, max_seq_length);
            `start_positions`, `end_positions`: int32 of shape (rows,), the answer's first and last
            piece as positions in the row, or 0 ([CLS]) where the window does not hold all of it.
        """
        shape = (len(rows), self.settings.max_seq_length)
        ids = np.full(shape, self.special_ids[tokenization.PAD], np.int32)
        mask, segments = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        for index, row in enumerate(rows):
            pieces = self._ids(row)
            ids[index, : len(pieces)] = pieces
            mask[index, : len(pieces)] = 1
            segments[index, self.context_position(row) : len(pieces)] = 1
        positions = self.positions[np.asarray(rows, np.intp)].reshape(-1, 2)
        return {
            "input_ids": ids,
            "input_mask": mask,
            "segment_ids": segments,
            "start_positions": positions[:, 0].copy(),
            "end_positions": positions[:, 1].copy(),
        }

    def fingerprint(self) -> str:
        """A digest of everything that `batch` returns; it detects other windows."""
        arrays = {
            "settings": np.array(dataclasses.astuple(self.settings)),
            "special_ids": np.array([id for _, id in sorted(self.special_ids.items())]),
            "contexts": self.contexts.ids,
            "context_bounds": self.contexts.bounds,
            "context_of": self.context_of,
            "queries": self.queries.ids,
            "query_bounds": self.queries.bounds,
            "question_of": self.question_of,
            "windows": self.windows,
            "positions": self.positions,
        }
        return row_batches.fingerprint(arrays)

    def _ids(self, row: int) -> np.ndarray:
        separator = [self.special_ids[tokenization.SEP]]
        first, last = self._pieces(row)
        question = self.question_of[row]
        query = self.queries.ids[slice(*self.queries.bounds[question : question + 2])]
        start = [self.special_ids[tokenization.CLS]]
        return np.concatenate([start, query, separator, self.contexts.ids[first:last], separator])

    def _pieces(self, rows):
        """First and one past the last piece of windows in `contexts`."""
        firsts = self.contexts.bounds[self.context_of[self.question_of[rows]]]
        starts, lengths = self.windows[rows].T
        return firsts + starts, firsts + starts + lengths

    def context_position(self, rows: int | np.ndarray) -> int | np.ndarray:
        """Position of the first piece of the context in a row, or in each of several rows."""
        questions = self.question_of[rows]
        return self.queries.bounds[questions + 1] - self.queries.bounds[questions] + 2

    def characters(self, rows: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """The characters of the context that spans of word pieces cover.

        Args:
            rows: Numbers of windows, shape (spans,).
            starts, ends: Positions in these rows of the first and the last piece.

        Returns:
            int32 of shape (spans, 2): the first character and one past the last.
        """
        shift = self._pieces(rows)[0] - self.context_position(rows)
        spans = self.contexts.spans
        return np.stack([spans[shift + starts, 0], spans[shift + ends, 1]], axis=1)

    def sees_best(self, row: int) -> np.ndarray:
        """Pieces of a window that are answered only from it: see `sees_best`."""
        first, last = self.first_of[self.question_of[row] + np.arange(2)]
        if last - first == 1:
            return np.ones(self.windows[row, 1], bool)
        return sees_best(self.windows[first:last], row - first)


def make_features(
    questions: Sequence[Question],
    vocab_file: str,
    do_lower_case: Casing = True,
    settings: Windows | None = None,
) -> Features:
    """Tokenizes questions and contexts, and cuts windows.

    The windows of a question depend only on it, so processes may share the questions. Only the
    first `max_query_length` pieces of a question are used.

    Args:
        questions: From `squad_data.read`; to train on, from `squad_data.for_training`.
        settings: How windows are cut; by default with the settings of `Windows`.

    Raises:
        ValueError: the vocabulary cannot be read, or is a cased one and `do_lower_case` is on.
    """
    settings = settings or Windows()
    vocabulary = tokenization.read_vocabulary(vocab_file)
    tokenization.check_case(vocabulary, vocab_file, do_lower_case)
    tokenizer = tokenization.load(vocab_file, do_lower_case)
    texts = {text: n for n, text in enumerate(dict.fromkeys(q.context for q in questions))}
    contexts = tokenization.encode_with_spans(tokenizer, texts)
    context_of = np.array([texts[question.context] for question in questions], np.int64)
    queries = _queries(questions, tokenizer, settings.max_query_length)
    rooms = settings.max_seq_length - np.diff(queries.bounds) - 3
    pieces = np.diff(contexts.bounds)[context_of]
    cuts = [cut(*each, settings.doc_stride) for each in zip(pieces.tolist(), rooms.tolist())]
    features = Features(
        questions=questions,
        settings=settings,
        special_ids={token: vocabulary[token] for token in tokenization.SPECIAL_TOKENS},
        contexts=contexts,
        context_of=context_of,
        queries=queries,
        question_of=np.repeat(np.arange(len(cuts)), [len(windows) for windows in cuts]),
        first_of=np.cumsum([0, *map(len, cuts)]),
        windows=np.concatenate([np.zeros((0, 2), np.int64), *cuts]),
        positions=np.zeros((0, 2), np.int32),
    )
    return dataclasses.replace(features, positions=_positions(features))


def _queries(questions: Sequence[Question], tokenizer, longest: int) -> Pieces:
    pieces = tokenization.encode_with_spans(tokenizer, (question.text for question in questions))
    lengths = np.diff(pieces.bounds)
    place = np.arange(len(pieces.ids)) - np.repeat(pieces.bounds[:-1], lengths)
    bounds = np.concatenate([[0], np.cumsum(np.minimum(lengths, longest))])
    return Pieces(pieces.ids[place < longest], pieces.spans[place < longest], bounds)


def _positions(features: Features) -> np.ndarray:
    """The answer's first and last position in each window that holds all of it."""
    answers = np.array([_answer(features, n) for n in range(len(features.questions))], np.int64)
    answers = answers.reshape(-1, 2)[features.question_of]  # (windows, 2)
    starts, lengths = features.windows.T
    inside = (answers[:, 0] >= starts) & (answers[:, 1] < starts + lengths)
    query = np.diff(features.queries.bounds)[features.question_of]
    positions = answers - starts[:, None] + query[:, None] + 2
    return np.where(inside[:, None], positions, 0).astype(np.int32)


def _answer(features: Features, question: int) -> tuple[int, int]:
    """The first and last piece of the context that hold some of the answer; (-1, -1) if none."""
    answer = squad_data.locate(features.questions[question])
    if answer is None or answer.start is None:
        return -1, -1
    context = features.context_of[question]
    spans = features.contexts.spans[slice(*features.contexts.bounds[context : context + 2])]
    first = int(np.searchsorted(spans[:, 1], answer.start, side="right"))
    last = int(np.searchsorted(spans[:, 0], answer.start + len(answer.text))) - 1
    return (first, last) if first <= last else (-1, -1)
