"""Logits → answers: the best spans of every window, then the best texts of every question.

A span runs from a start s to an end e of one window, has the score start_logit[s] + end_logit[e],
and is at most `max_answer_length` pieces long. All of them are compared. (The official script pairs
the `n_best_size` best starts with the best ends, question and separators included, and may be left
with no pair at all.) A start counts only in the window with most context around it. Texts are cut
from the context.
"""

import dataclasses
import json
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from official_bert.system import settings
from official_bert.system.settings import setting
from official_bert.system.whole_files import write_text
from official_bert.tasks import metrics, squad_evaluation
from official_bert.tasks.squad_data import Dataset

if TYPE_CHECKING:
    from official_bert.tasks.squad_features import Features

_WINDOWS_AT_ONCE = 32  # of 384 positions with 30 ends each: 3 MB of scores


@settings.documented
@dataclasses.dataclass(frozen=True)
class Decoding:
    """Settings of the choice of answers; names and defaults are the official flags'.

    Raises:
        ValueError: a number is below 1, or the threshold is not finite.
    """

    version_2_with_negative: bool = setting("Allow questions without an answer (SQuAD 2.0).", False)
    n_best_size: int = setting(
        "Number of answers per question in nbest_predictions.json.", 20, minimum=1
    )
    max_answer_length: int = setting("Maximum length of an answer in tokens.", 30, minimum=1)
    null_score_diff_threshold: float = setting(
        "With --version_2_with_negative: margin by which the score of no answer must exceed the "
        "score of the best answer, for the question to be left unanswered.",
        0.0,
    )

    def __post_init__(self):
        settings.check(self)


class Candidate(NamedTuple):
    """A possible answer; `""` is no answer."""

    text: str
    start_logit: float
    end_logit: float
    start: int = 0  # first character in the context
    stop: int = 0  # one past the last

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


class Prediction(NamedTuple):
    """A model's answer to one question."""

    id: str
    text: str
    candidates: list[Candidate]  # texts differ, best first; at most n_best_size, or 1 more for ""
    probabilities: list[float]  # softmax of the candidates' scores
    null_odds: float | None  # score of no answer - score of the best answer; None in version 1.1
    best_text: str  # of the best span, even if the odds leave the question unanswered


def decode(
    features: "Features",
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    decoding: Decoding = Decoding(),
) -> list[Prediction]:
    """The answers of a model, in the order of `features.questions`.

    Without `version_2_with_negative` the answer is the best span's text. With it, the null score is
    that of [CLS] as start and end, the smallest over a question's windows; where it exceeds the
    best span's by more than the threshold, the answer is `""`. A context without word pieces has
    the answer `""`, and null odds as if its best span had the score 0.

    Args:
        start_logits, end_logits: Shape (windows, max_seq_length); ignored at [PAD].

    Raises:
        ValueError: a shape is wrong, or a logit is not finite.
    """
    logits = np.stack([_checked(features, start_logits), _checked(features, end_logits)])
    rows, starts, ends = _best_spans(features, logits[0], logits[1], decoding)
    characters = features.characters(rows, starts, ends).tolist()
    scores = np.stack([logits[0, rows, starts], logits[1, rows, ends]], axis=1).tolist()
    bounds = np.searchsorted(rows, features.first_of).tolist()
    predictions = []
    for number, question in enumerate(features.questions):
        part = slice(*bounds[number : number + 2])
        spans = [
            Candidate(question.context[first:stop], start_logit, end_logit, first, stop)
            for (first, stop), (start_logit, end_logit) in zip(characters[part], scores[part])
        ]
        nulls = logits[:, slice(*features.first_of[number : number + 2]), 0].T.tolist()
        predictions.append(_predict(question.id, spans, nulls, decoding))
    return predictions


def _best_spans(features, start_logits, end_logits, decoding):
    """Windows, first and last positions of the `n_best_size` best spans of each, best first.

    Ties: the earlier start, then the shorter span.
    """
    found = [np.zeros((3, 0), np.intp)]
    for first in range(0, len(features), _WINDOWS_AT_ONCE):
        rows = slice(first, first + _WINDOWS_AT_ONCE)
        starts, ends = start_logits[rows].copy(), end_logits[rows].copy()
        for index in range(len(starts)):
            _forbid(features, first + index, starts[index], ends[index])
        block = _best_of_block(starts, ends, decoding)
        found.append(np.stack([first + block[0], *block[1:]]))
    return np.concatenate(found, axis=1)


def _forbid(features, row, starts, ends):
    """Sets the logits of one window to -inf where no answer may start or end."""
    sees_best = features.sees_best(row)
    first = features.context_position(row)
    for logits in (starts, ends):
        logits[:first] = logits[first + len(sees_best) :] = -np.inf
    starts[first : first + len(sees_best)][~sees_best] = -np.inf


def _best_of_block(starts, ends, decoding):
    """Rows, starts and ends of the best spans of some windows, sorted by row and score."""
    longest = min(decoding.max_answer_length, starts.shape[1])
    rows = np.arange(len(starts))[:, None]
    ends = np.pad(ends, ((0, 0), (0, longest - 1)), constant_values=-np.inf)
    ends = sliding_window_view(ends, longest, axis=1)  # (rows, starts, lengths)
    # The n best spans begin at the n starts whose own best spans are best.
    of_starts = starts + ends.max(axis=2)
    firsts = np.sort(_largest(of_starts, decoding.n_best_size), axis=1)
    scores = starts[rows, firsts][:, :, None] + ends[rows, firsts]  # (rows, n, lengths)
    scores = scores.reshape(len(scores), -1)
    best = _largest(scores, decoding.n_best_size)
    rank, lengths = np.divmod(best, longest)
    firsts = firsts[rows, rank]
    row, column = np.nonzero(scores[rows, best] > -np.inf)
    return row, firsts[row, column], (firsts + lengths)[row, column]


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Columns of the `count` largest values of each row, largest first; of equal ones the first."""
    return np.argsort(-values, axis=1, kind="stable")[:, :count]


def _checked(features, logits):
    """Logits as float64, in which sums of two are exact enough to be distinguished."""
    logits = np.asarray(logits, np.float64)
    shape = (len(features), features.settings.max_seq_length)
    if logits.shape != shape:
        raise ValueError(
            f"logits must have shape {shape}, that of the features; got {logits.shape}."
        )
    rows = np.arange(len(features))
    used = features.context_position(rows) + features.windows[:, 1] + 1
    bad = ~np.isfinite(logits) & (np.arange(shape[1]) < used[:, None])
    if bad.any():
        row = int(bad.any(axis=1).argmax())
        question = features.questions[features.question_of[row]]
        raise ValueError(
            f"logits must be finite; got {logits[bad][0]} for question {question.id!r} (window "
            f"{row}). Has the training diverged?"
        )
    return logits


def _predict(id, spans, nulls, decoding):
    """Chooses the answer from the spans and the logits of [CLS] in all windows of a question."""
    spans = _distinct(spans, decoding.n_best_size)
    best = spans[0] if spans else Candidate("", 0.0, 0.0)
    if not decoding.version_2_with_negative:
        spans = spans or [best]
        return Prediction(id, best.text, spans, _shares(spans), None, best.text)
    null = Candidate("", *min(nulls, key=sum))
    odds = null.score - best.score
    text = best.text if odds <= decoding.null_score_diff_threshold else ""
    candidates = sorted([*spans, null], key=lambda candidate: -candidate.score)
    if len(candidates) > decoding.n_best_size and candidates[-1] is not null:
        candidates.pop()
    return Prediction(id, text, candidates, _shares(candidates), odds, best.text)


def _shares(candidates):
    return metrics.softmax([candidate.score for candidate in candidates]).tolist()


def _distinct(spans: list[Candidate], count: int) -> list[Candidate]:
    """The best candidate of each text, best first, at most `count`; equal ones keep their order."""
    best = {}
    for span in sorted(spans, key=lambda span: -span.score):
        best.setdefault(span.text, span)
    return list(best.values())[:count]


def scores(dataset: Dataset, predictions: Iterable[Prediction]) -> dict[str, float]:
    """The official scores of predictions, in percent; see `squad_evaluation.evaluate`.

    For a file of version 2.0 whose null odds are known, the best thresholds are included.
    """
    predictions = list(predictions)
    found = squad_evaluation.evaluate(dataset, {p.id: p.text for p in predictions})
    odds = _null_odds(predictions)
    if not odds or not dataset.version_2:
        return found
    best = squad_evaluation.evaluate(dataset, {p.id: p.best_text for p in predictions}, odds)
    return found | {name: best[name] for name in best if name.startswith("best_")}


def write(predictions: Iterable[Prediction], folder: str | os.PathLike) -> None:
    """Writes the official script's files, JSON objects by question id.

    `predictions.json` contains texts, `nbest_predictions.json` lists of candidates with their
    probabilities and logits, and `null_odds.json` null odds, for version 2.0 only.
    """
    predictions = list(predictions)
    files: dict[str, dict] = {
        "predictions.json": {p.id: p.text for p in predictions},
        "nbest_predictions.json": {p.id: _candidates(p) for p in predictions},
    }
    odds = _null_odds(predictions)
    if odds:
        files["null_odds.json"] = odds
    for name, contents in files.items():
        write_text(os.path.join(folder, name), json.dumps(contents, indent=4) + "\n")


def _null_odds(predictions):
    return {p.id: p.null_odds for p in predictions if p.null_odds is not None}


def _candidates(prediction: Prediction) -> list[dict]:
    return [
        {
            "text": candidate.text,
            "probability": probability,
            "start_logit": candidate.start_logit,
            "end_logit": candidate.end_logit,
        }
        for candidate, probability in zip(prediction.candidates, prediction.probabilities)
    ]
