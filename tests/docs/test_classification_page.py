"""docs/classification.md keeps its word: its commands run, one after the other, and its Python."""

import dataclasses
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from bert_checkpoints import CONFIG, make_source
from command_processes import of_page

from official_bert.tasks import glue

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/classification.md").read_text()
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def make_files():
    """What the page's commands read."""
    make_source(Path("google_bert"), dataclasses.replace(CONFIG, max_position_embeddings=128))
    Path("glue_data/MRPC").mkdir(parents=True)
    columns = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    for split in "train", "dev":
        rows = [f"{n % 2}\t1\t2\tThe cat sat.\tA mat{' unaffable' * (n % 2)}!" for n in range(32)]
        Path(f"glue_data/MRPC/{split}.tsv").write_text("\n".join((columns, *rows)) + "\n")
    row = "0\t1\t2\tThe cat.\tA cat."
    Path("glue_data/MRPC/test.tsv").write_text(f"index{columns[7:]}\n{row}\n")
    for name in "reviews", "reviews_dev", "new_reviews":
        rows = [f'"the cat, {"!" * n}",{n % 5 + 1}' for n in range(40)]
        Path(f"{name}.csv").write_text("\n".join(("text,stars", *rows)) + "\n")


def run(command):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(of_page(command), capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_command_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_files()
    names, said = {}, []
    for language, block in BLOCKS:
        if language == "python":
            exec(compile(block, "docs/classification.md", "exec"), names)
        else:
            said.append(run(block))
    shown = re.findall(r"^    (eval_\w+ = )[\d.]+$", PAGE, re.MULTILINE)
    assert [line for line in said[0].splitlines() if line.startswith("eval_")][: len(shown)]
    assert all(line in said[0] for line in shown)
    table = re.findall(r"^\| `([^`…]+\.\w+)` \|", PAGE, re.MULTILINE)
    assert len(table) == 5
    assert all((Path("mrpc") / name).exists() for name in table)
    assert "median" in "".join(said)
    assert len(json.loads(Path("mrpc_seeds/results.json").read_text())["runs"]) == 3
    assert len(Path("reviews/predictions.tsv").read_text().splitlines()) == 41
    assert names["answer"] in "12345"
    config = json.loads(Path("reviews_hf/config.json").read_text())
    assert list(config["id2label"].values()) == list("12345")
    predictions = Path("reviews/predictions.tsv").read_text()
    assert set(re.findall(r"\t(\d)$", predictions, re.MULTILINE)) <= set("12345")


def test_the_table_of_metrics_is_that_of_the_tasks():
    rows = re.findall(r"^\| ([A-Z][^|]+) \| (`eval_[^|]+) \|$", PAGE, re.MULTILINE)
    shown = {
        name.strip(): re.findall(r"`(eval_\w+)`", metrics)
        for names, metrics in rows
        for name in names.split(",")
    }
    assert shown == {
        task.name: [
            f"{split.replace('dev', 'eval')}_{metric}"
            for split in task.dev_splits
            for metric in task.metrics
        ]
        for task in glue.TASKS
    }
