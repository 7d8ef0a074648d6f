"""The graph for hosts without Python gives the batches of `Batches`, bit for bit."""

import hashlib
import json

import numpy as np
import pytest
import tensorflow as tf

from official_bert.data import dynamic_masking, graph_ops
from official_bert.data.input_pipeline import Batches
from official_bert.data.instances import Settings
from official_bert.data.records import frame
from official_bert.engines.tf_distribute import TfDistribute

LENGTH, PREDICTIONS = 32, 5


@pytest.fixture(scope="module")
def made(small_text, tmp_path_factory):
    """Static and dynamic records, some thousands of each, and some that are compressed."""
    folder = tmp_path_factory.mktemp("records")
    for name in ("static", "dynamic", "packed", "full"):
        small_text.build(
            folder / f"{name}.tfrecord",
            Settings(LENGTH, PREDICTIONS),
            dupe_factor=2 if name == "static" else 1,
            row_filling="full" if name == "full" else "documents",
            num_shards=2,
            input_format="paragraphs",
            dynamic_masking=name in ("dynamic", "full"),
            gzip_compress=name == "packed",
        )
    return folder


def batches(made, kind, batch_size=96, **options):
    return Batches([f"{made}/{kind}.tfrecord-*"], batch_size, LENGTH, PREDICTIONS, **options)


def require_equal(made, kind, steps, shards=((0, 1),), **options):
    """The graph's batches of `steps` are those of `Batches`, for each (shard, number of shards)."""
    for index, count in shards:
        data = batches(made, kind, shard_index=index, num_shards=count, **options)
        graph = batches(made, kind, **options).dataset(steps, index, count)
        spec = graph.element_spec.items()
        assert {k: (tuple(s.shape), s.dtype.as_numpy_dtype) for k, s in spec} == data.element_spec
        found = list(graph.as_numpy_iterator())
        assert len(found) == len(steps)
        for step, batch in zip(steps, found, strict=True):
            expected = data[step]
            assert batch.keys() == expected.keys()
            for name, values in expected.items():
                assert batch[name].dtype == values.dtype
                np.testing.assert_array_equal(batch[name], values, err_msg=f"{name} of {step}")


def test_keys_are_those_of_hashlib():
    texts = ["", "12345/mask/100003/0", "x" * 127, "7/section/12/3/0", "a" * 128]
    expected = [hashlib.blake2b(t.encode(), digest_size=16).digest() for t in texts]
    found = graph_ops.keys_of(tf.constant(texts)).numpy()
    assert [key.tobytes() for key in found] == expected


def test_random_words_orders_and_numbers_are_those_of_numpy():
    rng = np.random.default_rng(0)
    for count in (0, 1, 3, 4, 5, 17, 4096):
        key = rng.bytes(16)
        stream = np.random.Philox(key=np.frombuffer(key, np.uint64)).random_raw(count + 6)
        words = tf.constant(np.frombuffer(key, np.uint64))
        for start in (0, 1, 6):
            found = graph_ops.philox(words[None], *tf.constant([start, count], tf.int64))[0]
            np.testing.assert_array_equal(found, stream[start : start + count])
        order = graph_ops.permutation(words, tf.constant(count, tf.int64))
        np.testing.assert_array_equal(order, dynamic_masking.permutation(key, count))
    keys = [rng.bytes(16) for _ in range(3)]
    expected = dynamic_masking.Draws(keys, 5)
    words = np.frombuffer(b"".join(keys), np.uint64).reshape(3, 2)
    found = graph_ops.Draws(tf.constant(words), 5)
    for shape in ((), (), (10,), (), (2, 7), (3,)):
        np.testing.assert_array_equal(found.uniform(*shape), expected.uniform(*shape))


kinds = pytest.mark.parametrize("kind", ["static", "dynamic"])


@kinds
@pytest.mark.parametrize("window", [65536, 1024])
def test_any_steps_on_any_number_of_hosts(made, kind, window):
    """Beyond the end of an epoch, from the middle of a window, and far away."""
    data = batches(made, kind, window_records=window)
    end = data.num_batches
    assert 1024 < data.num_examples < 65536
    beyond = range(end - 7, end + 13)
    require_equal(made, kind, beyond, shards=((2, 4),), window_records=window)
    require_equal(made, kind, range(100_003, 100_006), window_records=window)


@kinds
def test_batches_larger_than_the_data(made, kind):
    size = 2 * batches(made, kind).num_examples + 38
    require_equal(made, kind, range(1, 3), ((1, 2),), batch_size=size, window_records=1024)


WAYS = [
    {"use_next_sentence": False},
    {"do_whole_word_mask": True},
    {"do_whole_word_mask": True, "max_ngram_size": 3},
    {"use_next_sentence": False, "do_whole_word_mask": True, "masked_lm_prob": 0.3},
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(way))
def test_every_way_of_masking(made, way):
    require_equal(made, "dynamic", range(20, 26), ((1, 2),), window_records=1024, **way)


@kinds
@pytest.mark.parametrize("window", [65536, 256])
def test_an_evaluation_in_order_with_its_padded_last_batch(made, kind, window):
    whole = batches(made, kind, shuffle=False)
    assert whole.num_examples % 96
    steps = range(whole.num_batches)
    require_equal(made, kind, steps, ((1, 2),), shuffle=False, window_records=window)
    assert 0 < whole[steps[-1]]["example_weights"].sum() < 96


def test_full_rows(made):
    require_equal(made, "full", range(2), use_next_sentence=False)


def test_records_of_other_tools_are_read_too(made, tmp_path):
    for path in made.glob("static.tfrecord-*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    require_equal(tmp_path, "static", range(2, 5), window_records=1024)


def test_records_are_read_through_the_file_systems_of_tensorflow(made):
    for path in made.glob("static.*"):
        tf.io.gfile.copy(str(path), f"ram://records/{path.name}", overwrite=True)
    graph = batches("ram://records", "static", window_records=1024).dataset(range(40, 44), 0, 1)
    data = batches(made, "static", window_records=1024)
    for step, batch in zip(range(40, 44), graph.as_numpy_iterator(), strict=True):
        for name, values in data[step].items():
            np.testing.assert_array_equal(batch[name], values)


def test_the_graph_is_as_large_for_a_billion_steps_as_for_one(made):
    """It could not be sent to a host otherwise, and resuming would take ever longer."""

    def size(steps):
        graph = batches(made, "dynamic", window_records=1024).dataset(steps, 0, 2)
        return len(tf.raw_ops.DatasetToGraphV2(input_dataset=graph._variant_tensor).numpy())

    assert size(range(10**9)) == pytest.approx(size(range(1)), rel=0.001)


def test_compressed_records_are_refused_with_the_reason(made):
    with pytest.raises(ValueError, match=r"packed.tfrecord-00000-of-00002 must not be compressed"):
        batches(made, "packed").dataset(range(2), 0, 1)


def refusals(data, steps):
    """The errors of `Batches` and of a run whose host reads the records."""
    with pytest.raises(ValueError, match="record") as of_batches:
        [data[step] for step in steps]
    with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed") as of_a_host:
        list(data.dataset(steps, 0, 1))
    engine = TfDistribute(tf.distribute.get_strategy())
    engine._hosts_run_no_python = True  # as on a slice
    said = str(engine.input_error(of_a_host.value))
    return f"A host could not read its records: {of_batches.value}", said


ORDERS = pytest.mark.parametrize(
    "order",
    [{}, {"window_records": 1024}, {"shuffle": False}, {"shuffle": False, "window_records": 256}],
    ids=["in_memory", "windows", "all_in_order", "windows_in_order"],
)


@ORDERS
def test_sequences_that_do_not_fit_are_refused_by_file_and_number_as_batches_does(made, order):
    steps = range(batches(made, "dynamic", shuffle=False).num_batches)
    data = batches(made, "dynamic", **order)
    rarest = int(batches(made, "dynamic")._all().tokens.max())
    data._plan.parse._vocab_size = rarest  # which the manifest would refuse at once
    data._plan = data._plan._replace(vocab_size=rarest)
    expected, found = refusals(data, steps)
    assert "token ids must be in" in expected
    assert found == expected


def test_sequences_that_are_too_long_are_refused_by_file_and_number_as_batches_does(made, tmp_path):
    for path in made.glob("dynamic.*"):
        content = path.read_bytes()
        if path.suffix == ".json":  # which says that they are shorter than they are
            content = json.dumps(shortened(json.loads(content))).encode()
        (tmp_path / path.name).write_bytes(content)
    files = [f"{tmp_path}/dynamic.tfrecord-*"]
    data = Batches(files, 96, 24, PREDICTIONS, window_records=1024)
    expected, found = refusals(data, range(3))
    assert "length must be at most 21 tokens with max_seq_length=24" in expected
    assert found == expected


def shortened(manifest):
    return manifest | {"settings": manifest["settings"] | {"max_seq_length": 24}}


@pytest.mark.parametrize(
    ("order", "feature", "value"),
    [
        ({}, "masked_lm_positions", LENGTH),
        ({"window_records": 1024}, "masked_lm_ids", 99_999),
        ({"shuffle": False}, "input_ids", -1),
        ({"shuffle": False, "window_records": 256}, "masked_lm_positions", LENGTH),
    ],
)
def test_a_static_record_that_does_not_fit_is_refused_by_file_and_number_as_batches_does(
    made, tmp_path, order, feature, value
):
    wrong = {0: None, 1: 77}  # by file
    for number, record in wrong.items():
        name = f"static.tfrecord-0000{number}-of-00002"
        payloads = [r.numpy() for r in tf.data.TFRecordDataset(str(made / name))]
        if record is not None:
            example = tf.train.Example.FromString(payloads[record])
            example.features.feature[feature].int64_list.value[2] = value
            payloads[record] = example.SerializeToString()
        (tmp_path / name).write_bytes(b"".join(map(frame, payloads)))
    data = batches(tmp_path, "static", vocab_size=30_522, **order)
    epochs = 1 if "shuffle" in order else 2  # the first may leave some records for the second
    expected, found = refusals(data, range(epochs * data.num_batches))
    assert f"{tmp_path}/static.tfrecord-00001-of-00002, record 77: " in expected
    assert found == expected


def test_damaged_records_are_refused(made, tmp_path):
    for path in made.glob("static.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    graph = batches(tmp_path, "static").dataset(range(60), 0, 1)
    damaged = bytearray((tmp_path / "static.tfrecord-00001-of-00002").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "static.tfrecord-00001-of-00002").write_bytes(damaged)
    with pytest.raises(tf.errors.DataLossError, match="corrupted record"):
        list(graph)
