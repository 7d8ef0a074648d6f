"""What four optimizers and Hugging Face's way reach in the same time, each at its best settings.

    python benchmarks/same_hour_search.py --jobs=2

Text, model and rows are those of `same_hour.py`'s "now". First the seconds of an update are
measured, of all in turns. They fix the number of updates that fit into the minutes of a training,
which then do not depend on what else the machine does. Each method has the same number of
quasi-random points over ranges of rate, 1 − β₁ and weight decay. The best by one half of the
held-out batches trains with more seeds and is reported on the other half.

Needs torch, transformers, accelerate and matplotlib, and for the measurements a machine that does
nothing else.
"""

import dataclasses
import math
import shutil
import sys
import time
from statistics import mean, median

import claim
import same_hour
import stats
import trials

PEER = same_hour.PEER
_OF_BOTH = (
    *("training_minutes", "vocab_size", "documents", "num_hidden_layers", "hidden_size"),
    *("num_attention_heads", "intermediate_size", "initial_stddev", "tokens", "beta_2"),
    *("peer_warmup", "seeds"),
)
SETTINGS = {
    **{name: same_hour.SETTINGS[name] for name in _OF_BOTH},
    "rounds": 3,  # of measurements
    "measured_seconds": 24.0,  # of a measurement
    "trials": 8,
    "rates": {
        "lamb": [2.5e-3, 2.5e-2],
        "adamw": [1e-3, 1e-2],
        "orscale": [8e-4, 8e-3],
        "muon": [1.25e-3, 1.25e-2],
        PEER: [3e-4, 3e-3],
    },
    "one_minus_beta_1": [0.03, 0.3],
    "weight_decay": [5e-3, 0.2],
}
SOME = {"rate": 1e-3, "one_minus_beta_1": 0.1, "weight_decay": 0.1}  # for measurements


def all_trials(settings, records):
    """The measurements in turns, the search breadth first, then more seeds of the best."""
    methods = [*settings["rates"]]
    rounds, points = (range(1, 1 + settings[name]) for name in ("rounds", "trials"))
    found = [trial("speed", m, r, 1) for r in rounds for m in methods]
    found += [trial("search", m, n, 1) for n in points for m in methods]
    seeds = range(2, 1 + settings["seeds"])
    return found + [trial("best", m, None, seed) for seed in seeds for m in methods]


def trial(part, method, number, seed):
    return {"part": part, "method": method, "number": number, "seed": seed}


def needs(trial, other):
    """Whether a trial waits for another: for what is measured, or for a search."""
    if trial["part"] == "speed":
        return False
    if other["part"] == "speed":  # of any method: it must not be measured beside a training
        return True
    return (trial["part"], other["part"]) == ("best", "search") and (
        trial["method"] == other["method"]
    )


def values_of(settings, trial, records):
    """The hyperparameters of a training, and the updates of its stages."""
    own = [r for r in records if r["trial"]["method"] == trial["method"]]
    if trial["part"] == "best":
        return best(own)["values"]
    ranges = {"rate": settings["rates"][trial["method"]]}
    ranges |= {name: settings[name] for name in ("one_minus_beta_1", "weight_decay")}
    measured = [r for r in own if r["trial"]["part"] == "speed"]
    updates = fitting(settings, measured)
    return trials.halton(ranges, trial["number"]) | {"updates": updates}


def fitting(settings, measured):
    """The updates of each stage that fit into the minutes, by the medians of measurements."""
    each = [median(values) for values in zip(*(r["update"] for r in measured), strict=True)]
    left = 60 * settings["training_minutes"] - median(r["once"] for r in measured)
    shares = [1.0]  # of the peer's only stage
    if len(each) > 1:
        steps = [steps for steps, *_ in same_hour.NOW["stages"]]
        shares = [count / sum(steps) for count in steps]
    of_all = sum(share * seconds for share, seconds in zip(shares, each, strict=True))
    return [max(1, int(share * left / of_all)) for share in shares]


def best(records):
    """The record of a method with the lowest loss on the half by which is chosen."""
    return stats.chosen(
        (r for r in records if r["trial"]["part"] == "search"), "select", lowest=True
    )


def stands(settings, record, records):
    """Whether a record is what the study would make now."""
    own = [r for r in records if r["trial"]["method"] == record["trial"]["method"]]
    if record["trial"]["part"] == "speed":
        return True
    parts = [r["trial"]["part"] for r in own]
    if parts.count("speed") < settings["rounds"]:
        return False
    if record["trial"]["part"] == "best" and parts.count("search") < settings["trials"]:
        return False
    now = values_of(settings, record["trial"], records)
    return now["updates"] == record["values"]["updates"] and all(
        math.isclose(now[name], record["values"][name], rel_tol=1e-9)
        for name in ("rate", "one_minus_beta_1", "weight_decay")
    )


def problem(settings):
    """The error in the settings, or None."""
    known = SETTINGS["rates"]
    if unknown := [name for name in settings["rates"] if name not in known]:
        return f"rates must be among {', '.join(known)}; got {', '.join(unknown)}."
    return None


# Trials


def run(options, settings, trial, records):
    """A measurement or a training; see `claim.Claim`."""
    name = "_".join(map(str, trial.values())).replace(" ", "_")
    folder, model_dir = options.data_dir / "data", options.data_dir / f"model_{name}"
    folder.mkdir(parents=True, exist_ok=True)
    same_hour.make_data(folder, settings | {"arms": ["now"]})
    shutil.rmtree(model_dir, ignore_errors=True)  # of a trial that was killed
    model_dir.mkdir()
    of_peer = trial["method"] == PEER
    if trial["part"] == "speed":
        found = (speed_of_peer if of_peer else speed_of_ours)(folder, model_dir, settings, trial)
    else:
        values = values_of(settings, trial, records)
        train = train_peer if of_peer else train_ours
        (select, _), (loss, accuracy) = train(folder, model_dir, settings, trial, values)
        found = {
            "values": values,
            "select": select,
            "report": loss,
            "report_accuracy": 100 * accuracy,
            "said": f"held-out loss {loss:.3f}",
        }
    shutil.rmtree(model_dir)
    lost = found.get("select") is not None and not math.isfinite(found["select"])
    if lost:
        found |= dict.fromkeys(("select", "report", "report_accuracy"))
    return found | {"diverged": lost}


def run_of(folder, settings, trial, values):
    """The run of one of our methods."""
    method = trial["method"]
    given = {f"{method}_rate": values["rate"], f"{method}_decay": values["weight_decay"]}
    ingredients = same_hour.NOW | {"optimizer": method}
    made = same_hour.run_of(folder, settings | given, ingredients, trial["seed"])
    momentum = 1 - values["one_minus_beta_1"]
    of_matrices = {"settings": {"momentum": momentum}}
    changed = of_matrices if method in ("orscale", "muon") else {"beta_1": momentum}
    optimizer = dataclasses.replace(made.optimizer, **changed)
    stages = made.stages
    if "updates" in values:
        stages = tuple(
            dataclasses.replace(s, steps=n, warmup_steps=round(s.warmup_steps * n / s.steps))
            for s, n in zip(stages, values["updates"], strict=True)
        )
    return dataclasses.replace(made, optimizer=optimizer, stages=stages, minutes=None)


def speed_of_ours(folder, model_dir, settings, trial):
    """Seconds of an update of each stage, and of tracing and compiling all."""
    options, engine = trials.loop_options_and_engine(steps_per_loop=50)
    from official_bert.training import budget
    from official_bert.training.run_checks import RunRecords

    made = run_of(folder, settings, trial, SOME)
    until = time.monotonic() + settings["measured_seconds"]
    records = RunRecords(made, options, engine.shard)
    costs = budget.measured(made, options, engine, records, until, log=lambda line: None)
    update = [cost.update for cost in costs]
    said = ", ".join(f"{1000 * each:.0f} ms" for each in update)
    return {"update": update, "once": sum(cost.once for cost in costs), "said": said}


def speed_of_peer(folder, model_dir, settings, trial):
    """As `speed_of_ours`; nothing is compiled."""
    theirs, train_for = same_hour.peer(
        folder, model_dir, settings | {"peer_rate": SOME["rate"]}, trial["seed"]
    )
    each = same_hour.seconds_of_peer(theirs, train_for)
    return {"update": [each], "once": 0.0, "said": f"{1000 * each:.0f} ms"}


def train_ours(folder, model_dir, settings, trial, values):
    """(loss, accuracy) on both halves of the held-out batches: to choose by, and to report."""
    made = run_of(folder, settings, trial, values)
    trainer = trials.trainer(made, model_dir, steps_per_loop=50)
    from official_bert.training.trainer import Diverged

    try:
        trainer.train()
    except Diverged:
        return ((math.nan, math.nan),) * 2
    batches = same_hour.held_out(folder, made.config)
    return [same_hour.score(trainer, batches, half) for half in halves(batches)]


def train_peer(folder, model_dir, settings, trial, values):
    """As `train_ours`."""
    import hugging_face

    theirs, train_for = same_hour.peer(
        folder,
        model_dir,
        settings | {"peer_rate": values["rate"]},
        trial["seed"],
        weight_decay=values["weight_decay"],
        adam_beta1=1 - values["one_minus_beta_1"],
        adam_beta2=settings["beta_2"],
    )
    (steps,) = values["updates"]
    train_for(steps, theirs)
    config = trials.config_of(folder, settings, 128, settings["initial_stddev"])
    batches = same_hour.held_out(folder, config)
    return [hugging_face.evaluate(theirs, batches, "logits", half) for half in halves(batches)]


def halves(batches):
    return [range(first, batches.num_batches, 2) for first in (0, 1)]


# The results


def by_method(work, settings):
    """{method: its records}, in the order of the settings, those with records."""
    found = {m: [r for r in work if r["trial"]["method"] == m] for m in settings["rates"]}
    return {method: records for method, records in found.items() if records}


def trained(records):
    """The best of a search and its further seeds."""
    searched = [r for r in records if r["trial"]["part"] == "search"]
    if not searched:
        return []
    return [best(searched), *(r for r in records if r["trial"]["part"] == "best")]


def tables(work, settings):
    """Of each method the speed, the number of updates, the best values and their losses."""
    found = by_method(work, settings)
    rows = [(m, records, trained(records)) for m, records in found.items() if trained(records)]

    def value(name, form):
        return lambda method, records, runs: format(runs[0]["values"][name], form)

    def points(method, records, runs):
        return sum(r["trial"]["part"] == "search" for r in records)

    head = {
        "method": lambda method, records, runs: method,
        "updates": lambda m, records, runs: f"{sum(runs[0]['values']['updates']):,}",
        "points": points,
        "best rate": value("rate", ".4f"),
        "1 − β₁": value("one_minus_beta_1", ".3f"),
        "decay": value("weight_decay", ".3f"),
        **stats.loss_columns("held-out loss"),
    }
    return {"methods": stats.columns(head, rows)}


def draw(work, settings):
    """Held-out loss of each point over its rate, a line per method through its points."""
    figure, ((axis,),) = stats.figure(1, 1, (8, 5))
    for method, records in by_method(work, settings).items():
        points = sorted(
            (r["values"]["rate"], r["report"])
            for r in records
            if r["trial"]["part"] == "search" and r["report"] is not None
        )
        if points:
            axis.semilogx(*zip(*points, strict=True), "o-", label=method)
            runs = trained(records)
            axis.plot(runs[0]["values"]["rate"], mean(r["report"] for r in runs), "k*", ms=12)
    axis.set(xlabel="learning rate", ylabel="held-out masked-LM loss, nats")
    axis.legend()
    return figure


CLAIM = claim.of(
    globals(),
    "same_hour",
    "What a small BERT learns in the same time",
    results="same_hour_search",
    trials=all_trials,
    pictures={"_search": draw},
    lost="the loss is not a number",
    extent=("seeds", "trials", "rates"),
    suffix=" of the search",
)


if __name__ == "__main__":
    sys.exit(claim.script(CLAIM, __doc__))
