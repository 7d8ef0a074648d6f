"""A fine-tuned model that says a class, or a number, of a sentence or of two."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from official_bert.model.classifier import BertClassifier
from official_bert.prediction import forward, inputs
from official_bert.tasks.classification_features import make_features
from official_bert.tasks.labels import Classes, Numbers

_TEXTS_AT_ONCE = 4096  # whose padded arrays are in memory


class ClassPrediction(NamedTuple):
    """The likeliest class, and the probability of each class by name."""

    label: str
    probabilities: dict[str, float]


class NumberPrediction(NamedTuple):
    """A number, within the bounds of the scale that the model learned, if that has some."""

    number: float


class SentenceClassifier:
    """A fine-tuned classifier together with its vocabulary; made by `official_bert.load`.

    Args:
        model: The `BertClassifier`.
        tokenizer: The tokenizer of its vocabulary, of `tokenization.load`.
        labels: What its outputs stand for.
        max_seq_length: Word pieces per text at most, with [CLS] and [SEP].
        takes_pairs: Whether it was trained on pairs of sentences; `None` if that is not known.
        origin: What it was loaded from, for `repr`.

    Attributes:
        model, tokenizer, labels, max_seq_length, takes_pairs: As given.

    Example:

    >>> classifier = official_bert.load("reviews")     # doctest: +SKIP
    >>> classifier.predict(["A good cat."])            # doctest: +SKIP
    [ClassPrediction(label='5', probabilities={'1': 0.02, …, '5': 0.81})]
    """

    def __init__(
        self,
        model: BertClassifier,
        tokenizer: Tokenizer,
        labels: Classes | Numbers,
        *,
        max_seq_length: int,
        takes_pairs: bool | None,
        origin: str,
    ):
        self.model, self.tokenizer, self.labels = model, tokenizer, labels
        self.max_seq_length, self.takes_pairs = max_seq_length, takes_pairs
        self._origin = origin
        self._graph = forward.as_graph(model)

    def __repr__(self):
        says = "a number"
        if isinstance(self.labels, Classes):
            says = f"one of {len(self.labels.names)} classes"
        of = {None: "sentences or pairs", True: "pairs of sentences", False: "sentences"}
        return f"<SentenceClassifier: {says}, of {of[self.takes_pairs]}, from {self._origin}>"

    def predict(
        self, texts: Iterable[str | Sequence[str]], *, batch_size: int = 32
    ) -> list[ClassPrediction] | list[NumberPrediction]:
        """What the model says of each text.

        A text with more than `max_seq_length` word pieces is cut at its end; of a pair, pieces are
        taken from the end of the longer sentence, as in training.

        Args:
            texts: Sentences, or pairs of them, (first, second).
            batch_size: Texts computed at once.

        Returns:
            A `ClassPrediction` for each, or a `NumberPrediction`.

        Raises:
            ValueError: if a text is no text, or a pair is given where the model knows single
                sentences, or the other way round.
        """
        sentences = inputs.sentences(texts)
        outputs = np.zeros((len(sentences), self.model.num_outputs), np.float32)
        for are_pairs in (False, True):
            rows = [n for n, pair in enumerate(sentences) if (pair[1] is not None) == are_pairs]
            self._require_kind(are_pairs, rows)
            for start in range(0, len(rows), _TEXTS_AT_ONCE):
                part = np.array(rows[start : start + _TEXTS_AT_ONCE])
                arrays = self._arrays([sentences[n] for n in part], are_pairs)
                for numbers, found in forward.outputs(self._graph, arrays, batch_size):
                    outputs[part[numbers]] = found
        forward.require_finite(outputs)
        return self._predictions(outputs)

    def _require_kind(self, are_pairs, rows):
        if rows and self.takes_pairs is not None and self.takes_pairs != are_pairs:
            kinds = ("a single sentence", "a pair of sentences, (first, second)")
            raise ValueError(
                f"text {rows[0]} must be {kinds[self.takes_pairs]}, as in the model's training; "
                f"got {('one sentence', 'a pair')[are_pairs]}."
            )

    def _arrays(self, sentences, are_pairs):
        firsts, seconds = zip(*sentences)
        return make_features(
            firsts, seconds if are_pairs else None, self.tokenizer, self.max_seq_length
        )

    def _predictions(self, outputs):
        if isinstance(self.labels, Numbers):
            numbers = np.clip(outputs[:, 0], self.labels.low, self.labels.high)
            return [NumberPrediction(number) for number in numbers.tolist()]
        names = self.labels.names
        return [
            ClassPrediction(names[int(np.argmax(row))], dict(zip(names, row.tolist())))
            for row in forward.softmax(outputs)
        ]
