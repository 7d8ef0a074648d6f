"""A fine-tuned model that finds the answer to a question in a text."""

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from official_bert.data import tokenization
from official_bert.data.tokenization import Casing
from official_bert.model.question_answering import BertQuestionAnswering
from official_bert.prediction import forward, inputs
from official_bert.tasks import squad_decoding, squad_features
from official_bert.tasks.squad_data import Question, Windows
from official_bert.tasks.squad_features import Features

_QUESTIONS_AT_ONCE = 256  # whose logits are in memory
_WINDOWS_AT_ONCE = 1024  # whose padded arrays are


class Answer(NamedTuple):
    """A piece of the context, or `""` for no answer.

    Attributes:
        text: The piece, as it stands in the context.
        start: Number of its first character in the context.
        stop: One past the last.
        probability: Its share among the best candidates, no answer included if that is one.
        null_odds: Score of no answer minus that of the best piece; `None` if every question is
            taken to have an answer.
    """

    text: str
    start: int
    stop: int
    probability: float
    null_odds: float | None


class QuestionAnswerer:
    """A fine-tuned model for questions with its vocabulary; made by `official_bert.load`.

    Args:
        model: The `BertQuestionAnswering`.
        vocab_file: Its vocabulary.
        do_lower_case: Whether that is an uncased one.
        windows: How contexts are cut into what the model reads at once.
        version_2_with_negative: Whether it was trained on questions without an answer, too.
        origin: What it was loaded from, for `repr`.

    Attributes:
        model, windows, version_2_with_negative: As given.
        tokenizer: The tokenizer of the vocabulary.

    Example:

    >>> answerer = official_bert.load("squad")                              # doctest: +SKIP
    >>> answerer.predict([("Who sat on the mat?", "The cat sat there.")])   # doctest: +SKIP
    [Answer(text='The cat', start=0, stop=7, probability=0.93, null_odds=None)]
    """

    def __init__(
        self,
        model: BertQuestionAnswering,
        vocab_file: str | os.PathLike,
        do_lower_case: Casing,
        *,
        windows: Windows,
        version_2_with_negative: bool,
        origin: str,
    ):
        self.model, self.windows = model, windows
        self.version_2_with_negative = version_2_with_negative
        self.tokenizer: Tokenizer = tokenization.load(str(vocab_file), do_lower_case)
        self._vocabulary, self._origin = (str(vocab_file), do_lower_case), origin
        self._graph = forward.as_graph(model)

    def __repr__(self):
        kinds = ("each has an answer", "some have no answer")
        return (
            f"<QuestionAnswerer: of questions {kinds[self.version_2_with_negative]}, "
            f"from {self._origin}>"
        )

    def predict(
        self,
        questions: Iterable[Sequence[str]],
        *,
        version_2_with_negative: bool | None = None,
        null_score_diff_threshold: float = 0.0,
        batch_size: int = 32,
    ) -> list[Answer]:
        """The answers to questions about texts.

        A context that is longer than a window is read in several that overlap. Of a question, only
        the first `windows.max_query_length` word pieces are read.

        Args:
            questions: Pairs (question, context).
            version_2_with_negative: Whether questions may have no answer; by default, what the
                model was trained for.
            null_score_diff_threshold: How much better no answer has to be than the best piece.
            batch_size: Windows computed at once.

        Returns:
            An `Answer` for each.

        Raises:
            ValueError: if something is no pair of texts.
        """
        if version_2_with_negative is None:
            version_2_with_negative = self.version_2_with_negative
        decoding = squad_decoding.Decoding(
            version_2_with_negative=version_2_with_negative,
            null_score_diff_threshold=null_score_diff_threshold,
        )
        asked = [
            Question(str(number), question, context, (), False)
            for number, (question, context) in enumerate(inputs.questions(questions))
        ]
        found = []
        for start in range(0, len(asked), _QUESTIONS_AT_ONCE):
            part = asked[start : start + _QUESTIONS_AT_ONCE]
            features = squad_features.make_features(part, *self._vocabulary, self.windows)
            logits = self._logits(features, batch_size)
            found += squad_decoding.decode(features, logits[..., 0], logits[..., 1], decoding)
        return [_answer(prediction) for prediction in found]

    def _logits(self, features: Features, batch_size: int) -> np.ndarray:
        """Start and end logits of all windows, (windows, max_seq_length, 2); 0 for padding."""
        logits = np.zeros((len(features), self.windows.max_seq_length, 2), np.float32)
        for start in range(0, len(features), _WINDOWS_AT_ONCE):
            rows = np.arange(start, min(start + _WINDOWS_AT_ONCE, len(features)))
            arrays = features.batch(rows)
            for numbers, outputs in forward.outputs(self._graph, arrays, batch_size):
                logits[rows[numbers], : outputs.shape[1]] = outputs
        forward.require_finite(logits)
        return logits


def _answer(prediction: squad_decoding.Prediction) -> Answer:
    texts = [candidate.text for candidate in prediction.candidates]
    place = texts.index(prediction.text)
    chosen = prediction.candidates[place]
    return Answer(
        text=chosen.text,
        start=chosen.start,
        stop=chosen.stop,
        probability=prediction.probabilities[place],
        null_odds=prediction.null_odds,
    )
