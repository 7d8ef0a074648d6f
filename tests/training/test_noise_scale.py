"""The gradient noise scale of a run is that of its micro-batches, and is resumed exactly."""

import dataclasses
import re

import jax_training
import numpy as np
import pytest
import reference
import small_runs
from events import read
from jax_training import job
from small_runs import QUIET, SHORT, assert_same, final_tensors, log_lines
from two_replicas import two_replicas

from official_bert.data import input_pipeline
from official_bert.engines import loop_state, tf_update
from official_bert.engines.tf_distribute import TfDistribute
from official_bert.protocols import LoopState
from official_bert.stages import Optimizer
from official_bert.training.run_checks import check
from official_bert.training.stage_model import make_model_and_optimizer, part_of

MEASURING = dataclasses.replace(QUIET, noise_scale=True)


def scales_by_definition(run, replicas):
    """The noise scale in examples of the first update, by parts of the model and of the whole."""
    (stage,) = run.stages
    model, _ = make_model_and_optimizer(run, stage)
    files = stage.resolve(run.input_files)
    batch = input_pipeline.Batches(files, stage.batch_size, 32, 5, seed=run.seed)[0]
    micro = [
        tf_update.sums_and_gradients(run, model, batch, rows, 0, 1.0)[1]
        for rows in loop_state.micro_batches(run, stage.batch_size, replicas)
    ]
    paths = [variable.path for variable in model.trainable_variables]
    parts = {part: [part_of(path) == part for path in paths] for part in map(part_of, paths)}
    found = {}
    for part, chosen in {"": [True] * len(paths), **parts}.items():
        rows = [
            np.concatenate([np.ravel(g) for g, is_in in zip(gradients, chosen) if is_in])
            for gradients in micro
        ]
        squared_gradient, noise = reference.noise_averages([rows])
        scale = noise / squared_gradient * stage.batch_size / len(micro)
        found[part] = scale if squared_gradient > 0 else None
    return found


def test_the_first_line_has_the_noise_scale_of_its_micro_batches(small_corpus, tmp_path):
    stage = dataclasses.replace(SHORT, steps=1, batch_size=32)
    run = small_runs.make_run(small_corpus, [stage], gradient_accumulation_steps=2)
    options = dataclasses.replace(MEASURING, tensorboard=True)
    small_runs.train(run, tmp_path, options, two_replicas())
    (line,) = log_lines(tmp_path)
    expected = scales_by_definition(run, replicas=2)
    found = {"": line["noise_scale"], **line["noise_scales"]}
    assert found.keys() == expected.keys() == {"", "embeddings", "layer_0", "head"}
    assert found == pytest.approx(expected, rel=1e-3)
    curves, _ = read(tmp_path / "summaries" / "train")
    assert curves["batch_size"] == {1: 32}
    assert curves["noise_scale/head"] == {1: pytest.approx(line["noise_scales"]["head"])}


def test_a_killed_run_resumes_it_exactly_and_measuring_changes_no_weights(small_corpus, tmp_path):
    optimizer = Optimizer(type="muon")  # not one of lamb_tf's
    settings = {"gradient_accumulation_steps": 2, "dtype": "fp16", "optimizer": optimizer}
    run = small_runs.make_run(small_corpus, [SHORT], **settings)
    small_runs.assert_resumes_exactly(run, tmp_path, MEASURING, 4)
    small_runs.train(run, tmp_path / "without")
    assert_same(final_tensors(tmp_path / "without"), final_tensors(tmp_path / "whole"))
    lines = log_lines(tmp_path / "whole")
    without = [{n: v for n, v in line.items() if "noise" not in n} for line in lines]
    assert without == log_lines(tmp_path / "without") != lines


def test_averages_go_on_within_a_stage_and_begin_again_with_another():
    state = LoopState([], [], noise=[[1.0, 2.0], [3.0, 4.0]])
    zeros = [[0.0] * 2] * 2
    assert state.measuring_noise(2, afresh=False) == state
    assert state.measuring_noise(2, afresh=True).noise == zeros
    assert state.measuring_noise(3, afresh=False).noise == [[0.0] * 3] * 2
    assert state.measuring_noise(0, afresh=False).noise == [[], []]
    assert LoopState([], []).measuring_noise(2, afresh=False).noise == zeros  # of an older run


@pytest.mark.slow
def test_both_engines_measure_the_same(small_corpus, tmp_path):
    settings = {
        "stages": [{"steps": 2}],
        "run": {"gradient_accumulation_steps": 2},
        "options": {"noise_scale": True, "log_steps": 1, "steps_per_loop": 1},
        "model": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    }
    jobs = [job(small_corpus, tmp_path / name, **settings) for name in ("jax", "tensorflow")]
    jax_training.run_jobs(jobs[:1], tmp_path, devices=2)
    jax_training.train(jobs[1], TfDistribute(two_replicas()))
    ours, theirs = (log_lines(tmp_path / name) for name in ("jax", "tensorflow"))
    assert len(ours) == 2
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["noise_scale"] == pytest.approx(other["noise_scale"], rel=0.02)
        assert mine["noise_scales"] == pytest.approx(other["noise_scales"], rel=0.05)


def test_one_micro_batch_on_one_replica_is_refused_in_one_line(small_corpus):
    run = small_runs.make_run(small_corpus)
    check(run, MEASURING, replicas=2)
    with pytest.raises(ValueError, match="noise_scale must be off") as error:
        check(run, MEASURING, replicas=1)
    assert re.fullmatch(r".* got True\. Set gradient_accumulation_steps .*", str(error.value))
