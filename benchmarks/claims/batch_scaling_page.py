"""Text of the page of `batch_scaling.py`, from its records alone."""

import itertools
from statistics import mean

import stats as findings
from model_settings import ABOUT
from stats import curves

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
MOST_WARMUP = 0.9  # of a run, by the rule
TUNING = ("search", "long warm-up")  # parts of a study whose trials are points of a sequence
HELD = 0.1  # nats above the loss at the smallest batch that still count as held


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
    base = f"{settings['base_batch']:,}"
    return f"""{answer(records, settings)}

![Held-out loss over the batch, tuned and untuned; steps to a loss]({name}.png)

Every run has {settings["sequences"]:,} sequences of {settings["max_seq_length"]} tokens: \
{updates(settings, 0):,} steps at batch {base} and {updates(settings, -1):,} at the largest. \
{ABOUT}

{versus(records, settings)}## Tuned at every batch

{loss_table(records, settings, tuned_cell)}

Held-out loss in nats, mean ± standard deviation over seeds. In brackets: the number of trials \
that the best was chosen from, and the number of runs of the best.{unfinished(records, settings)}

The best trial has the lowest loss with the first seed, on documents that the reported loss does \
not use. The trials are:

- {settings["trials"]} points of a quasi-random sequence in the ranges below, the same for all \
optimizers (rates × √k at k times the smallest batch),
- above the smallest batch, the settings scaled by the rule,
- at {long_batches(settings)}, the same points with long warm-ups.

Where tuned and untuned agree, the rule's run was the best trial.

Limits: the deviations do not include the choice of the settings. The ranges were set after \
earlier runs, mostly of LAMB and AdamW. {settings["trials"]} points of four hyperparameters are \
few: "worse" means worse after this search.

## Untuned

{loss_table(records, settings, untuned_cell)}

The best settings at batch {base}, with the rate × √k (Nesterov SGD: × k) and the same number of \
warm-up steps (at most {MOST_WARMUP} of the run). In brackets: the number of runs. From another \
point of the search the rule may do better or worse.{limited(records, settings)}

## Steps to {curves.PLATEAU} nats

{loss_table(records, settings, updates_cell)}

Mean over the tuned runs that reach this loss, interpolated linearly between evaluations, which \
are a tenth of a run apart. Above this loss a model knows little but the frequencies of words: \
{stuck(records)} runs end there.

## The chosen settings

{chosen_table(records, settings)}

↑ and ↓ mark the highest and the lowest value tried at that batch. The last column counts the \
trials that end above {curves.PLATEAU} nats or diverge; if most do, the search compared little. \
1 − β₁ is 1 − momentum for all but LAMB and AdamW; Adam within OrScale and Muon has β₁ 0.9.

- **AdamW** is `lamb_tf.LAMB` with every trust ratio 1: the same β₂, ε, clipping and exclusions \
from decay.
- **LARS** has the form of LAMB's paper, with the ratio after the momentum. LayerNorms and biases \
move at the rate itself.
- **Muon** is Keras' Muon, with updates of RMS 0.2. Like OrScale, it moves embeddings and vectors \
by Adam.

## Published results

The LAMB paper (arXiv 1904.00962) trains BERT-Large from batch 512 to 32,768 at equal epochs. Its \
SQuAD F1 scores:

- LAMB: 91.752 at 512, 91.475 at 32,768.
- LARS: 90.717 at 512, 89.589 at 16,384; it diverges at 32,768.
- AdamW: at 16,384 it diverges or reaches 85 to 88.5.

Nado et al. (arXiv 2102.06356) tune Adam for batch 32,768 and report 91.58, compared with LAMB's \
91.48 (both quoted from memory). OrScale's results on CIFAR-10 are on [its \
page](../orscale.md#results)."""


def unfinished(records, settings):
    """What a search that has not ended means, as a sentence; "" where all have."""
    at = itertools.product(methods(records, settings), settings["multiples"])
    if all(complete(records, settings, *each) for each in at):
        return ""
    return (
        f' "1 of {settings["trials"]} trials" marks a search that has not ended: the loss may be '
        "too high, and the picture omits it."
    )


def stuck(records):
    """How many runs do not leave the plateau, in words."""
    trained = [r for r in records if "twin" not in r]
    return f"{sum(map(is_stuck, trained))} of {len(trained)}"


def is_stuck(record):
    return record["report"] is None or record["report"] > curves.PLATEAU


def long_batches(settings):
    """Those that are searched with long warm-ups too, in words."""
    found = [k for k in settings["multiples"] if k in settings["long_warmup_multiples"]]
    return " and ".join(f"{settings['base_batch'] * k:,}" for k in found) or "none of them"


def updates(settings, place):
    """Of a run, at a batch by its place among the multiples."""
    return settings["sequences"] // (settings["base_batch"] * settings["multiples"][place])


def answer(records, settings):
    """Up to which batch each holds its loss, and what it loses at the largest: a table."""
    rows = []
    for method in methods(records, settings):
        chosen = {k: complete(records, settings, method, k) for k in settings["multiples"]}
        by_rule = {k: untuned(records, settings, method, k) for k in settings["multiples"]}
        at_base = losses(chosen[settings["multiples"][0]])
        if not at_base or not any(found for k, found in by_rule.items() if k > 1):
            continue
        row = [LABELS[method], f"{mean(at_base):.2f}"]
        for groups in (chosen, by_rule):
            stuck = mean(at_base) > curves.PLATEAU
            row += ["–", "–"] if stuck else [held(groups, settings), beyond(groups, settings)]
        rows.append(row)
    if not rows:
        return (
            "**No answer yet**: no optimizer has a complete search at two batches. The tables "
            "below are preliminary."
        )
    base, largest = (f"{settings['base_batch'] * settings['multiples'][i]:,}" for i in (0, -1))
    how = [f"{how}: {what}" for how in ("tuned", "untuned") for what in ("holds up to", "change")]
    table = findings.table(("optimizer", f"loss at {base}", *how), rows)
    return f"""Find the batch size up to which each optimizer holds its loss. *Tuned*: the \
settings are searched at every batch. *Untuned*: the settings of batch {base} are scaled by a rule.

{table}

*Holds up to*: the largest batch at which the loss is at most {HELD} nats above that of batch \
{base}; two batches mean that three seeds cannot tell. *Change*: the difference of the loss \
between batch {base} and {largest}, in nats. An optimizer above {curves.PLATEAU} nats at batch \
{base} has no entry.

[Compared with LAMB](#compared-with-lamb) · [tuned](#tuned-at-every-batch) · \
[untuned](#untuned) · [the chosen settings](#the-chosen-settings) · \
[published results](#published-results)"""


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
    first, certain, possible, tried = groups[min(groups)], None, None, None
    for multiple, found in groups.items():
        if not found:
            break
        tried, gaps = multiple, findings.paired(found, first)
        if any(r["diverged"] for r in found) or not gaps:
            break
        within = findings.within(gaps, HELD)
        if within is False:
            break
        if within and certain == possible:
            certain = multiple
        possible = multiple
    if possible is None:
        return "no batch"
    reached = dict.fromkeys((certain or min(groups), possible))
    words = " or ".join(f"{settings['base_batch'] * multiple:,}" for multiple in reached)
    return words if possible != tried else f"{words}, the largest done"


def beyond(groups, settings):
    """How the loss at the largest batch differs from that at the smallest, if it is known."""
    first, last = (groups[settings["multiples"][place]] for place in (0, -1))
    lost = sum(r["diverged"] for r in last)
    diverged = f"{lost} of {len(last)} diverge" if lost else ""
    gaps = findings.paired(last, first)
    return ", ".join(filter(None, [findings.signed(gaps, 2) if gaps else "", diverged])) or "–"


def rule_table(records, settings):
    """What the rule makes of the warm-up of each optimizer, at each batch."""
    base, rows = settings["base_batch"], []
    for method in methods(records, settings):
        if not complete(records, settings, method, settings["multiples"][0]):
            continue
        values = best(records, method, settings["multiples"][0])["values"]
        cells = [round(values["warmup_share"] * updates(settings, 0))]
        for multiple in settings["multiples"]:
            share = values["warmup_share"] * multiple
            limited = f"{MOST_WARMUP} instead of {share:.2f}"
            cells.append(f"{share:.2f}" if share <= MOST_WARMUP else limited)
        rows.append((LABELS[method], f"{values['rate']:.2g}", *cells))
    batches = (f"share at {base * k:,}" for k in settings["multiples"])
    head = ("optimizer", f"rate at {base:,}", "warm-up, steps", *batches)
    return findings.table(head, rows)


def limited(records, settings):
    """Where the rule's warm-up does not fit into a run, as a sentence and a table; or ""."""
    table = rule_table(records, settings)
    if " instead of " not in table:
        return ""
    return f" At that limit the warm-up is shorter than the rule's:\n\n{table}"


def versus(records, settings):
    """The section that compares all with LAMB; "" where no search is complete."""
    if not complete(records, settings, "lamb", settings["multiples"][0]):
        return ""
    return f"""## Compared with LAMB

{versus_table(records, settings)}

Difference of the held-out loss from LAMB's, in nats; positive is worse. Seeds that diverged are \
omitted. With this many intervals, some miss the true difference by chance.

"""


def versus_table(records, settings):
    """Differences from LAMB, seed by seed."""
    base, multiples = settings["base_batch"], settings["multiples"]
    ways = [(complete, k, "") for k in multiples] + [
        (untuned, k, ", untuned") for k in multiples[1:]
    ]
    rows = [
        (
            LABELS[method],
            *(
                findings.signed(
                    findings.paired(
                        way(records, settings, method, k), way(records, settings, "lamb", k)
                    ),
                    2,
                )
                for way, k, _ in ways
            ),
        )
        for method in methods(records, settings)
        if method != "lamb"
    ]
    head = ("optimizer", *(f"{base * k:,}{untuned_too}" for _, k, untuned_too in ways))
    return findings.table(head, rows)


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
    head = ("optimizer", "batch", "from", "rate", "1 − β₁", "warm-up, share", "decay")
    rows = []
    for method in methods(records, settings):
        for multiple in settings["multiples"]:
            tried = searched(records, method, multiple)
            if not tried:
                continue
            chosen = best(records, method, multiple)
            rows.append(
                (
                    LABELS[method],
                    f"{settings['base_batch'] * multiple:,}",
                    chosen["trial"]["part"],
                    *(_marked(name, chosen, tried) for name in chosen["values"]),
                    f"{sum(map(is_stuck, tried))} of {len(tried)}",
                )
            )
    return findings.table((*head, f"above {curves.PLATEAU} nats"), rows)


def _marked(name, chosen, tried):
    """A hyperparameter of the chosen, with an arrow where none that was tried is beyond it."""
    values, value = [r["values"][name] for r in tried], chosen["values"][name]
    arrows = "↑" * (value == max(values)) + "↓" * (value == min(values))
    return f"{value:.2g}" + (f" {arrows}" if len(arrows) == 1 else "")
