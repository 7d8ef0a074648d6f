"""Why LARS stays on the plateau of word frequencies when it trains BERT, and what leaves it.

    python benchmarks/claims/lars.py

LARS as in the study over the batch, changes of it, momentum SGD and LAMB train the model of the
demo: with the same few rates first, then at the best of them with more seeds.

Needs matplotlib.
"""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # for the modules of all studies

import bert
import claim
import forms

from official_bert.stages import Optimizer

LABELS = {
    "study": "LARS as in the study over the batch",
    "no warm-up": "without warm-up",
    "every tensor": "every tensor adapted",
    "before": "ratio before the momentum",
    "rows": "a ratio per row of the embeddings",
    "embeddings": "only the embeddings adapted, the rest by momentum SGD",
    "kernels": "only the kernels adapted, the rest by momentum SGD",
    "plain": "momentum SGD: no tensor adapted",
    "lamb": "LAMB",
}
SHORT = LABELS | {
    "study": "LARS as in the study",
    "rows": "ratio per row of embeddings",
    "embeddings": "only embeddings adapted",
    "kernels": "only kernels adapted",
    "plain": "momentum SGD",
}
SETTINGS = {
    "variants": [*LABELS],
    "max_seq_length": 16,
    "max_predictions_per_seq": 4,
    "batch_size": 256,
    "updates": 1000,
    "warmup_steps": 40,
    "rates": [0.02, 0.01],  # the first is run first
    "beta_1": 0.93,
    "beta_2": 0.98,
    "weight_decay": 0.002,
    "global_clipnorm": 1.0,
    "seeds": 3,
    "evaluations": 5,
}
QUICK = {"rates": [0.02], "seeds": 1}
PLAIN = {  # the variables without a ratio; SGD needs another rate, as in the study over the batch
    "embeddings": ["kernel", "LayerNorm", "bias"],
    "kernels": ["_embeddings", "LayerNorm", "bias"],
    "plain": [""],
}
PLAIN_RATE = 170.0  # of the rate
ROWS = {"(word|position)_embeddings": 0}


def optimizer(form, settings):
    """The optimizer of a form; LARS has the best momentum and decay of the study's search."""
    names = ("beta_1", "weight_decay", "global_clipnorm")
    given = {name: settings[name] for name in names}
    if form == "lamb":
        return Optimizer(beta_2=settings["beta_2"], **given)
    changes = {
        "every tensor": {"exclude_from_layer_adaptation": ()},
        # Its momentum adds up instead of averaging.
        "before": {
            "settings": {"ratio": "before_momentum", "trust_coefficient": 1 - settings["beta_1"]}
        },
        "rows": {"settings": {"trust_ratio_axes": ROWS}},
        **{
            plain: {
                "exclude_from_layer_adaptation": tuple(paths),
                "settings": {"learning_rate_multipliers": dict.fromkeys(paths, PLAIN_RATE)},
            }
            for plain, paths in PLAIN.items()
        },
    }.get(form, {})
    return Optimizer(type="lars", epsilon=0.0, **given, **changes)


FORMS = forms.Forms(LABELS, SHORT, optimizer, "study", without_warmup=("no warm-up",))
CLAIM = claim.of(
    globals() | FORMS.functions(),
    "lars",
    "LARS on BERT",
    lost=bert.LOST,
    model=bert.MODEL,
    extent=("variants", "rates", "seeds"),
)


if __name__ == "__main__":
    sys.exit(claim.script(CLAIM, __doc__))
