"""The command: a sentence with the guesses below it; what it needs is found or asked for."""

import in_process
import pytest
from model_kinds import make_kind

from official_bert.commands import fill_blanks


@pytest.fixture
def call(capsys):
    """A function of the command line that calls the command; its exit code, stdout and stderr."""

    def call(*arguments):
        code = in_process.call(fill_blanks, fill_blanks.FillBlanks, [*map(str, arguments)])
        return code, *capsys.readouterr()

    return call


def test_guesses_stand_below_the_sentence(tmp_path, call):
    make_kind("blanks", tmp_path / "model")
    code, said, error = call(f"--model_dir={tmp_path / 'model'}", "The cat [MASK] on a [MASK].")
    assert code == 0, error
    sentence, *blanks = said.splitlines()
    assert sentence == "  The cat [MASK] on a [MASK]."
    assert len(blanks) == 2
    assert all(len(blank.split("%")) == 4 for blank in blanks)


def test_a_fine_tuned_model_is_named(tmp_path, call):
    make_kind("classes", tmp_path / "model")
    code, _, error = call(f"--model_dir={tmp_path / 'model'}", "A [MASK].")
    assert code == 2
    assert "must have a masked-LM head; got <SentenceClassifier: one of 3 classes" in error


def test_without_a_sentence_it_shows_one(call):
    code, _, error = call("--model_dir=nowhere")
    assert code == 2
    assert error.startswith("fill_blanks: error: the arguments must be sentences with blanks")
