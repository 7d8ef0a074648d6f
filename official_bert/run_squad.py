r"""Fine-tunes BERT on SQuAD 1.1 and 2.0, predicts answers and scores them.

    lamb-bert squad --train_file=train-v1.1.json --predict_file=dev-v1.1.json \
        --bert_config_file=bert_config.json --vocab_file=vocab.txt \
        --init_checkpoint=bert_model.ckpt --output_dir=squad \
        --do_train --do_predict --do_eval --train_batch_size=12 --learning_rate=3e-5

Run again with the same flags, it resumes from the last checkpoint in --output_dir. --evaluate
scores a file of answers, without a model:

    lamb-bert squad --evaluate --predict_file=dev-v1.1.json \
        --predictions_file=predictions.json
"""

import dataclasses
import functools
import json
import os

from official_bert.commands import commands, fine_tuning, fine_tuning_settings
from official_bert.commands.arguments import apply, contradiction, idle
from official_bert.commands.fine_tuning_settings import FineTuning
from official_bert.system import local_paths, messages
from official_bert.system.settings import documented, like, setting, values_of
from official_bert.tasks import squad_data, squad_decoding, squad_evaluation
from official_bert.tasks.squad_data import Windows
from official_bert.tasks.squad_decoding import Decoding

_FILE = (
    "SQuAD's JSON, version 1.1 or 2.0, or rows of Hugging Face's datasets (id, context, question, "
    "answers): JSON lines, a JSON list, Parquet, Arrow, or a saved folder"
)


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Squad(FineTuning):
    """The settings of the command, with the official names and defaults."""

    train_file: str | None = setting(f"Training questions: {_FILE}.", None)
    predict_file: str | None = setting("Questions to answer, in the same formats.", None)
    max_seq_length: int = like(Windows, "max_seq_length")
    doc_stride: int = like(Windows, "doc_stride")
    max_query_length: int = like(Windows, "max_query_length")
    do_predict: bool = setting("Answer the questions of --predict_file.", False)
    do_eval: bool = setting(
        "Score the answers to the questions of --predict_file, with the official metrics.", False
    )
    verbose_logging: bool = setting("Log skipped training questions and why.", False)
    n_best_size: int = like(Decoding, "n_best_size")
    max_answer_length: int = like(Decoding, "max_answer_length")
    version_2_with_negative: bool = like(Decoding, "version_2_with_negative")
    null_score_diff_threshold: float = like(Decoding, "null_score_diff_threshold")
    evaluate: bool = setting("Only score --predictions_file against --predict_file.", False)
    predictions_file: str | None = setting(
        "With --evaluate: JSON file with the answer to each question id.", None
    )
    null_odds_file: str | None = setting(
        "With --evaluate and version 2.0: JSON file with the odds of no answer for each question "
        "id; also prints the best thresholds.",
        None,
    )


_OF_ANSWERS = ("predict_file", "n_best_size", "max_answer_length", "null_score_diff_threshold")
_OF_EVALUATE = ("predictions_file", "null_odds_file")
_WORK = ("do_train", "do_predict", "do_eval")
_CHOICES = (
    "give --evaluate to score --predictions_file, or --do_train, --do_predict or --do_eval to "
    "train a model, answer with it, or score its answers"
)
_FILES = {
    "train_file": (["do_train"], "Give SQuAD's JSON with answers."),
    "predict_file": (["do_predict", "do_eval"], "Give SQuAD's JSON."),
}
RULES = (
    contradiction(_OF_EVALUATE, lambda args: True, "only with --evaluate."),
    idle(["verbose_logging"], lambda args: not args.do_train, "without --do_train."),
    idle(
        _OF_ANSWERS,
        lambda args: not (args.do_predict or args.do_eval),
        "without --do_predict or --do_eval.",
    ),
    idle(
        ["eval_batch_size"],
        lambda args: args.do_predict and not args.do_train,
        "with --do_predict, whose answers are scored; set --predict_batch_size.",
    ),
    idle(
        ["null_score_diff_threshold"],
        lambda args: not args.version_2_with_negative,
        "without --version_2_with_negative: every question is answered.",
    ),
    *fine_tuning_settings.RULES,
)
# --evaluate reads two or three files and no other flag.
RULES_OF_EVALUATE = (
    contradiction(
        _WORK,
        lambda args: args.do_train or args.do_predict or args.do_eval,
        "--evaluate scores a file of answers and does nothing else; leave one of them out.",
    ),
    idle(
        sorted({*commands.flags_of(Squad)} - {"evaluate", "predict_file", *_OF_EVALUATE, *_WORK}),
        lambda args: True,
        "with --evaluate, which scores a file of answers.",
    ),
)


def check(args: Squad) -> Squad:
    """Refuses contradictions, and warns of flags without effect; returns the settings without them.

    Raises:
        ValueError: naming the flag, the reason, and what to do.
    """
    if args.evaluate:
        return apply(args, RULES_OF_EVALUATE)
    return fine_tuning_settings.check(args, RULES, _FILES, _CHOICES)


def main(args: Squad) -> int:
    """Fine-tunes, predicts and scores; returns the exit code."""
    args = check(args)
    if args.evaluate:
        return _evaluate(args)
    args = fine_tuning.resolve_paths(args, ("train_file", "predict_file"))
    return fine_tuning.run(args, "run_squad", _job)


# Scores of a file of answers


def evaluate(
    predict_file: str, predictions_file: str, null_odds_file: str | None = None
) -> dict[str, float]:
    """Scores a file of predictions; returns the scores of `squad_evaluation.evaluate`.

    Args:
        predict_file: SQuAD's JSON, with the answers.
        predictions_file: JSON, question id → text.
        null_odds_file: JSON, question id → number; only for version 2.0.

    Raises:
        ValueError: a file cannot be read, or they do not fit together.
    """
    paths = {
        "predict_file": predict_file,
        "predictions_file": predictions_file,
        "null_odds_file": null_odds_file,
    }
    local_paths.require_local(**paths)
    missing = [f"--{name}" for name in ("predict_file", "predictions_file") if not paths[name]]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise ValueError(f"{' and '.join(missing)} {are} required with --evaluate.")
    dataset = squad_data.read(predict_file)
    predictions = _read_values(predictions_file, str, "a text")
    null_odds = _read_values(null_odds_file, (int, float), "a number") if null_odds_file else None
    try:
        squad_evaluation.require_answers(dataset)
    except ValueError as error:
        raise ValueError(f"{predict_file}: {error}") from None
    return squad_evaluation.evaluate(dataset, predictions, null_odds)


def _evaluate(args):
    try:
        scores = evaluate(args.predict_file, args.predictions_file, args.null_odds_file)
    except OverflowError as error:
        raise messages.Failed(error) from error
    print(json.dumps(scores))
    return 0


def _read_values(path, kind, expected):
    """A JSON object with a value of one kind for every question id."""
    values = squad_data.read_json(path)
    if not isinstance(values, dict):
        raise ValueError(
            f"{path} must be a JSON object with {expected} for each question id; got "
            f"{type(values).__name__}."
        )
    if values.twice:
        raise ValueError(
            f"{path} must have each question id once; got {min(values.twice)!r} twice. Remove "
            "one of them."
        )
    for name, value in values.items():
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(
                f"{path}: {name!r} must have {expected}; got {json.dumps(value)[:40]}."
            )
    return values


# A model


def _job(args):
    from official_bert.checkpoints import source
    from official_bert.tasks.squad import QuestionAnswering

    decoding = Decoding(**values_of(Decoding, args))
    dataset, config = None, fine_tuning.read_config(args)
    fine_tuning.require_head(args, config, source.QUESTION_ANSWERING)
    task = QuestionAnswering(
        vocab_file=args.vocab_file,
        do_lower_case=args.do_lower_case,
        version_2_with_negative=args.version_2_with_negative,
        windows=Windows(**values_of(Windows, args)),
    )
    if args.predict_file:
        dataset = task.read_asked(args.predict_file, scored=args.do_eval)
    return fine_tuning.FineTuningJob(
        task=task,
        config=config,
        use=functools.partial(_use, args, task, dataset, decoding),
        train_file=args.train_file,
        examples=_examples(args, task, config) if args.do_train else 0,
        eval_files=(args.predict_file,) if args.do_eval else (),
        evaluated_on={"predict_file": args.predict_file},
        seed_independent=squad_evaluation.SEED_INDEPENDENT,
    )


def _examples(args, task, config):
    """The number of questions to train on, by which the official script counts epochs."""
    file = args.train_file
    questions, counts = task.read(file)
    if args.version_2_with_negative and not any(q.is_impossible for q in questions):
        raise ValueError(
            f"{file} must have questions marked is_impossible; got none, so a model would not "
            "learn when there is no answer. Leave --version_2_with_negative out, or give a file of "
            "version 2.0."
        )
    windows = len(task.labelled_features([file], config))
    print(
        f"{file}: {counts.kept:,} questions in {windows:,} windows; {counts.moved:,} answers at "
        f"another position than stated; {counts.left_out:,} questions left out because their "
        "answer is not in the context"
    )
    if args.verbose_logging:
        _name_left_out(file, questions)
    return counts.kept


def _name_left_out(file, kept):
    kept = {question.id for question in kept}
    for question in squad_data.read(file).questions:
        if question.id not in kept:
            texts = ", ".join(repr(answer.text) for answer in question.answers) or "no answer"
            print(f"left out: {question.id}: {texts}")


def _use(args, task, dataset, decoding, engine, model, folder):
    """Answers, and scores the answers; returns the scores."""
    from official_bert.prediction.forward import Forward

    if dataset is None:
        return {}
    features = task.features(dataset.questions, model.config)
    size = args.predict_batch_size if args.do_predict else args.eval_batch_size
    logits = Forward(model, engine).whole(features, size, (args.max_seq_length, 2))
    predictions = squad_decoding.decode(features, logits[..., 0], logits[..., 1], decoding)
    if args.do_predict and engine.is_chief:
        squad_decoding.write(predictions, folder)
        path = os.path.join(folder, "predictions.json")
        print(f"answered {len(dataset.questions):,} questions: {path}")
    if not args.do_eval:
        return {}
    scores = squad_decoding.scores(dataset, predictions)
    if "best_f1_thresh" in scores and engine.is_chief:
        print(
            f"best F1 {scores['best_f1']:.4f} with "
            f"--null_score_diff_threshold={scores['best_f1_thresh']!r}"
        )
    return scores


if __name__ == "__main__":
    commands.run(main, Squad)
