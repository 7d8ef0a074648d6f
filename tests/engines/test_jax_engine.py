"""The JAX engine beside TensorFlow's: the same run, losses, weights, checkpoints and messages."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys

import in_process
import jax_commands
import jax_training
import numpy as np
import packed_rows
import peers
import pytest
import tensorflow as tf
from command_processes import as_flags
from jax_training import job
from small_runs import (
    assert_same,
    final_tensors,
    forget_after,
    log_lines,
    pretraining_settings,
)

from official_bert import run_pretraining
from official_bert.commands import machine
from official_bert.commands.pretraining_settings import Pretrain
from official_bert.create_pretraining_data import create_pretraining_data
from official_bert.data.instances import Settings
from official_bert.engines import jax_processes
from official_bert.engines.jax_placement import Feed
from official_bert.engines.tf_distribute import TfDistribute
from official_bert.model.pretrainer import BertPretrainer
from official_bert.training import checkpoints

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LONG = {"max_seq_length": 64, "max_predictions_per_seq": 10, "batch_size": 8}
GROWING = [
    {"steps": 6, "depth": 1},
    {"steps": 6, "trained_layers": [1], "train_embeddings": False, "carry_moments": False},
]
LENGTHENED = [{"steps": 6}, {"steps": 6, **LONG, "new_positions": "repeat"}]
SHORT = {"stages": [{"steps": 10}]}


def settings():
    """{name: what its jobs set}, those that both engines train first."""
    return {
        "dropout": {"evaluates": True},
        "lengthened": {"stages": LENGTHENED},
        "growing": {"stages": GROWING, "model": {"num_hidden_layers": 2}},
        "diverging": {
            "stages": [{"learning_rate": 1e30, "steps": 20}],
            "options": {"max_skipped_updates": 3},
            "model": NO_DROPOUT,
        },
        "accumulating one by one": {
            "run": {"gradient_accumulation_steps": 4},
            "options": {"steps_per_loop": 1},
        },
        "stopping early": {
            "stages": [{"steps": 400, "learning_rate": 2.0, "warmup_steps": 400}],
            "optimizer": {"type": "adamw"},
            "evaluates": True,
            "options": {"eval_steps": 4, "early_stopping": 2, "steps_per_loop": 1},
        },
        "bf16": {**SHORT, "run": {"dtype": "bf16"}},
        "fp16": {**SHORT, "run": {"dtype": "fp16"}, "optimizer": {"type": "lars"}},
    }


@pytest.fixture(scope="module")
def trained(small_corpus, tmp_path_factory):
    """{(engine, name): (folder, what ended it)} of the jobs, those of JAX from one process."""
    folder = tmp_path_factory.mktemp("engines")
    found, both = {}, ("dropout", "growing", "lengthened", "diverging", "stopping early")
    for name in both:
        each = job(small_corpus, folder / "tensorflow" / name, **settings()[name])
        ended = jax_training.train(each, TfDistribute(tf.distribute.get_strategy()))
        found["tensorflow", name] = (folder / "tensorflow" / name, ended)
    jobs = {
        name: job(small_corpus, folder / "jax" / name, **each) for name, each in settings().items()
    }
    early = folder / "jax" / "stopping early"
    shutil.copytree(found["tensorflow", "stopping early"][0], early)
    forget_after(early, 5)
    resumed = folder / "jax" / "resumed"
    shutil.copytree(found["tensorflow", "dropout"][0], resumed)
    forget_after(resumed, 10)
    jobs["resumed"] = job(small_corpus, resumed, **settings()["dropout"])
    for name, result in zip(jobs, jax_training.run_jobs([*jobs.values()], folder), strict=True):
        assert not result["tensorflow"], "TensorFlow was imported"
        found["jax", name] = (folder / "jax" / name, result["ended"])
    return found


def losses(model_dir):
    return [(line["kind"], line["step"], line["loss"]) for line in log_lines(model_dir)]


def assert_losses_agree(ours, theirs, tolerance):
    assert [line[:2] for line in ours] == [line[:2] for line in theirs]
    assert len(ours) > 2
    np.testing.assert_allclose([line[2] for line in ours], [line[2] for line in theirs], tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dropout", "growing", "lengthened"])
def test_losses_and_weights_are_tensorflow_s(trained, name):
    ours, theirs = trained["jax", name][0], trained["tensorflow", name][0]
    assert_losses_agree(losses(ours), losses(theirs), 1e-4)
    assert_same(final_tensors(ours), final_tensors(theirs), atol=2e-4)


@pytest.mark.slow
def test_a_log_and_a_description_have_the_same_entries(trained):
    ours, theirs = trained["jax", "dropout"][0], trained["tensorflow", "dropout"][0]
    for mine, other in zip(log_lines(ours), log_lines(theirs), strict=True):
        assert mine.keys() == other.keys()
        for path, ratio in mine.get("trust_ratios", {}).items():
            assert ratio == pytest.approx(other["trust_ratios"][path], 1e-2), path
    assert json.loads((ours / "run.json").read_text()) == json.loads(
        (theirs / "run.json").read_text()
    )
    assert "jax" in json.loads((ours / "starts.jsonl").read_text())["versions"]


@pytest.mark.slow
def test_jax_resumes_tensorflow_s_checkpoint(trained):
    resumed, ended = trained["jax", "resumed"]
    assert ended is None
    assert len((resumed / "starts.jsonl").read_text().splitlines()) == 2
    assert_losses_agree(losses(resumed), losses(trained["tensorflow", "dropout"][0]), 1e-4)


@pytest.mark.slow
def test_tensorflow_resumes_jax_s_checkpoint(trained, small_corpus, tmp_path):
    shutil.copytree(trained["jax", "dropout"][0], tmp_path / "model")
    forget_after(tmp_path / "model", 15)
    each = job(small_corpus, tmp_path / "model", **settings()["dropout"])
    assert jax_training.train(each, TfDistribute(tf.distribute.get_strategy())) is None
    assert_losses_agree(
        losses(tmp_path / "model"), losses(trained["tensorflow", "dropout"][0]), 1e-4
    )


@pytest.mark.slow
def test_a_resumed_run_stops_early_on_jax_where_it_does_on_tensorflow(trained):
    ours, theirs = (trained[engine, "stopping early"][0] for engine in ("jax", "tensorflow"))
    assert len((ours / "starts.jsonl").read_text().splitlines()) == 2
    assert_losses_agree(losses(ours), losses(theirs), 1e-3)
    for folder in (ours, theirs):
        best = json.loads((folder / "best/best.json").read_text())["step"]
        assert best > 5  # where it was resumed
        summary = json.loads((folder / "summaries/training_summary.txt").read_text())
        assert (summary["total_training_steps"], summary["stopped_early"]) == (best + 8, True)


@pytest.mark.slow
def test_micro_batches_and_shorter_calls_give_the_same_weights_with_dropout(trained):
    whole, parts = (trained["jax", name][0] for name in ("dropout", "accumulating one by one"))
    assert_losses_agree(
        [line for line in losses(parts) if line[0] == "train"],
        [line for line in losses(whole) if line[0] == "train"],
        1e-5,
    )
    assert_same(final_tensors(parts), final_tensors(whole), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_the_arithmetic_may_have_16_bits(trained, name):
    lines = [line for line in log_lines(trained["jax", name][0]) if line["kind"] == "train"]
    exact = [line for line in log_lines(trained["jax", "dropout"][0]) if line["kind"] == "train"]
    assert lines[0]["loss"] == pytest.approx(exact[0]["loss"], 1e-2)
    assert lines[-1]["skipped_updates"] == 0
    assert lines[-1]["loss_scale"] == (2.0**15 if name == "fp16" else 1.0)
    saved = final_tensors(trained["jax", name][0])
    assert all(t.dtype == np.float32 for n, t in saved.items() if n.startswith("bert/"))


@pytest.mark.slow
def test_a_run_that_diverges_says_where(trained):
    ours, theirs = (trained[engine, "diverging"][1] for engine in ("jax", "tensorflow"))
    begin = "Gradients were not finite for 3 steps in a row, up to step "
    assert ours.startswith(begin)
    assert re.findall("First row.*?: (.*?) ", ours) == re.findall("First row.*?: (.*?) ", theirs)


class Numbered:
    """Batches that hold their step; the one of step 3 cannot be read."""

    def __getitem__(self, step):
        if step == 3:
            raise ValueError("a damaged record")
        return {"step": np.array([step])}


def test_batches_come_in_order_and_what_cannot_be_read_is_raised_where_it_is_needed():
    read, errors = [], []
    feed = Feed(Numbered(), range(1, 9), read.append, errors)
    assert [int(batch["step"][0]) for batch in feed.take(2)] == [1, 2]
    with pytest.raises(ValueError, match="a damaged record") as raised:
        feed.take(2)
    assert errors == [raised.value]
    assert [int(batch["step"][0]) for batch in read[:2]] == [1, 2]


@pytest.mark.parametrize("engine", ["tensorflow", "jax"])
def test_a_packed_batch_has_the_loss_and_the_gradients_of_its_sequences_one_by_one(engine):
    if engine == "jax":
        found = packed_rows.differences_on_jax()
    else:
        found = packed_rows.differences(TfDistribute(tf.distribute.get_strategy()))
    assert found["weights"] == found["correct"] == found["tokens"] == 0
    assert found["loss"] < 1e-6
    assert max(found["gradients"]) < 1e-6
    assert len(found["zeros"]) == 2
    assert max(found["zeros"]) < 1e-6


@pytest.mark.slow
def test_packed_records_train_alike_on_both_engines_and_resume(small_corpus, tmp_path):
    for split in ("train", "held_out"):
        lines = (small_corpus.folder / f"{split}.txt").read_text().splitlines()
        text = tmp_path / f"{split}.txt"
        text.write_text("\n\n".join(" ".join(line.split()[:5]) for line in lines if line))
        create_pretraining_data(
            str(text),
            str(tmp_path / f"{split}.tfrecord"),
            small_corpus.vocab_file,
            Settings(32, 5, row_filling="packed"),
            dynamic_masking=True,
            num_workers=1,
        )
    # Large initial values, without dropout, so that attention to other sequences shows.
    config = dataclasses.replace(small_corpus.config, initializer_range=0.2, **NO_DROPOUT)
    (tmp_path / "bert_config.json").write_text(config.to_json())
    flags = {
        "bert_config_file": tmp_path / "bert_config.json",
        "input_files": tmp_path / "train.tfrecord",
        "eval_files": tmp_path / "held_out.tfrecord",
        "max_seq_length": 32,
        "max_predictions_per_seq": 5,
        "use_next_sentence_label": False,
        "train_batch_size": 16,
        "num_steps_per_epoch": 2,
        "num_train_epochs": 1,
        "warmup_steps": 0,
        "log_steps": 1,
        "steps_per_loop": 1,
        "save_checkpoints_steps": 1,
    }

    def arguments(name):
        return [f"--{k}={v}" for k, v in {**flags, "model_dir": tmp_path / name}.items()]

    assert in_process.call(run_pretraining, Pretrain, arguments("whole")) == 0
    for copy in ("resumed", "resumed on jax"):
        shutil.copytree(tmp_path / "whole", tmp_path / copy)
        forget_after(tmp_path / copy, 1)
    assert in_process.call(run_pretraining, Pretrain, arguments("resumed")) == 0
    names = "jax", "resumed on jax"
    calls = [
        {"command": "run_pretraining", "arguments": [*arguments(name), "--engine=jax"]}
        for name in names
    ]
    assert jax_commands.run(calls, tmp_path, devices=1)[0] == [0, 0]
    whole = tmp_path / "whole"
    assert {"train", "eval"} <= {line["kind"] for line in log_lines(whole)}
    assert_same(final_tensors(tmp_path / "resumed"), final_tensors(whole))
    for name in names:
        assert_losses_agree(losses(tmp_path / name), losses(whole), 1e-4)
        assert_same(final_tensors(tmp_path / name), final_tensors(whole), atol=2e-4)


def test_a_backend_that_the_engine_overrides_is_warned_of(monkeypatch, capsys):
    for given, warned in (("jax", 1), ("tensorflow", 0)):
        monkeypatch.setenv("KERAS_BACKEND", given)
        machine.set_backend("tensorflow")
        assert os.environ["KERAS_BACKEND"] == "tensorflow"
        message = "warning: KERAS_BACKEND=jax has no effect, because the engine is tensorflow."
        assert capsys.readouterr().err.count(message) == warned


def test_a_machine_without_jax_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(
        ValueError, match=r"--engine=jax needs JAX, not installed here: `pip install "
    ):
        jax_processes.start(None, None, -1, {}, 4)


def test_a_machine_without_the_devices_that_jax_is_to_use_is_told_so():
    script = (
        "import os; from official_bert.engines import jax_processes\n"
        "jax_processes.start(None, None, -1, os.environ, 4)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env=jax_training.environment() | {"JAX_PLATFORMS": "nowhere"},
        capture_output=True,
        text=True,
    )
    said = ended.stderr.splitlines()[-1]
    assert said.startswith("ValueError: JAX finds no devices with JAX_PLATFORMS='nowhere': ")
    assert said.endswith("JAX_PLATFORMS=cpu trains on the CPU.")


@pytest.mark.slow
def test_a_machine_without_tensorflow_trains_from_a_checkpoint_and_shows_it(small_corpus, tmp_path):
    first = {"x/adam_m": np.ones(2, np.float32), "global_step": np.int64(3)}
    model = BertPretrainer(small_corpus.config, seed=3)
    weights = {variable.path: variable.numpy() for variable in model.weights}
    checkpoints.write_bundle(tmp_path / "first/bert_model.ckpt", weights | first)
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['tensorflow'] = None")
    changed = {"engine": "jax", "init_checkpoint": tmp_path / "first/bert_model.ckpt"}
    changed |= {"eval_files": small_corpus.held_out, "num_steps_per_epoch": 4, "warmup_steps": 0}
    settings = pretraining_settings(small_corpus, tmp_path, **changed, profile_steps="3,4")
    environment = jax_training.environment()
    path = os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-m", "official_bert.run_pretraining", *as_flags(settings)],
        env=environment | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert f"weights: carried {len(weights)} of {len(weights)}" in done.stdout
    summaries = tmp_path / "model/summaries"
    assert list(summaries.rglob("*.xplane.pb"))
    peers.load("tensorboard")
    assert [*summaries.glob("train/events.*")]
    assert [*summaries.glob("eval/events.*")]
