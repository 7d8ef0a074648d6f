"""Logits → answers: the best spans of every window, then the best texts of every question.

A span runs from a start s to an end e of one window, has the score start_logit[s] + end_logit[e],
and is at most `max_answer_length` pieces long. All of them are compared. (The official script pairs
the `n_best_size` best starts with as many ends, question and separators included, and may be left
with no pair at all.) A start counts in one window alone, that which sees most around it. Texts are
cut from the context.
"""

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from official_bert.system.whole_files import write_text
from official_bert.tasks.squad_features import Features

ANSWER_ALL = sys.float_info.max  # a null_score_diff_threshold that no null odds exceed
_WINDOWS_AT_ONCE = 32  # of 384 positions with 30 ends each: 3 MB of scores


@dataclass(frozen=True)
class Settings:
    """How answers are chosen; names and defaults are the official flags'.

    Raises:
        ValueError: a number is below 1, or the threshold is not finite.
    """

    version_2_with_negative: bool = False  # questions may have no answer
    n_best_size: int = 20
    max_answer_length: int = 30  # in word pieces
    null_score_diff_threshold: float = 0.0

    def __post_init__(self):
        for name in ("n_best_size", "max_answer_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}.")
        if not np.isfinite(self.null_score_diff_threshold):
            raise ValueError(
                "null_score_diff_threshold must be a finite number; got "
                f"{self.null_score_diff_threshold}. Typical values are between -5 and -1."
            )


class Candidate(NamedTuple):
    """A possible answer; `""` stands for none."""

    text: str
    start_logit: float
    end_logit: float
    start: int = 0  # first character in the context
    stop: int = 0  # one past the last

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


class Prediction(NamedTuple):
    """What a model answers to one question."""

    id: str
    text: str
    candidates: list[Candidate]  # texts differ, best first; at most n_best_size, or 1 more for ""
    probabilities: list[float]  # softmax of the candidates' scores
    null_odds: float | None  # score of no answer - score of the best answer; None in version 1.1


def decode(
    features: Features,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    settings: Settings = Settings(),
) -> list[Prediction]:
    """The answers of a model, in the order of `features.questions`.

    Without `version_2_with_negative` the answer is the best span's text. With it, the null score is
    that of [CLS] as start and end, the smallest over a question's windows; where it exceeds the
    best span's by more than the threshold, the answer is `""`. A context without word pieces has
    the answer `""`, and null odds as if its best span had the score 0.

    Args:
        features: The windows that the model read.
        start_logits: Shape (windows, max_seq_length); those of [PAD] are not looked at.
        end_logits: Likewise.
        settings: How answers are chosen.

    Raises:
        ValueError: the shapes are others, or a logit is not finite.
    """
    logits = np.stack([_checked(features, start_logits), _checked(features, end_logits)])
    rows, starts, ends = best_spans(features, logits[0], logits[1], settings)
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
        predictions.append(_predict(question.id, spans, nulls, settings))
    return predictions


def at_threshold(predictions: Iterable[Prediction], threshold: float) -> list[Prediction]:
    """The predictions with another `null_score_diff_threshold` than they were decoded with.

    Args:
        predictions: From `decode`, with a threshold that left no answer out: `ANSWER_ALL`.
        threshold: Questions with larger null odds get the answer `""`.
    """
    return [
        p._replace(text="") if p.null_odds is not None and p.null_odds > threshold else p
        for p in predictions
    ]


def best_spans(
    features: Features, start_logits: np.ndarray, end_logits: np.ndarray, settings: Settings
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The `n_best_size` best spans of every window; of equal ones the first, then the shorter.

    Args:
        features: The windows.
        start_logits: Finite, of shape (windows, max_seq_length).
        end_logits: Likewise.
        settings: How many there are, and how long they may be.

    Returns:
        The window, the first and the last position of each, window by window, best first.
    """
    found = [np.zeros((3, 0), np.intp)]
    for first in range(0, len(features), _WINDOWS_AT_ONCE):
        rows = slice(first, first + _WINDOWS_AT_ONCE)
        starts, ends = start_logits[rows].copy(), end_logits[rows].copy()
        for index in range(len(starts)):
            _forbid(features, first + index, starts[index], ends[index])
        block = _best_of_block(starts, ends, settings)
        found.append(np.stack([first + block[0], *block[1:]]))
    return tuple(np.concatenate(found, axis=1))


def _forbid(features: Features, row: int, starts: np.ndarray, ends: np.ndarray) -> None:
    """Sets the logits of one window to -inf where no answer may start or end."""
    sees_best = features.sees_best(row)
    first = features.context_position(row)
    for logits in (starts, ends):
        logits[:first] = logits[first + len(sees_best) :] = -np.inf
    starts[first : first + len(sees_best)][~sees_best] = -np.inf


def _best_of_block(starts: np.ndarray, ends: np.ndarray, settings: Settings):
    """Rows, starts and ends of the best spans of some windows, sorted by row and score."""
    longest = min(settings.max_answer_length, starts.shape[1])
    rows = np.arange(len(starts))[:, None]
    ends = np.pad(ends, ((0, 0), (0, longest - 1)), constant_values=-np.inf)
    ends = sliding_window_view(ends, longest, axis=1)  # (rows, starts, lengths)
    # The n best spans begin at the n starts whose own best spans are best.
    of_starts = starts + ends.max(axis=2)
    firsts = np.sort(_largest(of_starts, settings.n_best_size), axis=1)
    scores = starts[rows, firsts][:, :, None] + ends[rows, firsts]  # (rows, n, lengths)
    scores = scores.reshape(len(scores), -1)
    best = _largest(scores, settings.n_best_size)
    rank, lengths = np.divmod(best, longest)
    firsts = firsts[rows, rank]
    row, column = np.nonzero(scores[rows, best] > -np.inf)
    return row, firsts[row, column], (firsts + lengths)[row, column]


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Columns of the `count` largest values of each row, largest first; of equal ones the first."""
    return np.argsort(-values, axis=1, kind="stable")[:, :count]


def _checked(features: Features, logits: np.ndarray) -> np.ndarray:
    """Logits as float64, in which sums of two are exact enough to be told apart."""
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


def _predict(id: str, spans: list[Candidate], nulls, settings: Settings) -> Prediction:
    """Chooses the answer from the spans and the logits of [CLS] in all windows of a question."""
    spans = _distinct(spans, settings.n_best_size)
    if not settings.version_2_with_negative:
        spans = spans or [_NOTHING]
        return Prediction(id, spans[0].text, spans, _softmax(spans), None)
    null = Candidate("", *min(nulls, key=sum))
    odds = null.score - (spans or [_NOTHING])[0].score
    text = spans[0].text if spans and odds <= settings.null_score_diff_threshold else ""
    candidates = sorted([*spans, null], key=lambda candidate: -candidate.score)
    if len(candidates) > settings.n_best_size and candidates[-1] is not null:
        candidates.pop()
    return Prediction(id, text, candidates, _softmax(candidates), odds)


_NOTHING = Candidate("", 0.0, 0.0)


def _distinct(spans: list[Candidate], count: int) -> list[Candidate]:
    """The best candidate of each text, best first, at most `count`; equal ones keep their order."""
    best = {}
    for span in sorted(spans, key=lambda span: -span.score):
        best.setdefault(span.text, span)
    return list(best.values())[:count]


def _softmax(candidates: list[Candidate]) -> list[float]:
    scores = np.array([candidate.score for candidate in candidates])
    odds = np.exp(scores - scores.max())
    return (odds / odds.sum()).tolist()


def write(predictions: Iterable[Prediction], folder: str | os.PathLike) -> None:
    """Writes what the official script does: question id → what is known of the answer.

    `predictions.json` holds texts, `nbest_predictions.json` lists of candidates with their
    probabilities and logits, and `null_odds.json`, for version 2.0 alone, null odds.
    """
    predictions = list(predictions)
    files = {
        "predictions.json": {p.id: p.text for p in predictions},
        "nbest_predictions.json": {p.id: _candidates(p) for p in predictions},
    }
    odds = {p.id: p.null_odds for p in predictions if p.null_odds is not None}
    if odds:
        files["null_odds.json"] = odds
    for name, contents in files.items():
        write_text(os.path.join(folder, name), json.dumps(contents, indent=4) + "\n")


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
