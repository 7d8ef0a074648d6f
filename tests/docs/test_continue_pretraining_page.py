"""docs/continue_pretraining.md keeps its word: from a folder of transformers to another."""

import os
import re
import subprocess
import sys
from pathlib import Path

import peers
import pytest
from small_text import topics

from official_bert.data import tokenization

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/continue_pretraining.md").read_text()
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
START = "google-bert/bert-base-uncased"


def make_files():
    """What the page reads: a tiny model under the name of the large one, texts, and a table."""
    torch, transformers = peers.load("torch"), peers.load("transformers")
    torch.manual_seed(0)
    texts = [paragraph for document in topics(40) for paragraph in document]
    size = tokenization.learn(texts, "learned.txt", 800)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(
        vocab_size=size, intermediate_size=64, max_position_embeddings=128, **shape
    )
    transformers.BertForPreTraining(config).save_pretrained(START)
    vocabulary = tokenization.read_vocabulary("learned.txt")
    transformers.BertTokenizer(vocab=vocabulary).save_pretrained(START)
    Path("texts").mkdir()
    documents = ("\n".join(document) for document in topics(40))
    Path("texts/topics.txt").write_text("\n\n".join(documents) + "\n")
    for name in "reviews", "reviews_dev":
        rows = [f'"the list, {"!" * n}",{n % 5 + 1}' for n in range(40)]
        Path(f"{name}.csv").write_text("\n".join(("text,stars", *rows)) + "\n")
    return vocabulary


def run(block):
    """Runs the commands of a block, with few steps; returns what they print."""
    found = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": found, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    block = block.replace("--num_steps_per_epoch=1000", "--num_steps_per_epoch=2")
    command = ["bash", "-euc", block]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_command_of_the_page_runs_from_save_pretrained_to_from_pretrained(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    vocabulary = make_files()
    names, said = {}, ""
    for language, block in BLOCKS:
        if language == "python":
            exec(compile(block, "docs/continue_pretraining.md", "exec"), names)
        else:
            assert language == "bash"
            said += run(block)
    assert not Path("bert/vocab.txt").exists()  # as transformers 5 saves it
    assert "(Hugging Face): weights: carried 46 of 46" in said
    assert "fresh: output_weights, output_bias" in said
    assert names["tokenizer"].get_vocab() == vocabulary
    model, torch = names["model"], peers.load("torch")
    before = names["transformers"].AutoModelForPreTraining.from_pretrained("bert").state_dict()
    assert model.config.hidden_act == "gelu"
    assert not any(torch.equal(model.state_dict()[name], before[name]) for name in before)
    largest = max((model.state_dict()[name] - before[name]).abs().max() for name in before)
    assert largest < 1e-3  # two steps at a low rate: it is still that model
