r"""Answers questions about texts (SQuAD 1.1 and 2.0); so far: scores answers, without TensorFlow.

    python -m official_bert.run_squad --evaluate --predict_file=dev-v1.1.json \
        --predictions_file=predictions.json

It prints the official scores, in percent, as one line of JSON.
"""

import json

from absl import flags

from official_bert.system import commands, local_paths
from official_bert.tasks import squad_data, squad_evaluation

FLAGS = flags.FLAGS


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
        raise ValueError(f"--evaluate needs {' and '.join(missing)}.")
    dataset = squad_data.read(predict_file)
    predictions = _read_values(predictions_file, str, "a text")
    null_odds = _read_values(null_odds_file, (int, float), "a number") if null_odds_file else None
    return squad_evaluation.evaluate(dataset, predictions, null_odds)


def _read_values(path, kind, expected):
    """A JSON object with a value of one kind for every question id."""
    values = squad_data.read_json(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected a JSON object with {expected} for each question id.")
    for name, value in values.items():
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(
                f"{path}: {name!r} has {json.dumps(value)[:40]}, expected {expected} for each "
                f"question id."
            )
    return values


def main() -> int | None:
    if not FLAGS.evaluate:
        raise ValueError("nothing to do; --evaluate scores --predictions_file.")
    try:
        scores = evaluate(FLAGS.predict_file, FLAGS.predictions_file, FLAGS.null_odds_file)
    except OverflowError as error:
        raise commands.Failed(error) from error
    print(json.dumps(scores))


def _define_flags():
    flags.DEFINE_bool("evaluate", False, "Score --predictions_file against --predict_file.")
    flags.DEFINE_string("predict_file", None, "The questions: SQuAD's JSON, version 1.1 or 2.0.")
    flags.DEFINE_string("predictions_file", None, "The answers: JSON, question id to text.")
    flags.DEFINE_string(
        "null_odds_file",
        None,
        "With --evaluate, version 2.0: JSON, question id to how far no answer is preferred; the "
        "best thresholds are printed, too.",
    )


if __name__ == "__main__":
    _define_flags()
    commands.run(main)
