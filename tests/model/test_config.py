"""`bert_config.json` in and out."""

import json

import pytest

from official_bert.model.config import BertConfig


def test_a_config_survives_the_way_to_json_and_back(tmp_path):
    config = BertConfig(vocab_size=99, hidden_size=64, num_attention_heads=4, hidden_act="relu")
    path = tmp_path / "bert_config.json"
    path.write_text(config.to_json())
    assert BertConfig.from_json_file(path) == config


def test_unused_keys_of_released_models_are_ignored(tmp_path):
    values = {"vocab_size": 28996, "directionality": "bidi", "pooler_fc_size": 768}
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps(values))
    assert BertConfig.from_json_file(path) == BertConfig(vocab_size=28996)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vocab_size": 0}, "vocab_size must be an integer from 1 to 1,000,000,000; got 0"),
        ({"vocab_size": 9.5}, "vocab_size must be an integer from 1 to"),
        ({"hidden_size": 768.0}, "hidden_size must be an integer from 1 to"),
        ({"hidden_size": 100}, "multiple of num_attention_heads"),
        ({"hidden_act": "swish"}, "hidden_act must be one of gelu"),
        ({"hidden_dropout_prob": 1.0}, r"hidden_dropout_prob must be in \[0, 1\)"),
        ({"initializer_range": -1.0}, "initializer_range must be a positive number"),
        ({"initializer_range": float("inf")}, "initializer_range must be a positive number"),
    ],
)
def test_values_out_of_range_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        BertConfig(**values)


@pytest.mark.parametrize("text", ["not json", "[1]", "{}"])
def test_a_file_that_is_no_config_is_refused_by_name(tmp_path, text):
    path = tmp_path / "settings.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="settings.json"):
        BertConfig.from_json_file(path)
