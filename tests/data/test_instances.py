"""Instances: the original script's, draw for draw; rules for masks."""

import itertools
import time
from random import Random

import google_reference
import numpy as np
import pytest
from small_text import SHARED, UNCASED, needs_shared, topics

from official_bert import create_pretraining_data as command
from official_bert.data import corpus, tokenization
from official_bert.data.instances import (
    InstanceMaker,
    Settings,
    choose,
    corrupt,
    cut_long_sentences,
    packed,
    rows,
    sequences,
)

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
    paths = made, SAMPLE / "tf_examples.tfrecord"
    records = (tf.data.TFRecordDataset(str(path)).as_numpy_iterator() for path in paths)
    ours, theirs = ([*map(tf.train.Example.FromString, found)] for found in records)
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
    text = small_text._replace(path=str(tmp_path / "text.txt"))
    options = {"one_random_stream": True, "allow_dropped_text": True}
    text.build(made, settings, random_seed=7, **options)
    expected = google_reference.instances(lines, vocabulary, 7, 3, length, 6)
    assert len(expected) > 100
    assert google_reference.of_records(made, vocabulary) == expected


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


def test_words_are_chosen_whole_and_never_too_many():
    words = [[1, 2, 3], [4], [5, 6], [7], [8, 9, 10, 11], [12]]
    for seed in range(200):
        chosen = choose(words, 5, Random(seed))
        assert all(group in words for group in chosen)
        positions = [p for group in chosen for p in group]
        assert len(positions) == len(set(positions)) <= 5
        left = [word for word in words if word not in chosen]
        assert all(len(positions) + len(word) > 5 for word in left)  # nothing that would fit


def test_ngrams_favour_short_runs():
    words = [[n] for n in range(1, 1001)]
    chosen = choose(words, 300, Random(1), max_ngram_size=3)
    sizes = [*map(len, chosen)]
    shares = [sizes.count(n) / len(sizes) for n in (1, 2, 3)]
    assert shares == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.1)
    positions = [p for group in chosen for p in group]
    assert len(positions) == len(set(positions)) == 300


def test_of_the_chosen_tokens_80_percent_are_masked_10_are_kept_and_10_are_random_words():
    ids = list(range(1_000, 31_000))
    replaced = corrupt(ids, range(30_000), 7, list(range(900)), Random(1))
    assert replaced == dict(enumerate(range(1_000, 31_000)))
    found = np.array(ids)
    masked, kept = found == 7, found == np.arange(1_000, 31_000)
    random_word = found[~masked & ~kept]
    assert masked.mean() == pytest.approx(0.8, abs=0.01)
    assert kept.mean() == pytest.approx(0.1, abs=0.01)
    assert random_word.max() < 900
    assert random_word.mean() == pytest.approx(450, rel=0.05)


def test_sequences_hold_every_token_once_and_fill_up(documents):
    settings = Settings(max_seq_length=64, short_seq_prob=0.0)
    for document in documents:
        runs = list(sequences(document, settings, Random(1)))
        tokens = [token for sentence in document for token in sentence]
        assert [token for ids, _ in runs for token in ids] == tokens
        assert all(len(ids) == sum(lengths) <= 61 and min(lengths) > 0 for ids, lengths in runs)
        for (ids, _), (_, following) in itertools.pairwise(runs):
            assert len(ids) + following[0] > 61  # the next sentence did not fit


def test_full_rows_hold_every_token_in_order_with_separators_only_between_documents(documents):
    sep = 3
    settings = Settings(64, row_filling="full")
    made = list(rows(documents, settings, Random(1), 2, sep))
    assert all(len(row) >= 61 for row in made[:-1])
    assert all(len(row) <= 62 for row in made)
    assert not any(sep in (row[0], row[-1]) for row in made)
    ends = set(itertools.accumulate(sum(map(len, document)) for document in documents))
    found = 0  # tokens of text before
    for row in made:
        for token in row:
            assert token != sep or found in ends
            found += token != sep
    tokens = [token for row in made for token in row if token != sep]
    assert tokens == [t for document in documents for sentence in document for t in sentence]
    assert sum(row.count(sep) for row in made) > len(documents) / 2


@pytest.mark.parametrize("masks", [{}, {"do_whole_word_mask": True}])
def test_full_instances_keep_the_rules_of_masks_in_every_pass(documents, small_text, masks):
    vocabulary = tokenization.read_vocabulary(small_text.vocab_file)
    names, marks = list(vocabulary), (vocabulary["[CLS]"], vocabulary["[SEP]"])
    settings = Settings(64, 9, dupe_factor=2, row_filling="full", **masks)
    made = list(InstanceMaker(settings, vocabulary).of_rows(list(documents), Random(3)))
    text, short = [], 0
    for instance in made:
        ids, positions = instance.input_ids, instance.masked_positions
        assert instance.first_segment == len(ids) <= 64
        assert not instance.is_random_next
        number = min(9, max(1, round(len(ids) * 0.15)))
        assert len(positions) <= number
        short += len(positions) < number
        for position, label in zip(positions, instance.masked_ids, strict=True):
            ids[position] = label
            assert label not in marks
        if masks:
            continues = [names[i].startswith("##") for i in ids[2:]]
            pairs = zip(itertools.pairwise(n in positions for n in range(1, len(ids))), continues)
            assert all(a == b for (a, b), inside in pairs if inside)
        text += [i for i in ids if i not in marks]
    assert short < 0.1 * len(made) if masks else short == 0
    each = sorted(t for document in documents for sentence in document for t in sentence)
    assert sorted(text) == sorted(each * 2)


def test_packed_rows_hold_every_sequence_once_and_leave_little_room():
    rng = np.random.default_rng(4)
    found = [[n] * int(size) for n, size in enumerate(rng.geometric(1 / 12, 3000).clip(1, 62))]
    made = packed(list(found), 64, Random(1))
    sizes = [sum(len(ids) + 2 for ids in row) for row in made]
    assert max(sizes) <= 64
    assert sum(sizes) / (64 * len(made)) > 0.98
    assert sorted(ids[0] for row in made for ids in row) == list(range(3000))
    assert all(ids == found[ids[0]] for row in made for ids in row)
    assert packed(list(found), 64, Random(1)) == made


@pytest.mark.parametrize("masks", [{}, {"do_whole_word_mask": True}])
def test_packed_instances_are_rows_of_whole_sequences_of_one_document(documents, small_text, masks):
    vocabulary = tokenization.read_vocabulary(small_text.vocab_file)
    names, cls, sep = list(vocabulary), vocabulary["[CLS]"], vocabulary["[SEP]"]
    settings = Settings(64, 9, dupe_factor=1, row_filling="packed", **masks)
    made = list(InstanceMaker(settings, vocabulary).of_rows(list(documents), Random(3)))
    texts = [",".join(str(t) for ids in document for t in ids) for document in documents]
    lengths = []
    for instance in made:
        ids, positions = instance.input_ids, instance.masked_positions
        for position, label in zip(positions, instance.masked_ids, strict=True):
            ids[position] = label
        assert sum(instance.sequence_lengths) == len(ids) <= 64
        bounds = itertools.accumulate(instance.sequence_lengths, initial=0)
        for start, stop in itertools.pairwise(bounds):
            assert (ids[start], ids[stop - 1]) == (cls, sep)
            assert not {cls, sep} & set(ids[start + 1 : stop - 1])
            assert any(",".join(map(str, ids[start + 1 : stop - 1])) in text for text in texts)
            lengths.append(stop - start - 2)
            for at in range(start + 2, stop - 1) if masks else ():
                if names[ids[at]].startswith("##"):
                    assert (at in positions) == (at - 1 in positions)
    assert sum(lengths) == sum(len(ids) for document in documents for ids in document)
    assert len(lengths) > len(made)


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
    ids = iter(range(1_000, 1_000_000))  # every id of the text occurs once
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
        ({"row_filling": "sentences"}, "row_filling must be documents.* or .*; got 'sentences'."),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Settings(**wrong)
