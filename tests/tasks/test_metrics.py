"""The metrics of sentence classification beside SciPy's, and beside their definitions.

scikit-learn's are written out from its documentation: counts of examples, one by one.
"""

import json
import math

import numpy as np
import peers
import pytest

from official_bert.tasks import metrics


def counted(predictions, labels, one):
    pairs = list(zip(predictions, labels))
    return (
        sum(p == one and y == one for p, y in pairs),
        sum(p == one and y != one for p, y in pairs),
        sum(p != one and y == one for p, y in pairs),
        sum(p != one and y != one for p, y in pairs),
    )


def f1(predictions, labels, one=1):
    hits, false, missed, _ = counted(predictions, labels, one)
    precision = hits / (hits + false) if hits + false else 0.0
    recall = hits / (hits + missed) if hits + missed else 0.0
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def matthews(predictions, labels):
    hits, false, missed, rest = counted(predictions, labels, 1)
    factors = (hits + false) * (hits + missed) * (rest + false) * (rest + missed)
    return (hits * rest - false * missed) / math.sqrt(factors) if factors else 0.0


def one_hot_correlation(predictions, labels, classes):
    """Gorodkin's R_K: the covariance of indicator vectors over the root of the variances."""
    x, y = (np.eye(classes)[np.asarray(values)] for values in (predictions, labels))
    x, y = x - x.mean(0), y - y.mean(0)
    return (x * y).sum() / math.sqrt((x * x).sum() * (y * y).sum())


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.97])
@pytest.mark.parametrize("seed", range(5))
def test_metrics_of_two_classes_equal_their_definitions(share, seed):
    rng = np.random.default_rng(seed)
    predictions, labels = (rng.random((2, 60)) < share).astype(np.int32)
    found = metrics.compute(
        ["accuracy", "f1", "f1_macro", "matthews_correlation"], predictions, labels
    )
    occurring = {*predictions.tolist(), *labels.tolist()}
    assert found == pytest.approx(
        {
            "accuracy": sum(p == y for p, y in zip(predictions, labels)) / 60,
            "f1": f1(predictions, labels),
            "f1_macro": np.mean([f1(predictions, labels, one) for one in occurring]),
            "matthews_correlation": matthews(predictions, labels),
        },
        abs=1e-12,
    )


@pytest.mark.parametrize("seed", range(5))
def test_metrics_of_several_classes_equal_their_definitions(seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, 80)
    predictions = np.where(rng.random(80) < 0.6, labels, rng.integers(0, 4, 80))
    found = metrics.compute(["accuracy", "f1_macro", "matthews_correlation"], predictions, labels)
    assert found["accuracy"] == pytest.approx(np.mean(predictions == labels))
    by_class = [f1(predictions, labels, one) for one in range(5)]
    assert found["f1_macro"] == pytest.approx(np.mean(by_class))
    correlation = one_hot_correlation(predictions, labels, 5)
    assert found["matthews_correlation"] == pytest.approx(correlation)


def test_metrics_of_classes_equal_scikit_learn():
    theirs = peers.load("sklearn.metrics")
    rng = np.random.default_rng(3)
    for classes in 2, 4:
        predictions, labels = rng.integers(0, classes, (2, 100))
        found = metrics.compute(["f1_macro", "matthews_correlation"], predictions, labels)
        assert found["f1_macro"] == pytest.approx(
            theirs.f1_score(labels, predictions, average="macro")
        )
        correlation = theirs.matthews_corrcoef(labels, predictions)
        assert found["matthews_correlation"] == pytest.approx(correlation)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
@pytest.mark.filterwarnings("ignore:No positive class found:UserWarning")
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("digits", [0, 1, 9])  # with ties
def test_metrics_of_sets_of_labels_equal_scikit_learn(share, digits):
    theirs = peers.load("sklearn.metrics")
    rng = np.random.default_rng(digits)
    for rows, count in (1, 1), (40, 1), (40, 6):
        labels = (rng.random((rows, count)) < share).astype(np.float32)
        logits = (rng.normal(size=(rows, count)) + labels - 0.5).round(digits).astype(np.float32)
        found = metrics.compute(["f1_micro", "f1_macro", "mean_average_precision"], logits, labels)
        kinds = {"average": "micro", "zero_division": 0}, {"average": "macro", "zero_division": 0}
        micro, macro = (theirs.f1_score(labels, logits > 0, **kind) for kind in kinds)
        precisions = [theirs.average_precision_score(*pair) for pair in zip(labels.T, logits.T)]
        expected = {
            "f1_micro": micro if count > 1 else theirs.f1_score(labels[:, 0], logits[:, 0] > 0),
            "f1_macro": macro if count > 1 else theirs.f1_score(labels[:, 0], logits[:, 0] > 0),
            "mean_average_precision": np.mean(precisions),
        }
        assert found == pytest.approx(expected, abs=1e-12)


def test_probabilities_of_labels_do_not_overflow():
    found = metrics.sigmoid([-1e4, -1.5, 0.0, 1.5, 1e4])
    assert found == pytest.approx([0, 1 / (1 + math.exp(1.5)), 0.5, 1 / (1 + math.exp(-1.5)), 1])


@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200])
@pytest.mark.parametrize("digits", [0, 1, 12])
def test_correlations_equal_those_of_scipy_with_ties_too(digits, scale):
    stats = peers.load("scipy.stats")
    rng = np.random.default_rng(digits)
    labels = rng.uniform(0, 5, 200).round(digits)
    predictions = (labels + rng.normal(0, 1, 200)).round(digits)
    found = metrics.compute(["pearson", "spearman"], predictions * scale, labels)
    assert found["pearson"] == pytest.approx(stats.pearsonr(predictions, labels)[0], abs=1e-12)
    assert found["spearman"] == pytest.approx(stats.spearmanr(predictions, labels)[0], abs=1e-12)


def test_values_far_from_zero_keep_their_correlation():
    stats = peers.load("scipy.stats")
    rng = np.random.default_rng(1)
    labels = rng.normal(size=100)
    predictions = labels + rng.normal(size=100) + 1e6
    found = metrics.pearson(predictions, labels)
    assert found == pytest.approx(stats.pearsonr(predictions, labels)[0], abs=1e-9)
    assert metrics.pearson(labels * 3 + 7, labels) == pytest.approx(1)
    assert metrics.spearman(-np.exp(labels), labels) == pytest.approx(-1)


def test_a_correlation_with_something_constant_is_0_and_can_be_written_as_json():
    for value in (0.0, 0.1, 1e9):
        constant, others = np.full(7, value, np.float32), np.arange(7.0)
        for predictions, labels in ((constant, others), (others, constant), (constant, constant)):
            found = metrics.compute(["pearson", "spearman"], predictions, labels)
            assert found == {"pearson": 0.0, "spearman": 0.0}
            assert "NaN" not in json.dumps(found)


@pytest.mark.parametrize("constant", [0, 1])
def test_constant_classes_have_a_matthews_correlation_of_0(constant):
    predictions, labels = np.full(6, constant), np.array([0, 1, 1, 0, 1, 1])
    assert metrics.matthews_correlation(predictions, labels) == 0
    assert metrics.matthews_correlation(labels, predictions) == 0
    assert metrics.f1(np.zeros(6, int), np.zeros(6, int)) == 0
    assert metrics.f1(np.ones(6, int), labels) == pytest.approx(0.8)


def test_the_matthews_correlation_of_a_large_set_does_not_overflow():
    predictions, labels = np.array([[0, 0, 1, 1, 1, 0, 1, 0], [0, 1, 1, 1, 0, 0, 1, 1]], np.int32)
    expected = matthews(predictions.tolist(), labels.tolist())
    found = metrics.matthews_correlation(np.tile(predictions, 200_000), np.tile(labels, 200_000))
    assert found == pytest.approx(expected)


def test_one_example_is_enough():
    assert metrics.compute(["accuracy", "f1"], [1], [1]) == {"accuracy": 1.0, "f1": 1.0}
    assert metrics.compute(["pearson"], [1.5], [2.0]) == {"pearson": 0.0}
