"""Tags of words and the entities that they spell: schemes, entities, and their scores.

| scheme | an entity of three words | of one word |
|---|---|---|
| IOB1 | I-X I-X I-X, and B-X first if an entity X ends at the word before | I-X |
| IOB2 | B-X I-X I-X | B-X |
| BIOES | B-X I-X E-X | S-X |
| plain | three entities X, one per word, as in tags of parts of speech | X |

O is no entity. Models are trained on IOB2, BIOES or plain tags; IOB1 is converted to IOB2, which
spells the same entities. Scores are those of `seqeval` (Nakayama, 2018), whose default rule is that
of `conlleval`.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

OUTSIDE = "O"
_PREFIXED = re.compile(r"([BIES])(?:-(.*))?", re.DOTALL)
_UNNAMED = "_"  # the type of bare B, I, E and S


class Entity(NamedTuple):
    """An entity: its type, its first word, and one past its last word."""

    type: str
    start: int
    stop: int


class _Tag(NamedTuple):
    prefix: str
    type: str


# Tags → entities


def is_prefixed(tags: Iterable[str]) -> bool:
    """Whether tags have the prefixes of a scheme; else they are plain."""
    names = {*tags} - {OUTSIDE}
    return bool(names) and all(map(_PREFIXED.fullmatch, names))


def scheme_of_classes(names: Iterable[str]) -> str:
    """The scheme of a model: `"IOB2"`, `"BIOES"` or `"plain"`, from the names of its classes."""
    names = [*names]
    if not is_prefixed(names):
        return "plain"
    return "BIOES" if any(name[0] in "ES" for name in names) else "IOB2"


def recognise(sentences: Sequence[Sequence[str]]) -> str:
    """The scheme of tags.

    Raises:
        ValueError: some have a prefix and others do not.
    """
    counts = Counter(tag for tags in sentences for tag in tags if tag != OUTSIDE)
    if not counts:
        return "IOB2"
    if not is_prefixed(counts):
        prefixed = [tag for tag in counts if re.match("[BIES]-", tag)]
        if prefixed:
            other = next(tag for tag in counts if not _PREFIXED.fullmatch(tag))
            raise ValueError(
                f"tags must all be O or begin with B-, I-, E- or S-, or none of them; got "
                f"{prefixed[0]!r} and {other!r}. Correct them; in BILOU, L- is E- and U- is S-."
            )
        return "plain"
    if any(tag[0] in "ES" for tag in counts):
        return "BIOES"
    begins_with_i = free_b = False
    for tags in sentences:
        before = _Tag(OUTSIDE, "")
        for tag in _parsed(tags):
            follows = before.prefix != OUTSIDE and before.type == tag.type
            begins_with_i |= tag.prefix == "I" and not follows
            free_b |= tag.prefix == "B" and not follows
            before = tag
    return "IOB1" if begins_with_i and not free_b else "IOB2"


def entities(tags: Sequence[str], prefixed: bool = True) -> list[Entity]:
    """The entities of a sentence in order, by the rule of `conlleval`, which any tags satisfy.

    A word continues an entity if its tag has I or E, the tag before B or I, and both one type; any
    other word but O begins one.

    Args:
        tags: The tags of its words.
        prefixed: False for plain tags, where every word but O is an entity.

    Examples:
        >>> entities(["B-PER", "I-PER", "O", "I-LOC"])
        [Entity(type='PER', start=0, stop=2), Entity(type='LOC', start=3, stop=4)]
    """
    found = _parsed(tags) if prefixed else _parsed_plain(tags)
    return _entities(found, lambda before, tag: tag.prefix != OUTSIDE, lambda last, after: True)


def strict_entities(tags: Sequence[str], scheme: str) -> list[Entity]:
    """The entities whose tags follow the scheme, as in the strict mode of `seqeval`."""
    if scheme == "plain":
        return entities(tags, prefixed=False)
    return _entities(_parsed(tags), *_STRICT[scheme])


def encode(found: Iterable[Entity], length: int, scheme: str) -> list[str]:
    """The tags of a sentence of `length` words with these entities, in IOB2 or BIOES."""
    tags = [OUTSIDE] * length
    for type, start, stop in found:
        tags[start:stop] = [f"B-{type}", *[f"I-{type}"] * (stop - start - 1)]
        if scheme == "BIOES":
            tags[stop - 1] = f"{'S' if stop == start + 1 else 'E'}-{type}"
    return tags


def _parsed(tags: Iterable[str]) -> list[_Tag]:
    matches = (_PREFIXED.fullmatch(tag) for tag in tags)
    return [_Tag(m[1], m[2] or _UNNAMED) if m else _Tag(OUTSIDE, "") for m in matches]


def _parsed_plain(tags: Iterable[str]) -> list[_Tag]:
    return [_Tag(OUTSIDE, "") if tag == OUTSIDE else _Tag("S", tag) for tag in tags]


_Rule = Callable[[_Tag, _Tag], bool]  # of two neighbours


def _entities(tags: list[_Tag], begins: _Rule, ends: _Rule) -> list[Entity]:
    outside, found, start = _Tag(OUTSIDE, ""), [], 0
    while start < len(tags):
        stop = start + 1
        if begins(tags[start - 1] if start else outside, tags[start]):
            while stop < len(tags) and _continues(tags[stop - 1], tags[stop]):
                stop += 1
            if ends(tags[stop - 1], tags[stop] if stop < len(tags) else outside):
                found.append(Entity(tags[start].type, start, stop))
        start = stop
    return found


def _continues(before: _Tag, tag: _Tag) -> bool:
    return tag.prefix in "IE" and before.prefix in "BI" and tag.type == before.type


def _begins_in_iob1(before: _Tag, tag: _Tag) -> bool:
    if tag.prefix == "I":
        return before.prefix != "I" or before.type != tag.type
    return tag.prefix == "B" and before.prefix in "BI" and before.type == tag.type


def _ends_in_iob1(last: _Tag, after: _Tag) -> bool:
    return not (last.prefix == after.prefix == "B" and last.type != after.type)


_STRICT: dict[str, tuple[_Rule, _Rule]] = {
    "IOB1": (_begins_in_iob1, _ends_in_iob1),
    "IOB2": (lambda before, tag: tag.prefix == "B", lambda last, after: True),
    "BIOES": (lambda before, tag: tag.prefix in "BS", lambda last, after: last.prefix in "ES"),
}


# Scores


def scores(
    true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str
) -> dict[str, float]:
    """The scores of predicted tags of sentences, fractions of 1; `scheme` is of the true ones.

    Returns:
        `precision`, `recall` and `f1` over all entities, `f1_macro`, the mean over their types, and
        `accuracy` of the tags of words; `strict_precision`, `strict_recall` and `strict_f1` of
        entities whose tags follow the scheme; `precision/TYPE`, `recall/TYPE` and `f1/TYPE`.
    """
    words = [pair for both in zip(true, predicted, strict=True) for pair in zip(*both, strict=True)]
    prefixed = scheme != "plain"
    sides = [[entities(tags, prefixed) for tags in side] for side in (true, predicted)]
    strict = [[strict_entities(tags, scheme) for tags in side] for side in (true, predicted)]
    counts = _counts(*sides)
    types = sorted({type for count in counts for type in count})
    of_types = {type: _scores(*(count[type] for count in counts)) for type in types}
    found = _scores(*(count.total() for count in counts))
    found["f1_macro"] = sum(of_type["f1"] for of_type in of_types.values()) / max(len(types), 1)
    found["accuracy"] = sum(a == b for a, b in words) / max(len(words), 1)
    of_strict = _scores(*(count.total() for count in _counts(*strict)))
    found |= {f"strict_{name}": value for name, value in of_strict.items()}
    for type, of_type in of_types.items():
        found |= {f"{name}/{type}": value for name, value in of_type.items()}
    return found


def _counts(true: list[list[Entity]], predicted: list[list[Entity]]) -> list[Counter[str]]:
    """Numbers of entities that are true, predicted, and both, by type."""
    a, b = (
        {(n, one) for n, found in enumerate(side) for one in found} for side in (true, predicted)
    )
    return [Counter(entity.type for _, entity in each) for each in (a, b, a & b)]


def _scores(true: int, predicted: int, both: int) -> dict[str, float]:
    """Precision, recall and F1 of entities, 0 where they are undefined."""
    f1 = 2 * both / max(true + predicted, 1)
    return {"precision": both / max(predicted, 1), "recall": both / max(true, 1), "f1": f1}
