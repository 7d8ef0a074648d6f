"""Models that are served: a SavedModel without this package, raw text in its graph, Keras files."""

import os
import random
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from bert_checkpoints import (
    CONFIG,
    WORDS,
    assert_same_bytes,
    make_source,
    our_logits,
    random_batch,
    write_vocabulary,
)

from official_bert import convert_checkpoint
from official_bert.data import tokenization
from official_bert.model.pretrainer import BertPretrainer


@pytest.mark.slow
def test_a_saved_model_answers_ids_and_raw_text(tmp_path):
    make_source(tmp_path / "ours")
    convert_checkpoint.convert(tmp_path / "ours", tmp_path / "served", "savedmodel")
    batch = random_batch(CONFIG)
    (tmp_path / "batch").mkdir()
    np.savez(tmp_path / "batch/ids.npz", **batch)
    sentences = ["The cat [MASK] on a mat.", "[MASK] [MASK]", "", "Unaffable, naïve É 中é12!"]
    program = (  # a process that knows nothing of this package
        "import sys, numpy as np, tensorflow as tf\n"
        "served = tf.saved_model.load(sys.argv[1]).signatures\n"
        "ids = served['serving_default'](**{k: tf.constant(v) for k, v in np.load("
        "sys.argv[2] + '/ids.npz').items()})\n"
        "text = served['text'](sentences=tf.constant(sys.argv[3:]))\n"
        "np.savez(sys.argv[2] + '/answers.npz', **{'ids_' + k: v for k, v in ids.items()}, "
        "**{'text_' + k: v for k, v in text.items()})\n"
        "assert not any('official_bert' in name for name in sys.modules)\n"
    )
    command = [sys.executable, "-c", program, tmp_path / "served", tmp_path / "batch", *sentences]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run(command, check=True, cwd=tmp_path, env=environment)
    answers = np.load(tmp_path / "batch/answers.npz")
    for name, logits in our_logits(tmp_path / "ours", batch).items():
        np.testing.assert_allclose(answers[f"ids_{name}"], logits, atol=1e-5)
    tokenizer = tokenization.load(str(tmp_path / "ours/vocab.txt"))
    mask, ids = tokenizer.token_to_id("[MASK]"), answers["text_input_ids"]
    for sentence, row in zip(sentences, ids):
        parts = [
            tokenizer.encode(p, add_special_tokens=False).ids for p in sentence.split("[MASK]")
        ]
        expected = [2, *parts[0], *(i for part in parts[1:] for i in (mask, *part)), 3]
        np.testing.assert_array_equal(row, expected + [0] * (len(row) - len(expected)))
    text = {
        "input_ids": ids,
        "input_mask": (np.cumsum(ids[:, ::-1] > 0, axis=1) > 0)[:, ::-1].astype(np.int32),
        "segment_ids": np.zeros_like(ids),
        "masked_lm_positions": answers["text_masked_lm_positions"],
    }
    np.testing.assert_array_equal(text["masked_lm_positions"], [[3, 0], [1, 2], [0, 0], [0, 0]])
    for name, logits in our_logits(tmp_path / "ours", text).items():
        np.testing.assert_allclose(answers[f"text_{name}"], logits, atol=1e-5)


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
