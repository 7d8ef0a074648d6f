"""Places of paragraphs in a search, by sorting in Python; what a table of records shows."""

import json

import numpy as np
import semantic_search
from small_squad import qa, write_squad


def test_the_place_is_that_in_a_sorted_list_and_ties_count_against_it():
    rng = np.random.default_rng(0)
    paragraphs, questions = rng.integers(-1, 2, (30, 3)), rng.integers(-1, 2, (300, 3))
    right = rng.integers(0, 30, 300)
    wanted = []
    for question, number in zip(questions, right):
        order = sorted(range(30), key=lambda n: (-(question @ paragraphs[n]), n == number))
        wanted.append(order.index(number))
    assert semantic_search.places(paragraphs, questions, right).tolist() == wanted


def test_paragraphs_are_read_once_and_tf_idf_finds_those_with_the_words(tmp_path):
    texts = ["An old mill.", "The river runs under bridges.", "Anna lives in Rome."]
    asked = ["Where does Anna live, in Rome?", "What runs under bridges?", "Who asks nothing?"]
    of_text = [[qa("1", question=asked[2])], [qa("2", question=asked[1])]]
    path = write_squad(
        tmp_path / "a.json", *zip(texts, [*of_text, [qa("3", question=asked[0])]], strict=True)
    )
    paragraphs, questions, right = semantic_search.read(path)
    assert (paragraphs, questions, right.tolist()) == (texts, asked[::-1], [0, 1, 2])
    vectors = semantic_search.vectors_of("TF-IDF", None, paragraphs, questions)
    assert semantic_search.places(*vectors, right).tolist() == [2, 0, 0]


def test_the_records_have_all_ways_by_the_same_questions():
    records = [json.loads(line) for line in semantic_search.RESULTS.read_text().splitlines()]
    assert [record["way"] for record in records] == list(semantic_search.WAYS)
    assert len({(one["data"], one["questions"], one["paragraphs"]) for one in records}) == 1
    assert all(0 <= one["recall_at_1"] <= one["recall_at_10"] <= 1 for one in records)
