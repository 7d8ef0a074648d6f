"""The metrics of sentence classification, compared with scikit-learn's and SciPy's."""

import json
import math

import numpy as np
import peers
import pytest

from official_bert.tasks import metrics


@pytest.mark.parametrize(
    ("classes", "share"), [(2, 0.01), (2, 0.3), (2, 0.5), (2, 0.97), (4, 0.3), (5, 0.7)]
)
@pytest.mark.parametrize("seed", range(5))
def test_metrics_of_classes_equal_scikit_learn(classes, share, seed):
    theirs = peers.load("sklearn.metrics")
    rng = np.random.default_rng(seed)
    predictions, labels = np.where(  # the last class may be never predicted, or never true
        rng.random((2, 60)) < share, rng.integers(1, classes, (2, 60)), 0
    )
    expected = {
        "accuracy": theirs.accuracy_score(labels, predictions),
        "f1_macro": theirs.f1_score(labels, predictions, average="macro"),
        "matthews_correlation": theirs.matthews_corrcoef(labels, predictions),
    }
    if classes == 2:
        expected["f1"] = theirs.f1_score(labels, predictions)
    assert metrics.compute(expected, predictions, labels) == pytest.approx(expected, abs=1e-12)


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
        precisions = [theirs.average_precision_score(*pair) for pair in zip(labels.T, logits.T)]
        expected = {"mean_average_precision": np.mean(precisions)}
        for average in "micro", "macro":
            if count > 1:
                f1 = theirs.f1_score(labels, logits > 0, average=average, zero_division=0)
            else:
                f1 = theirs.f1_score(labels[:, 0], logits[:, 0] > 0)
            expected[f"f1_{average}"] = f1
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
    expected = metrics.matthews_correlation(predictions, labels)
    found = metrics.matthews_correlation(np.tile(predictions, 200_000), np.tile(labels, 200_000))
    assert found == pytest.approx(expected)


def test_one_example_is_enough():
    assert metrics.compute(["accuracy", "f1"], [1], [1]) == {"accuracy": 1.0, "f1": 1.0}
    assert metrics.compute(["pearson"], [1.5], [2.0]) == {"pearson": 0.0}
