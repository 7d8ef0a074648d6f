"""What a run writes for TensorBoard, read back: the numbers of the log, and a curve per layer."""

import events
import pytest
import tensorflow as tf
from small_runs import LONG, SHORT, log_lines, make_run, train

from official_bert.engines.tf_distribute import TfDistribute
from official_bert.stages import LoopOptions
from official_bert.training.trainer import Trainer


@pytest.fixture(scope="module")
def model_dir(small_corpus, tmp_path_factory):
    """The folder of a run of two stages that has written summaries."""
    folder = tmp_path_factory.mktemp("tensorboard") / "model"
    evaluated = {"eval_steps": 4, "eval_files": (small_corpus.train,)}
    options = LoopOptions(log_steps=2, save_checkpoints_steps=4, tensorboard=True, **evaluated)
    train(make_run(small_corpus, (SHORT, LONG)), folder, options)
    return folder


@pytest.mark.parametrize(("kind", "folder"), [("train", "train"), ("eval", "eval")])
def test_the_curves_are_the_numbers_of_the_log(model_dir, kind, folder):
    curves, _ = events.read(model_dir / "summaries" / folder)
    lines = [line for line in log_lines(model_dir) if line["kind"] == kind]
    names = {"masked_lm_loss", "masked_lm_accuracy", "next_sentence_loss"}
    names |= {"learning_rate", "gradient_norm"} if kind == "train" else set()
    for name in names:
        assert curves[name] == pytest.approx({line["step"]: line[name] for line in lines})


def test_every_adapted_variable_has_a_curve_of_trust_ratios_and_all_of_them_a_histogram(model_dir):
    curves, histograms = events.read(model_dir / "summaries/train")
    lines = [line for line in log_lines(model_dir) if line["kind"] == "train"]
    drawn = {name: curve for name, curve in curves.items() if name.startswith("trust_ratio/")}
    expected = {}
    for line in lines:
        for path, ratio in line["trust_ratios"].items():
            if ratio not in (0, 1):
                expected.setdefault(f"trust_ratio/{path}", {})[line["step"]] = ratio
    assert {name.rpartition("/")[2] for name in drawn} >= {"kernel", "word_embeddings"}
    assert not any("LayerNorm" in name or "bias" in name for name in drawn)
    assert drawn == {name: pytest.approx(curve) for name, curve in expected.items()}
    in_all = {
        line["step"]: sum(r not in (0, 1) for r in line["trust_ratios"].values()) for line in lines
    }
    assert histograms["trust_ratios"] == in_all


@pytest.mark.parametrize("evaluates", [True, False])
def test_tensorboard_drops_what_a_return_undoes(small_corpus, tmp_path, evaluates):
    held_out = {"eval_steps": 2, "eval_files": (small_corpus.train,)}
    options = LoopOptions(log_steps=2, save_checkpoints_steps=4, tensorboard=True, **held_out)
    run = make_run(small_corpus, (SHORT,))
    train(run, tmp_path, options)
    summaries = tmp_path / "summaries"
    for kind, name in (("train", "learning_rate"), ("eval", "loss")):
        assert events.steps(summaries / kind, name) == [2, 4, 6, 8]
    if not evaluates:  # then nothing new is written there
        options = LoopOptions(log_steps=2, save_checkpoints_steps=4, tensorboard=True)
    engine = TfDistribute(tf.distribute.get_strategy())
    Trainer(run, options, engine, tmp_path, resume_from=4).train()
    for name in ("learning_rate", "loss", "trust_ratios"):
        assert events.steps(summaries / "train", name) == [2, 4, 6, 8]
    assert events.steps(summaries / "eval", "loss") == ([2, 4, 6, 8] if evaluates else [2, 4])
