"""Windows that a model reads: their pieces, their place in the text, where the answer is."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import peers
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_squad import DEV, WORDS, needs_squad, question, write_vocabulary
from small_text import UNCASED

from official_bert.data import tokenization
from official_bert.tasks import squad_data
from official_bert.tasks.squad_data import Windows
from official_bert.tasks.squad_features import make_features

PAD, CLS, SEP = map(tokenization.SPECIAL_TOKENS.index, ("[PAD]", "[CLS]", "[SEP]"))
SMALL = Windows(max_seq_length=12, doc_stride=3, max_query_length=4)
CONTEXT = "The river runs past an old mill and under bridges to the mill."


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory) -> str:
    return write_vocabulary(tmp_path_factory.mktemp("vocabulary"))


def tokens(features, row, vocab_file) -> list[str]:
    vocabulary = list(tokenization.read_vocabulary(vocab_file))
    batch = features.batch([row])
    ids = batch["input_ids"][0, : batch["input_mask"].sum()]
    return [vocabulary[i] for i in ids]


def answers(features) -> list[str | None]:
    """The text between the answer positions of each window, cut from the context."""
    found = []
    for row in range(len(features)):
        batch = features.batch([row])
        positions = batch["start_positions"], batch["end_positions"]
        if positions == (0, 0):
            found.append(None)
            continue
        start, stop = features.characters(np.array([row]), *positions)[0]
        found.append(features.questions[features.question_of[row]].context[start:stop])
    return found


def character_spans(features, row) -> list[list[int]]:
    """The characters of the context that each piece of a window covers."""
    pieces = features.context_position(row) + np.arange(features.windows[row, 1])
    return features.characters(np.full(len(pieces), row), pieces, pieces).tolist()


def test_a_row_is_question_and_window_between_separators(vocab_file):
    features = make_features([question(CONTEXT)], vocab_file, settings=SMALL)
    assert [tokens(features, row, vocab_file)[5:-1] for row in range(len(features))] == [
        ["the", "river", "runs", "past", "an", "old"],
        ["past", "an", "old", "mill", "and", "under"],
        ["mill", "and", "under", "bridges", "to", "the"],
        ["bridges", "to", "the", "mill", "."],
    ]
    batch = features.batch(range(4))
    for name in ("input_ids", "input_mask", "segment_ids"):
        assert batch[name].shape == (4, 12)
        assert batch[name].dtype == np.int32
    assert batch["input_ids"][3, [0, 4, 10, 11]].tolist() == [CLS, SEP, SEP, PAD]
    assert batch["input_mask"][3].tolist() == [1] * 11 + [0]
    assert batch["segment_ids"][3].tolist() == [0] * 5 + [1] * 6 + [0]


def test_windows_without_the_whole_answer_point_to_cls(vocab_file):
    old_mill = question(CONTEXT, ("old mill", CONTEXT.index("old mill")))
    features = make_features([old_mill], vocab_file, settings=SMALL)
    assert answers(features) == [None, "old mill", None, None]  # of the first it holds "old"
    long = question(CONTEXT, ("river runs past an old mill and", 4))
    assert answers(make_features([long], vocab_file, settings=SMALL)) == [None] * 4


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (("mill", 99), "mill"),  # a wrong offset
        (("iver ru", 5), "river runs"),  # whole pieces
        (("weir", 4), None),  # not in the context
        ((" ", 3), None),
    ],
)
def test_answers_with_wrong_offsets_are_found_and_absent_ones_are_not(vocab_file, answer, expected):
    settings = dataclasses.replace(SMALL, max_seq_length=30)
    features = make_features([question(CONTEXT, answer)], vocab_file, settings=settings)
    assert answers(features) == [expected]


def test_unanswerable_questions_point_to_cls_whatever_is_plausible(vocab_file):
    impossible = question(CONTEXT, ("old", 23), is_impossible=True)
    assert set(answers(make_features([impossible], vocab_file, settings=SMALL))) == {None}


@pytest.mark.parametrize("context", ["", " \n", "\u200b"])
def test_a_context_without_pieces_has_one_window(vocab_file, context):
    features = make_features([question(context, ("a", 0))], vocab_file, settings=SMALL)
    assert tokens(features, 0, vocab_file) == ["[CLS]", "the", "river", "?", "[SEP]", "[SEP]"]
    assert answers(features) == [None]
    assert character_spans(features, 0) == []
    assert features.sees_best(0).shape == (0,)


def test_of_a_long_question_the_first_pieces_are_kept(vocab_file):
    long = question("the mill", text="the river runs past the old mill ?")
    features = make_features([long], vocab_file, settings=SMALL)
    expected = ["[CLS]", "the", "river", "runs", "past", "[SEP]", "the", "mill", "[SEP]"]
    assert tokens(features, 0, vocab_file) == expected


def test_no_question_has_no_window(vocab_file):
    features = make_features([], vocab_file)
    assert len(features) == 0
    assert features.batch([])["input_ids"].shape == (0, 384)


def test_a_cased_vocabulary_with_lower_casing_is_refused(tmp_path):
    cased = write_vocabulary(tmp_path, "River", "R")
    with pytest.raises(ValueError, match="cased vocabulary; got .* with 'R.*do_lower_case=false"):
        make_features([question(CONTEXT)], cased)
    features = make_features([question("River river")], cased, do_lower_case=False)
    assert tokens(features, 0, cased)[-3:-1] == ["River", "river"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"doc_stride": 0}, "doc_stride must be at least 1; got 0"),
        ({"max_query_length": 0}, "max_query_length must be at least 1; got 0"),
        (
            {"max_seq_length": 67},
            r"max_seq_length must be at least 68, for max_query_length .*; got 67",
        ),
    ],
)
def test_settings_that_leave_no_room_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Windows(**settings)


def test_text_in_other_scripts_is_cut_where_it_stands(tmp_path):
    vocab_file = write_vocabulary(tmp_path, "漢", "字", "ᄒ", "##ᅡ", "##ᆫ", "e", "##te")
    context = "👍🏽 漢字漢 한 e\u0301te\u0301."
    for text in ("字", "漢字", "한", "e\u0301te\u0301"):
        answer = (text, context.index(text))
        assert answers(make_features([question(context, answer)], vocab_file)) == [text]


def rows(features) -> list[dict]:
    batch = features.batch(range(len(features)))
    return [
        {name: values[n].tolist() for name, values in batch.items()}
        | {"spans": character_spans(features, n), "sees_best": features.sees_best(n).tolist()}
        for n in range(len(features))
    ]


QUESTIONS = st.lists(
    st.builds(
        lambda context, query, first: question(
            " ".join(context), (" ".join(context[first : first + 2]), 0), text=" ".join(query)
        ),
        st.lists(st.sampled_from(WORDS), max_size=25),
        st.lists(st.sampled_from(WORDS), max_size=6),
        st.integers(0, 25),
    ),
    max_size=5,
)


@given(QUESTIONS, st.integers(0, 5))
def test_parts_of_the_questions_give_the_windows_of_all(vocab_file, questions, cut):
    def of(part):
        return rows(make_features(part, vocab_file, settings=SMALL))

    assert of(questions[:cut]) + of(questions[cut:]) == of(questions)


SCRIPT = """
import hashlib, sys
from official_bert.tasks import squad_data, squad_features
questions = squad_data.read(sys.argv[1]).questions[:400]
features = squad_features.make_features(questions, sys.argv[2])
batch = features.batch(range(len(features)))
arrays = [*batch.values(), *features.contexts, features.windows]
print(hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest())
"""


@needs_squad
def test_every_process_makes_the_same_features_whatever_its_threads_and_hash_seed():
    made = set()
    for threads, seed in (("false", "1"), ("true", "2")):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(DEV), str(UNCASED)],
            env={**os.environ, "TOKENIZERS_PARALLELISM": threads, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        made.add(done.stdout)
    assert len(made) == 1


@needs_squad
def test_windows_and_characters_are_those_of_hugging_face():
    transformers = peers.load("transformers")
    peer = transformers.BertTokenizer(vocab=tokenization.read_vocabulary(str(UNCASED)))
    settings = Windows(max_seq_length=128, doc_stride=40)
    questions = squad_data.read(str(DEV)).questions[::40]
    features = make_features(questions, str(UNCASED), settings=settings)
    for number, asked in enumerate(questions):
        overlap = 128 - 3 - len(peer(asked.text, add_special_tokens=False)["input_ids"]) - 40
        theirs = peer(
            asked.text,
            asked.context,
            truncation="only_second",
            max_length=128,
            stride=overlap,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            padding="max_length",
        )
        ours = range(*features.first_of[number : number + 2])
        batch = features.batch(ours)
        assert batch["input_ids"].tolist() == theirs["input_ids"]
        assert batch["segment_ids"].tolist() == theirs["token_type_ids"]
        assert batch["input_mask"].tolist() == theirs["attention_mask"]
        for row, offsets in zip(ours, theirs["offset_mapping"]):
            first = features.context_position(row)
            found = character_spans(features, row)
            assert found == [list(pair) for pair in offsets[first : first + len(found)]]


@needs_squad
def test_nearly_every_answer_is_cut_whole_from_the_real_texts():
    kept, counts = squad_data.for_training(squad_data.read(str(DEV)).questions)
    assert counts == (10_570, 0, 0)
    features = make_features(kept, str(UNCASED))
    held = np.flatnonzero(features.positions[:, 0])
    spans = features.characters(held, *features.positions[held].T)
    cut, wanted = {}, {}
    for row, (start, stop) in zip(held, spans):
        asked = kept[features.question_of[row]]
        cut[asked.id], wanted[asked.id] = asked.context[start:stop], asked.answers[0].text
    assert len(cut) >= 10_560
    assert sum(cut[i] == wanted[i] for i in cut) > 0.995 * len(cut)
