"""Text and picture of `legw.py`, from its records alone."""

from statistics import mean

import findings

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
PUBLISHED = """## What is published

- The paper (arXiv 1901.08256): MNIST by an LSTM of 128 units, batch 128 → 8,192, 25 epochs, about \
98.7 % at all of them.
- The failure: at rate 0.001 for every batch, a bidirectional LSTM with LAMB falls from 98.94 % at \
batch 64 to 80.36 % at 16,384, Adam from 99.04 to 97.74 % (`ymcui/LAMB_Optimizer_TF`).
- MNIST in 10 epochs, 5 of them warm-up, batch 32 → 4,096: LARS 99.52 → 99.32 %, SGD 99.45 → \
98.48 %, Adam 99.36 → 99.15 % (another model)."""


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
    return f"""{chr(10).join(answers(records, settings))}

![Error on the test images over the batch, by rule]({name}.png)

Accuracy on the test images, mean ± standard deviation over seeds; the bars in the picture are \
ranges. Rates were chosen at batch {settings["base_batch"]} alone, by the accuracy on \
{settings["select_examples"]:,} training images that are not trained with. Every batch has \
{settings["epochs"]} epochs.

{results(records, settings)}

## The published failure

{failure_table(records, settings)}

A bidirectional LSTM with LAMB at rate {settings["failure"]["rate"]:g}, tuned for no batch.

{PUBLISHED}

Ours have {settings["size"]} rows of {settings["size"]}, {settings["hidden"]} units and \
{settings["epochs"]} epochs. The linear rule has {settings["linear_warmup_epochs"]} epochs of \
warm-up.

## The rates at the base

{tuning_table(records, settings)}

Accuracy on the images to choose by, seed 1.{edges(records, settings)}"""


def answers(records, settings):
    """What comes out, as sentences."""
    largest = max(settings["multiples"]) * settings["base_batch"]
    lines = []
    for method, label in METHODS.items():
        base, legw = base_runs(records, method), runs(records, "scaling", method, "legw", largest)
        if base and legw:
            lines.append(f"- **{label}**: {answer(base, legw, records, method, largest)}")
    return [*lines, *failure_answer(records, settings)] or ["There are no runs to compare yet."]


def answer(base, legw, records, method, batch):
    """Whether LEGW holds the accuracy of the base, and which rule did best."""
    lost = mean(reports(base)) - mean(reports(legw))
    holds = "holds" if lost <= MARGIN else "does not hold"
    by_rule = {rule: runs(records, "scaling", method, rule, batch) for rule in COLORS}
    best = ""
    if all(len(found) == len(base) for found in by_rule.values()):
        means = {rule: mean(reports(found)) for rule, found in by_rule.items()}
        highest = max(means, key=means.get)
        within = "" if mean(reports(base)) - means[highest] <= MARGIN else "not "
        best = (
            f"; the highest mean there has {RULES[highest]!r}, {means[highest]:.2f} %, "
            f"{within}within {MARGIN} points"
        )
    return (
        f"untuned LEGW {holds} the accuracy within {MARGIN} points: "
        f"{findings.spread(reports(base))} % at batch {base[0]['trial']['batch']}, \
{findings.spread(reports(legw))} % at {batch:,}{best}."
    )


def failure_answer(records, settings):
    base, constant, legw, _ = (runs_of_failure(records, settings)[rule] for rule in FAILURE)
    if not (base and constant and legw):
        return []
    return [
        f"- **The published failure**: with LAMB's rate left as it was, "
        f"{findings.spread(reports(base))} % at batch {base[0]['trial']['batch']} become "
        f"{findings.spread(reports(constant))} % at {constant[0]['trial']['batch']:,}; with LEGW "
        f"{findings.spread(reports(legw))} %."
    ]


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
    head = ("optimizer", "rule", "batch", "updates", "rate", "warm-up, updates", "runs", "accuracy")
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
        findings.spread(reports(found)) + " %",
        sum(record["diverged"] for record in found),
    )


def failure_table(records, settings):
    groups = runs_of_failure(records, settings)
    head = ("optimizer", "rule", "batch", "updates", "rate", "warm-up, updates", "runs", "accuracy")
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
            found += [f" The best one of {METHODS[method]} is the {end} tried."] * bool(end)
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
    axes[0].legend(fontsize=8)
    _draw_failure(axes[-1], records, settings)


def _draw_failure(axis, records, settings):
    groups = runs_of_failure(records, settings)
    for rule in ("constant", "legw"):
        found = (groups["base"], groups[rule])
        _line(axis, {f[0]["trial"]["batch"]: f for f in found if f}, COLORS[rule], RULES[rule])
    batches = {record["trial"]["batch"] for found in groups.values() for record in found}
    _decorate(axis, "LAMB, bidirectional LSTM", batches)


def _line(axis, points, color, label):
    errors = [[100 - value for value in reports(found)] for found in points.values()]
    means = [mean(values) for values in errors]
    low = [m - min(values) for m, values in zip(means, errors)]
    high = [max(values) - m for m, values in zip(means, errors)]
    style = {"color": color, "label": label, "marker": "o", "capsize": 3}
    axis.errorbar(list(points), means, [low, high], **style)
    axis.set_xscale("log")


def _decorate(axis, title, batches):
    ticks = (0.5, 1, 2, 5, 10, 20, 50, 100)
    axis.set(title=title, xlabel="batch", yscale="log", ylim=(0.5, 100))
    axis.set_xticks(sorted(batches), [f"{batch:,}" for batch in sorted(batches)])
    axis.set_yticks(ticks, map(str, ticks))
    axis.minorticks_off()
