"""Scores answers to SQuAD's questions as the official scripts of versions 1.1 and 2.0 do.

Exact match and F1 compare normalized texts: lower case, no ASCII punctuation, no articles, single
blanks. A question's score is the best over its answers. Two texts of which normalization leaves
nothing have F1 = 0 in version 1.1, and 1 in version 2.0, where the empty text is the right answer
to an unanswerable question.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from official_bert.tasks.squad_data import Dataset, Question

# Suffixes of scores that do not depend on the seed, and of thresholds, of which none is the best.
SEED_INDEPENDENT = ("total", "unanswered", "thresh")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


class Score(NamedTuple):
    """Exact match and F1 of one prediction, both in [0, 1]."""

    exact_match: float
    f1: float


def normalize(text: str) -> str:
    """Lower case, without ASCII punctuation and English articles, single blanks between words."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def score(prediction: str, question: Question, version_2: bool) -> Score:
    """The best score of a prediction over a question's answers.

    Args:
        version_2: Whether an empty text is an answer, right for a question without any.
    """
    answers = [normalize(answer.text) for answer in question.answers]
    if version_2:
        answers = list(filter(None, answers)) or [""]
    given = normalize(prediction)
    return Score(
        max(float(given == answer) for answer in answers),
        max(_f1(given.split(), answer.split(), float(version_2)) for answer in answers),
    )


def _f1(given: list[str], answer: list[str], both_empty: float) -> float:
    """2 PR / (P + R), with precision and recall counted in words."""
    if not given and not answer:
        return both_empty
    common = (Counter(given) & Counter(answer)).total()
    return 2 * common / (len(given) + len(answer))


def evaluate(
    dataset: Dataset, predictions: Mapping[str, str], null_odds: Mapping[str, float] | None = None
) -> dict[str, float]:
    """The official scores of predictions, in percent.

    Args:
        dataset: Result of `squad_data.read`; every question must have its answers.
        predictions: Question id → answer, `""` for none; `null_odds` do not change them.
        null_odds: Question id → margin of no answer over the best answer, as of `squad_decoding`
            (or a probability); only for version 2.0.

    Returns:
        `exact_match`, `f1`, `total` (number of questions) and `unanswered` (number of those
        without a prediction; they score 0). For version 2.0 also `HasAns_…` and `NoAns_…` over the
        questions with and without answers; with `null_odds` the scores at the best threshold,
        `best_exact` and `best_f1`, and the threshold, `best_exact_thresh` and `best_f1_thresh`:
        questions with larger odds are left unanswered.

    Raises:
        ValueError: a question has no answer to compare with, no question has a prediction, or
            odds are missing, not finite, or given for version 1.1.
    """
    _check(dataset, predictions, null_odds)
    scores = {
        question.id: score(predictions[question.id], question, dataset.version_2)
        if question.id in predictions
        else Score(0.0, 0.0)
        for question in dataset.questions
    }
    total = len(scores)
    result = {**_means(scores.values()), "total": total}
    result["unanswered"] = total - len(scores.keys() & predictions.keys())
    if dataset.version_2:
        for name, wanted in (("HasAns", True), ("NoAns", False)):
            part = [scores[q.id] for q in dataset.questions if bool(q.answers) is wanted]
            means = {**_means(part), "total": len(part)} if part else {}
            result |= {f"{name}_{key}": value for key, value in means.items()}
    if null_odds is not None:
        result |= _best(dataset, scores, null_odds)
    return result


def _means(scores) -> dict[str, float]:
    exact_match, f1 = (100.0 * math.fsum(column) / len(column) for column in zip(*scores))
    return {"exact_match": exact_match, "f1": f1}


def _best(dataset: Dataset, scores: dict[str, Score], null_odds) -> dict[str, float]:
    unanswerable = {q.id: float(not q.answers) for q in dataset.questions}
    result = {}
    for name, column in (("exact", 0), ("f1", 1)):
        gains = [(null_odds[i], scores[i][column] - unanswerable[i]) for i in scores]
        gain, threshold = best_threshold(gains)
        best = math.fsum(unanswerable.values()) + gain
        result |= {f"best_{name}": 100.0 * best / len(scores), f"best_{name}_thresh": threshold}
    return result


def best_threshold(gains: list[tuple[float, float]]) -> tuple[float, float]:
    """The threshold for null odds that gains most over answering nothing.

    Questions with equal odds are answered together or not at all; the official script may stop
    between them, at a score that no threshold has. If answering nothing is best, the official
    threshold is always 0, which is right only for probabilities; here it is below all odds.

    Args:
        gains: Per question its null odds and the score that answering it adds.

    Returns:
        The gain and the lowest threshold that has it; questions whose odds are at most the
        threshold are answered.
    """
    ordered = sorted(gains)
    best, threshold = 0.0, min(0.0, math.nextafter(ordered[0][0], -math.inf))
    gain = 0.0
    for number, (odds, more) in enumerate(ordered, 1):
        gain += more
        last_of_equals = number == len(ordered) or ordered[number][0] > odds
        if last_of_equals and gain > best:
            best, threshold = gain, odds
    return best, threshold


def require_answers(dataset: Dataset, file: str = "") -> None:
    """Refuses questions that no prediction can be scored against.

    Raises:
        ValueError: naming the file, if it is given, and the first question without an answer, or
            marked as unanswerable with one.
    """
    place = f"{file}: " if file else ""
    for question in dataset.questions:
        if not question.answers and not question.is_impossible:
            also = ", or be marked is_impossible" if dataset.version_2 else ""
            raise ValueError(
                f"{place}question {question.id!r} must have an answer to compare with{also}; got "
                "none. Give a file with all answers; a test set without them cannot be scored."
            )
        if question.answers and question.is_impossible:
            raise ValueError(
                f"{place}question {question.id!r} must have an answer or be marked is_impossible; "
                f"got both, with the answer {question.answers[0].text[:40]!r}. Remove one of the "
                "two."
            )


def _check(dataset, predictions, null_odds):
    require_answers(dataset)
    ids = {question.id for question in dataset.questions}
    if not ids & predictions.keys():
        raise ValueError(
            f"predictions must be for the {len(ids)} questions of the file; got "
            f"{len(predictions)}, all for others. Are they for another file?"
        )
    if null_odds is None:
        return
    if not dataset.version_2:
        raise ValueError(
            "null odds must be left out for questions of version 1.1, each of which has an answer."
        )
    missing = sorted(ids - null_odds.keys())
    if missing:
        raise ValueError(
            f"null odds must cover every question; got none for {len(missing)} questions, such as "
            f"{missing[0]!r}."
        )
    bad = next((i for i in ids if not math.isfinite(null_odds[i])), None)
    if bad is not None:
        raise ValueError(f"null odds must be finite numbers; got {null_odds[bad]} for {bad!r}.")
