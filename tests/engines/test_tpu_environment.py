"""What the environment says before TensorFlow is imported to train on a TPU."""

import os
import subprocess
import sys
from pathlib import Path

import peers
import pytest

from official_bert.system import quiet_tensorflow

ROOT = Path(__file__).parents[2]


@pytest.fixture
def chips(tmp_path):
    (tmp_path / "accel0").touch()
    return (f"{tmp_path}/vfio/[0-9]*", f"{tmp_path}/accel[0-9]*")


def test_the_tpu_of_this_host_is_a_plug_in_device(chips):
    peers.load("libtpu")
    environment = {"HOME": "/root"}
    quiet_tensorflow.prepare_tpu("local", environment, chips)
    library = environment.pop("TF_PLUGGABLE_DEVICE_LIBRARY_PATH")
    assert Path(library).name == "libtpu.so"
    assert Path(library).exists()
    assert environment == {
        "HOME": "/root",
        "PJRT_DEVICE": "TPU",
        "NEXT_PLUGGABLE_DEVICE_USE_C_API": "true",
    }


def test_what_is_set_already_stays(chips):
    peers.load("libtpu")
    environment = {"PJRT_DEVICE": "TPU", "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": "/mine/libtpu.so"}
    quiet_tensorflow.prepare_tpu("local", environment, chips)
    assert environment["TF_PLUGGABLE_DEVICE_LIBRARY_PATH"] == "/mine/libtpu.so"


def test_without_libtpu_the_extra_is_named(chips, monkeypatch):
    monkeypatch.setitem(sys.modules, "libtpu", None)
    with pytest.raises(
        ValueError, match=r"needs libtpu, not installed here: install the extra \[tpu\]"
    ):
        quiet_tensorflow.prepare_tpu("local", {}, chips)


def test_the_client_of_a_slice_does_not_look_for_chips_of_its_own():
    environment = {}
    quiet_tensorflow.prepare_tpu("my-tpu", environment)
    assert environment == {"TPU_LOAD_LIBRARY": "0"}


def test_only_a_host_without_chips_does_not_ask_for_its_slice(chips, tmp_path):
    """With chips it may be one of several hosts, and would train as if it were alone."""
    on_tpu, elsewhere = {}, {}
    quiet_tensorflow.skip_tpu_query(on_tpu, chips)
    quiet_tensorflow.skip_tpu_query(elsewhere, (f"{tmp_path}/vfio/[0-9]*",))
    assert on_tpu == {}
    assert elsewhere == {"TPU_SKIP_MDS_QUERY": "1"}


def test_a_host_without_a_tpu_is_refused_before_tensorflow_is_imported(tmp_path):
    script = (
        "import sys\n"
        "from official_bert import run_pretraining\n"
        "from official_bert.commands import commands, pretraining_settings\n"
        "args = commands.parse(pretraining_settings.Pretrain, sys.argv[1:])\n"
        "try:\n"
        "    run_pretraining._main(args)\n"
        "finally:\n"
        "    assert 'tensorflow' not in sys.modules\n"
    )
    given = {
        "bert_config_file": "bert_config.json",
        "input_files": "records",
        "model_dir": "model",
        "distribution_strategy": "tpu",
        "tpu": "local",
    }
    ended = subprocess.run(
        [sys.executable, "-c", script, *(f"--{name}={value}" for name, value in given.items())],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (
        "ValueError: No TPU could be reached as --tpu='local': this host has none" in ended.stderr
    )
