"""The differences between the optimizers called LAMB, and which of them matter.

    python benchmarks/claims/variants.py

Each trains the model of the demo with the same batches, schedule, decay and clipping: with the same
few rates first, then at the best of them with more seeds.

Needs matplotlib.
"""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # for the modules of all studies

import claim
import forms

from official_bert.stages import Optimizer

LABELS = {
    "paper": "the paper's v5, as its BERT code excludes",
    "uncorrected": "without bias correction",
    "nvlamb": "NVLAMB: every tensor adapted",
    "lambc": "LAMBC: ratio at most 1",
    "keras": "Keras': decay outside the ratio, every tensor adapted",
    "all": "no exclusions: every tensor decayed and adapted",
    "n": "N-LAMB",
    "nn": "NN-LAMB",
}
SHORT = LABELS | {
    "paper": "paper, v5",
    "uncorrected": "no bias correction",
    "nvlamb": "NVLAMB",
    "lambc": "LAMBC",
    "keras": "Keras",
    "all": "no exclusions",
}
SETTINGS = {
    "variants": [*LABELS],
    "max_seq_length": 16,
    "max_predictions_per_seq": 4,
    "batch_size": 64,
    "updates": 2400,
    "warmup_steps": 240,
    "rates": [6e-3, 3e-3, 1.2e-2, 2.4e-2],  # the first is run first
    "beta_2": 0.98,
    "epsilon": 1e-6,
    "weight_decay": 0.01,
    "global_clipnorm": 1.0,
    "seeds": 3,
    "evaluations": 5,
}
QUICK = {"updates": 1400, "warmup_steps": 140, "rates": [6e-3], "seeds": 1}


def optimizer(variant, settings):
    """The optimizer of a variant."""
    changes = {
        "paper": {},
        "uncorrected": {"settings": {"bias_correction": False}},
        "nvlamb": {"exclude_from_layer_adaptation": ()},
        "lambc": {"settings": {"trust_ratio_bounds": [0.0, 1.0]}},
        "keras": {"type": "keras.optimizers:Lamb"},
        "all": {"exclude_from_weight_decay": ()},
        "n": {"settings": {"nesterov": "first"}},
        "nn": {"settings": {"nesterov": "both"}},
    }[variant]
    names = ("beta_2", "epsilon", "weight_decay", "global_clipnorm")
    return Optimizer(**{name: settings[name] for name in names}, **changes)


CLAIM = forms.study(globals(), "variants", "Variants of LAMB compared", reference="paper")


if __name__ == "__main__":
    sys.exit(claim.script(CLAIM, __doc__))
