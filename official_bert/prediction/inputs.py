"""What a caller hands to `predict`, checked; a text that does not fit is named by its number."""

from collections.abc import Iterable, Sequence

_SHOWN = 40  # characters of a text in an error


def texts(given: Iterable[str]) -> list[str]:
    """A list of texts.

    Raises:
        ValueError: it is one text, or something in it is no text.
    """
    found = _listed(given, "texts")
    for number, text in enumerate(found):
        _require_text(text, f"text {number}")
    return found


def sentences(given: Iterable[str | Sequence[str]]) -> list[tuple[str, str | None]]:
    """Sentences and pairs of sentences, all as pairs, of single ones with `None`.

    Raises:
        ValueError: as `texts`.
    """
    found: list[tuple[str, str | None]] = []
    for number, one in enumerate(_listed(given, "texts")):
        if isinstance(one, str):
            _require_text(one, f"text {number}")
            found.append((one, None))
        else:
            first, second = _pair(one, f"text {number}")
            _require_text(first, f"text {number}")
            _require_text(second, f"the second sentence of text {number}")
            found.append((first, second))
    return found


def questions(given: Iterable[Sequence[str]]) -> list[tuple[str, str]]:
    """Questions with their contexts.

    Raises:
        ValueError: as `texts`.
    """
    found = []
    for number, one in enumerate(_listed(given, "questions")):
        question, context = _pair(one, f"question {number}")
        _require_text(question, f"question {number}")
        _require_text(context, f"the context of question {number}")
        found.append((question, context))
    return found


def shown(text: str) -> str:
    """The beginning of a text, for an error."""
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}…"


def _listed(given, what):
    if isinstance(given, str):
        raise ValueError(f"{what} must be a list, such as [text]; got one text, {shown(given)}.")
    try:
        return list(given)
    except TypeError:
        raise ValueError(f"{what} must be a list; got {type(given).__name__}.") from None


def _pair(given, what):
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != 2:
        raise ValueError(f"{what} must be a pair of texts, (first, second); got {given!r:.99}.")
    return given


def _require_text(text, what):
    if not isinstance(text, str):
        raise ValueError(f"{what} must be text (str); got {text!r:.99}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what} must be valid Unicode; got {text[error.start]!r}, half of a character."
        ) from None
