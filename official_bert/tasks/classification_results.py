"""What fine-tuning leaves to read: metrics of one run, of several seeds, and predictions."""

import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from official_bert.system.whole_files import write_text
from official_bert.tasks import classification_metrics, glue
from official_bert.tasks.classification import Classification
from official_bert.tasks.classification_sets import Unlabelled

_LOWER_IS_BETTER = ("loss", "error")
_NOT_OF_THE_SEED = ("majority_class_accuracy", "mean_label_squared_error", "examples")


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
        [float(sums[name]) for name in task.sums], task.label_counts(batch, None)
    )
    predictions = task.predictions(outputs)
    return classification_metrics.compute(metrics, predictions, arrays["labels"]) | held_out


def summary(of_seeds: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float | None]]:
    """Mean, standard deviation (of a sample), median and best over seeds, for each metric.

    The deviation of a single seed is `None`. What does not depend on the seed is left out.
    """
    found = {}
    for name in of_seeds[0]:
        if name.endswith(_NOT_OF_THE_SEED):
            continue
        values = [one[name] for one in of_seeds]
        found[name] = {
            "mean": statistics.fmean(values),
            "standard_deviation": statistics.stdev(values) if len(values) > 1 else None,
            "median": statistics.median(values),
            "best": min(values) if name.endswith(_LOWER_IS_BETTER) else max(values),
        }
    return found


def table(found: Mapping[str, Mapping[str, float | None]]) -> str:
    """A `summary` as lines of text; of a single seed, whose deviation is `None`, its values."""
    if all(values["standard_deviation"] is None for values in found.values()):
        return "\n".join(f"{metric} = {values['mean']:.4f}" for metric, values in found.items())
    names = ("mean", "standard_deviation", "median", "best")
    width = max(map(len, found))
    heads = ("mean", "deviation", "median", "best")
    lines = [" " * width + "".join(f"{head:>11}" for head in heads)]
    for metric, values in found.items():
        cells = (f"{values[name]:>11.4f}" for name in names)
        lines.append(f"{metric:<{width}}" + "".join(cells))
    return "\n".join(lines)


def write_eval_results(folder: str | os.PathLike, values: Mapping[str, float]) -> None:
    """Writes `eval_results.txt` as the official script does: a line `name = value` a metric."""
    lines = [f"{name} = {values[name]}\n" for name in sorted(values)]
    write_text(os.path.join(folder, "eval_results.txt"), "".join(lines))


def write_results(folder: str | os.PathLike, results: Mapping) -> None:
    """Writes `results.json`.

    Raises:
        ValueError: a number is not finite, which JSON has no word for.
    """
    text = json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False)
    write_text(os.path.join(folder, "results.json"), text + "\n")


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
        `prediction`; and `{name}_results.tsv` as the official script writes it, a line per example
        with the probability of each class, or the number.
    """
    predictions = os.path.join(folder, unlabelled.predictions)
    texts = task.labels.decode(task.predictions(outputs))
    glue.write_predictions(predictions, unlabelled.examples.index, texts)
    rows = ("\t".join(map(str, row)) for row in task.probabilities(outputs).tolist())
    probabilities = os.path.join(folder, f"{name}_results.tsv")
    write_text(probabilities, "".join(f"{row}\n" for row in rows))
    return [predictions, probabilities]


def require_finite(outputs: np.ndarray, what: str) -> None:
    """Raises a ValueError where a model says NaN or infinity, of which nothing follows."""
    bad = np.flatnonzero(~np.isfinite(outputs).all(axis=-1))
    if bad.size:
        raise ValueError(
            f"{what}: the model's outputs for {bad.size} of {len(outputs)} examples are not finite "
            f"numbers, first for example {bad[0]}, counted from 0. Its training diverged; try a "
            f"lower learning rate."
        )
