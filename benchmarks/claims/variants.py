"""Which differences between the optimizers called LAMB matter?

    python benchmarks/claims/variants.py

The model of the demo is trained by each, with the same batches, schedule, decay and clipping. Each
has the best of the same few rates, which it then trains with from more seeds.

Needs matplotlib.
"""

import functools
import json
import pathlib
import sys

import claim as study
import variants_page as page
from model_settings import LOST, MODEL

SETTINGS = {
    "variants": [*page.LABELS],
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


def trials(settings):
    """All forms at each rate, then at their best, seed by seed."""
    tuning = [
        trial("tuning", v, 1, rate) for rate in settings["rates"] for v in settings["variants"]
    ]
    seeds = range(2, settings["seeds"] + 1)
    return tuning + [trial("best", v, seed) for seed in seeds for v in settings["variants"]]


def trial(part, variant, seed, rate=None):
    return {"part": part, "variant": variant, "seed": seed, "rate": rate}


def optimizer(variant, settings):
    """The optimizer of a variant, at rate 0: the training sets the rate."""
    import bert
    import keras

    import lamb_tf

    names = ("beta_2", "epsilon", "weight_decay", "global_clipnorm")
    shared = {"learning_rate": 0.0} | {name: settings[name] for name in names}
    if variant == "keras":
        found = keras.optimizers.Lamb(**shared)
        found.exclude_from_weight_decay(var_names=bert.EXCLUDED)
        return found
    changes = {
        "paper": {},
        "uncorrected": {"bias_correction": False},
        "nvlamb": {"exclude_from_layer_adaptation": []},
        "lambc": {"trust_ratio_bounds": (0.0, 1.0)},
        "all": {"exclude_from_weight_decay": []},
        "n": {"nesterov": "first"},
        "nn": {"nesterov": "both"},
    }[variant]
    return lamb_tf.LAMB(**shared | {"exclude_from_weight_decay": bert.EXCLUDED} | changes)


def run(options, settings, trial, records):
    """Trains once; see `study.Claim`."""
    import bert

    from official_bert.stages import Stage

    model = MODEL | settings
    lengths = {settings["max_seq_length"]: settings["max_predictions_per_seq"]}
    bert.make_data(options.data_dir, model, lengths)
    rate = trial["rate"] or page.best(records, trial["variant"])["used_rate"]
    stage = Stage(
        steps=settings["updates"],
        batch_size=settings["batch_size"],
        max_seq_length=settings["max_seq_length"],
        max_predictions_per_seq=settings["max_predictions_per_seq"],
        learning_rate=rate,
        warmup_steps=settings["warmup_steps"],
    )
    training = training_of(options.data_dir, json.dumps(settings), trial["variant"])
    training.restart(trial["seed"])
    curve = training.run(stage, bert.rates_of(stage), settings["evaluations"])
    return bert.result(training, curve) | {"used_rate": rate}


@functools.cache
def training_of(folder: pathlib.Path, settings: str, variant: str):
    """A `bert.Training`, compiled once for all seeds."""
    import bert

    values = json.loads(settings)
    made = optimizer(variant, values)
    return bert.Training(folder, MODEL | values, values["max_seq_length"], made, 0)


def needs(trial, other):
    """Whether a run at the chosen rate waits for one of those it is chosen from."""
    chooses = trial["rate"] is None and other["rate"] is not None
    return chooses and trial["variant"] == other["variant"]


def stands(settings, record, records):
    """Whether a run has the rate that would be chosen for it now."""
    variant = record["trial"]["variant"]
    if record["trial"]["part"] == "tuning":
        return True
    found = page.groups(records).get(variant)
    return bool(found) and record["used_rate"] == found[0]["used_rate"]


def problem(settings):
    """What is wrong with the settings, or None."""
    unknown = [name for name in settings["variants"] if name not in page.LABELS]
    if unknown:
        return f"variants has {', '.join(unknown)}; there are {', '.join(page.LABELS)}."
    return None if settings["rates"] else "rates is empty; give one at least."


CLAIM = study.Claim(
    name="variants",
    title="Variants of LAMB compared",
    settings=SETTINGS,
    quick=QUICK,
    trials=trials,
    run=run,
    needs=needs,
    draw=page.draw,
    text=page.text,
    alike=(("variant",),),
    lost=LOST,
    packages=("tensorflow", "matplotlib"),
    model=MODEL,
    extent=("variants", "rates", "seeds"),
    problem=problem,
    stands=stands,
)


if __name__ == "__main__":
    sys.exit(study.main(CLAIM, study.parser(CLAIM, __doc__).parse_args()))
