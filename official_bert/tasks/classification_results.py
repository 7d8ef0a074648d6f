"""What the fine-tuning of a classifier leaves to read: metrics of one run, and predictions."""

import os
from collections.abc import Iterable, Mapping

import numpy as np

from official_bert.system.whole_files import write_text
from official_bert.tasks import classification_metrics, glue
from official_bert.tasks.classification import Classification
from official_bert.tasks.classification_sets import Unlabelled

NOT_OF_THE_SEED = ("majority_class_accuracy", "mean_label_squared_error", "examples")


def scores(
    task: Classification,
    metrics: Iterable[str],
    outputs: np.ndarray,
    arrays: Mapping[str, np.ndarray],
) -> dict[str, float]:
    """The metrics of a whole set.

    Args:
        task: The task.
        metrics: Names in `classification_metrics.METRICS`.
        outputs: What the model said of each example, (N, K).
        arrays: The examples, with their `labels`.

    Returns:
        The metrics by name, beside them the loss and what guessing would get.
    """
    batch = {**arrays, "example_weights": np.ones(len(outputs), np.float32)}
    sums = task.batch_sums(outputs, batch)
    held_out = task.held_out_metrics(
        np.array([float(sums[name]) for name in task.sums]), task.baseline_counts(batch, None)
    )
    predictions = task.predictions(outputs)
    return classification_metrics.compute(metrics, predictions, arrays["labels"]) | held_out


def write_predictions(
    folder: str | os.PathLike,
    name: str,
    task: Classification,
    unlabelled: Unlabelled,
    outputs: np.ndarray,
) -> list[str]:
    """Writes what is predicted, and how sure the model is.

    Args:
        folder: Where.
        name: What the name of the second file begins with.
        task: The task.
        unlabelled: The examples.
        outputs: What the model said of each, (N, K).

    Returns:
        The paths: the predictions as the leaderboard takes them, with the columns `index` and
        `prediction`; and `{name}_results.tsv` as the official script writes it, one line per
        example with the probability of each class, or the number.
    """
    predictions = os.path.join(folder, unlabelled.predictions)
    texts = task.labels.decode(task.predictions(outputs))
    glue.write_predictions(predictions, unlabelled.examples.index, texts)
    rows = ("\t".join(map(str, row)) for row in task.probabilities(outputs).tolist())
    probabilities = os.path.join(folder, f"{name}_results.tsv")
    write_text(probabilities, "".join(f"{row}\n" for row in rows))
    return [predictions, probabilities]


def require_finite(outputs: np.ndarray, what: str) -> None:
    """Raises a ValueError where a model's outputs are NaN or infinity."""
    bad = np.flatnonzero(~np.isfinite(outputs).all(axis=-1))
    if bad.size:
        raise ValueError(
            f"{what}: the model's outputs must be finite; got others for {bad.size} of "
            f"{len(outputs)} examples, first for example {bad[0]} (counted from 0). Its training "
            "diverged: try a lower learning rate."
        )
