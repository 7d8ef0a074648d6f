"""What the index of a TensorFlow checkpoint may claim: only what its files hold."""

import numpy as np
import pytest
import tensorflow as tf
from bert_checkpoints import CONFIG
from bundle_tables import block, entry, header, table

from lamb_tf import bundle_index
from official_bert.checkpoints import tensor_bundles
from official_bert.system.wire_format import varint

HELD = 24  # bytes of the data file: six float32


def forge(folder, entries, data=bytes(HELD)):
    """A checkpoint of these entries whose checksums are right."""
    index = entries if isinstance(entries, bytes) else table({b"": header()} | entries)
    (folder / "a.index").write_bytes(index)
    (folder / "a.data-00000-of-00001").write_bytes(data)
    return folder / "a"


def test_what_is_whole_is_read(tmp_path):
    arrays = {
        "a/kernel": np.arange(6, dtype="float32").reshape(2, 3),
        "b": np.int64(7),
        "c": np.zeros((0, 4), "float16"),
        "d": np.array([b"x" * 300, b"", b"yz"], object),
        "e": np.ones(5, bool),
    }
    arrays |= {f"layer_{n}/{'long ' * 40}": np.full(3, n, "float64") for n in range(200)}
    tf.raw_ops.SaveV2(  # shares the beginnings of names
        prefix=str(tmp_path / "a"),
        tensor_names=[*arrays],
        shape_and_slices=[""] * len(arrays),
        tensors=[tf.convert_to_tensor(array) for array in arrays.values()],
    )
    found = tensor_bundles.read(tmp_path / "a")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name].read(), array)


def test_the_forged_form_is_that_of_tensorflow(tmp_path):
    forge(tmp_path, {b"x": entry([2, 3], size=HELD, crc32c=0)})
    shapes = tf.train.load_checkpoint(str(tmp_path / "a")).get_variable_to_shape_map()
    assert shapes == {"x": [2, 3]}
    assert bundle_index.entries(tmp_path / "a")["x"].shape == (2, 3)


def sliced():
    from tensorflow.core.protobuf import tensor_bundle_pb2 as messages

    made = messages.BundleEntryProto.FromString(entry([2, 3]))
    made.slices.add().extent.add(start=0, length=2)
    return made.SerializeToString()


CLAIMS = {
    "terabytes": (entry([2**20, 2**20, 4], size=HELD), "its shape .* needs 17,592,186,044,416"),
    "terabytes of its own file": (entry([2**42], size=2**44), "of a file of 24 bytes"),
    "more than numbers hold": (entry([2**40, 2**40], size=HELD), "has the shape"),
    "more, but for a zero": (entry([2**40, 2**40, 0]), "has the shape"),
    "a negative axis": (entry([-2, -3], size=HELD), "has the shape"),
    "too many axes": (entry([1] * 300, size=4), "has the shape"),
    "fewer bytes than its shape": (entry([2, 3], size=20), "needs 24"),
    "a place behind the end": (entry([1], size=4, offset=21), "4 bytes at 21"),
    "a negative place": (entry([1], size=4, offset=-4), "4 bytes at -4"),
    "another file": (entry([1], size=4, shard_id=1), "data file 1 of 1"),
    "no type": (entry([6], dtype=0, size=HELD), "the type 0"),
    "a type that is not known": (entry([6], dtype=99, size=HELD), "the type 99"),
    "a reference": (entry([6], dtype=101, size=HELD), "the type 101"),
    "objects": (entry([1], dtype=21, size=HELD), "of type variant"),
    "a billion strings": (entry([10**9], dtype=7, size=HELD), "1,000,000,000 strings"),
    "no message": (b"\xff\xff\xff", "'x' in its index is damaged"),
    "slices": (sliced(), "is saved in slices"),
    # Axes in two messages count together, as TensorFlow counts them.
    "two shapes": (entry([2**40], size=0) + entry([6], size=HELD), "needs 26,388,279,066,624"),
}


@pytest.mark.parametrize(("claim", "words"), CLAIMS.values(), ids=CLAIMS)
def test_a_claim_that_the_files_do_not_hold_is_refused(tmp_path, claim, words):
    prefix = forge(tmp_path, {b"x": claim})
    with pytest.raises(ValueError, match=words):
        bundle_index.entries(prefix)
    with pytest.raises(ValueError, match=r"a is not a readable TensorFlow checkpoint: ") as error:
        tensor_bundles.read_bert(prefix, CONFIG)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("count", "data", "words"),
    [
        (1, varint(2**44) + bytes(HELD), "strings of 17,592,186,044,416 bytes"),
        (2, b"\xff" * 9, r"strings of 'x' are damaged in .*a\.data-00000-of-00001"),
        (2, b"\xff" * 30, r"strings of 'x' are damaged in .*a\.data-00000-of-00001"),
    ],
    ids=["terabytes", "cut", "too long"],
)
def test_damaged_lengths_of_strings_are_refused(tmp_path, count, data, words):
    prefix = forge(tmp_path, {b"x": entry([count], dtype=7, size=len(data))}, data)
    with pytest.raises(ValueError, match=words):
        bundle_index.entries(prefix)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (b"", "not a table"),
        (b"x" * 200, "not a table"),
        (table({b"x": entry([1])})[:-1], "not a table"),
        (table({b"x": entry([1])}), "lacks the header"),
        (table({b"": header(num_shards=0)}), "claims 0 data files"),
        (table({b"": header(num_shards=2**31 - 1)}), "claims 2,147,483,647 data files"),
        (table({b"": header(), b"b": entry([]), b"a": entry([])}), "not in order"),
        (block({b"": header()}) + varint(0) * 2 + varint(2**60) * 2 + bytes(48), "not a table"),
    ],
)
def test_a_damaged_table_is_said_in_words(tmp_path, index, words):
    with pytest.raises(ValueError, match=words):
        bundle_index.entries(forge(tmp_path, index))


def test_a_block_of_terabytes_and_names_that_multiply_are_refused(tmp_path):
    whole = table({b"": header(), b"x": entry([6], size=HELD)})
    handles = varint(0) * 2 + varint(0) + varint(2**44)
    prefix = forge(tmp_path, whole[:-48] + handles.ljust(40, b"\0") + whole[-8:])
    with pytest.raises(ValueError, match="claims 17,592,186,044,416 bytes at 0"):
        bundle_index.entries(prefix)
    long = b"n" * 60_000  # 2,000 entries of some bytes would be 120 MB of names
    entries = varint(0) + varint(0) + varint(len(header())) + header()
    entries += varint(0) + varint(len(long)) + varint(0) + long
    for number in range(2_000):
        entries += varint(len(long)) + varint(2) + varint(0) + number.to_bytes(2, "big")
    prefix = forge(tmp_path, _of_one_block(entries))
    with pytest.raises(ValueError, match="too long"):
        bundle_index.entries(prefix)


def _of_one_block(entries):
    """An index whose only block of entries is given as bytes."""
    data = entries + (0).to_bytes(4, "little") + (1).to_bytes(4, "little") + bytes(5)
    index = block({b"\xff": varint(0) + varint(len(data) - 5)})
    handles = varint(0) * 2 + varint(len(data)) + varint(len(index) - 5)
    return data + index + handles.ljust(40, b"\0") + table({b"": b""})[-8:]


def test_a_data_file_that_is_missing_is_named(tmp_path):
    prefix = forge(tmp_path, {b"x": entry([6], size=HELD)})
    (tmp_path / "a.data-00000-of-00001").unlink()
    with pytest.raises(FileNotFoundError, match="data-00000"):
        bundle_index.entries(prefix)
