"""SQuAD as tf-models does it, whose code descends from the official scripts: the same figures."""

import logging
from types import SimpleNamespace

import numpy as np
import peers
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_squad import DEV, needs_squad, qa, question, write_squad
from small_text import UNCASED

from official_bert.tasks import squad_data, squad_decoding, squad_evaluation, squad_features
from official_bert.tasks.squad_data import Dataset

CUT = squad_data.Windows(max_seq_length=128, doc_stride=40, max_query_length=12)
TEXTS = st.lists(
    st.sampled_from(["mill", "Mill,", "river's", "an", "24–10", "(old)", "Émile"]), max_size=4
).map(" ".join)
FILLED = TEXTS.filter(squad_evaluation.normalize)


@pytest.fixture(autouse=True)
def quiet():
    """tf-models logs every question."""
    logging.getLogger("absl").setLevel(logging.ERROR)


def as_file(dataset):
    """Questions in the form of the file's `data`."""
    paragraphs = [
        {"qas": [{"id": q.id, "answers": [{"text": text} for text, _ in q.answers]}]}
        for q in dataset.questions
    ]
    return [{"paragraphs": paragraphs}]


def questions_with(answers):
    return [
        question("", *((text, 0) for text in texts), id=str(n), is_impossible=not texts)
        for n, texts in enumerate(answers)
    ]


@given(st.lists(st.tuples(st.lists(TEXTS, min_size=1, max_size=3), TEXTS), min_size=1, max_size=6))
def test_scores_of_version_1_are_those_of_tf_models(rows):
    peer = peers.module_alone("official.nlp.tools.squad_evaluate_v1_1")
    dataset = Dataset(questions_with(answers for answers, _ in rows), version_2=False)
    predictions = {str(n): text for n, (_, text) in enumerate(rows)}
    theirs = peer.evaluate(as_file(dataset), predictions)
    ours = squad_evaluation.evaluate(dataset, predictions)
    assert ours["exact_match"] == pytest.approx(100 * theirs["exact_match"])
    assert ours["f1"] == pytest.approx(100 * theirs["final_f1"])


@given(
    st.lists(
        st.tuples(st.lists(TEXTS, max_size=3), FILLED | st.just("")), min_size=1, max_size=8
    ).flatmap(lambda rows: st.tuples(st.just(rows), st.permutations(range(len(rows)))))
)
def test_scores_of_version_2_are_those_of_tf_models(drawn):
    rows, order = drawn
    peer = peers.module_alone("official.nlp.tools.squad_evaluate_v2_0")
    dataset = Dataset(questions_with(answers for answers, _ in rows), version_2=True)
    predictions = {str(n): text for n, (_, text) in enumerate(rows)}
    odds = {str(n): (1 + place) / 20 for n, place in enumerate(order)}  # no two are equal
    theirs = peer.evaluate(as_file(dataset), predictions, odds)
    ours = squad_evaluation.evaluate(dataset, predictions, odds)
    names = {"exact_match": "exact", "f1": "f1", "total": "total"}
    expected = {
        f"{part}{our_name}": theirs[f"{part}{name}"]
        for part in ("", "HasAns_", "NoAns_")
        for our_name, name in names.items()
        if f"{part}{name}" in theirs
    }
    for name in ("exact", "exact_thresh", "f1", "f1_thresh"):
        expected[f"best_{name}"] = theirs[f"final_{name}"]
    assert ours == pytest.approx(expected | {"unanswered": 0})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Questions of the real file, our windows and tf-models', which are objects."""
    peers.load("official.nlp.data.squad_lib")
    from official.nlp.data import squad_lib
    from official.nlp.tools import tokenization

    chosen = squad_data.read(str(DEV)).questions[::45]
    records = [(q.context, [qa(q.id, q.answers[0], question=q.text)]) for q in chosen]
    path = write_squad(tmp_path_factory.mktemp("squad") / "train.json", *records)
    examples = squad_lib.read_squad_examples(path, is_training=True, version_2_with_negative=False)
    windows = []
    squad_lib.convert_examples_to_features(
        examples,
        tokenization.FullTokenizer(str(UNCASED)),
        *(CUT.max_seq_length, CUT.doc_stride, CUT.max_query_length),
        is_training=True,
        output_fn=windows.append,
    )
    ours = squad_features.make_features(squad_data.read(path).questions, str(UNCASED), settings=CUT)
    return SimpleNamespace(lib=squad_lib, examples=examples, theirs=windows, ours=ours)


@needs_squad
def test_windows_answers_and_context_are_those_of_tf_models(made):
    ours = made.ours
    assert len(ours) == len(made.theirs) > 400
    assert len(made.examples) == len(ours.questions)
    batch = ours.batch(range(len(ours)))
    same_answer = 0
    for row, window in enumerate(made.theirs):
        assert batch["input_ids"][row].tolist() == window.input_ids
        assert batch["segment_ids"][row].tolist() == window.segment_ids
        assert ours.question_of[row] == window.example_index
        assert ours.sees_best(row).tolist() == list(window.token_is_max_context.values())
        positions = batch["start_positions"][row], batch["end_positions"][row]
        same_answer += positions == (window.start_position, window.end_position)
    # Theirs takes all of a word between blanks where the answer is a part of a word piece.
    assert same_answer >= 0.99 * len(ours)


@needs_squad
@pytest.mark.parametrize("version_2", [False, True])
def test_answers_and_null_odds_are_those_of_tf_models(made, version_2):
    ours, count = made.ours, len(made.ours)
    logits = np.random.default_rng(3).normal(size=(2, count, CUT.max_seq_length))
    logits = logits.astype(np.float32).astype(np.float64)
    held = np.flatnonzero(ours.positions[:, 0])
    for number in (0, 1):  # as a trained model: here and there sure, elsewhere not
        logits[number, held, ours.positions[held, number]] += np.arange(len(held)) % 9
        logits[number, :, 0] += np.arange(count) % 4
    results = [
        SimpleNamespace(unique_id=w.unique_id, start_logits=s.tolist(), end_logits=e.tolist())
        for w, s, e in zip(made.theirs, *logits)
    ]
    texts, nbest, odds = made.lib.postprocess_output(
        *(made.examples, made.theirs, results),
        n_best_size=20,
        max_answer_length=30,
        do_lower_case=True,
        version_2_with_negative=version_2,
    )
    chosen = squad_decoding.Decoding(version_2_with_negative=version_2)
    predictions = squad_decoding.decode(ours, *logits, chosen)
    same_text = same_odds = same_best = 0
    for prediction in predictions:
        theirs, first = nbest[prediction.id], prediction.candidates[0]
        assert first.score >= theirs[0]["start_logit"] + theirs[0]["end_logit"]
        same_best += first[1:3] == (theirs[0]["start_logit"], theirs[0]["end_logit"])
        same_text += " ".join(prediction.text.split()) == texts[prediction.id]
        same_odds += not version_2 or prediction.null_odds == pytest.approx(odds[prediction.id])
    assert same_best == same_odds == len(predictions)
    # Theirs takes whole words between blanks where it cannot align lower-cased text.
    assert same_text >= 0.99 * len(predictions)
