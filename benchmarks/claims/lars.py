"""Tests five changes that may bring LARS off the plateau of word frequencies, on a small BERT.

    python benchmarks/claims/lars.py

LARS as in the study over the batch, changes of it, momentum SGD and LAMB train the model of the
demo: with the same few rates first, then at the best of them with more seeds.

Needs matplotlib.
"""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # for the modules of all studies

import claim
import forms

from official_bert.stages import Optimizer

LABELS = {
    "study": "LARS as in the study over the batch",
    "no warm-up": "without warm-up",
    "every tensor": "every tensor adapted",
    "before": "ratio before the momentum",
    "rows": "a ratio per row of the embeddings",
    "units": "also a ratio per unit of the kernels",
    "plain": "momentum SGD: no tensor adapted",
    "lamb": "LAMB, at 0.3 times the rate",
}
SHORT = LABELS | {
    "study": "LARS as in the study",
    "rows": "ratio per row of embeddings",
    "units": "ratio per row and per unit",
    "plain": "momentum SGD",
    "lamb": "LAMB",
}
SETTINGS = {
    "variants": [*LABELS],
    "max_seq_length": 16,
    "max_predictions_per_seq": 4,
    "batch_size": 64,
    "updates": 1200,
    "warmup_steps": 120,
    "rates": [0.02, 0.01, 0.04],  # the first is run first
    "beta_1": 0.93,
    "beta_2": 0.98,
    "weight_decay": 0.002,
    "global_clipnorm": 1.0,
    "seeds": 3,
    "evaluations": 5,
}
QUICK = {"rates": [0.02], "seeds": 1}
# Factors on the rate: SGD and LAMB have about their best rates of the two other studies.
SGD_RATE, LAMB_RATE = 170.0, 0.3
ROWS = {"(word|position)_embeddings": 0}


def optimizer(form, settings):
    """The optimizer of a form; LARS has about the best momentum and decay of the search."""
    names = ("beta_1", "weight_decay", "global_clipnorm")
    given = {name: settings[name] for name in names}
    if form == "lamb":
        rate = {"learning_rate_multipliers": {"": LAMB_RATE}}
        return Optimizer(beta_2=settings["beta_2"], settings=rate, **given)
    changes = {
        "every tensor": {"exclude_from_layer_adaptation": ()},
        # Its momentum adds up instead of averaging.
        "before": {
            "settings": {"ratio": "before_momentum", "trust_coefficient": 1 - settings["beta_1"]}
        },
        "rows": {"settings": {"trust_ratio_axes": ROWS}},
        "units": {"settings": {"trust_ratio_axes": ROWS | {"kernel": 1}}},
        "plain": {
            "exclude_from_layer_adaptation": ("",),
            "settings": {"learning_rate_multipliers": {"": SGD_RATE}},
        },
    }.get(form, {})
    return Optimizer(type="lars", epsilon=0.0, **given, **changes)


CLAIM = forms.study(
    globals(), "lars", "LARS on BERT", reference="study", without_warmup=["no warm-up"]
)


if __name__ == "__main__":
    sys.exit(claim.script(CLAIM, __doc__))
