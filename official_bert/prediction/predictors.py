"""The predictors that `official_bert.load` returns: each a model with its tokenizer."""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from official_bert.data import tokenization
from official_bert.data.tokenization import Casing
from official_bert.model.encoder import BertEncoder
from official_bert.model.fine_tuning import BertClassifier, BertQuestionAnswering
from official_bert.model.pretrainer import BertPretrainer
from official_bert.prediction import forward
from official_bert.prediction.vectors import Embedding
from official_bert.tasks import squad_decoding, squad_features
from official_bert.tasks.labels import Classes, Labels, LabelSets, Numbers
from official_bert.tasks.metrics import sigmoid, softmax
from official_bert.tasks.squad_data import Question, Windows

_BLANKS_AT_ONCE = 512  # of 30,522 word pieces: 62 MB of logits
_QUESTIONS_AT_ONCE = 256  # whose logits are in memory


class Guess(NamedTuple):
    """A word piece and the probability that the model gives it."""

    token: str
    probability: float


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class BlankFiller(Embedding):
    """A pre-trained model together with its vocabulary; made by `official_bert.load`.

    Attributes:
        model: The `BertPretrainer`.
        tokenizer: The tokenizer of its vocabulary.
        max_seq_length: Maximum number of word pieces of a text for `embed`, with [CLS] and [SEP].
        origin: Path and format of the checkpoint.

    Example:

    >>> filler = official_bert.load("demo_output/model")             # doctest: +SKIP
    >>> filler.predict(["Return the [MASK] of the list."], top=2)    # doctest: +SKIP
    [[[Guess(token='length', probability=0.21), Guess(token='value', probability=0.09)]]]
    """

    model: BertPretrainer

    @functools.cached_property
    def _are_words(self):
        tokens = map(self.tokenizer.id_to_token, range(self.tokenizer.get_vocab_size()))
        return np.array([token is not None and token.isalpha() for token in tokens])

    def __repr__(self):
        config = self.model.config
        return (
            f"<BlankFiller: {config.num_hidden_layers} × {config.hidden_size} units, "
            f"{config.vocab_size:,} word pieces, from {self.origin}>"
        )

    def predict(
        self, texts: Iterable[str], top: int = 3, *, words_only: bool = False, batch_size: int = 32
    ) -> list[list[list[Guess]]]:
        """The likeliest word pieces for each `[MASK]` of each text.

        A text with more word pieces than the model has positions is cut at its end.

        Args:
            texts: Texts with at least one `[MASK]` each.
            top: Number of guesses for each blank.
            words_only: Guess only whole words: no punctuation, numbers or `##` pieces. The
                probabilities remain those among all word pieces.
            batch_size: Texts computed at once.

        Returns:
            For each text, for each of its blanks, the guesses, likeliest first.

        Raises:
            ValueError: if a text has no `[MASK]`, or one beyond the place where it is cut.
        """
        if top < 1:
            raise ValueError(f"top must be at least 1; got {top}.")
        rows = [self._ids(number, text) for number, text in enumerate(forward.texts(texts))]
        mask_id = self.tokenizer.token_to_id(tokenization.MASK)
        blanks = [[place for place, id in enumerate(ids) if id == mask_id] for ids in rows]
        most = max(map(len, blanks), default=1)
        asked = np.arange(len(self._are_words))
        if words_only:
            asked = np.flatnonzero(self._are_words)
        found: list[list[list[Guess]]] = [[]] * len(rows)
        for numbers, outputs in self._forward.over(
            np.array([len(ids) for ids in rows]),
            lambda part: _with_blanks([rows[n] for n in part], [blanks[n] for n in part]),
            min(batch_size, max(1, _BLANKS_AT_ONCE // most)),
        ):
            logits = outputs["masked_lm_logits"]
            forward.require_finite(logits)
            for number, row in zip(numbers, logits):
                probabilities = softmax(row[: len(blanks[number])])
                found[number] = self._guesses(probabilities, asked, top)
        return found

    def _guesses(self, probabilities, asked, top):
        best = asked[np.argsort(-probabilities[:, asked], kind="stable")[:, :top]]
        return [
            [Guess(self.tokenizer.id_to_token(int(i)), float(row[i])) for i in numbers]
            for row, numbers in zip(probabilities, best)
        ]

    def _ids(self, number, text):
        """[CLS] text [SEP] as ids; the parts between the blanks are tokenized separately."""
        special = self.tokenizer.token_to_id
        parts = text.split(tokenization.MASK)
        if len(parts) == 1:
            raise ValueError(
                f"text {number} must have a [MASK]; got {forward.shown(text)}. Put one where the "
                "model should guess."
            )
        ids = []
        for index, part in enumerate(parts):
            ids += [special(tokenization.MASK)] if index else []
            ids += self.tokenizer.encode(part, add_special_tokens=False).ids
        room = self.model.config.max_position_embeddings - 2
        if special(tokenization.MASK) in ids[room:]:
            raise ValueError(
                f"text {number} must have each [MASK] within its first {room} word pieces, which "
                f"the model reads; got {forward.shown(text)}, with {len(ids)}. Give a shorter part "
                "around it."
            )
        return [special(tokenization.CLS), *ids[:room], special(tokenization.SEP)]


def _with_blanks(rows, blanks):
    """Padded arrays of some texts, from their ids and the positions of their blanks."""
    batch = {name: np.zeros((len(rows), max(map(len, rows))), np.int32) for name in forward.INPUTS}
    positions = np.zeros((len(rows), max(map(len, blanks))), np.int32)
    for index, (ids, places) in enumerate(zip(rows, blanks)):
        batch["input_ids"][index, : len(ids)] = ids
        batch["input_mask"][index, : len(ids)] = 1
        positions[index, : len(places)] = places
    return batch | {"masked_lm_positions": positions}


# Sentences and pairs of sentences


class ClassPrediction(NamedTuple):
    """The likeliest class, and the probability of each class by name."""

    label: str
    probabilities: dict[str, float]


class LabelsPrediction(NamedTuple):
    """The labels above the threshold, likeliest first, and the probability of each by name."""

    labels: list[str]
    probabilities: dict[str, float]


class NumberPrediction(NamedTuple):
    """A number, within the bounds of the scale in training, if that has some."""

    number: float


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class SentenceClassifier(Embedding):
    """A fine-tuned classifier together with its vocabulary; made by `official_bert.load`.

    Attributes:
        model: The `BertClassifier`.
        tokenizer: The tokenizer of its vocabulary.
        labels: The classes, labels or numbers that it predicts.
        max_seq_length: Maximum number of word pieces of a text, with [CLS] and [SEP].
        origin: Path and format of the checkpoint.
        takes_pairs: Whether it was trained on pairs of sentences; `None` if unknown.

    Example:

    >>> classifier = official_bert.load("reviews")     # doctest: +SKIP
    >>> classifier.predict(["A good cat."])            # doctest: +SKIP
    [ClassPrediction(label='5', probabilities={'1': 0.02, …, '5': 0.81})]
    """

    model: BertClassifier
    labels: Labels
    takes_pairs: bool | None

    def __repr__(self):
        kind = "a number"
        if isinstance(self.labels, Classes):
            kind = f"one of {len(self.labels.names)} classes"
        elif isinstance(self.labels, LabelSets):
            kind = f"any of {len(self.labels.names)} labels"
        of = {None: "sentences or pairs", True: "pairs of sentences", False: "sentences"}
        return f"<SentenceClassifier: {kind}, of {of[self.takes_pairs]}, from {self.origin}>"

    def predict(
        self,
        texts: Iterable[str | Sequence[str]],
        *,
        batch_size: int = 32,
        threshold: float | None = None,
    ) -> list[ClassPrediction] | list[LabelsPrediction] | list[NumberPrediction]:
        """The predicted class, labels or number of each text.

        A text with more than `max_seq_length` word pieces is cut at its end; in a pair, pieces are
        removed from the end of the longer sentence, as in training.

        Args:
            texts: Sentences, or pairs of them, (first, second).
            batch_size: Texts computed at once.
            threshold: Of a model of several labels: the probability that a label must exceed to be
                predicted; by default one half.

        Returns:
            A `ClassPrediction`, `LabelsPrediction` or `NumberPrediction` for each.

        Raises:
            ValueError: if an entry is not a text, or is a pair for a model of single sentences, or
                the other way round; or the threshold is of no use.
        """
        sentences = forward.sentences(texts)
        if threshold is not None:
            self._check_threshold(threshold)
        for number, (_, second) in enumerate(sentences):
            if self.takes_pairs not in (None, second is not None):
                kinds = ("a single sentence", "a pair of sentences, (first, second)")
                raise ValueError(
                    f"text {number} must be {kinds[self.takes_pairs]}, as in the model's training; "
                    f"got {('one sentence', 'a pair')[second is not None]}."
                )
        outputs = np.zeros((len(sentences), self.model.num_outputs), np.float32)
        settings = self.tokenizer, self.max_seq_length, batch_size
        for numbers, _, found in self._forward.over_sentences(sentences, *settings):
            outputs[numbers] = found
        forward.require_finite(outputs)
        if isinstance(self.labels, Numbers):
            clipped = np.clip(outputs[:, 0], self.labels.low, self.labels.high)
            return [NumberPrediction(number) for number in clipped.tolist()]
        names = self.labels.names
        if isinstance(self.labels, LabelSets):
            least = 0.5 if threshold is None else threshold
            return [_labels_above(least, names, row) for row in sigmoid(outputs)]
        return [
            ClassPrediction(names[int(np.argmax(row))], dict(zip(names, row.tolist())))
            for row in softmax(outputs)
        ]

    def _check_threshold(self, threshold):
        if not isinstance(self.labels, LabelSets):
            raise ValueError(
                f"threshold must be left out: {self!r} does not predict several labels; got "
                f"{threshold!r}."
            )
        if not (isinstance(threshold, int | float) and 0 <= threshold <= 1):
            raise ValueError(f"threshold must be a probability, 0 to 1; got {threshold!r}.")


def _labels_above(threshold, names, probabilities):
    order = np.argsort(-probabilities, kind="stable")
    found = [names[n] for n in order if probabilities[n] > threshold]
    return LabelsPrediction(found, dict(zip(names, probabilities.tolist())))


class Encoding(NamedTuple):
    """The vectors of a text; S word pieces with [CLS] and [SEP], H hidden units.

    Attributes:
        tokens: The S word pieces.
        vectors: Their vectors, (S, H), float32.
        pooled: The pooled vector of [CLS], (H,); `None` if the checkpoint has no pooler.
    """

    tokens: list[str]
    vectors: np.ndarray
    pooled: np.ndarray | None


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class TextEncoder(Embedding):
    """A bare encoder together with its vocabulary; made by `official_bert.load`.

    Attributes:
        model: The `BertEncoder`.
        tokenizer: The tokenizer of its vocabulary.
        max_seq_length: Maximum number of word pieces of a text, with [CLS] and [SEP].
        origin: Path and format of the checkpoint.
        has_pooler: Whether the checkpoint has a pooler.

    Example:

    >>> encoder = official_bert.load("bert_model_hf")               # doctest: +SKIP
    >>> encoder.predict(["A good cat."])[0].vectors.shape           # doctest: +SKIP
    (6, 768)
    """

    model: BertEncoder
    has_pooler: bool

    def __repr__(self):
        config = self.model.config
        return (
            f"<TextEncoder: {config.num_hidden_layers} × {config.hidden_size} units, without a "
            f"head, from {self.origin}>"
        )

    def predict(
        self, texts: Iterable[str | Sequence[str]], *, batch_size: int = 32
    ) -> list[Encoding]:
        """The vectors of each text; texts and `batch_size` as of `SentenceClassifier`.

        Raises:
            ValueError: if an entry is not a text, or has a `[MASK]`, which only a head can fill.
        """
        sentences = forward.sentences(texts)
        for number, sentence in enumerate(sentences):
            if any(tokenization.MASK in part for part in sentence if part is not None):
                raise ValueError(
                    f"text {number} must have no [MASK]; got {forward.shown(sentence[0])}. "
                    f"{self.origin} has no masked-LM head to fill blanks with; load a model that "
                    "has one."
                )
        found: dict[int, Encoding] = {}
        settings = self.tokenizer, self.max_seq_length, batch_size
        for numbers, arrays, outputs in self._forward.over_sentences(sentences, *settings):
            vectors, pooled = (outputs[n].astype(np.float32) for n in ("sequence", "pooled"))
            forward.require_finite(vectors)
            for row, length in enumerate(arrays["input_mask"].sum(axis=1)):
                ids = arrays["input_ids"][row, :length].tolist()
                tokens: Any = [self.tokenizer.id_to_token(id) for id in ids]
                found[numbers[row]] = Encoding(
                    tokens, vectors[row, :length], pooled[row] if self.has_pooler else None
                )
        return [found[number] for number in range(len(sentences))]


# Questions


class Answer(NamedTuple):
    """A piece of the context, or `""` for no answer.

    Attributes:
        text: The piece, in the context's spelling.
        start: Number of its first character in the context.
        stop: One past the last.
        probability: Its share among the best candidates, no answer included if that is one.
        null_odds: Score of no answer minus the best piece's; `None` if every question is assumed
            to have an answer.
    """

    text: str
    start: int
    stop: int
    probability: float
    null_odds: float | None


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class QuestionAnswerer(Embedding):
    """A fine-tuned model for questions with its vocabulary; made by `official_bert.load`.

    Attributes:
        model: The `BertQuestionAnswering`.
        tokenizer: The tokenizer of its vocabulary.
        vocab_file: The file of that vocabulary.
        do_lower_case: Its casing.
        windows: The lengths of the windows of a context.
        max_seq_length: The length of a window.
        origin: Path and format of the checkpoint.
        version_2_with_negative: Whether it was trained on questions without an answer, too.

    Example:

    >>> answerer = official_bert.load("squad")                              # doctest: +SKIP
    >>> answerer.predict([("Who sat on the mat?", "The cat sat there.")])   # doctest: +SKIP
    [Answer(text='The cat', start=0, stop=7, probability=0.93, null_odds=None)]
    """

    model: BertQuestionAnswering
    vocab_file: str
    do_lower_case: Casing
    windows: Windows
    version_2_with_negative: bool
    max_seq_length: int = dataclasses.field(init=False)

    def __post_init__(self):
        self.max_seq_length = self.windows.max_seq_length
        super().__post_init__()

    def __repr__(self):
        kinds = ("each has an answer", "some have no answer")
        return (
            f"<QuestionAnswerer: of questions {kinds[self.version_2_with_negative]}, "
            f"from {self.origin}>"
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

        A context that is longer than a window is read in several that overlap. Only the first
        `windows.max_query_length` word pieces of a question are read.

        Args:
            questions: Pairs (question, context).
            version_2_with_negative: Whether questions may have no answer; default: as in training.
            null_score_diff_threshold: Margin by which the score of no answer must exceed the best
                piece's.
            batch_size: Windows computed at once.

        Returns:
            An `Answer` for each.

        Raises:
            ValueError: if an entry is not a pair of texts.
        """
        if version_2_with_negative is None:
            version_2_with_negative = self.version_2_with_negative
        decoding = squad_decoding.Decoding(
            version_2_with_negative=version_2_with_negative,
            null_score_diff_threshold=null_score_diff_threshold,
        )
        asked = [
            Question(str(number), question, context, (), False)
            for number, (question, context) in enumerate(forward.questions(questions))
        ]
        found = []
        for start in range(0, len(asked), _QUESTIONS_AT_ONCE):
            part = asked[start : start + _QUESTIONS_AT_ONCE]
            vocabulary = self.vocab_file, self.do_lower_case
            features = squad_features.make_features(part, *vocabulary, self.windows)
            shape = self.windows.max_seq_length, 2
            logits = self._forward.whole(features, batch_size, shape)
            forward.require_finite(logits)
            found += squad_decoding.decode(features, logits[..., 0], logits[..., 1], decoding)
        return list(map(_answer, found))


def _answer(prediction: squad_decoding.Prediction) -> Answer:
    place = [candidate.text for candidate in prediction.candidates].index(prediction.text)
    text, _, _, start, stop = prediction.candidates[place]
    return Answer(text, start, stop, prediction.probabilities[place], prediction.null_odds)
