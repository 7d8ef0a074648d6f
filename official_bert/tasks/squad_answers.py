"""A model's answers to the questions of one file: read, decoded, written and scored."""

import dataclasses

import numpy as np

from official_bert.tasks import squad_data, squad_decoding, squad_evaluation
from official_bert.tasks.squad import QuestionAnswering
from official_bert.tasks.squad_data import Dataset
from official_bert.tasks.squad_decoding import Prediction
from official_bert.tasks.squad_features import Features

# Metrics that do not depend on the seed, and thresholds, of which none is the best.
NOT_OF_THE_SEED = ("total", "unanswered", "thresh")


@dataclasses.dataclass(frozen=True)
class Answers:
    """Answers to the questions of a file.

    Attributes:
        dataset: The questions.
        decoded: With every question answered that can be.
        predictions: With `""` where the null odds exceed the threshold.
    """

    dataset: Dataset
    decoded: list[Prediction]
    predictions: list[Prediction]

    def scores(self) -> dict[str, float]:
        """The official scores, in percent; see `squad_evaluation.evaluate`.

        Of a file of version 2.0 whose null odds are known, the best thresholds are among them.
        """
        scores = squad_evaluation.evaluate(self.dataset, _texts(self.predictions))
        odds = {p.id: p.null_odds for p in self.decoded if p.null_odds is not None}
        if not odds or not self.dataset.version_2:
            return scores
        best = squad_evaluation.evaluate(self.dataset, _texts(self.decoded), odds)
        return scores | {name: best[name] for name in best if name.startswith("best_")}


def decode(
    dataset: Dataset, features: Features, logits: np.ndarray, settings: squad_decoding.Settings
) -> Answers:
    """The answers that a model's logits mean.

    Args:
        dataset: The questions.
        features: Their windows.
        logits: Start and end logits of every window, (windows, S, 2).
        settings: How answers are chosen.

    Raises:
        ValueError: as `squad_decoding.decode`.
    """
    answer_all = dataclasses.replace(settings, null_score_diff_threshold=squad_decoding.ANSWER_ALL)
    decoded = squad_decoding.decode(features, logits[..., 0], logits[..., 1], answer_all)
    threshold = settings.null_score_diff_threshold
    return Answers(dataset, decoded, squad_decoding.at_threshold(decoded, threshold))


def read(task: QuestionAnswering, file: str, scored: bool) -> Dataset:
    """The questions of a file to answer.

    Args:
        task: The task.
        file: SQuAD's JSON; answers are needed only to score.
        scored: Whether the answers are to be scored.

    Raises:
        ValueError: the file is broken, or questions without answers do not fit the task, or one has
            no answers to compare with.
    """
    dataset = squad_data.read(file)
    task.require_version(file, dataset.questions)
    if scored:
        try:
            squad_evaluation.require_answers(dataset)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None
    return dataset


def _texts(predictions):
    return {p.id: p.text for p in predictions}
