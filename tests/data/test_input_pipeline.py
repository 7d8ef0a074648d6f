"""The batch of step k: the same on any number of hosts, at any time, from any kind of records."""

import gzip
import random
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from small_text import SHARED, needs_shared

from official_bert.create_pretraining_data import create_pretraining_data
from official_bert.data.input_pipeline import Batches
from official_bert.data.instances import Settings
from official_bert.data.record_files import RecordFiles

LENGTH, PREDICTIONS = 32, 5
SHAPES = {
    "input_ids": (np.int32, LENGTH),
    "input_mask": (np.int32, LENGTH),
    "segment_ids": (np.int32, LENGTH),
    "masked_lm_positions": (np.int32, PREDICTIONS),
    "masked_lm_ids": (np.int32, PREDICTIONS),
    "masked_lm_weights": (np.float32, PREDICTIONS),
    "next_sentence_labels": (np.int32,),
    "example_weights": (np.float32,),
}


@pytest.fixture(scope="module")
def made(small_text, tmp_path_factory):
    """Static and dynamic records, some thousands of each."""
    folder = tmp_path_factory.mktemp("records")
    fillings = "static_full", "dynamic_full", "static_packed", "dynamic_packed"
    for name in ("static", "dynamic", *fillings):
        kind, _, filling = name.partition("_")
        small_text.build(
            folder / f"{name}.tfrecord",
            Settings(LENGTH, PREDICTIONS, dupe_factor=2),
            do_whole_word_mask=kind == "dynamic",
            row_filling=filling or "documents",
            num_shards=3,
            input_format="paragraphs",
            dynamic_masking=kind == "dynamic",
        )
    return folder


def batches(made, kind="static", batch_size=64, **options):
    return Batches([f"{made}/{kind}.tfrecord-*"], batch_size, LENGTH, PREDICTIONS, **options)


def equal(a, b) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)


def joined(parts):
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def identity(batch) -> list[bytes]:
    return [
        ids.tobytes() + label.tobytes()
        for ids, label in zip(batch["input_ids"], batch["masked_lm_ids"], strict=True)
    ]


# In memory, and in windows much smaller than the data.
windows = pytest.mark.parametrize("window", [65536, 1024])
kinds = pytest.mark.parametrize("kind", ["static", "dynamic"])


@kinds
@windows
def test_one_two_and_four_hosts_and_a_restart_at_a_random_step_see_the_same(made, kind, window):
    whole = batches(made, kind, batch_size=96, window_records=window)
    steps = [0, 1, random.randrange(2, 200), random.randrange(200, 100_000)]
    expected = {step: whole[step] for step in steps}
    for hosts in (2, 4, 3):
        parts = [
            batches(made, kind, 96, window_records=window, shard_index=n, num_shards=hosts)
            for n in range(hosts)
        ]
        for step in steps:
            assert equal(joined([part[step] for part in parts]), expected[step])
    for step in reversed(steps):
        restarted = batches(made, kind, 96, window_records=window)
        assert equal(restarted[step], expected[step])


@kinds
@windows
def test_shapes_and_types_are_those_of_the_contract(made, kind, window):
    batch = batches(made, kind, window_records=window, shard_index=1, num_shards=2)[3]
    assert batch.keys() == SHAPES.keys()
    for key, (dtype, *shape) in SHAPES.items():
        assert batch[key].dtype == dtype
        assert batch[key].shape == (32, *shape)


def test_every_record_comes_once_an_epoch_and_in_another_order_in_the_next(made):
    data = batches(made, batch_size=50)
    records = data.num_examples
    seen = [row for step in range(2 * data.num_batches) for row in identity(data[step])]
    first, second = seen[:records], seen[records : 2 * records]
    once = Counter(identity(batches(made, batch_size=records, shuffle=False)[0]))
    assert Counter(first) == Counter(second) == once
    assert first != second


def test_windows_hold_every_record_once_an_epoch(made):
    """The rows of an epoch are spread over its windows, so only their number is told."""
    data = batches(made, batch_size=64, window_records=1024)
    window_steps = 1024 // 64
    records = data.num_examples
    windows_of_epochs = 8 * records // 1024 + 1
    seen = Counter(
        row for step in range(windows_of_epochs * window_steps) for row in identity(data[step])
    )
    everything = batches(made, batch_size=records, shuffle=False)[0]
    times = Counter(identity(everything))
    for row, copies in times.items():
        assert 8 * copies <= seen[row] <= 9 * copies


def test_the_seed_decides_the_order_and_the_masks(made):
    for kind in ("static", "dynamic"):
        a, b, c = (batches(made, kind, seed=seed) for seed in (1, 1, 2))
        assert equal(a[5], b[5])
        assert not equal(a[5], c[5])


def test_without_shuffling_the_files_come_in_order_and_the_last_batch_is_padded(made):
    paths = sorted(map(str, made.glob("static.tfrecord-*")))
    records = list(tf.data.TFRecordDataset(paths).as_numpy_iterator())
    expected = [
        list(tf.train.Example.FromString(r).features.feature["input_ids"].int64_list.value)
        for r in records
    ]
    for window in (65536, 256):
        data = batches(made, shuffle=False, window_records=window, batch_size=128)
        assert data.num_examples == len(records)
        assert data.num_batches == len(data) == -(-len(records) // 128)
        whole = joined([data[step] for step in range(data.num_batches)])
        real = whole["example_weights"] == 1
        assert real.sum() == len(records)
        assert real[: len(records)].all()
        assert whole["input_ids"][real].tolist() == expected
        assert not whole["masked_lm_weights"][~real].any()
        with pytest.raises(IndexError, match="step must be below"):
            data[data.num_batches]


@pytest.mark.parametrize("window", [65536, 256])
def test_evaluation_is_the_same_on_several_hosts_dynamic_too(made, window):
    for kind in ("static", "dynamic"):
        whole = batches(made, kind, shuffle=False, window_records=window)
        parts = [
            batches(made, kind, shuffle=False, window_records=window, shard_index=n, num_shards=4)
            for n in range(4)
        ]
        for step in (0, whole.num_batches - 1):
            assert equal(joined([part[step] for part in parts]), whole[step])


def test_a_batch_larger_than_the_data_and_of_odd_size(made):
    data = batches(made, batch_size=9999)
    assert data[0]["input_ids"].shape == (9999, LENGTH)
    assert data.num_batches == 1


@needs_shared
def test_the_original_scripts_records_are_read(tmp_path):
    path = SHARED / "bert_sample/tf_examples.tfrecord"
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    plain, zipped = (Batches([str(p)], 16, 128, 20, vocab_size=30522) for p in (path, packed))
    assert plain.num_examples == 60
    assert equal(plain[7], zipped[7])


def test_both_sets_of_feature_names_give_the_same_batches(made, small_text, tmp_path):
    create_pretraining_data(
        small_text.path,
        [str(tmp_path / f"static{n}") for n in range(3)],
        small_text.vocab_file,
        Settings(LENGTH, PREDICTIONS, dupe_factor=2),
        input_format="paragraphs",
        use_v2_feature_names=True,
        gzip_compress=True,
    )
    other = Batches([f"{tmp_path}/static?"], 64, LENGTH, PREDICTIONS)
    assert equal(other[3], batches(made)[3])


def write(path, **values):
    features = {
        "input_ids": [1] * LENGTH,
        "input_mask": [1] * LENGTH,
        "segment_ids": [0] * LENGTH,
        "masked_lm_positions": [1] * PREDICTIONS,
        "masked_lm_ids": [2] * PREDICTIONS,
        "masked_lm_weights": [1.0] * PREDICTIONS,
        "next_sentence_labels": [0],
    }
    good = dict(features)
    features |= values
    with tf.io.TFRecordWriter(str(path)) as writer:
        for each in (good, good, features):
            example = tf.train.Example()
            for name, value in each.items():
                if value is not None:
                    kind = "float_list" if isinstance(value[0], float) else "int64_list"
                    getattr(example.features.feature[name], kind).value.extend(value)
            writer.write(example.SerializeToString())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"input_ids": [1] * 31},
            "a, record 2: input_ids must have length 32; got 31. Set max_seq",
        ),
        (
            {"masked_lm_ids": [1] * 6},
            "a, record 2: masked_lm_ids must have length 5; got 6. Set max_",
        ),
        ({"input_ids": [1] * 31 + [900]}, "record 2: token ids must be .* of 800; got 900"),
        ({"masked_lm_ids": [1, 2, 3, 4, -7]}, "a, record 2: token ids must be .*; got -7"),
        ({"masked_lm_positions": [99] * 5}, "record 2: masked positions must be 0 to 31; got 99"),
        ({"segment_ids": None}, "a, record 0 with the feature 'segment_ids' and .*a, record 2 "),
    ],
)
def test_a_wrong_record_is_refused_by_name(tmp_path, values, message):
    write(tmp_path / "a", **values)
    with pytest.raises(ValueError, match=message):
        Batches([f"{tmp_path}/a"], 2, LENGTH, PREDICTIONS, vocab_size=800)[0]


def test_wrong_files_and_settings_are_refused_before_any_batch(made, tmp_path):
    with pytest.raises(
        ValueError, match=r"static.*record 0: .* must have length 64; got 32. Set max_s"
    ):
        Batches([f"{made}/static.tfrecord-*"], 2, 64, PREDICTIONS)
    with pytest.raises(
        ValueError, match="made with a vocabulary of at most .*, the model's vocab_size; got 800"
    ):
        batches(made, vocab_size=700)
    for length, padding in ((16, "16"), (512, "512: 94% would be padding")):
        message = (
            f"max_seq_length must be 32, for which .* was made; got {padding}. Set max_seq_length "
            "to 32; for a recipe, .* write {max_seq_length} in"
        )
        with pytest.raises(ValueError, match=message):
            Batches([f"{made}/dynamic.tfrecord-*"], 2, length, PREDICTIONS)
    with pytest.raises(
        ValueError, match="masked_lm_prob must be left out for records with fixed pairs and masks"
    ):
        batches(made, masked_lm_prob=0.3)
    with pytest.raises(ValueError, match="batch_size must be a multiple of 4, .*; got 10"):
        batches(made, batch_size=10, num_shards=4)
    with pytest.raises(ValueError, match="shard_index must be 0 to 3; got 4"):
        batches(made, shard_index=4, num_shards=4)
    with tf.io.TFRecordWriter(str(tmp_path / "b")) as writer:
        writer.write(tf.train.Example().SerializeToString())
    with pytest.raises(
        ValueError,
        match="b, record 0 must be a BERT pre-training record with a feature 'input_ids'",
    ):
        Batches([f"{tmp_path}/b"], 2, LENGTH, PREDICTIONS)


def test_dynamic_masks_change_from_epoch_to_epoch(made):
    data = batches(made, "dynamic", batch_size=64)
    epochs = [Counter(), Counter()]
    for epoch, seen in enumerate(epochs):
        for step in range(epoch * data.num_batches, (epoch + 1) * data.num_batches):
            seen.update(row.tobytes() for row in data[step]["input_ids"])
    assert len(epochs[0] & epochs[1]) < 0.02 * data.num_examples


def test_dynamic_records_without_next_sentence_have_one_part(made):
    batch = batches(made, "dynamic", use_next_sentence=False)[0]
    assert not batch["segment_ids"].any()
    assert not batch["next_sentence_labels"].any()


@kinds
def test_full_rows_have_no_padding_and_train_without_the_next_sentence_only(made, kind):
    data = batches(made, f"{kind}_full", batch_size=64, use_next_sentence=False)
    batch = joined([data[step] for step in range(data.num_batches)])
    assert batch["input_mask"].mean() > 0.999
    assert (batch["input_mask"].sum(1) == LENGTH).mean() > 0.97  # [SEP] is never at an end
    assert not batch["segment_ids"].any()
    assert not batch["next_sentence_labels"].any()
    assert batch["masked_lm_weights"].sum(1).min() > 0
    message = r"use_next_sentence_label must be False for .*_full.*; got True\. Give --use_next"
    with pytest.raises(ValueError, match=message):
        batches(made, f"{kind}_full")


@kinds
def test_packed_rows_number_their_sequences(made, kind):
    data = batches(made, f"{kind}_packed", batch_size=64, use_next_sentence=False)
    assert data.element_spec.keys() == data[0].keys()
    batch = joined([data[step] for step in range(data.num_batches)])
    assert batch["input_mask"].mean() > 0.98
    ids, numbers = batch["input_ids"].copy(), batch["sequence_ids"]
    row, at = np.nonzero(batch["masked_lm_weights"])
    ids[row, batch["masked_lm_positions"][row, at]] = batch["masked_lm_ids"][row, at]
    assert np.array_equal(numbers > 0, batch["input_mask"] > 0)
    (cls,) = set(ids[:, 0])  # each sequence begins with [CLS], which text does not contain
    assert np.array_equal(numbers, np.cumsum(ids == cls, axis=1) * batch["input_mask"])
    assert numbers.max() > 1
    assert not batch["next_sentence_labels"].any()


@kinds
def test_packed_rows_are_refused_by_the_graph_for_slices_in_one_line(made, kind):
    data = batches(made, f"{kind}_packed", use_next_sentence=False)
    with pytest.raises(ValueError, match=r"must not have packed rows .* --engine=jax, or") as error:
        data.dataset(range(1), 0, 1)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("other", "key"), [("static_full", "row_filling"), ("dynamic", "masking")])
def test_records_made_in_two_ways_are_not_read_together(made, other, key):
    both = [f"{made}/static.tfrecord-*", f"{made}/{other}.tfrecord-*"]
    message = f"must be made with the same settings; got manifests that differ in {key!r}"
    with pytest.raises(ValueError, match=message):
        Batches(both, 64, LENGTH, PREDICTIONS, use_next_sentence=False)


def test_packed_rows_without_a_manifest_are_refused_next_to_rows_with_one(made, tmp_path):
    packed = tmp_path / "packed.tfrecord"
    packed.write_bytes(next(made.glob("static_packed.tfrecord-*")).read_bytes())
    both = [f"{made}/static.tfrecord-*", str(packed)]
    with pytest.raises(ValueError, match=r"one kind of rows; .*static.*packed.tfrecord\."):
        Batches(both, 64, LENGTH, PREDICTIONS)


@pytest.mark.parametrize("names", [("static", "static_packed"), ("static_packed", "static")])
def test_packed_rows_among_others_are_refused_without_manifests_too(made, tmp_path, names):
    paths = [tmp_path / f"{number}.tfrecord" for number in range(2)]
    for path, name in zip(paths, names, strict=True):
        path.write_bytes(next(made.glob(f"{name}.tfrecord-*")).read_bytes())
    message = r"input_files must have one kind of rows; got rows of .*0.tfrecord and .*1.tfrecord\."
    with pytest.raises(ValueError, match=message):
        Batches(list(map(str, paths)), 4, LENGTH, PREDICTIONS, use_next_sentence=False)


def test_packed_rows_are_known_without_their_manifest(made, tmp_path):
    for kind in ("static", "static_packed"):
        for path in made.glob(f"{kind}.tfrecord-*"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    copies = [f"{tmp_path}/static_packed.tfrecord-*"], 64, LENGTH, PREDICTIONS
    assert "sequence_ids" in Batches(*copies, use_next_sentence=False)[0]
    with pytest.raises(ValueError, match=r"use_next_sentence_label must be False .*=packed\)"):
        Batches(*copies)
    both = [f"{tmp_path}/static.tfrecord-*", f"{made}/static_packed.tfrecord-*"]
    message = r"static.tfrecord-\S+ must be listed in a manifest next to it, as .*packed.* is; got"
    with pytest.raises(ValueError, match=message):
        Batches(both, 64, LENGTH, PREDICTIONS, use_next_sentence=False)


@pytest.mark.parametrize(
    ("names", "feature"),
    [
        (("static", "static_packed"), "sequence_ids"),
        (("static_packed", "static"), "sequence_ids"),
        (("static", "dynamic"), "input_mask"),
    ],
)
def test_rows_of_two_kinds_joined_into_one_file_are_refused(made, tmp_path, names, feature):
    paths = [sorted(made.glob(f"{name}.tfrecord-*"))[0] for name in names]
    joined = tmp_path / "joined.tfrecord"
    joined.write_bytes(b"".join(path.read_bytes() for path in paths))
    found = Batches(str(joined), 64, LENGTH, PREDICTIONS, use_next_sentence=False, shuffle=False)
    second = rf"record {RecordFiles(str(paths[0])).num_records} with"
    message = rf"^Records must be of one kind; (?=.*{second}).*{feature!r}"
    with pytest.raises(ValueError, match=message):
        list(map(found.__getitem__, range(found.num_batches)))


def test_dynamic_records_without_their_manifest_are_named_as_such(made, tmp_path):
    for path in made.glob("dynamic.tfrecord-*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    alone = f"{tmp_path}/dynamic.tfrecord-*"
    with pytest.raises(ValueError, match=r"record 0 must lie next to its manifest, .* no manifest"):
        Batches(alone, 64, LENGTH, PREDICTIONS)
    message = rf"^{tmp_path}.* must be listed in a manifest next to it, as .* is; got none that"
    with pytest.raises(ValueError, match=message):
        Batches([f"{made}/dynamic.tfrecord-*", alone], 64, LENGTH, PREDICTIONS)


def test_each_host_reads_whole_blocks_and_only_its_own(made, monkeypatch):
    read = RecordFiles.read
    seen = []

    def record(self, block, start=0, stop=None):
        seen.append((block, start, stop))
        return read(self, block, start, stop)

    monkeypatch.setattr(RecordFiles, "read", record)
    blocks = []
    for host in range(2):
        data = batches(made, window_records=2048, shard_index=host, num_shards=2)
        seen.clear()
        assert data[0]["input_ids"].shape == (32, LENGTH)
        data._loader.shutdown(wait=True)  # the next window too; what follows is of the first
        sizes = np.cumsum([stop - start for _, start, stop in seen])
        blocks.append({block for block, *_ in seen[: np.searchsorted(sizes, 1024) + 1]})
        assert sizes[len(blocks[-1]) - 1] == 1024  # every block once
    assert len(blocks[0] & blocks[1]) <= 1  # the one on the border of the two sections
