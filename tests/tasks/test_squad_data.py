"""Reading SQuAD's files: what is in them, what is mended, what is refused."""

import json
import lzma

import pytest
from small_squad import qa, question, write_squad

from official_bert.tasks import squad_data
from official_bert.tasks.squad_data import Answer, Counts, Question

CONTEXT = "The river runs past an old mill."
MILL = ("an old mill", 20)


def test_questions_come_in_the_order_of_the_file_with_all_their_answers(tmp_path):
    first = qa("1", MILL, ("mill", 27), question="What does it pass?")
    path = write_squad(tmp_path / "a.json", (CONTEXT, [first]), ("", [qa("2")]))
    read = squad_data.read(path)
    assert read.questions == [
        Question("1", "What does it pass?", CONTEXT, (Answer(*MILL), Answer("mill", 27)), False),
        Question("2", "the river ?", "", (), False),
    ]
    assert not read.version_2


def test_version_2_is_told_by_its_mark(tmp_path):
    questions = [qa("1", MILL, is_impossible=False), qa("2", is_impossible=True)]
    read = squad_data.read(write_squad(tmp_path / "a.json", (CONTEXT, questions)))
    assert read.version_2
    assert [question.is_impossible for question in read.questions] == [False, True]


def test_a_byte_order_mark_and_compression_change_nothing(tmp_path):
    contents = ("Zwölf Größen — 漢字", [qa("1", ("Größen", 6))])
    plain = squad_data.read(write_squad(tmp_path / "a.json", contents))
    assert squad_data.read(write_squad(tmp_path / "b.json", contents, bom=True)) == plain
    (tmp_path / "c.json.xz").write_bytes(lzma.compress((tmp_path / "b.json").read_bytes()))
    assert squad_data.read(str(tmp_path / "c.json.xz")) == plain


def test_a_question_id_that_stands_twice_is_refused_with_both_places(tmp_path):
    path = write_squad(tmp_path / "a.json", (CONTEXT, [qa("x")]), (CONTEXT, [qa("y"), qa("x")]))
    message = (
        r"a.json: data\[1\].paragraphs\[0\].qas\[1\]: the id of a question must be unique; "
        r"got 'x', as for data\[0\].paragraphs\[0\].qas\[0\]\."
    )
    with pytest.raises(ValueError, match=message):
        squad_data.read(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.json must be JSON"),
        ('{"data": [', "a.json must be JSON"),
        ("[" * 100_000, "a.json must be JSON"),
        ("[]", r"a.json must be an object with 'data'; got \[\]"),
        ("{}", "a.json: 'data' must be a list; got none"),
        ('{"data": []}', "must contain questions"),
        ('{"data": [{"paragraphs": [3]}]}', r"paragraphs\[0\] must be an object with .*; got 3"),
    ],
)
def test_what_is_no_squad_file_is_refused(tmp_path, text, message):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        squad_data.read(str(tmp_path / "a.json"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": 7}, r"qas\[0\]: 'id' must be a text; got 7"),
        ({"question": None}, "'question' must be a text; got null"),
        ({"question": "\ud800"}, "'question' must be valid Unicode; got half of a character at 0"),
        ({"answers": {}}, "'answers' must be a list; got {}"),
        ({"answers": [{"answer_start": 1}]}, r"answers\[0\]: 'text' must be a text; got none"),
        (
            {"answers": [{"text": "a", "answer_start": True}]},
            "'answer_start' must be a whole number; got true",
        ),
        ({"is_impossible": 0}, "'is_impossible' must be true or false; got 0"),
    ],
)
def test_a_damaged_question_is_refused_by_its_place(tmp_path, change, message):
    paragraph = {"context": CONTEXT, "qas": [qa("1", MILL) | change]}
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    with pytest.raises(ValueError, match=message):
        squad_data.read(str(path))


def test_a_missing_file_and_other_encodings_are_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="nowhere.json"):
        squad_data.read(str(tmp_path / "nowhere.json"))
    (tmp_path / "latin.json").write_bytes('{"data": "é"}'.encode("latin-1"))
    with pytest.raises(ValueError, match="latin.json, line 1 must be UTF-8"):
        squad_data.read(str(tmp_path / "latin.json"))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (("mill", 2), ("mill", 2)),
        (("mill", 3), ("mill", 2)),  # the offset is wrong: the nearest occurrence
        (("mill", 30), ("mill", 16)),
        (("mill", None), ("mill", 2)),
        (("mill", -1), ("mill", 2)),
        (("old mill", 0), ("old\n mill", 11)),  # other white space
        ((" ", 1), None),
        (("", 0), None),
        (("weir", 2), None),
    ],
)
def test_an_answer_is_found_where_it_stands(answer, expected):
    located = squad_data.locate(question("a mill, an old\n mill", answer))
    assert located == (expected and Answer(*expected))


def units(text):
    """How long JavaScript says that a text is."""
    return len(text.encode("utf-16-le")) // 2


def answered_twice(count):
    """A text after which "mill" stands twice, and both places as `count` counts them."""
    context = "🐈 and 𝄞: a mill, far from a mill 🐈."
    places = [context.index("mill"), context.rindex("mill")]
    return context, [("mill", count(context[:place])) for place in places]


def test_offsets_in_utf16_units_are_told_by_the_answers_of_the_whole_file(tmp_path, capsys):
    context, answers = answered_twice(units)
    plain = (CONTEXT, [qa("1", MILL)])
    right = answered_twice(len)[1]
    questions = [qa(str(n + 2), answer) for n, answer in enumerate(answers)]
    read = squad_data.read(write_squad(tmp_path / "js.json", plain, (context, questions)))
    assert [q.answers[0] for q in read.questions] == [Answer(*MILL), *(Answer(*a) for a in right)]
    said = capsys.readouterr().out
    assert "js.json: counting the positions of answers in UTF-16 units" in said
    assert "3 answers then match the context, compared with 1 when counting characters\n" in said
    _, counts = squad_data.for_training(read.questions)
    assert counts == Counts(kept=3, moved=0, left_out=0)


def test_an_answer_that_stands_at_its_character_alone_stays_there(tmp_path):
    context, by_units = answered_twice(units)
    far = "far", context.index("far")
    questions = [qa(str(n), answer) for n, answer in enumerate([*by_units, far])]
    read = squad_data.read(write_squad(tmp_path / "mixed.json", (context, questions)))
    assert read.questions[2].answers == (Answer(*far),)
    assert read.questions[0].answers == (Answer("mill", context.index("mill")),)


def test_offsets_in_characters_stay_even_if_some_are_wrong(tmp_path, capsys):
    context, right = answered_twice(len)
    wrong = answered_twice(units)[1]
    questions = [qa(str(n), answer) for n, answer in enumerate([*right, wrong[0]])]
    read = squad_data.read(write_squad(tmp_path / "a.json", (context, questions)))
    assert [q.answers[0] for q in read.questions] == [Answer(*a) for a in (*right, wrong[0])]
    assert capsys.readouterr().out == ""


def test_training_keeps_what_has_an_answer_in_the_context_and_counts_the_rest():
    right, moved = question(CONTEXT, MILL, ("mill", 27)), question(CONTEXT, ("mill", 99))
    absent = question(CONTEXT, ("weir", 3), ("dam", 3))
    second = question(CONTEXT, ("weir", 3), ("mill", 27))
    unlabelled = question(CONTEXT)
    impossible = question(CONTEXT, ("mill", 27), is_impossible=True)
    kept, counts = squad_data.for_training([right, moved, absent, second, unlabelled, impossible])
    assert [q.answers for q in kept] == [
        (Answer(*MILL),),
        (Answer("mill", 27),),
        (Answer("mill", 27),),
        (),
    ]
    assert counts == Counts(kept=4, moved=1, left_out=2)
