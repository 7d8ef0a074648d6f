"""Metrics of fine-tuning, from predictions and labels; summaries over seeds; their files.

They are computed in float64 and equal scikit-learn's and SciPy's, except where these give NaN: a
correlation with a constant is 0 here, as Matthews' is by convention. NaN could neither be compared,
nor averaged over seeds, nor written as JSON.
"""

import json
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from official_bert.system.whole_files import write_text

_LOWER_IS_BETTER = ("loss", "error")


def softmax(logits: Sequence[float] | np.ndarray) -> np.ndarray:
    """Probabilities over the last axis, float64."""
    logits = np.asarray(logits, np.float64)
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return odds / odds.sum(axis=-1, keepdims=True)


def sigmoid(logits: Sequence[float] | np.ndarray) -> np.ndarray:
    """The probability of each logit, float64."""
    return np.exp(-np.logaddexp(0, -np.asarray(logits, np.float64)))


# Metrics of one set


def compute(names: Iterable[str], predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Metrics by name.

    Args:
        names: Some of `METRICS`.
        predictions: Predicted class numbers or finite numbers, (N,), at least one; or the finite
            logits of labels, (N, K).
        labels: True ones, (N,); or 1 for each true label and 0 for others, (N, K).

    Returns:
        Fractions of 1, not percentages.

    Examples:
        >>> compute(["accuracy", "f1"], [1, 0, 1, 1], [1, 0, 0, 1])
        {'accuracy': 0.75, 'f1': 0.8}
    """
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    return {name: METRICS[name](predictions, labels) for name in names}


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The fraction of examples with the right class."""
    counts = _confusion(predictions, labels)
    return float(np.trace(counts) / counts.sum())


def f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """2 TP / (2 TP + FP + FN) of class 1 of classes 0 and 1; 0 without any example of class 1."""
    return float(_f1_of_classes(_confusion(predictions, labels))[1])


def f1_macro(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The mean of F1 over the classes that are predicted or true of some example.

    Of labels: over all of them; that of a label which is neither predicted nor true is 0.
    """
    if labels.ndim == 2:
        both = (predictions > 0).sum(0) + labels.sum(0)
        return float(np.mean(2 * _hits(predictions, labels) / np.maximum(both, 1)))
    counts = _confusion(predictions, labels)
    occurs = (counts.sum(0) + counts.sum(1)) > 0
    return float(_f1_of_classes(counts)[occurs].mean())


def f1_micro(predictions: np.ndarray, labels: np.ndarray) -> float:
    """F1 of all labels together; predicted are those with positive logits."""
    both = (predictions > 0).sum() + labels.sum()
    return float(2 * _hits(predictions, labels).sum() / max(both, 1))


def mean_average_precision(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The mean over labels of the average precision; that of a label that is never true is 0.

    Average precision is Σ (Rᵢ − Rᵢ₋₁) Pᵢ with the precision and recall at each distinct logit.
    """
    return float(np.mean([_average_precision(*column) for column in zip(predictions.T, labels.T)]))


def matthews_correlation(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The correlation of predicted and true classes, in [-1, 1]; 0 if either is constant.

    For two classes this is Matthews' coefficient (1975); for more, Gorodkin's R_K (2004).
    """
    counts = _confusion(predictions, labels).astype(np.float64)
    predicted, true, total = counts.sum(1), counts.sum(0), counts.sum()
    covariance = np.trace(counts) * total - predicted @ true
    variances = (total**2 - predicted @ predicted) * (total**2 - true @ true)
    return float(covariance / np.sqrt(variances)) if variances else 0.0


def pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The linear correlation, in [-1, 1]; 0 if either is constant."""
    x, y = _centered(predictions), _centered(labels)
    norms = np.linalg.norm(x) * np.linalg.norm(y)
    return float(np.clip(x @ y / norms, -1, 1)) if norms else 0.0


def spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The correlation of ranks, in [-1, 1]; equal values share the mean of their ranks."""
    return pearson(_ranks(predictions), _ranks(labels))


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "f1_macro": f1_macro,
    "f1_micro": f1_micro,
    "mean_average_precision": mean_average_precision,
    "matthews_correlation": matthews_correlation,
    "pearson": pearson,
    "spearman": spearman,
}


def _confusion(predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Counts of predicted classes (rows) by true classes (columns): at least two of either."""
    size = max(int(predictions.max()), int(labels.max()), 1) + 1
    pairs = predictions.astype(np.int64) * size + labels
    return np.bincount(pairs, minlength=size * size).reshape(size, size)


def _f1_of_classes(counts: np.ndarray) -> np.ndarray:
    of_both = counts.sum(0) + counts.sum(1)  # 2 TP + FP + FN
    return 2 * np.diagonal(counts) / np.maximum(of_both, 1)


def _hits(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How often each label is predicted and true."""
    return ((logits > 0) & (labels > 0)).sum(0)


def _average_precision(logits: np.ndarray, labels: np.ndarray) -> float:
    order = np.argsort(-logits, kind="stable")
    hits = np.cumsum(labels[order], dtype=np.float64)
    last = np.flatnonzero(np.diff(logits[order], append=-np.inf))  # of each distinct logit
    gained = np.diff(hits[last], prepend=0.0)
    return float(gained @ (hits[last] / (last + 1)) / max(hits[-1], 1.0))


def _centered(values: np.ndarray) -> np.ndarray:
    """Deviations from the mean over the largest one; exactly zeros if all values are equal."""
    values = np.asarray(values, np.float64)
    values = values / (np.abs(values).max() or 1.0)  # squares of huge numbers overflow
    if np.ptp(values) == 0:
        return np.zeros_like(values)  # the mean of equal numbers may differ in the last bit
    deviations = values - values.mean()
    return deviations / np.abs(deviations).max()


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1; equal values share the mean of their ranks."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[where]


# Over several seeds


def summary(
    of_seeds: Sequence[Mapping[str, float]], left_out: tuple[str, ...] = ()
) -> dict[str, dict[str, float | None]]:
    """Mean, standard deviation (of a sample), median and best over seeds, for each metric.

    Args:
        of_seeds: The metrics of each seed. Losses and errors are best where they are lowest.
        left_out: Suffixes of metrics that do not depend on the seed.

    Returns:
        {metric: {"mean", "standard_deviation", "median", "best"}}; the deviation of a single seed
        is `None`.
    """
    found = {}
    for name in of_seeds[0]:
        whole, _, _ = name.partition("/")  # without the class that it is of
        if whole.endswith(left_out):
            continue
        values = [one[name] for one in of_seeds]
        found[name] = {
            "mean": statistics.fmean(values),
            "standard_deviation": statistics.stdev(values) if len(values) > 1 else None,
            "median": statistics.median(values),
            "best": min(values) if whole.endswith(_LOWER_IS_BETTER) else max(values),
        }
    return found


def table(found: Mapping[str, Mapping[str, float | None]]) -> str:
    """A `summary` as lines of text; of a single seed, whose deviation is `None`, its values."""
    if all(values["standard_deviation"] is None for values in found.values()):
        return "\n".join(f"{metric} = {values['mean']:.4f}" for metric, values in found.items())
    width = max(map(len, found))
    heads = ("mean", "deviation", "median", "best")
    lines = [" " * width + "".join(f"{head:>11}" for head in heads)]
    for metric, values in found.items():
        lines.append(f"{metric:<{width}}" + "".join(f"{value:>11.4f}" for value in values.values()))
    return "\n".join(lines)


def write_eval_results(folder: str | os.PathLike, values: Mapping[str, float]) -> None:
    """Writes `eval_results.txt` as the official script does: a line `name = value` a metric."""
    lines = [f"{name} = {values[name]}\n" for name in sorted(values)]
    write_text(os.path.join(folder, "eval_results.txt"), "".join(lines))


def write_results(folder: str | os.PathLike, results: Mapping) -> None:
    """Writes `results.json`.

    Raises:
        ValueError: a number is not finite, which JSON cannot represent.
    """
    text = json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False)
    write_text(os.path.join(folder, "results.json"), text + "\n")
