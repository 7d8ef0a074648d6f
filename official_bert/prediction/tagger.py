"""The predictor of tags: a fine-tuned tagger that finds entities in texts or lists of words."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from official_bert.model.fine_tuning import BertTagger
from official_bert.prediction import forward
from official_bert.prediction.vectors import Embedding
from official_bert.tasks import tag_schemes, tagging_features
from official_bert.tasks.labels import Classes
from official_bert.tasks.metrics import softmax
from official_bert.tasks.tagging import word_logits
from official_bert.tasks.tagging_features import Words

_TEXTS_AT_ONCE = 4096  # whose pieces are in memory


class Span(NamedTuple):
    """An entity in a text, or in a list of words: `given[start:stop]`.

    Attributes:
        label: Its type.
        text: The piece of the text; of a list, the words joined by blanks.
        start: Number of its first character, or word.
        stop: One past its last.
        probability: The mean probability of its words' tags.
    """

    label: str
    text: str
    start: int
    stop: int
    probability: float


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class WordTagger(Embedding):
    """A fine-tuned tagger together with its vocabulary; made by `official_bert.load`.

    Attributes:
        model: The `BertTagger`.
        tokenizer: The tokenizer of its vocabulary.
        classes: The tags that it predicts.
        max_seq_length: Length of a window in tokens, with [CLS] and [SEP].
        origin: Path and format of the checkpoint.

    Example:

    >>> tagger = official_bert.load("people")               # doctest: +SKIP
    >>> tagger.predict(["Anna Blum lives in Rome."])        # doctest: +SKIP
    [[Span(label='PER', text='Anna Blum', start=0, stop=9, probability=0.97), …]]
    """

    model: BertTagger
    classes: Classes

    def __repr__(self):
        return f"<WordTagger: one of {len(self.classes.names)} tags, from {self.origin}>"

    def predict(
        self, texts: Iterable[str | Sequence[str]], *, batch_size: int = 32
    ) -> list[list[Span]]:
        """The entities of each text, in order.

        A text is split into words at blanks and punctuation, as BERT does. Give a list of words to
        split it as the training data. A text that is longer than a window is read in several that
        overlap.

        Args:
            texts: Texts, or lists of words.
            batch_size: Windows computed at once.

        Returns:
            A list of `Span` for each; an empty one if there is no entity.

        Raises:
            ValueError: if an entry is neither a text nor a list of words.
        """
        given = forward.words_or_texts(texts)
        found: list[list[Span]] = [[]] * len(given)
        for are_texts in (True, False):
            numbers = [n for n, one in enumerate(given) if isinstance(one, str) == are_texts]
            for start in range(0, len(numbers), _TEXTS_AT_ONCE):
                part = numbers[start : start + _TEXTS_AT_ONCE]
                words, places = self._words([given[number] for number in part], are_texts)
                tagged = self._tagged(words, batch_size)
                for number, (first, stop), (tags, chances) in zip(
                    part, pairwise(words.bounds.tolist()), tagged
                ):
                    found[number] = self._spans(given[number], tags, chances, places[first:stop])
        return found

    def _words(self, given, are_texts):
        """The pieces of texts or lists, and the place of each word in its own, (words, 2)."""
        if are_texts:
            return tagging_features.from_texts(self.tokenizer, given)
        words = tagging_features.from_words(self.tokenizer, given)
        starts = [number for one in given for number in range(len(one))]
        return words, np.array(starts, np.int64)[:, None] + [0, 1]

    def _tagged(self, words: Words, batch_size: int) -> Iterator[tuple[list[str], np.ndarray]]:
        """The tags of each sentence's words, and the probabilities of these."""
        features = tagging_features.make_features(words, self.tokenizer, self.max_seq_length)
        shape = self.max_seq_length, self.model.num_outputs
        best, chances = [np.zeros(0, np.int64)], [np.zeros(0)]
        for logits in word_logits(self._forward.parts(features, batch_size, shape), features):
            forward.require_finite(logits)
            best.append(logits.argmax(axis=-1))
            chances.append(softmax(logits).max(axis=-1))
        tags = [self.classes.names[number] for number in np.concatenate(best).tolist()]
        probabilities = np.concatenate(chances)
        for first, stop in pairwise(words.bounds.tolist()):
            yield tags[first:stop], probabilities[first:stop]

    def _spans(self, given, tags, chances, places):
        spans, prefixed = [], tag_schemes.is_prefixed(self.classes.names)
        for label, first, stop in tag_schemes.entities(tags, prefixed):
            start, end = int(places[first, 0]), int(places[stop - 1, 1])
            text = given[start:end] if isinstance(given, str) else " ".join(given[start:end])
            spans.append(Span(label, text, start, end, float(chances[first:stop].mean())))
        return spans
