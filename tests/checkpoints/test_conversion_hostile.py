"""Conversions: existing outputs, full disks and kills; missing parts; models other than BERT."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from bert_checkpoints import (
    CONFIG,
    as_tensors,
    assert_same_bytes,
    make_hugging_face,
    make_source,
    random_tensors,
    weights_of,
    write_hugging_face,
)

from official_bert.checkpoints import sources
from official_bert.convert_checkpoint import convert
from official_bert.training import checkpoints

FORMATS = ("huggingface", "tf1", "keras", "savedmodel")


# The output folder


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_full_disk_is_said_and_nothing_is_left(tmp_path, output_format):
    make_source(tmp_path / "in")
    (tmp_path / "in/vocab.txt").unlink()  # without it a SavedModel is made in a moment

    def convert_to_disk():
        convert(tmp_path / "in", tmp_path / "a/out", output_format, allow_missing_vocabulary=True)

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (1_000, 15_000):  # of the largest file that can be written
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
        try:
            with pytest.raises(OSError, match="File too large") as error:
                convert_to_disk()
            assert "out" in str(error.value)
            assert "{{" not in str(error.value)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert [p.name for p in tmp_path.iterdir()] == ["in"]
    convert_to_disk()
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["out"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_conversion_that_is_killed_leaves_nothing_that_could_be_taken_for_whole(tmp_path, number):
    make_hugging_face(tmp_path / "in")
    program = (
        "import os, sys\n"
        "from official_bert.commands import commands\n"
        "from official_bert import convert_checkpoint\n"
        "from official_bert.checkpoints import safetensors_files\n"
        "def write(path, tensors):\n"
        "    open(path, 'w').write('half')\n"
        "    os.kill(os.getpid(), number)\n"
        "safetensors_files.write = write\n"
        "number = int(sys.argv.pop())\n"
        "commands.run(convert_checkpoint.main, convert_checkpoint.Convert)\n"
    )
    flags = [f"--input={tmp_path}/in", f"--output={tmp_path}/out", "--output_format=huggingface"]
    command = [sys.executable, "-c", program, *flags, str(int(number))]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    left = {p.name for p in tmp_path.iterdir()} - {"in"}
    if number == signal.SIGKILL:
        assert done.returncode == -number
        assert len(left) == 1
        assert left.pop().startswith(".writing-out-")
    else:
        assert done.returncode == 130
        assert done.stderr == "convert_checkpoint: interrupted; nothing was written.\n"
        assert not left
    convert(tmp_path / "in", tmp_path / "out", "huggingface")
    assert {p.name for p in tmp_path.iterdir()} == {"in", "out"}


def test_what_another_conversion_is_writing_is_left_alone(tmp_path):
    make_hugging_face(tmp_path / "in")
    others = tmp_path / f".writing-out-{os.getppid()}", tmp_path / ".writing-out-mine"
    for other in others:
        other.mkdir()
    convert(tmp_path / "in", tmp_path / "out", "huggingface")
    assert all(other.is_dir() for other in others)


@pytest.mark.parametrize("output", ["in", "file", "link", "dangling", "in/vocab.txt", "file/out"])
def test_an_output_that_is_something_else_is_refused_before_anything_is_written(tmp_path, output):
    make_hugging_face(tmp_path / "in")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    before = sorted((p, p.is_file() and p.read_bytes()) for p in tmp_path.rglob("*"))
    with pytest.raises(
        ValueError, match="new folder; got .*, which exists|must be in a folder; got .* is a file"
    ):
        convert(tmp_path / "in", tmp_path / output, "huggingface")
    assert sorted((p, p.is_file() and p.read_bytes()) for p in tmp_path.rglob("*")) == before


# Parts of a model


@pytest.mark.parametrize(
    ("prefixes", "architecture", "served"),
    [
        (("bert",), "BertModel", {"sequence", "pooled"}),
        (("bert/emb", "bert/enc"), "BertModel", {"sequence"}),
        (("bert/emb", "bert/enc", "cls/pred"), "BertForMaskedLM", {"masked_lm_logits"}),
        (("bert", "cls/seq"), "BertForNextSentencePrediction", None),
        (("bert", "cls/pred"), "BertForPreTraining", {"masked_lm_logits"}),
    ],
)
def test_a_model_without_pooler_or_heads_goes_there_and_back(
    tmp_path, prefixes, architecture, served
):
    arrays = make_hugging_face(tmp_path / "in")
    arrays = {n: a for n, a in arrays.items() if n.startswith(prefixes)}
    write_hugging_face(tmp_path / "in", arrays, CONFIG)
    for there, output_format in ("tf1", "tf1"), ("hf", "huggingface"):
        with pytest.raises(ValueError, match="Give --allow_missing_heads to convert"):
            convert(tmp_path / "in", tmp_path / there, output_format)
        convert(tmp_path / "in", tmp_path / there, output_format, allow_missing_heads=True)
        assert_same_bytes(weights_of(tmp_path / there), arrays)
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert config["architectures"] == [architecture]
    (tmp_path / "in/vocab.txt").unlink()  # without it a SavedModel is made in a moment
    anyway = {"allow_missing_heads": True, "allow_missing_vocabulary": True}
    if served is None:
        with pytest.raises(ValueError, match="must have masked_lm for --output_format=savedmodel"):
            convert(tmp_path / "in", tmp_path / "served", "savedmodel", **anyway)
    else:
        convert(tmp_path / "in", tmp_path / "served", "savedmodel", **anyway)
        signatures = tf.saved_model.load(tmp_path / "served").signatures
        assert signatures["serving_default"].structured_outputs.keys() == served


@pytest.mark.parametrize("dtype", ["i4", "i1", "?"])
def test_weights_that_are_no_floating_numbers_are_refused(tmp_path, dtype):
    arrays = make_hugging_face(tmp_path / "in")
    arrays["bert/pooler/dense/kernel"] = np.ones((16, 16), dtype)
    write_hugging_face(tmp_path / "in", arrays, CONFIG)
    with pytest.raises(
        ValueError, match="bert/pooler/dense/kernel of type .* instead of floating point"
    ):
        convert(tmp_path / "in", tmp_path / "out", "tf1")


def test_copies_of_tied_weights_that_are_no_numbers_are_copies_still(tmp_path):
    arrays = make_hugging_face(tmp_path / "in")
    arrays["bert/embeddings/word_embeddings"][3, 3] = np.nan
    words = as_tensors(arrays)["bert/embeddings/word_embeddings"]
    extra = [("cls.predictions.decoder.weight", words)]
    write_hugging_face(tmp_path / "in", arrays, CONFIG, extra=extra)
    assert_same_bytes(weights_of(tmp_path / "in"), arrays)


def test_the_current_folder_is_a_folder_too(tmp_path, monkeypatch):
    arrays = make_source(tmp_path / "in")
    monkeypatch.chdir(tmp_path / "in")
    assert_same_bytes(weights_of("."), arrays)


# What is no BERT


NO_BERT = "the model is not a BERT"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "roberta"}, "model_type must be 'bert' in .*; got 'roberta'"),
        *(({"model_type": kind}, NO_BERT) for kind in ("albert", "distilbert", "xlm", "electra")),
        ({"architectures": ["RobertaForMaskedLM"]}, NO_BERT),
        ({"architectures": ["DistilBertModel"], "model_type": "bert-generation"}, NO_BERT),
        ({"position_embedding_type": "relative_key"}, NO_BERT),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps must be 1e-12 .*; got 1e-05"),
        ({"hidden_act": "silu"}, "hidden_act must be one of"),
        ({"hidden_size": 10**400}, "hidden_size must be"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be"),
    ],
)
def test_another_model_than_bert_is_refused_by_its_configuration(tmp_path, values, message):
    make_hugging_face(tmp_path / "in")
    config = json.loads(CONFIG.to_json()) | values
    (tmp_path / "in/config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message) as error:
        convert(tmp_path / "in", tmp_path / "out", "tf1")
    if message == NO_BERT:
        assert str([*values.values()][-1]) in str(error.value)


def test_variables_of_another_model_are_named(tmp_path):
    make_source(tmp_path / "in")
    arrays = {
        name.replace("bert/", "electra/"): array for name, array in random_tensors(CONFIG).items()
    }
    checkpoints.write_bundle(tmp_path / "in/bert_model.ckpt", arrays)
    with pytest.raises(
        ValueError,
        match="must contain the variables of a BERT encoder; got .* with electra/embeddings",
    ):
        convert(tmp_path / "in", tmp_path / "out", "tf1")


def test_names_that_anyone_may_have_chosen_are_fit_for_a_terminal(tmp_path):
    arrays = make_source(tmp_path / "in")
    arrays |= {"a" * 9_000: np.zeros(1), "\x1b[2J\n\u202e": np.zeros(1)}
    checkpoints.write_bundle(tmp_path / "in/bert_model.ckpt", arrays)
    with pytest.raises(ValueError, match="left over") as error:
        convert(tmp_path / "in", tmp_path / "out", "tf1")
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 1_000


# Configuration next to the weights


def test_of_two_configurations_that_of_the_dialect_counts(tmp_path):
    """Released folders hold both, and "gelu" is the exact function in one of them only."""
    values = json.loads(CONFIG.to_json())
    for kind, make in ("tf1", make_source), ("hf", make_hugging_face):
        make(tmp_path / kind)
        config = values | {"model_type": "bert", "hidden_act": "gelu"}
        (tmp_path / kind / "config.json").write_text(json.dumps(config))
    assert sources.open_checkpoint(tmp_path / "hf").config.hidden_act == "gelu_erf"
    assert sources.open_checkpoint(tmp_path / "tf1").config.hidden_act == "gelu"


# Pickles


def test_the_command_for_pickles_in_several_files_names_them_all(tmp_path):
    make_hugging_face(tmp_path / "in")
    (tmp_path / "in/model.safetensors").unlink()
    for name in ("-00001-of-00002.bin", "-00002-of-00002.bin", ".bin.index.json"):
        (tmp_path / f"in/pytorch_model{name}").write_bytes(b"")
    with pytest.raises(ValueError, match="must be safetensors; got a pickle") as error:
        sources.open_checkpoint(tmp_path / "in")
    command = str(error.value).partition("run: ")[2]
    assert command.count("-of-00002.bin") == 2
    assert ".json" not in command


def test_a_pickle_is_never_loaded_whatever_it_is_called(tmp_path):
    trap = b"cos\nsystem\n(S'touch %b'\ntR." % str(tmp_path / "run").encode()
    for name in ("pytorch_model.bin", "model.safetensors", "model.keras", "bert_model.ckpt.index"):
        make_source(tmp_path / name / "in")
        for file in (tmp_path / name / "in").glob("bert_model*"):
            file.unlink()
        (tmp_path / name / "in" / name).write_bytes(trap)
        with pytest.raises(ValueError):  # noqa: PT011, each in its own words
            convert(tmp_path / name / "in", tmp_path / "out", "huggingface")
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "out").exists()
