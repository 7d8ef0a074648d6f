"""The pictures of a run: drawn from any log of pre-training, or refused."""

import json

import pytest
from bert_shapes import TINY

from official_bert.commands import plots
from official_bert.reporting import charts

PATHS = [
    "bert/embeddings/word_embeddings",
    *(f"bert/encoder/layer_{i}/attention/self/query/kernel" for i in range(3)),
    *(f"bert/encoder/layer_{i}/output/dense/kernel" for i in range(3)),
    "bert/encoder/layer_0/output/LayerNorm/gamma",
    "cls/predictions/transform/dense/kernel",
]


def write_log(path, steps=range(50, 501, 50), next_sentence=True, evaluations=True, paths=PATHS):
    tasks = ["masked_lm", *(["next_sentence"] if next_sentence else [])]
    with open(path, "w") as file:
        for step in steps:
            metrics = {f"{task}_loss": 8 - step / 100 for task in tasks}
            metrics |= {f"{task}_accuracy": step / 1000 for task in tasks}
            line = {"step": step, "stage": int(step > 300), **metrics}
            ratios = {"trust_ratios": dict.fromkeys(paths, 0.01 * step)}
            file.write(json.dumps({"kind": "train", **line, "learning_rate": 0.1} | ratios) + "\n")
            if evaluations and step % 250 == 0:
                line["most_frequent_token_accuracy"] = 0.05
                file.write(json.dumps({"kind": "eval", **line}) + "\n")
    return path


@pytest.mark.parametrize(
    "log",
    [
        {},
        {"next_sentence": False, "evaluations": False},
        {"steps": [50]},
        {"paths": []},
    ],
    ids=str,
)
def test_four_pictures_are_drawn(tmp_path, log):
    path = write_log(tmp_path / "log.jsonl", **log)
    pictures = plots.plot_log(path, tmp_path / "plots")
    assert [path.stem for path in pictures] == ["loss", "accuracy", "learning_rate", "trust_ratios"]
    for path in pictures:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 5000


def guessing(loss):
    """Baselines of two stages in which word frequencies get `loss`."""
    scores = {"word frequencies": loss, "neighbours": loss - 2}
    return [{name: {"loss": value, "accuracy": 0.1} for name, value in scores.items()}] * 2


def test_baselines_and_the_end_of_the_plateau_are_drawn_where_there_are_any(tmp_path):
    log = write_log(tmp_path / "log.jsonl")
    drawn = {}
    for name, baselines in {"none": None, "never": guessing(2.0), "left": guessing(6.0)}.items():
        loss, accuracy, *_ = plots.plot_log(log, tmp_path / name, baselines)
        drawn[name] = loss.read_bytes(), accuracy.read_bytes()
    assert len({loss for loss, _ in drawn.values()}) == 3
    assert drawn["none"][1] != drawn["left"][1]


def test_the_plateau_ends_at_the_first_line_that_word_frequencies_do_not_explain():
    losses = {100: 7.0, 200: 5.75, 300: None, 400: 5.69, 500: 5.0}
    train = [{"step": n, "stage": n // 400, "masked_lm_loss": x} for n, x in losses.items()]
    assert plots.PLATEAU_MARGIN == 0.3
    assert plots.plateau_end(train, guessing(6.0)) == 400
    assert plots.plateau_end(train, guessing(5.9)) == 500
    assert plots.plateau_end(train, guessing(5.0)) is None


def test_every_adapted_kernel_has_a_name_of_its_own_in_the_map():
    from official_bert.model.pretrainer import BertPretrainer

    model = BertPretrainer(TINY)
    paths = [v.path for v in model.trainable_variables]
    adapted = [p for p in paths if "LayerNorm" not in p and "bias" not in p]
    names = charts.RatioMap(adapted, [], 1, 1).names()
    assert len({*names}) == len(adapted)
    assert not [name for name in names if "/kernel" in name or "bert" in name]
    assert "seq relationship" in names  # short enough for its margin


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (None, "cannot be read"),
        ("", "must contain training lines"),
        (
            '{"kind": "train", "step": 1, "stage": 0, "loss": 1.0, "learning_rate": 0.1}\n',
            "must be a log of pre-training; .*lamb-bert report",
        ),
    ],
)
def test_a_log_without_a_line_of_pretraining_is_refused(tmp_path, lines, reason):
    if lines is not None:
        (tmp_path / "log.jsonl").write_text(lines)
    with pytest.raises(ValueError, match=reason):
        plots.plot_log(tmp_path / "log.jsonl", tmp_path)


def test_lines_with_other_kinds_of_values_are_left_out(tmp_path):
    log = write_log(tmp_path / "log.jsonl")
    whole = log.read_text()
    wrong = {"kind": "train", "step": 550, "masked_lm_loss": [1.0], "stage": 0}
    log.write_text(whole + json.dumps(wrong) + '\n{"kind": "tr\n[]\n')
    damaged = [path.read_bytes() for path in plots.plot_log(log, tmp_path)]
    log.write_text(whole)
    assert [path.read_bytes() for path in plots.plot_log(log, tmp_path)] == damaged
