"""Google's tokenizer for BERT, written out from its description, as a reference to measure against.

Basic: drop NUL, U+FFFD and control characters (categories Cc and Cf), make every space (Zs, tab,
newline) a blank, put blanks around CJK ideographs, split at white space; each word lower-cased and
stripped of accents (uncased only), then split so that each punctuation sign stands alone.
WordPiece: longest match first, words of more than 200 characters unknown.
"""

import unicodedata

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
