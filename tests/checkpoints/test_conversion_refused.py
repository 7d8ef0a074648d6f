"""Unfit input ends in a one-line error, and nothing is written."""

import json
import shlex
import sys

import numpy as np
import peers
import pytest
from bert_checkpoints import (
    CONFIG,
    assert_same_bytes,
    make_hugging_face,
    make_source,
    weights_of,
    write_hugging_face,
    write_shards,
)

import official_bert
from official_bert.convert_checkpoint import convert
from official_bert.model.pretrainer import BertPretrainer
from official_bert.training import checkpoints, model_state


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("bert/encoder/layer_1/output/dense/bias", None, r"missing: {} \(16,\)\."),
        (
            *("output_weights", (3, 16)),
            r"left over: {} \(3, 16\)\. Give --ignore_left_over to leave these out",
        ),
        ("bert/pooler/dense/bias", (15,), r"not as expected: {} \(15,\) instead of \(16,\)\."),
        ("bert/encoder/layer_2/output/dense/bias", (16,), "left over: {}"),
        ("bert/pooler/dense/bias/adam_m", (4,), r"{} \(4,\) instead of \(16,\)"),
    ],
)
def test_what_does_not_fit_is_listed_with_its_shape_and_nothing_is_written(
    tmp_path, name, shape, message
):
    folder = tmp_path / "in"
    arrays = make_source(folder)
    arrays[name] = np.zeros(shape or (), np.float32)
    if shape is None:
        del arrays[name]
    checkpoints.write_bundle(folder / "bert_model.ckpt", arrays)
    with pytest.raises(ValueError, match=message.format(name)):
        convert(folder, tmp_path / "out", "huggingface")
    assert [p.name for p in tmp_path.iterdir()] == ["in"]
    if "ignore_left_over" in message:
        said = convert(folder, tmp_path / "out", "huggingface", ignore_left_over=True)
        assert said[-1] == "left out  output_weights"


def with_encoder_and(folder, others):
    """A TensorFlow 1 checkpoint with other variables than the heads'."""
    encoder = {n: a for n, a in make_source(folder).items() if not n.startswith("cls/")}
    checkpoints.write_bundle(folder / "bert_model.ckpt", encoder | others)
    return folder


def test_a_head_that_is_not_known_is_one_refusal_and_is_left_out_by_name(tmp_path):
    head = {f"tags/kernel{slot}": np.zeros((16, 5)) for slot in ("", "/adam_m", "/adam_v")}
    folder = with_encoder_and(tmp_path / "in", head)
    message = (
        r"--input must have masked_lm and next_sentence; got .* with encoder, pooler, and "
        r"tags/kernel, the moments \(2 variables\) of an unknown head\. Give --allow_missing_h"
    )
    with pytest.raises(ValueError, match=message):
        convert(folder, tmp_path / "out", "huggingface")
    said = convert(folder, tmp_path / "out", "huggingface", allow_missing_heads=True)
    assert said[-1] == "left out  tags/kernel, the moments (2 variables)"


def test_layers_beyond_the_configuration_are_no_head_that_may_be_missing(tmp_path):
    layer = {"bert/encoder/layer_2/output/dense/bias": np.zeros(16, np.float32)}
    folder = with_encoder_and(tmp_path / "in", layer)
    with pytest.raises(ValueError, match="left over: bert/encoder/layer_2"):
        convert(folder, tmp_path / "out", "tf1", allow_missing_heads=True)


@pytest.mark.parametrize(
    ("scope", "renamed"),
    [
        ("model/bert", lambda name: f"model/{name}"),
        ("bert_1", lambda name: name.replace("bert/", "bert_1/", 1)),
        ("a/b/bert_2", lambda name: name.replace("bert/", "a/b/bert_2/", 1)),
    ],
)
def test_another_scope_of_tensorflow_is_named_with_the_command_that_renames_it(
    tmp_path, monkeypatch, scope, renamed
):
    arrays = make_source(tmp_path / "in", slots=True)
    others = {renamed(name): array for name, array in arrays.items()}
    checkpoints.write_bundle(tmp_path / "in/bert_model.ckpt", others)
    model = BertPretrainer(CONFIG, seed=None)
    for use in (
        lambda: convert(tmp_path / "in", tmp_path / "out", "tf1"),
        lambda: official_bert.load(tmp_path / "in"),
        lambda: model_state.load_weights(model, tmp_path / "in"),
    ):
        with pytest.raises(ValueError, match=f"its encoder under 'bert'; got '{scope}'") as error:
            use()
    run_python(str(error.value).partition("run: ")[2], monkeypatch)
    prefix = tmp_path / "in/bert_model-renamed.ckpt"
    assert f"give {prefix} instead" in str(error.value)
    found = checkpoints.read_tensors(prefix)
    found["global_step"] = found.pop("model/global_step", found.get("global_step"))
    assert_same_bytes(found, arrays | {"global_step": np.array(7)})


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("scope", ["module.bert", "bert_1", "0.auto_model"])
def test_another_scope_of_pytorch_is_named_with_the_command_that_renames_it(
    tmp_path, monkeypatch, scope, in_parts
):
    peers.load("torch")
    arrays = make_hugging_face(tmp_path / "in")
    write_hugging_face(
        tmp_path / "in",
        arrays,
        CONFIG,
        lambda name: (
            f"module.{name}" if scope == "module.bert" else name.replace("bert.", f"{scope}.", 1)
        ),
    )
    if in_parts:
        write_shards(tmp_path / "in", 2)
    with pytest.raises(ValueError, match=f"its encoder under 'bert'; got '{scope}'") as error:
        convert(tmp_path / "in", tmp_path / "out", "tf1")
    run_python(str(error.value).partition("run: ")[2], monkeypatch)
    assert_same_bytes(weights_of(tmp_path / "in/renamed.safetensors"), arrays)


def run_python(command, monkeypatch):
    """A command `python -c CODE ARGUMENT…`, in this process."""
    python, option, code, *arguments = shlex.split(command)
    assert (python, option) == ("python", "-c")
    monkeypatch.setattr(sys, "argv", [option, *arguments])
    exec(compile(code, "the command", "exec"), {})


def test_a_cased_vocabulary_with_lower_casing_is_refused(tmp_path):
    make_source(tmp_path / "in", cased=True)
    with pytest.raises(ValueError, match="do_lower_case must be off for a cased vocabulary"):
        convert(tmp_path / "in", tmp_path / "out", "huggingface", do_lower_case=True)
    convert(tmp_path / "in", tmp_path / "out", "huggingface")
    settings = json.loads((tmp_path / "out/tokenizer_config.json").read_text())
    assert settings["do_lower_case"] is False


def test_a_vocabulary_is_asked_for_where_the_format_needs_it(tmp_path):
    make_source(tmp_path / "a/in")
    (tmp_path / "a/in/vocab.txt").unlink()
    with pytest.raises(ValueError, match="got neither. Give --vocab_file"):
        convert(tmp_path / "a/in", tmp_path / "out", "huggingface")
    convert(tmp_path / "a/in", tmp_path / "out", "huggingface", allow_missing_vocabulary=True)
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"README.md", "config.json", "model.safetensors"}


def test_what_is_no_checkpoint_is_said_in_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    make_source(tmp_path / "several")
    checkpoints.write_bundle(tmp_path / "several/other.ckpt", {"x": np.zeros(1)})
    (tmp_path / "saved_model").mkdir()
    (tmp_path / "saved_model/saved_model.pb").write_bytes(b"")
    messages = {
        "nowhere": "must be a folder with a checkpoint",
        "empty": "must hold model.safetensors",
        "several": "must hold one checkpoint; got ",
        "saved_model": "got a SavedModel, which is for serving",
    }
    for path, message in messages.items():
        with pytest.raises(ValueError, match=message) as error:
            convert(tmp_path / path, tmp_path / "out", "tf1")
        assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()
