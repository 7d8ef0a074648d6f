"""Documents of word-piece ids → pre-training instances: sentence pairs with masks.

The order of the random draws is that of the original TF1 script: with one `random.Random(seed)`
over a whole corpus, the instances are exactly the same. A large corpus is cut into blocks, each
with a random stream of its own.
"""

import bisect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from official_bert.data import masking, tokenization
from official_bert.system.settings import check, documented, setting

Sentences = list[list[int]]
LONGEST = 1 << 16  # tokens of a sequence


@documented
@dataclass(frozen=True)
class Settings:
    """The form of an instance; the names and defaults are the official flags'."""

    max_seq_length: int = setting("Sequence length in tokens.", 128, minimum=8, maximum=LONGEST)
    max_predictions_per_seq: int = setting(
        "Maximum number of masked tokens per sequence.", 20, minimum=1
    )
    masked_lm_prob: float = setting(
        "Fraction of the tokens to mask.", 0.15, minimum=0, below=1, hint="15 % is 0.15."
    )
    short_seq_prob: float = setting(
        "Fraction of the sequences that are shorter than --max_seq_length.",
        0.1,
        minimum=0,
        below=1,
        hint="10 % is 0.1.",
    )
    dupe_factor: int = setting(
        "Number of passes over the text, each with different masks.", 10, minimum=1
    )
    do_whole_word_mask: bool = setting("Mask all word pieces of a word together.", False)
    max_ngram_size: int = setting(
        "Maximum length of a masked run in words; above 1 it needs --do_whole_word_mask.",
        1,
        minimum=1,
    )

    def __post_init__(self):
        check(self)
        if self.max_predictions_per_seq > self.max_seq_length:
            raise ValueError(
                f"max_predictions_per_seq must be at most max_seq_length, {self.max_seq_length}; "
                f"got {self.max_predictions_per_seq}."
            )
        if self.max_ngram_size > 1 and not self.do_whole_word_mask:
            raise ValueError(
                "max_ngram_size must be 1 without --do_whole_word_mask; got "
                f"{self.max_ngram_size}. Give --do_whole_word_mask, too."
            )


class Instance(NamedTuple):
    """One example before padding: ids already masked, and the ids that the masks replaced."""

    input_ids: list[int]  # [CLS] A [SEP] B [SEP]
    first_segment: int  # the number of them in segment 0: [CLS] A [SEP]
    masked_positions: list[int]  # ascending
    masked_ids: list[int]
    is_random_next: bool


class _Text:
    """A document's ids, the starts of its sentences, and which ids were used in an instance."""

    def __init__(self, sentences: Sentences):
        self.ids = _joined(sentences)
        self.starts = [0, *itertools.accumulate(map(len, sentences))]  # the last one is the end
        self.used = bytearray(len(self.ids))

    def cut(self, start: int, stop: int) -> list[int]:
        """Returns some of the ids and marks them as used."""
        self.used[start:stop] = b"\1" * (stop - start)
        return self.ids[start:stop]


class InstanceMaker:
    """Makes the instances of a list of documents, for one vocabulary and one set of settings.

    Attributes:
        unused: Number of ids that are in no instance, because they were cut off every time to make
            a pair fit.
    """

    def __init__(self, settings: Settings, vocabulary: dict[str, int]):
        self._settings = settings
        self._cls, self._sep, self._mask = (
            vocabulary[t] for t in (tokenization.CLS, tokenization.SEP, tokenization.MASK)
        )
        self._words = [
            vocabulary[token] for token in vocabulary
        ]  # the random words are drawn from these, in file order
        self._continues = {index for token, index in vocabulary.items() if token.startswith("##")}
        self.unused = 0

    def __call__(self, documents: list[Sentences], rng: Random) -> Iterator[Instance]:
        """All instances of `documents`, `dupe_factor` times; empties the list."""
        texts = []
        while documents:
            texts.append(_Text(documents.pop()))
        texts.reverse()
        rng.shuffle(texts)
        for _ in range(self._settings.dupe_factor):
            for text in texts:
                yield from self._of_text(texts, text, rng)
        self.unused = sum(text.used.count(0) for text in texts)

    def _of_text(self, texts: list[_Text], text: _Text, rng: Random) -> Iterator[Instance]:
        settings, starts = self._settings, text.starts
        room = settings.max_seq_length - 3  # [CLS], [SEP], [SEP]

        def next_target() -> int:
            # Some sequences are short on purpose, because fine-tuning uses short ones too.
            return rng.randint(2, room) if rng.random() < settings.short_seq_prob else room

        target, begin, end, last = next_target(), 0, 0, len(starts) - 1
        while end < last:
            end += 1
            if end < last and starts[end] - starts[begin] < target:
                continue
            sentences = end - begin  # some of them are the first part
            split = begin + (rng.randint(1, sentences - 1) if sentences >= 2 else 1)
            first = starts[begin], starts[split]
            is_random_next = sentences == 1 or rng.random() < 0.5
            if is_random_next:
                missing = target - (first[1] - first[0])
                other, second = _random_next(texts, text, missing, rng)
                end = split  # the unused sentences are used again
            else:
                other, second = text, (starts[split], starts[end])
            first, second = _truncated(first, second, room, rng)
            yield self._masked(text.cut(*first), other.cut(*second), is_random_next, rng)
            begin = end

    def _masked(
        self, first: list[int], second: list[int], is_random_next: bool, rng: Random
    ) -> Instance:
        settings = self._settings
        ids = [self._cls, *first, self._sep, *second, self._sep]
        probability, most = settings.masked_lm_prob, settings.max_predictions_per_seq
        number = masking.number_to_predict(len(ids), probability, most)
        candidates = self._candidates(ids, len(first) + 1)
        groups = masking.choose(candidates, number, rng, settings.max_ngram_size)
        chosen = itertools.chain.from_iterable(groups)
        masked = masking.corrupt(ids, chosen, self._mask, self._words, rng)
        positions = sorted(masked)
        return Instance(
            ids, len(first) + 2, positions, [masked[p] for p in positions], is_random_next
        )

    def _candidates(self, ids: list[int], first_sep: int) -> list[list[int]]:
        """The positions that may be masked, one by one or grouped into words."""
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
    return list(itertools.chain.from_iterable(sentences))


def _random_next(
    texts: list[_Text], text: _Text, missing: int, rng: Random
) -> tuple[_Text, tuple[int, int]]:
    """Sentences of a random text with `missing` ids, or fewer if it has no more."""
    for _ in range(10):  # a few tries: there may be only one document
        other = texts[rng.randint(0, len(texts) - 1)]
        if other is not text:
            break
    starts = other.starts
    begin = rng.randint(0, len(starts) - 2)
    end = bisect.bisect_left(starts, starts[begin] + missing, begin + 1, len(starts) - 1)
    return other, (starts[begin], starts[end])


def _truncated(
    first: tuple[int, int], second: tuple[int, int], room: int, rng: Random
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Cuts the longer of two ranges, at its front or back at random, until both fit."""
    (a, b), (c, d) = first, second
    for _ in range(b - a + d - c - room):
        front = rng.random() < 0.5
        if b - a > d - c:
            a, b = (a + 1, b) if front else (a, b - 1)
        else:
            c, d = (c + 1, d) if front else (c, d - 1)
    return (a, b), (c, d)


def cut_long_sentences(document: Sentences, settings: Settings) -> Sentences:
    """The document with every sentence that is longer than a sequence cut into pieces.

    Four pieces fill a sequence. Half of one long piece would be cut off again to make room for a
    second part.
    """
    room = settings.max_seq_length - 3
    size = -(-room // 4)
    return [
        piece
        for sentence in document
        for piece in (
            [sentence]
            if len(sentence) <= room
            else [sentence[at : at + size] for at in range(0, len(sentence), size)]
        )
    ]


def sequences(
    document: Sentences, settings: Settings, rng: Random
) -> Iterator[tuple[list[int], list[int]]]:
    """A document as runs of sentences that fill a sequence, as stored for dynamic masking.

    Yields the ids and the sentences' lengths. A sentence that does not fit is cut; its rest begins
    the next run.
    """
    room = settings.max_seq_length - 3

    def next_target() -> int:
        return rng.randint(2, room) if rng.random() < settings.short_seq_prob else room

    target, ids, lengths = next_target(), [], []
    for sentence in document:
        at = 0
        while at < len(sentence):
            piece = sentence[at : at + target - len(ids)]
            ids += piece
            lengths.append(len(piece))
            at += len(piece)
            if len(ids) == target:
                yield ids, lengths
                target, ids, lengths = next_target(), [], []
    if ids:
        yield ids, lengths
