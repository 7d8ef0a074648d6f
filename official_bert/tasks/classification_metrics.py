"""The metrics of sentence classification, GLUE's among them, from predictions and labels.

All are computed in float64 and equal those of scikit-learn and SciPy, except where these give NaN:
a correlation with something constant is not defined, and is 0 here, as that of Matthews is by
convention. A model that says the same of every example knows nothing of their order; NaN would
hide it, since it can neither be compared, nor averaged over seeds, nor written as JSON.
"""

from collections.abc import Callable, Iterable

import numpy as np


def compute(names: Iterable[str], predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Metrics by name.

    Args:
        names: Some of `METRICS`.
        predictions: What the model says of each example: class numbers, or numbers.
        labels: What is true, likewise.

    Returns:
        Fractions of 1, not percentages.

    Raises:
        ValueError: an unknown name, different or no numbers of examples, or values that are not
            finite or, for a metric of classes, no class numbers.

    Examples:
        >>> compute(["accuracy", "f1"], [1, 0, 1, 1], [1, 0, 0, 1])
        {'accuracy': 0.75, 'f1': 0.8}
    """
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    if predictions.shape != labels.shape or labels.ndim != 1 or not labels.size:
        raise ValueError(
            "predictions and labels must be one of each per example, for at least one example; got "
            f"shapes {predictions.shape} and {labels.shape}."
        )
    for values in (predictions, labels):
        _require_finite(values)
    return {name: _metric(name)(predictions, labels) for name in names}


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The fraction of examples with the right class."""
    counts = _confusion(predictions, labels)
    return float(np.trace(counts) / counts.sum())


def f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """2 TP / (2 TP + FP + FN) of class 1 among classes 0 and 1; 0 where there is no class 1.

    Raises:
        ValueError: there are more than two classes.
    """
    counts = _confusion(predictions, labels)
    if len(counts) > 2:
        raise ValueError(
            f"f1 must get classes 0 and 1; got class {len(counts) - 1}. With more than two "
            "classes, use f1_macro."
        )
    return float(_f1_of_classes(counts)[1])


def f1_macro(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The mean of F1 over the classes that are predicted or true of some example."""
    counts = _confusion(predictions, labels)
    occurs = (counts.sum(0) + counts.sum(1)) > 0
    return float(_f1_of_classes(counts)[occurs].mean())


def matthews_correlation(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The correlation of predicted and true classes, in [-1, 1]; 0 where either is constant.

    For two classes this is Matthews' coefficient (1975); for more, Gorodkin's R_K (2004).
    """
    counts = _confusion(predictions, labels).astype(np.float64)
    predicted, true, total = counts.sum(1), counts.sum(0), counts.sum()
    covariance = np.trace(counts) * total - predicted @ true
    variances = (total**2 - predicted @ predicted) * (total**2 - true @ true)
    return float(covariance / np.sqrt(variances)) if variances else 0.0


def pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The linear correlation, in [-1, 1]; 0 where either is constant."""
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
    "matthews_correlation": matthews_correlation,
    "pearson": pearson,
    "spearman": spearman,
}


def _metric(name: str) -> Callable[[np.ndarray, np.ndarray], float]:
    if name not in METRICS:
        raise ValueError(f"metrics must be among {', '.join(METRICS)}; got {name!r}.")
    return METRICS[name]


def _require_finite(values: np.ndarray) -> None:
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise ValueError(
            f"metrics must get finite numbers; got {values[bad[0]]} as value {bad[0]} of "
            f"{values.size}, and {bad.size} such values in total. Has the model diverged?"
        )


def _confusion(predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How often each class (row) was predicted of each (column): at least two of either."""
    for values in (predictions, labels):
        if values.dtype.kind not in "iu" or values.min() < 0:
            raise ValueError(
                f"metrics must get class numbers from 0, as integers; got {values[:3].tolist()}… "
                f"({values.dtype})."
            )
    size = max(int(predictions.max()), int(labels.max()), 1) + 1
    pairs = predictions.astype(np.int64) * size + labels
    return np.bincount(pairs, minlength=size * size).reshape(size, size)


def _f1_of_classes(counts: np.ndarray) -> np.ndarray:
    of_both = counts.sum(0) + counts.sum(1)  # 2 TP + FP + FN
    return 2 * np.diagonal(counts) / np.maximum(of_both, 1)


def _centered(values: np.ndarray) -> np.ndarray:
    """Deviations from the mean over the largest one; exactly zeros where all values are equal."""
    values = np.asarray(values, np.float64)
    values = values / (np.abs(values).max() or 1.0)  # squares of huge numbers overflow
    if np.ptp(values) == 0:
        return np.zeros_like(values)  # the mean of equal numbers may differ in the last bit
    deviations = values - values.mean()
    return deviations / np.abs(deviations).max()


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1; those of equal values are the mean of the places that they take."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[where]
