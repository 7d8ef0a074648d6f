"""An open checkpoint of any format: its head, and tensors that are read on demand.

All tensors have official names and layouts; variables that belong to no BERT keep their own names.
"""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
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
        """The tensor with its two axes exchanged."""
        return Tensor(self.shape[::-1], self.dtype, lambda: self.read().T)

    def cast(self, dtype: np.dtype) -> "Tensor":
        """The tensor in another type."""
        return Tensor(self.shape, np.dtype(dtype), lambda: self.read().astype(dtype, copy=False))

    def reshaped(self, shape: tuple[int, ...]) -> "Tensor":
        """The tensor in another shape."""
        return Tensor(shape, self.dtype, lambda: self.read().reshape(shape))


class Head(NamedTuple):
    """A kind of head, a dense layer with K outputs.

    Attributes:
        part: Its name in messages.
        variables: {our name, as in TensorFlow 1: Hugging Face's} of its weights (K, H) and bias
            (K,).
        architecture: Hugging Face's class.
        reads: The `names.PARTS` that its outputs depend on.
        outputs: K; None if it is the number of classes, which have names.
    """

    part: str
    variables: dict[str, str]
    architecture: str
    reads: tuple[str, ...]
    outputs: int | None = None

    def num_outputs(self, tensors: Mapping[str, Tensor]) -> int:
        """K, from the tensors of a head of this kind."""
        *_, bias = self.variables
        return tensors[bias].shape[0]


CLASSIFIER = Head(
    "classifier",
    {"output_weights": "classifier.weight", "output_bias": "classifier.bias"},
    "BertForSequenceClassification",
    ("encoder", "pooler"),
)
QUESTION_ANSWERING = Head(
    "question_answering",
    {"cls/squad/output_weights": "qa_outputs.weight", "cls/squad/output_bias": "qa_outputs.bias"},
    "BertForQuestionAnswering",
    ("encoder",),
    outputs=2,
)
TAGGER = Head(
    "tagger",
    {"cls/tags/output_weights": "classifier.weight", "cls/tags/output_bias": "classifier.bias"},
    "BertForTokenClassification",
    ("encoder",),
)
HEADS = (CLASSIFIER, QUESTION_ANSWERING, TAGGER)
LABELS = "labels.json"
_WINDOW = 384  # tokens, of the official script


class Kind(NamedTuple):
    """A kind of model.

    Attributes:
        model: The name of its class.
        parts: The `names.PARTS` that the class has.
        reads: Those without which it is of no use.
        task: What it does, by the name that transformers and its hub have for it.
        head: Its fine-tuned head, if any.
    """

    model: str
    parts: tuple[str, ...]
    reads: tuple[str, ...]
    task: str
    head: Head | None = None


def _fine_tuned(model, head, task):
    return Kind(model, ("encoder", "pooler"), head.reads, task, head)


PRETRAINER = Kind("BertPretrainer", names.PARTS, ("encoder", "masked_lm"), "fill-mask")
ENCODER = Kind("BertEncoder", ("encoder", "pooler"), ("encoder",), "feature-extraction")
KINDS = (
    PRETRAINER,
    _fine_tuned("BertClassifier", CLASSIFIER, "text-classification"),
    _fine_tuned("BertQuestionAnswering", QUESTION_ANSWERING, "question-answering"),
    _fine_tuned("BertTagger", TAGGER, "token-classification"),
    ENCODER,
)


@dataclasses.dataclass(frozen=True)
class Source:
    """An open checkpoint.

    Attributes:
        path: The file or prefix.
        format: "Hugging Face", "TensorFlow 1", "tf-models" or "Keras".
        weights: {official name: tensor}.
        slots: Moments, {official name with the suffix `/adam_m` or `/adam_v`: tensor}.
        counters: Variables only of the training, such as `global_step`.
        unmatched: Variables that belong to no BERT, by their own names.
        config: The model's configuration.
        vocab_file: Its `vocab.txt` or `tokenizer.json`; None if none was found or given.
        do_lower_case: Whether the vocabulary is uncased; None without a vocabulary.
        max_length: Maximum length of a sequence in tokens; None without a vocabulary.
        trained_length: As of `ModelFolder`.
        trained_windows: The windows of its run on questions; None if unknown.
        head: The kind of head of a fine-tuned model; None without one.
        head_weights: The tensors of that head, {our name: tensor}.
        labels: The content of `labels.json`, which names the classes or labels of a head, if known.
        run_folder: The folder of the run that wrote it; None for other checkpoints.
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
    trained_length: int | None = None
    trained_windows: dict[str, int] | None = None
    head: Head | None = None
    head_weights: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    labels: dict | None = None
    run_folder: pathlib.Path | None = None

    @property
    def kind(self) -> Kind:
        """The kind of its model."""
        if self.head:
            return next(kind for kind in KINDS if kind.head is self.head)
        return ENCODER if {"masked_lm", "next_sentence"}.isdisjoint(self.parts) else PRETRAINER

    @property
    def text_length(self) -> int:
        """Maximum length of a text in tokens: that of its training, if known."""
        positions = self.config.max_position_embeddings
        return min(self.trained_length or self.max_length or positions, positions)

    @property
    def windows(self) -> dict[str, int]:
        """The arguments of `squad_data.Windows`: its run's; else the official script's, shortened
        to the model's positions.
        """
        if self.trained_windows:
            return self.trained_windows
        longest = min(_WINDOW, self.max_length or _WINDOW)
        thirds = {"doc_stride": longest // 3, "max_query_length": longest // 6}
        return {"max_seq_length": longest, **thirds}

    @property
    def model_arguments(self) -> dict[str, int]:
        """Arguments of its model besides the configuration: `num_outputs`, if it varies."""
        if self.head is None or self.head.outputs:
            return {}
        return {"num_outputs": self.head.num_outputs(self.head_weights)}

    @property
    def parts(self) -> tuple[str, ...]:
        """The `names.PARTS` in it, complete or not, and the fine-tuned head."""
        rows = names.rows(self.config)
        found = tuple(
            part
            for part in names.PARTS
            if any(row.part == part and row.official in self.weights for row in rows)
        )
        return (*found, self.head.part) if self.head else found

    @property
    def predicts_labels(self) -> bool:
        """Whether the outputs of its head are any of several labels, not one class."""
        return "labels" in (self.labels or {})

    @property
    def step(self) -> Tensor | None:
        """The number of updates of its moments, if known."""
        # `global_step` of our runs includes skipped updates; `optimizer/iterations` sorts first.
        counters = sorted(self.counters.items(), reverse=True)
        steps = [
            t for n, t in counters if counts_updates(n) and not t.shape and t.dtype.kind in "iu"
        ]
        return steps[0] if steps else None

    @property
    def missing_parts(self) -> list[str]:
        """The parts that it lacks to be a whole model, for pre-training or fine-tuned."""
        whole = self.head.reads if self.head else names.PARTS
        return [part for part in whole if part not in self.parts]

    @property
    def is_larger(self) -> bool:
        """Whether variables of the encoder are unmatched, so its configuration is another's."""
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
        """The names of variables that a fine-tuned head does not read, and the source without."""
        return self._split(self.head.reads) if self.head else ([], self)

    def without_heads(self) -> tuple[list[str], "Source"]:
        """The names of variables of any head, and the source without."""
        found, source = self._split(("encoder", "pooler"))
        found += self.head_weights
        return found, dataclasses.replace(source, head=None, head_weights={}, labels=None)

    def _split(self, parts):
        """The names of variables of other parts, and the source without."""
        rows = {row.official: row for row in names.rows(self.config)}
        kept = {n: t for n, t in self.weights.items() if rows[n].part in parts}
        others = [name for name in self.weights if name not in kept]
        return others, dataclasses.replace(self, weights=kept)


def output_names(labels: Mapping | None) -> list[str] | None:
    """The names of a head's outputs in the content of `labels.json`; None if they have none."""
    labels = labels or {}
    return labels.get("classes", labels.get("labels"))


def counts_updates(name: str) -> bool:
    """Whether a counter is the number of updates."""
    return _STEP.search(name) is not None
