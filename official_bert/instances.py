"""Documents of word-piece ids → pre-training instances: sentence pairs with masks.

The order of the random draws is that of the original TF1 script: with one `random.Random(seed)`
over a whole corpus this makes the very instances that it makes. A large corpus is cut into blocks,
each with a stream of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from official_bert import masking, tokenization

Sentences = list[list[int]]


@dataclass(frozen=True)
class Settings:
    """What an instance looks like; the names and defaults are the official flags'.

    `max_ngram_size` above 1 needs `do_whole_word_mask`.
    """

    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1
    dupe_factor: int = 10
    do_whole_word_mask: bool = False
    max_ngram_size: int = 1

    def __post_init__(self):
        if self.max_seq_length < 8:
            raise ValueError(f"max_seq_length: got {self.max_seq_length}, expected at least 8.")
        if not 1 <= self.max_predictions_per_seq <= self.max_seq_length:
            raise ValueError(
                f"max_predictions_per_seq: got {self.max_predictions_per_seq}, expected 1 to "
                f"max_seq_length ({self.max_seq_length})."
            )
        for name in ("masked_lm_prob", "short_seq_prob"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"{name}: got {getattr(self, name)}, expected a probability below 1."
                )
        if self.dupe_factor < 1:
            raise ValueError(f"dupe_factor: got {self.dupe_factor}, expected 1 or more.")
        if self.max_ngram_size < 1:
            raise ValueError(f"max_ngram_size: got {self.max_ngram_size}, expected 1 or more.")
        if self.max_ngram_size > 1 and not self.do_whole_word_mask:
            raise ValueError(
                f"max_ngram_size={self.max_ngram_size} masks runs of whole words; it needs "
                f"--do_whole_word_mask."
            )


class Instance(NamedTuple):
    """One example before padding: ids already masked, and what stood at the masked positions."""

    input_ids: list[int]  # [CLS] A [SEP] B [SEP]
    first_segment: int  # how many of them belong to segment 0: [CLS] A [SEP]
    masked_positions: list[int]  # ascending
    masked_ids: list[int]
    is_random_next: bool


class InstanceMaker:
    """Makes the instances of a list of documents, for one vocabulary and one set of settings."""

    def __init__(self, settings: Settings, vocabulary: dict[str, int]):
        self._settings = settings
        self._cls, self._sep, self._mask = (
            vocabulary[t] for t in (tokenization.CLS, tokenization.SEP, tokenization.MASK)
        )
        self._words = [
            vocabulary[token] for token in vocabulary
        ]  # what a random word is drawn from, in file order
        self._continues = {index for token, index in vocabulary.items() if token.startswith("##")}

    def __call__(self, documents: list[Sentences], rng: Random) -> Iterator[Instance]:
        """All instances of `documents`, `dupe_factor` times over; shuffles `documents` in place."""
        rng.shuffle(documents)
        for _ in range(self._settings.dupe_factor):
            for index in range(len(documents)):
                yield from self._of_document(documents, index, rng)

    def _of_document(
        self, documents: list[Sentences], index: int, rng: Random
    ) -> Iterator[Instance]:
        settings, document = self._settings, documents[index]
        room = settings.max_seq_length - 3  # [CLS], [SEP], [SEP]

        def next_target() -> int:
            # Some sequences are short on purpose, so that fine-tuning on short ones is no surprise.
            return rng.randint(2, room) if rng.random() < settings.short_seq_prob else room

        target, chunk, length, at = next_target(), [], 0, 0
        while at < len(document):
            chunk.append(document[at])
            length += len(document[at])
            if at == len(document) - 1 or length >= target:
                split = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
                first = _joined(chunk[:split])
                is_random_next = len(chunk) == 1 or rng.random() < 0.5
                if is_random_next:
                    second = self._random_next(documents, index, target - len(first), rng)
                    at -= len(chunk) - split  # the sentences that were not used come again
                else:
                    second = _joined(chunk[split:])
                _truncate(first, second, room, rng)
                yield self._masked(first, second, is_random_next, rng)
                chunk, length = [], 0
            at += 1

    def _random_next(
        self, documents: list[Sentences], index: int, target: int, rng: Random
    ) -> list[int]:
        for _ in range(10):  # a few tries: with one document there is no other
            other = rng.randint(0, len(documents) - 1)
            if other != index:
                break
        tokens, document = [], documents[other]
        for at in range(rng.randint(0, len(document) - 1), len(document)):
            tokens += document[at]
            if len(tokens) >= target:
                break
        return tokens

    def _masked(
        self, first: list[int], second: list[int], is_random_next: bool, rng: Random
    ) -> Instance:
        settings = self._settings
        ids = [self._cls, *first, self._sep, *second, self._sep]
        number = masking.number_to_predict(
            len(ids), settings.masked_lm_prob, settings.max_predictions_per_seq
        )
        candidates = self._candidates(ids, len(first) + 1)
        masked, mask, words, last = {}, self._mask, self._words, len(self._words) - 1
        for group in masking.choose(candidates, number, rng, settings.max_ngram_size):
            for position in group:
                masked[position] = ids[position]
                if rng.random() < 0.8:
                    ids[position] = mask
                elif rng.random() >= 0.5:
                    ids[position] = words[rng.randint(0, last)]
        positions = sorted(masked)
        return Instance(
            ids, len(first) + 2, positions, [masked[p] for p in positions], is_random_next
        )

    def _candidates(self, ids: list[int], first_sep: int) -> list[list[int]]:
        """The positions that may be masked, one by one or gathered into words."""
        positions = [*range(1, first_sep), *range(first_sep + 1, len(ids) - 1)]
        if not self._settings.do_whole_word_mask:
            return [[position] for position in positions]
        words = []
        for position in positions:
            if words and ids[position] in self._continues:
                words[-1].append(position)
            else:
                words.append([position])
        return words


def _joined(sentences: Sentences) -> list[int]:
    return [token for sentence in sentences for token in sentence]


def _truncate(first: list[int], second: list[int], room: int, rng: Random) -> None:
    """Cuts the longer of the two, at its front or its back by chance, until both fit."""
    while len(first) + len(second) > room:
        longer = first if len(first) > len(second) else second
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


def sequences(
    document: Sentences, settings: Settings, rng: Random
) -> Iterator[tuple[list[int], list[int]]]:
    """A document as runs of sentences that fill a sequence: what dynamic masking stores.

    Yields the ids and the sentences' lengths. A sentence that does not fit begins the next run; one
    that is longer than a whole sequence is cut.
    """
    room = settings.max_seq_length - 3

    def next_target() -> int:
        return rng.randint(2, room) if rng.random() < settings.short_seq_prob else room

    target, ids, lengths = next_target(), [], []
    for sentence in document:
        for start in range(0, len(sentence), room):
            piece = sentence[start : start + room]
            if ids and len(ids) + len(piece) > target:
                yield ids, lengths
                target, ids, lengths = next_target(), [], []
            ids = ids + piece
            lengths = [*lengths, len(piece)]
    if ids:
        yield ids, lengths
