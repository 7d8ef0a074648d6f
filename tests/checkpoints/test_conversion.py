"""Checkpoints of every format are converted and back without losing a bit."""

import dataclasses

import numpy as np
import pytest
from bert_checkpoints import (
    CONFIG,
    SHAPES,
    assert_same_bytes,
    make_source,
    random_tensors,
    weights_of,
    write_hugging_face,
)

from official_bert.checkpoints import names, safetensors_files, sources
from official_bert.convert_checkpoint import convert
from official_bert.model.config import BertConfig
from official_bert.model.pretrainer import BertPretrainer
from official_bert.training import checkpoints


@pytest.mark.parametrize("through", ["huggingface", "tf1", "keras"])
@pytest.mark.parametrize("shape", SHAPES)
def test_there_and_back_every_byte_is_the_same(tmp_path, shape, through):
    arrays = make_source(tmp_path / "first", SHAPES[shape])
    convert(tmp_path / "first", tmp_path / "there", through)
    convert(tmp_path / "there", tmp_path / "back", "tf1")
    assert_same_bytes(checkpoints.read_tensors(tmp_path / "back/bert_model.ckpt"), arrays)
    config = BertConfig.from_json_file(tmp_path / "back/bert_config.json")
    by_another_name = {"gelu": "gelu_new"} if through == "huggingface" else {}
    act = SHAPES[shape].hidden_act
    assert config == dataclasses.replace(SHAPES[shape], hidden_act=by_another_name.get(act, act))
    assert (tmp_path / "back/vocab.txt").read_bytes() == (tmp_path / "first/vocab.txt").read_bytes()


@pytest.mark.parametrize("dtype", ["<f2", "bfloat16", "<f8"])
def test_other_types_of_weights_keep_their_bytes(tmp_path, dtype):
    if dtype == "bfloat16":
        dtype = safetensors_files.DTYPES["BF16"]
    arrays = random_tensors(CONFIG, dtype=dtype)
    make_source(tmp_path / "first")
    write_hugging_face(tmp_path / "first", arrays, CONFIG)
    convert(tmp_path / "first", tmp_path / "tf1", "tf1")
    convert(tmp_path / "tf1", tmp_path / "back", "huggingface")
    assert_same_bytes(weights_of(tmp_path / "back"), arrays)


def test_moments_stay_with_their_step_where_the_format_holds_them_and_are_counted_where_not(
    tmp_path,
):
    arrays = make_source(tmp_path / "first", slots=True)
    said = convert(tmp_path / "first", tmp_path / "tf1", "tf1")
    assert said[-1].startswith("written")
    assert_same_bytes(checkpoints.read_tensors(tmp_path / "tf1/bert_model.ckpt"), arrays)
    said = convert(tmp_path / "tf1", tmp_path / "hf", "huggingface")
    assert said[-1] == "left out  global_step, the moments (92 variables)"
    said = convert(tmp_path / "tf1", tmp_path / "bare", "tf1", keep_slots=False)
    assert said[-1] == "left out  global_step, the moments (92 variables)"
    bare = checkpoints.read_tensors(tmp_path / "bare/bert_model.ckpt")
    assert not any("adam" in name or "step" in name for name in bare)


@pytest.mark.parametrize(
    ("counters", "step"),
    [
        ({"global_step": np.int64(9)}, 9),  # of Google's script
        ({"global_step": np.int64(9), "beta1_power": np.float32(0.5)}, 9),  # of TensorFlow's Adam
        ({"global_step": np.int64(9), "optimizer/iterations": np.int32(7)}, 7),  # two were skipped
    ],
)
def test_an_export_says_how_many_updates_its_moments_have_seen(tmp_path, counters, step):
    arrays = make_source(tmp_path / "in", slots=True)
    checkpoints.write_bundle(tmp_path / "in/bert_model.ckpt", arrays | counters)
    convert(tmp_path / "in", tmp_path / "out", "tf1")
    found = checkpoints.read_tensors(tmp_path / "out/bert_model.ckpt")
    assert found["global_step"] == step
    assert found["global_step"].dtype == np.int64


@pytest.mark.parametrize("counter", [np.zeros(2, np.int64), np.float32(7)])
def test_a_counter_that_is_no_number_of_updates_is_left_out(tmp_path, counter):
    arrays = make_source(tmp_path / "in", slots=True)
    arrays["global_step"] = counter
    checkpoints.write_bundle(tmp_path / "in/bert_model.ckpt", arrays)
    said = convert(tmp_path / "in", tmp_path / "out", "tf1")
    assert said[-1] == "left out  global_step"


@pytest.mark.parametrize(
    ("spelling", "slot"),
    [
        ("{}/adam_v", "adam_v"),
        ("{}/lamb_optimizer/adam_m", "adam_m"),
        ("{}/lamb_m", "adam_m"),
        ("{}/Adam", "adam_m"),
        ("{}/Adam_1", "adam_v"),
    ],
)
def test_moments_of_every_optimizer_of_tensorflow_1_are_known(tmp_path, spelling, slot):
    arrays = make_source(tmp_path / "first")
    name = "cls/predictions/transform/dense/bias"
    extra = {spelling.format(name): arrays[name] + 1}
    checkpoints.write_bundle(tmp_path / "first/bert_model.ckpt", {**arrays, **extra})
    source = sources.open_checkpoint(tmp_path / "first")
    assert not source.unmatched
    np.testing.assert_array_equal(source.slots[f"{name}/{slot}"].read(), arrays[name] + 1)


def test_the_table_names_every_variable_of_the_model_and_no_other():
    for config in SHAPES.values():
        model = BertPretrainer(config, seed=None)
        shapes = {row.official: names.shape(row, config) for row in names.rows(config)}
        assert shapes == {v.path: tuple(v.shape) for v in model.weights}
        for column in "hugging_face", "tf_models":
            assert len({getattr(row, column) for row in names.rows(config)}) == len(shapes)
