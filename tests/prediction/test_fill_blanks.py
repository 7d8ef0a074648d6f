"""The command: a sentence with the guesses below it; what it needs is found or asked for."""

import subprocess
import sys

import pytest
from bert_checkpoints import CONFIG, make_source, random_tensors

from official_bert.training import checkpoints


def fill_blanks(*arguments):
    command = [sys.executable, "-m", "official_bert.fill_blanks", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_guesses_stand_below_the_sentence(tmp_path):
    make_source(tmp_path / "model")
    done = fill_blanks(f"--model_dir={tmp_path / 'model'}", "The cat [MASK] on a [MASK].")
    assert done.returncode == 0, done.stderr
    sentence, *blanks = done.stdout.splitlines()
    assert sentence == "  The cat [MASK] on a [MASK]."
    assert len(blanks) == 2
    assert all(len(blank.split("%")) == 4 for blank in blanks)


@pytest.mark.slow
def test_a_fine_tuned_model_is_named(tmp_path):
    make_source(tmp_path / "model")
    encoder = {n: a for n, a in random_tensors(CONFIG).items() if not n.startswith("cls/")}
    head = {"output_weights": encoder["bert/pooler/dense/kernel"][:2]}
    head["output_bias"] = head["output_weights"][:, 0]
    checkpoints.write_bundle(tmp_path / "model/bert_model.ckpt", encoder | head)
    done = fill_blanks(f"--model_dir={tmp_path / 'model'}", "A [MASK].")
    assert done.returncode == 2
    assert "must have a masked-LM head; got <SentenceClassifier: one of 2 classes" in done.stderr


def test_without_a_sentence_it_shows_one():
    done = fill_blanks("--model_dir=nowhere")
    assert done.returncode == 2
    assert done.stderr.startswith("fill_blanks: error: the arguments must be sentences with blanks")
