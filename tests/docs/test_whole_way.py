"""docs/whole_way.md keeps its word: its commands and its Python run, in order, on small data."""

import os
import re
import subprocess
import sys
from pathlib import Path

import peers
import pytest
from small_squad import qa, write_squad
from small_text import topics

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/whole_way.md").read_text()
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
TINY = """
import dataclasses

from official_bert import recipes


def tiny():
    small = recipes.small()
    stages = [dataclasses.replace(s, steps=2, warmup_steps=1, batch_size=4) for s in small.stages]
    return dataclasses.replace(small, stages=tuple(stages))
"""


def make_files():
    """What the page's commands read; its articles are a few, its recipe two updates per stage."""
    documents = [half for text in topics(100) for half in (text[::2], text[1::2])]
    articles = [
        {"id": str(n), "title": f"T{n}", "text": "\n\n".join(paragraphs)}
        for n, paragraphs in enumerate(documents)
    ]
    Path("datasets.py").write_text(f"def load_dataset(*_, **__):\n    return {articles!r}\n")
    run("python", re.search(r"^```py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1])
    Path("datasets.py").unlink()  # transformers would find it
    Path("tiny.py").write_text(TINY)
    Path("glue_data/SST-2").mkdir(parents=True)
    for split in "train", "dev":
        rows = [f"the {'string' if n % 2 else 'list'} object {'!' * n}\t{n % 2}" for n in range(80)]
        Path(f"glue_data/SST-2/{split}.tsv").write_text(
            "\n".join(("sentence\tlabel", *rows)) + "\n"
        )
    Path("squad").mkdir()
    for split in "train", "dev":
        questions = [qa(f"{split}{n}", ("the old list", 9)) for n in range(40)]
        write_squad(
            Path(f"squad/{split}-v1.1.json"), ("It shows the old list of an object.", questions)
        )


def run(language, block):
    """Runs a block in a process of its own; returns what it printed."""
    command = ["bash", "-euc", block] if language == "bash" else [sys.executable, "-c", block]
    found = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": found, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_command_of_the_page_runs_from_text_to_hugging_face(tmp_path, monkeypatch):
    peers.load("torch")
    peers.load("transformers")
    monkeypatch.chdir(tmp_path)
    make_files()
    said = [run(k, block.replace("--recipe=small", "--recipe=tiny.py:tiny")) for k, block in BLOCKS]
    everything = "\n".join(said)
    assert re.search(r"trained 6 steps", everything)
    assert "eval_accuracy" in everything
    assert "exact_match" in everything
    used, taken = said[-3], said[-1]
    assert len(used.splitlines()) == 3
    assert len(taken.splitlines()) == 2
    assert {"model_hf", "sst2_hf", "answers_hf"} <= {path.name for path in tmp_path.iterdir()}
