"""Google's basic tokenizer for BERT as steps of the `tokenizers` library: text → words and signs.

The library has these steps ready-made, but with tables of an old Unicode version, without the Greek
final sigma, and dropping private-use characters. Here the classes of characters come from the
running Python, as in Google's tokenizer. Two differences of the library remain: it may lower-case
letters that Unicode added after the version of the running Python, and it does not know the
canonical decompositions that Unicode added after version 12.
"""

import functools
import unicodedata
from typing import Literal, TypeAlias

from tokenizers import Regex, normalizers, pre_tokenizers

# Whether text is lower-cased. That strips accents too, but for "keep_accents": uncased models of
# German, Japanese or Hindi need them.
Casing: TypeAlias = bool | Literal["keep_accents"]

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


def normalizer(do_lower_case: Casing) -> normalizers.Normalizer:
    """Drops control characters; lower-cases and strips accents as `do_lower_case` says."""
    drop = normalizers.Replace(Regex(f"[{_classes()['dropped']}]+"), "")
    if not do_lower_case:
        return drop
    lower = [drop, normalizers.Replace(Regex(_FINAL_SIGMA), "ς"), normalizers.Lowercase()]
    if do_lower_case == "keep_accents":
        return normalizers.Sequence(lower)
    accents = normalizers.Replace(Regex(f"[{_classes()['accents']}]+"), "")
    return normalizers.Sequence([*lower, normalizers.NFD(), accents])


def pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Splits at white space; punctuation signs and ideographs stand alone."""
    classes = _classes()
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(f"[{classes['spaces']}]+"), "removed"),
            pre_tokenizers.Split(Regex(f"[{classes['alone']}]"), "isolated"),
        ]
    )


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
