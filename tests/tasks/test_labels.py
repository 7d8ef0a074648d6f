"""Labels of sentence classification: found, encoded, decoded, saved, and refused."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from official_bert.tasks import glue, labels
from official_bert.tasks.labels import Classes, LabelSets, Numbers
from official_bert.tasks.tables import Examples


def examples(texts, path="dev.tsv"):
    count = len(texts or [""])
    lines = range(2, 2 + count)
    return Examples(path, lines, ["x"] * count, None, texts, [str(line) for line in lines])


def test_classes_are_found_in_an_order_that_does_not_depend_on_the_rows():
    assert labels.find_classes(examples(["b", "a", " b", "c"])).names == ("a", "b", "c")
    assert labels.find_classes(examples(["10", "9", "-1"])).names == ("-1", "9", "10")
    assert labels.find_classes(examples(["10", "9", "x"])).names == ("10", "9", "x")
    assert labels.find_classes(examples(["猫", "犬"])).names == ("犬", "猫")


def test_numbers_of_one_value_are_one_class_and_what_is_merged_is_said(capsys):
    found = labels.find_classes(examples(["0", "1.0", "0.0", "1.0", "+0"]))
    assert found.names == ("0", "1.0")  # one spelling stays as it is
    assert found.encode(examples(["1", "0.00", "1.0", "-0"])).tolist() == [1, 0, 1, 0]
    said = "warning: dev.tsv: the labels '0', '0.0', '+0' are one number, and one class: '0'.\n"
    assert capsys.readouterr().err == said
    assert labels.find_classes(examples(["007", "7", "7"])).names == ("007", "7")  # codes


def test_names_that_differ_in_case_or_hyphens_alone_are_pointed_out(capsys):
    found = labels.find_classes(examples(["Not-Spam", "spam", "not spam", "spam"]))
    assert found.names == ("Not-Spam", "not spam", "spam")
    said = capsys.readouterr().err
    assert "the labels 'Not-Spam', 'not spam' are different classes; if they are one" in said
    assert found.encode(examples(["SPAM", "not spam"])).tolist() == [2, 1]
    with pytest.raises(
        ValueError, match="labels must be among the classes of training, .*; got 'NOT SPAM'"
    ):
        found.encode(examples(["NOT SPAM"]))  # either one


def test_labels_that_hardly_repeat_are_pointed_out(capsys):
    labels.find_classes(examples([f"row {n}" for n in range(30)]))
    assert "30 of 30 rows have a label of their own; is it the right" in capsys.readouterr().err


@pytest.mark.parametrize(
    "numbers",
    [
        [n / 10 for n in range(44)],
        ["0.5", "1.5", "0.5"],
        ["1e-3", "2"],
        range(1950, 2020),
        [3 * n for n in range(30)],
    ],
)
def test_columns_of_measurements_are_asked_about(numbers, capsys):
    given = examples([str(number) for number in numbers])
    count = len({*given.labels})
    reason = (
        rf"^label_type must be given for dev.tsv; got {count} different numbers as labels, from .*"
        r" --label_type=number to predict numbers \(regression\), or --label_type=class if"
    )
    with pytest.raises(ValueError, match=reason):
        labels.find_classes(given)
    assert len(labels.find_classes(given, numbers_are_classes=True).names) == count


@pytest.mark.parametrize(
    "numbers",
    [
        range(77),
        range(1, 78),
        ["1", "2", "3", "4", "5"],
        ["0.0", "1.0"],
        ["-1", "1"],
        ["7", "x1.5"],
    ],
)
def test_numbers_that_are_counted_through_are_classes(numbers):
    given = examples([str(number) for number in numbers])
    assert len(labels.find_classes(given).names) == len(numbers)


@pytest.mark.parametrize(
    ("ours", "theirs", "synonyms", "order"),
    [
        (("a", "b", "c"), ["C", "a", "B"], (), [1, 2, 0]),
        (("not_entailment", "entailment"), ["Entailment", "Not-Entailment"], (), [1, 0]),
        (("0", "1"), ["LABEL_0", "LABEL_1"], (), [0, 1]),
        (("0", "1"), ["positive", "Negative"], (("negative",), ("positive",)), [1, 0]),
        (("a", "b", "c"), ["LABEL_0", "LABEL_1", "LABEL_2"], (), None),
        (("a", "b"), ["a", "x"], (), None),
        (("a", "b"), ["b", "B"], (), None),
        (("0", "1"), ["0", "negative"], (("negative",), ()), None),
    ],
)
def test_the_order_of_classes_from_elsewhere_is_told_by_their_names(ours, theirs, synonyms, order):
    assert labels.order_by_name(ours, theirs, synonyms) == order


def test_every_synonym_of_a_task_means_one_of_its_classes():
    for task in glue.TASKS:
        if isinstance(task.labels, Classes):
            also = [name for others in task.synonyms for name in others]
            named = {*map(labels.comparable, (*also, *task.labels.names))}
            assert len(task.synonyms) == len(task.labels.names)
            assert len(named) == len(also) + len(task.labels.names), task.name


def test_classes_become_their_numbers_and_back():
    classes = Classes(("no", "yes"))
    encoded = classes.encode(examples(["yes", "no", "yes "]))
    assert encoded.dtype == np.int32
    assert encoded.tolist() == [1, 0, 1]
    assert classes.decode(encoded) == ["yes", "no", "yes"]


def test_numbers_are_float32_and_predictions_are_clipped_to_the_scale():
    encoded = Numbers(0, 5).encode(examples(["0", "2.75", " 5.000"]))
    assert encoded.dtype == np.float32
    assert encoded.tolist() == [0, 2.75, 5]
    assert Numbers(0, 5).decode(np.float32([-1, 2.75, 5.2])) == ["0.0", "2.75", "5.0"]


def test_predicted_numbers_keep_every_digit_without_an_exponent():
    values = np.float32([0.1, -1e9, 2e-7, 1 / 3, 16777216])
    texts = Numbers().decode(values)
    assert np.float32(texts).tolist() == values.tolist()
    assert not any("e" in text for text in texts)
    assert texts[:2] == ["0.1", "-1000000000.0"]


def test_labels_that_training_did_not_have_are_named_with_the_first_line():
    with pytest.raises(ValueError, match=r"line 3: .*, 'no', 'yes'; got 'maybe', 'never'"):
        Classes(("no", "yes")).encode(examples(["yes", "maybe", "never", "maybe"]))


@pytest.mark.parametrize("text", ["6", "-0.1", "five", "nan", "inf", "1e39"])
def test_a_label_that_is_no_number_of_the_scale_is_refused(text):
    with pytest.raises(
        ValueError, match=r"dev.tsv, line 3: the label must be a number from 0 to 5"
    ):
        Numbers(0, 5).encode(examples(["1", text]))
    if text not in ("6", "-0.1"):
        with pytest.raises(ValueError, match=r"dev.tsv, line 2: the label must be a number;"):
            Numbers().encode(examples([text]))


@pytest.mark.parametrize("encode", [Classes(("a", "b")).encode, Numbers().encode])
def test_empty_labels_and_sets_without_labels_are_refused(encode):
    with pytest.raises(ValueError, match=r"line 2: the label must not be blank; got ' '"):
        encode(examples([" "]))
    with pytest.raises(ValueError, match="must be read with labels"):
        encode(examples(None))


def test_one_class_is_none():
    with pytest.raises(ValueError, match="at least two different labels; got only 'a'"):
        labels.find_classes(examples(["a", "a"]))
    for names in (("a",), ("a", "a")):
        with pytest.raises(ValueError, match="classes must be at least two different names"):
            Classes(names)


@pytest.mark.parametrize(
    "saved",
    [
        Classes(("nein", "ja", "猫")),
        LabelSets(("rot",)),
        LabelSets(("a|b", "猫")),
        Numbers(),
        Numbers(0.0, 5.0),
        Numbers(low=-1.5),
    ],
)
def test_saved_labels_are_loaded_as_they_were(tmp_path, saved):
    path = str(tmp_path / "labels.json")
    labels.save(saved, path)
    assert labels.load(path) == saved


def test_a_missing_file_of_labels_is_told_from_another_file(tmp_path):
    with pytest.raises(ValueError, match="must be an existing file; got none. Training on classes"):
        labels.load(str(tmp_path / "labels.json"))


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"classes": 3}', '{"labels": []}', '{"number": [1]}']
)
def test_another_file_is_not_taken_for_labels(tmp_path, content):
    path = tmp_path / "labels.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="labels.json must be the file of labels"):
        labels.load(str(path))


# Sets of labels


def test_sets_of_labels_are_found_encoded_and_decoded(capsys):
    cells = ["joy|anger", "", " anger | joy |anger", '["love", "anger"]', "[]", "|", "love"]
    found = labels.find_label_sets(examples(cells))
    assert found == LabelSets(("anger", "joy", "love"))
    encoded = found.encode(examples(cells))
    assert encoded.dtype == np.float32
    rows = [[1, 1, 0], [0, 0, 0], [1, 1, 0], [1, 0, 1], [0, 0, 0], [0, 0, 0], [0, 0, 1]]
    assert encoded.tolist() == rows
    assert found.decode(encoded - 0.5)[:4] == ["anger|joy", "", "anger|joy", "anger|love"]
    assert capsys.readouterr().out == "dev.tsv: 3 of 7 rows have no label\n"
    assert labels.find_label_sets(examples(["10|9", "[-1, 9]"])).names == ("-1", "9", "10")


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6).map(str.strip)


@given(st.lists(names.filter(bool), min_size=1, max_size=4, unique=True))
def test_a_decoded_set_is_read_as_it_was(written):
    cells = [json.dumps([name]) for name in written]
    whole = LabelSets(tuple(written)).decode(np.ones((1, len(written))))
    assert sorted(labels.split(whole[0])) == sorted(written)
    for name, cell in zip(written, cells):
        assert labels.split(cell) == [name]


@pytest.mark.parametrize("cell", ["[sad]", "['a' 'b']", '[["a"]]', "[null]", "[" * 9_999 + "]"])
def test_a_cell_in_brackets_that_is_no_list_is_refused_with_its_line(cell):
    with pytest.raises(ValueError, match=r"dev.tsv, line 3: labels must be separated by \"|\","):
        labels.find_label_sets(examples(["a", cell]))


def test_sets_without_any_label_or_with_others_than_in_training_are_refused():
    with pytest.raises(ValueError, match="dev.tsv must have at least one label; got none"):
        labels.find_label_sets(examples(["", "[]"]))
    with pytest.raises(ValueError, match=r"line 3: .*, 'a', 'b'; got 'c'\. Correct the labels"):
        LabelSets(("a", "b")).encode(examples(["a|b", "b|c"]))
    with pytest.raises(ValueError, match="must be read with labels"):
        LabelSets(("a",)).encode(examples(None))
    for wrong in (), ("a", "a"):
        with pytest.raises(ValueError, match="labels must be one or more different names"):
            LabelSets(wrong)


def test_classes_that_seem_to_be_several_labels_are_pointed_out(capsys):
    labels.find_classes(examples(["joy | anger", "joy", "anger", "joy|love"]))
    warned = "warning: dev.tsv: read as one class each: 'joy | anger'; if they are several labels,"
    assert capsys.readouterr().err == f"{warned} give --multi_label.\n"


def test_labels_that_seem_to_be_several_are_pointed_out(capsys):
    labels.find_label_sets(examples(["anger,joy", "joy", "anger", "Joy"]))
    warned = capsys.readouterr().err
    assert "warning: dev.tsv: 'anger,joy' is one label; if it is several, separate" in warned
    assert "warning: dev.tsv: the labels 'Joy', 'joy' are different classes" in warned
