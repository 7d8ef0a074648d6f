"""Vocabularies and word pieces: learn, load and check them; convert sentences to ids.

The Rust `tokenizers` library does the work, configured to agree with Google's tokenizer. The
library has Google's steps ready-made, but with tables of an old Unicode version, without the Greek
final sigma, and dropping private-use characters. Here the classes of characters come from the
running Python, as in Google's tokenizer. Two differences of the library remain: it may lower-case
letters that Unicode added after the version of the running Python, and it lacks the
canonical decompositions that Unicode added after version 12.
"""

import functools
import hashlib
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, chain
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
from official_bert.system.places import AnyPath, as_path
from official_bert.system.whole_files import write_whole

# Whether text is lower-cased. That strips accents too, but for "keep_accents": uncased models of
# German, Japanese or Hindi need them.
Casing: TypeAlias = bool | Literal["keep_accents"]

_LETTERS = frozenset(string.ascii_lowercase)
_AT_ONCE = 1 << 18  # characters; the library's answer takes some 200 bytes per piece

# The characters that a learned vocabulary holds: enough of them to write this share of the text,
# and the rarer ones that Google's English vocabulary holds too.
COVERAGE, RARE_CHARACTERS = 0.9995, 1000

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def read_vocabulary(vocab_file: str) -> dict[str, int]:
    """Token → id of a `vocab.txt` (one token per line; the id is the line number, from 0).

    A name that ends in `.json` is of a `tokenizer.json`, which Hugging Face's libraries save.

    Raises:
        ValueError: the file is missing, unreadable, empty, not UTF-8, has a token twice, lacks a
            special token, or is of another kind of tokenizer.
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


def casing(vocab_file: AnyPath, given: Casing | None = None) -> Casing:
    """Whether text is lower-cased for a vocabulary, and whether it then keeps its accents.

    Args:
        vocab_file: The vocabulary.
        given: The user's or the run's setting; default: as in its `tokenizer.json` and the
            `tokenizer_config.json` next to it, or else whether no token has an upper-case letter.

    Raises:
        ValueError: the settings are damaged, or need a tokenizer that is not supported here.
    """
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
    """A capital letter, which a cased vocabulary holds by itself; None of an uncased vocabulary.

    Whole words with capitals, such as `<URL>`, are added to uncased vocabularies too.
    """
    letters = (token for token in vocabulary if len(token.removeprefix("##")) == 1)
    return next((letter for letter in letters if letter != letter.lower()), None)


def require_uncased(vocabulary: dict[str, int], vocab_file: str) -> None:
    """Refuses a cased vocabulary where text is lower-cased.

    Raises:
        ValueError: naming the file and one of its tokens that would never be found.
    """
    upper = upper_case_token(vocabulary)
    if upper:
        raise ValueError(
            f"do_lower_case must be off for a cased vocabulary; got {vocab_file} with {upper!r}, "
            "which would never be found. Give --do_lower_case=false."
        )


def require_within(vocab_size: int, vocabulary: dict[str, int], vocab_file: str) -> None:
    """Refuses a vocabulary with more word pieces than a model has embeddings.

    Raises:
        ValueError: naming the file and both numbers.
    """
    if len(vocabulary) > vocab_size:
        raise ValueError(
            f"{vocab_file} must have at most {vocab_size:,} tokens, the size of the model's "
            f"embeddings; got {len(vocabulary):,}. Give the model's own vocabulary."
        )


def check_case(vocabulary: dict[str, int], vocab_file: str, do_lower_case: Casing) -> None:
    """Refuses a cased vocabulary where text is lower-cased; warns of an uncased one where it isn't.

    A vocabulary is known to be uncased if it has letters of the Latin alphabet, and no capital one:
    then every word with a capital letter is unknown to it.

    Raises:
        ValueError: as `require_uncased`.
    """
    if do_lower_case:
        require_uncased(vocabulary, vocab_file)
    elif upper_case_token(vocabulary) is None and not vocabulary.keys().isdisjoint(_LETTERS):
        _warn_uncased(str(vocab_file))


@functools.cache  # once per file
def _warn_uncased(vocab_file: str) -> None:
    print(
        f"warning: do_lower_case is off, but {vocab_file} is an uncased vocabulary: every word "
        f"with a capital letter becomes {UNK}. Give --do_lower_case unless all text is lower-case."
    )


def digest(vocabulary: dict[str, int]) -> str:
    """A fingerprint of the tokens and their order, stored in the manifest."""
    return digest_of(sorted(vocabulary, key=vocabulary.__getitem__))


def digest_of(tokens: Iterable[str]) -> str:
    """The same of tokens in order."""
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


# Each ideograph is a word of its own.
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


@functools.cache
def _classes() -> dict[str, str]:
    """Contents of bracket expressions, built from Python's Unicode database."""
    ranges = {"dropped": [], "accents": [], "spaces": [], "alone": [*map(list, _IDEOGRAPHS)]}
    # Beyond the first two planes, only plane 14 holds any of these categories.
    for code in (*range(0x20000), *range(0xE0000, 0xE1000)):
        name = _class_of(code, unicodedata.category(chr(code)))
        if name and ranges[name] and ranges[name][-1][1] == code - 1:
            ranges[name][-1][1] = code
        elif name:
            ranges[name].append([code, code])
    return {
        name: "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in found)
        for name, found in ranges.items()
    }


def _class_of(code: int, category: str) -> str | None:
    if chr(code) in " \t\n\r" or category in ("Zs", "Zl", "Zp"):
        return "spaces"
    if category in ("Cc", "Cf") or code == 0xFFFD:
        return "dropped"
    if category == "Mn":
        return "accents"
    # ASCII signs such as $ and ^ count as punctuation.
    ascii_sign = 0x21 <= code <= 0x7E and not chr(code).isalnum()
    return "alone" if ascii_sign or category.startswith("P") else None


class SentenceEncoder:
    """Sentences → lists of ids, several times as fast as `Tokenizer.encode` in one process.

    Google's tokenizer never looks beyond a space, so the pieces of each string between two spaces
    can be cached: in natural text nine of ten repeat. A new string is looked up without the
    punctuation around it, because each sign is a piece of its own.

    `limit` bounds the number of entries, about 200 bytes each. Long strings and strings with many
    pieces, such as sentences of a script without spaces, hardly repeat and are not cached.
    """

    _LONGEST_KEPT, _MAX_PIECES_KEPT = 40, 10  # characters, pieces

    def __init__(self, tokenizer: Tokenizer, limit: int = 200_000):
        self._tokenizer = tokenizer
        self._limit = limit
        self._pieces: dict[str, tuple[int, ...]] = {}

    def __call__(self, sentences: Iterable[str]) -> list[list[int]]:
        words = [sentence.split(" ") for sentence in sentences]
        new = set(chain.from_iterable(words)).difference(self._pieces)
        if len(self._pieces) + 2 * len(new) > self._limit:
            self._pieces.clear()
            new = set(chain.from_iterable(words))
        self._learn(new)
        find = self._pieces.__getitem__
        encoded = [list(chain.from_iterable(map(find, sentence))) for sentence in words]
        for word in new:
            for text in (word, word.strip(string.punctuation)):  # which may be a word too
                if len(text) > self._LONGEST_KEPT or self._has_many_pieces(text):
                    self._pieces.pop(text, None)
        return encoded

    def _has_many_pieces(self, text: str) -> bool:
        return len(self._pieces.get(text, ())) > self._MAX_PIECES_KEPT

    def _learn(self, new: set[str]) -> None:
        pieces = self._pieces
        cores = {word: word.strip(string.punctuation) for word in new}
        self._look_up({*cores.values(), *string.punctuation}.difference(pieces))
        for word, core in cores.items():
            if word not in pieces:
                before, _, after = word.partition(core) if core else (word, "", "")
                pieces[word] = (
                    *chain.from_iterable(pieces[sign] for sign in before),
                    *pieces[core],
                    *chain.from_iterable(pieces[sign] for sign in after),
                )

    def _look_up(self, texts: Iterable[str]) -> None:
        """Gets the pieces of `texts` from the library, a limited number at once."""
        for batch in _batches(texts):
            encodings = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            self._pieces.update(zip(batch, (tuple(e.ids) for e in encodings), strict=True))


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
    do_lower_case: bool = True,
    min_frequency: int = 2,
    report: Callable[[str], object] | None = None,
) -> int:
    """Learns a WordPiece vocabulary, writes it to `vocab_file` and returns its size.

    The special tokens come first ([PAD] is 0), then the characters: the most frequent ones that are
    99.95 % of the text's, or more of them where there is room. The vocabulary is smaller than
    `vocab_size` if the text has too few pieces. The same texts give the same vocabulary.

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
    # The library numbers new characters in the order of a randomly seeded hash table, and breaks
    # ties between merges by these numbers. If it gets all single characters beforehand, nothing is
    # random.
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
    """The characters of a vocabulary, sorted, and those of them that can continue a word, with ##.

    The third value is the size of a vocabulary that holds the characters of `COVERAGE`.
    """
    frequent = sorted(counts, key=lambda character: (-counts[character], character))
    covered, most = accumulate(map(counts.__getitem__, frequent)), COVERAGE * counts.total()
    enough = 1 + sum(part < most for part in covered)
    wanted = frequent[: max(enough, min(RARE_CHARACTERS, vocab_size // 4))]
    joins = {character: _joins_words(character, tokenizer) for character in wanted}
    sizes = list(accumulate((1 + joins[c] for c in wanted), initial=len(SPECIAL_TOKENS)))
    alphabet = sorted(c for c, size in zip(wanted, sizes[1:], strict=True) if size <= vocab_size)
    return alphabet, [f"##{c}" for c in alphabet if joins[c]], sizes[enough]


def _joins_words(character: str, tokenizer: Tokenizer) -> bool:
    """Whether it can continue a word; punctuation signs and ideographs are words of their own."""
    text = tokenizer.normalizer.normalize_str(f"a{character}")
    return len(tokenizer.pre_tokenizer.pre_tokenize_str(text)) == 1
