"""docs/using.md keeps its word: its Python runs, block after block, and its command."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from bert_checkpoints import CONFIG, make_source, random_tensors
from command_processes import of_page

from official_bert import convert_checkpoint
from official_bert.training import checkpoints

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/using.md").read_text()
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def make_folders():
    """What the page loads."""
    make_source(Path("google_bert"))
    make_source(Path("reviews"))
    encoder = {n: a for n, a in random_tensors(CONFIG).items() if not n.startswith("cls/")}
    head = {"output_weights": encoder["bert/pooler/dense/kernel"][:2]}
    head["output_bias"] = head["output_weights"][:, 0]
    checkpoints.write_bundle("reviews/bert_model.ckpt", encoder | head)
    convert_checkpoint.convert("reviews", "reviews_hf", "huggingface")
    squad = {f"cls/squad/{name}": array for name, array in head.items()}
    checkpoints.write_bundle("reviews/bert_model.ckpt", encoder | squad)
    convert_checkpoint.convert("reviews", "squad_hf", "huggingface")


@pytest.mark.slow
def test_every_block_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_folders()
    names = {}
    for language, block in BLOCKS:
        if language == "python":
            exec(compile(block, "docs/using.md", "exec"), names)
            continue
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(of_page(block), capture_output=True, env=environment)
        assert (done.returncode, done.stderr) == (0, b"")
    assert {answer.label for answer in names["answers"]} <= {"LABEL_0", "LABEL_1"}
    assert Path("model.keras").exists()
