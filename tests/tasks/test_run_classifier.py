"""The command: its flags, what it leaves, several seeds, and that killing it changes nothing."""

import contextlib
import csv
import io
import json
import shutil
import signal
import statistics
import time
from pathlib import Path

import in_process
import numpy as np
import peers
import pytest
from bert_checkpoints import make_hugging_face, make_source
from command_processes import (
    OF_TRAINING,
    as_flags,
    assert_flags_of_the_official_script,
    assert_the_same_after_a_kill,
    eval_results,
    in_a_copy,
    small_training,
    start,
    without,
)
from small_runs import SHORT, final_tensors, log_lines, train
from small_runs import make_run as make_pretraining
from small_sentences import label_task
from small_text import SHARED

import official_bert
from official_bert import convert_checkpoint, run_classifier
from official_bert.commands import fine_tuning
from official_bert.run_classifier import Classify
from official_bert.tasks import glue, metrics

GLUE = SHARED / "glue"


NO_TABLES = {"train_file": None, "dev_file": None}


def call(settings):
    return in_process.call(run_classifier, Classify, as_flags(settings))


def flags_of(small_sentences, folder):
    return small_training(
        small_sentences,
        folder,
        dev_file=small_sentences.dev,
        max_seq_length=32,
        train_batch_size=10,
        num_train_epochs=2,
        log_steps=5,
    )


def evaluation(settings):
    return without(settings, *OF_TRAINING)


@pytest.fixture
def files(small_sentences, tmp_path):
    return flags_of(small_sentences, tmp_path)


@pytest.fixture(scope="module")
def done(small_sentences, tmp_path_factory):
    """A function of more flags that trains, evaluates and predicts; returns all flags."""

    def done(**more):
        settings = flags_of(small_sentences, tmp_path_factory.mktemp("done"))
        settings |= {"do_predict": True, "predict_file": small_sentences.unlabelled} | more
        assert call(settings) == 0
        return settings

    return done


@pytest.fixture(scope="module")
def whole(done):
    """The flags of a training on classes, its stdout and its stderr."""
    said, warned = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(warned):
        settings = done()
    return settings, said.getvalue(), warned.getvalue()


@pytest.fixture(scope="module")
def numbers(done):
    return done(label_type="number", label_column="score")


@pytest.fixture(scope="module")
def mrpc(done, tmp_path_factory):
    """The flags of a training on a folder of GLUE."""
    return done(**NO_TABLES, predict_file=None, **write_mrpc(tmp_path_factory.mktemp("mrpc")))


@pytest.fixture(scope="module")
def several(done):
    """The flags of two trainings on sets of labels."""
    return done(multi_label=True, label_column="labels", num_seeds=2, num_train_epochs=20)


@pytest.fixture
def trained(whole, tmp_path):
    return in_a_copy(whole[0], tmp_path / "trained")


def read_table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


# Flags


def test_flags_of_the_official_script_keep_their_names_and_defaults():
    defaults = {"max_seq_length": 128, "do_eval": False, "eval_batch_size": 8}
    assert_flags_of_the_official_script(Classify, defaults, "data_dir task_name")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"use_tpu": True}, "--use_tpu is --distribution_strategy=tpu here."),
        ({"model_dir": "x"}, "--model_dir is called --output_dir here."),
        ({"vocab_file": ""}, "--vocab_file is required, or --init_checkpoint, whose"),
        ({"do_train": False, "do_eval": False}, "nothing to do: give --do_train"),
        ({"do_predict": True}, "--predict_file is required with --do_predict."),
        ({"task_name": "MRPC"}, "--train_file, --dev_file: --task_name=MRPC sets these"),
        (NO_TABLES | {"task_name": "MRPC"}, "--data_dir is required with --task_name"),
        (
            NO_TABLES | {"task_name": "MPRC", "data_dir": "."},
            "task_name must be one of CoLA",
        ),
        (
            NO_TABLES | {"task_name": "MRPC", "data_dir": "/nowhere"},
            "got '/nowhere', without train.tsv",
        ),
        ({"label_type": "star"}, "--label_type must be class or number; got 'star'."),
        ({"distribution_strategy": "tpu"}, "--tpu is required with distribution_strategy=tpu"),
        (
            {"do_train": False, "train_file": None, "num_seeds": 2, "init_checkpoint": "a"},
            "--num_seeds: --init_checkpoint is one model",
        ),
        ({"engine": "torch"}, "--engine must be tensorflow or jax; got 'torch'. On torch, only"),
        ({"num_seeds": 2, "resume_from": 3}, "--resume_from: works on a single run"),
        ({"learning_rate": "nan"}, "--learning_rate must be a finite number; got nan."),
        (
            {"output_dir": "gs://a/b"},
            "output_dir must be a path on this machine; got the address 'gs://a/b'",
        ),
        ({"train_file": "/nowhere/a.tsv"}, "/nowhere/a.tsv must be an existing file; got none."),
        ({"train_file": "/nowhere/a.xlsx"}, "must have a name that ends in .tsv"),
        ({"dev_file": "/nowhere/b.csv"}, "/nowhere/b.csv must be an existing file; got none."),
        (
            {"label_column": "stars"},
            "must have one column 'stars'; got none. Its first line names 'sentence', 'other', "
            "'label', 'score', 'labels'. Name one with --label_column.",
        ),
        ({"label_column": "sentence"}, "label must be different columns; got 'sentence'"),
        ({"label_type": "number"}, "the label must be a number; got 'plain'."),
        ({"label_column": "score"}, "Give --label_type=number to predict numbers (regression), or"),
        ({"bert_config_file": "/nowhere/c.json"}, "/nowhere/c.json"),
        (
            {"vocab_file": "/nowhere/v.txt"},
            "vocab_file must be an existing file; got '/nowhere/v.txt'",
        ),
        ({"init_checkpoint": "/nowhere/a.ckpt"}, "/nowhere/a.ckpt must be a folder with"),
        ({"max_seq_length": 65}, "--max_seq_length must be at most 64, the model's"),
        ({"max_seq_length": 2}, "max_seq_length must be at least 3, for [CLS] and"),
        ({"multi_label": True, "label_type": "class"}, "--label_type: --multi_label predicts lab"),
        (
            {"multi_label": True, "class_weights": "balanced"},
            "--class_weights: only classes have weights; leave it out with --multi_label",
        ),
        (
            {"label_type": "number", "label_column": "score", "class_weights": "balanced"},
            "--class_weights: only classes have weights",
        ),
        ({"class_weights": ""}, "must be balanced, a JSON object such as"),
        ({"class_weights": "/nowhere/w.json"}, "must be balanced, a JSON object such as"),
        ({"class_weights": '{"plain": 1}'}, "for each of 'begun', 'plain' and no other; got 'pl"),
        ({"num_train_epochs": 0.1}, "must give at least one step; got 0.1 of 50 examples"),
        (
            {"optimizer_type": "sgd"},
            "optimizer_type must be lamb, adamw, lars, orscale, muon or MODULE:CLASS, such as "
            "keras.optimizers:Adam; got 'sgd'",
        ),
        ({"dtype": "int8"}, "dtype must be fp32 or bf16 or fp16"),
        ({"layer_decay": 0}, "--layer_decay must be above 0 and at most 1; got 0."),
        (
            {"gradient_accumulation_steps": 3},
            "must be a multiple of 3 = 1 replicas × 3 micro-batches (gradient_accumulation_steps)",
        ),
        ({"freeze": "layer_[0-5"}, "freeze must contain regular expressions; got 'layer_[0-5'"),
        ({"freeze": "embeddings/,layer_9/"}, "path; got 'layer_9/', which matches none"),
        ({"freeze": "."}, "freeze must leave some variables to train, such as the head; got '.'"),
    ],
)
def test_what_cannot_work_ends_with_one_line_before_any_work(files, capsys, changed, message):
    assert call(files | changed) == 2
    error = capsys.readouterr().err
    assert message in error
    *before, last = error.splitlines()
    assert last.startswith("run_classifier: error: ")
    assert all(line.startswith("warning: training starts from random weights") for line in before)
    assert not list(Path(files["output_dir"]).glob("ctl_step*"))


# What it leaves


def test_layer_wise_rates_and_frozen_layers_are_flags_and_part_of_the_run(files, capsys):
    settings = without(files, "dev_file", "do_eval") | {"num_train_epochs": 1}
    both = {"layer_decay": 0.8, "freeze": "embeddings/,layer_0/attention"}
    assert call(settings | both) == 0
    assert "has no effect" not in capsys.readouterr().out
    described = json.loads((Path(files["output_dir"]) / "run.json").read_text())["optimizer"]
    assert described["layer_decay"] == 0.8
    assert described["freeze"] == ["embeddings/", "layer_0/attention"]
    tensors = final_tensors(Path(files["output_dir"]))
    assert "output_weights/adam_m" in tensors
    assert "bert/embeddings/word_embeddings/adam_m" not in tensors
    assert call(settings) == 2
    assert "optimizer.freeze was" in capsys.readouterr().err


def test_it_trains_evaluates_and_predicts(whole, small_sentences):
    settings, said, warned = whole
    folder = Path(settings["output_dir"])
    assert "training starts from random weights" in warned
    found = read_table(folder / "predictions.tsv")
    assert [row["index"] for row in found] == [str(n) for n in range(26)]
    truth = read_table(small_sentences.dev)  # the same sentences
    hits = [row["prediction"] == true["label"] for row, true in zip(found, truth, strict=True)]
    results = eval_results(folder)
    assert results["eval_accuracy"] == sum(hits) / 26
    assert results["eval_majority_class_accuracy"] == 0.5
    assert results["global_step"] == 10
    assert f"{results['eval_accuracy']:.4f}" in said
    assert json.loads((folder / "results.json").read_text())["runs"][0]["metrics"] == {
        name: value for name, value in results.items() if name != "global_step"
    }
    probabilities = np.loadtxt(folder / "test_results.tsv", delimiter="\t")
    np.testing.assert_allclose(probabilities.sum(1), 1)
    names = np.array(["begun", "plain"])  # in the order of their letters
    assert names[probabilities.argmax(1)].tolist() == [row["prediction"] for row in found]
    held_out = [line for line in log_lines(folder) if line["kind"] == "eval"][-1]
    assert results["eval_loss"] == pytest.approx(held_out["loss"], abs=1e-5)
    assert results["eval_accuracy"] == held_out["accuracy"]


def test_a_loaded_model_predicts_what_the_command_did(whole, numbers, mrpc, small_sentences):
    sentences = [row["sentence"] for row in read_table(small_sentences.unlabelled)]
    for settings, texts in (whole[0], sentences), (mrpc, [("a", "b")] * 5):
        folder = Path(settings["output_dir"])
        for model in map(official_bert.load, (folder, folder / "pretrained")):
            assert (model.max_seq_length, model.takes_pairs) == (32, settings is mrpc)
            found = [[*one.probabilities.values()] for one in model.predict(texts)]
            wanted = np.loadtxt(folder / "test_results.tsv")
            np.testing.assert_allclose(found, wanted, atol=1e-5)
    found = official_bert.load(numbers["output_dir"]).predict(sentences)
    wanted = [row["prediction"] for row in read_table(f"{numbers['output_dir']}/predictions.tsv")]
    assert [one.number for one in found] == pytest.approx([*map(float, wanted)], abs=1e-5)


def test_a_model_reads_texts_of_the_length_of_its_training(trained, capsys):
    named = without(trained, "do_train", "max_seq_length")
    assert fine_tuning.resolve_paths(Classify(**named), ()).max_seq_length == 32
    another = Classify(**named, max_seq_length=9)
    assert fine_tuning.resolve_paths(another, ()).max_seq_length == 9
    warned = "--max_seq_length=9 is not the length that the model was trained"
    assert warned in capsys.readouterr().err


def test_evaluation_and_prediction_alone_take_the_model_of_the_folder(trained, capsys):
    folder = Path(trained["output_dir"])
    names = ("eval_results.txt", "predictions.tsv", "test_results.tsv")
    before = {name: (folder / name).read_text() for name in names}
    for name in names:
        (folder / name).unlink()
    in_folder = "bert_config_file", "vocab_file"
    assert call(without(trained, "do_train", *in_folder)) == 0  # a script's flags
    assert capsys.readouterr().err == (
        "warning: --train_file, --train_batch_size, --learning_rate, --num_train_epochs, --beta_2, "
        "--log_steps have no effect without --do_train.\n"
    )
    assert {name: (folder / name).read_text() for name in names} == before


def test_numbers_are_written_with_their_digits(numbers, small_sentences):
    folder = Path(numbers["output_dir"])
    predictions = [float(row["prediction"]) for row in read_table(folder / "predictions.tsv")]
    truth = [float(row["score"]) for row in read_table(small_sentences.dev)]
    results = eval_results(folder)
    assert results["eval_pearson"] == pytest.approx(np.corrcoef(predictions, truth)[0, 1], rel=1e-4)
    errors = np.square(np.subtract(predictions, truth))
    assert results["eval_mean_squared_error"] == pytest.approx(errors.mean(), rel=1e-5)
    assert results["eval_mean_label_squared_error"] == pytest.approx(np.var(truth))


def test_sets_of_labels_are_predicted_and_scored_as_by_scikit_learn(several, small_sentences):
    theirs = peers.load("sklearn.metrics")
    results = json.loads((Path(several["output_dir"]) / "results.json").read_text())
    scores = {run["output_dir"]: run["metrics"]["eval_f1_micro"] for run in results["runs"]}
    best = results["best"]["output_dir"]
    assert scores[best] == max(scores.values()) > 0.5
    folder, found = Path(best), eval_results(best)
    assert json.loads((folder / "labels.json").read_text()) == {"labels": ["begun", "noun", "verb"]}
    names = ("begun", "noun", "verb")
    sets = [row["labels"].split("|") for row in read_table(small_sentences.dev)]
    truth = np.array([[name in row for name in names] for row in sets])
    assert not truth.any(1).all()  # some have none
    probabilities = np.loadtxt(folder / "test_results.tsv")  # of the same sentences
    for average in "micro", "macro":
        expected = theirs.f1_score(truth, probabilities > 0.5, average=average)
        assert found[f"eval_f1_{average}"] == pytest.approx(expected)
    expected = theirs.average_precision_score(truth, probabilities)
    assert found["eval_mean_average_precision"] == pytest.approx(expected)
    assert found["eval_loss"] == pytest.approx(
        theirs.log_loss(truth.ravel(), probabilities.ravel())
    )
    rows = [row["prediction"] for row in read_table(folder / "predictions.tsv")]
    predicted = [[*filter(None, row.split("|"))] for row in rows]
    above = [[n for n, p in zip(names, row) if p > 0.5] for row in probabilities]
    assert predicted == above
    sentences = [row["sentence"] for row in read_table(small_sentences.unlabelled)]
    loaded = official_bert.load(folder).predict(sentences)
    assert [sorted(one.labels) for one in loaded] == predicted


def test_a_model_of_several_labels_is_that_of_transformers_both_ways(
    several, small_sentences, tmp_path, capsys
):
    torch, transformers = peers.load("torch"), peers.load("transformers")
    source = Path(several["output_dir"]) / "seed_12345"
    convert_checkpoint.convert(source, tmp_path / "hf", "huggingface")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf")
    task = label_task(small_sentences)
    arrays = task.labelled_arrays(small_sentences.dev, 32, small_sentences.config)
    batch = {name: torch.from_numpy(rows) for name, rows in arrays.items()}
    with torch.no_grad():
        outputs = theirs.eval()(
            input_ids=batch["input_ids"],
            attention_mask=batch["input_mask"],
            token_type_ids=batch["segment_ids"],
            labels=batch["labels"],
        )
    loss = eval_results(source)["eval_loss"]
    assert outputs.loss.item() == pytest.approx(loss, abs=1e-5)
    probabilities = np.loadtxt(source / "test_results.tsv")
    np.testing.assert_allclose(torch.sigmoid(outputs.logits), probabilities, atol=1e-5)
    theirs.save_pretrained(tmp_path / "again")  # with their configuration
    shutil.copy(source / "vocab.txt", tmp_path / "again")
    alone = without(evaluation(several), "num_seeds", "multi_label")
    alone |= {"init_checkpoint": str(tmp_path / "again"), "output_dir": str(tmp_path / "other")}
    assert call(without(alone, "bert_config_file", "vocab_file")) == 0
    found, trained = eval_results(tmp_path / "other"), eval_results(source)
    assert found == pytest.approx(without(trained, "global_step"), abs=1e-5)


def test_a_model_of_classes_is_none_of_several_labels(trained, capsys):
    alone = evaluation(trained)
    assert call(alone | {"multi_label": True}) == 2
    assert "--multi_label must be left out for a model of classes" in capsys.readouterr().err


def test_weights_of_classes_are_part_of_the_run(files, tmp_path, capsys):
    (tmp_path / "weights.json").write_text('{"plain": 1, "begun": 2.5}')
    settings = files | {"class_weights": str(tmp_path / "weights.json"), "num_train_epochs": 1}
    assert call(settings) == 0
    described = json.loads((Path(files["output_dir"]) / "run.json").read_text())
    assert (described["labels"], described["class_weights"]) == (["begun", "plain"], [2.5, 1.0])
    before = eval_results(files["output_dir"])
    assert call(settings | {"class_weights": '{"plain": 2, "begun": 5}'}) == 2
    error = capsys.readouterr().err
    assert "must hold this run; got another" in error
    assert "class_weights" in error
    assert call(evaluation(settings)) == 0
    assert "--class_weights has no effect without --do_train" in capsys.readouterr().err
    assert eval_results(files["output_dir"]) == before


def write_mrpc(tmp_path):
    rows = [f"{n % 2}\t{n}\t{n}\t{'return ' * (n % 2)}a\tb{n}" for n in range(20)]
    names = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    for split in "train", "dev":
        (tmp_path / f"{split}.tsv").write_text("\n".join([names, *rows]) + "\n")
    rows = ["index" + names[8:], *[f"{n + 7}\t1\t2\ta\tb" for n in range(5)]]
    (tmp_path / "test.tsv").write_text("\n".join(rows) + "\n")
    return {"task_name": "mrpc", "data_dir": str(tmp_path)}


def test_a_folder_of_glue_is_trained_on_and_predicted_for_the_leaderboard(mrpc):
    folder = Path(mrpc["output_dir"])
    found = read_table(folder / "MRPC.tsv")
    assert [row["index"] for row in found] == ["7", "8", "9", "10", "11"]
    assert {row["prediction"] for row in found} <= {"0", "1"}
    assert {"eval_accuracy", "eval_f1", "eval_loss"} <= eval_results(folder).keys()


def test_a_task_with_two_dev_sets_has_the_metrics_of_both(files, tmp_path):
    columns = {"sentence1": "a", "sentence2": "b", "gold_label": "neutral", "index": "0"}
    lines = ["\t".join(columns), *["\t".join(columns.values())] * 20]
    for split in "train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched":
        (tmp_path / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    settings = {"task_name": "MNLI", "data_dir": str(tmp_path), "do_predict": True}
    assert call(files | NO_TABLES | settings) == 0
    found = eval_results(tmp_path / "output")
    assert found["eval_matched_accuracy"] == found["eval_mismatched_accuracy"] == 1.0
    written = {path.name for path in (tmp_path / "output").glob("*.tsv")}
    assert {"MNLI-m.tsv", "MNLI-mm.tsv"} < written
    assert {"test_matched_results.tsv", "test_mismatched_results.tsv"} < written


def test_several_seeds_are_runs_of_their_own_with_their_mean(files, tmp_path, capsys):
    assert call(files | {"num_seeds": 2, "seed": 4}) == 0
    capsys.readouterr()
    assert call(files | {"num_seeds": 3, "seed": 4}) == 0
    said, output = capsys.readouterr().out, tmp_path / "output"
    assert said.count("step 10/10") == 1  # the third's
    assert said.count("resuming from ") == 2
    results = json.loads((output / "results.json").read_text())
    assert [run["seed"] for run in results["runs"]] == [4, 5, 6]
    found = [run["metrics"]["eval_loss"] for run in results["runs"]]
    assert len(set(found)) == 3
    expected = {
        "mean": statistics.fmean(found),
        "standard_deviation": statistics.stdev(found),
        "median": sorted(found)[1],
        "best": min(found),
    }
    assert results["summary"]["eval_loss"] == pytest.approx(expected)
    row = next(line for line in said.splitlines() if line.startswith("eval_loss"))
    assert row.split()[1:] == [f"{value:.4f}" for value in expected.values()]
    assert call(files | {"seed": 5, "output_dir": str(tmp_path / "alone")}) == 0
    alone, among = final_tensors(tmp_path / "alone"), final_tensors(output / "seed_5")
    for name in alone:
        np.testing.assert_array_equal(alone[name], among[name], err_msg=name)
    evaluated = evaluation(files)
    assert call(evaluated | {"output_dir": str(tmp_path / "alone")}) == 0
    assert json.loads((tmp_path / "alone/results.json").read_text())["runs"][0]["seed"] == 5


# Where it starts from


def test_it_starts_from_a_run_of_pretraining(files, small_corpus, tmp_path, capsys):
    train(make_pretraining(small_corpus, [SHORT], config=small_corpus.config), tmp_path / "model")
    (tmp_path / "bert_config.json").write_text(small_corpus.config.to_json())
    start = {"init_checkpoint": str(tmp_path / "model/pretrained/bert_model.ckpt-1")}
    assert call(files | start) == 0
    said = capsys.readouterr().out
    assert "; fresh: output_weights, output_bias\n" in said


@pytest.mark.parametrize("make", [make_source, make_hugging_face])
def test_it_starts_from_checkpoints_of_others(files, tmp_path, capsys, make):
    make(tmp_path / "start")
    changed = {"init_checkpoint": str(tmp_path / "start"), "max_seq_length": 20}
    assert call(without(files, "bert_config_file", "vocab_file") | changed) == 0
    dialect = "Hugging Face" if make is make_hugging_face else "TensorFlow 1"
    said = capsys.readouterr()
    assert f"({dialect}): weights: carried" in said.out
    assert "random weights" not in said.err


def test_another_vocabulary_is_refused_where_a_model_is_evaluated(whole, tmp_path, capsys):
    files = without(whole[0], "do_predict", "predict_file")
    pieces = Path(files["vocab_file"]).read_text().splitlines()
    (tmp_path / "vocab.txt").write_text("\n".join([*pieces[:-2], *pieces[:-3:-1]]) + "\n")
    alone = evaluation(files)
    assert call(alone | {"vocab_file": str(tmp_path / "vocab.txt")}) == 2
    assert "vocab_file must be the vocabulary of the model in" in capsys.readouterr().err
    with pytest.raises(ValueError, match="must be the vocabulary that the model in .* was trained"):
        official_bert.load(files["output_dir"], tmp_path / "vocab.txt")


def test_a_folder_without_a_model_is_refused(files, capsys):
    for labels in {"label_type": "number", "label_column": "score"}, {}:
        assert call(evaluation(files) | labels) == 2
        assert "must contain a fine-tuned model; got none. Train one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("run", "given", "message"),
    [
        ("seed_7", {}, "holds seed_7: set --seed and --num_seeds to these, or give the folder"),
        (
            "seed_7",
            {"num_seeds": 1},
            "output/seed_12345 must contain a fine-tuned model; got none. But ",
        ),
        ("", {"num_seeds": 2}, "holds a run of one seed: leave --num_seeds out."),
    ],
)
def test_runs_of_other_seeds_are_told_from_no_run(files, tmp_path, capsys, run, given, message):
    folder = tmp_path / "output" / run
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    assert call(evaluation(files) | given) == 2
    assert message in capsys.readouterr().err


def test_a_fine_tuned_checkpoint_is_used_as_the_official_script_does(numbers, tmp_path, capsys):
    settings = without(numbers, "do_predict", "predict_file")
    trained = eval_results(settings["output_dir"])
    checkpoint = f"{settings['output_dir']}/pretrained/bert_model.ckpt-1"
    alone = evaluation(settings)
    alone |= {"init_checkpoint": checkpoint, "output_dir": str(tmp_path / "other")}
    assert call(alone) == 0
    assert eval_results(tmp_path / "other") == without(trained, "global_step")
    assert json.loads((tmp_path / "other" / "results.json").read_text())["runs"][0]["seed"] is None
    assert call(settings | alone | {"do_train": True}) == 0  # its head is taken along
    assert "fresh" not in capsys.readouterr().out


def test_an_export_for_transformers_brings_its_classes_along(whole, tmp_path):
    files = without(whole[0], "do_predict", "predict_file")
    export = tmp_path / "export"
    convert_checkpoint.convert(files["output_dir"], export, "huggingface")
    alone = evaluation(files)
    alone |= {"init_checkpoint": str(export), "output_dir": str(tmp_path / "other")}
    assert call(alone) == 0
    trained = eval_results(files["output_dir"])
    assert eval_results(tmp_path / "other") == without(trained, "global_step")


def test_the_classes_of_a_model_from_elsewhere_are_taken_by_their_names(mrpc, tmp_path, capsys):
    export = tmp_path / "export"
    convert_checkpoint.convert(mrpc["output_dir"], export, "huggingface")
    described = json.loads((export / "config.json").read_text())
    alone = evaluation(mrpc) | {"init_checkpoint": str(export)}
    probabilities = {}
    for names in (["0", "1"], ["LABEL_0", "LABEL_1"], ["Equivalent", "not equivalent"], ["a", "b"]):
        described["id2label"] = dict(enumerate(names))
        (export / "config.json").write_text(json.dumps(described))
        folder = tmp_path / names[0]
        capsys.readouterr()
        assert call(alone | {"output_dir": str(folder)}) == 0
        probabilities[names[0]] = np.loadtxt(folder / "test_results.tsv", ndmin=2)
        said, warned = capsys.readouterr()
        by_name = f"reordered the outputs of {export} by their names: Equivalent, not equivalent"
        assert (by_name in said) == (names[0] == "Equivalent")
        unclear = f"warning: {export} names its outputs a, b, from which their order is not clear;"
        assert (f"{unclear} assuming 0, 1." in warned) == (names[0] == "a")
    trained = probabilities["0"]
    np.testing.assert_array_equal(probabilities["LABEL_0"], trained)
    np.testing.assert_array_equal(probabilities["a"], trained)
    np.testing.assert_allclose(probabilities["Equivalent"], trained[:, ::-1], atol=1e-6)


# Interruptions


@pytest.mark.slow
def test_killed_with_sigkill_and_given_again_it_ends_with_the_same_files(files, tmp_path):
    settings = files | {"num_train_epochs": 60, "save_checkpoints_steps": 40, "eval_steps": 50}
    same = ["eval_results.txt"]
    assert_the_same_after_a_kill("run_classifier", call, settings, tmp_path, same, before=300)


def test_sigterm_saves_and_ends_with_its_code(files):
    settings = files | {"num_train_epochs": 2000}
    with start("run_classifier", settings) as process:
        folder = Path(settings["output_dir"])
        while process.poll() is None and not (folder / "train_log.jsonl").exists():
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 143
    assert list(folder.glob("ctl_step_*.json"))
    assert not (folder / "results.json").exists()


# Real data


@pytest.mark.skipif(not GLUE.exists(), reason="needs ../shared/data/glue")
@pytest.mark.parametrize("name", ["CoLA", "MRPC", "STS-B", "RTE"])
def test_real_sets_of_glue_are_read_trained_and_measured(files, name, tmp_path):
    settings = (
        files
        | NO_TABLES
        | {
            "task_name": name,
            "data_dir": str(GLUE / name),
            "train_batch_size": 256,
            "num_train_epochs": 0.5,
            "eval_batch_size": 256,
            "max_seq_length": 24,
        }
    )
    assert call(settings) == 0
    found = eval_results(tmp_path / "output")
    for metric in glue.task(name).metrics:
        assert metric in metrics.METRICS
        assert np.isfinite(found[f"eval_{metric}"])
