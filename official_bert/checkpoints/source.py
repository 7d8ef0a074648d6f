"""An open checkpoint, the same for all formats: its head, and tensors that are read on demand.

All tensors have official names and layouts; variables that belong to no BERT keep their own names.
"""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np

from official_bert.checkpoints import names
from official_bert.data.tokenization import Casing
from official_bert.model.config import BertConfig

_STEP = re.compile(r"(^|/)(iterations|_iterations|iter|global_step)$")  # the number of updates
_FLOATING = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)


class Tensor(NamedTuple):
    """Shape and type, and a function that reads the values."""

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]

    def transposed(self) -> "Tensor":
        """The same tensor with its two axes exchanged."""
        return Tensor(self.shape[::-1], self.dtype, lambda: self.read().T)

    def cast(self, dtype: np.dtype) -> "Tensor":
        """The same tensor in another type."""
        return Tensor(self.shape, np.dtype(dtype), lambda: self.read().astype(dtype, copy=False))

    def reshaped(self, shape: tuple[int, ...]) -> "Tensor":
        """The same values in another shape."""
        return Tensor(shape, self.dtype, lambda: self.read().reshape(shape))


class Head(NamedTuple):
    """A kind of head, a dense layer with K outputs.

    Attributes:
        part: What messages call it.
        variables: Names of its weights (K, H) and bias (K,), ours and those of TensorFlow 1:
            Hugging Face's, which have the same shapes.
        architecture: Hugging Face's class.
        reads: Those of `names.PARTS` that its outputs depend on.
        outputs: K; `None` if it is the number of classes.
    """

    part: str
    variables: dict[str, str]
    architecture: str
    reads: tuple[str, ...]
    outputs: int | None = None


CLASSIFIER = Head(
    "classifier",
    {"output_weights": "classifier.weight", "output_bias": "classifier.bias"},
    "BertForSequenceClassification",
    ("encoder", "pooler"),
)
QUESTION_ANSWERING = Head(
    "question_answering",
    {
        "cls/squad/output_weights": "qa_outputs.weight",
        "cls/squad/output_bias": "qa_outputs.bias",
    },
    "BertForQuestionAnswering",
    ("encoder",),
    outputs=2,
)
HEADS = (CLASSIFIER, QUESTION_ANSWERING)
LABELS = "labels.json"


@dataclasses.dataclass(frozen=True)
class Source:
    """A checkpoint that is open; its tensors are read later.

    Attributes:
        path: The file or prefix.
        format: "Hugging Face", "TensorFlow 1", "tf-models" or "Keras".
        weights: {official name: tensor}.
        slots: Moments, {official name with the suffix `/adam_m` or `/adam_v`: tensor}.
        counters: Names of variables of the training alone, such as `global_step`.
        unmatched: Own names of variables that belong to no BERT.
        config: The shape of the model.
        vocab_file: Its `vocab.txt` or `tokenizer.json`; None if none was found or given.
        do_lower_case: Whether the vocabulary is uncased; None without a vocabulary.
        max_length: Maximum length of a sequence in tokens; None without a vocabulary.
        head: The kind of head of a fine-tuned model; None without one.
        head_weights: The tensors of that head, {our name: tensor}.
        labels: What a classifier predicts, as `labels.json` holds it; None if nothing says it.
    """

    path: str
    format: str
    weights: dict[str, Tensor]
    slots: dict[str, Tensor]
    counters: dict[str, Tensor]
    unmatched: dict[str, Tensor]
    config: BertConfig
    vocab_file: pathlib.Path | None = None
    do_lower_case: Casing | None = None
    max_length: int | None = None
    head: Head | None = None
    head_weights: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    labels: dict | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """Those of `names.PARTS` that it holds, complete or not, and the fine-tuned head."""
        rows = names.rows(self.config)
        found = tuple(
            part
            for part in names.PARTS
            if any(row.part == part and row.official in self.weights for row in rows)
        )
        return (*found, self.head.part) if self.head else found

    @property
    def step(self) -> Tensor | None:
        """The number of updates that its moments have seen; None if it does not hold that."""
        # A run of ours counts skipped updates in global_step, too, and so its own name is first.
        counters = sorted(self.counters.items(), reverse=True)
        steps = [
            t for n, t in counters if counts_updates(n) and not t.shape and t.dtype.kind in "iu"
        ]
        return steps[0] if steps else None

    @property
    def missing_parts(self) -> list[str]:
        """What a whole model of its kind, for pre-training or fine-tuned, has besides."""
        whole = self.head.reads if self.head else names.PARTS
        return [part for part in whole if part not in self.parts]

    @property
    def is_larger(self) -> bool:
        """Whether variables of the encoder itself are unmatched: its configuration is another's."""
        return any(name.startswith(("bert/", "bert.")) for name in self.unmatched)

    def check(self, parts: Sequence[str], ignore_unmatched: bool = False) -> None:
        """Raises ValueError unless `parts` are complete, of their shapes, and all there is."""
        rows = [row for row in names.rows(self.config) if row.part in parts]
        shapes = {row.official: names.shape(row, self.config) for row in rows}
        missing = [f"{n} {shape}" for n, shape in shapes.items() if n not in self.weights]
        others = [
            f"{n} {self.weights[n].shape} instead of {shape}"
            for n, shape in shapes.items()
            if n in self.weights and self.weights[n].shape != shape
        ]
        others += [
            f"{n} {slot.shape} instead of {shapes[n[:-7]]}"
            for n, slot in self.slots.items()
            if n[:-7] in shapes and slot.shape != shapes[n[:-7]]
        ]
        others += [
            f"{n} of type {tensor.dtype} instead of floating point"
            for n, tensor in (self.weights | self.head_weights | self.slots).items()
            if tensor.dtype not in _FLOATING
        ]
        unmatched = [
            n if names.is_moment(n) else f"{n} {tensor.shape}"
            for n, tensor in self.unmatched.items()
            if not ignore_unmatched
        ]
        problems = {"missing": missing, "not as expected": others, "left over": unmatched}
        if any(problems.values()):
            can_be_left_out = not missing and not others and not self.is_larger
            raise ValueError(
                f"{self.path} ({self.format}) does not fit its configuration. "
                + " ".join(
                    f"{what}: {names.listed(found)}." for what, found in problems.items() if found
                )
                + (" Give --ignore_left_over to leave these out." * can_be_left_out)
            )

    def without_unread(self) -> tuple[list[str], "Source"]:
        """Leaves out what the head of a fine-tuned model does not read, such as the pooler.

        Returns:
            The names that are left out, and the source without them.
        """
        if self.head is None:
            return [], self
        rows = {row.official: row for row in names.rows(self.config)}
        read = {n: t for n, t in self.weights.items() if rows[n].part in self.head.reads}
        unread = [name for name in self.weights if name not in read]
        return unread, dataclasses.replace(self, weights=read)


def counts_updates(name: str) -> bool:
    """Whether a counter is the number of updates."""
    return _STEP.search(name) is not None
