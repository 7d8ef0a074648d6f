"""docs/squad.md keeps its word: its code runs, and its table names what the command prints."""

import json
import re
from pathlib import Path

import numpy as np
from small_squad import qa, write_squad, write_vocabulary

from official_bert import run_squad

PAGE = (Path(__file__).parents[1] / "docs/squad.md").read_text()


def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    questions = [qa(str(n), ("old mill", 8)) for n in range(3)]
    write_squad(tmp_path / "train-v1.1.json", ("past an old mill", questions))
    write_vocabulary(tmp_path)
    (tmp_path / "output").mkdir()
    monkeypatch.chdir(tmp_path)
    features_block, answers_block = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
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
