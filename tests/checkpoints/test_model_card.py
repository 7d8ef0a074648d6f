"""The card of an exported model: what the run's files tell, in the form that the hub reads."""

import json
import sys

import numpy as np
import peers
import pytest
from bert_checkpoints import random_tensors
from model_kinds import CLASSES, CONFIG, HEADS, make_kind

from official_bert.convert_checkpoint import convert
from official_bert.stages import Optimizer, Run, Stage
from official_bert.tasks import metrics
from official_bert.tasks.classification import Classification
from official_bert.tasks.labels import Classes
from official_bert.tasks.tables import Columns
from official_bert.training import checkpoints, model_directory, training_log
from official_bert.training.checkpoints import CheckpointStore

CACHED = "/models/models--google-bert--bert-base-uncased/snapshots/86b5"
TASKS = {
    "blanks": "fill-mask",
    "classes": "text-classification",
    "labels": "text-classification",
    "number": "text-classification",
    "answers": "question-answering",
    "tags": "token-classification",
    "vectors": "feature-extraction",
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A folder with the files that a run of `classify` leaves, written by what writes them."""
    folder = tmp_path / "run"
    make_kind("classes", folder)
    for part in folder.glob("bert_model.ckpt*"):
        part.unlink()
    tensors = {n: a for n, a in random_tensors(CONFIG).items() if not n.startswith("cls/")}
    tensors["output_weights"] = np.zeros((len(CLASSES), CONFIG.hidden_size), "f4")
    tensors["output_bias"] = np.zeros(len(CLASSES), "f4")
    CheckpointStore(folder).save(tensors, step=40, state={})
    task = Classification(
        labels=Classes((*CLASSES,)),
        columns=Columns("sentence"),
        vocab_file=str(folder / "vocab.txt"),
    )
    described = Run(
        config=CONFIG,
        stages=(Stage(steps=40, batch_size=16, max_seq_length=20, learning_rate=2e-5),),
        optimizer=Optimizer(),
        input_files=("/texts/train|1.tsv",),
        init_checkpoint=CACHED,
        seed=7,
        task=task,
    ).describe()
    model_directory.Claim(described).write(folder, CONFIG)
    log = training_log.TrainingLog(folder / "train_log.jsonl")
    for step, loss in (20, 0.7), (40, 0.625):
        log.write(kind="eval", step=step, stage=0, loss=loss, accuracy=0.5)
    monkeypatch.setattr(sys, "argv", ["/bin/lamb-bert", "classify", "--label_column=a b"])
    training_log.record_start(folder, 0, 1)
    return folder


def card_of(folder, tmp_path):
    """The card of its export, as the hub's library reads it, and what the conversion said."""
    library = peers.load("huggingface_hub")
    said = convert(folder, tmp_path / "hf", "huggingface", allow_missing_heads=True)
    return library.ModelCard.load(tmp_path / "hf/README.md"), said


def row(card, name):
    (found,) = [line for line in card.text.splitlines() if line.startswith(f"| {name} |")]
    return found.removeprefix(f"| {name} | ").removesuffix(" |")


def test_the_card_of_a_run_has_what_its_files_tell(run, tmp_path):
    metrics.write_eval_results(run, {"eval_accuracy": 0.75, "eval_loss": 0.5, "global_step": 40})
    metrics.write_results(run, {"dev_file": "/texts/dev.tsv", "runs": []})
    card, said = card_of(run, tmp_path)
    assert card.data.pipeline_tag == "text-classification"
    assert card.data.library_name == "transformers"
    assert card.data.base_model == "google-bert/bert-base-uncased"
    assert {"bert", "lamb_tf"} <= {*card.data.tags}
    assert card.data.license is None
    assert "\n# license: fill in" in (tmp_path / "hf/README.md").read_text()
    assert row(card, "labels") == ", ".join(CLASSES)
    assert row(card, "training").startswith("40 steps of 16 sequences of at most 20 word pieces")
    assert row(card, "data") == r"train\|1.tsv"
    assert row(card, "eval_accuracy") == "0.75"
    assert row(card, "seed") == "7"
    assert "After 40 steps, on dev_file dev.tsv:" in card.text
    assert "\n    lamb-bert classify '--label_column=a b'\n" in card.text
    upload = f"to upload: hf upload NAME {tmp_path / 'hf'}"
    assert f"card      fill in the licence in README.md; {upload}" in said


@pytest.mark.parametrize("step", [None, 20])
def test_scores_of_another_step_are_not_the_model_s(run, tmp_path, step):
    if step:
        metrics.write_eval_results(run, {"eval_accuracy": 0.9, "global_step": step})
    card, _ = card_of(run, tmp_path)
    assert "eval_accuracy" not in card.text
    assert row(card, "loss") == "0.625"  # of the log at step 40


@pytest.mark.parametrize("kind", HEADS)
def test_every_kind_has_a_card_even_without_a_run(tmp_path, kind):
    make_kind(kind, tmp_path / "in")
    card, _ = card_of(tmp_path / "in", tmp_path)
    assert card.data.pipeline_tag == TASKS[kind]
    assert card.data.base_model is None
    assert "training" not in card.text
    assert "## Scores" not in card.text
    assert row(card, "model") == "1 layers of width 16, 40 word pieces"
    assert row(card, "text") == "lower-cased"


def test_the_user_s_own_card_is_kept_and_said(run, tmp_path):
    (run / "README.md").write_text("---\nlicense: mit\n---\nMine.\n")
    card, said = card_of(run, tmp_path)
    assert card.data.license == "mit"
    assert card.text.strip() == "Mine."
    assert any(
        line.startswith(f"card      README.md is {run / 'README.md'}, unch") for line in said
    )


def test_a_readme_without_front_matter_is_no_card(run, tmp_path):
    (run / "README.md").write_text("# My project\n")
    card, said = card_of(run, tmp_path)
    assert "My project" not in card.text
    assert any("fill in the licence" in line for line in said)


def test_the_final_weights_have_the_last_step(run, tmp_path):
    (run / "pretrained").mkdir()
    (run / "summaries").mkdir()
    summary = {"total_training_steps": 40}
    (run / "summaries/training_summary.txt").write_text(json.dumps(summary))
    for part in run.glob("ctl_step_40.ckpt-1.*"):
        part.rename(run / "pretrained" / part.name.replace("ctl_step_40", "bert_model"))
    card, _ = card_of(run / "pretrained/bert_model.ckpt-1", tmp_path)
    assert "After 40 steps" in card.text
    assert row(card, "loss") == "0.625"


def test_a_head_for_the_next_sentence_only_is_not_said_to_fill_blanks(tmp_path):
    make_kind("blanks", tmp_path / "in")
    tensors = random_tensors(CONFIG)
    kept = {n: a for n, a in tensors.items() if not n.startswith("cls/predictions")}
    checkpoints.write_bundle(tmp_path / "in/bert_model.ckpt", kept)
    card, _ = card_of(tmp_path / "in", tmp_path)
    assert card.data.pipeline_tag is None
    assert "AutoModelForNextSentencePrediction" in card.text


def test_edited_files_leave_a_card_that_can_be_read(run, tmp_path):
    described = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(described | {"stages": "---\n", "seed": [1]}))
    labels = ["a|b\n---", "<script>", "[x](y)"]
    (run / "labels.json").write_text(json.dumps({"classes": labels}))
    for name in "starts.jsonl", "train_log.jsonl", "eval_results.txt":
        (run / name).write_text('{"command": 3}\nnull\n[[\nx = y\n{"kind": "eval", "step": 40}\n')
    card, _ = card_of(run, tmp_path)
    assert card.data.pipeline_tag == "text-classification"
    assert row(card, "labels") == r"a\|b ---, &lt;script>, [x](y)"
