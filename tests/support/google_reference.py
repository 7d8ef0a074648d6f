"""Google's data for BERT, written out from its description: a slow and plain reference.

The tokenizer:
Basic: drop NUL, U+FFFD and control characters (categories Cc and Cf), make every space (Zs, tab,
newline) a blank, put blanks around CJK ideographs, split at white space; each word lower-cased and
stripped of accents (uncased only), then split so that each punctuation sign stands alone.
WordPiece: longest match first, words of more than 200 characters unknown.

Pre-training instances: one `random.Random` for the whole corpus, drawn from in this order: the
order of the documents; then for each pass and document the target length, and for each pair where
its first part ends, whether the second one is random and which, what is cut off, which positions
are masked and with what; at the very end the order of the instances.
"""

import unicodedata
from itertools import chain
from random import Random
from typing import NamedTuple

CJK = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def basic(text: str, lower: bool) -> list[str]:
    words = "".join(_cleaned(text)).split()
    if lower:
        words = [_without_accents(word.lower()) for word in words]
    return [piece for word in words for piece in _split_at_punctuation(word)]


def word_pieces(word: str, vocabulary: dict[str, int]) -> list[str]:
    if len(word) > 200:
        return ["[UNK]"]
    pieces, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        ends = range(len(word), start, -1)
        end = next((e for e in ends if prefix + word[start:e] in vocabulary), None)
        if end is None:
            return ["[UNK]"]
        pieces.append(prefix + word[start:end])
        start = end
    return pieces


def tokenize(text: str, vocabulary: dict[str, int], lower: bool) -> list[str]:
    return [p for word in basic(text, lower) for p in word_pieces(word, vocabulary)]


def _cleaned(text: str):
    for char in text:
        code, category = ord(char), unicodedata.category(char)
        if char in " \t\n\r" or category == "Zs":
            yield " "
        elif code in (0, 0xFFFD) or category in ("Cc", "Cf"):
            continue
        elif any(low <= code <= high for low, high in CJK):
            yield f" {char} "
        else:
            yield char


def _without_accents(word: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", word) if unicodedata.category(c) != "Mn")


def _split_at_punctuation(word: str):
    current = ""
    for char in word:
        code = ord(char)
        ascii_sign = 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
        if ascii_sign or unicodedata.category(char).startswith("P"):
            yield from filter(None, (current, char))
            current = ""
        else:
            current += char
    yield from filter(None, (current,))


class Instance(NamedTuple):
    tokens: list[str]
    segments: list[int]
    positions: list[int]
    labels: list[str]
    is_random: bool


def instances(lines, vocabulary, seed, passes, length, predictions, lower=True):
    """All instances of a text with a sentence a line and a blank line between documents.

    With the original's defaults for the rest: 15 % masked, 10 % of short sequences.
    """
    rng = Random(seed)
    texts = [text for text in _documents(lines, vocabulary, lower) if text]
    rng.shuffle(texts)
    words = list(vocabulary)
    made = []
    for _ in range(passes):
        for number in range(len(texts)):
            for first, second, is_random in _pairs(texts, number, length - 3, rng):
                tokens = ["[CLS]", *first, "[SEP]", *second, "[SEP]"]
                segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
                masked = _mask(tokens, words, predictions, rng)
                positions = sorted(masked)
                labels = [masked[position] for position in positions]
                made.append(Instance(tokens, segments, positions, labels, is_random))
    rng.shuffle(made)
    return made


def of_records(path, vocabulary):
    """The instances that a file of records holds."""
    import tensorflow as tf

    tokens = list(vocabulary)
    found = []
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        values = {name: list(feature.int64_list.value) for name, feature in features.items()}
        size = sum(values["input_mask"])
        masked = sum(weight > 0 for weight in features["masked_lm_weights"].float_list.value)
        found.append(
            Instance(
                [tokens[i] for i in values["input_ids"][:size]],
                values["segment_ids"][:size],
                values["masked_lm_positions"][:masked],
                [tokens[i] for i in values["masked_lm_ids"][:masked]],
                values["next_sentence_labels"] == [1],
            )
        )
    return found


def _documents(lines, vocabulary, lower):
    text = []
    for line in lines:
        if not line.strip():
            yield text
            text = []
        elif pieces := tokenize(line.strip(), vocabulary, lower):
            text.append(pieces)
    yield text


def _pairs(texts, number, room, rng):
    """The pairs of one document, in which sentences are used up from the front."""
    text, target = texts[number], room
    if rng.random() < 0.1:
        target = rng.randint(2, room)
    done = 0
    while done < len(text):
        taken = 1
        while done + taken < len(text) and _size(text[done : done + taken]) < target:
            taken += 1
        in_first = rng.randint(1, taken - 1) if taken > 1 else 1
        first = list(chain(*text[done : done + in_first]))
        is_random = taken == 1 or rng.random() < 0.5
        if is_random:
            second = _random_part(texts, number, target - len(first), rng)
            taken = in_first  # the others begin the next pair
        else:
            second = list(chain(*text[done + in_first : done + taken]))
        _cut(first, second, room, rng)
        yield first, second, is_random
        done += taken


def _random_part(texts, number, missing, rng):
    other = number
    for _ in range(10):
        other = rng.randint(0, len(texts) - 1)
        if other != number:
            break
    part = []
    for sentence in texts[other][rng.randint(0, len(texts[other]) - 1) :]:
        part += sentence
        if len(part) >= missing:
            break
    return part


def _cut(first, second, room, rng):
    while len(first) + len(second) > room:
        longer = first if len(first) > len(second) else second
        longer.pop(0 if rng.random() < 0.5 else -1)


def _mask(tokens, words, most, rng):
    """Masks `tokens` in place; returns what stood there, by position."""
    positions = [p for p, token in enumerate(tokens) if token not in ("[CLS]", "[SEP]")]
    rng.shuffle(positions)
    masked = {}
    for position in positions[: min(most, max(1, round(len(tokens) * 0.15)))]:
        masked[position] = tokens[position]
        if rng.random() < 0.8:
            tokens[position] = "[MASK]"
        elif rng.random() >= 0.5:
            tokens[position] = words[rng.randint(0, len(words) - 1)]
    return masked


def _size(sentences):
    return sum(map(len, sentences))
