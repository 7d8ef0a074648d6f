"""Compares ingredients and optimizers with each other and with Hugging Face's way, in equal time.

    python benchmarks/same_hour_search.py --jobs=2

A small BERT learns from the English text that comes with Python, in the same minutes by each arm of
`same_hour.py`: "now" has the demo's lengths, rows and optimizer, "before" those of an older demo,
and the others change one ingredient of "now". First the seconds of an update are measured, each
arm's in turns with those of "now". They fix the number of updates that fit into the minutes of a
training, which then does not depend on what else the machine does. Where the optimizer is the
ingredient, and in Hugging Face's way, the rate, 1 − β₁ and the weight decay are searched: the same
number of quasi-random points for each. The best by one half of the held-out batches trains with
more seeds and is reported on the other half. Every other arm takes the best values of "now", and
"before" its own.

Needs torch, transformers, accelerate and matplotlib, and for the measurements a machine that does
nothing else.
"""

import math
import shutil
import sys
import time
from statistics import median

import claim
import same_hour
import stats
import trials

PEER = same_hour.PEER
RATES = {  # of the arms that are searched
    "now": [1.25e-3, 1.25e-2],
    "now with LAMB": [2.5e-3, 2.5e-2],
    "now with AdamW": [1e-3, 1e-2],
    "now with OrScale": [8e-4, 8e-3],
    PEER: [3e-4, 3e-3],
}
SETTINGS = {
    "training_minutes": 3.0,
    "vocab_size": 2048,
    "documents": None,  # of the text; None: all
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "num_attention_heads": 2,
    "intermediate_size": 512,
    "initial_stddev": 0.06,
    "tokens": 2048,  # of a batch
    "beta_2": 0.98,
    "peer_warmup": 0.06,  # share of its updates
    "seeds": 3,
    "arms": [*RATES, "before"]
    + [arm for arm in same_hour.ARMS if arm.startswith("now with") and arm not in RATES],
    "rounds": 2,  # of measurements
    "measured_seconds": 20.0,  # of a measurement, "now" included
    "trials": 8,
    "rates": RATES,
    "one_minus_beta_1": [0.03, 0.3],
    "weight_decay": [5e-3, 0.2],
    "evaluations": 6,  # of a training, besides the last
}
SOME = {"rate": 1e-3, "one_minus_beta_1": 0.1, "weight_decay": 0.1}  # where speeds are measured
OF_BEFORE = {"rate": 8e-3, "one_minus_beta_1": 0.1, "weight_decay": 0.01}


def all_trials(settings, records):
    """The measurements in turns, the search breadth first, then the seeds of the arms."""
    arms, searched = settings["arms"], searched_arms(settings)
    rounds, points = (range(1, 1 + settings[name]) for name in ("rounds", "trials"))
    timed = [arm for arm in arms if measured_by(arm) == arm]
    found = [trial("speed", arm, n, 1) for n in rounds for arm in timed]
    found += [trial("search", arm, n, 1) for n in points for arm in searched]
    return found + [
        trial("arm", arm, None, seed)
        for seed in range(1, 1 + settings["seeds"])
        for arm in arms
        if seed > 1 or arm not in searched  # its first run is the best of the search
    ]


def trial(part, arm, number, seed):
    return {"part": part, "arm": arm, "number": number, "seed": seed}


def searched_arms(settings):
    return [arm for arm in settings["arms"] if arm in RATES]


def source(arm):
    """The arm by whose search another is set; None for "before"."""
    return arm if arm in RATES else None if arm == "before" else "now"


def measured_by(arm):
    """The arm whose measured seconds count for another: one with the same updates."""
    return same_hour.ARMS.get(arm, {}).get("as_fast_as", arm)


def needs(trial, other):
    """Whether a trial waits for another: for what is measured, or for a search."""
    if trial["part"] == "speed":
        return False
    if other["part"] == "speed":  # of any arm: it must not be measured beside a training
        return True
    return (trial["part"], other["part"]) == ("arm", "search") and (
        other["arm"] == source(trial["arm"])
    )


def values_of(settings, trial, records):
    """The hyperparameters of a training, and the updates of its stages."""
    arm = trial["arm"]
    if trial["part"] == "search":
        ranges = {"rate": settings["rates"][arm]}
        ranges |= {name: settings[name] for name in ("one_minus_beta_1", "weight_decay")}
        values = trials.halton(ranges, trial["number"])
    elif searched := source(arm):
        values = best(records, searched)["values"]
    else:
        values = OF_BEFORE
    return values | fitting(settings, arm, records)


def part_of(records, part, arm):
    """The records of a part of an arm's trials."""
    wanted = {"part": part, "arm": arm}
    return [r for r in records if wanted.items() <= r["trial"].items()]


def fitting(settings, arm, records):
    """The updates of each stage that fit into the minutes.

    The machine's speed varies more than the arms' costs differ. So an arm's costs are medians of
    its ratios to those of "now" beside it, times the median of the latter over all measurements.

    Returns:
        `updates` of each stage, the seconds of `each`, and of tracing and compiling `once`.
    """
    of_now = median(seconds_of_now(r) for r in records if r["trial"]["part"] == "speed")
    measured = part_of(records, "speed", measured_by(arm))

    def usual(costs):
        return of_now * median(c / seconds_of_now(r) for c, r in zip(costs, measured, strict=True))

    each = [usual(costs) for costs in zip(*(r["update"] for r in measured), strict=True)]
    once = usual([r["once"] for r in measured])
    steps = [1] if arm == PEER else [s for s, *_ in same_hour.ARMS[arm]["stages"]]
    of_all = sum(count * seconds for count, seconds in zip(steps, each, strict=True))
    share = (60 * settings["training_minutes"] - once) / of_all
    return {"updates": [max(1, int(share * n)) for n in steps], "each": each, "once": once}


def seconds_of_now(record):
    """Mean seconds of an update of "now" in a measurement."""
    weights = [steps for steps, *_ in same_hour.NOW["stages"]]
    costs = zip(weights, record["update_of_now"], strict=True)
    return sum(count * seconds for count, seconds in costs) / sum(weights)


def best(records, arm):
    """The record of an arm's search with the lowest loss on the half by which is chosen."""
    return stats.chosen(part_of(records, "search", arm), "select", lowest=True)


def stands(settings, record, records):
    """Whether a record is what the study would make now."""
    arm, part = record["trial"]["arm"], record["trial"]["part"]
    if part == "speed":
        return True
    measured = [r for r in records if r["trial"]["part"] == "speed"]
    timed = {measured_by(arm) for arm in settings["arms"]}
    if len(measured) < settings["rounds"] * len(timed):
        return False
    searched = source(arm) if part == "arm" else None
    if searched and len(part_of(records, "search", searched)) < settings["trials"]:
        return False
    now = values_of(settings, record["trial"], records)
    return now["updates"] == record["values"]["updates"] and all(
        math.isclose(now[name], record["values"][name], rel_tol=1e-9) for name in SOME
    )


def problem(settings):
    """The error in the settings, or None."""
    known = SETTINGS["arms"]
    if unknown := [arm for arm in settings["arms"] if arm not in known]:
        return f"arms must be among {', '.join(known)}; got {', '.join(unknown)}."
    if settings["rates"].keys() != RATES.keys():
        return f"rates must have {', '.join(RATES)}; got {', '.join(settings['rates'])}."
    if "now" not in settings["arms"]:
        return "arms must have now, whose best values the others take; got none."
    return None


# Trials


def run(options, settings, trial, records):
    """A measurement or a training; see `claim.Claim`."""
    folder, number = options.data_dir / "data", settings["arms"].index(trial["arm"])
    name = "_".join(map(str, (trial["part"], number, trial["number"], trial["seed"])))
    model_dir = options.data_dir / f"model_{name}"
    folder.mkdir(parents=True, exist_ok=True)
    same_hour.make_data(folder, settings)
    shutil.rmtree(model_dir, ignore_errors=True)  # of a trial that was killed
    model_dir.mkdir()
    of_peer = trial["arm"] == PEER
    if trial["part"] == "speed":
        found = speeds(folder, model_dir, settings, trial)
        said = (", ".join(f"{1000 * s:.0f}" for s in found[n]) for n in ("update", "update_of_now"))
        found |= {"said": "{} ms beside now's {}".format(*said), "diverged": False}
    else:
        values = values_of(settings, trial, records)
        train = train_peer if of_peer else train_ours
        found = {"values": values} | train(folder, model_dir, settings, trial, values)
    shutil.rmtree(model_dir)
    return found


def speeds(folder, model_dir, settings, trial):
    """The seconds of an update of each stage, and of tracing and compiling all of them `once`.

    Returns:
        `update` of the arm's stages and `update_of_now`, measured in turns; and `once`.
    """
    now = stages_to_measure(folder, settings, trial | {"arm": "now"})
    if trial["arm"] == PEER:
        ours, once = [], 0.0  # nothing is compiled
    else:
        ours = stages_to_measure(folder, settings, trial)
        once = sum(stage.once for stage in ours)
    until, found = time.monotonic() + settings["measured_seconds"], {}

    def turn():
        for name, stages in (("update_of_now", now), ("update", ours)):
            for index, stage in enumerate(stages):
                found.setdefault((name, index), []).append(stage.seconds())

    if trial["arm"] == PEER:
        found["update", 0] = seconds_of_peer(folder, model_dir, settings, trial, turn)
    else:
        while time.monotonic() < until:
            turn()
    medians = {"update_of_now": [], "update": []}
    for (name, _), seconds in sorted(found.items()):
        medians[name].append(median(seconds))
    return medians | {"once": once}


def stages_to_measure(folder, settings, trial):
    """An arm's stages, each traced and compiled, on a model of its own."""
    options, engine = trials.loop_options_and_engine(steps_per_loop=50)
    made = same_hour.run_of(folder, settings, trial, SOME | {"updates": None})
    return [Measured(made, stage, options, engine) for stage in made.stages]


class Measured:
    """Updates of a stage, to be timed; `once` is what its first one takes more than a later one."""

    def __init__(self, run, stage, options, engine):
        from official_bert.engines.loop_state import first_state
        from official_bert.training.run_checks import RunRecords
        from official_bert.training.stage_model import make_model_and_optimizer

        records = RunRecords(run, options, engine.shard)
        self._state, self._done = first_state(run), 0
        with engine.scope():
            model, optimizer = make_model_and_optimizer(run, stage)
        self._loop = engine.training_loop(run, model, optimizer)
        self._batches = engine.feed(lambda *shard: records.training(stage, *shard), range(10**9))
        self.once = self.seconds(1) - self.seconds()

    def seconds(self, updates=4):
        """Seconds of an update, in one call of several."""
        started = time.monotonic()
        self._loop(self._batches, self._done, updates, self._state)
        self._done += updates
        return (time.monotonic() - started) / updates


def seconds_of_peer(folder, model_dir, settings, trial, turn):
    """The seconds of some of the peer's updates; `turn()` is called between them."""
    import transformers

    _, train_for = same_hour.peer(folder, model_dir, settings, trial["seed"], SOME)
    seconds, in_a_row = [], 8  # the first is left out: turns leave the caches to others

    class Turns(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            now = time.monotonic()
            if state.global_step % in_a_row > 1:
                seconds.append(now - self.last)
            elif state.global_step % in_a_row == 0:
                turn()
            self.last = time.monotonic()

    train_for(in_a_row * max(1, round(settings["measured_seconds"] / 4)), [Turns()])
    return seconds


def train_ours(folder, model_dir, settings, trial, values):
    """Trains one of our arms; returns what `scores` returns, and the curve."""
    made = same_hour.run_of(folder, settings, trial, values)
    every = max(1, sum(values["updates"]) // (1 + settings["evaluations"]))
    trainer = trials.trainer(
        made,
        model_dir,
        eval_files=(same_hour.evaluated(folder, same_hour.ARMS[trial["arm"]]["stages"]),),
        eval_batch_size=same_hour.SCORED_ROWS,
        steps_per_loop=50,
        log_steps=every,
        eval_steps=every,
    )
    from official_bert.training.trainer import Diverged

    try:
        trainer.train()
    except Diverged:
        return scores([(math.nan, math.nan)] * 2)
    batches = same_hour.held_out(folder, made.config)
    found = scores([same_hour.score(trainer, batches, half) for half in halves(batches)])
    return found | {"curve": trials.read_curve(model_dir)}


def train_peer(folder, model_dir, settings, trial, values):
    """As `train_ours`."""
    import hugging_face
    import transformers

    theirs, train_for = same_hour.peer(folder, model_dir, settings, trial["seed"], values)
    (steps,) = values["updates"]
    config = trials.config_of(folder, settings, 128, settings["initial_stddev"])
    batches = same_hour.held_out(folder, config)
    curve, every = [], max(1, steps // (1 + settings["evaluations"]))

    class Evaluate(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, model, **_):
            if state.global_step % every == 0 or state.global_step == steps:
                loss, accuracy = hugging_face.evaluate(model, batches, "logits")
                values = {"masked_lm_loss": loss, "masked_lm_accuracy": accuracy}
                curve.append({"step": state.global_step, **values})

    train_for(steps, [Evaluate()])
    found = [hugging_face.evaluate(theirs, batches, "logits", half) for half in halves(batches)]
    return scores(found) | {"curve": curve}


def scores(found):
    """The entries of a record from (loss, accuracy) of both halves of the held-out batches."""
    (select, _), (loss, accuracy) = found
    if not math.isfinite(select + loss):
        names = ("select", "report", "report_accuracy")
        return dict.fromkeys(names) | {"said": "no loss", "diverged": True, "curve": []}
    return {
        "select": select,
        "report": loss,
        "report_accuracy": 100 * accuracy,
        "said": f"held-out loss {loss:.3f}",
        "diverged": False,
    }


def halves(batches):
    """The numbers of the batches to choose by, and of those to report."""
    return [range(first, batches.num_batches, 2) for first in (0, 1)]


# The results


def by_arm(work, settings):
    """{arm: its runs by seed}, in the order of the settings, those with runs."""
    found = {}
    for arm in settings["arms"]:
        first = [best(work, arm)] if part_of(work, "search", arm) else []
        later = sorted(part_of(work, "arm", arm), key=lambda r: r["trial"]["seed"])
        found[arm] = first + later
    return {arm: runs for arm, runs in found.items() if runs}


def tables(work, settings):
    """Losses of all arms compared with "now"; of the searched ones their best values."""
    found = by_arm(work, settings)

    def milliseconds(arm, runs):
        return " and ".join(f"{1000 * each:.0f}" for each in runs[0]["values"]["each"])

    def value(name, form):
        return lambda arm, runs: format(runs[0]["values"][name], form)

    of_arms = {
        "ingredients": lambda arm, _: arm,
        "ms of an update": milliseconds,
        "updates": lambda _, runs: f"{sum(runs[0]['values']['updates']):,}",
        **stats.loss_columns("held-out loss"),
        "less that of now": lambda arm, runs: (
            "–" if arm == "now" else stats.signed(stats.paired(runs, found.get("now", [])))
        ),
    }
    of_search = {
        "ingredients": lambda arm, _: arm,
        "points": lambda arm, _: len(part_of(work, "search", arm)),
        "best rate": value("rate", ".4f"),
        "1 − β₁": value("one_minus_beta_1", ".3f"),
        "decay": value("weight_decay", ".3f"),
        "losses of the points": lambda arm, _: losses_of(part_of(work, "search", arm)),
    }
    searched = [(arm, runs) for arm, runs in found.items() if arm in RATES]
    return {
        "arms": stats.columns(of_arms, found.items()),
        "best": stats.columns(of_search, searched),
    }


def losses_of(points):
    """The losses of a search's points from the lowest, those that diverged last."""
    known = sorted(r["report"] for r in points if r["report"] is not None)
    said = [f"{loss:.2f}" for loss in known]
    lost = len(points) - len(known)
    return ", ".join(said + [f"{lost} diverged"] * bool(lost))


def minutes_at(values, step):
    """Minutes of training up to a step, by the measured seconds."""
    seconds = values["once"]
    for count, each in zip(values["updates"], values["each"], strict=True):
        seconds += each * min(step, count)
        step = max(0, step - count)
    return seconds / 60


def draw(work, settings):
    """Held-out loss over minutes, a line per seed."""
    found = by_arm(work, settings)
    figure, ((axis,),) = stats.figure(1, 1, (8, 5))
    shown = [arm for arm in (*RATES, "before") if arm in found]
    named = len(shown)
    shown += [arm for arm in found if arm not in shown]
    for number, arm in enumerate(shown):
        color = f"C{number}" if number < named else "#bbbbbb"
        for index, run in enumerate(found[arm]):
            minutes = [minutes_at(run["values"], point["step"]) for point in run["curve"]]
            losses = [point["masked_lm_loss"] for point in run["curve"]]
            label = arm if number < named else "now with another ingredient"
            label = label * (index == 0 and number <= named)
            style = {"color": color, "zorder": 3 if number < named else 1, "lw": 1.6}
            axis.plot(minutes, losses, ".-", label=label or None, **style)
    axis.set(xlabel="minutes of training", ylabel="held-out masked-LM loss, nats")
    axis.legend()
    return figure


CLAIM = claim.of(
    globals(),
    "same_hour",
    "What a small BERT learns in the same time",
    results="same_hour_search",
    trials=all_trials,
    flags={
        "seeds": (int, "seeds: 1, 2, …, of each arm (3)"),
        "arms": (claim.comma_separated, "names of arms, `now` among them (all)"),
    },
    lost="the loss is not a number",
    extent=("seeds", "trials", "arms"),
)


if __name__ == "__main__":
    sys.exit(claim.script(CLAIM, __doc__))
