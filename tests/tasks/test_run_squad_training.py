"""The command that trains and answers: its flags, what it leaves, seeds, version 2.0, a kill."""

import json
import lzma
import shutil
from pathlib import Path

import in_process
import pytest
from bert_checkpoints import make_source
from command_processes import (
    as_flags,
    assert_the_same_after_a_kill,
    eval_results,
    without,
)
from small_runs import log_lines, without_dropout
from small_squad import DEV, PEOPLE, PLACES, needs_squad, qa, write_squad, write_vocabulary
from small_text import UNCASED

import official_bert
from official_bert import run_squad
from official_bert.commands import commands, refused
from official_bert.data import tokenization
from official_bert.run_squad import Squad
from official_bert.tasks import squad_data

OFFICIAL_DEFAULTS = {
    "do_lower_case": None,
    "max_seq_length": 384,
    "doc_stride": 128,
    "max_query_length": 64,
    "do_train": False,
    "do_predict": False,
    "train_batch_size": 32,
    "predict_batch_size": 8,
    "learning_rate": 5e-5,
    "num_train_epochs": 3.0,
    "warmup_proportion": 0.1,
    "save_checkpoints_steps": 1000,
    "n_best_size": 20,
    "max_answer_length": 30,
    "verbose_logging": False,
    "version_2_with_negative": False,
    "null_score_diff_threshold": 0.0,
}
OFFICIAL_FLAGS = """
    bert_config_file vocab_file output_dir train_file predict_file init_checkpoint do_lower_case
    max_seq_length doc_stride max_query_length do_train do_predict train_batch_size
    predict_batch_size learning_rate num_train_epochs warmup_proportion save_checkpoints_steps
    iterations_per_loop n_best_size max_answer_length use_tpu tpu_name tpu_zone gcp_project master
    num_tpu_cores verbose_logging version_2_with_negative null_score_diff_threshold
"""
SMALL = {
    "max_seq_length": 32,
    "doc_stride": 10,
    "max_query_length": 8,
    "train_batch_size": 8,
    "num_train_epochs": 2,
    "learning_rate": 5e-3,
    "beta_2": 0.98,
    "log_steps": 2,
    "distribution_strategy": "off",
    "do_train": True,
    "do_predict": True,
    "do_eval": True,
}
OF_TRAINING = ("do_train", "train_file", "train_batch_size", "num_train_epochs", "learning_rate")
OF_TRAINING += ("beta_2", "log_steps")
BY_HEART = {  # a window holds the whole text; see `small_squad.by_heart`
    "max_seq_length": 48,
    "train_batch_size": 16,
    "num_train_epochs": 150,
    "learning_rate": 1e-2,
    "log_steps": 50,
    "steps_per_loop": 50,
}


def call(settings):
    return in_process.call(run_squad, Squad, as_flags(settings))


def flags_of(small_questions, folder):
    """The flags that name files, with those of a small training."""
    (folder / "bert_config.json").write_text(small_questions.config.to_json())
    return SMALL | {
        "bert_config_file": str(folder / "bert_config.json"),
        "vocab_file": small_questions.vocab_file,
        "train_file": small_questions.train,
        "predict_file": small_questions.dev,
        "output_dir": str(folder / "output"),
    }


@pytest.fixture
def files(small_questions, tmp_path):
    return flags_of(small_questions, tmp_path)


@pytest.fixture(scope="module")
def whole(small_questions, tmp_path_factory):
    """The flags of a training that is done."""
    settings = flags_of(small_questions, tmp_path_factory.mktemp("whole"))
    assert call(settings) == 0
    return settings


@pytest.fixture
def trained(whole, tmp_path):
    """The flags of that training with a folder of one's own."""
    folder = shutil.copytree(whole["output_dir"], tmp_path / "trained")
    return whole | {"output_dir": str(folder)}


def read(folder, name):
    return json.loads((Path(folder) / name).read_text())


# Flags


def test_flags_of_the_official_script_keep_their_names_and_defaults():
    flags, refusals = commands.flags_of(Squad), refused.flags(Squad)
    assert {name: flags[name].default for name in OFFICIAL_DEFAULTS} == OFFICIAL_DEFAULTS
    assert set(OFFICIAL_FLAGS.split()) <= {*flags, *refusals}
    assert not {*flags} & {*refusals}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"use_tpu": True}, "--use_tpu is --distribution_strategy=tpu here."),
        ({"validation_file": "x"}, "--validation_file is called --predict_file here."),
        (
            {"do_train": False, "do_predict": False, "do_eval": False},
            "nothing to do: give --evaluate",
        ),
        ({"train_file": None}, "--train_file is required with --do_train."),
        ({"predict_file": None}, "--predict_file is required with --do_predict."),
        ({"predict_file": None, "do_predict": False}, "--predict_file is required with --do_eval"),
        ({"predictions_file": "x"}, "--predictions_file: only with --evaluate."),
        ({"evaluate": True}, "--do_train, --do_predict, --do_eval: --evaluate scores a file of"),
        ({"train_file": "/nowhere/a.json"}, "/nowhere/a.json"),
        ({"predict_file": "/nowhere/b.json"}, "/nowhere/b.json"),
        ({"max_seq_length": 11}, "max_seq_length must be at least 12, for max_query"),
        ({"num_train_epochs": 0.1}, "must give at least one step; got 0.1 of 24 examples"),
        ({"version_2_with_negative": True}, "must have questions marked is_impossible"),
    ],
)
def test_what_cannot_work_ends_with_one_line_before_any_work(files, capsys, changed, message):
    assert call(files | changed) == 2
    error = capsys.readouterr().err
    assert message in error
    *before, last = error.splitlines()
    assert last.startswith("run_squad: error: ")
    assert all(line.startswith("warning: training starts from random weights") for line in before)
    assert not list(Path(files["output_dir"]).glob("ctl_step*"))


# What it leaves


def test_it_trains_answers_and_scores(files, small_questions, capsys):
    assert call(files | {"num_train_epochs": 20, "verbose_logging": True}) == 0
    folder, said = Path(files["output_dir"]), capsys.readouterr().out
    assert "24 questions in 48 windows; 0 answers at another position" in said
    found = read(folder, "predictions.json")
    nbest = read(folder, "nbest_predictions.json")
    assert found == {id: candidates[0]["text"] for id, candidates in nbest.items()}
    assert not (folder / "null_odds.json").exists()
    scores = run_squad.evaluate(small_questions.dev, str(folder / "predictions.json"))
    results = eval_results(folder)
    assert results == {**scores, "global_step": 60}
    (run,) = read(folder, "results.json")["runs"]
    assert run["metrics"] == scores
    assert f"exact_match = {scores['exact_match']:.4f}" in said
    held_out = [line for line in log_lines(folder) if line["kind"] == "eval"][-1]
    assert held_out["loss"] > 0


def test_the_folder_holds_what_the_model_needs_later(whole, small_questions):
    folder = Path(whole["output_dir"])
    assert (folder / "vocab.txt").read_bytes() == Path(small_questions.vocab_file).read_bytes()
    described = read(folder, "run.json")
    assert described["task"] == "question answering"
    assert described["do_lower_case"] is True
    assert described["version_2_with_negative"] is False
    assert described["windows"] == {
        name: SMALL[name] for name in ("max_seq_length", "doc_stride", "max_query_length")
    }
    assert described["vocabulary"] == tokenization.digest(
        tokenization.read_vocabulary(str(folder / "vocab.txt"))
    )


def test_another_vocabulary_in_the_folder_is_not_overwritten(files, capsys):
    output = Path(files["output_dir"])
    output.mkdir()
    before = Path(write_vocabulary(output, "lake")).read_bytes()
    assert call(files) == 2
    assert "vocab.txt must be the run's vocabulary; got another" in capsys.readouterr().err
    assert (output / "vocab.txt").read_bytes() == before


def test_prediction_alone_takes_the_model_of_the_folder(trained, small_questions):
    folder = Path(trained["output_dir"])
    names = ("predictions.json", "nbest_predictions.json", "eval_results.txt")
    before = {name: (folder / name).read_text() for name in names}
    for name in names:
        (folder / name).unlink()
    alone = without(trained, *OF_TRAINING)
    assert call(alone) == 0
    assert {name: (folder / name).read_text() for name in names} == before
    unlabelled = {"predict_file": small_questions.unlabelled}
    assert call(without(alone, "do_eval") | unlabelled) == 0  # which answers nothing is known of
    assert (folder / "predictions.json").read_text() == before["predictions.json"]


def test_a_loaded_model_gives_the_answers_of_the_command(whole, small_questions):
    predictions = read(whole["output_dir"], "predictions.json")
    questions = squad_data.read(small_questions.dev).questions
    model = official_bert.load(whole["output_dir"])
    answers = model.predict([(question.text, question.context) for question in questions])
    found = {question.id: answer.text for question, answer in zip(questions, answers, strict=True)}
    assert found == predictions


def test_scores_alone_write_no_predictions(files):
    assert call(without(files, "do_predict")) == 0
    folder = Path(files["output_dir"])
    assert "f1" in eval_results(folder)
    assert not (folder / "predictions.json").exists()


def test_other_windows_than_those_of_training_are_refused_in_its_folder(trained, tmp_path, capsys):
    """A checkpoint may be given any; it is the way the official script takes."""
    alone = without(trained, *OF_TRAINING)
    assert call(alone | {"doc_stride": 9}) == 2
    assert "must hold a model of this task; got another's: windows was" in capsys.readouterr().err
    checkpoint = f"{trained['output_dir']}/pretrained/bert_model.ckpt-1"
    other = {"init_checkpoint": checkpoint, "output_dir": str(tmp_path / "other")}
    assert call(alone | other) == 0
    scores = without(eval_results(trained["output_dir"]), "global_step")
    assert eval_results(tmp_path / "other") == scores
    assert call(alone | other | {"doc_stride": 9}) == 0


def test_a_pretrained_checkpoint_answers_no_questions(files, tmp_path, capsys):
    make_source(tmp_path / "start")
    alone = without(files, *OF_TRAINING) | start_of(tmp_path / "start")
    assert call(alone) == 2
    error = capsys.readouterr().err
    assert "--init_checkpoint must be a model for question-answering; got" in error
    assert "which has no head of a task. Fine-tune it first (--do_train)." in error


def start_of(folder):
    """The flags of a foreign checkpoint, whose vocabulary knows hardly a word."""
    return {
        "bert_config_file": str(folder / "bert_config.json"),
        "vocab_file": str(folder / "vocab.txt"),
        "init_checkpoint": str(folder),
        "max_seq_length": 20,
        "doc_stride": 4,
    }


# Version 2.0


@pytest.fixture
def version_2(files, small_questions):
    """The flags that learn questions by heart, some of which have no answer."""
    config = without_dropout(small_questions.config)
    Path(files["bert_config_file"]).write_text(config.to_json())
    of_version = {"train_file": small_questions.train_2, "predict_file": small_questions.train_2}
    return files | BY_HEART | of_version | {"version_2_with_negative": True}


def test_questions_without_answer_are_left_unanswered_and_a_threshold_is_found(version_2, capsys):
    assert call(version_2) == 0
    folder, said = Path(version_2["output_dir"]), capsys.readouterr().out
    results, odds = eval_results(folder), read(folder, "null_odds.json")
    assert results["HasAns_exact_match"] == results["NoAns_exact_match"] == 100
    assert results["best_f1"] == 100
    threshold = results["best_f1_thresh"]
    assert f"--null_score_diff_threshold={threshold!r}" in said
    texts = read(folder, "predictions.json")
    assert {id for id in texts if odds[id] <= threshold} == {id for id in texts if texts[id]}
    nothing = without(version_2, *OF_TRAINING, "steps_per_loop")
    lowest = min(odds.values()) - 1
    assert call(nothing | {"null_score_diff_threshold": lowest}) == 0
    assert set(read(folder, "predictions.json").values()) == {""}
    kept = eval_results(folder)
    assert (kept["HasAns_f1"], kept["NoAns_f1"]) == (0, 100)
    assert kept["best_f1_thresh"] == threshold  # whatever the threshold that is applied
    assert call(nothing | {"null_score_diff_threshold": threshold}) == 0
    assert read(folder, "predictions.json") == texts


def test_a_file_of_version_2_without_its_flag_is_refused(files, small_questions, capsys):
    for name in "train", "predict":
        changed = {f"{name}_file": small_questions.train_2}
        assert call(files | changed) == 2
        error = capsys.readouterr().err
        assert "answers in the flat layout); got 6 of 30. Remove these, or" in error


def test_questions_of_a_file_without_marks_may_be_left_unanswered(version_2, small_questions):
    plain = {"predict_file": small_questions.unlabelled, "num_train_epochs": 4}
    assert call(without(version_2, "do_eval") | plain) == 0
    folder = Path(version_2["output_dir"])
    assert read(folder, "null_odds.json").keys() == read(folder, "predictions.json").keys()
    scored = {"predict_file": small_questions.dev}  # of version 1.1: there are no best thresholds
    assert call(without(version_2, *OF_TRAINING, "steps_per_loop") | scored) == 0
    assert "best_f1" not in eval_results(folder)


# Data as it comes


def test_answers_that_are_not_in_their_context_are_named_and_left_out(files, tmp_path, capsys):
    text = "Anna lives in Rome. Ben lives in Paris."
    train = write_squad(
        tmp_path / "train.json",
        (text, [qa("right", ("Rome", 14)), qa("elsewhere", ("Paris", 0))]),
        (text, [qa("absent", ("Lima", 14)), qa("none")]),
        bom=True,
    )
    settings = {"train_file": train, "verbose_logging": True, "train_batch_size": 2}
    assert call(files | settings) == 0
    said = capsys.readouterr().out
    assert "2 questions in 2 windows; 1 answers at another position than stated; 2" in said
    assert "left out: absent: 'Lima'\nleft out: none: no answer\n" in said


def test_texts_that_are_empty_long_or_foreign_are_answered(files, tmp_path):
    """Answers are cut from the text, so they keep its letters."""
    foreign = "Анна живёт в Риме. 安娜住在罗马。 آنا تعيش في روما."
    odd = write_squad(
        tmp_path / "odd.json",
        ("", [qa("empty")]),
        ("   ", [qa("blank")]),
        (foreign, [qa("foreign", question="Где живёт Анна?")]),
        ("Anna lives in Rome. " * 60, [qa("long")]),
        ("Anna lives in Rome.", [qa("asked at length", question="where " * 50)]),
    )
    settings = {"predict_file": odd, "num_train_epochs": 4}
    assert call(without(files, "do_eval") | settings) == 0
    found = read(files["output_dir"], "predictions.json")
    assert found["empty"] == found["blank"] == ""
    assert found["foreign"]
    assert found["foreign"] in foreign
    assert found["long"] in "Anna lives in Rome. " * 60
    assert found["asked at length"] in "Anna lives in Rome."


def test_predictions_cannot_be_scored_without_answers(files, small_questions, capsys):
    assert call(files | {"predict_file": small_questions.unlabelled}) == 2
    error = capsys.readouterr().err
    assert "new.json: question '6-" in error
    assert "must have an answer to compare with" in error


def test_a_cased_vocabulary_is_never_lower_cased(files, tmp_path, capsys):
    folder = tmp_path / "cased"
    folder.mkdir()
    cased = files | {"vocab_file": write_vocabulary(folder, *PEOPLE, *PLACES, "A")}
    assert call(cased | {"do_lower_case": True}) == 2
    assert "cased vocabulary" in capsys.readouterr().err
    assert call(cased) == 0


# Interruptions


@pytest.mark.slow
def test_killed_with_sigkill_and_given_again_it_ends_with_the_same_files(files, tmp_path):
    settings = files | {"num_train_epochs": 100, "save_checkpoints_steps": 40, "eval_steps": 50}
    same = ["eval_results.txt", "predictions.json", "nbest_predictions.json"]
    assert_the_same_after_a_kill("run_squad", call, settings, tmp_path, same, before=300)


# Real data


@needs_squad
@pytest.mark.slow
def test_real_questions_are_trained_on_answered_and_scored(files, tmp_path, capsys):
    with lzma.open(DEV.with_name("heldout12.json.xz"), "rt") as file:
        articles = json.load(file)["data"]
    (tmp_path / "dev.json").write_text(json.dumps({"data": articles[:1]}))
    config = json.loads(Path(files["bert_config_file"]).read_text())
    Path(files["bert_config_file"]).write_text(json.dumps(config | {"vocab_size": 30522}))
    settings = files | {
        "vocab_file": str(UNCASED),
        "train_file": str(DEV.with_name("train36.json.xz")),
        "predict_file": str(tmp_path / "dev.json"),
        "train_batch_size": 512,
        "num_train_epochs": 0.5,
        "max_seq_length": 64,
        "doc_stride": 32,
        "max_query_length": 20,
        "predict_batch_size": 64,
    }
    assert call(settings) == 0
    assert "8,123 questions in" in capsys.readouterr().out
    questions = [qa for part in articles[0]["paragraphs"] for qa in part["qas"]]
    answers = read(files["output_dir"], "predictions.json")
    assert list(answers) == [question["id"] for question in questions]
    assert all(answers.values())
    results = eval_results(files["output_dir"])
    assert results["global_step"] == 7  # 8,123 / 512 / 2
    assert results["total"] == len(questions)
