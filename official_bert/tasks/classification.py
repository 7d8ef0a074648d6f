"""The sentence classification task: a class, a number or several labels of a sentence or a pair."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import numpy as np
from keras import ops

from official_bert.data import text_files, tokenization
from official_bert.data.row_batches import Arrays
from official_bert.model import Tensor, Tensors
from official_bert.model.config import BertConfig
from official_bert.model.fine_tuning import BertClassifier
from official_bert.protocols import Lengths
from official_bert.system import messages
from official_bert.tasks import classification_features, classification_targets, metrics, tables
from official_bert.tasks.classification_targets import Target
from official_bert.tasks.labels import Labels, LabelSets, Numbers, order_by_name
from official_bert.tasks.tables import Columns, Examples
from official_bert.tasks.windows import RowTask

# Suffixes of metrics that do not depend on the seed.
SEED_INDEPENDENT = (
    "majority_class_accuracy",
    "mean_label_squared_error",
    "most_frequent_label_f1_micro",
    "examples",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification(RowTask):
    """The classification task (arXiv 1810.04805, section 4.1): model, batches, losses, metrics.

    The loss is the mean of a `Target`'s losses: cross-entropies, in nats, or squared errors. With
    weights w of the classes c it is Σ w(c) · loss / Σ w(c) over the examples of a global batch, as
    in PyTorch; held-out losses are not weighted.

    Args:
        labels: The classes or labels in the order of the model's outputs, or a number.
        columns: The names of the tables' columns.
        vocab_file, do_lower_case: As of `RowTask`.
        header: The names of all columns of files that have no line of names.
        skip_broken: Leave out rows with too few or too many columns.
        synonyms: Other names of each class, used by models from elsewhere.
        class_weights: The weight of each class in the training loss; None: all are equal.
    """

    labels: Labels
    columns: Columns
    header: tuple[str, ...] | None = None
    skip_broken: bool = False
    synonyms: tuple[tuple[str, ...], ...] = ()
    class_weights: tuple[float, ...] | None = None
    reads_pooler: ClassVar[bool] = True

    @property
    def target(self) -> Target:
        """What is learned of an example."""
        return classification_targets.of(self.labels)

    @property
    def loss_in_nats(self) -> bool:
        return self.target.in_nats

    @property
    def sums(self) -> tuple[str, ...]:
        weighted = () if self.class_weights is None else ("loss_weights",)
        return ("loss", *self.target.sums, *weighted, "examples", "tokens")

    @property
    def weights(self) -> tuple[str, ...]:
        return ("example_weights" if self.class_weights is None else "loss_weights",)

    @property
    def progress(self) -> dict[str, str]:
        return self.target.progress

    def describe(self) -> dict:
        """The entries of `run.json`, which has a fingerprint of the examples, too."""
        weighted = {} if self.class_weights is None else {"class_weights": [*self.class_weights]}
        return {
            "task": self.target.name,
            "labels": self.target.describe(),
            "columns": dataclasses.asdict(self.columns),
            "vocabulary": tokenization.digest(tokenization.read_vocabulary(self.vocab_file)),
            "do_lower_case": self.do_lower_case,
        } | weighted

    # Model and batches

    def make_model(self, config: BertConfig, seed: int | None, dtype: str) -> BertClassifier:
        """A built `BertClassifier` with an output per class or label, or one for a number."""
        return BertClassifier(config, self.target.num_outputs, seed=seed, dtype=dtype)

    def arrange(self, model: BertClassifier, classes: Sequence[str], path: str) -> None:
        """Puts the outputs of a model from elsewhere into the order of the task's classes.

        Prints a line if it changes the order; warns if the order is not clear.

        Args:
            classes: The names of the outputs in the checkpoint at `path`.
        """
        if isinstance(self.labels, Numbers):
            return
        ours, theirs = self.labels.names, ", ".join(classes)
        order = order_by_name(ours, classes, self.synonyms)
        if order is None:
            messages.warn(
                f"{path} names its outputs {theirs}, from which their order is not clear; "
                f"assuming {', '.join(ours)}. If that is wrong, write these names in the right "
                "order into id2label in its config.json."
            )
        elif order != sorted(order):
            model.arrange(order)
            print(f"reordered the outputs of {path} by their names: {theirs}", flush=True)

    def rows(
        self, files: Sequence[str], lengths: Lengths, config: BertConfig, held_out: bool
    ) -> Arrays:
        """Those for training have `loss_weights`, the weights of their classes, if any."""
        read = [self.labelled_arrays(file, lengths.max_seq_length, config) for file in files]
        arrays = read[0]  # not a copy
        if len(read) > 1:
            arrays = {name: np.concatenate([part[name] for part in read]) for name in arrays}
        if self.class_weights is not None and not held_out:
            weights = np.array(self.class_weights, np.float32)[arrays["labels"]]
            arrays = arrays | {"loss_weights": weights}
        return Arrays(arrays)

    def labelled_arrays(
        self, file: str, max_seq_length: int, config: BertConfig
    ) -> dict[str, np.ndarray]:
        """The `arrays` of a table with labels; read once by a process."""
        unweighted = dataclasses.replace(self, class_weights=None)
        return _labelled_arrays(unweighted, file, text_files.stamp(file), max_seq_length, config)

    def read(self, file: str) -> Examples:
        """The labelled examples of a table."""
        return tables.read(
            file,
            self.columns,
            label_lists=isinstance(self.labels, LabelSets),
            header=self.header,
            skip_broken=self.skip_broken,
        )

    def arrays(
        self, examples: Examples, max_seq_length: int, config: BertConfig
    ) -> dict[str, np.ndarray]:
        """The model's inputs for N examples; prints a warning if some have no text.

        Returns:
            The arrays of `classification_features.make_features` and, unless the examples have
            none, `labels`: int32 class numbers or float32 numbers, (N,), or float32 zeros and ones
            for each of several labels, (N, K).

        Raises:
            ValueError: as `tokenizer`, `make_features` and `encode`.
        """
        tokenizer = self.tokenizer(config)
        sentences = examples.sentences1, examples.sentences2
        arrays = classification_features.make_features(*sentences, tokenizer, max_seq_length)
        _warn_of_rows_without_text(examples, arrays["input_mask"])
        if examples.labels is not None:
            arrays["labels"] = self.labels.encode(examples)
        return arrays

    # Losses and metrics

    def batch_sums(self, outputs: Tensor, batch: Tensors) -> dict:
        weights, labels = batch["example_weights"], batch["labels"]
        losses, counts = self.target.losses(outputs, labels), self.target.counts(outputs, labels)
        sums = {name: ops.sum(weights * count) for name, count in counts.items()}
        of_losses = weights
        if self.class_weights is not None:
            of_losses = weights * batch.get("loss_weights", 1.0)  # held-out examples have none
            sums["loss_weights"] = ops.sum(of_losses)
        sums["loss"], sums["examples"] = ops.sum(of_losses * losses), ops.sum(weights)
        return sums | {"tokens": ops.cast(ops.sum(batch["input_mask"]), "float32")}

    def metrics(self, sums: Sequence[float] | np.ndarray) -> dict[str, float]:
        """`loss` and the target's metrics from a vector of `sums`; NaN of zeros."""
        values = dict(zip(self.sums, np.asarray(sums, np.float64).tolist(), strict=True))
        values["examples"] = values["examples"] or np.nan
        values["loss"] /= values.get("loss_weights", values["examples"]) or np.nan
        return {"loss": values["loss"], **self.target.metrics(values)}

    def baseline_counts(
        self, batch: Mapping[str, np.ndarray], config: BertConfig | None
    ) -> np.ndarray:
        return self.target.baseline_counts(batch["labels"], batch["example_weights"])

    def held_out_metrics(self, sums: np.ndarray, counts: np.ndarray) -> dict[str, float]:
        """`metrics`, a baseline's, and the number of `examples`."""
        examples = {"examples": int(sums[self.sums.index("examples")])}
        return self.metrics(sums) | self.target.baseline(counts) | examples

    def baseline_loss(self, config: BertConfig) -> float:
        """The loss of guessing all classes with equal probability; of the worst number in bounds.

        Infinite for numbers without bounds, whose scale is not known.
        """
        return self.target.baseline_loss()

    def format_metrics(self, metrics: Mapping[str, float]) -> str:
        return self.target.line(metrics)

    def scores(
        self, names: Iterable[str], outputs: np.ndarray, arrays: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        """Some `metrics.METRICS` of outputs (N, K), with the loss and the baseline's metric."""
        batch = {**arrays, "example_weights": np.ones(len(outputs), np.float32)}
        sums = self.batch_sums(outputs, batch)
        held_out = self.held_out_metrics(
            np.array([float(sums[name]) for name in self.sums]), self.baseline_counts(batch, None)
        )
        found = metrics.compute(names, self.target.predictions(outputs), arrays["labels"])
        return found | held_out


@functools.lru_cache(maxsize=4)  # sets; the loop opens each several times
def _labelled_arrays(task, file, stamp, max_seq_length, config):
    return task.arrays(task.read(file), max_seq_length, config)


def _warn_of_rows_without_text(examples, input_mask):
    special = 2 if examples.sentences2 is None else 3  # [CLS], and a [SEP] for each sentence
    empty = np.flatnonzero(input_mask.sum(axis=1) <= special)
    if empty.size:
        messages.warn(
            f"{examples.path}: {empty.size:,} of {len(input_mask):,} rows have no text, first on "
            f"line {examples.lines[empty[0]]}; their predictions are meaningless."
        )


def require_finite(outputs: np.ndarray, file: str) -> None:
    """Raises a ValueError if a model's outputs for the examples of a file are NaN or infinity."""
    bad = np.flatnonzero(~np.isfinite(outputs).all(axis=-1))
    if bad.size:
        raise ValueError(
            f"{file}: the model's outputs must be finite; got others for {bad.size} of "
            f"{len(outputs)} examples, first for example {bad[0]} (counted from 0). Its training "
            "diverged: try a lower learning rate."
        )
