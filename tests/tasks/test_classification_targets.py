"""Weights of classes: balanced as scikit-learn does, given as a table, and refused."""

import json

import numpy as np
import peers
import pytest

from official_bert.tasks.classification_targets import class_weights
from official_bert.tasks.labels import Classes, LabelSets, Numbers
from official_bert.tasks.tables import Examples

CLASSES = Classes(("ham", "maybe", "spam"))


def examples(*texts):
    return Examples("train.tsv", range(2, 2 + len(texts)), ["x"] * len(texts), None, texts, texts)


def test_balanced_weights_are_those_of_scikit_learn():
    theirs = peers.load("sklearn.utils.class_weight")
    texts = ["ham"] * 7 + ["spam"] * 2 + ["Maybe"]
    expected = theirs.compute_class_weight("balanced", classes=np.arange(3), y=[0] * 7 + [2, 2, 1])
    assert class_weights("balanced", CLASSES, examples(*texts)) == pytest.approx(expected.tolist())


def test_a_table_is_given_as_text_or_as_a_file(tmp_path):
    table = {"spam": 5, "ham": 1, "maybe": 0.25}
    (tmp_path / "w.json").write_text(json.dumps(table), encoding="utf-8-sig")
    for given in json.dumps(table), f" {json.dumps(table)}", str(tmp_path / "w.json"):
        assert class_weights(given, CLASSES, examples("ham")) == (1.0, 0.25, 5.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("balanced", "train.tsv must have examples of each class to balance them; got none of 'm"),
        ("equal", r"must be balanced, a JSON object such as .*; got \'equal\' \(.*No such file"),
        ("{", "must be balanced, a JSON object"),
        ('{"ham": 1, "maybe": 1, "spam": 1, "ham": 9}', r"\(the name 'ham' is given twice\)"),
        ('{"ham": NaN}', r"\(NaN is no number of JSON\)"),
        ("{}", "a weight for each of 'ham', 'maybe', 'spam' and no other; got none"),
        ('{"ham": 1, "maybe": 1, "spam": 1, "Spam": 2}', "and no other; got 'ham', .*'Spam'"),
        *[
            (f'{{"ham": 1, "maybe": 1, "spam": {weight}}}', "numbers from 1e-06 to 1e.06; got")
            for weight in ("0", "-1", "true", "1e7", '"2"', "null", "[1]")
        ],
    ],
)
def test_weights_that_no_loss_can_have_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        class_weights(given, CLASSES, examples("ham", "spam"))


@pytest.mark.parametrize("labels", [Numbers(0, 5), LabelSets(("a", "b"))])
def test_only_classes_have_weights(labels):
    with pytest.raises(ValueError, match="class_weights must be left out with .*; got 'balanced'"):
        class_weights("balanced", labels, examples("1"))
