"""Vocabularies and word pieces: learns, loads and checks them; converts sentences to ids.

The Rust `tokenizers` library is configured to agree with Google's tokenizer. Its ready-made BERT
steps have tables of an old Unicode version, no Greek final sigma, and drop private-use characters.
Here the classes of characters come from the running Python, as in Google's tokenizer. Two
differences remain: the library may lower-case letters newer than Python's Unicode version, and
lacks the canonical decompositions newer than Unicode 12.
"""

import functools
import hashlib
import re
import string
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, compress
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from tokenizers import (
    Encoding,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from official_bert.data import tokenizer_settings
from official_bert.system import messages
from official_bert.system.places import AnyPath, as_path
from official_bert.system.whole_files import write_whole

# Whether text is lower-cased, which strips accents too, except with "keep_accents": uncased models
# of German, Japanese or Hindi need them.
Casing: TypeAlias = bool | Literal["keep_accents"]

_LETTERS = frozenset(string.ascii_lowercase)
_PARTS = re.compile("[A-Za-z0-9]+|.")  # of a word of ASCII
_AT_ONCE = 1 << 18  # characters; an encoding takes some 200 bytes per piece

# A learned vocabulary has the characters that write this share of the text, and, as Google's
# English one, rarer ones.
COVERAGE, RARE_CHARACTERS = 0.9995, 1000

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def read_vocabulary(vocab_file: str) -> dict[str, int]:
    """Token → id of a `vocab.txt`, one token per line, or of Hugging Face's `tokenizer.json`.

    Raises:
        ValueError: the file is missing, unreadable, empty, not UTF-8, has a token twice, lacks a
            special token, or is another kind of tokenizer.
    """
    try:
        if tokenizer_settings.is_json(vocab_file):
            vocabulary = tokenizer_settings.vocabulary(vocab_file)
        else:
            vocabulary = _vocabulary_of_lines(vocab_file)
    except FileNotFoundError:
        raise ValueError(
            f"vocab_file must be an existing file; got {vocab_file!r}. Give a vocab.txt or "
            "tokenizer.json, or make one with `lamb-bert learn-vocabulary --input_file=… "
            "--vocab_file=…`."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"vocab_file must be readable text; got {vocab_file!r} ({error})."
        ) from None
    missing = [token for token in SPECIAL_TOKENS if token not in vocabulary]
    if missing:
        raise ValueError(
            f"vocab_file must contain {', '.join(SPECIAL_TOKENS)}; got {vocab_file!r} "
            f"({len(vocabulary):,} tokens) without {', '.join(missing)}. Give the vocabulary of a "
            "BERT."
        )
    return vocabulary


def _vocabulary_of_lines(vocab_file: str) -> dict[str, int]:
    text = as_path(vocab_file).read_text("utf-8-sig")  # Windows editors write a mark first
    vocabulary: dict[str, int] = {}
    for index, line in enumerate(text.rstrip("\n").split("\n")):
        token = line.strip()
        if token in vocabulary:
            raise ValueError(
                f"vocab_file must contain each token once; got {vocab_file!r} with {token!r} on "
                f"lines {vocabulary[token] + 1} and {index + 1}. Give the original file."
            )
        vocabulary[token] = index
    return vocabulary


def casing(
    vocab_file: AnyPath, given: Casing | None = None, strip_accents: bool | None = None
) -> Casing:
    """Whether text is lower-cased for a vocabulary, and whether it then keeps its accents.

    Args:
        given: The user's or the run's setting. Default: from its `tokenizer.json` and the
            `tokenizer_config.json` next to it, or else whether no token has an upper-case letter.
        strip_accents: The user's setting. Default: from the same files, or else as lower-casing.

    Raises:
        ValueError: the settings are damaged, need a tokenizer that is not supported here, or
            contradict each other.
    """
    return with_accents(_casing(vocab_file, given), strip_accents)


def with_accents(lower: Casing, strip_accents: bool | None) -> Casing:
    """A casing with the user's setting of accents; None leaves it as it is.

    Raises:
        ValueError: a cased text is to lose its accents.
    """
    if strip_accents is None:
        return lower
    if strip_accents and not lower:
        raise ValueError(
            "strip_accents must be off where text is not lower-cased; got True with do_lower_case "
            "off. Leave it out: a cased BERT reads accents."
        )
    return (True if strip_accents else "keep_accents") if lower else False


def as_flags(casing: Casing) -> str:
    """The flags of a casing, for messages."""
    if casing == "keep_accents":
        return "--do_lower_case --strip_accents=False"
    return f"--do_lower_case={casing}"


def _casing(vocab_file: AnyPath, given: Casing | None) -> Casing:
    if given == "keep_accents":
        return given
    try:
        settings = tokenizer_settings.read(vocab_file)
    except (OSError, ValueError):
        if given is None:
            raise
        return given
    if settings.unsupported and given is None:
        raise ValueError(
            f"{settings.path} must have settings that BERT's tokenizer supports; got "
            f"{', '.join(settings.unsupported)}. Give --do_lower_case to ignore these settings."
        )
    lower = settings.lower_case if given is None else given
    if lower is None:
        return upper_case_token(read_vocabulary(str(vocab_file))) is None
    if lower and settings.lower_case is not False and settings.strip_accents is False:
        return "keep_accents"
    return lower


def upper_case_token(vocabulary: dict[str, int]) -> str | None:
    """A single capital letter of a cased vocabulary; None for an uncased one.

    Uncased vocabularies may have whole words with capitals, such as `<URL>`.
    """
    letters = (token for token in vocabulary if len(token.removeprefix("##")) == 1)
    return next((letter for letter in letters if letter != letter.lower()), None)


def is_uncased(vocabulary: dict[str, int]) -> bool:
    """Whether a vocabulary has Latin letters, but no capital one."""
    return upper_case_token(vocabulary) is None and not vocabulary.keys().isdisjoint(_LETTERS)


def require_uncased(vocabulary: dict[str, int], vocab_file: str) -> None:
    """Refuses a cased vocabulary for lower-cased text, with a ValueError that names a token."""
    upper = upper_case_token(vocabulary)
    if upper:
        raise ValueError(
            f"do_lower_case must be off for a cased vocabulary; got {vocab_file} with {upper!r}, "
            "which would never be found. Give --do_lower_case=false."
        )


def require_within(vocab_size: int, vocabulary: dict[str, int], vocab_file: str) -> None:
    """Refuses a vocabulary with more word pieces than a model's embeddings, with a ValueError."""
    if len(vocabulary) > vocab_size:
        raise ValueError(
            f"{vocab_file} must have at most {vocab_size:,} tokens, the size of the model's "
            f"embeddings; got {len(vocabulary):,}. Give the model's own vocabulary."
        )


def check_case(vocabulary: dict[str, int], vocab_file: str, do_lower_case: Casing) -> None:
    """Refuses a cased vocabulary for lower-cased text; warns of an uncased one for cased text.

    A vocabulary is uncased if it has Latin letters, but no capital one. If it has letters with
    accents, and text is stripped of them, it warns too.

    Raises:
        ValueError: as `require_uncased`.
    """
    if do_lower_case:
        require_uncased(vocabulary, vocab_file)
        accented = _accented_letters(vocabulary) if do_lower_case is True else []
        if accented:
            messages.once(
                messages.warn,
                f"strip_accents is on, but {vocab_file} has {len(accented):,} "
                f"letter{'s' * (len(accented) > 1)} with accents, such as {accented[0]!r}: text "
                "never has them then. Give --strip_accents=False if the model keeps accents, as "
                "uncased ones of German, Japanese or Hindi do.",
            )
    elif is_uncased(vocabulary):
        messages.once(
            messages.warn,
            f"do_lower_case is off, but {vocab_file} is an uncased vocabulary: every word with a "
            f"capital letter becomes {UNK}. Give --do_lower_case unless all text is lower-case.",
        )


def _accented_letters(vocabulary: dict[str, int]) -> list[str]:
    """Its single letters that text stripped of accents does not have, such as ü."""
    letters = dict.fromkeys(token.removeprefix("##") for token in vocabulary)
    return [
        letter
        for letter in letters
        if len(letter) == 1 and any(map(_is_accent, unicodedata.normalize("NFD", letter)))
    ]


def digest(vocabulary: dict[str, int]) -> str:
    """A fingerprint of the tokens and their order, as in the manifest."""
    return digest_of(sorted(vocabulary, key=vocabulary.__getitem__))


def digest_of(tokens: Iterable[str]) -> str:
    """The `digest` of a vocabulary with these tokens."""
    return hashlib.sha256("\n".join(tokens).encode("utf-8")).hexdigest()


def load(vocab_file: str, do_lower_case: Casing = True) -> Tokenizer:
    """A `tokenizers.Tokenizer` that splits as Google's `FullTokenizer` does.

    Args:
        vocab_file: One token per line, or a `tokenizer.json`.
        do_lower_case: Lower-case and strip accents, as for the uncased vocabularies; or
            `"keep_accents"`: lower-case only.

    Examples:
        >>> load("vocab.txt").encode("Unaffable", add_special_tokens=False).tokens
        ['una', '##ffa', '##ble']
    """
    return _tokenizer(read_vocabulary(vocab_file), do_lower_case)


def _tokenizer(vocabulary: dict[str, int], do_lower_case: Casing) -> Tokenizer:
    # Google's tokenizer accepts words of up to 200 characters; the library's default is 100.
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=UNK, max_input_chars_per_word=200))
    tokenizer.normalizer = _normalizer(do_lower_case)
    classes = _classes()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(f"[{classes['spaces']}]+"), "removed"),
            pre_tokenizers.Split(Regex(f"[{classes['alone']}]"), "isolated"),
        ]
    )
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


_IDEOGRAPHS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)
# Σ after a letter and not before one becomes ς; accents, apostrophes and similar are skipped.
_FINAL_SIGMA = r"\p{Cased}\p{Case_Ignorable}*\KΣ(?!\p{Case_Ignorable}*\p{Cased})"


def _normalizer(do_lower_case: Casing) -> normalizers.Normalizer:
    """Drops control characters; lower-cases and strips accents according to `do_lower_case`."""
    drop = normalizers.Replace(Regex(f"[{_classes()['dropped']}]+"), "")
    if not do_lower_case:
        return drop
    lower = [drop, normalizers.Replace(Regex(_FINAL_SIGMA), "ς"), normalizers.Lowercase()]
    if do_lower_case == "keep_accents":
        return normalizers.Sequence(lower)
    accents = normalizers.Replace(Regex(f"[{_classes()['accents']}]+"), "")
    return normalizers.Sequence([*lower, normalizers.NFD(), accents])


_CLASS_OF = {
    **dict.fromkeys(("Zs", "Zl", "Zp"), "spaces"),
    **dict.fromkeys(("Cc", "Cf"), "dropped"),
    **dict.fromkeys(("Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po"), "alone"),
    "Mn": "accents",
}
_CATEGORIES = {  # of characters that Google's tokenizer treats as those of another category
    **dict.fromkeys("\t\n\r", "Zs"),
    **dict.fromkeys(string.punctuation, "Po"),  # also $ and ^
    "\ufffd": "Cc",
}


@functools.cache
def _classes() -> dict[str, str]:
    """Contents of bracket expressions, built from Python's Unicode database."""
    ranges = {"dropped": [], "accents": [], "spaces": [], "alone": [*map(list, _IDEOGRAPHS)]}
    # Beyond the first two planes, only plane 14 has characters of these categories.
    codes = [*range(0x20000), *range(0xE0000, 0xE1000)]
    categories = [*map(unicodedata.category, map(chr, codes))]
    for character, category in _CATEGORIES.items():
        categories[ord(character)] = category
    has_class = map(_CLASS_OF.__contains__, categories)
    for code, category in compress(zip(codes, categories), has_class):
        found = ranges[_CLASS_OF[category]]
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return {
        name: "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in found)
        for name, found in ranges.items()
    }


class SentenceEncoder:
    """Sentences → lists of ids, several times as fast as `Tokenizer.encode` in one process.

    The pieces of each string between two spaces are remembered, because nine of ten repeat in
    natural text. `limit` bounds the number of entries, about 200 bytes each. The tokenizer is from
    `load`.
    """

    def __init__(self, tokenizer: Tokenizer, limit: int = 200_000):
        self._pieces = _Pieces(tokenizer)
        self._limit = limit

    def __call__(self, sentences: Iterable[str]) -> list[list[int]]:
        return [ids.tolist() for ids in self.arrays(sentences)]

    def arrays(self, sentences: Iterable[str]) -> list["array[int]"]:
        """The same as arrays of C's `int`, which are made faster and take less memory."""
        find, encoded = self._pieces.__getitem__, []
        for sentence in sentences:
            encoded.append(array("i", b"".join(map(find, sentence.split(" ")))))
            if len(self._pieces) > self._limit:
                self._pieces.clear()
        return encoded


class _Pieces(dict[str, bytes]):
    """Word → ids of its pieces as the bytes of an array, filled when a word is looked up.

    Only words of other than printable ASCII characters need the tokenizer's tables of Unicode. In
    the rest each sign is a word of its own. Long strings and strings with many pieces, such as
    sentences without spaces, hardly repeat and are not kept.
    """

    _LONGEST_KEPT, _MAX_BYTES_KEPT = 40, 10 * array("i").itemsize  # of the word, of its 10 pieces

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer, self._model = tokenizer, tokenizer.model
        self._ids = tokenizer.get_vocab()
        self._lower_case = tokenizer.normalizer.normalize_str("A") == "a"

    def __missing__(self, word: str) -> bytes:
        if not word.isascii() or not word.isprintable():
            pieces = self._of_core(word)
        elif word.isalnum() or len(word) == 1:
            pieces = self._of_letters(word)
        elif word[:-1].isalnum() and not word[-1].isalnum():
            pieces = self[word[:-1]] + self[word[-1]]
        else:
            pieces = b"".join(map(self.__getitem__, _PARTS.findall(word)))
        if len(word) <= self._LONGEST_KEPT and len(pieces) <= self._MAX_BYTES_KEPT:
            self[word] = pieces
        return pieces

    def _of_letters(self, word: str) -> bytes:
        word = word.lower() if self._lower_case else word
        if word in self._ids:  # the longest match
            return array("i", (self._ids[word],)).tobytes()
        return array("i", [piece.id for piece in self._model.tokenize(word)]).tobytes()

    def _of_core(self, word: str) -> bytes:
        core = word.strip(string.punctuation)  # without the signs around it, it may come again
        if core != word:
            before, _, after = word.partition(core) if core else (word, "", "")
            return b"".join(map(self.__getitem__, (*before, core, *after)))
        return array("i", self._tokenizer.encode(word, add_special_tokens=False).ids).tobytes()


class Pieces(NamedTuple):
    """The word pieces of several texts, concatenated; text n has bounds[n : n + 2]."""

    ids: np.ndarray  # (pieces,) int32
    spans: np.ndarray  # (pieces, 2) int32: first character in its text, and one past the last
    bounds: np.ndarray  # (texts + 1,) int64


def encode_with_spans(tokenizer: Tokenizer, texts: Iterable[str]) -> Pieces:
    """Word pieces and their spans, in characters (code points) of the original text.

    A piece that was lower-cased, stripped of accents or replaced by [UNK] still has its place in
    the text. So text can be cut from the original instead of being put together from pieces.

    Spans ascend. Accents that the tokenizer strips belong to the piece before them, and pieces of
    one character (the parts of a Korean syllable) share its span. The library uses all cores; their
    number does not change the result.

    Args:
        tokenizer: From `load`.
        texts: Read once, some at a time, so memory is needed only for the arrays.
    """
    ids, spans, lengths = [], [], [0]
    for batch in _batches(texts):
        encodings = tokenizer.encode_batch(batch, add_special_tokens=False)
        ids += [np.array(encoding.ids, np.int32) for encoding in encodings]
        spans += map(_spans, batch, encodings)
        lengths += map(len, encodings)
    return Pieces(
        np.concatenate([np.zeros(0, np.int32), *ids]),
        np.concatenate([np.zeros((0, 2), np.int32), *spans]),
        np.cumsum(lengths, dtype=np.int64),
    )


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Batches of about `_AT_ONCE` characters."""
    batch, size = [], 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size > _AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _spans(text: str, encoding: Encoding) -> np.ndarray:
    spans = np.array(encoding.offsets, np.int32).reshape(-1, 2)
    if not text.isascii() and any(map(_is_accent, set(text))):
        nexts = [*spans[1:, 0].tolist(), len(text)]
        for span, following in zip(spans, nexts):
            while span[1] < following and _is_accent(text[span[1]]):
                span[1] += 1
    return spans


def _is_accent(character: str) -> bool:
    return unicodedata.category(character) == "Mn"


def learn(
    texts: Iterable[str],
    vocab_file: str,
    vocab_size: int = 30522,
    do_lower_case: Casing = True,
    min_frequency: int = 2,
    report: Callable[[str], object] | None = None,
) -> int:
    """Learns a WordPiece vocabulary, writes it to `vocab_file` and returns its size.

    The special tokens come first ([PAD] is 0), then the most frequent characters: those of 99.95 %
    of the text, or more if they fit. The same texts give the same vocabulary. It is smaller than
    `vocab_size` if the text has too few pieces.

    Args:
        texts: Lines of text; read twice, so an iterator is first converted to a list.
        report: A function that takes lines about the result; None for silence.

    Raises:
        ValueError: there is no text, or `vocab_size` is too small.
    """
    if vocab_size < 50:
        raise ValueError(f"vocab_size must be at least 50; got {vocab_size}.")
    if iter(texts) is texts:
        texts = list(texts)
    tokenizer = _tokenizer({UNK: 0}, do_lower_case)
    counts = _characters(texts, tokenizer)
    if not counts:
        raise ValueError(
            "The input must contain text to learn a vocabulary from; got none. Check the paths."
        )
    alphabet, continuing, needed = _alphabet(counts, tokenizer, vocab_size)
    # The library numbers new characters in a random order, which breaks ties between merges. So it
    # gets all single characters beforehand.
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=[*SPECIAL_TOKENS, *alphabet, *continuing],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary = tokenizer.get_vocab()
    ordered = sorted(vocabulary, key=vocabulary.__getitem__)
    write_whole(vocab_file, (f"{token}\n".encode() for token in ordered))
    if report:
        share = sum(map(counts.__getitem__, alphabet)) / counts.total()
        report(
            f"{vocab_file}: {len(vocabulary):,} word pieces, with {len(alphabet):,} of the "
            f"{len(counts):,} different characters, which cover {share:.2%} of the text"
        )
        if len(vocabulary) < vocab_size:
            report(
                f"This is less than vocab_size={vocab_size:,}: no other piece of a word occurs at "
                f"least {min_frequency} times (each ideograph is a word of its own)."
            )
        if needed > vocab_size:
            report(
                f"warning: vocab_size must be {needed:,} or more to cover {COVERAGE:.2%} of the "
                f"text; got {vocab_size:,}. Words with other characters become {UNK}."
            )
    return len(vocabulary)


def _characters(texts: Iterable[str], tokenizer: Tokenizer) -> Counter[str]:
    """How often each character of the normalized text occurs."""
    raw = Counter()
    for text in texts:
        raw.update(text)
    counts = Counter()
    for character, count in raw.items():
        for normal in tokenizer.normalizer.normalize_str(character).split():
            counts.update(dict.fromkeys(normal, count))
    return counts


def _alphabet(
    counts: Counter[str], tokenizer: Tokenizer, vocab_size: int
) -> tuple[list[str], list[str], int]:
    """The characters of a vocabulary, sorted; with ## those that can continue a word.

    The third value is the size of a vocabulary with the characters of `COVERAGE`.
    """
    frequent = sorted(counts, key=lambda character: (-counts[character], character))
    covered, most = accumulate(map(counts.__getitem__, frequent)), COVERAGE * counts.total()
    enough = 1 + sum(part < most for part in covered)
    wanted = frequent[: max(enough, min(RARE_CHARACTERS, vocab_size // 4))]
    joins = {c: _continues_a_word(c, tokenizer) for c in wanted}
    sizes = list(accumulate((1 + joins[c] for c in wanted), initial=len(SPECIAL_TOKENS)))
    alphabet = sorted(c for c, size in zip(wanted, sizes[1:], strict=True) if size <= vocab_size)
    return alphabet, [f"##{c}" for c in alphabet if joins[c]], sizes[enough]


def _continues_a_word(character: str, tokenizer: Tokenizer) -> bool:
    """Whether it can; punctuation signs and ideographs are words of their own."""
    text = tokenizer.normalizer.normalize_str(f"a{character}")
    return len(tokenizer.pre_tokenizer.pre_tokenize_str(text)) == 1
