"""What a run writes for TensorBoard, read back: the numbers of the log, and a curve per layer."""

import dataclasses
import shutil

import events
import pytest
from small_runs import begin, log_lines, make_run, train

from official_bert.stages import LoopOptions

PLAIN = LoopOptions(log_steps=2, save_checkpoints_steps=4, tensorboard=True)


def evaluated(corpus):
    return dataclasses.replace(PLAIN, eval_steps=2, eval_files=(corpus.train,))


@pytest.fixture(scope="module")
def model_dir(small_corpus, tmp_path_factory):
    """The folder of a run of two stages that has written summaries."""
    folder = tmp_path_factory.mktemp("tensorboard") / "model"
    train(make_run(small_corpus), folder, evaluated(small_corpus))
    return folder


@pytest.mark.parametrize("kind", ["train", "eval"])
def test_the_curves_are_the_numbers_of_the_log(model_dir, kind):
    curves, _ = events.read(model_dir / "summaries" / kind)
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
def test_tensorboard_drops_what_a_return_undoes(small_corpus, model_dir, tmp_path, evaluates):
    summaries, all_steps = tmp_path / "model/summaries", [2, 4, 6, 8, 10, 12]
    shutil.copytree(model_dir, tmp_path / "model")
    for kind, name in (("train", "learning_rate"), ("eval", "loss")):
        assert events.steps(summaries / kind, name) == all_steps
    # Without evaluations, nothing new is written to theirs.
    options = evaluated(small_corpus) if evaluates else PLAIN
    begin(make_run(small_corpus), tmp_path / "model", options, resume_from=8).train()
    for name in ("learning_rate", "loss", "trust_ratios"):
        assert events.steps(summaries / "train", name) == all_steps
    kept = all_steps if evaluates else [2, 4, 6, 8]
    assert events.steps(summaries / "eval", "loss") == kept
