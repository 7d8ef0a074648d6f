"""Text and picture of `legw.py`, from its records alone."""

import math
from statistics import mean

import stats as findings

METHODS = {"momentum": "momentum SGD", "lamb": "LAMB", "adam": "Adam"}
RULES = {
    "base": "the base",
    "legw": "LEGW: √k, warm-up × k epochs",
    "sqrt": "√k, warm-up as at the base",
    "linear": "linear, warm-up in epochs",
    "constant": "the base's rate",
}
COLORS = {"legw": "#cc3311", "sqrt": "#ee9944", "linear": "#4477aa", "constant": "#777777"}
MARGIN = 0.5  # points of accuracy that LEGW may lose
PUBLISHED = """## Published results

- **The paper** (arXiv 1901.08256): an LSTM of 128 units on MNIST in 25 epochs, with a constant \
rate after the warm-up, reaches about 98.7 % at batches 128 to 8,192 (quoted from memory).
- **The failure** (`ymcui/LAMB_Optimizer_TF`): at rate 0.001 for every batch, the accuracy of a \
bidirectional LSTM with LAMB falls from 98.94 % at batch 64 to 80.36 % at 16,384; with Adam it \
falls from 99.04 to 97.74 %.
- **Another model**, MNIST in 10 epochs with 5 of warm-up, batch 32 → 4,096: LARS 99.52 → 99.32 %, \
SGD 99.45 → 98.48 %, Adam 99.36 → 99.15 %."""


def base_runs(records, method):
    """The runs at the base batch with the chosen rate, that of the tuning included."""
    tuned = [r for r in records if _is(r, part="tuning", method=method)]
    others = [r for r in records if _is(r, part="scaling", method=method, rule="base")]
    return [findings.chosen(tuned, "select"), *others] if tuned else []


def runs(records, part, method, rule, batch):
    return [r for r in records if _is(r, part=part, method=method, rule=rule, batch=batch)]


def _is(record, **values):
    return all(record["trial"][key] == value for key, value in values.items())


def reports(found):
    return [record["report"] for record in found]


def text(records, settings, name):
    base = settings["base_batch"]
    return f"""{answer(records, settings)}

![Error on the test images over the batch, by rule]({name}.png)

Every run has {settings["epochs"]} epochs, without weight decay; the rate is constant after the \
warm-up, as in the paper. *As at the base* is a warm-up of {settings["base_warmup_epochs"]} \
epochs, which at {max(settings["multiples"]) * base:,} is less than one step. The linear rule has \
{settings["linear_warmup_epochs"]} epochs of warm-up.

## Every group of runs

{results(records, settings)}

Mean ± standard deviation over seeds, or all values if a run diverged. The bars in the picture \
are ranges.

## The published failure

{failure_table(records, settings)}

A bidirectional LSTM with LAMB at rate {settings["failure"]["rate"]:g}, not tuned for any batch.

{PUBLISHED}

The model here reads {settings["size"]} rows of {settings["size"]} pixels with \
{settings["hidden"]} units; momentum SGD has momentum 0.9.

## The rates at the base

{tuning_table(records, settings)}

Accuracy on {settings["select_examples"]:,} training images held out to choose the rate, only at \
batch {base}; seed 1. {chance(settings)}{edges(records, settings)}"""


def chance(settings):
    """What is within chance between two of these accuracies, as a sentence."""
    points = 100 * math.sqrt(2 * 0.99 * 0.01 / settings["select_examples"])
    return f"The standard error of a difference at 99 % is {points:.1f} points."


def answer(records, settings):
    """What each rule loses, and what becomes of the published failure."""
    failure = failure_answer(records, settings)
    rows = lost_rows(records, settings)
    if not rows:
        return failure or "No runs to compare yet."
    multiples, base = sorted(settings["multiples"]), settings["base_batch"]
    head = (f"lost at {k * base:,}" for k in multiples)
    table = findings.table(("optimizer", "rule", *head), rows)
    text = f"""Accuracy lost by LEGW and other rules, untuned, when the batch grows from {base}:

{table}

Points of accuracy on the test images, paired by seed; ± is the 95 % interval of their mean \
(Student's t). **Held**: the interval is below {MARGIN}. *Undecided*: it contains {MARGIN}."""
    return f"{text}\n\n{failure}" if failure else text


def lost_points(base, found):
    """Points of accuracy that are lost from the base, seed by seed."""
    at_base = {record["trial"]["seed"]: record["report"] for record in base}
    return [
        at_base[r["trial"]["seed"]] - r["report"] for r in found if r["trial"]["seed"] in at_base
    ]


def points(gaps):
    interval = f" ± {findings.half_width(gaps):.2f}" if len(gaps) > 1 else ""
    return f"{mean(gaps):.2f}{interval}"


def each(found):
    return ", ".join(f"{value:.1f}" for value in reports(found)) + " %"


def accuracy(found):
    """Mean ± standard deviation, or all values where a run diverged: they have no middle."""
    if any(record["diverged"] for record in found):
        return each(found)
    return findings.spread(reports(found)) + " %"


def lost_rows(records, settings):
    """What each rule loses at each batch; a row a rule."""
    multiples, rows = sorted(settings["multiples"]), []
    for method, label in METHODS.items():
        base = base_runs(records, method)
        for rule in COLORS:
            found = [
                runs(records, "scaling", method, rule, k * settings["base_batch"])
                for k in multiples
            ]
            if base and any(found):
                rows.append((label, RULES[rule], *(lost(base, some) for some in found)))
    return rows


def lost(base, found):
    """What runs lose from the base, and whether that is within the margin."""
    if not found:
        return "–"
    if diverged := sum(record["diverged"] for record in found):
        return f"{diverged} of {len(found)} diverge"
    gaps = lost_points(base, found)
    words = {True: ", **held**", False: "", None: ", *undecided*"}
    return points(gaps) + words[findings.within(gaps, MARGIN)]


def failure_answer(records, settings):
    """What becomes of the published failure, as a sentence; "" where it was not run."""
    groups = runs_of_failure(records, settings)
    base, others = groups["base"], {rule: f for rule, f in groups.items() if rule != "base" and f}
    if not base or not others:
        return ""
    names = {
        "constant": "with LAMB's rate unchanged",
        "legw": "with LEGW",
        "sqrt": "with only √k",
    }
    said = ", ".join(f"{accuracy(found)} {names[rule]}" for rule, found in others.items())
    large = next(iter(others.values()))[0]["trial"]["batch"]
    return (
        f"**The published failure**: {accuracy(base)} at batch {base[0]['trial']['batch']}; at "
        f"{large:,}: {said}."
    )


FAILURE = ("base", "constant", "legw", "sqrt")


def runs_of_failure(records, settings):
    failure = settings["failure"]
    small, large = failure["base_batch"], failure["base_batch"] * failure["multiple"]
    batches = {rule: small if rule == "base" else large for rule in FAILURE}
    return {rule: runs(records, "failure", "lamb", rule, batches[rule]) for rule in FAILURE}


def results(records, settings):
    base, rows = settings["base_batch"], []
    for method, label in METHODS.items():
        if found := base_runs(records, method):
            rows.append(row(label, "base", base, found))
        for multiple in sorted(settings["multiples"]):
            for rule in COLORS:
                found = runs(records, "scaling", method, rule, multiple * base)
                if found:
                    rows.append(row(label, rule, multiple * base, found))
    head = ("optimizer", "rule", "batch", "steps", "rate", "warm-up, steps", "runs", "accuracy")
    return findings.table((*head, "diverged"), rows)


def row(label, rule, batch, found):
    first = found[0]
    return (
        label,
        RULES[rule],
        f"{batch:,}",
        f"{first['updates']:,}",
        f"{first['peak']:.3g}",
        first["warmup_updates"],
        len(found),
        accuracy(found),
        sum(record["diverged"] for record in found),
    )


def failure_table(records, settings):
    groups = runs_of_failure(records, settings)
    head = ("optimizer", "rule", "batch", "steps", "rate", "warm-up, steps", "runs", "accuracy")
    rows = [row("LAMB", rule, f[0]["trial"]["batch"], f) for rule, f in groups.items() if f]
    return findings.table((*head, "diverged"), rows) if rows else "Not run yet."


def tuning_table(records, settings):
    rows = []
    for method, rates in settings["rates"].items():
        found = {
            r["base_rate"]: r["select"] for r in records if _is(r, part="tuning", method=method)
        }
        cells = [f"{rate:g}: {found[rate]:.2f} %" if rate in found else "–" for rate in rates]
        rows.append((METHODS[method], *cells))
    width = max(map(len, rows)) - 1
    return findings.table(("optimizer", *["rate"] * width), rows)


def edges(records, settings):
    """Sentences on the optimizers whose best rate is the lowest or the highest one."""
    found = []
    for method, rates in settings["rates"].items():
        tuned = [r for r in records if _is(r, part="tuning", method=method)]
        if len(tuned) == len(rates) > 1:
            rate = findings.chosen(tuned, "select")["base_rate"]
            end = {min(rates): "lowest", max(rates): "highest"}.get(rate)
            found += [f" The best rate of {METHODS[method]} is the {end} tried."] * bool(end)
    return "".join(found)


def draw(records, settings, path):
    findings.picture(lambda axes: _draw(axes, records, settings), path, len(METHODS) + 1, (15, 4.2))


def _draw(axes, records, settings):
    """Errors, on a logarithmic scale: what lies between 98 and 99 % would not be seen else."""
    for axis, (method, label) in zip(axes, METHODS.items()):
        base = base_runs(records, method)
        for rule, color in COLORS.items():
            points = {settings["base_batch"]: base} if base else {}
            for multiple in sorted(settings["multiples"]):
                batch = multiple * settings["base_batch"]
                if found := runs(records, "scaling", method, rule, batch):
                    points[batch] = found
            _line(axis, points, color, RULES[rule])
        if base:
            level = 100 - mean(reports(base)) + MARGIN
            what = f"the base's error + {MARGIN} points"
            axis.axhline(level, color="#777777", lw=0.8, ls="--", label=what)
        batches = [settings["base_batch"] * multiple for multiple in (1, *settings["multiples"])]
        _decorate(axis, f"{label}, LSTM", batches)
    axes[0].set_ylabel("error on the test images, %")
    axes[2].legend(fontsize=8, loc="upper left")
    _draw_failure(axes[-1], records, settings)


def _draw_failure(axis, records, settings):
    groups = runs_of_failure(records, settings)
    for rule in FAILURE[1:]:
        found = (groups["base"], groups[rule])
        _line(axis, {f[0]["trial"]["batch"]: f for f in found if f}, COLORS[rule], RULES[rule])
    batches = {record["trial"]["batch"] for found in groups.values() for record in found}
    _decorate(axis, "LAMB, bidirectional LSTM", batches)


def _line(axis, points, color, label):
    errors = {batch: [100 - value for value in reports(found)] for batch, found in points.items()}
    findings.means_and_ranges(axis, errors, color=color, label=label)
    axis.set_xscale("log")


def _decorate(axis, title, batches):
    ticks = (0.5, 1, 2, 5, 10, 20, 50, 100)
    axis.set(title=title, xlabel="batch", yscale="log", ylim=(0.5, 100))
    axis.set_xticks(sorted(batches), [f"{batch:,}" for batch in sorted(batches)])
    axis.set_yticks(ticks, map(str, ticks))
    axis.minorticks_off()
