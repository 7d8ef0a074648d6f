"""Text and picture of `variants.py`, from its records alone."""

from statistics import mean

import study

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
SHORT = {
    "paper": "paper, v5",
    "uncorrected": "no bias correction",
    "nvlamb": "NVLAMB",
    "lambc": "LAMBC",
    "keras": "Keras",
    "all": "no exclusions",
    "n": "N-LAMB",
    "nn": "NN-LAMB",
}


def chosen_rate(records):
    """The rate of the paper's form that has the lowest loss on the set to choose by."""
    return _best(records)["used_rate"]


def _best(records):
    tuned = [record for record in records if record["trial"]["part"] == "tuning"]
    return study.chosen(tuned, "select", lowest=True)


def groups(records):
    """{variant: its runs at the chosen rate, by seed}."""
    found = {variant: [] for variant in LABELS}
    found["paper"] = [_best(records)]
    for record in records:
        if record["trial"]["part"] == "variant":
            found[record["trial"]["variant"]].append(record)
    ordered = {v: sorted(runs, key=lambda r: r["trial"]["seed"]) for v, runs in found.items()}
    return {variant: runs for variant, runs in ordered.items() if runs}


def text(records, settings, name):
    found = groups(records)
    rows = [row(variant, runs, found["paper"]) for variant, runs in found.items()]
    head = ("variant", "runs", "held-out loss, nats", "accuracy", "difference to the paper's")
    tuned = ", ".join(
        f"{r['used_rate']:g}: {_loss(r['select'])}"
        for r in records
        if r["trial"]["part"] == "tuning"
    )
    return f"""{chr(10).join(answers(found))}

![Held-out loss of the variants, seed by seed]({name}.png)

{study.table((*head, "diverged"), rows)}

Masked words of held-out documents; mean ± standard deviation over seeds. Differences are taken \
seed by seed, because a seed decides initial values, batches and masks of all alike; a negative \
one is better.

All train for {settings["updates"]:,} updates of {settings["batch_size"]} × \
{settings["max_seq_length"]} tokens, the rate rising for {settings["warmup_steps"]} and then \
falling linearly to 0. The rate, {chosen_rate(records):g}, is the one at which the paper's form \
had the lowest loss on the documents to choose by ({tuned}; seed 1). A variant may do better at \
a rate \
of its own: this compares what happens when only the optimizer is exchanged.

The variants as arguments: [Which LAMB is yours?](../which_lamb.md). The paper's code excludes \
LayerNorms and biases from decay and trust ratio.

## What is published

The paper says that the bias correction can be left out (it acts as a warm-up), and that the norm \
changes accuracy by less than 0.1 %. N-LAMB and NN-LAMB are its appendix's. We know \
of no published table of these forms."""


def _loss(value):
    return "diverged" if value is None else f"{value:.3f}"


def row(variant, runs, reference):
    return (
        LABELS[variant],
        len(runs),
        study.spread([r["report"] for r in runs], "{:.3f}"),
        study.spread([r["report_accuracy"] for r in runs], "{:.1f}") + " %",
        "–" if variant == "paper" else study.signed(study.paired(runs, reference)),
        sum(r["diverged"] for r in runs),
    )


def answers(found):
    """Which variants differ by more than the seeds do, as sentences."""
    different, alike = [], []
    for variant, runs in found.items():
        gaps = study.paired(runs, found["paper"])
        if variant == "paper" or len(gaps) < 2:
            continue
        width = study.half_width(gaps)
        said = f"{SHORT[variant]} ({mean(gaps):+.3f} ± {width:.3f})"
        (different if abs(mean(gaps)) > width else alike).append(said)
    if not different + alike:
        return ["There are not two seeds of any variant yet."]
    lines = []
    if different:
        lines.append(
            "- **Told apart from the paper's form** (mean difference of held-out loss in nats, "
            f"its 95 % interval by Student's t): {', '.join(different)}."
        )
    if alike:
        lines.append(
            "- **Not told apart from the paper's form** (mean difference in nats, its 95 % "
            f"interval): {', '.join(alike)}."
        )
    return lines + one_sided(found)


def one_sided(found):
    """Which variants are better, or worse, than the paper's form with every seed, as a sentence."""
    gaps = {v: study.paired(runs, found["paper"]) for v, runs in found.items() if v != "paper"}
    several = {SHORT[variant]: values for variant, values in gaps.items() if len(values) > 1}
    lower = [name for name, values in several.items() if max(values) < 0]
    higher = [name for name, values in several.items() if min(values) > 0]
    said = [
        f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} a {what} loss with every seed"
        for names, what in ((lower, "lower"), (higher, "higher"))
        if names
    ]
    return [f"- {'; '.join(said)}."] if said else []


def draw(records, settings, path):
    study.picture(lambda axes: _draw(axes, groups(records)), path, 2, (11, 4.2))


def _draw(axes, found):
    names = list(reversed(found))
    for place, variant in enumerate(names):
        runs, color = found[variant], "#cc3311" if variant == "paper" else "#4477aa"
        losses = [run["report"] for run in runs if run["report"] is not None]
        for axis, values in zip(axes, (losses, study.paired(runs, found["paper"]))):
            axis.plot(values, [place] * len(values), "o", color=color, alpha=0.7)
            if values:
                axis.plot([mean(values)], [place], "|", color=color, ms=22, mew=2.5)
    axes[0].set_yticks(range(len(names)), [SHORT[variant] for variant in names])
    axes[1].set_yticks(range(len(names)), [""] * len(names))
    axes[0].set_xlabel("held-out masked-LM loss, nats; a dot a seed, the bar their mean")
    axes[1].set_xlabel("difference to the paper's form with the same seed")
    for axis in axes:
        axis.grid(axis="x", alpha=0.3)
