"""The batch up to which each optimizer holds its loss at equal tokens, tuned and untuned.

    python benchmarks/claims/batch_scaling.py

The demo's BERT sees the same number of sequences in batches × 1, 4, 16 and 64. At each batch, an
optimizer has a number of quasi-random trials over ranges of rate, 1 − β₁, warm-up and decay, and at
the largest batches the same number again with long warm-ups; LARS and SGD have fewer than the other
four. Untuned, each trains by a rule from its best settings at the smallest batch. The best of all
by one held-out set trains with more seeds and is reported on another.

For each group of methods the search comes first, breadth first over the batches, then the rule, the
long warm-ups, and more seeds of the best and of the rule, so that an unfinished study has results.
A run that two parts have in common is trained once.

Needs matplotlib.
"""

import math
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # for the modules of all studies

import batch_scaling_tables as results
import bert
import claim
import stats
import trials as trials_of

from official_bert.stages import Optimizer

SETTINGS = {
    "max_seq_length": 16,
    "max_predictions_per_seq": 4,
    "sequences": 256_000,  # of every run
    "base_batch": 16,
    "multiples": [1, 4, 16, 64],
    "long_warmup_multiples": [16, 64],  # where a run has few updates
    "groups": [["lamb", "adamw"], ["lars"], ["orscale"], ["muon"], ["nesterov"]],
    "trials": {  # at each of the multiples
        "lamb": [12, 4, 6, 6],
        "adamw": [12, 4, 6, 6],
        "lars": [4, 4, 4, 4],
        "orscale": [12, 4, 6, 6],
        "muon": [12, 4, 6, 6],
        "nesterov": [4, 4, 4, 4],
    },
    "seeds": 3,
    "rates": {  # at the smallest batch; √k times as high at another
        "lamb": [1e-3, 1e-2],
        "adamw": [2.5e-4, 2.5e-3],
        "nesterov": [0.01, 0.3],
        "lars": [1e-3, 3e-2],
        "orscale": [2.5e-4, 2.5e-3],
        "muon": [2.5e-4, 2.5e-3],
    },
    "one_minus_beta_1": [0.03, 0.3],
    "warmup_share": [0.02, 0.3],
    "long_warmup_share": [0.2, 0.9],  # of the second part of the search
    "weight_decay": [1e-3, 0.1],
    "beta_2": 0.98,
    "global_clipnorm": 1.0,
    "evaluations": 10,
}
QUICK = {
    "sequences": 96_000,
    "multiples": [1, 4],
    "groups": [["lamb", "adamw"]],
    "trials": {"lamb": [1, 1], "adamw": [1, 1]},
    "seeds": 1,
}
LINEAR = ("nesterov",)  # scaled by k; the rate of the others, by √k


def trials(settings, records):
    """For each group of methods the two parts of the search and the rule, then more seeds."""
    multiples, larger = settings["multiples"], settings["multiples"][1:]
    longer = [k for k in multiples if k in settings["long_warmup_multiples"]]
    seeds = range(1, settings["seeds"] + 1)

    def points(part, group, at):
        return [
            trial(part, m, k, n, 1)
            for n in range(1, 1 + max(map(max, settings["trials"].values())))
            for k in at
            for m in group
            if n <= results.points(settings, m, k)
        ]

    found = []
    for group in settings["groups"]:
        found += points("search", group, multiples)
        found += [trial("rule", m, k, None, 1) for k in larger for m in group]
        found += points("long warm-up", group, longer)
        found += [trial("best", m, k, None, s) for s in seeds[1:] for k in multiples for m in group]
        found += [trial("rule", m, k, None, s) for s in seeds[1:] for k in larger for m in group]
    return found


def trial(part, method, multiple, number, seed):
    values = {"part": part, "method": method, "multiple": multiple, "number": number}
    return values | {"seed": seed}


def point(settings, method, multiple, number, warmup="warmup_share"):
    """The hyperparameters of a trial: a point of Halton's sequence in the ranges, in logarithms."""
    ranges = {
        "rate": [math.sqrt(multiple) * rate for rate in settings["rates"][method]],
        "one_minus_beta_1": settings["one_minus_beta_1"],
        "warmup_share": settings[warmup],
        "weight_decay": settings["weight_decay"],
    }
    return trials_of.halton(ranges, number)


def by_rule(settings, method, chosen, multiple):
    """The settings by the rule, from the best at the base: the same number of warm-up steps."""
    factor = multiple if method in LINEAR else math.sqrt(multiple)
    share = min(chosen["warmup_share"] * multiple, results.MOST_WARMUP)
    return chosen | {"rate": factor * chosen["rate"], "warmup_share": share}


def optimizer(method, settings, values):
    """The optimizer of a method, with the hyperparameters of a trial."""
    momentum, second = 1 - values["one_minus_beta_1"], {"beta_2": settings["beta_2"]}
    matrix = {"settings": {"momentum": momentum}, **second}
    choice = {  # `epsilon` where the class has another default than a run
        "lamb": {"beta_1": momentum, **second},
        "adamw": {"type": "adamw", "beta_1": momentum, **second},
        "lars": {"type": "lars", "beta_1": momentum, "epsilon": 0.0},
        "orscale": {"type": "orscale", "epsilon": 1e-8, **matrix},
        "muon": {"type": "muon", "epsilon": 1e-7, **matrix},
        "nesterov": {
            "type": "keras.optimizers:SGD",
            "settings": {"momentum": momentum, "nesterov": True},
        },
    }[method]
    if method == "muon":
        choice["settings"] |= {"rms_rate": 0.2}
    clipnorm = settings["global_clipnorm"]
    return Optimizer(weight_decay=values["weight_decay"], global_clipnorm=clipnorm, **choice)


def run(options, settings, trial, records):
    """Trains once; see `claim.Claim`."""
    lengths = {settings["max_seq_length"]: settings["max_predictions_per_seq"]}
    model, data = bert.MODEL | settings, options.data_dir
    bert.make_data(data, model, lengths)
    values = values_of(settings, trial, records)
    if twin := twin_of(records, trial, values):
        return twin
    stage, made = stage_of(settings, trial, values), optimizer(trial["method"], settings, values)
    found = bert.train(data, model, stage, made, trial["seed"], settings["evaluations"])
    return found | {"values": values, "updates": stage.steps}


def stage_of(settings, trial, values):
    """The stage of a trial, with its hyperparameters."""
    batch = settings["base_batch"] * trial["multiple"]
    steps = settings["sequences"] // batch
    return trials_of.stage_of(
        settings,
        steps=steps,
        batch_size=batch,
        learning_rate=values["rate"],
        warmup_steps=round(values["warmup_share"] * steps),
    )


def twin_of(records, trial, values):
    """The results of a run of another part with these values and seed, or None."""
    alike = {name: trial[name] for name in ("method", "multiple", "seed")}
    runs = (r for r in records if r["values"] == values and alike.items() <= r["trial"].items())
    run = next(runs, None)
    names = ("select", "report", "report_accuracy", "curve", "diverged", "said")
    names += ("values", "updates")
    return run and {name: run[name] for name in names} | {"twin": stats.trial_name(run["trial"])}


def values_of(settings, trial, records):
    """The hyperparameters of a trial; those of later parts follow from the search."""
    method, multiple = trial["method"], trial["multiple"]
    if trial["part"] == "search":
        return point(settings, method, multiple, trial["number"])
    if trial["part"] == "long warm-up":
        return point(settings, method, multiple, trial["number"], "long_warmup_share")
    if trial["part"] == "best":
        return results.best(records, method, multiple)["values"]
    chosen = results.best(records, method, settings["multiples"][0])["values"]
    return by_rule(settings, method, chosen, multiple)


def needs(trial, other):
    """Whether a run at chosen settings waits for one of the runs that decide them."""
    if trial["method"] != other["method"] or trial["part"] in results.TUNING:
        return False
    if trial["part"] == "best":
        return other["seed"] == 1 and other["multiple"] == trial["multiple"]
    may_be_twin = other["part"] == "best" and other["multiple"] == trial["multiple"]
    by_base = other["part"] == "search" and other["multiple"] == 1
    return by_base or (may_be_twin and other["seed"] == trial["seed"])


def problem(settings):
    """The error in the settings, or None."""
    multiples, rates = settings["multiples"], settings["rates"]
    unknown = [m for group in settings["groups"] for m in group if m not in rates]
    if unknown:
        return f"groups must be among {', '.join(rates)}; got {', '.join(unknown)}."
    if multiples != sorted({1, *multiples}):
        return f"multiples must be 1 and larger numbers, in order; got {multiples}."
    counts = settings["trials"]
    if not all(len(counts.get(m, ())) == len(multiples) for g in settings["groups"] for m in g):
        return f"trials must have a number for each of multiples, for each method; got {counts}."
    if 1 in settings["long_warmup_multiples"]:
        return "long_warmup_multiples must be above 1, the base of the rule; got 1."
    return None


def stands(settings, record, records):
    """Whether a run has the settings that the study would choose for it now, to rounding."""
    trial = record["trial"]
    chosen_at = {"best": trial["multiple"], "rule": 1}.get(trial["part"])
    if chosen_at and not results.searched(records, trial["method"], chosen_at):
        return False
    now = values_of(settings, trial, records)
    return all(math.isclose(record["values"][name], now[name], rel_tol=1e-9) for name in now)


CLAIM = claim.of(
    globals(),
    "batch_scaling",
    "Six optimizers over the batch",
    tables=results.tables,
    pictures={"": results.draw, "_untuned": results.draw_untuned},
    lost=bert.LOST,
    model=bert.MODEL,
    # Also the rates: `stands` compares them for each run.
    extent=("groups", "multiples", "long_warmup_multiples", "trials", "seeds", "rates"),
)


if __name__ == "__main__":
    sys.exit(claim.script(CLAIM, __doc__))
