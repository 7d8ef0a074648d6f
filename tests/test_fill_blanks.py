"""Guesses for the words behind [MASK], from a checkpoint."""

import logging

import numpy as np
import pytest
import tensorflow as tf
from bert_shapes import tiny

from official_bert import fill_blanks
from official_bert.model.pretrainer import BertPretrainer
from official_bert.training import checkpoints

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "list", "is", "empty", "##s", "."]
CONFIG = tiny(vocab_size=len(WORDS), max_position_embeddings=24, initializer_range=0.5)


@pytest.fixture
def filler(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (tmp_path / "bert_config.json").write_text(CONFIG.to_json())
    weights = {v.path: v.numpy() for v in BertPretrainer(CONFIG, seed=3).weights}
    checkpoints.CheckpointStore(tmp_path).save(weights, 1, state={"loop": {}, "seconds": 0.0})
    return fill_blanks.BlankFiller(tmp_path, tmp_path / "vocab.txt")


def test_a_cased_vocabulary_is_refused_unless_case_is_kept(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*WORDS, "The"]) + "\n")
    with pytest.raises(ValueError, match="is a cased vocabulary .it holds 'The'"):
        fill_blanks.BlankFiller(tmp_path, tmp_path / "vocab.txt")


def test_guesses_are_the_likeliest_words_of_the_sentence_without_padding(filler):
    blanks = filler.guesses("the [MASK] is [MASK].")
    model = BertPretrainer(CONFIG, seed=3)
    batch = {
        "input_ids": np.array([[2, 5, 4, 7, 4, 10, 3]], "int32"),
        "input_mask": np.ones((1, 7), "int32"),
        "segment_ids": np.zeros((1, 7), "int32"),
        "masked_lm_positions": np.array([[2, 4]], "int32"),
    }
    probabilities = tf.nn.softmax(model(batch)["masked_lm_logits"][0]).numpy()
    assert len(blanks) == 2
    for guesses, wanted in zip(blanks, probabilities):
        best = np.argsort(-wanted)[:3]
        assert [guess.token for guess in guesses] == [WORDS[i] for i in best]
        assert [guess.probability for guess in guesses] == pytest.approx(wanted[best], rel=1e-4)


def test_sentences_of_many_lengths_make_tensorflow_say_nothing(filler, caplog):
    """It warns of a function that it traces anew time after time."""
    logger = tf.get_logger()
    logger.addHandler(caplog.handler)
    try:
        for words in range(1, 9):
            filler.guesses(f"{'the list ' * words} is [MASK]" + ", [MASK]" * (words % 3))
    finally:
        logger.removeHandler(caplog.handler)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ("the list is empty", r"no \[MASK\]"),
        ("the " * 30 + "[MASK]", "33 word pieces.* at most 24"),
    ],
)
def test_a_sentence_without_a_blank_or_too_long_is_refused(filler, sentence, message):
    with pytest.raises(ValueError, match=message):
        filler.guesses(sentence)


def test_words_only_leaves_out_punctuation_and_pieces_of_words(filler):
    sentence = "the [MASK] is [MASK]."
    everything = filler.guesses(sentence, count=len(WORDS))
    for words, anything in zip(filler.guesses(sentence, 3, words_only=True), everything):
        wanted = [guess for guess in anything if guess.token in ("the", "list", "is", "empty")]
        assert words == wanted[:3]
