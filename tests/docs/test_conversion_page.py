"""docs/conversion.md keeps its word: every command of the page runs, and its Python after it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import peers
import pytest
from bert_checkpoints import (
    CONFIG,
    assert_same_bytes,
    make_source,
    weights_of,
    write_objects,
)
from command_processes import of_page

from official_bert.training.checkpoints import CheckpointStore

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/conversion.md").read_text()
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_every_command_of_the_page_runs(tmp_path, monkeypatch):
    for name in "torch", "transformers", "keras_hub":
        peers.load(name)
    monkeypatch.chdir(tmp_path)
    arrays = make_folders()
    names = {}
    for language, block in BLOCKS:
        if language == "python":
            exec(compile(block, "docs/conversion.md", "exec"), names)
        else:
            for line in block.splitlines():
                run(line)
    assert_same_bytes(weights_of("out/tf1"), arrays)
    assert names["answer"]["masked_lm_logits"].shape == (1, 1, CONFIG.vocab_size)
    assert len(names["tokenizer"]) == len(Path("google_bert/vocab.txt").read_text().split())
    for name in re.findall(r"`(out/[^`]+)`", PAGE):
        assert list(Path().glob(f"{name}*")), name


def make_folders():
    """What the page's commands read."""
    arrays = make_source(Path("google_bert"))
    CheckpointStore("model").save(arrays | {"global_step": np.int64(5)}, step=5, state={})
    for part in "bert_config.json", "vocab.txt":
        shutil.copy(f"google_bert/{part}", "model")
    Path("tf_models").mkdir()
    write_objects("tf_models/pretrainer-1", arrays)
    return arrays


def run(line):
    """A command of the page."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(of_page(line), capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("read      ")
    assert not done.stderr
