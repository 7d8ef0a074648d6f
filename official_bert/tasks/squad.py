"""The SQuAD task: predicts the first and last position of an answer in a window of text."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from keras import ops

from official_bert.data import text_files, tokenization
from official_bert.model import Tensor, Tensors
from official_bert.model.config import BertConfig
from official_bert.model.fine_tuning import BertQuestionAnswering
from official_bert.protocols import Lengths
from official_bert.tasks import squad_data, squad_evaluation, squad_features
from official_bert.tasks.squad_data import Counts, Dataset, Question, Windows
from official_bert.tasks.squad_features import Features
from official_bert.tasks.windows import RowTask


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionAnswering(RowTask):
    """The question-answering task (arXiv 1810.04805, section 4.2): model, batches, losses, metrics.

    An example is a window. The loss is the mean of two cross-entropies, in nats: of the answer's
    first position and of its last, over all positions of the window, padding too, as in the
    official script. Both are at [CLS] in a window that does not hold the whole answer.

    Args:
        vocab_file, do_lower_case: As of `RowTask`.
        version_2_with_negative: Whether questions may have no answer.
        windows: Lengths of windows; the stages have the same `max_seq_length`.
    """

    version_2_with_negative: bool = False
    windows: Windows = dataclasses.field(default_factory=Windows)

    sums: ClassVar[tuple[str, ...]] = ("loss", "correct", "examples", "tokens")
    loss_in_nats: ClassVar[bool] = True
    progress: ClassVar[dict[str, str]] = {"span_accuracy": "spans {:.1%}"}

    def describe(self) -> dict:
        """The entries of `run.json`, which has a fingerprint of the windows, too."""
        return {
            "task": "question answering",
            "version_2_with_negative": self.version_2_with_negative,
            "windows": dataclasses.asdict(self.windows),
            "vocabulary": tokenization.digest(tokenization.read_vocabulary(self.vocab_file)),
            "do_lower_case": self.do_lower_case,
        }

    def check(self, lengths: Lengths) -> None:
        """Refuses a stage with masked words to predict, or with another length."""
        super().check(lengths)
        if lengths.max_seq_length != self.windows.max_seq_length:
            raise ValueError(
                f"max_seq_length of a stage must be {self.windows.max_seq_length}, that of the "
                f"windows; got {lengths.max_seq_length}."
            )

    # Model and batches

    def make_model(self, config: BertConfig, seed: int | None, dtype: str) -> BertQuestionAnswering:
        return BertQuestionAnswering(config, seed=seed, dtype=dtype)

    def rows(
        self, files: Sequence[str], lengths: Lengths, config: BertConfig, held_out: bool
    ) -> Features:
        return self.labelled_features(files, config)

    def labelled_features(self, files: Sequence[str], config: BertConfig) -> Features:
        """The windows of the questions that can be trained on; errors as of `read`."""
        return _labelled_features(self, (*files,), (*map(text_files.stamp, files),), config)

    def read(self, file: str) -> tuple[list[Question], Counts]:
        """The questions of a file that can be trained on; see `squad_data.for_training`.

        Raises:
            ValueError: the file is missing or broken, no question has an answer, or some have none
                and that was not expected.
        """
        dataset = self.read_asked(file)
        kept, counts = squad_data.for_training(dataset.questions)
        if not kept:
            raise ValueError(
                f"{file} must contain an answer that occurs in its context; got none in "
                f"{len(dataset.questions)} questions. Give SQuAD's JSON with answers."
            )
        return kept, counts

    def read_asked(self, file: str, scored: bool = False) -> Dataset:
        """The questions of a file to answer.

        Args:
            scored: Whether the answers are to be scored; they are needed only then.

        Raises:
            ValueError: the file is broken, or questions without answers do not fit the task, or one
                has no answers to compare with.
        """
        dataset = squad_data.read(file)
        marked = sum(question.is_impossible for question in dataset.questions)
        if marked and not self.version_2_with_negative:
            raise ValueError(
                f"{file} must have no unanswerable question (marked is_impossible, or with empty "
                f"answers in the flat layout); got {marked} of {len(dataset.questions)}. Remove "
                "these, or train and predict with --version_2_with_negative."
            )
        if scored:
            squad_evaluation.require_answers(dataset, file)
        return dataset

    def features(self, questions: Sequence[Question], config: BertConfig) -> Features:
        """The windows of any questions.

        Raises:
            ValueError: the vocabulary is not the model's, or as `squad_features.make_features`.
        """
        vocabulary = tokenization.read_vocabulary(self.vocab_file)
        tokenization.require_within(config.vocab_size, vocabulary, self.vocab_file)
        return squad_features.make_features(
            questions, self.vocab_file, self.do_lower_case, self.windows
        )

    # Losses and metrics

    def batch_sums(self, outputs: Tensor, batch: Tensors) -> dict[str, Tensor]:
        """The `sums` of windows of a batch by name; float32 scalars.

        `loss` is the sum of their losses, `correct` counts those whose first and last position both
        have the largest logit.
        """
        losses, is_correct = 0.0, True
        for number, name in enumerate(("start_positions", "end_positions")):
            logits, positions = outputs[..., number], batch[name]  # (B, S), (B,)
            loss = ops.sparse_categorical_crossentropy(positions, logits, from_logits=True)
            hits = ops.equal(ops.cast(ops.argmax(logits, -1), "int32"), positions)
            losses, is_correct = losses + loss / 2, ops.logical_and(is_correct, hits)
        weights = batch["example_weights"]
        return {
            "loss": ops.sum(weights * losses),
            "correct": ops.sum(weights * ops.cast(is_correct, "float32")),
            "examples": ops.sum(weights),
            "tokens": ops.cast(ops.sum(batch["input_mask"]), "float32"),
        }

    def metrics(self, sums: Sequence[float] | np.ndarray) -> dict[str, float]:
        """`loss` and `span_accuracy` from a vector of `sums`; NaN of zeros."""
        values = dict(zip(self.sums, np.asarray(sums, np.float64).tolist(), strict=True))
        examples = values["examples"] or np.nan
        return {"loss": values["loss"] / examples, "span_accuracy": values["correct"] / examples}

    def baseline_counts(self, batch: Mapping[str, np.ndarray], config: BertConfig) -> np.ndarray:
        """Counts of each span as a label: the span from s to e is number S·s + e."""
        length = self.windows.max_seq_length
        spans = batch["start_positions"].astype(np.int64) * length + batch["end_positions"]
        return np.bincount(spans, batch["example_weights"], minlength=length**2)

    def held_out_metrics(self, sums: np.ndarray, counts: np.ndarray) -> dict[str, float]:
        """`metrics`, a baseline's accuracy, and `examples`: the number of windows.

        The baseline always predicts the commonest span: mostly [CLS], for no answer in the window.
        """
        return {
            **self.metrics(sums),
            "most_frequent_span_accuracy": float(counts.max() / max(counts.sum(), 1.0)),
            "examples": int(sums[self.sums.index("examples")]),
        }

    def baseline_loss(self, config: BertConfig) -> float:
        return math.log(self.windows.max_seq_length)

    def format_metrics(self, metrics: Mapping[str, float]) -> str:
        return (
            f"loss {metrics['loss']:.3f}, spans {metrics['span_accuracy']:.1%} (most "
            f"frequent span: {metrics['most_frequent_span_accuracy']:.1%})"
        )


@functools.lru_cache(maxsize=2)  # training and held-out windows; the loop opens each often
def _labelled_features(task, files, stamps, config):
    questions = [question for file in files for question in task.read(file)[0]]
    return task.features(questions, config)
