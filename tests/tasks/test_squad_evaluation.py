"""Scores: the official ones of published predictions; version 2.0 by hand and by brute force."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from small_squad import DEV, needs_squad, question

from official_bert.tasks import squad_data, squad_evaluation
from official_bert.tasks.squad_data import Dataset
from official_bert.tasks.squad_evaluation import evaluate

# By hand: each text with its normal form.
NORMAL = {
    "The  Denver Broncos!": "denver broncos",
    "a tale of an Ox": "tale of ox",
    "Theatre": "theatre",
    "U.S.-based": "usbased",
    "$5 million": "5 million",
    "24–10": "24–10",  # the dash is not ASCII
    "the": "",
    "«Ünïcode»": "«ünïcode»",
    "a.n": "",  # punctuation goes first
    "an\u00a0old mill": "old mill",
}


def dataset(*questions, version_2=True):
    return Dataset([q._replace(id=str(n)) for n, q in enumerate(questions)], version_2)


def answered(*texts):
    return question("", *((text, 0) for text in texts))


NOTHING = question("", is_impossible=True)
BOTH = answered("a")._replace(is_impossible=True)


@needs_squad
@pytest.mark.parametrize(
    ("name", "exact_match", "f1", "unanswered"),
    [
        ("bert_ensemble_google", 86.2062, 92.1956, 0),
        ("logistic_baseline_stanford", 40.1419, 50.9815, 13),
    ],
)
def test_published_predictions_have_their_official_scores(name, exact_match, f1, unanswered):
    predictions = squad_data.read_json(str(DEV.parent / f"predictions/{name}.json.xz"))
    scores = evaluate(squad_data.read(str(DEV)), predictions)
    assert scores == {
        "exact_match": pytest.approx(exact_match, abs=1e-4),
        "f1": pytest.approx(f1, abs=1e-4),
        "total": 10_570,
        "unanswered": unanswered,
    }


def test_texts_are_compared_without_case_punctuation_and_articles():
    assert {text: squad_evaluation.normalize(text) for text in NORMAL} == NORMAL


@pytest.mark.parametrize(
    ("prediction", "answers", "exact_match", "f1"),
    [
        ("The Mill", ["an old mill", "mill."], 1, 1),  # the best of several
        ("old old mill", ["old mill old wheel"], 0, 2 * 3 / (3 + 4)),  # words count as often
        ("river", ["mill"], 0, 0),
        ("", ["mill"], 0, 0),
    ],
)
def test_scores_of_one_question_by_hand(prediction, answers, exact_match, f1):
    for version_2 in (False, True):
        score = squad_evaluation.score(prediction, answered(*answers), version_2)
        assert score == (exact_match, pytest.approx(f1))


def test_texts_of_which_nothing_is_left_have_an_f1_in_version_2_alone():
    for version_2, f1 in ((False, 0), (True, 1)):
        assert squad_evaluation.score("the", answered("a"), version_2) == (1, f1)
    # Version 2.0 passes over such an answer where there is another.
    assert squad_evaluation.score("the", answered("a", "mill"), version_2=True) == (0, 0)
    assert squad_evaluation.score("the", answered("a", "mill"), version_2=False) == (1, 0)


def test_version_2_by_hand():
    """Five questions: two right, one half right, one wrongly answered, one without prediction."""
    data = dataset(answered("old mill"), answered("old mill"), NOTHING, NOTHING, answered("river"))
    predictions = {"0": "the old mill", "1": "old", "2": "", "3": "river", "other": "x"}
    f1 = 2 * 1 * 0.5 / 1.5
    odds = {"0": -4.0, "1": -1.0, "2": -2.0, "3": 3.0, "4": 5.0}
    scores = evaluate(data, predictions, odds)
    assert scores == {
        "exact_match": pytest.approx(100 * 2 / 5),
        "f1": pytest.approx(100 * (2 + f1) / 5),
        "total": 5,
        "unanswered": 1,
        "HasAns_exact_match": pytest.approx(100 / 3),
        "HasAns_f1": pytest.approx(100 * (1 + f1) / 3),
        "HasAns_total": 3,
        "NoAns_exact_match": 50,
        "NoAns_f1": 50,
        "NoAns_total": 2,
        # Nothing answered: 2 right. Up to -4: 3; up to -2: 3; up to -1: 3 (F1: 3 + f1); then less.
        "best_exact": pytest.approx(60),
        "best_exact_thresh": -4.0,
        "best_f1": pytest.approx(100 * (3 + f1) / 5),
        "best_f1_thresh": -1.0,
    }


def score_at(data, predictions, odds, threshold):
    """Exact match and F1 if what lies above the threshold were left unanswered."""
    kept = {
        q.id: predictions.get(q.id, "") if odds[q.id] <= threshold else "" for q in data.questions
    }
    scores = evaluate(data, kept)
    return scores["exact_match"], scores["f1"]


ANSWERS = st.sampled_from(["", "old mill", "old", "mill", "river"])
KEYS = st.sampled_from(["none", "old mill", "river"])


@given(st.lists(st.tuples(KEYS, ANSWERS, st.integers(-2, 2)), min_size=1, max_size=8))
@example([("none", "old", -1), ("old mill", "old mill", -1), ("river", "river", 0)])
def test_best_thresholds_are_those_of_all_thresholds_tried(rows):
    data = dataset(*(NOTHING if key == "none" else answered(key) for key, _, _ in rows))
    predictions = {str(n): text for n, (_, text, _) in enumerate(rows)}
    odds = {str(n): value / 2 for n, (_, _, value) in enumerate(rows)}
    scores = evaluate(data, predictions, odds)
    thresholds = sorted({min(odds.values()) - 1, *odds.values()})
    for column, name in enumerate(("exact", "f1")):
        tried = [score_at(data, predictions, odds, t)[column] for t in thresholds]
        assert scores[f"best_{name}"] == pytest.approx(max(tried))
        at_best = score_at(data, predictions, odds, scores[f"best_{name}_thresh"])[column]
        assert at_best == pytest.approx(max(tried))


def test_where_no_answer_is_best_no_odds_are_at_the_threshold():
    for odds in (-3.0, 0.0):
        gain, threshold = squad_evaluation.best_threshold([(odds, -1.0), (7.0, 0.5)])
        assert gain == 0
        assert threshold < odds
    assert squad_evaluation.best_threshold([(0.2, -1.0)]) == (0, 0)


@given(st.permutations(range(6)))
def test_the_order_of_the_questions_changes_nothing(order):
    texts = "old mill", None, "old", None, "river", None
    questions = [answered(text) if text else NOTHING for text in texts]
    texts = ["old", "", "old", "mill", "", "the"]
    odds = [-0.5, 0.25, -0.5, 0.25, 1.0, -2.0]

    def scores(numbers):
        data = Dataset([questions[n]._replace(id=f"q{n}") for n in numbers], True)
        predictions = {f"q{n}": texts[n] for n in numbers}
        return evaluate(data, predictions, {f"q{n}": odds[n] for n in numbers})

    assert scores(order) == scores(range(6))


@pytest.mark.parametrize(
    ("questions", "version_2", "given", "message"),
    [
        ([answered()], False, [{"0": ""}], "'0' must have an answer .*; got none. Give"),
        ([answered()], True, [{"0": ""}], "with, or be marked is_impossible"),
        ([BOTH], True, [{"0": ""}], "got both, with the answer 'a'"),
        ([answered("a")], False, [{"x": ""}], "the 1 questions of the file; got 1, all for others"),
        ([answered("a")], False, [{"0": ""}, {"0": 0.0}], "left out for questions of version 1.1"),
        ([NOTHING] * 2, True, [{"0": ""}, {"0": 0.0}], "got none for 1 questions, such as '1'"),
        ([NOTHING], True, [{"0": ""}, {"0": math.nan}], "must be finite numbers; got nan for '0'"),
    ],
)
def test_what_cannot_be_scored_is_refused(questions, version_2, given, message):
    with pytest.raises(ValueError, match=message):
        evaluate(dataset(*questions, version_2=version_2), *given)


def test_odds_that_are_no_number_are_refused_even_of_an_empty_id():
    data = Dataset([NOTHING._replace(id="")], True)
    with pytest.raises(ValueError, match="got nan for ''"):
        evaluate(data, {"": ""}, {"": math.nan})


def test_a_file_of_one_kind_of_questions_has_no_scores_of_the_other():
    assert "HasAns_f1" not in evaluate(dataset(NOTHING), {"0": ""})
    assert "NoAns_f1" not in evaluate(dataset(answered("a")), {"0": ""})
