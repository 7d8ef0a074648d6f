"""Checkpoints without TensorFlow: each reads the other's files."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from official_bert.checkpoints import tensor_bundles
from official_bert.system.wire_format import delimited, number
from official_bert.training import checkpoints

RNG = np.random.default_rng(0)
TENSORS = {
    **{
        f"bert/encoder/layer_{i}/{name}": RNG.standard_normal((3, i + 1)).astype(np.float32)
        for i in range(200)
        for name in ("kernel", "kernel/adam_m", "bias")
    },
    "global_step": np.int64(-7),
    "flags": np.array([True, False]),
    "empty": np.zeros((0, 3), np.float32),
    "half": np.ones(3, ml_dtypes.bfloat16),
    "ärger": np.arange(6, dtype=np.int32).reshape(1, 2, 3),
}


def assert_same(found, name):
    expected = np.asarray(TENSORS[name])
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()


def test_tensorflow_reads_what_is_written(tmp_path):
    tensor_bundles.write(tmp_path / "a", TENSORS)
    reader = tf.train.load_checkpoint(str(tmp_path / "a"))
    assert reader.get_variable_to_shape_map().keys() == TENSORS.keys()
    for name in TENSORS:
        assert_same(np.asarray(reader.get_tensor(name)), name)


def save(prefix, names):
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.convert_to_tensor(TENSORS[name]) for name in names],
    )


def test_what_tensorflow_writes_is_read_and_its_values_would_be_written_alike(tmp_path):
    names = sorted(TENSORS)
    save(tmp_path / "theirs", names)
    parts = [str(tmp_path / part) for part in ("first", "second")]
    save(parts[0], names[::2])
    save(parts[1], names[1::2])
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=parts, destination_prefix=str(tmp_path / "in two files")
    )
    for prefix in "theirs", "in two files":
        found = tensor_bundles.read(tmp_path / prefix)
        assert found.keys() == TENSORS.keys()
        for name, tensor in found.items():
            assert_same(tensor.read(), name)
    tensor_bundles.write(tmp_path / "ours", TENSORS)
    data = "{}.data-00000-of-00001".format
    assert (tmp_path / data("ours")).read_bytes() == (tmp_path / data("theirs")).read_bytes()


@pytest.mark.parametrize("part", [".index", ".data-00000-of-00001"])
def test_a_changed_byte_is_noticed_wherever_it_is(tmp_path, part):
    tensor_bundles.write(tmp_path / "a", {name: TENSORS[name] for name in ("flags", "half")})
    path = tmp_path / f"a{part}"
    whole = path.read_bytes()
    footer = 48 if part == ".index" else 0  # of which most is padding
    for place in range(len(whole) - footer):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"."):
            checkpoints.read_tensors(tmp_path / "a")
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"."):
            checkpoints.read_tensors(tmp_path / "a")


@pytest.mark.parametrize("field", [4, 5])
def test_a_place_that_is_no_number_is_refused(tmp_path, monkeypatch, field):
    """With right checksums, as a stranger would write it."""

    def number_or_text(place, value):
        return delimited(place, b"text") if place == field and value else number(place, value)

    monkeypatch.setattr(tensor_bundles, "number", number_or_text)
    tensors = {name: np.ones(3, np.float32) for name in ("first", "second")}
    tensor_bundles.write(tmp_path / "a", tensors)
    with pytest.raises(ValueError, match=r"."):
        checkpoints.read_tensors(tmp_path / "a")


def test_strings_are_written_and_read_as_tensorflow_does(tmp_path):
    values = np.array([[b"x" * 300, b""], [b"yz", "ä".encode()]], object)
    tensor_bundles.write(tmp_path / "a", {"x": values})
    ours = tf.train.load_checkpoint(str(tmp_path / "a")).get_tensor("x")
    np.testing.assert_array_equal(ours, values)
    np.testing.assert_array_equal(tensor_bundles.read(tmp_path / "a")["x"].read(), values)
    data = tmp_path / "a.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-1] + b"!")
    with pytest.raises(ValueError, match="do not match their checksum"):
        tensor_bundles.read(tmp_path / "a")["x"].read()


def test_a_type_that_checkpoints_do_not_have_is_refused(tmp_path):
    with pytest.raises(ValueError, match="must have a type that checkpoints can hold"):
        tensor_bundles.write(tmp_path / "b", {"x": np.array(["text"])})
