"""The flags of `run_squad`, and which of them, of other scripts too, are refused and why."""

import sys

from absl import flags

from official_bert import fine_tuning_flags
from official_bert.system.flag_definitions import FlagDefinitions, refuse, require_no_refused

_OF_ANSWERS = ("n_best_size", "max_answer_length", "null_score_diff_threshold")
_OF_EVALUATE = ("predictions_file", "null_odds_file")
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
    text("train_file", None, "The questions to learn from: SQuAD's JSON, version 1.1 or 2.0.")
    text("predict_file", None, "The questions to answer: SQuAD's JSON, version 1.1 or 2.0.")
    integer(
        "max_seq_length", 384, "Length of a window in tokens, with the question.", lower_bound=1
    )
    integer(
        "doc_stride",
        128,
        "Tokens from the beginning of a window of a long text to that of the next.",
        lower_bound=1,
    )
    integer(
        "max_query_length", 64, "Tokens of a question; longer ones are cut there.", lower_bound=1
    )
    define.switch("do_predict", False, "Answer the questions of --predict_file.")
    define.switch(
        "do_eval",
        False,
        "Score the answers to the questions of --predict_file, with the official metrics.",
    )
    define.switch("verbose_logging", False, "Name the questions that are not trained on, and why.")


def _define_answers(define):
    define.integer("n_best_size", 20, "Number of answers in nbest_predictions.json.", lower_bound=1)
    define.integer("max_answer_length", 30, "Maximum tokens of an answer.", lower_bound=1)
    define.switch("version_2_with_negative", False, "Whether questions may have no answer.")
    define.number(
        "null_score_diff_threshold",
        0.0,
        "With --version_2_with_negative: how far the score of no answer must exceed that of the "
        "best answer for a question to be left unanswered.",
    )


def _define_evaluate(define):
    define.switch(
        "evaluate", False, "Score --predictions_file against --predict_file, and do nothing else."
    )
    define.text("predictions_file", None, "With --evaluate: JSON, question id to answer.")
    define.text(
        "null_odds_file",
        None,
        "With --evaluate, version 2.0: JSON, question id to how far no answer is preferred; the "
        "best thresholds are printed, too.",
    )


def check(values: flags.FlagValues) -> None:
    """Refuses flags of other scripts, and flags that others of this call would make void.

    Raises:
        ValueError: naming the flag, the reason, and what to do.
    """
    if values.evaluate:
        _check_evaluate(values)
        return
    work = (
        "--evaluate scores --predictions_file; --do_train, --do_predict and --do_eval train a "
        "model, answer with it, and score its answers"
    )
    refuse(values, _OF_EVALUATE, True, "only with --evaluate.")
    fine_tuning_flags.check_required(values, REFUSED, work)
    _check_data(values)
    fine_tuning_flags.check_void(values)
    answers = values.do_predict or values.do_eval
    refuse(values, _OF_ANSWERS, not answers, "only with --do_predict or --do_eval.")
    refuse(
        values,
        ("eval_batch_size",),
        values.do_predict and not values.do_train,
        "the answers that are scored are those of --do_predict; set --predict_batch_size.",
    )
    refuse(
        values,
        ("null_score_diff_threshold",),
        not values.version_2_with_negative,
        "only with --version_2_with_negative: without it, every question is answered.",
    )


def _check_evaluate(values):
    require_no_refused(values, REFUSED)
    own = {flag.name for flag in values.get_flags_for_module(sys.argv[0])}
    others = sorted(own - {"evaluate", "predict_file", *_OF_EVALUATE})
    refuse(values, others, True, "--evaluate scores a file of answers and does nothing else.")


def _check_data(values):
    answers = values.do_predict or values.do_eval
    refuse(values, ("train_file", "verbose_logging"), not values.do_train, "only with --do_train.")
    refuse(values, ("predict_file",), not answers, "only with --do_predict or --do_eval.")
    if values.do_train and not values.train_file:
        raise ValueError("--do_train needs --train_file: SQuAD's JSON with answers.")
    if answers and not values.predict_file:
        flag = "--do_predict" if values.do_predict else "--do_eval"
        raise ValueError(f"{flag} needs --predict_file: SQuAD's JSON.")
