"""Targets of sentence classification: one class, a number, or any of several labels.

A target defines the losses, sums and metrics, and a baseline that does not read the text. The three
have the same members; those of `OneClass` say what each is.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from keras import ops

from official_bert.model import Tensor
from official_bert.system import settings
from official_bert.tasks import labels, metrics
from official_bert.tasks.labels import Classes, Labels, LabelSets, Numbers
from official_bert.tasks.tables import Examples

BALANCED = "balanced"
_SMALLEST, _LARGEST = 1e-6, 1e6  # of a weight


@dataclasses.dataclass(frozen=True)
class _Named:
    """An output per name."""

    labels: Classes | LabelSets

    def describe(self) -> list:
        """The labels in `run.json`."""
        return [*self.labels.names]

    @property
    def num_outputs(self) -> int:
        """K, the number of outputs of the model."""
        return len(self.labels.names)


class OneClass(_Named):
    """One class per example: softmax and cross-entropy. The baseline is the majority class."""

    name: ClassVar[str] = "classification"  # in `run.json`
    in_nats: ClassVar[bool] = True  # whether the loss is a cross-entropy
    sums: ClassVar[tuple[str, ...]] = ("correct",)  # over examples, next to the loss
    progress: ClassVar[dict[str, str]] = {"accuracy": "accuracy {:.1%}"}  # as of `protocols.Task`

    def losses(self, outputs: Tensor, truth: Tensor) -> Tensor:
        """The loss of each example, (B, K) and (B, …) → (B,)."""
        return ops.sparse_categorical_crossentropy(truth, outputs, from_logits=True)

    def counts(self, outputs: Tensor, truth: Tensor) -> dict[str, Tensor]:
        """The terms of `sums` for each example: (B,)."""
        hits = ops.equal(ops.cast(ops.argmax(outputs, -1), "int32"), truth)
        return {"correct": ops.cast(hits, "float32")}

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """The metrics of some examples from their sums; `loss` is their mean already."""
        return {"accuracy": sums["correct"] / sums["examples"]}

    def baseline_counts(self, truth: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Statistics of the labels of weighted examples, a vector that is summed over batches."""
        return np.bincount(truth, weights, minlength=self.num_outputs)

    def baseline(self, counts: np.ndarray) -> dict[str, float]:
        """The baseline's metrics from the sum of these vectors."""
        return {"majority_class_accuracy": float(counts.max() / max(counts.sum(), 1.0))}

    def baseline_loss(self) -> float:
        """The loss of guessing all labels with equal probability; infinite if unknown."""
        return math.log(self.num_outputs)

    def line(self, metrics: Mapping[str, float]) -> str:
        """Held-out metrics as a line of text."""
        return (
            f"loss {metrics['loss']:.3f}, accuracy {metrics['accuracy']:.1%} (most frequent class: "
            f"{metrics['majority_class_accuracy']:.1%})"
        )

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        """Predictions that `labels` decode and `metrics.compute` takes, from outputs (N, K)."""
        return np.argmax(outputs, axis=-1)

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        """Probabilities of the outputs, or numbers: (N, K) float64."""
        return metrics.softmax(outputs)


@dataclasses.dataclass(frozen=True)
class OneNumber:
    """One number per example: squared error. The baseline is the mean of all numbers."""

    labels: Numbers

    name: ClassVar[str] = "regression"
    in_nats: ClassVar[bool] = False
    sums: ClassVar[tuple[str, ...]] = ()
    progress: ClassVar[dict[str, str]] = {}

    def describe(self) -> list:
        bounds = self.labels.low, self.labels.high
        return [bound if math.isfinite(bound) else None for bound in bounds]

    @property
    def num_outputs(self) -> int:
        return 1

    def losses(self, outputs: Tensor, truth: Tensor) -> Tensor:
        return ops.square(outputs[:, 0] - truth)

    def counts(self, outputs: Tensor, truth: Tensor) -> dict[str, Tensor]:
        return {}

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {"mean_squared_error": sums["loss"]}

    def baseline_counts(self, truth: np.ndarray, weights: np.ndarray) -> np.ndarray:
        truth = truth.astype(np.float64)  # number of examples, sum and sum of squares
        return np.array([weights @ truth**power for power in range(3)])

    def baseline(self, counts: np.ndarray) -> dict[str, float]:
        mean, mean_square = counts[1:] / max(counts[0], 1.0)
        return {"mean_label_squared_error": float(mean_square - mean**2)}

    def baseline_loss(self) -> float:
        """The loss of the worst number in bounds; the scale of numbers without is unknown."""
        return (self.labels.high - self.labels.low) ** 2

    def line(self, metrics: Mapping[str, float]) -> str:
        return (
            f"mean squared error {metrics['mean_squared_error']:.4g} (mean label: "
            f"{metrics['mean_label_squared_error']:.4g})"
        )

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        return outputs[:, 0]

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        return outputs.astype(np.float64)


class SeveralLabels(_Named):
    """Any of several labels per example: a sigmoid and a binary cross-entropy for each.

    An example's loss is the mean over the labels. The baseline always predicts the most frequent
    label.
    """

    name: ClassVar[str] = "multi-label classification"
    in_nats: ClassVar[bool] = True
    sums: ClassVar[tuple[str, ...]] = ("correct", "predicted", "true")
    progress: ClassVar[dict[str, str]] = {"f1_micro": "F1 micro {:.1%}"}

    def losses(self, outputs: Tensor, truth: Tensor) -> Tensor:
        return ops.mean(ops.binary_crossentropy(truth, outputs, from_logits=True), axis=-1)

    def counts(self, outputs: Tensor, truth: Tensor) -> dict[str, Tensor]:
        predicted = ops.cast(outputs > 0, "float32")
        found = {"correct": predicted * truth, "predicted": predicted, "true": truth}
        return {name: ops.sum(count, axis=-1) for name, count in found.items()}

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        both = sums["predicted"] + sums["true"]
        nothing = sums["examples"] * 0.0  # NaN without examples, as other means
        return {"f1_micro": 2 * sums["correct"] / max(both, 1.0) + nothing}

    def baseline_counts(self, truth: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return np.array([weights.sum(), *(weights @ truth)])

    def baseline(self, counts: np.ndarray) -> dict[str, float]:
        both = max(float(counts.sum()), 1.0)  # a prediction per example, and the true labels
        return {"most_frequent_label_f1_micro": 2 * float(counts[1:].max()) / both}

    def baseline_loss(self) -> float:
        return math.log(2)

    def line(self, metrics: Mapping[str, float]) -> str:
        return (
            f"loss {metrics['loss']:.3f}, F1 micro {metrics['f1_micro']:.1%} (most frequent label: "
            f"{metrics['most_frequent_label_f1_micro']:.1%})"
        )

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        return outputs

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        return metrics.sigmoid(outputs)


Target = OneClass | OneNumber | SeveralLabels

_TARGETS: dict[type, Callable[[Any], Target]] = {
    Classes: OneClass,
    Numbers: OneNumber,
    LabelSets: SeveralLabels,
}


def of(found: Labels) -> Target:
    """The target with these labels."""
    return _TARGETS[type(found)](found)


# Weights of classes


def class_weights(given: str, classes: Labels, examples: Examples) -> tuple[float, ...]:
    """The weight of each class in the training loss, in the order of the classes.

    Args:
        given: `balanced`: N / (K · n) for a class with n of N examples of K classes, as in
            scikit-learn; or a JSON object {class: weight}, or the path of a file with one.

    Raises:
        ValueError: the labels are not classes; a class has no example to balance, or no weight; or
            a weight is of an unknown class or out of bounds.
    """
    if not isinstance(classes, Classes):
        kind = "numbers" if isinstance(classes, Numbers) else "several labels per example"
        raise ValueError(
            f"class_weights must be left out with {kind}, which are no classes; got {given[:40]!r}."
        )
    if given == BALANCED:
        return _balanced(classes, examples)
    table = _weight_table(given)
    if table.keys() != {*classes.names}:
        raise ValueError(
            f"class_weights must have a weight for each of {labels.named(classes.names)} and no "
            f"other; got {labels.named(table) or 'none'}."
        )
    for name, weight in table.items():
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_number or not _SMALLEST <= weight <= _LARGEST:
            raise ValueError(
                f"class_weights must be numbers from {_SMALLEST:g} to {_LARGEST:g}; got "
                f"{json.dumps(weight)[:40]} of {name!r}."
            )
    return tuple(float(table[name]) for name in classes.names)


def _balanced(classes, examples):
    counts = np.bincount(classes.encode(examples), minlength=len(classes.names))
    missing = [name for name, count in zip(classes.names, counts) if not count]
    if missing:
        raise ValueError(
            f"{examples.path} must have examples of each class to balance them; got none of "
            f"{labels.named(missing)}. Give class_weights as a table."
        )
    return tuple((counts.sum() / (len(counts) * counts)).tolist())


def _weight_table(given: str) -> dict:
    try:
        text = given
        if not given.lstrip().startswith("{"):
            with open(given, encoding="utf-8-sig") as file:
                text = file.read()
        table = settings.strict_json(text)
        if not isinstance(table, dict):
            raise TypeError("it is no object")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(
            f'class_weights must be {BALANCED}, a JSON object such as {{"a": 1, "b": 2.5}}, or a '
            f"file with one; got {given[:99]!r} ({error})."
        ) from None
    return table
