"""The command that trains and answers: its flags, what it leaves, seeds, version 2.0, a kill."""

import contextlib
import dataclasses
import io
import json
import lzma
from pathlib import Path

import in_process
import pytest
from command_processes import (
    OF_TRAINING,
    as_flags,
    assert_flags_of_the_official_script,
    assert_the_same_after_a_kill,
    eval_results,
    in_a_copy,
    small_training,
    without,
)
from small_runs import log_lines, without_dropout
from small_squad import (
    DEV,
    PEOPLE,
    PLACES,
    WINDOWS,
    needs_squad,
    qa,
    write_squad,
    write_vocabulary,
)
from small_text import UNCASED

import official_bert
from official_bert import run_squad
from official_bert.data import tokenization
from official_bert.run_squad import Squad
from official_bert.tasks import squad_data

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
    return small_training(
        small_questions,
        folder,
        predict_file=small_questions.dev,
        do_predict=True,
        **dataclasses.asdict(WINDOWS),
        train_batch_size=8,
        num_train_epochs=2,
        log_steps=2,
    )


@pytest.fixture
def files(small_questions, tmp_path):
    return flags_of(small_questions, tmp_path)


@pytest.fixture(scope="module")
def whole(small_questions, tmp_path_factory):
    """The flags of a training that is done, and its stdout."""
    settings = flags_of(small_questions, tmp_path_factory.mktemp("whole"))
    settings |= {"num_train_epochs": 20, "verbose_logging": True}
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert call(settings) == 0
    return settings, said.getvalue()


@pytest.fixture
def trained(whole, tmp_path):
    return in_a_copy(without(whole[0], "verbose_logging"), tmp_path / "trained")


def read(folder, name):
    return json.loads((Path(folder) / name).read_text())


# Flags


def test_flags_of_the_official_script_keep_their_names_and_defaults():
    defaults = {
        "max_seq_length": 384,
        "doc_stride": 128,
        "max_query_length": 64,
        "n_best_size": 20,
        "max_answer_length": 30,
        "verbose_logging": False,
        "version_2_with_negative": False,
        "null_score_diff_threshold": 0.0,
    }
    assert_flags_of_the_official_script(Squad, defaults, "train_file predict_file")


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


def test_it_trains_answers_and_scores(whole, small_questions):
    settings, said = whole
    folder = Path(settings["output_dir"])
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
    folder = Path(whole[0]["output_dir"])
    assert (folder / "vocab.txt").read_bytes() == Path(small_questions.vocab_file).read_bytes()
    described = read(folder, "run.json")
    assert described["task"] == "question answering"
    assert described["do_lower_case"] is True
    assert described["version_2_with_negative"] is False
    assert described["windows"] == dataclasses.asdict(WINDOWS)
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
    assert call(without(alone, "do_predict")) == 0
    assert (folder / "eval_results.txt").read_text() == before["eval_results.txt"]
    assert not (folder / "predictions.json").exists()  # of scores alone
    assert call(alone) == 0
    assert {name: (folder / name).read_text() for name in names} == before
    unlabelled = {"predict_file": small_questions.unlabelled}
    assert call(without(alone, "do_eval") | unlabelled) == 0  # which answers nothing is known of
    assert (folder / "predictions.json").read_text() == before["predictions.json"]


def test_a_loaded_model_gives_the_answers_of_the_command(whole, small_questions):
    predictions = read(whole[0]["output_dir"], "predictions.json")
    questions = squad_data.read(small_questions.dev).questions
    model = official_bert.load(whole[0]["output_dir"])
    answers = model.predict([(question.text, question.context) for question in questions])
    found = {question.id: answer.text for question, answer in zip(questions, answers, strict=True)}
    assert found == predictions


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


# Version 2.0


def test_questions_without_answer_are_left_unanswered_and_a_threshold_is_found(
    files, small_questions, capsys
):
    config = without_dropout(small_questions.config)
    Path(files["bert_config_file"]).write_text(config.to_json())
    of_version = {"train_file": small_questions.train_2, "predict_file": small_questions.train_2}
    version_2 = files | BY_HEART | of_version | {"version_2_with_negative": True}
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
    # Questions of a file without marks may be left unanswered.
    assert call(without(nothing, "do_eval") | {"predict_file": small_questions.unlabelled}) == 0
    asked = read(folder, "predictions.json").keys()
    assert read(folder, "null_odds.json").keys() == asked != texts.keys()
    assert call(nothing | {"predict_file": small_questions.dev}) == 0  # of version 1.1
    assert "best_f1" not in eval_results(folder)


def test_a_file_of_version_2_without_its_flag_is_refused(files, small_questions, capsys):
    for name in "train", "predict":
        changed = {f"{name}_file": small_questions.train_2}
        assert call(files | changed) == 2
        error = capsys.readouterr().err
        assert "answers in the flat layout); got 6 of 30. Remove these, or" in error


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


def test_texts_that_are_empty_long_or_foreign_are_answered(trained, tmp_path):
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
    assert call(without(trained, *OF_TRAINING, "do_eval") | {"predict_file": odd}) == 0
    found = read(trained["output_dir"], "predictions.json")
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
