"""The command that scores answers: its line of JSON, its errors, and that it starts at once."""

import json
import subprocess
import sys
from pathlib import Path

import in_process
import pytest
from small_squad import qa, write_squad

from official_bert import run_squad

ROOT = Path(__file__).parents[2]
CONTEXT = "The river runs past an old mill."


@pytest.fixture
def files(tmp_path):
    """Paths of questions of both versions, predictions and null odds."""
    mill = ("old mill", 23)
    impossible = qa("2", is_impossible=True)
    paths = {
        "v1": write_squad(tmp_path / "v1.json", (CONTEXT, [qa("1", mill), qa("2", mill)])),
        "v2": write_squad(tmp_path / "v2.json", (CONTEXT, [qa("1", mill), impossible]), bom=True),
    }
    for name, values in {
        "predictions": {"1": "the old mill", "2": "mill"},
        "odds": {"1": -3, "2": 1.5},
        "nbest": {"1": [{"text": "mill"}]},
        "list": ["mill"],
        "huge": {"1": 10**400, "2": 0},
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(values))
        paths[name] = str(tmp_path / f"{name}.json")
    (tmp_path / "twice.json").write_text('{"1": "the old mill", "2": "mill", "1": "mill"}')
    paths["twice"] = str(tmp_path / "twice.json")
    return paths


@pytest.fixture
def command(capsys):
    """A function of flags that calls the command; its exit code, stdout and stderr."""

    def call(*arguments):
        return in_process.call(run_squad, run_squad.Squad, arguments), *capsys.readouterr()

    return call


def test_it_prints_one_line_of_json(files, command):
    code, said, warned = command(
        "--evaluate", f"--predict_file={files['v1']}", f"--predictions_file={files['predictions']}"
    )
    assert (code, warned) == (0, "")
    assert said.count("\n") == 1
    f1 = 100 * (1 + 2 / 3) / 2
    expected = {"exact_match": 50.0, "f1": pytest.approx(f1), "total": 2, "unanswered": 0}
    assert json.loads(said) == expected


def test_version_2_has_its_scores_and_with_null_odds_its_best_thresholds(files):
    plain = run_squad.evaluate(files["v2"], files["predictions"])
    assert (plain["HasAns_exact_match"], plain["NoAns_exact_match"]) == (100, 0)
    assert "best_f1" not in plain
    best = run_squad.evaluate(files["v2"], files["predictions"], files["odds"])
    assert plain.items() <= best.items()
    assert (best["best_f1"], best["best_f1_thresh"]) == (100, -3)


def test_a_file_without_answers_is_named_with_what_to_give(tmp_path, files, command):
    path = write_squad(tmp_path / "asked.json", (CONTEXT, [qa("1"), qa("2")]))
    code, _, error = command(
        "--evaluate", f"--predict_file={path}", f"--predictions_file={files['predictions']}"
    )
    assert code == 2
    assert error.startswith(f"run_squad: error: {path}: question '1' must have an answer to comp")
    assert "got none. Give a file with all answers" in error


SCORE = "--evaluate --predict_file={v1} --predictions_file="


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "nothing to do: give --evaluate to score --predictions_file"),
        ("--evaluate", "--predict_file and --predictions_file are required with --evaluate"),
        ("--evaluate --predict_file={v1}", "--predictions_file is required with --evaluate"),
        ("{v1}", "The arguments must be flags; got "),
        (f"{SCORE}none.json", "none.json"),
        (f"{SCORE}gs://a/b.json", "must be a path on this machine; got the address"),
        (f"{SCORE}{{list}}", "a JSON object"),
        (f"{SCORE}{{nbest}}", '\'1\' must have a text; got [{"text": "mill"}]'),
        (f"{SCORE}{{twice}}", "'1' twice. Remove one"),
        ("--evaluate --predict_file={predictions} --predictions_file={v1}", "'data'"),
        (f"{SCORE}{{predictions}} --null_odds_file={{odds}}", "version 1.1"),
        (
            "--evaluate --predict_file={v2} --predictions_file={predictions} "
            "--null_odds_file={huge}",
            "too large",
        ),
    ],
)
def test_bad_input_ends_with_one_line_and_exit_code_2(files, command, arguments, message):
    code, said, error = command(*(word.format(**files) for word in arguments.split()))
    assert (code, said) == (2, "")
    assert error.startswith("run_squad: error: ")
    assert error.count("\n") == 1
    assert message in error


def test_scoring_loads_neither_tensorflow_nor_a_tokenizer(files):
    script = (
        "import sys; from official_bert import run_squad;"
        f"run_squad.evaluate({files['v2']!r}, {files['predictions']!r}, {files['odds']!r});"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert {"tensorflow", "keras", "tokenizers"} & set(done.stdout.split()) == set()
