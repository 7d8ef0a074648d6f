"""From logits to answers, against all spans of all windows written out one by one."""

import itertools
import json
import math
import re
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_squad import WORDS, question, write_vocabulary

from official_bert.tasks import squad_decoding, squad_evaluation
from official_bert.tasks.squad_data import Dataset, Windows
from official_bert.tasks.squad_decoding import Candidate, decode
from official_bert.tasks.squad_features import make_features

SMALL = Windows(max_seq_length=10, doc_stride=2, max_query_length=3)
CONTEXT = "the  river runs\tpast an old mill and under the old bridges"


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory) -> str:
    return write_vocabulary(tmp_path_factory.mktemp("vocabulary"))


def every_span(features, number, starts, ends, chosen):
    """All spans of a question: lists, for each window, of (-score, order, text, logits)."""
    context = features.questions[number].context
    words = [match.span() for match in re.finditer(r"\S+", context)]  # each is one piece
    for row in range(*features.first_of[number : number + 2]):
        (first, count), place = features.windows[row], features.context_position(row)
        spans = []
        for i, j in itertools.combinations_with_replacement(range(count), 2):
            if j - i < chosen.max_answer_length and features.sees_best(row)[i]:
                text = context[words[first + i][0] : words[first + j][1]]
                logits = float(starts[row][place + i]), float(ends[row][place + j])
                spans.append((-sum(logits), row, i, j, text, logits))
        yield sorted(spans)


def expected(features, number, starts, ends, chosen):
    """The prediction by the definition."""
    found = every_span(features, number, starts, ends, chosen)
    texts = {}
    for *_, text, logits in sorted(s for spans in found for s in spans[: chosen.n_best_size]):
        texts.setdefault(text, logits)
    best = list(texts.items())[: chosen.n_best_size]
    best_text = best[0][0] if best else ""
    if not chosen.version_2_with_negative:
        return best_text, best_text, best or [("", (0.0, 0.0))], None
    rows = range(*features.first_of[number : number + 2])
    null = min(((float(starts[row][0]), float(ends[row][0])) for row in rows), key=sum)
    odds = sum(null) - (sum(best[0][1]) if best else 0.0)
    text = best_text if odds <= chosen.null_score_diff_threshold else ""
    ranked = sorted([*best, ("", null)], key=lambda pair: -sum(pair[1]))
    kept = ranked[: chosen.n_best_size]
    return text, best_text, kept if ("", null) in kept else [*kept, ("", null)], odds


QUESTION = st.builds(
    lambda words, gap, query: question(gap.join(words), text=" ".join(query)),
    st.lists(st.sampled_from([*WORDS, "RIVER"]), max_size=18),
    st.sampled_from([" ", "  ", "\n\t"]),
    st.lists(st.sampled_from(WORDS), max_size=4),
)
CHOSEN = st.builds(
    squad_decoding.Decoding,
    version_2_with_negative=st.booleans(),
    n_best_size=st.integers(1, 6),
    max_answer_length=st.sampled_from([1, 2, 3, 20]),
    null_score_diff_threshold=st.sampled_from([-2.0, 0.0, 1.5]),
)


@given(
    questions=st.lists(QUESTION, max_size=4),
    chosen=CHOSEN,
    seed=st.integers(0, 10_000),
    levels=st.sampled_from([1, 3, 1000]),  # few levels make many equal scores
)
def test_answers_are_the_best_of_all_spans(vocab_file, questions, chosen, seed, levels):
    questions = [q._replace(id=str(n)) for n, q in enumerate(questions)]
    features = make_features(questions, vocab_file, settings=SMALL)
    draw = np.random.default_rng(seed)
    starts, ends = draw.integers(0, levels, (2, len(features), 10)).astype(np.float32) / 8
    predictions = decode(features, starts, ends, chosen)
    assert [p.id for p in predictions] == [q.id for q in questions]
    for number, (asked, prediction) in enumerate(zip(questions, predictions)):
        text, best_text, candidates, odds = expected(features, number, starts, ends, chosen)
        assert (prediction.text, prediction.best_text) == (text, best_text)
        assert [(c.text, (c.start_logit, c.end_logit)) for c in prediction.candidates] == candidates
        assert prediction.null_odds == odds
        weights = [math.exp(sum(logits)) for _, logits in candidates]
        shares = [weight / math.fsum(weights) for weight in weights]
        assert prediction.probabilities == pytest.approx(shares)
        for candidate in prediction.candidates:
            assert asked.context[candidate.start : candidate.stop] == candidate.text


def logits(features, *best, null=(0.0, 0.0)):
    """Zeros but for (row, first piece, last piece, logit of both) and [CLS]."""
    starts, ends = np.zeros((2, len(features), features.settings.max_seq_length), np.float32)
    starts[:, 0], ends[:, 0] = null
    for row, first, last, value in best:
        position = features.context_position(row)
        starts[row, position + first] = ends[row, position + last] = value
    return starts, ends


def test_the_question_and_the_padding_are_never_an_answer(vocab_file):
    """The best starts and ends of the official script may all lie there, and nothing is left."""
    features = make_features([question("the mill")], vocab_file)
    starts, ends = logits(features)
    for values in (starts, ends):
        values[:] = 50.0
        values[0, 5:7] = -50.0
        values[0, 8:] = np.nan  # nothing is known of what a model makes of padding
    for version_2 in (False, True):
        chosen = squad_decoding.Decoding(version_2_with_negative=version_2)
        (prediction,) = decode(features, starts, ends, chosen)
        spans = [c for c in prediction.candidates if c.text]
        assert sorted(c.text for c in spans) == ["mill", "the", "the mill"]
        assert prediction.text == ("" if version_2 else spans[0].text)


def test_the_best_threshold_of_the_odds_gives_the_best_score_when_decoding(vocab_file):
    """What the evaluation recommends is what --null_score_diff_threshold does."""
    draw = np.random.default_rng(5)
    questions = [
        question("old mill", *([("old mill", 0)] if n % 2 else []), is_impossible=not n % 2)
        for n in range(40)
    ]
    questions = [q._replace(id=str(n)) for n, q in enumerate(questions)]
    features = make_features(questions, vocab_file, settings=SMALL)
    starts, ends = draw.normal(size=(2, len(features), 10))
    data = Dataset(questions, True)

    def scores(threshold):
        chosen = squad_decoding.Decoding(True, null_score_diff_threshold=threshold)
        predictions = decode(features, starts, ends, chosen)
        odds = {p.id: p.null_odds for p in predictions}
        return squad_evaluation.evaluate(data, {p.id: p.text for p in predictions}, odds)

    everything = scores(1e9)
    chosen = scores(everything["best_f1_thresh"])
    assert chosen["f1"] == pytest.approx(everything["best_f1"])
    assert chosen["f1"] > everything["f1"]


@pytest.mark.parametrize("context", ["", " \u200b"])
def test_a_context_without_pieces_has_the_empty_answer(vocab_file, context):
    features = make_features([question(context)], vocab_file)
    (first,) = decode(features, *logits(features, null=(1.0, 2.0)))
    assert (first.text, first.candidates, first.probabilities) == ("", [Candidate("", 0, 0)], [1])
    chosen = squad_decoding.Decoding(version_2_with_negative=True, null_score_diff_threshold=99.0)
    (second,) = decode(features, *logits(features, null=(1.0, 2.0)), chosen)
    assert (second.text, second.candidates, second.null_odds) == ("", [Candidate("", 1, 2)], 3.0)


def test_logits_that_are_not_finite_or_of_another_shape_are_refused(vocab_file):
    features = make_features([question("the mill", id="x"), question(CONTEXT, id="y")], vocab_file)
    starts, ends = logits(features)
    with pytest.raises(ValueError, match=r"must have shape \(2, 384\).*got \(2, 9\)"):
        decode(features, starts[:, :9], ends)
    for bad in (np.nan, np.inf):
        ends[1, 6] = bad
        with pytest.raises(
            ValueError, match=f"must be finite; got {bad} for question 'y' .window 1."
        ):
            decode(features, starts, ends)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"n_best_size": 0}, "n_best_size must be at least 1; got 0"),
        ({"max_answer_length": -1}, "max_answer_length must be at least 1; got -1"),
        ({"null_score_diff_threshold": math.nan}, "must be a finite number; got nan"),
    ],
)
def test_settings_out_of_range_are_refused(chosen, message):
    with pytest.raises(ValueError, match=message):
        squad_decoding.Decoding(**chosen)


@pytest.mark.parametrize("version_2", [False, True])
def test_the_files_are_those_of_the_official_script(vocab_file, tmp_path, version_2):
    features = make_features([question("the «mill»", id="x")], vocab_file)
    chosen = squad_decoding.Decoding(version_2, n_best_size=2)
    predictions = decode(features, *logits(features, (0, 0, 0, 3.0)), chosen)
    squad_decoding.write(predictions, tmp_path)
    files = {path.name: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert files.pop("predictions.json") == {"x": "the"}
    candidates = files.pop("nbest_predictions.json")["x"]
    assert candidates[0]["text"] == "the"
    assert ("" in [c["text"] for c in candidates]) is version_2
    for candidate in candidates:
        assert list(candidate) == ["text", "probability", "start_logit", "end_logit"]
    assert files == ({"null_odds.json": {"x": -6.0}} if version_2 else {})


def test_a_thousand_windows_take_seconds(vocab_file):
    """All of SQuAD's dev set, 12 times as much, may take a minute."""
    questions = [question(" ".join(WORDS * 30), id=str(n)) for n in range(1000)]
    features = make_features(questions, vocab_file)
    starts, ends = np.random.default_rng(0).normal(size=(2, len(features), 384))
    began = time.process_time()
    decode(features, starts, ends)
    assert time.process_time() - began < 5
