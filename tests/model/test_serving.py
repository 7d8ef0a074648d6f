"""Models that are served: raw text in a graph, Keras files."""

import random

import keras
import numpy as np
import tensorflow as tf
from bert_checkpoints import (
    CONFIG,
    WORDS,
    assert_same_bytes,
    make_source,
    write_vocabulary,
)

from official_bert import convert_checkpoint
from official_bert.data import tokenization
from official_bert.model.pretrainer import BertPretrainer


def test_a_model_in_a_keras_file_is_loaded_by_keras_alone(tmp_path):
    arrays = make_source(tmp_path / "ours")
    convert_checkpoint.convert(tmp_path / "ours", tmp_path / "keras", "keras")
    model = keras.saving.load_model(tmp_path / "keras/model.keras")
    assert isinstance(model, BertPretrainer)
    assert model.config == CONFIG
    assert_same_bytes({v.path: v.numpy() for v in model.weights}, arrays)


def test_ids_in_a_graph_are_those_of_the_tokenizer_for_any_text(tmp_path):
    from official_bert.checkpoints.text_graph import TextToIds

    write_vocabulary(tmp_path)
    rng = random.Random(0)

    def character():
        code = rng.choice(
            [rng.randrange(0x20, 0x7F), rng.randrange(0x110000), rng.randrange(0x3000)]
        )
        return " " if 0xD800 <= code < 0xE000 else chr(code)

    texts = ["".join(character() for _ in range(30)) for _ in range(1000)]
    texts += [" ".join(rng.choices(WORDS.split(), k=12)).replace(" ##", "") for _ in range(500)]
    texts += [
        "",
        " ",
        "a" * 200,
        "a" * 201,
        "e\u0301É",
        "ΑΣ",
        "한국",
        "\ue000\U000f0000",
        "\x00\ufffd",
    ]
    for lower in True, False:
        in_graph = TextToIds(tmp_path / "vocab.txt", lower, max_length=64)
        tokenizer = tokenization.load(str(tmp_path / "vocab.txt"), lower)
        expected = [
            [2, *e.ids[:62], 3] for e in tokenizer.encode_batch(texts, add_special_tokens=False)
        ]
        assert in_graph(tf.constant(texts)).to_list() == expected
        pieces, spans = (
            in_graph.pieces(tf.constant(texts)),
            tokenization.encode_with_spans(tokenizer, texts),
        )
        np.testing.assert_array_equal(pieces.ids.row_splits, spans.bounds)
        found = np.stack([pieces.starts.values, pieces.stops.values], axis=1)
        wrong = np.flatnonzero((found != spans.spans).any(axis=1))
        assert not len(wrong), (found[wrong], spans.spans[wrong])
