"""Text and picture of `variants.py`, from its records alone."""

from statistics import mean

import stats as findings
from model_settings import ABOUT

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
SAME = 0.001  # nats between runs of which one could be the other
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


def best(records, variant):
    """The run of its first seed that has the lowest loss on the set to choose by."""
    return findings.chosen(_tuning(records, variant), "select", lowest=True)


def _tuning(records, variant):
    trials = {"part": "tuning", "variant": variant}
    return [r for r in records if trials.items() <= r["trial"].items()]


def groups(records):
    """{variant: its runs at its best rate, by seed}."""
    found = {v: [best(records, v)] for v in LABELS if _tuning(records, v)}
    for record in sorted(records, key=lambda r: r["trial"]["seed"]):
        if record["trial"]["part"] == "best" and record["trial"]["variant"] in found:
            found[record["trial"]["variant"]].append(record)
    return found


def text(records, settings, name):
    found = groups(records)
    rows = [row(variant, runs, found) for variant, runs in found.items()]
    head = ("variant", "rate", "runs", "held-out loss, nats", "accuracy", "difference", "diverged")
    rates = sorted(settings["rates"])
    head_of_rates = ("variant", *(f"rate {rate:g}" for rate in rates))
    losses = [
        (LABELS[v], *(_loss(_at(_tuning(records, v), rate)) for rate in rates)) for v in found
    ]
    return f"""{chr(10).join(answers(found))}

![Held-out loss of the variants, seed by seed]({name}.png)

{findings.table(head, rows)}

{bound(found)}Loss and accuracy: mean ± standard deviation over seeds. {ABOUT}

Every run has {settings["updates"]:,} steps of {settings["batch_size"]} × \
{settings["max_seq_length"]} tokens. The rate rises for {settings["warmup_steps"]} steps and then \
falls linearly to 0.

## The rates

Each variant has the rate with the lowest loss of the first seed on the selection documents. A \
rate in between may be better, and the order of two variants can change with the rate. The losses \
on the selection documents:

{findings.table(head_of_rates, losses)}{at_the_edge(found, rates)}

The variants as arguments: [Which LAMB is mine?](../which_lamb.md). The paper's code excludes \
LayerNorms and biases from decay and trust ratio.

## Published results

The paper states that the bias correction can be omitted, because it acts as a warm-up, and that \
the choice of norm changes accuracy by less than 0.1 %. N-LAMB and NN-LAMB come from its appendix \
(quoted from memory). We know of no published comparison of these variants."""


def bound(found):
    """Whether LAMBC does what the paper's form does, as a paragraph; "" where it does not."""
    gaps = paired(found.get("lambc", []), found)
    if not gaps or max(map(abs, gaps)) > SAME:
        return ""
    return (
        f"LAMBC's losses equal those of the paper's form within {SAME} nats: at this rate hardly "
        "any ratio reaches the bound.\n\n"
    )


def at_the_edge(found, rates):
    """Whose best rate is the lowest or the highest of several, as a sentence."""
    edges = (rates[0], rates[-1]) if len(rates) > 1 else ()
    names = [SHORT[variant] for variant, runs in found.items() if runs[0]["used_rate"] in edges]
    said = "Best at the lowest or highest rate, so perhaps better beyond it: "
    return f"\n\n{said}{', '.join(names)}." if names else ""


def _at(runs, rate):
    return next((run for run in runs if run["used_rate"] == rate), None)


def _loss(run):
    if run is None:
        return "–"
    return "diverged" if run["select"] is None else f"{run['select']:.3f}"


def row(variant, runs, found):
    return (
        LABELS[variant],
        f"{runs[0]['used_rate']:g}",
        len(runs),
        findings.spread([r["report"] for r in runs], "{:.3f}"),
        findings.spread([r["report_accuracy"] for r in runs], "{:.1f}") + " %",
        "–" if variant == "paper" else findings.signed(paired(runs, found)),
        sum(r["diverged"] for r in runs),
    )


def paired(runs, found):
    """Differences to the paper's form, seed by seed."""
    return findings.paired(runs, found.get("paper", []))


def answers(found):
    """Which variants differ by more than the seeds do, as sentences."""
    different, alike = [], []
    for variant, runs in found.items():
        gaps = paired(runs, found)
        if variant == "paper" or len(gaps) < 2:
            continue
        said = f"{SHORT[variant]} ({findings.signed(gaps)})"
        (different if abs(mean(gaps)) > findings.half_width(gaps) else alike).append(said)
    compared = len(different + alike)
    if not compared:
        return ["No variant has two seeds yet."]
    chance = min(100, 5 * compared)
    return [
        *([f"- **Differ from the paper's form**: {', '.join(different)}."] if different else []),
        *([f"- **No difference shown**: {', '.join(alike)}."] if alike else []),
        "",
        "Differences of the held-out loss from the paper's form, in nats, with 95 % intervals; "
        "negative is better. Each interval misses the true difference in 5 % of cases; the "
        f"probability that at least one of the {compared} does is at most {chance} %.",
    ]


def draw(records, settings, path):
    findings.picture(lambda axes: _draw(axes, groups(records)), path, 2, (11, 4.2))


def _draw(axes, found):
    names = list(reversed(found))
    for place, variant in enumerate(names):
        runs, color = found[variant], "#cc3311" if variant == "paper" else "#4477aa"
        losses = [run["report"] for run in runs if run["report"] is not None]
        gaps = paired(runs, found)
        for axis, values in zip(axes, (losses, gaps)):
            axis.plot(values, [place] * len(values), "o", color=color, alpha=0.7)
            if values:
                axis.plot([mean(values)], [place], "|", color=color, ms=22, mew=2.5)
        if gaps and variant != "paper":
            style = {"color": color, "capsize": 4, "lw": 1}
            axes[1].errorbar([mean(gaps)], [place], xerr=findings.half_width(gaps), **style)
    axes[0].set_yticks(range(len(names)), [SHORT[variant] for variant in names])
    axes[1].set_yticks(range(len(names)), [""] * len(names))
    axes[0].set_xlabel("held-out masked-LM loss, nats; a dot a seed, the bar their mean")
    axes[1].axvline(0, color="#777777", lw=0.8, ls="--")
    axes[1].set_xlabel("difference from the paper's form with the same seed; 95 % interval")
    for axis in axes:
        axis.grid(axis="x", alpha=0.3)
