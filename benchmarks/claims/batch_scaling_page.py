"""Text and picture of `batch_scaling.py`, from its records alone."""

import itertools
from statistics import mean

import findings
from findings import curves

LABELS = {
    "lamb": "LAMB",
    "adamw": "AdamW",
    "orscale": "OrScale",
    "nesterov": "Nesterov SGD",
    "lars": "LARS",
    "muon": "Muon (Keras)",
}
COLORS = {
    "lamb": "#cc3311",
    "adamw": "#4477aa",
    "orscale": "#228833",
    "nesterov": "#ee9944",
    "lars": "#aa3377",
    "muon": "#777777",
}
TUNING = ("search", "long warm-up")  # parts of a study whose trials are points of a sequence
HELD = 0.1  # nats above the loss at the smallest batch that still count as held
CEILING = 7.0  # nats, of the picture
AT_PLATEAU = (
    f" That is above {curves.PLATEAU} nats: it knows the frequencies of words and little else, and "
    "has little to lose."
)


def methods(records, settings):
    """Those that have been run."""
    run = {record["trial"]["method"] for record in records}
    return [method for method in itertools.chain(*settings["groups"]) if method in run]


def searched(records, method, multiple):
    """The runs that the best is chosen from: both parts of the search and what the rule made."""
    at = {"method": method, "multiple": multiple, "seed": 1}
    return [r for r in records if any(_is(r, part=part, **at) for part in (*TUNING, "rule"))]


def best(records, method, multiple):
    """The one with the lowest loss on the set to choose by."""
    return findings.chosen(searched(records, method, multiple), "select", lowest=True)


def tuned(records, method, multiple):
    """The best, and its further seeds; nothing where nothing was searched."""
    if not searched(records, method, multiple):
        return []
    more = [r for r in records if _is(r, part="best", method=method, multiple=multiple)]
    return [best(records, method, multiple), *more]


def untuned(records, settings, method, multiple):
    """What the rule made of the base; there, the base itself."""
    if multiple == settings["multiples"][0]:
        return tuned(records, method, multiple)
    return [r for r in records if _is(r, part="rule", method=method, multiple=multiple)]


def _is(record, **values):
    return all(record["trial"][key] == value for key, value in values.items())


def losses(found):
    return [record["report"] for record in found if record["report"] is not None]


def text(records, settings, name):
    counts = {
        part: sum(r["trial"]["part"] == part for r in records) for part in (*TUNING, "rule", "best")
    }
    return f"""{chr(10).join(answers(records, settings))}

**How far it went**: {counts["search"]} trials of the search, {counts["long warm-up"]} with long \
warm-ups, {counts["rule"]} runs by the rule, {counts["best"]} further seeds of the best; the \
tables show what there is, with the number of trials and runs behind each figure.\
{unfinished(records, settings)}

![Held-out loss over the batch, tuned and untuned; updates to a loss]({name}.png)

## Tuned at every batch

{loss_table(records, settings, tuned_cell)}

Held-out loss in nats, mean ± standard deviation over seeds; in brackets the trials that the best \
was chosen from, and the runs of the best. Chosen is what has the lowest loss on documents that \
the report does not use, from {settings["trials"]} points of a quasi-random sequence in the ranges \
below, the same points for all (rates × √k at k times the smallest batch); above the smallest \
batch also from what the rule made of the base, and at {long_batches(settings)} from the same \
points with long warm-ups. AdamW is `lamb_tf.LAMB` with every trust ratio 1: with the same β₂, ε, \
clipping and exclusions from decay. LARS has its published form, with trust coefficient 0.001. \
Muon is that of Keras with updates of RMS 0.2; it leaves embeddings, vectors and the projections \
of attention to Adam, OrScale only the first two.

## Untuned

{loss_table(records, settings, untuned_cell)}

The best settings at batch {settings["base_batch"]}, with the rate × √k (Nesterov SGD: × k) and as \
many updates of warm-up, at most 0.9 of the run; in brackets the runs.

## Updates to {curves.PLATEAU} nats

{loss_table(records, settings, updates_cell)}

Of the tuned runs, between two evaluations by a line; mean over those that came there. Above this \
loss a model knows the frequencies of words and little else: {stuck(records)} of {len(records)} \
runs end there.

## The chosen settings

{chosen_table(records, settings)}

In the last column the trials that end above {curves.PLATEAU} nats, or diverged.

## What is published

The paper (arXiv 1904.00962): BERT-Large by LAMB from batch 512 to 32,768 at equal epochs, SQuAD \
F1 91.752 → 91.475; LARS 90.717 at 512, 89.589 at 16,384, diverges at 32,768; AdamW at 16,384 \
diverges or has 85 to 88.5. Nado et al. (arXiv 2102.06356) tune Adam for 32,768 and have 91.58 \
beside LAMB's 91.48. OrScale's authors: CIFAR-10, 24 epochs, batch 512: OrScale 94.05, Muon \
93.70, AdamW 93.12, \
LAMB 92.40 %.

Every run here has {settings["sequences"]:,} sequences of {settings["max_seq_length"]} tokens: \
{updates(settings, 0):,} updates at the smallest batch and {updates(settings, -1):,} at the \
largest."""


def unfinished(records, settings):
    """What a search that has not ended means, as a sentence; "" where all have."""
    if all(complete(records, settings, *at) for at in _searches(records, settings)):
        return ""
    return (
        ' Where it says "1 of 4 trials", the search has not ended, the loss may be too high, and '
        "the picture leaves it out."
    )


def _searches(records, settings):
    """Each optimizer that has been run, at each batch."""
    return itertools.product(methods(records, settings), settings["multiples"])


def stuck(records):
    """How many runs do not leave the plateau."""
    return sum(r["report"] is None or r["report"] > curves.PLATEAU for r in records)


def long_batches(settings):
    """Those that are searched with long warm-ups too, in words."""
    found = [k for k in settings["multiples"] if k in settings["long_warmup_multiples"]]
    return " and ".join(f"{settings['base_batch'] * k:,}" for k in found) or "none of them"


def updates(settings, place):
    """Of a run, at a batch by its place among the multiples."""
    return settings["sequences"] // (settings["base_batch"] * settings["multiples"][place])


def answers(records, settings):
    """Up to which batch each holds its loss, as sentences."""
    lines = []
    for method in methods(records, settings):
        chosen = {k: complete(records, settings, method, k) for k in settings["multiples"]}
        by_rule = {k: untuned(records, settings, method, k) for k in settings["multiples"]}
        at_base = losses(chosen[settings["multiples"][0]])
        said = [
            f"{how} {held(groups, settings)}{beyond(groups, settings)}"
            for how, groups in (("tuned", chosen), ("untuned", by_rule))
            if at_base and sum(map(bool, groups.values())) > 1
        ]
        if said:
            loss = f"its loss of {mean(at_base):.2f} nats (within {HELD})"
            words = f"- **{LABELS[method]}** holds {loss} {'; '.join(said)}."
            lines.append(words + AT_PLATEAU * (mean(at_base) > curves.PLATEAU))
    return lines or [
        "**No answer yet**: for no optimizer is the search complete at two batches. What follows "
        "is a beginning, and compares nothing."
    ]


def complete(records, settings, method, multiple):
    """The tuned runs at a batch whose search has ended; else nothing."""
    done = len(searched(records, method, multiple))
    return tuned(records, method, multiple) if done == to_search(settings, multiple) else []


def to_search(settings, multiple):
    """The number of runs that the best is chosen from when all are done."""
    parts = 1 + (multiple in settings["long_warmup_multiples"])
    by_rule = multiple != settings["multiples"][0]
    return parts * settings["trials"] + by_rule


def held(groups, settings):
    """Up to which batch, of those that are done, by the seeds that a batch and the base have."""
    first, last, tried = groups[min(groups)], None, None
    for multiple, found in groups.items():
        if not found:
            break
        tried, gaps = multiple, findings.paired(found, first)
        if any(r["diverged"] for r in found) or not gaps or mean(gaps) > HELD:
            break
        last = multiple
    if last is None:
        return "at no batch"
    base = settings["base_batch"]
    reached = f"up to batch {last * base:,}"
    return reached if last != tried else f"{reached}, the largest that is done"


def beyond(groups, settings):
    """How the loss at the largest batch differs from that at the smallest, if it is known."""
    first, last = (groups[settings["multiples"][place]] for place in (0, -1))
    gaps, largest = findings.paired(last, first), settings["base_batch"] * settings["multiples"][-1]
    if last and not losses(last):
        return f" (diverges at {largest:,}, {_seeds(last)})"
    return f" ({mean(gaps):+.2f} nats at {largest:,}, {_seeds(gaps)})" if gaps else ""


def _seeds(found):
    return f"{len(found)} seed{'s' * (len(found) > 1)}"


def loss_table(records, settings, cell):
    base = settings["base_batch"]
    head = ("optimizer", *(f"batch {base * k:,}" for k in settings["multiples"]))
    rows = [
        (LABELS[m], *(cell(records, settings, m, k) for k in settings["multiples"]))
        for m in methods(records, settings)
    ]
    return findings.table(head, rows)


def tuned_cell(records, settings, method, multiple):
    found = tuned(records, method, multiple)
    if not found:
        return "–"
    tried, wanted = len(searched(records, method, multiple)), to_search(settings, multiple)
    trials = f"{tried}" if tried == wanted else f"{tried} of {wanted}"
    runs = f"{len(found)} run{'s' * (len(found) > 1)}"
    return f"{findings.spread(losses(found), '{:.3f}')} ({trials} trials; {runs}{_lost(found)})"


def untuned_cell(records, settings, method, multiple):
    found = untuned(records, settings, method, multiple)
    if not found:
        return "–"
    runs = f"{len(found)} run{'s' * (len(found) > 1)}"
    return f"{findings.spread(losses(found), '{:.3f}')} ({runs}{_lost(found)})"


def updates_cell(records, settings, method, multiple):
    found = tuned(records, method, multiple)
    steps = [updates_to_target(run) for run in found]
    known = [step for step in steps if step is not None]
    if not found:
        return "–"
    return f"{mean(known):,.0f} ({len(known)} of {len(found)})" if known else "not reached"


def _lost(found):
    lost = sum(record["diverged"] for record in found)
    return f"; {lost} diverged" if lost else ""


def updates_to_target(run):
    return curves.first_at(run["curve"], curves.PLATEAU, "step", "report")


def chosen_table(records, settings):
    head = ("optimizer", "batch", "rate", "1 − β₁", "warm-up, share", "decay")
    head = (*head, f"above {curves.PLATEAU} nats")
    rows = []
    for method in methods(records, settings):
        for multiple in settings["multiples"]:
            if found := tuned(records, method, multiple):
                values = found[0]["values"].values()
                tried = searched(records, method, multiple)
                batch = f"{settings['base_batch'] * multiple:,}"
                cells = (LABELS[method], batch, *(f"{value:.2g}" for value in values))
                rows.append((*cells, f"{stuck(tried)} of {len(tried)}"))
    return findings.table(head, rows)


def draw(records, settings, path):
    findings.picture(lambda axes: _draw(axes, records, settings), path, 3, (14, 4.4))


def _draw(axes, records, settings):
    titles = (
        "tuned at every batch",
        "untuned, by the rule",
        f"updates to {curves.PLATEAU} nats, tuned",
    )
    largest = settings["base_batch"] * settings["multiples"][-1]
    for axis, title in zip(axes, titles):
        axis.set(title=title, xlabel="batch, sequences", xscale="log")
        batches = [settings["base_batch"] * k for k in settings["multiples"]]
        axis.set_xticks(batches, [f"{batch:,}" for batch in batches])
        axis.minorticks_off()
        axis.set_xlim(settings["base_batch"] * 0.7, largest * 1.4)
    for method in methods(records, settings):
        groups = {k: complete(records, settings, method, k) for k in settings["multiples"]}
        rule = {k: untuned(records, settings, method, k) for k in settings["multiples"]}
        rule = rule if groups[settings["multiples"][0]] else {}
        steps = {k: [updates_to_target(run) for run in found] for k, found in groups.items()}
        known = {k: [s for s in found if s is not None] for k, found in steps.items()}
        for axis, points in zip(axes, (_of(groups), _of(rule), known)):
            _line(axis, points, settings["base_batch"], method)
        for axis, points in zip(axes[:2], (groups, rule)):
            _note_those_above(axis, points, settings["base_batch"], method)
    axes[0].set_ylabel("held-out loss, nats")
    axes[2].set(ylabel="updates", yscale="log")
    if axes[0].containers:
        axes[0].legend(fontsize=8)
    axes[0].sharey(axes[1])
    for axis in axes[:2]:
        axis.axhline(curves.PLATEAU, color="#777777", lw=0.8, ls="--")
        axis.set_ylim(top=min(axis.get_ylim()[1], CEILING))


def _of(groups):
    return {multiple: losses(found) for multiple, found in groups.items()}


def _line(axis, points, base, method):
    points = {base * k: values for k, values in points.items() if values}
    if not points:
        return
    means = [mean(values) for values in points.values()]
    low = [m - min(values) for m, values in zip(means, points.values())]
    high = [max(values) - m for m, values in zip(means, points.values())]
    style = {"color": COLORS[method], "label": LABELS[method], "marker": "o", "capsize": 3}
    axis.errorbar(list(points), means, [low, high], **style)


def _note_those_above(axis, groups, base, method):
    """Their mean as a number, or that all diverged, at the edge of the picture."""
    style = {"ha": "right", "va": "top", "color": COLORS[method], "fontsize": 9}
    for multiple, found in groups.items():
        known = losses(found)
        if not found or (known and mean(known) <= CEILING):
            continue
        words, down = (f"{mean(known):.1f} ↑", 5) if known else ("diverged ↑", 17)
        place = {"xytext": (-4, -down), "textcoords": "offset points"}
        axis.annotate(words, (base * multiple, CEILING), **place, **style)
