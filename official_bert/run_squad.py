r"""Fine-tunes BERT to answer questions about texts (SQuAD 1.1 and 2.0), answers and scores.

    lamb-bert squad --train_file=train-v1.1.json --predict_file=dev-v1.1.json \
        --bert_config_file=bert_config.json --vocab_file=vocab.txt \
        --init_checkpoint=bert_model.ckpt --output_dir=squad \
        --do_train --do_predict --do_eval --train_batch_size=12 --learning_rate=3e-5

Run again with the same flags, it resumes from the last checkpoint in --output_dir. --evaluate
scores a file of answers, without a model:

    lamb-bert squad --evaluate --predict_file=dev-v1.1.json \
        --predictions_file=predictions.json
"""

import functools
import json
import os

from absl import flags

from official_bert.commands import commands, fine_tuning, squad_flags
from official_bert.system import local_paths, messages
from official_bert.tasks import squad_data, squad_decoding, squad_evaluation


def main(values: flags.FlagValues = flags.FLAGS) -> int:
    """Does what the flags say; returns the exit code."""
    squad_flags.check(values)
    if values.evaluate:
        return _evaluate(values)
    fine_tuning.check_paths(values, ("train_file", "predict_file"))
    return fine_tuning.run(values, _work)


# Scores of a file of answers


def evaluate(
    predict_file: str, predictions_file: str, null_odds_file: str | None = None
) -> dict[str, float]:
    """Scores a file of predictions; returns what `squad_evaluation.evaluate` does.

    Args:
        predict_file: SQuAD's JSON, with the answers.
        predictions_file: JSON, question id → text.
        null_odds_file: JSON, question id → number; version 2.0 alone.

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
        raise ValueError(f"{' and '.join(missing)} must be given with --evaluate.")
    dataset = squad_data.read(predict_file)
    predictions = _read_values(predictions_file, str, "a text")
    null_odds = _read_values(null_odds_file, (int, float), "a number") if null_odds_file else None
    return squad_evaluation.evaluate(dataset, predictions, null_odds)


def _evaluate(values):
    try:
        scores = evaluate(values.predict_file, values.predictions_file, values.null_odds_file)
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
    for name, value in values.items():
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(
                f"{path}: {name!r} must have {expected}; got {json.dumps(value)[:40]}."
            )
    return values


# A model


def _work(values):
    decoding = squad_decoding.Decoding(
        version_2_with_negative=values.version_2_with_negative,
        n_best_size=values.n_best_size,
        max_answer_length=values.max_answer_length,
        null_score_diff_threshold=values.null_score_diff_threshold,
    )
    task, dataset = _task(values), None
    fine_tuning.config(values)  # checks the length
    if values.predict_file:
        dataset = task.read_asked(values.predict_file, scored=values.do_eval)
    return fine_tuning.Work(
        task=task,
        use=functools.partial(_use, values, task, dataset, decoding),
        train_file=values.train_file,
        examples=_examples(values, task) if values.do_train else 0,
        eval_files=(values.predict_file,) if values.do_eval else (),
        evaluated_on={"predict_file": values.predict_file},
        not_of_the_seed=squad_evaluation.NOT_OF_THE_SEED,
    )


def _task(values):
    from official_bert.tasks.squad import QuestionAnswering

    return QuestionAnswering(
        vocab_file=values.vocab_file,
        do_lower_case=values.do_lower_case,
        version_2_with_negative=values.version_2_with_negative,
        windows=squad_data.Windows(
            max_seq_length=values.max_seq_length,
            doc_stride=values.doc_stride,
            max_query_length=values.max_query_length,
        ),
    )


def _examples(values, task):
    """The number of questions to train on, by which the official script counts epochs."""
    file, config = values.train_file, fine_tuning.config(values)
    questions, counts = task.read(file)
    if values.version_2_with_negative and not any(q.is_impossible for q in questions):
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
    if values.verbose_logging:
        _name_left_out(file, questions)
    return counts.kept


def _name_left_out(file, kept):
    kept = {question.id for question in kept}
    for question in squad_data.read(file).questions:
        if question.id not in kept:
            texts = ", ".join(repr(answer.text) for answer in question.answers) or "no answer"
            print(f"left out: {question.id}: {texts}")


def _use(values, task, dataset, decoding, engine, model, folder):
    """Answers, and scores the answers; returns the scores."""
    from official_bert.training import fine_tuned

    if dataset is None:
        return {}
    features = task.features(dataset.questions, model.config)
    size = values.predict_batch_size if values.do_predict else values.eval_batch_size
    logits = fine_tuned.outputs_of_rows(engine, model, features, size)
    predictions = squad_decoding.decode(features, logits[..., 0], logits[..., 1], decoding)
    if values.do_predict:
        squad_decoding.write(predictions, folder)
        path = os.path.join(folder, "predictions.json")
        print(f"answered {len(dataset.questions):,} questions: {path}")
    if not values.do_eval:
        return {}
    scores = squad_decoding.scores(dataset, predictions)
    if "best_f1_thresh" in scores:
        print(
            f"best F1 {scores['best_f1']:.4f} with "
            f"--null_score_diff_threshold={scores['best_f1_thresh']!r}"
        )
    return scores


if __name__ == "__main__":
    squad_flags.define_flags()
    commands.run(main)
