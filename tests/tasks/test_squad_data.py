"""Reading SQuAD's files: what is in them, what is mended, what is refused."""

import json
import lzma
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
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
        ("[]", "a.json must contain questions; got none. Give SQuAD's JSON"),
        ("{}", "a.json: 'data' must be a list; got none"),
        ('{"data": []}', "must contain questions"),
        ('{"data": [{"paragraphs": [3]}]}', r"paragraphs\[0\] must be an object with .*; got 3"),
    ],
)
def test_what_is_no_squad_file_is_refused(tmp_path, text, message):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        squad_data.read(str(tmp_path / "a.json"))


@pytest.mark.parametrize("field", ["id", "question", "context", "answers"])
@pytest.mark.parametrize("layout", ["official", "flat"])
def test_a_field_that_is_given_twice_is_refused(tmp_path, layout, field):
    fields = {"id": "1", "question": "Past what?", "context": CONTEXT, "answers": []}
    if layout == "official":
        paragraph = {"context": fields.pop("context"), "qas": [fields]}
        text = json.dumps({"data": [{"paragraphs": [paragraph]}]})
    else:
        text = json.dumps(fields)
    name = f'"{field}": '
    path = tmp_path / "a.json"
    path.write_text(text.replace(name, f"{name}null, {name}"))
    with pytest.raises(ValueError, match=f"must have one field '{field}'; got several"):
        squad_data.read(str(path))


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
    for name in "nowhere.json", "nowhere.parquet":
        with pytest.raises(ValueError, match=name):
            squad_data.read(str(tmp_path / name))
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


# The flat layout


def flat_rows(path):
    """The rows of `datasets` for the questions of an official file."""
    return [
        {
            "id": question["id"],
            "title": article["title"],
            "context": paragraph["context"],
            "question": question["question"],
            "answers": {
                name: [answer[name] for answer in question["answers"]]
                for name in ("text", "answer_start")
            },
        }
        for article in json.loads(Path(path).read_text())["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


def write_flat(path, rows):
    """Writes rows in the form that the name says."""
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif path.name == "list.json":
        path.write_text(json.dumps(rows, ensure_ascii=False))
    elif path.name == "data.json":
        path.write_text(json.dumps({"version": "1", "data": rows}, indent=1))
    else:
        start = pa.list_(pa.int32())
        answers = pa.struct([("text", pa.list_(pa.string())), ("answer_start", start)])
        columns = {n: [row[n] for row in rows] for n in rows[0] if n != "answers"}
        column = pa.array([row.get("answers") for row in rows], answers)
        table = pa.table(columns | {"answers": column})
        if path.suffix == ".parquet":
            pq.write_table(table, path, row_group_size=3)
        else:
            path.mkdir()
            with pa.ipc.new_stream(str(path / "data-0.arrow"), table.schema) as writer:
                writer.write_table(table, max_chunksize=3)
            state = {"_data_files": [{"filename": "data-0.arrow"}]}
            (path / "state.json").write_text(json.dumps(state))
    return str(path)


FORMS = "rows.jsonl", "list.json", "data.json", "rows.parquet", "saved"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["train", "train_2", "new"])
def test_both_layouts_give_the_same_questions(small_questions, tmp_path, form, name):
    official = str(small_questions.folder / f"{name}.json")
    flat = write_flat(tmp_path / form, flat_rows(official))
    assert squad_data.read(flat) == squad_data.read(official)


def test_a_single_line_answers_in_a_list_and_rows_without_answers_are_read(tmp_path):
    row = {"id": "1", "context": CONTEXT, "question": "What?"}
    expected = squad_data.read(
        write_squad(tmp_path / "a.json", (CONTEXT, [qa("1", MILL)]))
    ).questions[0]
    (tmp_path / "b.json").write_text(
        json.dumps(row | {"answers": [{"text": MILL[0], "answer_start": MILL[1]}]})
    )
    (found,) = squad_data.read(str(tmp_path / "b.json")).questions
    assert found == expected._replace(text="What?")
    other = row | {"id": "2", "answers": {"text": [MILL[0]], "answer_start": [MILL[1]]}}
    path = write_flat(tmp_path / "c.jsonl", [row | {"id": 1}, other | {"id": 2}])
    read = squad_data.read(path)
    assert [question.id for question in read.questions] == ["1", "2"]
    assert [question.answers for question in read.questions] == [(), (Answer(*MILL),)]
    assert not read.version_2


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "empty",
    [None, *({"text": t, "answer_start": [-1] * len(t)} for t in ([], [""], [" ", "\n"]))],
)
def test_without_answers_a_question_is_unanswerable_where_others_have_some(tmp_path, form, empty):
    row = {"id": "1", "context": CONTEXT, "question": "What?", "answers": empty}
    other = row | {"id": "2", "answers": {"text": [MILL[0]], "answer_start": [MILL[1]]}}
    (tmp_path / "labelled").mkdir()
    read = squad_data.read(write_flat(tmp_path / "labelled" / form, [row, other]))
    assert [question.is_impossible for question in read.questions] == [True, False]
    assert [question.answers for question in read.questions] == [(), (Answer(*MILL),)]
    assert read.version_2
    unlabelled = squad_data.read(write_flat(tmp_path / form, [row, row | {"id": "2"}]))
    assert not any(question.is_impossible for question in unlabelled.questions)
    assert not unlabelled.version_2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": {"text": ["a"], "answer_start": []}}, "for each text; got 1 texts and 0"),
        ({"answers": {"text": ["a"]}}, r"line 2.answers: 'answer_start' must be a list; got none"),
        ({"answers": {"text": [7], "answer_start": [0]}}, r"answers\[0\]: 'text' must be a text"),
        ({"answers": {"text": ["a"], "answer_start": [0.5]}}, "must be a whole number; got 0.5"),
        ({"answers": "a"}, "'answers' must be a list; got"),
        ({"answers": 5}, "'answers' must be a list; got 5. Correct it, or remove the question"),
        ({"answers": [""]}, r"answers\[0\] must be an object with 'answer_start'; got \"\"\. Give"),
        ({"context": None}, "line 2: 'context' must be a text; got null"),
        ({"id": "1"}, "the id of a question must be unique; got '1', as for .*line 1"),
        ({"question": "\ud800"}, "line 2: 'question' must be valid Unicode"),
    ],
)
def test_a_damaged_row_is_refused_by_its_line(tmp_path, change, message):
    row = {"id": "1", "context": CONTEXT, "question": "What?"}
    path = write_flat(tmp_path / "a.jsonl", [row, row | {"id": "2"} | change])
    with pytest.raises(ValueError, match=message):
        squad_data.read(path)


@pytest.mark.parametrize("text", ['{"idx": 1, "passage": "a"}', '{"rows": []}', '[{"id": "1"}]'])
def test_other_fields_are_named_with_what_to_give(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    given = re.escape("Give SQuAD's JSON, or rows of questions with id, context, question and")
    with pytest.raises(ValueError, match=rf"got none among the fields \[.*\]\. {given}"):
        squad_data.read(str(path))


def test_a_column_that_is_no_answer_or_no_text_is_refused(tmp_path):
    columns = {"id": ["1"], "context": [CONTEXT], "question": ["What?"]}
    for change, message in (
        ({"answers": [["a"]]}, "must have one column 'answers.text'; got none"),
        ({"question": [None]}, "row 1 must have text in 'question'; got null"),
        ({"id": [0.5]}, "row 1: 'id' must be a text; got 0.5"),
    ):
        pq.write_table(pa.table(columns | change), tmp_path / "a.parquet")
        with pytest.raises(ValueError, match=message):
            squad_data.read(str(tmp_path / "a.parquet"))
