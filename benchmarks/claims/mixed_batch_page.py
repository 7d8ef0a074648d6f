"""Text and picture of `mixed_batch.py`, from its records alone."""

from statistics import mean

import findings
from findings import curves

LABELS = {
    "warm-up": "rises from 0 again (re-warm-up)",
    "restart": "begins at its top",
    "continued": "one schedule over both phases",
}
MOMENTS = ("kept", "from 0")
COLORS = {"warm-up": "#cc3311", "restart": "#4477aa", "continued": "#228833"}
STYLES = {"kept": "-", "from 0": "--"}
REFERENCE = "warm-up", "kept"  # what the paper's mixed batch does


def groups(records):
    """{(schedule, moments): second phases, by seed}."""
    found = {(schedule, moments): [] for schedule in LABELS for moments in MOMENTS}
    for record in sorted(records, key=lambda r: r["trial"]["seed"]):
        trial = record["trial"]
        if trial["phase"] == "second":
            found[trial["schedule"], trial["moments"]].append(record)
    return {arm: runs for arm, runs in found.items() if runs}


def text(records, settings, name):
    found, (first, second) = groups(records), (settings["first"], settings["second"])
    head = ("rate of the second phase", "moments", "runs", "loss before", "loss at the end, nats")
    rows = [row(arm, runs, found.get(REFERENCE, [])) for arm, runs in found.items()]
    head = (*head, "accuracy", "difference to re-warm-up, kept", "diverged")
    return f"""{chr(10).join([*answers(found), *new_positions(found, settings)])}

![Held-out loss over the second phase]({name}.png)

{findings.table(head, rows)}

Masked words of held-out documents at {second["max_seq_length"]} tokens; mean ± standard deviation \
over seeds. Differences are taken seed by seed, with half the width of the 95 % interval of their \
mean; a negative one is better. The loss before is that \
of the first phase's model on the longer sequences.

The first phase: {first["updates"]:,} updates of {first["batch_size"]} × \
{first["max_seq_length"]} tokens; the second: {second["updates"]:,} of {second["batch_size"]} × \
{second["max_seq_length"]}. LAMB, rate {settings["rate"]:g} at the top of each phase, linear decay \
to 0; {settings["first_warmup"]} updates of warm-up and, where the rate rises again, \
{settings["second_warmup"]}. The rate was chosen for no arm. Two first phases are trained per \
seed: one whose rate falls to 0, and one whose rate goes on falling in the second phase. All arms \
of a seed begin with one of these.

## What is published

The paper (arXiv 1904.00962): stage 1 is 9/10 of the epochs at length 128 and batch 65,536, stage \
2 length 512 and batch 32,768, with a rate that ramps up from zero again: SQuAD F1 90.584 in 8,599 \
updates. It gives no figure without the second warm-up. NVIDIA's recipe restarts step and rate and \
keeps m and v. Nado et al. (arXiv 2102.06356) reach 91.04 there with tuned Adam."""


def row(arm, runs, reference):
    schedule, moments = arm
    return (
        LABELS[schedule],
        moments,
        len(runs),
        findings.spread([r["start"] for r in runs], "{:.3f}"),
        findings.spread([r["report"] for r in runs], "{:.3f}"),
        findings.spread([r["report_accuracy"] for r in runs], "{:.1f}") + " %",
        "–" if arm == REFERENCE else findings.signed(findings.paired(runs, reference)),
        sum(r["diverged"] for r in runs),
    )


def answers(found):
    """What each arm loses or gains beside the paper's, as sentences."""
    lines, reference = [], found.get(REFERENCE, [])
    for arm, runs in found.items():
        gaps = findings.paired(runs, reference)
        if arm == REFERENCE or len(gaps) < 2:
            continue
        width = findings.half_width(gaps)
        told = "told apart" if abs(mean(gaps)) > width else "not told apart"
        lines.append(
            f"- {LABELS[arm[0]]}, moments {arm[1]}: **{mean(gaps):+.3f} ± {width:.3f}** nats "
            f"beside the paper's way ({told}; 95 % interval by Student's t)"
        )
    return (lines or ["There are not two seeds of any arm yet."]) + plateau(found)


def new_positions(found, settings):
    """What one schedule does to the positions that only the second phase has."""
    runs = [r for r in found.get(("continued", "kept"), []) if r["report"] is not None]
    if not runs:
        return []
    first, second = settings["first"], settings["second"]
    length, new = second["max_seq_length"], second["max_seq_length"] - first["max_seq_length"]
    falls = first["updates"] + second["updates"] - settings["first_warmup"]
    rate = settings["rate"] * second["updates"] / falls
    start, end = (mean(run[key] for run in runs) for key in ("start", "report"))
    return [
        f"- {new} of the {length} positions are new in the second phase, as 384 of 512 are in the "
        f"paper's. One schedule begins it at "
        f"rate {rate:.2g} instead of {settings['rate']:g}, and the loss goes from {start:.2f} to "
        f"{end:.2f} nats. Where no position is new, this says little."
    ]


def plateau(found):
    """How many runs end where a model knows the frequencies of words and little else."""
    losses = [r["report"] for runs in found.values() for r in runs if r["report"] is not None]
    above = sum(loss > curves.PLATEAU for loss in losses)
    if not above:
        return []
    return [
        f"- **{above} of {len(losses)} runs end above {curves.PLATEAU} nats**, where a model knows "
        "how frequent words are and little else: the positions that are new in the second phase "
        "have not left that plateau. Of models that have learned more, this says little."
    ]


def draw(records, settings, path):
    findings.picture(lambda axes: _draw(axes, groups(records)), path, 2, (10, 4.2))


def _draw(axes, found):
    for (schedule, moments), runs in found.items():
        curves = [run["curve"] for run in runs if not run["diverged"]]
        if not curves:
            continue
        steps = [0, *(line["step"] for line in curves[0])]
        starts = mean(run["start"] for run in runs if not run["diverged"])
        losses = [mean(line["report"] for line in lines) for lines in zip(*curves)]
        label = f"{LABELS[schedule]}, moments {moments}"
        style = {"color": COLORS[schedule], "ls": STYLES[moments], "label": label}
        axes[0].plot(steps, [starts, *losses], **style)
    axes[0].set(xlabel="updates of the second phase", ylabel="held-out loss, nats (means)")
    if axes[0].lines:
        axes[0].legend(fontsize=7, loc="lower left")
    for place, ((schedule, _), runs) in enumerate(reversed(found.items())):
        losses = [r["report"] for r in runs if r["report"] is not None]
        axes[1].plot(losses, [place] * len(losses), "o", color=COLORS[schedule], alpha=0.7)
        if losses:
            axes[1].plot([mean(losses)], [place], "|", color=COLORS[schedule], ms=22, mew=2.5)
    names = [f"{schedule}, {moments}" for schedule, moments in reversed(found)]
    axes[1].set_yticks(range(len(found)), names)
    axes[1].set_xlabel("at the end; a dot a seed, the bar their mean")
    axes[1].grid(axis="x", alpha=0.3)
