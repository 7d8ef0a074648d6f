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
import numpy as np
import peers
import pytest

ROOT = Path(__file__).parents[2]
SMALL = "--quick", "--rounds=2", "--updates=2"


def benchmark(folder, *flags, without=("tensorflow",)):
    """Runs the script, with its processes, where the modules of `without` are not installed."""
    lines = ["import sys", *(f"sys.modules[{name!r}] = None" for name in without)]
    (folder / "sitecustomize.py").write_text("\n".join(lines))
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
def test_all_rows_run_in_tiny_sizes_without_tensorflow_and_two_commands_share_a_page(tmp_path):
    for name in ("jax", "optax", "torch"):
        peers.load(name)
    output = f"--output_dir={tmp_path}"
    absent = ["tensorflow", "torch", "optax"]
    done = benchmark(tmp_path, *SMALL, "--only=optimizer", output, without=absent)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"| tiny | {page.OPTAX} | left out: optax is not installed |" in done.stdout
    for way in (page.ADAMW, page.TORCH_LAMB):
        assert f"| tiny | {way} | left out: PyTorch is not installed |" in done.stdout
    done = benchmark(tmp_path, *SMALL, output, without=["tensorflow", "transformers"])
    assert done.returncode == 0, done.stderr[-3000:]
    values = json.loads((tmp_path / "gpu.json").read_text())
    text = (tmp_path / "gpu.md").read_text()
    assert text in done.stdout
    assert text.count("`python benchmarks/gpu.py --quick") == 2
    titles = ["measured", "the optimizer's step", "pre-training", "attention alone"]
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
    peer = values["rows"]["pretraining"]["tiny, 32"]["cell"]["peer"]
    assert peer == "torch"  # where there is no transformers
    row = values["rows"]["attention"]["tiny, 32"]
    assert len(row["seconds"]) == 6
    assert row["left_out"][page.CUDNN] == "cuDNN needs a GPU"
    for name in (page.ENCODER, page.XLA):  # padding has no part in either
        assert max(row["after"][name]["differences"]) < 0.02
    for part in text.split("\n## ")[1:]:
        assert len({line.count("|") for line in part.splitlines() if line[:1] == "|"}) == 1


def test_the_short_bert_computes_the_loss_of_hugging_faces():
    torch = peers.load("torch")
    peers.load("transformers")
    import gpu_torch

    torch.manual_seed(0)
    random = np.random.default_rng(0)
    batch = {
        "input_ids": random.integers(30522, size=(3, 16)),
        "input_mask": np.arange(16)[None] < np.array([[16], [9], [12]]),
        "segment_ids": random.integers(2, size=(3, 16)),
        "masked_lm_positions": np.array([[1, 4, 8], [2, 3, 0], [5, 11, 7]]),
        "masked_lm_ids": random.integers(30522, size=(3, 3)),
        "masked_lm_weights": np.array([[1, 1, 1], [1, 1, 0], [1, 1, 1]]),
        "next_sentence_labels": np.array([0, 1, 1]),
    }
    batch["example_weights"] = np.ones(3)
    cell = {"layers": 2, "hidden": 32, "heads": 2, "length": 16}
    theirs, inputs = gpu_torch._hugging_face(cell, batch)
    ours, short_inputs = gpu_torch._short(cell, batch)
    ours.load_state_dict(names_of_short_bert(theirs.state_dict(), torch))
    expected = theirs.eval()(**inputs).loss
    torch.testing.assert_close(ours.eval()(**short_inputs), expected, rtol=1e-5, atol=0)
    sizes = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
    assert sizes[0] == sizes[1] - (512 - 16) * 32  # positions beyond the length


def names_of_short_bert(theirs, torch):
    """Hugging Face's tensors under the names of `ShortBert`."""
    bert, head = "bert.embeddings.", "cls.predictions."
    pairs = {
        "words.weight": f"{bert}word_embeddings.weight",
        "segments.weight": f"{bert}token_type_embeddings.weight",
        "output_bias": f"{head}bias",
    }
    found = {name: theirs[other] for name, other in pairs.items()}
    found["positions"] = theirs[f"{bert}position_embeddings.weight"][:16]
    modules = {
        "norm": f"{bert}LayerNorm",
        "pooler": "bert.pooler.dense",
        "next_sentence": "cls.seq_relationship",
        "transform": f"{head}transform.dense",
        "transform_norm": f"{head}transform.LayerNorm",
    }
    for i in range(2):
        layer = f"bert.encoder.layer.{i}."
        modules |= {
            f"layers.{i}.self_attn.out_proj": f"{layer}attention.output.dense",
            f"layers.{i}.norm1": f"{layer}attention.output.LayerNorm",
            f"layers.{i}.linear1": f"{layer}intermediate.dense",
            f"layers.{i}.linear2": f"{layer}output.dense",
            f"layers.{i}.norm2": f"{layer}output.LayerNorm",
        }
        for kind in ("weight", "bias"):
            parts = [theirs[f"{layer}attention.self.{p}.{kind}"] for p in ("query", "key", "value")]
            found[f"layers.{i}.self_attn.in_proj_{kind}"] = torch.cat(parts)
    for name, other in modules.items():
        found |= {f"{name}.{kind}": theirs[f"{other}.{kind}"] for kind in ("weight", "bias")}
    return found


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
    cell = {"batch_size": 100, "length": 128, "updates": 20, "peer": "transformers"}
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
