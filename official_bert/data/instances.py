"""Documents of word-piece ids → pre-training instances: sentence pairs with masks.

The random draws have the order of the original TF1 script: with one `random.Random(seed)` over a
whole corpus, the instances are exactly the same. A large corpus is cut into blocks, each with its
own random stream.

Of the tokens to predict 80 % become [MASK], 10 % stay unchanged, 10 % become a random word. [CLS]
and [SEP] are never masked.
"""

import bisect
import itertools
from array import array
from collections.abc import Iterable, Iterator, MutableSequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, TypeAlias

from official_bert.data import tokenization
from official_bert.system.settings import check, documented, setting

MASK_SHARE, KEPT_SHARE, RANDOM_SHARE = 0.8, 0.1, 0.1
Ids: TypeAlias = "list[int] | array[int]"
Sentences = list[Ids]
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
    row_filling: str = setting(
        "What a row holds: documents: sentence pairs; full: sentences across the ends of "
        "documents, with [SEP] between these; packed: several sequences, each of one document, "
        "that do not attend to each other. The last two are for training without the "
        "next-sentence task.",
        "documents",
        choices=("documents", "full", "packed"),
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

    @property
    def room(self) -> int:
        """Tokens of text that fit into a row, next to [CLS] and the [SEP] after each part."""
        return self.max_seq_length - (3 if self.row_filling == "documents" else 2)


class Instance(NamedTuple):
    """One example before padding: ids already masked, and the ids that the masks replaced."""

    input_ids: Ids  # [CLS] A [SEP] B [SEP]
    first_segment: int  # the number of them in segment 0: [CLS] A [SEP]
    masked_positions: list[int]  # ascending
    masked_ids: list[int]
    is_random_next: bool
    sequence_lengths: tuple[int, ...] = ()  # of a packed row


class _Text:
    """A document's ids, the starts of its sentences, and which ids were used in an instance."""

    def __init__(self, sentences: Sentences):
        self.ids = array("i")
        for sentence in sentences:
            self.ids.extend(sentence)
        self.starts = [0, *itertools.accumulate(map(len, sentences))]  # the last one is the end
        self.used = bytearray(len(self.ids))

    def cut(self, start: int, stop: int) -> "array[int]":
        """Returns some of the ids and marks them as used."""
        self.used[start:stop] = b"\1" * (stop - start)
        return self.ids[start:stop]


class InstanceMaker:
    """Makes the instances of documents.

    Attributes:
        unused: Number of ids in no instance: those cut off in every pass to make a pair fit.
    """

    def __init__(self, settings: Settings, vocabulary: dict[str, int]):
        self._settings = settings
        self._cls, self._sep, self._mask = (
            vocabulary[t] for t in (tokenization.CLS, tokenization.SEP, tokenization.MASK)
        )
        self._words = [*vocabulary.values()]  # random words are drawn from these, in file order
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

    def of_rows(self, documents: list[Sentences], rng: Random) -> Iterator[Instance]:
        """As a call, for rows that are full or packed: each pass fills them again."""
        for _ in range(self._settings.dupe_factor):
            rng.shuffle(documents)
            for row in rows(documents, self._settings, rng, self._cls, self._sep):
                ids = [self._cls, *row, self._sep]
                special = [p for p, token in enumerate(ids) if token in (self._cls, self._sep)]
                between = map(range, [p + 1 for p in special], special[1:])
                instance = self._masked_at(ids, [*map(list, between)], len(ids), False, rng)
                if self._settings.row_filling == "packed":
                    begins = [*(p for p in special if ids[p] == self._cls), len(ids)]
                    lengths = tuple(b - a for a, b in itertools.pairwise(begins))
                    instance = instance._replace(sequence_lengths=lengths)
                yield instance

    def _of_text(self, texts: list[_Text], text: _Text, rng: Random) -> Iterator[Instance]:
        settings, starts = self._settings, text.starts
        target, begin, end, last = _target(settings, rng), 0, 0, len(starts) - 1
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
            first, second = _truncated(first, second, settings.max_seq_length - 3, rng)
            yield self._masked(text.cut(*first), other.cut(*second), is_random_next, rng)
            begin = end

    def _masked(
        self, first: "array[int]", second: "array[int]", is_random_next: bool, rng: Random
    ) -> Instance:
        ids = array("i", (self._cls,))
        ids += first
        ids.append(self._sep)
        ids += second
        ids.append(self._sep)
        first_sep = len(first) + 1
        text = [*range(1, first_sep), *range(first_sep + 1, len(ids) - 1)]
        return self._masked_at(ids, [text], first_sep + 1, is_random_next, rng)

    def _masked_at(
        self, ids: Ids, runs: list[list[int]], first_segment: int, is_random_next: bool, rng: Random
    ) -> Instance:
        """Masks some positions of these runs; no word reaches from one into the next."""
        settings = self._settings
        number = max(round(len(ids) * settings.masked_lm_prob), 1)
        number = min(number, settings.max_predictions_per_seq)
        if settings.do_whole_word_mask:
            words = [word for run in runs for word in self._words_at(ids, run)]
            groups = choose(words, number, rng, settings.max_ngram_size)
            positions = list(itertools.chain.from_iterable(groups))
        else:
            positions = list(itertools.chain.from_iterable(runs))
            _shuffle(positions, rng)
            del positions[number:]
        masked = corrupt(ids, positions, self._mask, self._words, rng)
        positions.sort()
        return Instance(
            ids, first_segment, positions, [masked[p] for p in positions], is_random_next
        )

    def _words_at(self, ids: Ids, positions: Iterable[int]) -> list[list[int]]:
        """The positions of text that may be masked, grouped into words."""
        words: list[list[int]] = []
        for position in positions:
            if words and ids[position] in self._continues:
                words[-1].append(position)
            else:
                words.append([position])
        return words


def _target(settings: Settings, rng: Random) -> int:
    """A length to fill; some are short on purpose, because fine-tuning has short inputs too."""
    room = settings.room
    return rng.randint(2, room) if rng.random() < settings.short_seq_prob else room


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
    random = rng.random
    for _ in range(b - a + d - c - room):
        front = random() < 0.5
        if b - a > d - c:
            a, b = (a + 1, b) if front else (a, b - 1)
        else:
            c, d = (c + 1, d) if front else (c, d - 1)
    return (a, b), (c, d)


def cut_long_sentences(document: Sentences, settings: Settings) -> Sentences:
    """Cuts every sentence that is longer than a sequence into pieces, of which four fill one.

    Half of a longer piece would be cut off again to make room for a second part.
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
) -> Iterator[tuple["array[int]", list[int]]]:
    """Runs of sentences that fill a sequence, for dynamic masking: their ids and lengths.

    A sentence that does not fit is cut; its rest begins the next run.
    """
    target, ids, lengths = _target(settings, rng), array("i"), []
    for sentence in document:
        at = 0
        while at < len(sentence):
            piece = sentence[at : at + target - len(ids)]
            ids.extend(piece)
            lengths.append(len(piece))
            at += len(piece)
            if len(ids) == target:
                yield ids, lengths
                target, ids, lengths = _target(settings, rng), array("i"), []
    if ids:
        yield ids, lengths


def rows(
    documents: list[Sentences], settings: Settings, rng: Random, cls: int, sep: int
) -> Iterator[list[int]]:
    """The ids of full or packed rows between their first [CLS] and their last [SEP]."""
    if settings.row_filling == "full":
        yield from _full_rows(documents, settings.room, sep)
        return
    found: list[Ids] = []
    for document in documents:
        found += (ids for ids, _ in sequences(document, settings, rng))
    for row in packed(found, settings.max_seq_length, rng):
        yield [*row[0], *itertools.chain.from_iterable([sep, cls, *ids] for ids in row[1:])]


def _full_rows(documents: list[Sentences], room: int, sep: int) -> Iterator[list[int]]:
    """Sentences in their order, [SEP] between documents; one that does not fit is cut."""
    row: list[int] = []
    for document in documents:
        if len(row) > room - 2:  # no room for [SEP] and a token
            yield row
            row = []
        elif row:
            row.append(sep)
        for sentence in document:
            at = 0
            while at < len(sentence):
                if len(row) == room:
                    yield row
                    row = []
                piece = sentence[at : at + room - len(row)]
                row += piece
                at += len(piece)
    if row:
        yield row


def packed(found: list[Ids], length: int, rng: Random) -> list[list[Ids]]:
    """Rows of sequences, each with 2 special tokens, that fit into `length` (arXiv 2107.02027).

    Best fit, the longest first: a sequence joins the row whose free space it fills best. Of equal
    ones the order is random.
    """
    rng.shuffle(found)
    made: list[list[Ids]] = []
    free: list[list[list[Ids]]] = [[] for _ in range(length + 1)]  # rows, by free space
    there = 0  # bit n: there are rows with n tokens free
    for ids in sorted(found, key=len, reverse=True):
        size = len(ids) + 2
        fitting = there >> size
        if fitting:
            space = size + (fitting & -fitting).bit_length() - 1
            row = free[space].pop()
            if not free[space]:
                there -= 1 << space
        else:
            space, row = length, []
            made.append(row)
        row.append(ids)
        free[space - size].append(row)
        there |= 1 << (space - size)
    return made


def corrupt(
    ids: MutableSequence[int], positions: Iterable[int], mask: int, words: list[int], rng: Random
) -> dict[int, int]:
    """Puts [MASK], the same or a random word of `words` at some positions of `ids`, in their order.

    Returns:
        {position: the id before}.
    """
    replaced, random, kept = {}, rng.random, KEPT_SHARE / (KEPT_SHARE + RANDOM_SHARE)
    for position in positions:
        replaced[position] = ids[position]
        if random() < MASK_SHARE:
            ids[position] = mask
        elif random() >= kept:
            ids[position] = rng.choice(words)
    return replaced


def _shuffle(items: list, rng: Random) -> None:
    """The same as `rng.shuffle(items)`, draw for draw, in a third of its time."""
    draw, last = rng.getrandbits, len(items) - 1
    while last > 0:
        bits = (last + 1).bit_length()
        stop = (1 << bits - 1) - 2  # down to it, as many bits are drawn
        for i in range(last, stop, -1):
            j = draw(bits)
            while j > i:
                j = draw(bits)
            items[i], items[j] = items[j], items[i]
        last = stop


def choose(
    candidates: list[list[int]], number: int, rng: Random, max_ngram_size: int = 1
) -> list[list[int]]:
    """Chooses groups of positions to mask, together at most `number`, in the order of drawing.

    Args:
        candidates: The positions of each word's pieces, or of single pieces.
        max_ngram_size: n; above 1, runs of 1 … n words are drawn, a run of k words with weight 1/k.
    """
    if max_ngram_size > 1:
        return _choose_ngrams(candidates, number, rng, max_ngram_size)
    candidates = list(candidates)
    _shuffle(candidates, rng)
    chosen, count = [], 0
    for positions in candidates:
        if count >= number:
            break
        if count + len(positions) <= number:
            chosen.append(positions)
            count += len(positions)
    return chosen


def _choose_ngrams(
    words: list[list[int]], number: int, rng: Random, max_size: int
) -> list[list[int]]:
    starts = {}
    for size in range(1, min(max_size, len(words)) + 1):
        starts[size] = list(range(len(words) - size + 1))
        _shuffle(starts[size], rng)
    taken, chosen, count = set(), [], 0
    while count < number and starts:
        size = rng.choices(list(starts), weights=[1 / size for size in starts])[0]
        start = starts[size].pop()
        if not starts[size]:
            del starts[size]
        run = range(start, start + size)
        positions = [position for word in run for position in words[word]]
        if count + len(positions) <= number and taken.isdisjoint(run):
            taken.update(run)
            chosen.append(positions)
            count += len(positions)
    return chosen
