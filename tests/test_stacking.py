"""Growing the encoder and choosing what trains: the rules, on models of both depths."""

import dataclasses

import numpy as np
import pytest

from official_bert import stacking
from official_bert.config import BertConfig
from official_bert.modeling import BertPretrainer
from official_bert.stages import Stage

CONFIG = BertConfig(
    vocab_size=61,
    hidden_size=16,
    num_hidden_layers=6,
    num_attention_heads=2,
    intermediate_size=40,
    max_position_embeddings=16,
    initializer_range=0.2,
)


def make_model(depth, seed=0):
    return BertPretrainer(dataclasses.replace(CONFIG, num_hidden_layers=depth), seed=seed)


def weights_of(model):
    return {variable.path: variable.numpy() for variable in model.weights}


def make_batch(batch=3, length=10):
    rng = np.random.default_rng(1)
    return {
        "input_ids": rng.integers(0, CONFIG.vocab_size, (batch, length)).astype("int32"),
        "input_mask": (np.arange(length) < [[10], [7], [4]]).astype("int32"),
        "segment_ids": (np.arange(length) >= 4).astype("int32") * np.ones((batch, 1), "int32"),
        "masked_lm_positions": np.array([[1, 2], [3, 0], [0, 1]], "int32"),
    }


def logits_through(model, batch, layers):
    """The outputs of `model`'s embeddings and heads around the given layers, one by one."""
    whole = list(model.encoder_layers)
    try:
        model.encoder_layers = [whole[i] for i in layers]
        return model(batch)
    finally:
        model.encoder_layers = whole


def stage_of(**fields):
    return Stage(
        steps=1,
        batch_size=1,
        max_seq_length=8,
        max_predictions_per_seq=1,
        learning_rate=1.0,
        **fields,
    )


@pytest.mark.parametrize(
    ("old", "new", "how", "order"),
    [
        (2, 4, "copy_top", [0, 1, 0, 1]),
        (4, 6, "copy_top", [0, 1, 2, 3, 2, 3]),
        (3, 4, "copy_top", [0, 1, 2, 2]),
        (2, 5, "copy_top", [0, 1, 0, 1, 0]),  # fewer layers than are added
        (2, 4, "copy_stack", [0, 1, 0, 1]),
        (4, 6, "copy_stack", [0, 1, 2, 3, 0, 1]),
        (2, 6, "copy_stack", [0, 1, 0, 1, 0, 1]),
        (3, 3, "copy_top", [0, 1, 2]),
    ],
)
def test_a_grown_model_computes_the_old_ones_layers_in_the_order_of_the_rule(old, new, how, order):
    shallow, deep, batch = make_model(old), make_model(new, seed=9), make_batch()
    grown = stacking.grow(weights_of(shallow), old, new, how)
    for variable in deep.weights:
        variable.assign(grown.pop(variable.path))
    assert not grown  # a weight for each variable of the deeper model, and no more
    expected = logits_through(shallow, batch, order)
    for name, logits in deep(batch).items():
        np.testing.assert_array_equal(logits, expected[name])


def test_fresh_layers_keep_what_the_initialiser_gave_them():
    old = weights_of(make_model(2))
    assert stacking.grow(old, 2, 4, "fresh") == old
    # and the model's initial values of the layers that both have do not depend on the depth
    deep = weights_of(make_model(4))
    assert all(np.array_equal(value, deep[path]) for path, value in old.items())
    assert not np.array_equal(
        deep["bert/encoder/layer_1/output/dense/kernel"],
        deep["bert/encoder/layer_3/output/dense/kernel"],
    )


def test_layer_1_is_not_taken_for_layer_10():
    weights = {f"bert/encoder/layer_{i}/output/dense/bias": i for i in range(11)}
    grown = stacking.grow(weights, 11, 13, "copy_stack")
    assert [grown[f"bert/encoder/layer_{i}/output/dense/bias"] for i in (11, 12)] == [0, 1]
    assert len(grown) == 13
    stage = stage_of(trained_layers=(1,))
    assert stacking.trained("bert/encoder/layer_1/output/dense/bias", stage)
    assert not stacking.trained("bert/encoder/layer_10/output/dense/bias", stage)


def test_moments_under_their_checkpoint_names_grow_like_weights():
    grown = stacking.grow({"bert/encoder/layer_0/output/dense/bias/adam_m": 5}, 1, 2, "copy_top")
    assert grown["bert/encoder/layer_1/output/dense/bias/adam_m"] == 5


@pytest.mark.parametrize(
    ("fields", "frozen"),
    [
        ({}, ()),
        (
            {"trained_layers": (4, 5), "train_embeddings": False},
            ("embeddings", "layer_0", "layer_1", "layer_2", "layer_3"),
        ),
        ({"trained_layers": (0, 1, 2)}, ("layer_3", "layer_4", "layer_5")),
        ({"train_embeddings": False}, ("embeddings",)),
    ],
)
def test_exactly_the_stated_variables_are_frozen(fields, frozen):
    paths = [variable.path for variable in make_model(6).weights]
    stage = stage_of(**fields)
    expected = [path for path in paths if not {*frozen} & {*path.split("/")}]
    assert [path for path in paths if stacking.trained(path, stage)] == expected
    assert "cls/predictions/output_bias" in expected
    assert "bert/pooler/dense/kernel" in expected


def test_the_plan_trains_new_layers_first_the_embeddings_once_and_everything_last():
    assert stacking.mslt_plan((3, 6, 9, 12)) == (
        {"depth": 3, "trained_layers": (0, 1, 2), "train_embeddings": True},
        {"depth": 6, "trained_layers": (3, 4, 5), "train_embeddings": False},
        {"depth": 9, "trained_layers": (6, 7, 8), "train_embeddings": False},
        {"depth": 12, "trained_layers": (9, 10, 11), "train_embeddings": False},
        {"depth": 12, "trained_layers": None, "train_embeddings": True},
    )


def test_every_variable_trains_in_a_partial_stage_and_in_the_last():
    paths = [variable.path for variable in make_model(6).weights]
    *partial, last = [stage_of(**fields) for fields in stacking.mslt_plan((1, 4, 6))]
    assert all(any(stacking.trained(path, stage) for stage in partial) for path in paths)
    assert all(stacking.trained(path, last) for path in paths)


@pytest.mark.parametrize("depths", [(), (0, 3), (3, 3), (6, 3), (-1,)])
def test_depths_that_do_not_grow_are_refused(depths):
    with pytest.raises(ValueError, match="depths must be positive and grow"):
        stacking.mslt_plan(depths)


def test_what_cannot_be_grown_is_refused():
    with pytest.raises(ValueError, match="4 layers cannot become one of 3"):
        stacking.grow({}, 4, 3, "copy_top")
    with pytest.raises(ValueError, match=r"growth must be one of copy_top, .*'copy'"):
        stacking.grow({}, 3, 4, "copy")
