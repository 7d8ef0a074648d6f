"""The measurements on a GPU: in their small form, which needs none, and their page."""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import gpu
import gpu_page as page
import peers
import pytest

ROOT = Path(__file__).parents[2]
SMALL = "--quick", "--rounds=2", "--updates=2"
HIDE = """
import importlib.machinery

finders = importlib.machinery.PathFinder
find = finders.find_spec
finders.find_spec = lambda name, *more: None if name in {names} else find(name, *more)
"""


def benchmark(folder, *flags, without=("tensorflow",)):
    """Runs the script, with its processes, where the modules of `without` are not installed."""
    (folder / "sitecustomize.py").write_text(HIDE.format(names=list(without)))
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks/gpu.py", *flags],
        env={**environment, "PYTHONPATH": str(folder), "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
    )


def test_without_a_gpu_one_line_says_so_and_nothing_is_written(tmp_path):
    peers.load("jax")
    done = benchmark(tmp_path, f"--output_dir={tmp_path}/out")
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("JAX sees no GPU here")
    assert "--quick" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("absent", ["jax", "keras", "google_crc32c"])
def test_what_is_not_installed_is_said_in_one_line(tmp_path, absent):
    done = benchmark(tmp_path, *SMALL, without=["tensorflow", absent])
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert absent in line
    assert "pip install" in line


@pytest.mark.parametrize(
    "flags", [["--quick", "--length=128"], ["--rounds=0"], ["--base_tokens=511"]], ids=" ".join
)
def test_a_flag_that_cannot_be_followed_is_refused_in_a_line(flags, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu.py", *flags])
    assert flags[-1].partition("=")[0] in gpu.refused(gpu.parse())


def test_rows_of_another_machine_or_other_versions_are_not_kept(tmp_path):
    arguments = argparse.Namespace(quick=False, output_dir=tmp_path)
    here = {"platform": "gpu", "kind": "A Fine GPU"}
    values = gpu.first_values(arguments, here)
    values["rows"]["optimizer"] = {"BERT-Base": {}}
    (tmp_path / "gpu.json").write_text(json.dumps(values))
    assert gpu.first_values(arguments, here) == values
    (tmp_path / "gpu.json").write_text(json.dumps(values).replace("keras 3", "keras 2"))
    assert gpu.first_values(arguments, here)["rows"] == {}


@pytest.mark.slow
def test_all_rows_run_in_tiny_sizes_without_tensorflow(tmp_path):
    for name in ("jax", "optax", "torch", "transformers"):
        peers.load(name)
    output = f"--output_dir={tmp_path}"
    done = benchmark(tmp_path, *SMALL, output)
    assert done.returncode == 0, done.stderr[-3000:]
    values = json.loads((tmp_path / "gpu.json").read_text())
    text = (tmp_path / "gpu.md").read_text()
    assert text in done.stdout
    titles = ["Conditions", "The optimizer's step", "Pre-training", "Attention alone"]
    assert re.findall("^## (.*)", text, re.MULTILINE) == titles
    rows = {section: list(rows) for section, rows in values["rows"].items()}
    of_length = ["tiny, 32"]
    assert rows == {"optimizer": ["tiny"], "pretraining": of_length, "attention": of_length}
    every = [row for rows in values["rows"].values() for row in rows.values()]
    assert [row["errors"] for row in every] == [{}] * 3
    assert all(len(s) == 2 and min(s) > 0 for row in every for s in row["seconds"].values())
    steps = set(values["rows"]["optimizer"]["tiny"]["seconds"]) - {page.TORCH_LAMB}
    programs = {page.many_steps(name, 2) for name in (page.LAMB, page.OPTAX)}
    assert steps == {page.LAMB, page.OPTAX, page.ADAMW, page.COPY} | programs
    assert set(values["rows"]["pretraining"]["tiny, 32"]["seconds"]) == {page.LOOP, page.PEER}
    row = values["rows"]["attention"]["tiny, 32"]
    assert len(row["seconds"]) == 6
    assert row["left_out"][page.CUDNN] == "cuDNN needs a GPU"
    for name in (page.ENCODER, page.XLA):  # padding has no part in either
        assert max(row["after"][name]["differences"]) < 0.02
    for part in text.split("\n## ")[1:]:
        assert len({line.count("|") for line in part.splitlines() if line[:1] == "|"}) == 1


def row(seconds, cell, **more):
    return {
        "seconds": seconds,
        "errors": {},
        "left_out": {},
        "after": {},
        "idle_load": 0.0,
        "cell": cell,
    } | more


def test_the_share_of_the_bandwidth_is_of_the_bytes_that_a_step_must_move():
    # A copy of 2 GB in 2 ms: 2 TB/s. LAMB moves 40 bytes per parameter, AdamW 28.
    seconds = {page.LAMB: [0.04, 0.05], page.ADAMW: [0.02, 0.02], page.COPY: [0.002, 0.002]}
    cell = {"parameters": 10**9, "copied_bytes": 2 * 10**9}
    _, lamb, adamw, _ = page.optimizer({"x": row(seconds, cell)})
    assert lamb == ["x", page.LAMB, "45", "1.00 (1.00, 1.00)", "889", "45 % (40 %, 50 %)"]
    assert adamw == ["x", page.ADAMW, "20", "0.45 (0.40, 0.50)", "1,400", "70 % (70 %, 70 %)"]
    del seconds[page.COPY]  # there was no memory for it
    _, _, adamw, copy = page.optimizer({"x": row(seconds, cell, errors={page.COPY: "x"})})
    assert adamw == ["x", page.ADAMW, "20", "0.45 (0.40, 0.50)", "1,400", "–"]
    assert copy == ["x", "copy", "failed: x", "", "", ""]


def test_mfu_and_memory_are_those_of_the_side_and_what_failed_is_said():
    cell = {"batch_size": 100, "length": 128, "updates": 20}
    ours = {"peak_bytes": 3 * 2**30, "input_wait": 0.05, "step_flops": 10**14, "peak_flops": 4e14}
    known = {page.LOOP: ours, page.PEER: {"peak_bytes": 2**31}}
    seconds = {page.LOOP: [0.5, 0.5], page.PEER: [1.0, 1.0]}
    _, loop, peer = page.pretraining({"x": row(seconds, cell, after=known)})
    assert loop[1:] == [page.LOOP, "25,600", "50.0 %", "3.0", "10.0 %", "1.00 (1.00, 1.00)"]
    assert peer[1:] == [page.PEER, "12,800", "25.0 %", "2.0", "–", "2.00 (2.00, 2.00)"]
    errors = {page.LOOP: "XlaRuntimeError: Out of memory | 5"}
    after = {page.PEER: {}, page.LOOP: ours}
    rows = page.pretraining({"x": row({page.PEER: [1.0]}, cell, after=after, errors=errors)})
    assert rows[1][1:] == [page.PEER, "12,800", "25.0 %", "–", "–", "–"]
    said = "failed: XlaRuntimeError: Out of memory / 5"
    assert rows[2] == ["x", page.LOOP, said, *[""] * 4]
