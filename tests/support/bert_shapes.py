"""Shapes of BERT that several tests use: a tiny one to compute with, and those of the documents."""

import dataclasses

from official_bert.model.config import BertConfig

TINY = BertConfig(
    vocab_size=40,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=24,
    max_position_embeddings=20,
)
SMALL = BertConfig(  # of the recipe `small`
    vocab_size=4_096,
    hidden_size=256,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=1_024,
    max_position_embeddings=128,
)
BASE = BertConfig()
LARGE = BertConfig(
    hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
)


def tiny(**changed) -> BertConfig:
    """`TINY` with other values of some fields."""
    return dataclasses.replace(TINY, **changed)
