"""Instances: the original script's own, draw for draw; masks that keep their promises."""

import itertools
import time
from random import Random

import google_instances
import pytest
from small_text import SHARED, UNCASED, needs_shared, topics

from official_bert import create_pretraining_data as command
from official_bert.data import corpus, tokenization
from official_bert.data.instances import InstanceMaker, Settings, cut_long_sentences, sequences

SAMPLE = SHARED / "bert_sample"


def encoded(documents, vocab_file):
    encode = tokenization.SentenceEncoder(tokenization.load(str(vocab_file)))
    split = (corpus.sentences(corpus.Document(lines, True)) for lines in documents)
    return [[ids for ids in encode(sentences) if ids] for sentences in split]


@needs_shared
def test_the_60_records_of_the_original_script_are_reproduced_exactly(tmp_path):
    import tensorflow as tf

    made = tmp_path / "made.tfrecord"
    command.create_pretraining_data(
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


DIFFICULT_LINES = [
    "ΟΔΟΣ ΣΑΣ, ΑΣ' 'Σ Σ ΑΣ\u0301 and a final sigma: ΟΔΥΣΣΕΥΣ",
    "",
    "bullet \uf0b7 text\uf0b7text \U0010fffd and \U0002b820\U0002b91f",
    "\x01\u200b",
    "Tab\tand\xa0no-break\u2003em space",
    "word " * 300,
    " \t ",
    "A document of one sentence.",
    "",
    "",
    "漢字かな交じり文 mixed 中文text",
]


@pytest.mark.parametrize("length", [32, 128])
def test_one_random_stream_gives_the_instances_of_the_algorithm_written_out(
    small_text, tmp_path, length
):
    """Also where a sentence is longer than a sequence, or holds nothing that is a token."""
    paragraphs = [line for document in topics(12) for line in (*document, "")]
    lines = DIFFICULT_LINES + paragraphs[:150] + DIFFICULT_LINES
    (tmp_path / "text.txt").write_text("\n".join(lines), encoding="utf-8", newline="")
    settings = Settings(max_seq_length=length, max_predictions_per_seq=6, dupe_factor=3)
    made = str(tmp_path / "made.tfrecord")
    vocabulary = tokenization.read_vocabulary(small_text.vocab_file)
    command.create_pretraining_data(
        str(tmp_path / "text.txt"),
        made,
        small_text.vocab_file,
        settings,
        random_seed=7,
        one_random_stream=True,
        allow_dropped_text=True,
    )
    expected = google_instances.instances(lines, vocabulary, 7, 3, length, 6)
    assert len(expected) > 100
    assert google_instances.of_records(made, vocabulary) == expected


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


def test_a_long_sentence_is_cut_into_pieces_of_which_four_fill_a_sequence():
    settings = Settings(max_seq_length=64, dupe_factor=1)
    document = [list(range(61)), list(range(100, 162)), [7]]
    cut = cut_long_sentences(document, settings)
    assert [len(piece) for piece in cut] == [61, 16, 16, 16, 14, 1]
    assert [i for piece in cut for i in piece] == [i for sentence in document for i in sentence]


def test_ids_that_never_come_are_counted(small_text):
    vocabulary = tokenization.read_vocabulary(small_text.vocab_file)
    rng = Random(1)
    sizes = [[rng.randint(1, 60) for _ in range(30)] for _ in range(20)]
    ids = iter(range(1_000, 1_000_000))  # every id of the text stands there once
    documents = [[[next(ids) for _ in range(size)] for size in sizes_] for sizes_ in sizes]
    text = {i for document in documents for sentence in document for i in sentence}
    for dupe_factor in (1, 3):
        make = InstanceMaker(Settings(max_seq_length=64, dupe_factor=dupe_factor), vocabulary)
        seen = set()
        for instance in make(list(documents), Random(2)):
            ids_ = list(instance.input_ids)
            for position, label in zip(instance.masked_positions, instance.masked_ids, strict=True):
                ids_[position] = label
            seen.update(ids_)
        assert make.unused == len(text - seen) > 0


def test_a_line_of_megabytes_is_cut_off_in_linear_time(small_text):
    vocabulary = tokenization.read_vocabulary(small_text.vocab_file)
    settings = Settings(dupe_factor=1)

    def seconds(tokens: int) -> float:
        documents = [[[5] * tokens], [[6] * 200]]
        start = time.process_time()
        made = list(InstanceMaker(settings, vocabulary)(documents, Random(1)))
        assert len(made) == 2
        return time.process_time() - start

    # Taken off a list's front one by one, a million take 50 times as long as 100,000.
    assert min(seconds(1_000_000) for _ in range(2)) < 20 * max(0.05, seconds(100_000))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_seq_length": 4}, "max_seq_length must be at least 8 and at most 65,536; got 4."),
        ({"max_predictions_per_seq": 0}, "max_predictions_per_seq must be at least 1; got 0."),
        ({"masked_lm_prob": 15}, "must be at least 0 and below 1; got 15. 15 % is 0.15."),
        ({"short_seq_prob": -0.1}, "short_seq_prob must be at least 0 and below 1; got -0.1."),
        ({"max_predictions_per_seq": 200}, "must be at most max_seq_length, 128; got 200."),
        ({"max_ngram_size": 0}, "max_ngram_size must be at least 1; got 0."),
        ({"dupe_factor": 0}, "dupe_factor must be at least 1; got 0."),
        ({"max_ngram_size": 3}, "must be 1 without --do_whole_word_mask; got 3"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Settings(**wrong)
