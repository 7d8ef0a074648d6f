"""docs/squad.md keeps its word: its commands and its code run, and leave what it says."""

import dataclasses
import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from bert_checkpoints import CONFIG, make_source
from command_processes import of_page
from small_questions import paragraphs
from small_squad import qa, write_squad, write_vocabulary

from official_bert import run_squad

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/squad.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


def make_files():
    """What the page's commands read."""
    make_source(Path("google_bert"), dataclasses.replace(CONFIG, max_position_embeddings=384))
    Path("squad").mkdir()
    write_squad(Path("new_questions.json"), *paragraphs(range(2), labelled=False))
    Path("bert_ensemble.json").write_text('{"6-Anna": "Rome"}')
    for split, numbers in ("train", range(6)), ("dev", range(6, 9)):
        write_squad(Path(f"squad/{split}-v1.1.json"), *paragraphs(numbers))
        write_squad(Path(f"squad/{split}-v2.0.json"), *paragraphs(numbers, version_2=True))


def run(command):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(of_page(command), capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_command_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_files()
    trained, answered, converted, version_2, thresholded, scored = map(run, blocks("bash"))
    for metric in re.findall(r"^    (\w+ = )[\d.]+$", PAGE, re.M):
        assert f"\n{metric}" in trained
    assert "answered 8 questions" in answered
    assert "(encoder, pooler, question_answering)" in converted
    names = {}
    exec(blocks("python")[0], names)
    assert names["answer"].text in "Anna lives in Rome. Ben lives in Oslo."
    assert "--null_score_diff_threshold=" in version_2
    assert "best_f1 = " in thresholded
    assert json.loads(scored)["unanswered"] == 11
    table = re.findall(r"^\| (`[^`…]+\.\w+`(?:, `[^`]+`)?) \|", PAGE, re.M)
    names = [name for row in table for name in re.findall("`(.*?)`", row)]
    assert len(names) == 7
    assert all((Path("squad_2") / name).exists() for name in names)


def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    for folder in "squad", "google_bert", "output":
        (tmp_path / folder).mkdir()
    questions = [qa(str(n), ("old mill", 8)) for n in range(3)]
    write_squad(tmp_path / "squad/train-v1.1.json", ("past an old mill", questions))
    write_vocabulary(tmp_path / "google_bert")
    monkeypatch.chdir(tmp_path)
    _, features_block, answers_block = blocks("python")
    names = {}
    exec(features_block, names)
    names["start_logits"] = names["end_logits"] = np.zeros((3, 384))
    exec(answers_block, names)
    written = sorted(path.name for path in Path("output").iterdir())
    assert written == sorted(re.findall(r"\w+\.json", answers_block))


def test_the_line_of_the_page_has_the_fields_that_are_printed(tmp_path):
    path = write_squad(tmp_path / "a.json", ("past an old mill", [qa("1", ("old mill", 8))]))
    (tmp_path / "b.json").write_text('{"1": "mill"}')
    shown = json.loads(re.search(r"^    ({.*})$", PAGE, re.M)[1])
    assert list(run_squad.evaluate(path, str(tmp_path / "b.json"))) == list(shown)
