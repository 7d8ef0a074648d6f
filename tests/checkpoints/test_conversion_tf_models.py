"""Checkpoints written by tf-models give the same results here."""

import pathlib
import re
import subprocess
import sys

import numpy as np
import peers
import pytest
from bert_checkpoints import (
    assert_same_bytes,
    make_source,
    our_logits,
    weights_of,
    write_objects,
)
from bert_shapes import tiny

from official_bert.checkpoints import names, sources
from official_bert.convert_checkpoint import convert
from official_bert.model.fine_tuning import BertClassifier, BertQuestionAnswering
from official_bert.training import model_state


def test_variables_are_laid_out_anew_only_where_tf_models_has_an_axis_for_heads(tmp_path):
    arrays = make_source(tmp_path / "in")
    heads = {
        name: (16, 4, 4) if name.endswith("kernel") else (4, 4)
        for name in arrays
        if "/attention/self/" in name
    } | {name: (4, 4, 16) for name in arrays if "/attention/output/dense/kernel" in name}
    for file in (tmp_path / "in").glob("bert_model.ckpt*"):
        file.unlink()
    laid_out = {n: a.reshape(heads[n]) if n in heads else a for n, a in arrays.items()}
    write_objects(tmp_path / "in/model.ckpt", laid_out)
    assert_same_bytes(weights_of(tmp_path / "in"), arrays)
    sources.open_checkpoint(tmp_path / "in").check(names.PARTS)
    for name, shape in (
        ("bert/encoder/layer_0/intermediate/dense/kernel", (24, 16)),  # transposed
        ("bert/encoder/layer_0/attention/self/query/kernel", (16, 2, 8)),  # of fewer heads
        ("bert/encoder/layer_0/output/LayerNorm/gamma", (1, 16)),
    ):
        write_objects(tmp_path / "in/model.ckpt", laid_out | {name: arrays[name].reshape(shape)})
        message = f"not as expected: {name} {shape} instead of"
        with pytest.raises(ValueError, match=re.escape(message)):
            sources.open_checkpoint(tmp_path / "in").check(names.PARTS)


def convert_with_moments(source, out):
    """What `convert` says; the number of updates goes with the moments."""
    said = convert(source, out, "tf1")
    assert not re.search("iter|global_step", said[-1])
    assert sources.open_checkpoint(out).step.read() == 1
    return said


@pytest.fixture(scope="module")
def tf_models(tmp_path_factory):
    peers.load("gin")
    peers.load("tf_keras")
    folder = tmp_path_factory.mktemp("tf_models")
    script = pathlib.Path(__file__).parents[1] / "support/tf_models_checkpoints.py"
    subprocess.run([sys.executable, "-W", "ignore", script, folder, "0"], check=True)
    config = tiny(vocab_size=50, max_position_embeddings=12)
    (folder / "bert_config.json").write_text(config.to_json())
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["functional", "v2", "legacy"])
def test_a_pretrainer_of_tf_models_computes_the_same_here(tf_models, tmp_path, kind):
    said = convert_with_moments(tf_models / f"{kind}_pretrainer", tmp_path / "tf1")
    assert said[0].startswith("read      tf-models")
    expected = np.load(tf_models / f"{kind}.npz")
    batch = {
        "input_ids": expected["input_word_ids"],
        "input_mask": expected["input_mask"],
        "segment_ids": expected["input_type_ids"],
        "masked_lm_positions": expected["masked_lm_positions"],
    }
    ours = our_logits(tmp_path / "tf1", batch)
    theirs = {f"{n}_logits": expected[n] for n in ("masked_lm", "next_sentence")}
    for name, logits in theirs.items():
        np.testing.assert_allclose(ours[name], logits, rtol=1e-5, atol=2e-5)
    # These logits depend on the bias that a script of transformers 4 lost.
    assert np.abs(weights_of(tmp_path / "tf1")["cls/predictions/output_bias"]).min() > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["functional", "v2", "legacy"])
def test_an_encoder_of_tf_models_has_the_weights_of_its_pretrainer(tf_models, kind):
    alone, whole = (weights_of(tf_models / f"{kind}_{part}") for part in ("encoder", "pretrainer"))
    if kind != "legacy":  # there the pre-training head reads a pooler of its own
        alone = {n: a for n, a in alone.items() if "pooler" not in n}
    assert len(alone) >= 37
    assert_same_bytes({n: a for n, a in whole.items() if n in alone}, alone)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["functional", "v2", "legacy"])
def test_moments_of_tf_models_come_along(tf_models, kind):
    source = sources.open_checkpoint(tf_models / f"{kind}_pretrainer")
    assert not source.unmatched
    trained = {name.rpartition("/")[0] for name in source.slots}
    assert len(trained) >= 42
    assert trained <= source.weights.keys()
    for name, slot in source.slots.items():
        assert slot.read().shape == source.weights[name.rpartition("/")[0]].shape
        assert np.abs(slot.read()).max() > 0 or "key/bias" in name  # whose gradient is 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["functional", "v2"])
@pytest.mark.parametrize("head", ["span", "classifier", "deep_classifier"])
def test_a_fine_tuned_model_of_tf_models_computes_the_same_here(tf_models, tmp_path, kind, head):
    said = convert_with_moments(tf_models / f"{kind}_{head}", tmp_path / "tf1")
    expected = np.load(tf_models / f"{kind}_{head}.npz")
    outputs = expected["logits"].shape[-1]
    config = sources.open_checkpoint(tmp_path / "tf1").config
    ours = BertQuestionAnswering(config) if head == "span" else BertClassifier(config, outputs)
    assert not model_state.load_weights(ours, tmp_path / "tf1").fresh
    batch = {
        "input_ids": expected["input_word_ids"],
        "input_mask": expected["input_mask"],
        "segment_ids": expected["input_type_ids"],
    }
    np.testing.assert_allclose(ours(batch), expected["logits"], rtol=1e-5, atol=2e-5)
    name = "question_answering" if head == "span" else "classifier"
    assert f"(encoder, pooler, {name})" in said[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["functional", "v2"])
def test_a_head_of_tf_models_that_is_not_known_here_is_left_out_by_name(tf_models, tmp_path, kind):
    """It has the shape of a next-sentence head, and in part its name."""
    path = tf_models / f"{kind}_tokens"
    with pytest.raises(ValueError, match="got .* with encoder, pooler, and .*/kernel, the moments"):
        convert(path, tmp_path / "out", "tf1")
    said = convert(path, tmp_path / "out", "tf1", allow_missing_heads=True)
    assert "(encoder, pooler)" in said[0]
    assert "model/layer_with_weights-1/kernel" in said[-1]
    assert "the moments (4 variables)" in said[-1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["functional", "v2"])
def test_further_layers_of_tf_models_are_no_head_that_may_be_missing(tf_models, tmp_path, kind):
    config = tiny(vocab_size=50, max_position_embeddings=12, num_hidden_layers=1)
    (tmp_path / "bert_config.json").write_text(config.to_json())
    with pytest.raises(ValueError, match="left over: bert/encoder/layer_1/attention/output"):
        convert(
            tf_models / f"{kind}_encoder",
            tmp_path / "out",
            "tf1",
            bert_config_file=tmp_path / "bert_config.json",
            allow_missing_heads=True,
        )
