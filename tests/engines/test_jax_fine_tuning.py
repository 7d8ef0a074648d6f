"""Fine-tuning and `official_bert.load` on JAX without TensorFlow, compared with TensorFlow."""

import json
import shutil
import subprocess
import sys

import in_process
import jax_commands
import jax_training
import numpy as np
import pytest
from bert_checkpoints import make_source
from command_processes import as_flags, eval_results, without
from small_runs import assert_same, final_tensors, forget_after, log_lines

import official_bert
from official_bert import convert_checkpoint, run_classifier, run_squad, run_tagger

TRAINING = {"num_train_epochs": 1, "learning_rate": 5e-3, "log_steps": 2, "do_train": True}
TRAINING |= {"save_checkpoints_steps": 2, "keep_checkpoint_max": 0}
EVALUATION = {"do_eval": True, "do_predict": True}
MODULES = {
    "classes": run_classifier,
    "numbers": run_classifier,
    "labels": run_classifier,
    "questions": run_squad,
    "tags": run_tagger,
}
BLANKS = ["The cat [MASK] on a mat.", "[MASK]"]


def settings_of(kind, small, folder):
    """The flags of a training of 4 or 5 steps on either engine."""
    (folder / f"{kind}.json").write_text(small.config.to_json())
    shared = TRAINING | EVALUATION | {"max_seq_length": 32, "train_file": small.train}
    shared |= {"bert_config_file": folder / f"{kind}.json", "vocab_file": small.vocab_file}
    if kind == "questions":
        windows = {"doc_stride": 10, "max_query_length": 8, "train_batch_size": 6}
        return shared | windows | {"predict_file": small.dev}
    files = {"dev_file": small.dev, "predict_file": small.unlabelled, "train_batch_size": 12}
    labels = {
        "numbers": {"label_type": "number", "label_column": "score"},
        "labels": {"multi_label": True, "label_column": "labels"},
    }
    return shared | files | labels.get(kind, {})


def command(kind, settings):
    """A call for the process of JAX."""
    name = MODULES[kind].__name__.rpartition(".")[2]
    return {"command": name, "arguments": ["--engine=jax", *as_flags(settings)]}


def call(kind, settings):
    """The same in this process, on TensorFlow."""
    module = MODULES[kind]
    kind = {run_classifier: "Classify", run_squad: "Squad", run_tagger: "Tag"}[module]
    assert in_process.call(module, getattr(module, kind), as_flags(settings)) == 0


def copied(source, target, until=None):
    """A model directory without scores and predictions, as a kill after a checkpoint leaves it."""
    ignored = shutil.ignore_patterns("*results*", "*predictions*")
    shutil.copytree(source, target, ignore=ignored)
    if until:
        forget_after(target, until)


@pytest.fixture(scope="module")
def examples(small_sentences, small_questions, small_tags):
    """The examples of each kind."""
    others = {"questions": small_questions, "tags": small_tags}
    return {kind: others.get(kind, small_sentences) for kind in MODULES}


@pytest.fixture(scope="module")
def runs(examples, tmp_path_factory):
    """A folder with ENGINE/KIND of both engines, and the predictions of models that JAX loaded."""
    folder = tmp_path_factory.mktemp("engines")
    settings = {kind: settings_of(kind, small, folder) for kind, small in examples.items()}
    calls = []
    for kind, flags in settings.items():
        call(kind, flags | {"output_dir": folder / "tensorflow" / kind})
        copied(folder / "tensorflow" / kind, folder / "used" / kind)
        for name, some in ("jax", flags), ("used", without(flags, *TRAINING)):
            calls.append(command(kind, some | {"output_dir": folder / name / kind}))
    copied(folder / "tensorflow" / "questions", folder / "resumed", until=2)
    calls.append(command("questions", settings["questions"] | {"output_dir": folder / "resumed"}))
    assert jax_commands.run(calls, folder)[0] == [0] * len(calls)
    copied(folder / "jax" / "questions", folder / "back", until=2)
    call("questions", settings["questions"] | {"output_dir": folder / "back"})
    return folder


def outputs(folder, kind):
    """The numbers of a model's predictions."""
    if kind == "tags":
        classes = json.loads((folder / "labels.json").read_text())["classes"]
        lines = (folder / "predictions.txt").read_text().splitlines()
        return np.array([classes.index(line.split()[-1]) for line in lines if line])
    if kind != "questions":
        return np.loadtxt(folder / "test_results.tsv", ndmin=2)
    found = json.loads((folder / "nbest_predictions.json").read_text())
    return np.array([[one[0]["start_logit"], one[0]["end_logit"]] for one in found.values()])


@pytest.mark.parametrize("kind", MODULES)
def test_predictions_and_scores_of_a_checkpoint_are_those_of_tensorflow(runs, kind):
    ours, theirs = runs / "used" / kind, runs / "tensorflow" / kind
    np.testing.assert_allclose(outputs(ours, kind), outputs(theirs, kind), atol=1e-5)
    # A correlation of numbers that are nearly the same multiplies round-off.
    tolerance = 1e-3 if kind == "numbers" else 1e-5
    assert eval_results(ours) == pytest.approx(eval_results(theirs), abs=tolerance)


# A softmax over positions does not see a bias: its gradient is only round-off.
def assert_trained_alike(ours, theirs, atol):
    tensors = [without(final_tensors(f), "cls/squad/output_bias") for f in (ours, theirs)]
    assert_same(*tensors, atol=atol)
    for one, other in zip(log_lines(ours), log_lines(theirs), strict=True):
        assert one["kind"] == other["kind"]
        numbers = [{n: v for n, v in x.items() if isinstance(v, float)} for x in (one, other)]
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-4)


@pytest.mark.parametrize("kind", MODULES)
def test_training_and_held_out_metrics_are_those_of_tensorflow(runs, kind):
    """On two devices, with dropout."""
    assert_trained_alike(runs / "jax" / kind, runs / "tensorflow" / kind, atol=1e-4)


def test_each_engine_resumes_what_the_other_began(runs):
    assert_trained_alike(runs / "resumed", runs / "tensorflow" / "questions", atol=1e-4)
    assert_trained_alike(runs / "back", runs / "jax" / "questions", atol=1e-4)


def test_models_of_every_kind_and_format_are_used_without_tensorflow(runs, tmp_path):
    make_source(tmp_path / "google")
    convert_checkpoint.convert(tmp_path / "google", tmp_path / "hf", "huggingface")
    convert_checkpoint.convert(tmp_path / "google", tmp_path / "keras", "keras")
    questions = [["Where does Anna live?", "Anna lives in Rome. Ben lives in New Delhi. " * 3]] * 3
    sentences = ["return it", "", "keep " * 40]
    asked = {runs / "tensorflow" / "classes": sentences, runs / "jax" / "numbers": sentences}
    asked |= {runs / "tensorflow" / kind: sentences for kind in ("labels", "tags")}
    asked |= {runs / "jax" / "questions": questions}
    asked |= {tmp_path / name: BLANKS for name in ("google", "hf", "keras")}
    calls = [{"load": str(folder), "predict": texts} for folder, texts in asked.items()]
    arguments = [f"--model_dir={tmp_path}/hf", BLANKS[0]]
    blanks = {"command": "commands.fill_blanks", "arguments": arguments}
    (*found, code), said = jax_commands.run([*calls, blanks], tmp_path)
    assert code == 0
    assert all(line.startswith("warning: strip_accents is on") for line in said.splitlines())
    for ours, (folder, texts) in zip(found, asked.items(), strict=True):
        theirs = json.loads(json.dumps(official_bert.load(folder).predict(texts)))
        assert_alike(ours, theirs)


def assert_alike(ours, theirs):
    """Nested lists and dictionaries that differ in numbers by round-off."""
    if isinstance(theirs, dict):
        assert [*ours] == [*theirs]
        ours, theirs = [*ours.values()], [*theirs.values()]
    if isinstance(theirs, list):
        for one, other in zip(ours, theirs, strict=True):
            assert_alike(one, other)
    else:
        assert ours == (pytest.approx(theirs, abs=1e-4) if isinstance(theirs, float) else theirs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "engine"),
    [*((kind, "jax") for kind in ("classes", "questions", "tags")), ("questions", "tensorflow")],
)
def test_two_workers_train_score_and_predict_as_one(runs, examples, tmp_path, kind, engine):
    settings = settings_of(kind, examples[kind], tmp_path)
    settings |= {"engine": engine, "local_workers": 2, "output_dir": tmp_path / "model"}
    name = MODULES[kind].__name__
    done = subprocess.run(
        [sys.executable, "-m", name, *as_flags(settings)],
        env=jax_training.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    theirs = runs / "tensorflow" / kind
    assert_trained_alike(tmp_path / "model", theirs, atol=1e-4)
    np.testing.assert_allclose(outputs(tmp_path / "model", kind), outputs(theirs, kind), atol=1e-3)
    assert eval_results(tmp_path / "model") == pytest.approx(eval_results(theirs), abs=1e-4)
    said = {"classes": "predicted 26 examples", "questions": "answered 12", "tags": "tagged "}
    assert done.stdout.count(said[kind]) == 1
    assert "[1] worker 1 of 2" in done.stdout
