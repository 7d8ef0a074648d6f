"""Recipes: functions that return the stages of a run, with their command and what they reach."""

from official_bert.stages import Stage


def demo():
    """Five minutes on two CPU cores: a small BERT on the documentation that Python carries.

    Command: `make demo`. The figures it reaches are in the README.
    """
    return (
        Stage(
            steps=1000,
            batch_size=64,
            max_seq_length=32,
            max_predictions_per_seq=5,
            learning_rate=4e-3,
            warmup_steps=100,
        ),
        Stage(
            steps=200,
            batch_size=32,
            max_seq_length=128,
            max_predictions_per_seq=20,
            learning_rate=2e-3,
            warmup_steps=20,
        ),
    )


RECIPES = {"demo": demo}
