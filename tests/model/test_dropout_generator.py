"""Dropout's own generator as a generator, with the seeds of training and at BERT-Base's sizes.

Bounds are 4 standard deviations of what independent draws would give, and for the largest of n
normal numbers 1 more than √(2 ln n), where it lies.
"""

import numpy as np
import pytest
import tensorflow as tf

from official_bert.model import fused
from official_bert.model.config import BertConfig
from official_bert.model.layers import Dropout, seeds_of_rows
from official_bert.stages import Optimizer, Run, Stage

SHAPES = {  # (examples, rows of each, width) of a micro-batch
    "after a sub-layer, 64 × 128 tokens": (64, 128, 768),
    "in attention, 64 × 128 tokens": (64, 12 * 128, 128),
    "in attention, 4 × 512 tokens": (4, 12 * 512, 512),
}
HIDDEN, ATTENTION, _ = SHAPES.values()
DRAWS = 1 + 3 * 12  # tensors of a micro-batch that are dropped
STAGE = Stage(
    steps=9, batch_size=64, max_seq_length=128, max_predictions_per_seq=20, learning_rate=1e-3
)
RUN = Run(
    config=BertConfig(), stages=(STAGE,), optimizer=Optimizer(), input_files=("none.tfrecord",)
)


@tf.function(autograph=False)
def seeds_of_tensors(step, rows):
    """The seeds, (DRAWS, B, 2), of what is dropped of these rows of a step's batch."""
    dropped = Dropout(True, None, seeds_of_rows(RUN.seed, step, rows))
    return tf.stack([dropped._seed() for _ in range(DRAWS)])


@pytest.fixture(scope="module")
def seeds():
    """64 times the seeds of 64 rows: of 4 steps, 4 micro-batches in each, 4 layers in each."""
    rows = 4 * tf.range(64)
    parts = [seeds_of_tensors(tf.constant(s), rows + p) for s in range(4) for p in range(4)]
    return np.stack(parts)[:, [0, 1, 4, 36]].reshape(64, 64, 2)


def drawn(shape, seeds, rate=0.5):
    """What is kept, standardised: mean 0 and variance 1, (examples · rows of each, width)."""
    examples, rows, width = shape
    kept = fused.kept((examples * rows, width), tf.constant(seeds[:examples]), rate).numpy()
    return (kept - np.float32(1 - rate)) / np.float32(np.sqrt(rate * (1 - rate)))


def assert_normal(z):
    """That independent correlations, times the root of their number of terms, are just that."""
    z = np.asarray(z, np.float64).ravel()
    assert abs(z.mean()) < 4 / np.sqrt(z.size)
    assert abs((z**2).mean() - 1) < 4 * np.sqrt(2 / z.size)
    assert np.abs(z).max() < np.sqrt(2 * np.log(z.size)) + 1


def upper(matrix):
    return matrix[np.triu_indices(len(matrix), 1)]


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_rate_holds_over_a_tensor_and_varies_over_its_rows_and_columns_as_by_chance(
    seeds, shape, rate
):
    x = drawn(SHAPES[shape], seeds[0], rate)
    assert abs(x.mean(dtype=np.float64)) < 4 / np.sqrt(x.size)
    for axis in (0, 1):
        terms = x.shape[axis]
        z = x.mean(axis, dtype=np.float64) * np.sqrt(terms)
        kurtosis = 1 / (rate * (1 - rate) * terms)  # a sum of few rare events is no normal number
        assert abs((z**2).mean() - 1) < 4 * np.sqrt((2 + kurtosis) / z.size)


@pytest.mark.slow
def test_rows_and_columns_of_a_tensor_are_independent(seeds):
    x = drawn(HIDDEN, seeds[0])
    rows, width = x.shape
    assert_normal(upper(x[:2000] @ x[:2000].T) / np.sqrt(width))
    assert_normal(upper(x.T @ x) / np.sqrt(rows))
    spectrum = np.abs(np.fft.rfft(x, 2 * width)) ** 2  # of a row and itself, some columns on
    products = np.fft.irfft(spectrum.sum(0))[1:width]
    assert_normal(products / np.sqrt(rows * np.arange(width - 1, 0, -1)))


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_layers_micro_batches_and_steps_are_independent(seeds, rate):
    x = np.stack([drawn((64, 16, 768), seed, rate).ravel() for seed in seeds])
    assert_normal(upper(x @ x.T) / np.sqrt(x.shape[1]))


@pytest.mark.slow
def test_words_of_32_draws_meet_as_often_as_by_chance(seeds):
    """In tensors of 16 layers, micro-batches and steps."""
    bits = np.concatenate([drawn(HIDDEN, seed).ravel() > 0 for seed in seeds[::4]])
    words = np.packbits(bits).view(np.uint32)
    counts = np.unique(words, return_counts=True)[1].astype(float)
    expected = words.size**2 / 2 / 2**32  # 1,152 pairs
    assert abs((counts * (counts - 1) / 2).sum() - expected) < 4 * np.sqrt(expected)


@pytest.mark.slow
@pytest.mark.parametrize("tensors", [1, 16])
def test_no_row_goes_on_as_another_begins(seeds, tensors):
    """By chance one such pair of 64 draws would come in 10⁵ tests; rows of one tensor, or of 16."""
    shape = (64, ATTENTION[1] // tensors, 128)
    bits = [drawn(shape, seed) > 0 for seed in seeds[:: 64 // tensors]]
    windows, length = np.concatenate(bits).astype(np.uint64), 1
    while length < 64:  # windows of 2, 4, 8, … draws from each column on
        later = windows[:, length:] << np.uint64(length)
        windows, length = windows[:, : later.shape[1]] | later, 2 * length
    first = np.sort(windows[:, 0])
    assert (first[1:] != first[:-1]).all()
    rest = windows[:, 1:].ravel()
    nearest = first[np.minimum(np.searchsorted(first, rest), len(first) - 1)]
    assert not (nearest == rest).any()


def test_no_two_tensors_of_a_run_have_the_same_seed():
    keys = [seeds_of_tensors(tf.constant(step), tf.range(100)) for step in range(80)]
    words = np.stack(keys).reshape(-1, 2).copy().view(np.int64)
    assert np.unique(words).size == 8_000 * DRAWS


def test_keys_that_follow_each_other_share_no_seed():
    """As those of a caller of the model who counts steps in one of the two words."""
    found = set()
    for key in [(7, count) for count in range(20)] + [(count, 7) for count in range(20)]:
        dropped = Dropout(True, None, tf.constant(key))
        found |= {tuple(dropped._seed().numpy()) for _ in range(DRAWS)}
    assert len(found) == 39 * DRAWS  # (7, 7) came twice
