"""Instances: the original script's own, draw for draw; masks that keep their promises."""

import itertools
from random import Random

import pytest
from small_text import SHARED, UNCASED, needs_shared, topics
from small_text import small_text as small_text

from official_bert import corpus, tokenization
from official_bert.instances import InstanceMaker, Settings, sequences

SAMPLE = SHARED / "bert_sample"


def encoded(documents, vocab_file):
    encode = tokenization.SentenceEncoder(tokenization.load(str(vocab_file)))
    split = (corpus.sentences(corpus.Document(lines, True)) for lines in documents)
    return [[ids for ids in encode(sentences) if ids] for sentences in split]


@needs_shared
def test_the_60_records_of_the_original_script_are_reproduced_exactly(tmp_path):
    import tensorflow as tf

    from official_bert.create_pretraining_data import create_pretraining_data

    made = tmp_path / "made.tfrecord"
    create_pretraining_data(
        str(SAMPLE / "sample_text.txt"),
        str(made),
        str(UNCASED),
        Settings(dupe_factor=5),
        random_seed=12345,
        one_random_stream=True,
    )
    ours, theirs = (
        [
            tf.train.Example.FromString(r)
            for r in tf.data.TFRecordDataset(str(p)).as_numpy_iterator()
        ]
        for p in (made, SAMPLE / "tf_examples.tfrecord")
    )
    assert len(ours) == len(theirs) == 60
    assert ours == theirs


@pytest.fixture(scope="module")
def documents(small_text):
    return encoded(topics(12), small_text.vocab_file)


@pytest.mark.parametrize(
    "masks", [{}, {"do_whole_word_mask": True}, {"do_whole_word_mask": True, "max_ngram_size": 3}]
)
def test_instances_keep_the_rules(documents, small_text, masks):
    vocabulary = tokenization.read_vocabulary(small_text.vocab_file)
    names = list(vocabulary)
    settings = Settings(max_seq_length=64, max_predictions_per_seq=9, dupe_factor=2, **masks)
    made = list(InstanceMaker(settings, vocabulary)(list(documents), Random(3)))
    short = 0
    masked = kept = 0
    for instance in made:
        ids, first = instance.input_ids, instance.first_segment
        length = len(ids)
        assert length <= 64
        positions = instance.masked_positions
        marks = (vocabulary["[CLS]"], vocabulary["[SEP]"])  # a random word may be one of them too
        special = [n for n, i in enumerate(ids) if i in marks and n not in positions]
        assert special == [0, first - 1, length - 1]
        assert positions == sorted(set(positions))
        assert not set(special) & set(positions)
        number = min(9, max(1, round(length * 0.15)))
        assert len(positions) <= number
        short += len(positions) < number
        masked += sum(names[ids[p]] == "[MASK]" for p in positions)
        kept += len(positions)
        if masks:
            original = list(ids)
            for position, label in zip(positions, instance.masked_ids, strict=True):
                original[position] = label
            for position in positions:  # a piece is masked exactly when its whole word is
                if position + 1 < length and names[original[position + 1]].startswith("##"):
                    assert position + 1 in positions
    assert short < 0.1 * len(made) if masks else short == 0
    assert masked / kept == pytest.approx(0.8, abs=0.04)
    assert sum(i.is_random_next for i in made) / len(made) == pytest.approx(0.5, abs=0.12)


def test_sequences_hold_every_token_once_and_fill_up(documents):
    settings = Settings(max_seq_length=64, short_seq_prob=0.0)
    for document in documents:
        runs = list(sequences(document, settings, Random(1)))
        tokens = [token for sentence in document for token in sentence]
        assert [token for ids, _ in runs for token in ids] == tokens
        assert all(len(ids) == sum(lengths) <= 61 and min(lengths) > 0 for ids, lengths in runs)
        for (ids, _), (_, following) in itertools.pairwise(runs):
            assert len(ids) + following[0] > 61  # the next sentence did not fit


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_seq_length": 4}, "max_seq_length: got 4"),
        ({"max_predictions_per_seq": 0}, "max_predictions_per_seq: got 0"),
        ({"masked_lm_prob": 1.5}, "masked_lm_prob: got 1.5"),
        ({"dupe_factor": 0}, "dupe_factor: got 0"),
        ({"max_ngram_size": 3}, "needs --do_whole_word_mask"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Settings(**wrong)
