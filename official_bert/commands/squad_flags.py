"""The flags of `run_squad`, and which of them, of other scripts too, are refused and why."""

import sys

from absl import flags

from official_bert.commands import fine_tuning_flags, optimizer_flags
from official_bert.commands.flag_definitions import (
    FlagDefinitions,
    apply,
    contradiction,
    idle,
)
from official_bert.system.settings import Bounds

_OF_ANSWERS = ("predict_file", "n_best_size", "max_answer_length", "null_score_diff_threshold")
_OF_EVALUATE = ("predictions_file", "null_odds_file")
_WORK = ("do_train", "do_predict", "do_eval")
RULES = (
    contradiction(_OF_EVALUATE, lambda v: True, "only with --evaluate."),
    idle(["verbose_logging"], lambda v: not v.do_train, "without --do_train."),
    idle(
        _OF_ANSWERS,
        lambda v: not (v.do_predict or v.do_eval),
        "without --do_predict or --do_eval.",
    ),
    idle(
        ["eval_batch_size"],
        lambda v: v.do_predict and not v.do_train,
        "with --do_predict, whose answers are scored; set --predict_batch_size.",
    ),
    idle(
        ["null_score_diff_threshold"],
        lambda v: not v.version_2_with_negative,
        "without --version_2_with_negative: every question is answered.",
    ),
    *fine_tuning_flags.RULES,
)
_READ_AT_ONCE = "has no counterpart: text is read at once, from --train_file and --predict_file."
# Flags of the scripts of tensorflow/models and Hugging Face not here.
REFUSED = fine_tuning_flags.REFUSED | {
    # tensorflow/models
    "train_data_path": _READ_AT_ONCE,
    "eval_data_path": _READ_AT_ONCE,
    "input_meta_data_path": "has no counterpart: the length is --max_seq_length.",
    # Hugging Face
    "validation_file": "is called --predict_file here.",
    "pad_to_max_length": "has no counterpart: windows are padded to --max_seq_length.",
    "max_train_samples": "has no counterpart: give a smaller --train_file.",
}


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines this command's flags; their help texts are its manual."""
    define = FlagDefinitions(values)
    fine_tuning_flags.define(define)
    _define_data(define)
    _define_answers(define)
    _define_evaluate(define)
    define.refused(REFUSED)


def _define_data(define):
    text, integer = define.text, define.integer
    text("train_file", None, "Training questions: SQuAD's JSON, version 1.1 or 2.0.")
    text("predict_file", None, "Questions to answer: SQuAD's JSON, version 1.1 or 2.0.")
    integer(
        "max_seq_length", 384, "Length of a window in tokens, question included.", Bounds(minimum=1)
    )
    integer(
        "doc_stride",
        128,
        "Stride between the windows of a long text, in tokens.",
        Bounds(minimum=1),
    )
    integer(
        "max_query_length",
        64,
        "Maximum length of a question in tokens; longer ones are cut.",
        Bounds(minimum=1),
    )
    define.switch("do_predict", False, "Answer the questions of --predict_file.")
    define.switch(
        "do_eval",
        False,
        "Score the answers to the questions of --predict_file, with the official metrics.",
    )
    define.switch("verbose_logging", False, "Log skipped training questions and why.")


def _define_answers(define):
    define.integer(
        "n_best_size",
        20,
        "Number of answers per question in nbest_predictions.json.",
        Bounds(minimum=1),
    )
    define.integer(
        "max_answer_length", 30, "Maximum length of an answer in tokens.", Bounds(minimum=1)
    )
    define.switch(
        "version_2_with_negative", False, "Allow questions without an answer (SQuAD 2.0)."
    )
    define.number(
        "null_score_diff_threshold",
        0.0,
        "With --version_2_with_negative: margin by which the score of no answer must exceed the "
        "score of the best answer, for the question to be left unanswered.",
    )


def _define_evaluate(define):
    define.switch("evaluate", False, "Only score --predictions_file against --predict_file.")
    define.text(
        "predictions_file", None, "With --evaluate: JSON file with the answer to each question id."
    )
    define.text(
        "null_odds_file",
        None,
        "With --evaluate and version 2.0: JSON file with the odds of no answer for each question "
        "id; also prints the best thresholds.",
    )


def check(values: flags.FlagValues) -> None:
    """Refuses what cannot be meant, and warns of flags without effect, which become defaults.

    Raises:
        ValueError: naming the flag, the reason, and what to do.
    """
    if values.evaluate:
        apply(values, _rules_of_evaluate(values))
        return
    work = (
        "give --evaluate to score --predictions_file, or --do_train, --do_predict or --do_eval to "
        "train a model, answer with it, or score its answers"
    )
    fine_tuning_flags.check_required(values, work)
    apply(values, RULES)
    optimizer_flags.optimizer(values)  # checks it
    if values.do_train and not values.train_file:
        raise ValueError(
            "--train_file is required with --do_train. Give SQuAD's JSON with answers."
        )
    if (values.do_predict or values.do_eval) and not values.predict_file:
        flag = "--do_predict" if values.do_predict else "--do_eval"
        raise ValueError(f"--predict_file is required with {flag}. Give SQuAD's JSON.")


def _rules_of_evaluate(values):
    """--evaluate reads two or three files and no other flag."""
    own = {flag.name for flag in values.get_flags_for_module(sys.argv[0])}
    others = sorted(own - {"evaluate", "predict_file", *_OF_EVALUATE, *_WORK})
    return (
        contradiction(
            _WORK,
            lambda v: v.do_train or v.do_predict or v.do_eval,
            "--evaluate scores a file of answers and does nothing else; leave one of them out.",
        ),
        idle(others, lambda v: True, "with --evaluate, which scores a file of answers."),
    )
