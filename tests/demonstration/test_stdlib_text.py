"""The text that comes with Python: prose, without markup, and no paragraph twice."""

import ast
import sys

import pytest

from official_bert.demonstration import stdlib_text


@pytest.fixture(scope="module")
def made():
    """The documents, and the modules that making them imported."""
    before = set(sys.modules)
    return list(stdlib_text.documents()), set(sys.modules) - before


@pytest.fixture(scope="module")
def documents(made):
    return made[0]


def test_there_is_enough_text_to_train_on(documents):
    paragraphs = [paragraph for _, lines in documents for paragraph in lines]
    assert len(documents) > 300
    assert sum(map(len, paragraphs)) > 1_500_000  # characters
    assert len({name for name, _ in documents}) == len(documents)


def test_paragraphs_are_prose_and_none_occurs_twice(documents):
    paragraphs = [paragraph for _, lines in documents for paragraph in lines]
    assert len(set(paragraphs)) == len(paragraphs)
    for paragraph in paragraphs:
        assert "\n" not in paragraph
        assert ">>>" not in paragraph
        assert paragraph == paragraph.strip()


def test_nothing_of_the_library_is_imported(made):
    assert {name for name in made[1] if not name.startswith("pydoc_data")} == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Return the :class:`~array.array` of ``n`` items.", "Return the array.array of n items."),
        ("The *first* one **must** be a `str` object.", "The first one must be a str object."),
        ("A word that is hyphen-\nated at its end.", "A word that is hyphen-ated at its end."),
        ("The __init__ is called by the class.", "The __init__ is called by the class."),
        *((text, None) for text in ("x = f(y)", ">>> print(1 + 2 + 3)\n6", "Too short.", "")),
        ("+---+---+---+---+", None),
    ],
)
def test_markup_is_removed_and_what_is_not_prose_left_out(text, expected):
    assert stdlib_text.prose_paragraphs(text) == ([expected] if expected else [])


def test_docstrings_and_comments_are_found_in_the_order_of_the_source():
    source = '"""One."""\n# A note\n#  on two lines\ndef f():\n    """Two."""\n    return 1  # no\n'
    ast.parse(source)
    assert stdlib_text.docstrings(source) == ["One.", "Two."]
    assert stdlib_text.comments(source) == ["A note\n on two lines\n"]
