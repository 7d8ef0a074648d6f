"""Schemes of tags, their entities and scores, next to seqeval's."""

import warnings

import peers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_bert.tasks import tag_schemes
from official_bert.tasks.tag_schemes import Entity

PREFIXES = {"IOB1": "BI", "IOB2": "BI", "BIOES": "BIES"}
NAMES = {"precision": "precision", "recall": "recall", "f1": "f1-score"}


def tags_of(scheme):
    types = ("PER", "LOC", "MISC-X")
    return ["O", *(f"{prefix}-{type}" for prefix in PREFIXES[scheme] for type in types)]


@st.composite
def sentences(draw):
    """A scheme, any tags with its prefixes, and other tags for the same words."""
    scheme = draw(st.sampled_from([*PREFIXES]))
    tag = st.sampled_from(tags_of(scheme))
    pairs = st.lists(st.tuples(tag, st.none() | tag), min_size=1, max_size=9)
    drawn = draw(st.lists(pairs, min_size=1, max_size=4))
    true = [[one for one, _ in words] for words in drawn]
    return scheme, true, [[other or one for one, other in words] for words in drawn]


@settings(max_examples=300)
@given(sentences())
def test_scores_are_those_of_seqeval_by_default_and_in_its_strict_mode(drawn):
    metrics, schemes = peers.load("seqeval.metrics"), peers.load("seqeval.scheme")
    scheme, true, predicted = drawn
    ours = tag_schemes.scores(true, predicted, scheme)
    assert ours["accuracy"] == pytest.approx(metrics.accuracy_score(true, predicted))
    theirs = report(metrics, true, predicted)
    types = {name.partition("/")[2] for name in ours if "/" in name}
    assert types == {name for name in theirs if not name.endswith(" avg")}
    for our_name, name in NAMES.items():
        assert ours[our_name] == pytest.approx(theirs.get("micro avg", {}).get(name, 0))
        for type in types:
            assert ours[f"{our_name}/{type}"] == pytest.approx(theirs[type][name])
    assert ours["f1_macro"] == pytest.approx(theirs.get("macro avg", {}).get("f1-score", 0))
    kind = {"BIOES": "IOBES"}.get(scheme, scheme)
    strict = report(metrics, true, predicted, mode="strict", scheme=getattr(schemes, kind))
    for our_name, name in NAMES.items():
        expected = strict.get("micro avg", {}).get(name, 0)
        assert ours[f"strict_{our_name}"] == pytest.approx(expected)


def report(metrics, *tags, **mode):
    if {tag for side in tags for words in side for tag in words} == {"O"}:
        return {}  # means of nothing are NaN there
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scores that are undefined
        try:
            return metrics.classification_report(*tags, output_dict=True, **mode)
        except ValueError:  # theirs has no report without an entity
            return {}


@pytest.mark.parametrize("scheme", ["IOB2", "BIOES"])
@given(st.lists(st.tuples(st.sampled_from(["PER", "LOC", None]), st.integers(1, 3)), max_size=6))
def test_entities_are_spelled_and_read_again_and_their_scheme_is_recognised(scheme, parts):
    found, length = [], 0
    for type, words in parts:
        found += [Entity(type, length, length + words)] if type else []
        length += words
    tags = tag_schemes.encode(found, length, scheme)
    assert tag_schemes.entities(tags) == tag_schemes.strict_entities(tags, scheme) == found
    if found:
        assert tag_schemes.recognise([tags]) == scheme
        assert tag_schemes.scheme_of_classes({*tags}) == scheme


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        ("O O", "IOB2"),
        ("I-PER O I-PER B-PER I-LOC", "IOB1"),
        ("I-PER I-PER", "IOB1"),
        ("B-PER I-PER B-PER", "IOB2"),
        ("B-PER O I-PER", "IOB2"),  # a mistake in it
        ("S-PER O", "BIOES"),
        ("B-PER E-PER", "BIOES"),
        ("B I O", "IOB2"),
        ("NNP VBZ IN", "plain"),
        ("PER O LOC", "plain"),
    ],
)
def test_the_scheme_of_tags_is_recognised(tags, scheme):
    assert tag_schemes.recognise([tags.split()]) == scheme


@pytest.mark.parametrize("tags", ["B-PER PER", "U-PER B-PER L-PER", "I-PER b-PER"])
def test_tags_of_several_kinds_are_refused(tags):
    with pytest.raises(ValueError, match="must all be O or begin with B-, I-, E- or S-, or none"):
        tag_schemes.recognise([tags.split()])


def test_bare_prefixes_are_one_type_and_plain_tags_one_entity_a_word():
    assert tag_schemes.entities(["B", "I", "O", "I"]) == [Entity("_", 0, 2), Entity("_", 3, 4)]
    plain = tag_schemes.entities(["NN", "NN", "O"], prefixed=False)
    assert plain == [Entity("NN", 0, 1), Entity("NN", 1, 2)]
    scores = tag_schemes.scores([["NN", "VB", "NN"]], [["NN", "VB", "VB"]], "plain")
    assert scores["f1"] == scores["strict_f1"] == scores["accuracy"] == pytest.approx(2 / 3)
