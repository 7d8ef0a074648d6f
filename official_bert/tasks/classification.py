"""The sentence classification task: predicts a class or a number for a sentence or a pair."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from keras import ops

from official_bert.data import text_files, tokenization
from official_bert.data.row_batches import ArrayBatches
from official_bert.data.tokenization import Casing
from official_bert.model.classifier import BertClassifier
from official_bert.model.config import BertConfig
from official_bert.model.tensor_types import Tensor, Tensors
from official_bert.protocols import Lengths, Task
from official_bert.tasks import classification_features, metrics, tables
from official_bert.tasks.labels import Classes, Numbers, order_by_name
from official_bert.tasks.tables import Columns, Examples

# Suffixes of metrics that do not depend on the seed.
SEED_INDEPENDENT = ("majority_class_accuracy", "mean_label_squared_error", "examples")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification(Task):
    """The classification task (arXiv 1810.04805, section 4.1): model, batches, losses, metrics.

    The loss is the mean cross-entropy of classes, in nats, or the mean squared error of numbers.

    Args:
        labels: The classes in the order of the model's outputs, or a number.
        columns: The names of the tables' columns.
        vocab_file: The vocabulary that the model was pre-trained with.
        do_lower_case: Whether that is an uncased one.
        header: The names of all columns of files that have no line of names.
        skip_broken: Leave out rows with too few or too many columns.
        synonyms: Other names of each class, used by models from elsewhere.
    """

    labels: Classes | Numbers
    columns: Columns
    vocab_file: str
    do_lower_case: Casing = True
    header: tuple[str, ...] | None = None
    skip_broken: bool = False
    synonyms: tuple[tuple[str, ...], ...] = ()

    @property
    def predicts_classes(self) -> bool:
        """Whether it is classes that are predicted; else numbers."""
        return isinstance(self.labels, Classes)

    @property
    def loss_in_nats(self) -> bool:
        """Whether the loss is a cross-entropy; else it is a squared error."""
        return self.predicts_classes

    @property
    def sums(self) -> tuple[str, ...]:
        """Names of what is summed over the batches."""
        return ("loss", *(["correct"] if self.predicts_classes else []), "examples", "tokens")

    @property
    def progress(self) -> dict[str, str]:
        """What the progress line shows beside the loss: for numbers that is all there is."""
        return {"accuracy": "accuracy {:.1%}"} if self.predicts_classes else {}

    def describe(self) -> dict:
        """The entries of `run.json`; the fingerprint of the examples stands there anyway."""
        return {
            "task": "classification" if self.predicts_classes else "regression",
            "labels": self._described_labels(),
            "columns": dataclasses.asdict(self.columns),
            "vocabulary": tokenization.digest(tokenization.read_vocabulary(self.vocab_file)),
            "do_lower_case": self.do_lower_case,
        }

    # Model and batches

    def make_model(self, config: BertConfig, seed: int | None, dtype: str) -> BertClassifier:
        """A built `BertClassifier` with an output per class, or one for a number."""
        outputs = len(self.labels.names) if isinstance(self.labels, Classes) else 1
        return BertClassifier(config, outputs, seed=seed, dtype=dtype)

    def arrange(self, model: BertClassifier, classes: Sequence[str], path: str) -> None:
        """Puts the outputs of a model from elsewhere into the order of the task's classes.

        Prints a line if they were in another order, and a warning if their names do not determine
        it.

        Args:
            model: The model with its weights.
            classes: The checkpoint's names of its outputs.
            path: The checkpoint.
        """
        if not isinstance(self.labels, Classes):
            return
        ours, theirs = self.labels.names, ", ".join(classes)
        order = order_by_name(ours, classes, self.synonyms)
        if order is None:
            print(
                f"warning: {path} names its outputs {theirs}, from which their order is not clear; "
                f"assuming {', '.join(ours)}. If that is wrong, write these names in the right "
                "order into id2label in its config.json.",
                flush=True,
            )
        elif order != sorted(order):
            model.head.arrange(order)
            print(f"reordered the outputs of {path} by their names: {theirs}", flush=True)

    def batches(
        self,
        files: Sequence[str],
        lengths: Lengths,
        batch_size: int,
        config: BertConfig,
        *,
        seed: int,
        shard: tuple[int, int],
        held_out: bool = False,
    ) -> ArrayBatches:
        """An `ArrayBatches` of the labelled examples in tables; read once by a process."""
        read = [self.labelled_arrays(file, lengths.max_seq_length, config) for file in files]
        arrays = read[0]  # not a copy
        if len(read) > 1:
            arrays = {name: np.concatenate([part[name] for part in read]) for name in arrays}
        return ArrayBatches(arrays, batch_size, seed=seed, shard=shard, shuffle=not held_out)

    def labelled_arrays(
        self, file: str, max_seq_length: int, config: BertConfig
    ) -> dict[str, np.ndarray]:
        """The `arrays` of a table with labels; read once by a process."""
        stamp = text_files.stamp(file)
        return _labelled_arrays(self, file, stamp, max_seq_length, config.vocab_size)

    def read(self, file: str) -> Examples:
        """The labelled examples of a table."""
        return tables.read(file, self.columns, header=self.header, skip_broken=self.skip_broken)

    def arrays(
        self, examples: Examples, max_seq_length: int, config: BertConfig
    ) -> dict[str, np.ndarray]:
        """The model's inputs for N examples.

        Returns:
            The arrays of `classification_features.make_features` and, unless the examples have
            none, `labels` of shape (N,): int32 class numbers, or float32.

        Raises:
            ValueError: the vocabulary is not the model's; or as `make_features` and `encode`.
        """
        return self._arrays(examples, max_seq_length, config.vocab_size)

    def _arrays(self, examples, max_seq_length, vocab_size):
        tokenizer = tokenization.load(self.vocab_file, self.do_lower_case)
        vocabulary = tokenizer.get_vocab()
        tokenization.require_within(vocab_size, vocabulary, self.vocab_file)
        tokenization.check_case(vocabulary, self.vocab_file, self.do_lower_case)
        sentences = examples.sentences1, examples.sentences2
        arrays = classification_features.make_features(*sentences, tokenizer, max_seq_length)
        if examples.labels is not None:
            arrays["labels"] = self.labels.encode(examples)
        return arrays

    # Losses and metrics

    def batch_sums(self, outputs: Tensor, batch: Tensors) -> dict:
        """The `sums` of rows of a batch by name; float32 scalars."""
        weights, labels = batch["example_weights"], batch["labels"]
        sums = {}
        if self.predicts_classes:
            losses = ops.sparse_categorical_crossentropy(labels, outputs, from_logits=True)
            hits = ops.equal(ops.cast(ops.argmax(outputs, -1), "int32"), labels)
            sums["correct"] = ops.sum(weights * ops.cast(hits, "float32"))
        else:
            losses = ops.square(outputs[:, 0] - labels)
        sums["loss"], sums["examples"] = ops.sum(weights * losses), ops.sum(weights)
        return sums | {"tokens": ops.cast(ops.sum(batch["input_mask"]), "float32")}

    def metrics(self, sums: Sequence[float] | np.ndarray) -> dict[str, float]:
        """`loss`, and `accuracy` or `mean_squared_error`, from a vector of `sums`.

        NaN where nothing was summed up, as where every update of a window was skipped.
        """
        values = dict(zip(self.sums, np.asarray(sums, np.float64).tolist(), strict=True))
        examples = values["examples"] or np.nan
        loss = values["loss"] / examples
        if self.predicts_classes:
            return {"loss": loss, "accuracy": values["correct"] / examples}
        return {"loss": loss, "mean_squared_error": loss}

    def baseline_counts(
        self, batch: Mapping[str, np.ndarray], config: BertConfig | None
    ) -> np.ndarray:
        """How often each class is a label; or the number, sum and sum of squares of the labels."""
        labels, weights = batch["labels"], batch["example_weights"]
        if isinstance(self.labels, Classes):
            return np.bincount(labels, weights, minlength=len(self.labels.names))
        labels = labels.astype(np.float64)
        return np.array([weights @ labels**power for power in range(3)])

    def held_out_metrics(self, sums: np.ndarray, counts: np.ndarray) -> dict[str, float]:
        """`metrics`, beside them what guessing would get, and `examples`: how many were counted.

        The baseline always predicts the majority class, or the mean of all numbers.
        """
        examples = {"examples": int(sums[self.sums.index("examples")])}
        if self.predicts_classes:
            guessing = {"majority_class_accuracy": float(counts.max() / max(counts.sum(), 1.0))}
        else:
            mean, mean_square = counts[1:] / max(counts[0], 1.0)
            guessing = {"mean_label_squared_error": float(mean_square - mean**2)}
        return self.metrics(sums) | guessing | examples

    def baseline_loss(self, config: BertConfig) -> float:
        """The loss of guessing all classes with equal probability; of the worst number in bounds.

        Infinite for numbers without bounds, whose scale is not known.
        """
        if isinstance(self.labels, Classes):
            return math.log(len(self.labels.names))
        return (self.labels.high - self.labels.low) ** 2

    def format_metrics(self, metrics: Mapping[str, float]) -> str:
        """Held-out metrics as one line of text."""
        if not self.predicts_classes:
            return (
                f"mean squared error {metrics['mean_squared_error']:.4g} (mean label: "
                f"{metrics['mean_label_squared_error']:.4g})"
            )
        return (
            f"loss {metrics['loss']:.3f}, accuracy {metrics['accuracy']:.1%} (most frequent class: "
            f"{metrics['majority_class_accuracy']:.1%})"
        )

    # Predictions

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        """Class numbers, or numbers, from the model's outputs, (N, K) → (N,)."""
        return np.argmax(outputs, axis=-1) if self.predicts_classes else outputs[:, 0]

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        """Of the classes, or the numbers as they are: (N, K) float64."""
        return metrics.softmax(outputs) if self.predicts_classes else outputs.astype(np.float64)

    def scores(
        self, names: Iterable[str], outputs: np.ndarray, arrays: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        """The metrics of a whole set by name, with the loss and those of the baseline.

        Args:
            names: Names in `metrics.METRICS`.
            outputs: The model's outputs for each example, (N, K).
            arrays: The examples, with their `labels`.
        """
        batch = {**arrays, "example_weights": np.ones(len(outputs), np.float32)}
        sums = self.batch_sums(outputs, batch)
        held_out = self.held_out_metrics(
            np.array([float(sums[name]) for name in self.sums]), self.baseline_counts(batch, None)
        )
        found = metrics.compute(names, self.predictions(outputs), arrays["labels"])
        return found | held_out

    def _described_labels(self):
        if self.predicts_classes:
            return list(self.labels.names)
        bounds = self.labels.low, self.labels.high
        return [bound if math.isfinite(bound) else None for bound in bounds]


@functools.lru_cache(maxsize=4)  # sets; the loop opens each several times
def _labelled_arrays(task, file, stamp, max_seq_length, vocab_size):
    return task._arrays(task.read(file), max_seq_length, vocab_size)


def require_finite(outputs: np.ndarray, file: str) -> None:
    """Raises a ValueError if a model's outputs for the examples of a file are NaN or infinity."""
    bad = np.flatnonzero(~np.isfinite(outputs).all(axis=-1))
    if bad.size:
        raise ValueError(
            f"{file}: the model's outputs must be finite; got others for {bad.size} of "
            f"{len(outputs)} examples, first for example {bad[0]} (counted from 0). Its training "
            "diverged: try a lower learning rate."
        )
